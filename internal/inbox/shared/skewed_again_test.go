package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
)

// Two webhooks are sent again, the older one first, through replicas whose clocks differ by some seconds. Also after
// a takeover they go out in that order: else the older one would be the last.
func TestSentAgainInOrderWhateverTheClocks(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.start()
		defer func() { r.stop() }()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		c.receiver.Set(inboxtest.Status(422))
		for n, body := range []string{"A", "B"} {
			r.send(t, "acme", body)
			until(t, "parked", func() bool { return r.courier.Stats().Parked == n+1 })
		}
		time.Sleep(time.Second)
		parked, err := r.List(record.Filter{State: record.Parked}) // the newest first
		if err != nil || len(parked) != 2 {
			t.Fatal(parked, err)
		}
		if err := r.Pause(record.Pause{}); err != nil {
			t.Fatal(err)
		}
		if err := r.Redeliver(parked[1].ID, true); err != nil { // A
			t.Fatal(err)
		}
		f, err := r.find(t.Context(), parked[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		f.Record.SendAgain()
		f.Status.Again = time.Now().Add(-5 * time.Second) // by the clock of who is asked for B
		m := message.New(r.subjects.State(message.PlaceOf(f.Webhook.Lane), f.ID), &f.Record, f.Content)
		servers.Rollup(m)
		if _, err := r.servers.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		r.stop()
		c.receiver.Set(nil)
		r = c.start()
		until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
		if _, err := r.Resume(record.Pause{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		c.receiver.Want(t, "acme:A", "acme:B")
	})
}
