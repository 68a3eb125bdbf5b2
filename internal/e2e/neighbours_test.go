//go:build unix

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"usher/internal/testkit"
)

// neighbour runs a real program that stands in front of usher or behind it.
func neighbour(t *testing.T, name string, args ...string) (out io.Reader) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	if err != nil {
		testkit.Missing(t, "%s is not installed: usher is not tried with it", name)
	}
	cmd := exec.Command(path, args...)
	cmd.Stderr = os.Stderr
	out, err = cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() })
	return out
}

// cutting is a service whose answers have no length: they are as long as the query says, and then they end, break
// off, or stand still.
func cutting(t *testing.T) (environ func(...string) []string) {
	t.Helper()
	tokens := testkit.NewService(t)
	mux := http.NewServeMux()
	mux.Handle("/oauth/token", tokens)
	mux.HandleFunc("/graphql", func(w http.ResponseWriter, r *http.Request) {
		var size int
		var then string
		fmt.Sscanf(r.URL.RawQuery, "%d-%s", &size, &then)
		io.WriteString(w, strings.Repeat("x", size))
		w.(http.Flusher).Flush()
		switch then {
		case "breaks":
			panic(http.ErrAbortHandler)
		case "stands":
			<-r.Context().Done()
		}
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return func(extra ...string) []string { return tokens.Environ(append(extra, "USHER_BASE_URL="+srv.URL)...) }
}

// behindNginx is where an nginx with its defaults passes on what it gets: in HTTP/1.0, in which the end of
// a connection ends an answer.
func behindNginx(t *testing.T, usher string) (site string) {
	t.Helper()
	address, dir := testkit.FreeAddress(t), t.TempDir()
	config := fmt.Sprintf(`
		pid nginx.pid; error_log stderr crit; events {}
		http {
			access_log off;
			client_body_temp_path tmp; proxy_temp_path tmp; fastcgi_temp_path tmp; uwsgi_temp_path tmp; scgi_temp_path tmp;
			server { listen %s; location / { proxy_pass %s; } }
		}`, address, usher)
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	neighbour(t, "nginx", "-p", dir, "-c", "nginx.conf", "-g", "daemon off;")
	testkit.Eventually(t, "nginx listens", func() bool {
		resp, err := http.Get("http://" + address + "/graphql?0-ends")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	return "http://" + address + "/graphql?"
}

// Behind an nginx with its defaults an answer that breaks off never looks whole: not if the service breaks it
// off, not if usher does so at the end of the grace, nor at a second signal.
func TestBehindNginx(t *testing.T) {
	t.Parallel()
	const short, long = 1000, 3 << 20
	read := func(resp *http.Response, err error) (int, string, error) {
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}
	t.Run("the service", func(t *testing.T) {
		u := startProcess(t, cutting(t)())
		u.Ready(t)
		site := behindNginx(t, u.URL(t, "main"))
		for _, size := range []int{0, short, long} {
			if status, body, err := read(http.Get(fmt.Sprint(site, size, "-ends"))); status != 200 || len(body) != size || err != nil {
				t.Errorf("%d bytes: %d, %d bytes, %v", size, status, len(body), err)
			}
			if status, body, err := read(http.Get(fmt.Sprint(site, size, "-breaks"))); status == 200 && err == nil {
				t.Errorf("%d bytes that break off: %d bytes look whole", size, len(body))
			}
		}
	})
	for signals, grace := range map[int]string{1: "USHER_SHUTDOWN_GRACE=200ms", 2: "USHER_SHUTDOWN_GRACE=10m"} {
		t.Run(grace, func(t *testing.T) {
			u := startProcess(t, cutting(t)(grace))
			u.Ready(t)
			site := behindNginx(t, u.URL(t, "main"))
			resp, err := http.Get(fmt.Sprint(site, long, "-stands"))
			if err != nil {
				t.Fatal(err)
			}
			for range signals {
				u.Signal(t, syscall.SIGTERM)
				testkit.Eventually(t, "shutting down", func() bool { return strings.Contains(u.Stderr.String(), "shutting down") })
			}
			if status, body, err := read(resp, nil); err == nil {
				t.Errorf("%d, %d bytes look whole", status, len(body))
			}
			<-u.Ended
			if strings.Contains(u.Stderr.String(), "hung up") {
				t.Error("the log blames nginx")
			}
		})
	}
}

// A Node service announces for how long it keeps an idle connection. usher takes another one before that time is
// over: one that Node is about to close costs a call.
func TestInFrontOfNode(t *testing.T) {
	t.Parallel()
	const script = `
		let connections = 0;
		const answer = (req, res) => {
			req.resume().on("end", () => res.end(req.url == "/oauth/token"
				? JSON.stringify({access_token: "t", token_type: "Bearer", expires_in: 7200}) : String(connections)));
		};
		const server = require("http").createServer({keepAliveTimeout: 4000}, answer);
		server.on("connection", () => connections++);
		server.listen(0, "127.0.0.1", () => console.log(server.address().port));`
	line, err := bufio.NewReader(neighbour(t, "node", "-e", script)).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	service := testkit.NewService(t)
	service.URL = "http://127.0.0.1:" + strings.TrimSpace(line)
	u := start(t, service.Environ("USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", "USHER_WEBHOOK_LISTEN=127.0.0.1:0")).ready(t)
	connections := func() string {
		t.Helper()
		r := u.call()
		if r.status != 200 {
			t.Fatalf("%d %s %v", r.status, r.body, r.err)
		}
		return r.body
	}
	before := ""
	testkit.Eventually(t, "a connection used again", func() bool { before = connections(); return connections() == before })
	time.Sleep(3100 * time.Millisecond) // Node has a clock of its own
	if after := connections(); after == before {
		t.Errorf("a connection was used 3.1 s later, and Node announced 4 s")
	}
}
