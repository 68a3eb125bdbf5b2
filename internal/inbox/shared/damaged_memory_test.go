package shared

import (
	"bytes"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
)

// What is left of a delivered webhook is damaged. It is not whole, so nobody is to send it again; what it says of the
// tenant still counts.
func TestDamagedMemoryIsNotSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.Essence = func(body []byte) []byte { return bytes.TrimSuffix(body, []byte(" and contacts")) }
		}
		r := c.start()
		defer r.stop()
		w := inboxtest.Webhook("acme", "features and contacts")
		r.keep(t, w)
		time.Sleep(10 * time.Second)
		memory, err := r.servers.Waiting.Last(t.Context(), r.subjects.Lane(message.PlaceOf(w.Lane)))
		if err != nil {
			t.Fatal(err)
		}
		m := nats.NewMsg(memory.Subject)
		m.Data = memory.Data
		m.Header.Set(message.HeadHeader, "damaged")
		servers.Rollup(m)
		if _, err := r.servers.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if all, err := r.List(record.Filter{State: record.Parked}); err != nil || len(all) > 0 {
			t.Errorf("parked is %v, %v", all, err)
		}
		if got, _, err := r.Snapshot(t.Context(), w.Lane); err != nil || string(got.Body) != "features" {
			t.Errorf("the snapshot is %v, %v", got, err)
		}
	})
}
