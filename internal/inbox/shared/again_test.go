package shared

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

// Two people have the same webhook sent again, at once or one a moment later. However that meets with its delivery:
// nothing is left that would be sent once more, behind what is newer.
func TestSentAgainTwice(t *testing.T) {
	for name, status := range map[string]int{"taken": 200, "refused": 422} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				owner, other := c.ownerAndOther(t)
				defer owner.stop()
				defer other.stop()
				var tenants []string
				for after := time.Duration(0); after < 15*farAway; after += step(farAway / 4) {
					tenant := fmt.Sprint("t", after)
					tenants = append(tenants, tenant)
					c.receiver.Set(inboxtest.Status(422))
					other.send(t, tenant, "A")
					time.Sleep(time.Second)
					again := other.toRedeliver(t, tenant, record.Parked)
					c.receiver.Set(inboxtest.Status(status))
					for range 2 { // both have found it parked
						if err := other.ask(t.Context(), 0, again); err != nil && !errors.Is(err, errMoved) {
							t.Fatal(err)
						}
						time.Sleep(after)
					}
					time.Sleep(2 * time.Second)
					c.receiver.Set(nil)
					other.send(t, tenant, "B")
					time.Sleep(time.Second)
				}
				c.nothingLeft(owner, other, tenants)
			})
		})
	}
}

// toRedeliver decides to have the only webhook of a tenant in a state sent again.
func (r *replica) toRedeliver(t *testing.T, tenant string, state record.State) *errand {
	t.Helper()
	e := r.only(t, tenant, state)
	lane := webhookgate.Lane{Platform: e.Platform, Tenant: tenant}
	last, err := r.readEnd(t.Context(), message.PlaceOf(lane))
	if err != nil {
		t.Fatal(err)
	}
	return &errand{Act: "redeliver", ID: e.ID, Lane: lane, Last: last.Seq}
}

// The answer to how a webhook was parked is lost, and somebody has it sent again before that is written anew. It is not
// sent once more, behind what is newer.
func TestSentAgainBeforeParkingIsAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		owner, other := c.ownerAndOther(t)
		defer owner.stop()
		defer other.stop()
		var tenants []string
		for cut := time.Duration(0); cut < 8*farAway; cut += step(farAway / 4) {
			tenant := fmt.Sprint("t", cut)
			tenants = append(tenants, tenant)
			c.receiver.Set(inboxtest.Status(422))
			other.send(t, tenant, "A")
			time.Sleep(cut)
			owner.wire.Sever()
			owner.wire.Mend()
			time.Sleep(10 * time.Millisecond)
			c.receiver.Set(nil)
			if parked, err := other.List(record.Filter{Tenant: tenant, State: record.Parked}); err == nil && len(parked) == 1 {
				err := other.Redeliver(parked[0].ID, false)
				for ; errors.Is(err, record.ErrNobody); err = other.Redeliver(parked[0].ID, false) {
					time.Sleep(time.Millisecond) // owner connects again
				}
				if err != nil {
					t.Error(err)
				}
			}
			time.Sleep(10 * time.Second)
			other.send(t, tenant, "B")
			time.Sleep(5 * time.Second)
		}
		c.nothingLeft(owner, other, tenants)
	})
}

// ownerAndOther starts a replica that delivers everything, far away from the servers, and one that delivers nothing.
func (c *cluster) ownerAndOther(t *testing.T) (owner, other *replica) {
	c.parts = 1
	owner = c.startAt(&natstest.Wire{Server: c.server, Delay: farAway})
	until(t, "it delivers", func() bool { return owner.terms() == owner.subjects.Parts })
	c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
	return owner, c.start()
}

// nothingLeft has owner's part taken over, and finds that the receiver holds B of all tenants.
func (c *cluster) nothingLeft(owner, other *replica, tenants []string) {
	c.t.Helper()
	time.Sleep(time.Minute)
	err := other.servers.Waiting.Visit(c.t.Context(), other.subjects.Prefix+"*.state.>", 1, servers.Endless, func(m jetstream.Msg, _ uint64) {
		c.t.Errorf("%s is left", m.Subject())
	})
	if err != nil {
		c.t.Error(err)
	}
	owner.stop()
	c.change = func(*Config, *courier.Config) {}
	next := c.start()
	defer next.stop()
	time.Sleep(time.Minute)
	last := make(map[string]string)
	for _, accepted := range c.receiver.Accepted() {
		tenant, body, _ := strings.Cut(accepted, ":")
		last[tenant] = body
	}
	for _, tenant := range tenants {
		if last[tenant] != "B" {
			c.t.Errorf("%s: the receiver holds %s", tenant, last[tenant])
		}
	}
}
