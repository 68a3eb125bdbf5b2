package hard

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/sandbox"
	"usher/internal/trial"
)

// newHTTP2World is a world whose service speaks HTTP/2, over TLS; the variables tell
// usher of it. The service's answers pass through each.
func newHTTP2World(t *testing.T, each func(http.ResponseWriter, *http.Request)) (w *world, variables []string) {
	t.Helper()
	w = newWorld(t)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Proto != "HTTP/2.0" {
			t.Errorf("%s over %s", r.URL.Path, r.Proto)
		}
		if each != nil {
			each(rw, r)
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

// The one connection that carries everything ends at each byte of a call. As over
// HTTP/1.1: the right answer, 502, or an answer that breaks off; never a call twice.
func TestHTTP2CallBrokenAtEachByte(t *testing.T) {
	leaks(t, func(t *testing.T) {
		w, variables := newHTTP2World(t, nil)
		var u *usher
		var whole reply
		length := measure(w.toService, func() { u = start(t, w.environ(variables...)).ready(t); u.call() }, func() { whole = u.call() })
		seen := map[string]int{}
		breaks(length, pick(23, 1), func(d sandbox.Disturbance) {
			// A connection that has been greeted: the handshake is not what is broken here.
			w.toService.Disturb(sandbox.Disturbance{})
			trial.Eventually(t, "a good call", func() bool { return u.call().status == 200 })
			seen[brokenCall(t, w, u, d, whole)]++
		})
		w.toService.Disturb(sandbox.Disturbance{})
		trial.Eventually(t, "a good call afterwards", func() bool { return u.call().status == 200 })
		if seen["502 UPSTREAM_UNREACHABLE"] == 0 || w.toService.Dialed() < 10 {
			t.Errorf("%v over %d connections: nothing was broken", seen, w.toService.Dialed())
		}
		t.Logf("%d bytes up, %d down: %v", length(sandbox.Up), length(sandbox.Down), seen)
	})
}

// What happens to one call, and what happens to the connection under all of them.
func TestHTTP2Faults(t *testing.T) {
	leaks(t, func(t *testing.T) {
		w, variables := newHTTP2World(t, nil)
		u := start(t, w.environ(append(variables, "USHER_UPSTREAM_TIMEOUT=300ms")...)).ready(t)
		u.call() // on the connection that the rest share
		for _, tc := range []struct {
			name   string
			fault  sandbox.Fault
			status int
			code   string
			broken bool
		}{
			{"reset in the middle of the answer", sandbox.Fault{Status: 200, Body: `{"data":`, HangUp: true, Times: 1}, 200, "", true},
			{"reset before the answer", sandbox.Fault{HangUp: true, Times: 1}, 502, "UPSTREAM_UNREACHABLE", false},
			{"silence", sandbox.Fault{Hang: true, Times: 1}, 504, "UPSTREAM_TIMEOUT", false},
		} {
			before := w.toService.Dialed()
			w.billing.FailGraphQL(tc.fault)
			if r := u.call(); r.status != tc.status || r.code() != tc.code || (r.err != nil) != tc.broken {
				t.Errorf("%s: %d %s %v", tc.name, r.status, r.body, r.err)
			}
			if r := u.call(); r.status != 200 || r.err != nil {
				t.Errorf("%s, the next call: %d %s %v", tc.name, r.status, r.body, r.err)
			}
			if n := w.toService.Dialed() - before; n != 0 {
				t.Errorf("%s: %d new connections, where one call was to blame", tc.name, n)
			}
		}
		if n := w.billing.TokenRequests(); n != 1 {
			t.Errorf("%d token requests", n)
		}
	})
}

// Every connection that there is breaks while calls, and halves of answers, are on it.
func TestHTTP2ResetUnderLoad(t *testing.T) {
	leaks(t, func(t *testing.T) {
		w, variables := newHTTP2World(t, nil)
		resetUnderLoad(t, w, start(t, w.environ(variables...)).ready(t), 30*time.Millisecond)
	})
}

// A service that takes its leave (GOAWAY) after each call, as on a restart or after so
// many calls. What comes one after the other notices nothing. What is under way at the
// time is answered, or told that it was not: usher can't know, and does not guess.
func TestHTTP2GoAway(t *testing.T) {
	leaks(t, func(t *testing.T) {
		var leaving atomic.Bool
		w, variables := newHTTP2World(t, func(rw http.ResponseWriter, _ *http.Request) {
			if leaving.Load() {
				rw.Header().Set("Connection", "close") // in HTTP/2 net/http makes a GOAWAY of it
			}
		})
		u := start(t, w.environ(variables...)).ready(t)
		leaving.Store(true)
		for i := range 10 {
			if r := u.call(); r.status != 200 || r.err != nil {
				t.Errorf("call %d: %d %s %v", i, r.status, r.body, r.err)
			}
		}
		if n := w.toService.Dialed(); n < 5 {
			t.Errorf("%d connections: the service did not take its leave", n)
		}
		var callers sync.WaitGroup
		var right, failed atomic.Int64
		for range 16 {
			callers.Go(func() {
				for range 5 {
					switch r := u.call(); {
					case r.status == 200 && r.err == nil:
						right.Add(1)
					case r.status == 502 && r.code() == "UPSTREAM_UNREACHABLE":
						failed.Add(1)
					default:
						t.Errorf("%d %s %v", r.status, r.body, r.err)
					}
				}
			})
		}
		callers.Wait()
		if ok, _ := w.billing.Calls(); right.Load() == 0 || int64(ok) < 10+right.Load() || int64(ok) > 10+right.Load()+failed.Load() {
			t.Errorf("the service answered %d calls; callers saw 10 and %d right, %d failed", ok, right.Load(), failed.Load())
		}
		t.Logf("%d calls answered, %d failed", right.Load(), failed.Load())
	})
}
