package shared

import (
	"fmt"
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// What is discarded behind a webhook that waits leaves nothing behind in the stream but the tenant's last snapshot.
func TestDiscardedLeaveNothingBehind(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.receiver.Set(inboxtest.Refusing)
		r := c.start()
		defer r.stop()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		r.send(t, "acme", "A")
		for n := range 30 {
			r.send(t, "acme", fmt.Sprint(n))
			time.Sleep(time.Second)
			entries, err := r.List(record.Filter{State: record.Waiting})
			if err != nil || len(entries) != 2 {
				t.Fatal(len(entries), err)
			}
			if err := r.Discard(entries[0].ID); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		if waiting, _ := r.messages(t); waiting > 5 {
			t.Errorf("one webhook waits, and the stream has %d messages", waiting)
		}
		c.receiver.Set(nil)
		time.Sleep(time.Minute)
		if waiting, _ := r.messages(t); waiting > 1 {
			t.Errorf("nothing waits, and the stream has %d messages of the tenant", waiting)
		}
	})
}

// The tenant's last snapshot stays, whatever is discarded behind it while it waits, and leaves nothing else behind.
func TestDiscardedBehindASnapshot(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.receiver.Set(inboxtest.Refusing)
		r := c.start()
		defer r.stop()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		r.send(t, "acme", "A")
		for n := range 5 {
			event := inboxtest.Webhook("acme", fmt.Sprint(n))
			event.Type, event.Snapshot = "Other", false
			r.keep(t, event)
			time.Sleep(time.Second)
			entries, err := r.List(record.Filter{State: record.Waiting})
			if err != nil || len(entries) != 2 {
				t.Fatal(len(entries), err)
			}
			if err := r.Discard(entries[0].ID); err != nil {
				t.Fatal(err)
			}
		}
		c.receiver.Set(nil)
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:A")
		if w, _, err := r.Snapshot(t.Context(), webhookgate.Lane{Platform: "p", Tenant: "acme"}); err != nil || string(w.Body) != "A" {
			t.Errorf("its last snapshot is %v, %v", w, err)
		}
		if waiting, _ := r.messages(t); waiting != 1 {
			t.Errorf("nothing waits, and the stream has %d messages of the tenant", waiting)
		}
	})
}
