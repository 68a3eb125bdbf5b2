package e2e

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// leaks fails the test if more goroutines or descriptors are left after f, and after
// what f has to clean up, than there were before. It is for tests that run alone.
func leaks(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	// The first use of signals starts a goroutine that stays.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	signal.Stop(signals)
	client.CloseIdleConnections()
	goroutines, files := runtime.NumGoroutine(), openFiles(os.Getpid())
	t.Run("leaks nothing", f)
	client.CloseIdleConnections()
	defer func() {
		if t.Failed() {
			buf := make([]byte, 1<<20)
			t.Logf("%d goroutines, were %d; %d descriptors, were %d:\n%s", runtime.NumGoroutine(), goroutines,
				openFiles(os.Getpid()), files, buf[:runtime.Stack(buf, true)])
		}
	}()
	testkit.Eventually(t, "all goroutines ended, all descriptors closed", func() bool { // some are about to
		return runtime.NumGoroutine() <= goroutines && openFiles(os.Getpid()) <= files
	})
}

// openFiles is how many descriptors a process has; 0 where that can't be told.
func openFiles(pid int) int {
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0
	}
	return len(list)
}

// breaks are the ways in which each byte of an exchange is the last.
func breaks(length func(testkit.Direction) int, every int, do func(testkit.Disturbance)) {
	for _, how := range []testkit.How{testkit.Reset, testkit.HangUp} {
		for _, d := range []testkit.Direction{testkit.Up, testkit.Down} {
			for after := 0; after <= length(d); after += every {
				do(testkit.Disturbance{Break: how, Direction: d, After: after})
			}
		}
	}
}

// measure returns how many bytes f sends and gets over a wire that nobody has used yet;
// prepare comes before, and is not counted.
func measure(w *testkit.Wire, prepare, f func()) func(testkit.Direction) int {
	var n [2]atomic.Int64
	w.Tap = func(d testkit.Direction, p []byte) { n[d].Add(int64(len(p))) }
	prepare()
	before := [2]int64{n[0].Load(), n[1].Load()}
	f()
	length := [2]int{int(n[0].Load() - before[0]), int(n[1].Load() - before[1])}
	return func(d testkit.Direction) int { return length[d] }
}

// The connection to the service ends at each byte of a call, either way. Each caller
// gets the right answer, usher's own 502, or an answer that breaks off; the service
// never gets a call twice.
func TestCallBrokenAtEachByte(t *testing.T) {
	leaks(t, func(t *testing.T) {
		w := newWorld(t)
		var u *usher
		var whole reply
		length := measure(w.toService, func() { u = start(t, w.environ()).ready(t) }, func() { whole = u.call() })
		seen := map[string]int{}
		breaks(length, pick(7, 1), func(d testkit.Disturbance) { seen[brokenCall(t, w, u, d, whole)]++ })
		w.toService.Disturb(testkit.Disturbance{})
		if r := u.call(); r.status != 200 {
			t.Errorf("afterwards: %d %s %v", r.status, r.body, r.err)
		}
		t.Logf("%d bytes up, %d down: %v", length(testkit.Up), length(testkit.Down), seen)
	})
}

// brokenCall makes a call over a disturbed wire, and says what became of it: whole is
// the right answer.
func brokenCall(t *testing.T, w *world, u *usher, d testkit.Disturbance, whole reply) string {
	t.Helper()
	before, _ := w.billing.Calls()
	w.toService.Disturb(d)
	r := u.call()
	switch after, _ := w.billing.Calls(); {
	case after > before+1:
		t.Errorf("%+v: the service got it %d times", d, after-before)
	case r.err != nil && r.status == 200:
		return "answer breaks off"
	case r.err != nil:
		t.Errorf("%+v: %v", d, r.err)
	case r.status == 502 && r.code() == "UPSTREAM_UNREACHABLE":
		return "502 UPSTREAM_UNREACHABLE"
	case r.status == 200 && r.body == whole.body:
		return "200"
	default:
		t.Errorf("%+v: %d %s", d, r.status, r.body)
	}
	return "wrong"
}

// The connection ends at each byte of the first token request. The caller is told
// 503 with Retry-After, or is answered; and the next try, a second later, succeeds.
func TestTokenBrokenAtEachByte(t *testing.T) {
	leaks(t, func(t *testing.T) {
		w := newWorld(t)
		length := measure(w.toService, func() {}, func() { start(t, w.environ()).ready(t).End() })
		seen := map[string]int{}
		var last *usher
		breaks(length, pick(47, 1), func(d testkit.Disturbance) {
			if last != nil {
				last.End()
			}
			w.toService.Disturb(d)
			u := start(t, w.environ())
			r := u.call()
			switch {
			case r.err != nil && r.status == 200:
				seen["answer breaks off"]++ // the token came, and then the call was broken
			case r.err != nil:
				t.Errorf("%+v: %v", d, r.err)
			case r.status == 503 && r.code() == "TOKEN_UNAVAILABLE" && r.header.Get("Retry-After") != "":
				seen["503 TOKEN_UNAVAILABLE"]++
			case r.status == 502 && r.code() == "UPSTREAM_UNREACHABLE":
				seen["502 UPSTREAM_UNREACHABLE"]++
			case r.status == 200:
				seen["200"]++
			default:
				t.Errorf("%+v: %d %s", d, r.status, r.body)
			}
			if strings.Contains(u.Stderr.String()+r.body, clientSecret) {
				t.Errorf("%+v: the secret shows:\n%s", d, u.Stderr.String())
			}
			last = u
		})
		w.toService.Disturb(testkit.Disturbance{Break: testkit.Reset, Direction: testkit.Down, After: 100})
		u := start(t, w.environ())
		if r := u.call(); r.status != 503 {
			t.Errorf("%d %s", r.status, r.body)
		}
		w.toService.Disturb(testkit.Disturbance{})
		u.ready(t) // by itself
		t.Logf("%d bytes up, %d down: %v", length(testkit.Up), length(testkit.Down), seen)
	})
}

// The connection to the receiver ends at each byte of a delivery. The sender is told
// 200 only if the receiver has the webhook; what failed is delivered when it is sent
// again, and never taken for a duplicate.
func TestDeliveryBrokenAtEachByte(t *testing.T) {
	leaks(t, func(t *testing.T) {
		w := newWorld(t)
		u := start(t, w.environ("USHER_WEBHOOK_TRIES=1")).ready(t)
		length := measure(w.toReceiver, func() {}, func() { u.send(testkit.Snapshot("acme", 100)) })
		seen := map[string]int{}
		n := 100
		breaks(length, pick(7, 1), func(d testkit.Disturbance) {
			n++
			body := testkit.Snapshot("acme", n)
			w.toReceiver.Disturb(d)
			r := u.send(body)
			held := holds(w.receiver, n)
			switch decision := r.header.Get("Usher-Decision"); {
			case r.err != nil:
				t.Errorf("%+v: %v", d, r.err)
			case r.status == 200 && decision == "forwarded" && held:
				seen["200 forwarded"]++
			case r.status == 502 && decision == "failed":
				seen["502 failed"]++
				w.toReceiver.Disturb(testkit.Disturbance{})
				if r := u.send(body); r.status != 200 || r.header.Get("Usher-Decision") != "forwarded" || !holds(w.receiver, n) {
					t.Errorf("%+v: sent again: %d %s", d, r.status, r.body)
				}
			default:
				t.Errorf("%+v: %d %s, receiver has it: %v", d, r.status, r.body, held)
			}
		})
		t.Logf("%d bytes up, %d down: %v", length(testkit.Up), length(testkit.Down), seen)
	})
}

// holds says whether the receiver holds the snapshot with so many users.
func holds(rc *sandbox.Receiver, users int) bool {
	return slices.ContainsFunc(rc.Deliveries(), func(d sandbox.Delivery) bool {
		return d.Status == 200 && strings.HasSuffix(d.Summary, fmt.Sprint("users ≤ ", users))
	})
}

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
	return w, []string{"USHER_BASE_URL=" + strings.Replace(w.toService.URL(), "http:", "https:", 1)}
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
		resetUnderLoad(t, w, start(t, w.environ(variables...)).ready(t))
	})
}

// The worst moment: connections are reset while calls are under way on others. A call
// is answered rightly or with 502, and the service never gets one twice.
func TestConnectionsResetUnderLoad(t *testing.T) {
	leaks(t, func(t *testing.T) {
		w := newWorld(t)
		resetUnderLoad(t, w, start(t, w.environ()).ready(t))
	})
}

// resetUnderLoad has callers each of which, now and then, resets all connections to the service. A clock would not do:
// where a call takes longer than its beat none gets through.
func resetUnderLoad(t *testing.T, w *world, u *usher) {
	t.Helper()
	const beside = 8
	var mu sync.Mutex
	right, failed := 0, 0
	var callers sync.WaitGroup
	for i := range beside {
		callers.Go(func() {
			for n := range pick(24, 1000) {
				if n%beside == i {
					w.toService.BreakAll(testkit.Reset)
				}
				r := u.call()
				mu.Lock()
				switch {
				case r.status == 200 && r.err == nil:
					right++
				case r.status == 502 && r.code() == "UPSTREAM_UNREACHABLE", r.status == 200 && r.err != nil:
					failed++
				default:
					t.Errorf("%d %s %v", r.status, r.body, r.err)
				}
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	if ok, _ := w.billing.Calls(); ok < right || ok > right+failed {
		t.Errorf("the service answered %d calls, callers saw %d right and %d failed", ok, right, failed)
	}
	if right == 0 {
		t.Error("no call got through")
	}
	t.Logf("%d calls answered, %d failed", right, failed)
}
