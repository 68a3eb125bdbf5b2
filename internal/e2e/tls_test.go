package e2e

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"usher/internal/testkit"
)

// newTLSWorld is a world whose service is reached over TLS, and would speak HTTP/2, too;
// the variables tell usher of it.
func newTLSWorld(t *testing.T) (w *world, variables []string) {
	t.Helper()
	w = newWorld(t)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Proto != "HTTP/1.1" {
			t.Errorf("%s over %s", r.URL.Path, r.Proto)
		}
		w.billing.ServeHTTP(rw, r)
	}))
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes break off here
	srv.StartTLS()
	t.Cleanup(srv.Close)
	w.toService = wireFrom(t, srv)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return w, []string{"USHER_BASE_URL=" + strings.Replace(w.toService.URL(), "http:", "https:", 1), "USHER_CA_FILE=" + ca}
}

// The connection ends at each byte of a call, and of the records around it. As over plain
// TCP: the right answer, 502, or an answer that breaks off; never a call twice.
func TestTLSCallBrokenAtEachByte(t *testing.T) {
	leaks(t, func(t *testing.T) {
		w, variables := newTLSWorld(t)
		var u *usher
		var whole reply
		length := measure(w.toService, func() { u = start(t, w.environ(variables...)).ready(t); u.call() }, func() { whole = u.call() })
		seen := map[string]int{}
		breaks(length, pick(23, 1), func(d testkit.Disturbance) {
			// A connection that has been greeted: the handshake is not what is broken here.
			w.toService.Disturb(testkit.Disturbance{})
			testkit.Eventually(t, "a good call", func() bool { return u.call().status == 200 })
			seen[brokenCall(t, w, u, d, whole)]++
		})
		w.toService.Disturb(testkit.Disturbance{})
		testkit.Eventually(t, "a good call afterwards", func() bool { return u.call().status == 200 })
		if seen["502 UPSTREAM_UNREACHABLE"] == 0 || w.toService.Dialed() < 10 {
			t.Errorf("%v over %d connections: nothing was broken", seen, w.toService.Dialed())
		}
		t.Logf("%d bytes up, %d down: %v", length(testkit.Up), length(testkit.Down), seen)
	})
}

// Every connection that there is breaks while calls, and halves of answers, are on it.
func TestTLSResetUnderLoad(t *testing.T) {
	leaks(t, func(t *testing.T) {
		w, variables := newTLSWorld(t)
		resetUnderLoad(t, w, start(t, w.environ(variables...)).ready(t), 30*time.Millisecond)
	})
}

// The service closes its idle connections, as in TestIdleConnectionsClosedByTheOtherSide.
// Over TLS their end is a message, and closing them is a write.
func TestTLSIdleConnectionsClosed(t *testing.T) {
	leaks(t, func(t *testing.T) {
		w, variables := newTLSWorld(t)
		u := start(t, w.environ(variables...)).ready(t)
		const rounds = 20
		for i := range rounds {
			if r := u.call(); r.status != 200 {
				t.Fatalf("call %d: %d %s %v", i, r.status, r.body, r.err)
			}
			w.toService.BreakAll([]testkit.How{testkit.HangUp, testkit.Reset}[i%2])
		}
		if ok, unauthorized := w.billing.Calls(); ok != rounds || unauthorized != 0 || w.toService.Dialed() < rounds {
			t.Errorf("the service got %d calls and %d with a bad token, over %d connections", ok, unauthorized, w.toService.Dialed())
		}
	})
}
