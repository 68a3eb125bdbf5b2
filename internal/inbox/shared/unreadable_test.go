package shared

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/inboxtest"
)

// Somebody has edited the stream so that nobody can read from it any more. usher does not say that all is well, and take in
// what it never delivers.
func TestSaysThatItCannotRead(t *testing.T) {
	bubble(t, func(t *testing.T, c *cluster) {
		one := c.start()
		until(t, "it delivers", func() bool { return one.terms() == one.subjects.Parts })
		stream, _, err := one.streams()
		if err != nil {
			t.Fatal(err)
		}
		cfg := stream.CachedInfo().Config
		cfg.ConsumerLimits = jetstream.StreamConsumerLimits{InactiveThreshold: 5 * time.Second}
		one.stop()
		time.Sleep(time.Minute) // until its consumers are gone
		nc, err := nats.Connect("", nats.InProcessServer(c.server))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		two := c.start()
		defer two.stop()
		time.Sleep(time.Minute)
		_, err = two.Append(inboxtest.Webhook("acme", "A"), false)
		time.Sleep(time.Minute)
		if delivered := len(c.receiver.Accepted()) == 1; err == nil && two.Err() == nil && !delivered {
			t.Errorf("it has taken a webhook in, has not delivered it within a minute, and says that all is well; it delivers %d parts", two.terms())
		}
	})
}
