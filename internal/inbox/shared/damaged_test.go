package shared

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/webhookgate"
)

// A message whose head can't be read is reported and parked, by who delivers when it comes or by
// who takes over, and what is before and behind it in its lane is delivered.
func TestDamagedHead(t *testing.T) {
	acme := webhookgate.Lane{Platform: "p", Tenant: "acme"}
	for name, data := range map[string][]byte{
		"its content can be read": message.Pack(inboxtest.Webhook("acme", "B")).Data,
		"nor can its content":     []byte("rubbish"),
	} {
		readable := name == "its content can be read"
		for when, atOnce := range map[string]bool{"at once": true, "by who takes over": false} {
			t.Run(name+", "+when, func(t *testing.T) {
				bubble(t, func(t *testing.T, c *cluster) {
					c.receiver.Set(inboxtest.Refusing)
					r := c.start()
					until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
					r.send(t, "acme", "A")
					if !atOnce {
						r.stop()
						c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
						r = c.start()
					}
					m := nats.NewMsg(r.subjects.Lane(message.PlaceOf(acme)))
					m.Data = data
					m.Header.Set(message.HeadHeader, "{")
					if _, err := r.servers.Publish(t.Context(), m); err != nil {
						t.Fatal(err)
					}
					if !atOnce {
						r.stop()
						c.change = func(*Config, *courier.Config) {}
						r = c.start()
					}
					defer func() { r.stop() }()
					until(t, "parked", func() bool { return r.courier.Stats().Parked == 1 })
					if readable {
						if w, _, err := r.Snapshot(t.Context(), acme); err != nil || string(w.Body) != "B" {
							t.Errorf("the last snapshot is %v, %v", w, err)
						}
					}
					r.send(t, "acme", "C")
					c.receiver.Set(nil)
					until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 2 })
					c.receiver.Want(t, "acme:A", "acme:C")
					time.Sleep(time.Second)
					e := r.states(t)
					if !readable && (e[record.Parked] != 1 || e[record.Delivered] != 2) {
						t.Errorf("there are %v", e)
					}
					if readable && (e[record.Superseded] != 1 || e[record.Delivered] != 2) {
						t.Errorf("there are %v", e)
					}
					r.stop()
					r = c.start()
					until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
					time.Sleep(time.Minute)
					if !readable {
						parked, err := r.List(record.Filter{State: record.Parked})
						if err != nil || len(parked) != 1 || parked[0].Why != record.ErrDamaged.Error() {
							t.Fatalf("parked are %+v, %v", parked, err)
						}
						if err := r.Discard(parked[0].ID); err != nil {
							t.Error(err)
						}
					}
					if w, _, err := r.Snapshot(t.Context(), acme); err != nil || string(w.Body) != "C" {
						t.Errorf("the last snapshot is %v, %v", w, err)
					}
					c.receiver.Want(t, "acme:A", "acme:C")
					if waiting, _ := r.messages(t); waiting != 1 {
						t.Errorf("%d messages are left, want the lane's memory", waiting)
					}
				})
			})
		}
	}
}

// What is outside its lane, and has a head that can't be read, is parked.
func TestDamagedOutside(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
		r := c.start()
		w := inboxtest.Webhook("acme", "A")
		m := nats.NewMsg(r.subjects.State(message.PlaceOf(w.Lane), 77))
		message.Pack(w).Put(m)
		m.Header.Set(message.HeadHeader, "{")
		if _, err := r.servers.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		r.stop()
		c.change = func(*Config, *courier.Config) {}
		r = c.start()
		defer r.stop()
		until(t, "parked", func() bool { return r.courier.Stats().Parked == 1 })
		if e := r.only(t, "acme", record.Parked); e.ID != 77 || e.Why != record.ErrDamaged.Error() {
			t.Errorf("it stands as %+v", e)
		}
		if err := r.Redeliver(77, false); err != nil {
			t.Error(err)
		}
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
	})
}

// A webhook that nobody takes is in the history once its sender is told 200, though that may take
// a second try: the first one's sender was told 503, or nothing.
func TestKeptIsInTheHistory(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.Idle, cfg.Route = true, func(webhookgate.Lane) string { return "" }
		}
		r := c.start()
		time.Sleep(time.Second)
		if err := r.js(t).DeleteStream(t.Context(), "USHER_HISTORY"); err != nil {
			t.Fatal(err)
		}
		first := inboxtest.Webhook("acme", "A")
		if _, err := r.Append(first, true); err == nil {
			t.Error("taken in without a history")
		}
		if w, _, err := r.Snapshot(t.Context(), first.Lane); err != nil || string(w.Body) != "A" {
			t.Errorf("the last snapshot is %v, %v", w, err)
		}
		r.stop() // it dies
		r = c.start()
		defer r.stop()
		for range 2 {
			if original, err := r.Append(inboxtest.Webhook("acme", "A"), true); original != first.ID || err != nil {
				t.Errorf("sent again: %q, %v", original, err)
			}
			if e := r.only(t, "acme", ""); e.State != record.Kept || e.Webhook != first.ID || !e.Received.Equal(first.Received) {
				t.Errorf("it stands as %+v", e)
			}
		}
		if item, err := r.Show(r.only(t, "acme", "").ID); err != nil || string(item.Body) != "A" {
			t.Errorf("it is shown as %+v, %v", item, err)
		}
	})
}

// What was finished is not sent again into an inbox that is full.
func TestRedeliveryFindsNoRoom(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.small()
		r := c.start()
		defer r.stop()
		r.send(t, "acme", "A")
		until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
		time.Sleep(time.Second)
		c.receiver.Set(inboxtest.Refusing)
		r.fill(t, 10<<10)
		r.fill(t, 0)
		if err := r.Redeliver(r.only(t, "acme", "").ID, false); !errors.Is(err, record.ErrFull) {
			t.Errorf("redelivered into a full inbox: %v", err)
		}
	})
}

// What can't be read at all takes nothing else with it: neither the tenant's last snapshot, nor its name.
func TestRubbishTakesNothingWithIt(t *testing.T) {
	acme := webhookgate.Lane{Platform: "p", Tenant: "acme"}
	for name, waits := range map[string]bool{"delivered": false, "waiting": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				r := c.start()
				defer func() { r.stop() }()
				if waits {
					c.receiver.Set(inboxtest.Refusing)
				}
				r.send(t, "acme", "A")
				time.Sleep(5 * time.Second)
				m := nats.NewMsg(r.subjects.Lane(message.PlaceOf(acme)))
				m.Data = []byte("rubbish")
				if _, err := r.servers.Publish(t.Context(), m); err != nil {
					t.Fatal(err)
				}
				until(t, "parked", func() bool { return r.courier.Stats().Parked == 1 })
				c.receiver.Set(nil)
				until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 1 })
				time.Sleep(5 * time.Second)
				r.stop()
				r = c.start()
				time.Sleep(5 * time.Second)
				if w, _, err := r.Snapshot(t.Context(), acme); err != nil || string(w.Body) != "A" {
					t.Errorf("its last snapshot is %v, %v", w, err)
				}
				if all, err := r.Platforms("acme"); err != nil || len(all) != 1 || all[0] != "p" {
					t.Errorf("it is on platforms %q, %v", all, err)
				}
				r.send(t, "acme", "A") // nobody knows what the receiver holds
				until(t, "delivered", func() bool { return len(c.receiver.Accepted()) == 2 })
			})
		})
	}
}
