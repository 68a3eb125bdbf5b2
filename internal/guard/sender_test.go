package guard_test

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"usher/internal/guard"
	"usher/internal/testkit"
)

// A handler learns when a request came, however late it is asked, and whether its sender has gone,
// also if more of it waits.
func TestSender(t *testing.T) {
	t.Parallel()
	certFile, keyFile := testkit.Certificate(t, "gate.test")
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]*tls.Config{"tcp": nil, "tls": {Certificates: []tls.Certificate{pair}}, "unix": nil} {
		network, address := "tcp", "127.0.0.1:0"
		if name == "unix" {
			network, address = "unix", filepath.Join(t.TempDir(), "s")
		}
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		arrived, done, log := make(chan *http.Request), make(chan struct{}), slog.New(slog.DiscardHandler)
		srv := guard.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			arrived <- r
			<-done
		}), log)
		go srv.Serve(guard.Listener(l, config, guard.Patience, log))
		client, err := net.Dial(network, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if config != nil {
			client = tls.Client(client, &tls.Config{InsecureSkipVerify: true})
		}
		send := func() {
			if _, err := io.WriteString(client, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1"); err != nil {
				t.Fatal(err)
			}
		}
		send()
		r := <-arrived
		if runtime.GOOS == "linux" && network == "tcp" {
			testkit.Eventually(t, name+": it came a while ago", func() bool { return time.Since(guard.LastByte(r)) > 100*time.Millisecond })
			before := time.Now().Add(-50 * time.Millisecond) // the kernel counts in ticks
			send()
			testkit.Eventually(t, name+": more came", func() bool { return guard.LastByte(r).After(before) })
		} else if before := time.Now(); guard.LastByte(r).Before(before) {
			t.Errorf("%s: nobody knows when it came, and it says when", name)
		}
		if guard.Gone(r) {
			t.Errorf("%s: gone while it waits for the answer", name)
		}
		client.Close()
		testkit.Eventually(t, name+": gone", func() bool { return guard.Gone(r) })
		close(done)
		srv.Close()
	}
	if r := new(http.Request); guard.Gone(r) || time.Since(guard.LastByte(r)) > time.Minute {
		t.Error("a request without a connection")
	}
}
