package shared

import (
	"fmt"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
)

// Tries of many tenants fail at once, and how they stand is written at once. Several servers refuse one of two
// messages that depend on the same claim while the other is under way: nobody has taken the part over for that.
func TestManyFailAtOnce(t *testing.T) {
	l := newLagging(t)
	c, r := l.begin(t)
	r.stop()
	left := make(chan string, 1000)
	c.change = func(cfg *Config, _ *courier.Config) {
		cfg.LeaseChanged = func(change string) {
			if change != "taken" {
				left <- change
			}
		}
	}
	c.receiver.Set(inboxtest.Status(422))
	r = c.start()
	defer r.stop()
	until(t, "it delivers", func() bool { return r.Err() == nil && r.terms() == r.subjects.Parts })
	if err := r.Pause(record.Pause{}); err != nil {
		t.Fatal(err)
	}
	for n := range 40 {
		r.send(t, fmt.Sprint("t", n), "A")
	}
	if _, err := r.Resume(record.Pause{}); err != nil {
		t.Fatal(err)
	}
	until(t, "all are parked", func() bool { return r.courier.Stats().Parked == 40 })
	time.Sleep(time.Second)
	if n := len(left); n > 0 {
		t.Errorf("the part was given up %d times: %s", n, <-left)
	}
}
