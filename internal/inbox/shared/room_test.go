package shared

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
)

// Servers that grant little have room for both streams, also where all of it is just what
// the first of them asks for.
func TestRoomForBothStreams(t *testing.T) {
	for _, c := range []struct{ store, inbox, history int64 }{
		{2 << 30, 1 << 30, 256 << 20},
		{1 << 30, 512 << 20, 256 << 20},
		{256 << 20, 128 << 20, 128 << 20},
		{100 << 20, 64 << 20, 32 << 20},
		{40 << 20, 16 << 20, 16 << 20},
		{32 << 20, 16 << 20, 16 << 20},
	} {
		synctest.Test(t, func(t *testing.T) {
			cl := &cluster{t: t, change: func(*Config, *courier.Config) {}, parts: 4,
				server: natstest.New(func(o *server.Options) { o.JetStreamMaxStore = c.store })}
			defer cl.server.End()
			for start := range 2 {
				r := cl.start()
				stream, history, err := r.streams()
				if err != nil {
					r.stop()
					t.Fatalf("%d MiB, start %d: %v", c.store>>20, start, r.Err())
				}
				if got, past := stream.CachedInfo().Config.MaxBytes, history.CachedInfo().Config.MaxBytes; got != c.inbox || past != c.history {
					t.Errorf("%d MiB, start %d: %d MiB and %d for the history, want %d and %d", c.store>>20, start, got>>20, past>>20, c.inbox>>20, c.history>>20)
				}
				r.send(t, "acme", fmt.Sprint(start))
				r.stop()
			}
		})
	}
}

// What becomes of webhooks finds room in a full inbox, however large they are.
func TestOutcomesFindRoom(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		c.change = func(cfg *Config, _ *courier.Config) { cfg.MaxBytes = 1 << 20 }
		c.receiver.Set(inboxtest.Refusing)
		r := c.start()
		defer r.stop()
		noise := rand.NewChaCha8([32]byte{})
		taken := 0
		for n := range 20 {
			body := make([]byte, 220<<10)
			noise.Read(body)
			if _, err := r.Append(inboxtest.Webhook(fmt.Sprint("t", n), string(body)), false); err == nil {
				taken++
			}
		}
		if taken == 0 {
			t.Fatal("nothing was taken in")
		}
		c.receiver.Set(nil)
		until(t, "all delivered", func() bool { return len(c.receiver.Accepted()) == taken })
		time.Sleep(10 * time.Second)
		if left := len(r.waiting(t)); left > 0 {
			t.Errorf("%d of %d wait, and the receiver has them", left, taken)
		}
	})
}
