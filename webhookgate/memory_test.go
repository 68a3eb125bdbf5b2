package webhookgate

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// What is forgotten by hand is delivered whatever it says, also if a copy of it was on its way then.
func TestForget(t *testing.T) {
	for _, underWay := range []bool{false, true} {
		t.Run(fmt.Sprint(underWay), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				receiver := &counting{takes: time.Second}
				g := newGate(t, func(c *Config) { c.Transport = receiver })
				var wg sync.WaitGroup
				wg.Go(func() { post(t, g, snapshot("acme", "A")) })
				if synctest.Wait(); !underWay {
					wg.Wait()
				}
				if known := g.Platforms("acme"); len(known) != 1 {
					t.Fatalf("acme is known on %q", known)
				}
				platform := g.Platforms("acme")[0]
				if !g.Forget(platform, "acme") || g.Forget(platform, "acme") {
					t.Error("not forgotten once")
				}
				if got := post(t, g, snapshot("acme", "A")); got.Decision != forwarded {
					t.Errorf("after it was forgotten: %v", got)
				}
				if got := post(t, g, snapshot("acme", "A")); got.Decision != duplicate || receiver.count() != 2 {
					t.Errorf("the next one: %v, %d deliveries", got, receiver.count())
				}
				wg.Wait()
			})
		})
	}
}

// The window must not outlast a night's sleep of the machine, during which the
// monotonic clock stands still.
func TestElapsedByEitherClock(t *testing.T) {
	slept := time.Now().Add(-time.Hour).Round(0) // no monotonic reading: the wall clock counts
	if got := elapsed(slept); got < time.Hour {
		t.Errorf("elapsed %v", got)
	}
	if got := elapsed(time.Now()); got > time.Minute {
		t.Errorf("elapsed %v", got)
	}
}
