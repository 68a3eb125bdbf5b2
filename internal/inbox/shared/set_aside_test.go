package shared

import (
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/webhookgate"
)

// One has a parked webhook sent again, another discards it at the same moment, or erases its tenant. Whoever is later: the
// part goes on being delivered, and what is discarded or erased does not go out.
func TestSetAsideWhileSentAgain(t *testing.T) {
	for name, setAside := range map[string]func(*replica, uint64) error{
		"discarded": func(r *replica, id uint64) error { return r.Discard(id) },
		"erased": func(r *replica, _ uint64) error { // by who knows already what there is
			acme := webhookgate.Lane{Platform: "p", Tenant: "acme"}
			last, err := r.readEnd(r.alive, message.PlaceOf(acme))
			if err != nil {
				return err
			}
			return r.ask(r.alive, 0, &errand{Act: "erase", Lane: acme, Last: last.Seq})
		},
	} {
		t.Run(name, func(t *testing.T) {
			for after := -8 * farAway; after < 8*farAway; after += step(farAway / 4) {
				bubble(t, func(t *testing.T, c *cluster) { c.setAsideWhileSentAgain(t, after, setAside) })
			}
		})
	}
}

func (c *cluster) setAsideWhileSentAgain(t *testing.T, after time.Duration, setAside func(*replica, uint64) error) {
	var left atomic.Int64
	c.parts = 1
	c.change = func(cfg *Config, _ *courier.Config) {
		cfg.LeaseChanged = func(change string) {
			if change != "taken" {
				left.Add(1)
			}
		}
	}
	c.receiver.Set(inboxtest.Status(422))
	r := c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
	defer r.stop()
	until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
	r.send(t, "acme", "A")
	time.Sleep(5 * time.Second)
	c.receiver.Set(nil)
	id := r.only(t, "acme", record.Parked).ID
	done := make(chan error)
	go func() {
		time.Sleep(max(0, -after))
		done <- r.Redeliver(id, false)
	}()
	time.Sleep(max(0, after))
	aside, again := setAside(r, id), <-done
	time.Sleep(10 * time.Second)
	var state record.State
	if f, err := r.find(t.Context(), id); err == nil {
		state = f.Status.State
	}
	accepted := len(c.receiver.Accepted())
	if left.Load() > 0 || state == record.Waiting || state != "" && (state == record.Delivered) != (accepted == 1) {
		t.Errorf("after %v: set aside %v, sent again %v: it is %q, accepted %d times, and the part was given up %d times",
			after, aside, again, state, accepted, left.Load())
	}
}
