package inbox

import (
	"testing"
	"time"

	"usher/internal/inbox/store"
	"usher/internal/receiver"
)

// A retry whose time has come while its receiver gets nothing (it is down, paused, or has no place) must not keep the courier
// awake: it would look for work as fast as it can, for as long as that lasts.
func TestNothingToAskForIsNoReasonToStayAwake(t *testing.T) {
	for name, held := range map[string]func(*courier, *line){
		"down":   func(_ *courier, l *line) { l.streak, l.probed = inARowDown, time.Now() },
		"paused": func(c *courier, _ *line) { c.paused = func() []store.Pause { return []store.Pause{{}} } },
		"full":   func(_ *courier, l *line) { l.underway = 3 * l.Concurrency },
		"bodies": func(c *courier, _ *line) { c.bodies = maxBodies },
	} {
		t.Run(name, func(t *testing.T) {
			rc := newTaker(receiver.Main, 4).Receiver
			c := newCourier(Config{Store: store.Config{Receivers: receiver.NewSet(rc)}})
			c.paused = func() []store.Pause { return nil }
			l := c.lines[rc]
			held(c, l)
			l.next = time.Now().Add(-time.Second)
			if claims, _ := c.claims(time.Now()); len(claims) > 0 {
				t.Fatalf("asks for %d claims", len(claims))
			}
			if !l.next.IsZero() {
				t.Error("looks again at once")
			}
			if !l.more || !l.late {
				t.Error("has forgotten that there is something to do")
			}
		})
	}
}
