//go:build unix

package e2e

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// exec opens a port of its own and no other, whatever the settings of a server beside it say; and
// its port needs no key.
func TestExecOpensOnlyItsPort(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	used := taken(t) // it would be an error to listen there
	p := startProcess(t, testkit.NewService(t).Environ(callAndExit+"=1", "USHER_LISTEN="+used, "USHER_KEY=k3y", "USHER_ADMIN_LISTEN="+used,
		"USHER_WEBHOOK_LISTEN="+used, "USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", "USHER_WEBHOOK_INBOX=file:/nowhere/inbox.db",
		"USHER_ENTITLEMENTS_LISTEN="+used), "exec", "--", "sh", "-c", `echo "$USHER_URL"; exec "$0"`, self)
	<-p.Ended
	if out := p.Stdout.String(); p.Code != 0 || !regexp.MustCompile(`^http://127\.0\.0\.1:\d+/graphql\n`).MatchString(out) || !strings.Contains(out, "Acme") {
		t.Errorf("%d %s %s", p.Code, out, p.Stderr.String())
	}
}

// exec gives a token endpoint that nobody reaches half a minute, and does not run its command
// without a token. Beside it an answer streams for as long, through a port of usher's: nothing
// limits that.
func TestExecGivesUp(t *testing.T) {
	if !*long {
		t.Skip("half a minute: with -long")
	}
	t.Parallel() // it waits
	began := time.Now()
	p := startProcess(t, append(testkit.NewService(t).Environ(), "USHER_BASE_URL=http://127.0.0.1:1"), "exec", "--", "echo", "ran")
	stop := make(chan struct{})
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/oauth/token" {
			io.WriteString(w, `{"access_token":"t","expires_in":3600}`)
			return
		}
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-tick.C:
				io.WriteString(w, ".")
				w.(http.Flusher).Flush()
			case <-stop:
				io.WriteString(w, "the end")
				return
			}
		}
	}))
	defer service.Close()
	u := run(t, append(testkit.NewService(t).Environ(), "USHER_BASE_URL="+service.URL))
	u.Ready(t)
	resp, err := http.Get(u.URL(t, "main") + "/graphql")
	if err != nil {
		t.Fatal(err)
	}
	streamed := make(chan string)
	go func() { _, body := testkit.Whole(t, resp, nil); streamed <- body }()
	<-p.Ended
	if out := p.Stdout.String() + p.Stderr.String(); p.Code != 1 || strings.Contains(out, "ran") || !strings.Contains(out, "invalid") || time.Since(began) < 29*time.Second {
		t.Errorf("%d after %v: %s", p.Code, time.Since(began), out)
	}
	close(stop)
	if body := <-streamed; !strings.HasSuffix(body, "the end") {
		t.Errorf("the answer broke off: %q", body)
	}
}

// check calls the service for every port, with {__typename}, and opens none of its own. A third token is for what the
// service has configured for the gate.
func TestCheckOpensNoPort(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	var mu sync.Mutex
	var calls []string
	s.OnCall = func(_ *http.Request, body []byte) { mu.Lock(); defer mu.Unlock(); calls = append(calls, string(body)) }
	code, out, stderr := ended(t, s.Environ("USHER_LISTEN="+taken(t), "USHER_PORTS_0_LISTEN="+taken(t), "USHER_PORTS_0_SCOPE=standard:read", "USHER_ADMIN_LISTEN="+taken(t),
		"USHER_WEBHOOK_LISTEN="+taken(t), "USHER_WEBHOOK_FORWARD_URL="+newReceiver(t, 500).url), "check")
	if code != 0 || strings.Contains(out, "FAIL") {
		t.Errorf("%d %s %s", code, out, stderr)
	}
	if len(calls) != 2 || calls[0] != calls[1] || !strings.Contains(calls[0], `"{__typename}"`) || s.TokenRequests() != 3 {
		t.Errorf("%d tokens for the calls %q", s.TokenRequests(), calls)
	}
}

func TestVersion(t *testing.T) {
	code, out, stderr := ended(t, nil, "version")
	if code != 0 || stderr != "" || !regexp.MustCompile(`^usher \S+, commit \S+, `+regexp.QuoteMeta(runtime.Version())+`\n$`).MatchString(out) {
		t.Errorf("%d %q %q", code, out, stderr)
	}
}

// Every problem with the settings in one go: one line each, on standard error.
func TestBadSettingsInOneGo(t *testing.T) {
	for _, args := range [][]string{nil, {"check"}} {
		code, out, stderr := ended(t, []string{
			"USHER_BASE_URL=http://billing.test", "USHER_CLIENT_SECRET_FILE=/nowhere", "USHER_CLINET_ID=x", "USHER_WEBHOOK_TIMEOUT=soon", "USHER_LOG_FORMAT=xml",
		}, args...)
		lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
		if code != 2 || out != "" || len(lines) != 6 {
			t.Errorf("usher %q: %d %q\n%s", args, code, out, stderr)
		}
		for _, want := range []string{
			`USHER_BASE_URL is "http://billing.test", but should hold`, "USHER_CLIENT_ID is not set", `USHER_CLIENT_SECRET_FILE is "/nowhere"`,
			"USHER_CLINET_ID is not known: did you mean USHER_CLIENT_ID?", `USHER_WEBHOOK_TIMEOUT is "soon"`, `USHER_LOG_FORMAT is "xml"`,
		} {
			if !strings.Contains("\n"+stderr, "\n"+want) {
				t.Errorf("no %q in\n%s", want, stderr)
			}
		}
	}
}

// What the log says at the start of what nobody knows, and of replicas; and how it looks.
func TestLogAtTheStart(t *testing.T) {
	t.Parallel()
	inbox := "USHER_WEBHOOK_INBOX=file:" + filepath.Join(t.TempDir(), "inbox.db")
	for name, tc := range map[string]struct {
		env        []string
		json, info bool
	}{
		"auto, and no terminal": {[]string{"USHER_LOG_FORMAT="}, true, true},
		"JSON":                  {[]string{"USHER_LOG_FORMAT=json", inbox}, true, true},
		"text":                  {[]string{"USHER_LOG_FORMAT=text"}, false, true},
		"warnings alone":        {[]string{"USHER_LOG_LEVEL=warn"}, true, false},
	} {
		admin := testkit.FreeAddress(t)
		env := gateAlone("http://127.0.0.1:1", "USHER_ADMIN_LISTEN="+admin, "USHER_FAVOURITE_COLOUR=blue", "USHER_URL=x", "USHER_PORT=tcp://10.0.0.1:80")
		u := run(t, append(env, tc.env...))
		testkit.Eventually(t, "serving", func() bool { return do(http.NewRequest("GET", "http://"+admin+"/healthz", nil)).status == 200 })
		u.End()
		log := u.Stderr.String()
		for part, want := range map[string]bool{
			"unknown variable": true, "USHER_FAVOURITE_COLOUR": true, "USHER_URL": false, "USHER_PORT": false,
			"run one replica of this gate only": tc.info,
		} {
			if strings.Contains(log, part) != want {
				t.Errorf("%s: %q: %v\n%s", name, part, !want, log)
			}
		}
		for line := range strings.Lines(log) {
			if json.Valid([]byte(line)) != tc.json {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
}

// While what is under way finishes, nobody new is let in, and the admin port says that usher is
// shutting down: it closes last.
func TestAdminClosesLast(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	u := start(t, w.environ("USHER_SHUTDOWN_GRACE=1h")).ready(t)
	entered := make(chan struct{})
	w.billing.OnCall = func(*http.Request, []byte) { close(entered) }
	w.billing.FailGraphQL(sandbox.Fault{Hang: true})
	answered := make(chan reply)
	go func() { answered <- u.call() }()
	<-entered
	u.Stop()
	testkit.Eventually(t, "nobody new is let in", func() bool {
		for _, addr := range []string{u.local, u.gate} {
			if conn, err := net.Dial("tcp", addr); err == nil {
				conn.Close()
				return false
			}
		}
		return true
	})
	if r := get(t, u.admin, "/readyz"); r.status != 503 || !strings.Contains(r.body, "shutting down") {
		t.Errorf("%+v", r)
	}
	if r := get(t, u.admin, "/healthz"); r.status != 200 {
		t.Errorf("%+v", r)
	}
	w.toService.Close() // ends what hangs
	if r := <-answered; r.status != 502 {
		t.Errorf("what was under way: %+v", r)
	}
	<-u.Ended
	if conn, err := net.Dial("tcp", u.admin); err == nil {
		conn.Close()
		t.Error("the admin port is still open")
	}
}
