package shared

import (
	"bytes"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/webhookgate"
)

// What stays of a snapshot for years is what is needed to answer from: no contacts, and no headers. The history has all
// of it, for a few days.
func TestEssenceIsRemembered(t *testing.T) {
	for name, kept := range map[string]bool{"delivered": false, "nobody takes it": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				c.change = func(cfg *Config, _ *courier.Config) {
					cfg.Essence = func(body []byte) []byte { return bytes.TrimSuffix(body, []byte(" and contacts")) }
				}
				r := c.start()
				defer r.stop()
				until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
				w := inboxtest.Webhook("acme", "features and contacts")
				if _, err := r.Append(w, kept); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				if got, _, err := r.Snapshot(t.Context(), w.Lane); err != nil || string(got.Body) != "features" {
					t.Errorf("the snapshot is %v, %v", got, err)
				}
				err := r.servers.Waiting.Each(t.Context(), r.subjects.Prefix+"*.in.>", 1, func(m *jetstream.RawStreamMsg) {
					if bytes.Contains(m.Data, []byte("contacts")) || bytes.Contains(m.Data, []byte("X-Test")) {
						t.Errorf("%q stays", m.Data)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				e := r.only(t, "acme", "")
				if item, err := r.Show(e.ID); err != nil || string(item.Body) != "features and contacts" || !e.State.Finished() {
					t.Errorf("the history has %v, %v", item, err)
				}
				if again, err := r.Append(&webhookgate.Webhook{ID: "again", Received: time.Now(), Type: w.Type, Lane: w.Lane, Snapshot: true, Digest: w.Digest, Body: w.Body}, kept); err != nil || again != w.ID {
					t.Errorf("a copy is not known as one: %q, %v", again, err)
				}
			})
		})
	}
}
