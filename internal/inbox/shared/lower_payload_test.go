package shared

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
)

// said is a log that a test reads.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// has says how often something was said.
func (s *said) has(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.b.String(), what)
}

// Somebody lowers max_payload below the size of webhooks that wait. One that is delivered can't be kept to be looked at, and its
// tenant's queue goes on. One that is to be parked stays where it is until the servers take it again, and that is said.
func TestMaxPayloadIsLowered(t *testing.T) {
	for name, answer := range map[string]int{"delivered": 200, "parked": 422} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *cluster) {
				var log said
				c.change = func(cfg *Config, _ *courier.Config) {
					cfg.Essence = func([]byte) []byte { return []byte("features") }
					cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
				}
				c.receiver.Set(inboxtest.Refusing)
				r := c.start()
				defer r.stop()
				r.send(t, "acme", noise(200<<10))
				r.send(t, "acme", "B")
				restart := func(most int32) {
					r.wire.Sever()
					c.server = c.server.Restart(func(o *server.Options) { o.MaxPayload = most })
					r.wire.Replace(c.server)
				}
				restart(100 << 10)
				c.receiver.Set(inboxtest.Status(answer))
				time.Sleep(10 * time.Minute)
				if answer == 200 {
					if got := c.receiver.Accepted(); len(got) != 2 || got[1] != "acme:B" {
						t.Errorf("%d are delivered", len(got))
					}
					if _, id, err := r.Snapshot(t.Context(), inboxtest.Webhook("acme", "").Lane); err != nil || id == 0 {
						t.Errorf("the last snapshot: %v", err)
					}
				}
				if n := log.has("max_payload"); n < 1 || n > 20 {
					t.Errorf("it is said %d times", n)
				}
				restart(1 << 20)
				time.Sleep(10 * time.Minute)
				if n := len(r.waiting(t)); n != 0 {
					t.Errorf("%d wait", n)
				}
				if parked := r.courier.Stats().Parked; answer == 422 && parked != 2 {
					t.Errorf("%d are parked", parked)
				}
			})
		})
	}
}
