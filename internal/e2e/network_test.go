package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"usher/internal/testkit"
)

// A connection that is open but silent: the bytes go nowhere, and no error comes
// back. Only a timeout helps, and each hop has one.
func TestHalfOpen(t *testing.T) {
	leaks(t, func(t *testing.T) {
		for name, d := range map[string]testkit.Disturbance{
			"on the way there": {Break: testkit.Silence, Direction: testkit.Up, After: 100},
			"on the way back":  {Break: testkit.Silence, Direction: testkit.Down, After: 20},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				u := start(t, w.environ("USHER_UPSTREAM_TIMEOUT=2s", "USHER_WEBHOOK_TIMEOUT=2s", "USHER_WEBHOOK_TRIES=1")).ready(t)
				w.toService.Disturb(d)
				w.toReceiver.Disturb(d)
				var sending sync.WaitGroup
				sending.Go(func() {
					if r := u.send(testkit.Snapshot("acme", 5)); r.status != 504 || r.header.Get("Usher-Decision") != "failed" {
						t.Errorf("webhook: %d %s %v", r.status, r.body, r.err)
					}
				})
				if r := u.call(); r.status != 504 || r.code() != "UPSTREAM_TIMEOUT" {
					t.Errorf("call: %d %s %v", r.status, r.body, r.err)
				}
				sending.Wait()
				w.toService.Disturb(testkit.Disturbance{})
				w.toReceiver.Disturb(testkit.Disturbance{})
				// A slow machine may take longer than these two seconds.
				testkit.Eventually(t, "a call afterwards", func() bool { return u.call().status == 200 })
				testkit.Eventually(t, "a webhook afterwards", func() bool {
					return u.send(testkit.Snapshot("acme", 5)).header.Get("Usher-Decision") == "forwarded"
				})
			})
		}
	})
}

// A token endpoint behind a silent connection: the callers are told after ten
// seconds, all of them, and one request was made for all.
func TestHalfOpenToTheTokenEndpoint(t *testing.T) {
	if !*long {
		t.Skip("ten seconds: with -long; package tokens has it on a clock of its own")
	}
	w := newWorld(t)
	w.toService.Disturb(testkit.Disturbance{Break: testkit.Silence, Direction: testkit.Up})
	u := start(t, w.environ())
	var callers sync.WaitGroup
	for range 50 {
		callers.Go(func() {
			if r := u.call(); r.status != 503 || r.code() != "TOKEN_UNAVAILABLE" || r.header.Get("Retry-After") == "" {
				t.Errorf("%d %s %v", r.status, r.body, r.err)
			}
		})
	}
	callers.Wait()
	if n := w.toService.Dialed(); n > 2 {
		t.Errorf("%d connections to the token endpoint", n)
	}
	w.toService.Disturb(testkit.Disturbance{})
	u.ready(t)
	if r := u.call(); r.status != 200 {
		t.Errorf("afterwards: %d %s", r.status, r.body)
	}
}

// Latency and slow ends change nothing but the time it takes.
func TestSlowNetwork(t *testing.T) {
	leaks(t, func(t *testing.T) {
		w := newWorld(t)
		slow := testkit.Disturbance{Latency: 30 * time.Millisecond, CloseDelay: 300 * time.Millisecond}
		w.toService.Disturb(slow)
		w.toReceiver.Disturb(slow)
		u := start(t, w.environ()).ready(t)
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				if r := u.call(); r.status != 200 {
					t.Errorf("%d %s %v", r.status, r.body, r.err)
				}
				if r := u.send(testkit.Snapshot(fmt.Sprint("t", i), 1)); r.status != 200 {
					t.Errorf("%d %s %v", r.status, r.body, r.err)
				}
			})
		}
		callers.Wait()
		u.End() // the other ends are slow to close: it does not wait for them
		if n := w.billing.TokenRequests(); n != 1 {
			t.Errorf("%d token requests", n)
		}
	})
}

// The service, and the receiver, close their idle connections. Nothing of the next
// call was sent on them, so it is made on a new one, and nobody notices.
func TestIdleConnectionsClosedByTheOtherSide(t *testing.T) {
	leaks(t, func(t *testing.T) {
		w := newWorld(t)
		u := start(t, w.environ("USHER_WEBHOOK_TRIES=1")).ready(t)
		const rounds = 20
		for i := range rounds {
			if r := u.call(); r.status != 200 {
				t.Fatalf("call %d: %d %s %v", i, r.status, r.body, r.err)
			}
			if r := u.send(testkit.Snapshot("acme", i)); r.status != 200 {
				t.Fatalf("webhook %d: %d %s %v", i, r.status, r.body, r.err)
			}
			w.toService.BreakAll(testkit.HangUp)
			w.toReceiver.BreakAll(testkit.HangUp)
		}
		if n := w.toService.Dialed(); n < rounds {
			t.Errorf("%d connections in %d rounds", n, rounds)
		}
		if ok, unauthorized := w.billing.Calls(); ok != rounds || unauthorized != 0 {
			t.Errorf("the service got %d calls and %d with a bad token, want %d and 0", ok, unauthorized, rounds)
		}
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
