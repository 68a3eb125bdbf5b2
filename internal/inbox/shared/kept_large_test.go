package shared

import (
	"errors"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/webhookgate"
)

// A webhook that nobody takes is too large for the servers. Its essence is not, but all of it is to be in the history: its
// sender is told so, and not to try again for ever, and nobody answers from it.
func TestKeptIsTooLarge(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(cfg *Config, _ *courier.Config) {
			cfg.Essence = func([]byte) []byte { return []byte("features") }
		}
		r := c.start()
		defer r.stop()
		w := inboxtest.Webhook("acme", noise(2<<20))
		if _, err := r.Append(w, true); !errors.Is(err, webhookgate.ErrTooLarge) {
			t.Errorf("it is answered %v", err)
		}
		time.Sleep(time.Second)
		if _, id, err := r.Snapshot(t.Context(), w.Lane); err == nil {
			t.Errorf("its sender knows that it was not taken in, and %d is the last snapshot", id)
		}
	})
}
