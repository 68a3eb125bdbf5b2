package shared

import (
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/natstest"
)

// A tenant of which many webhooks are kept can be erased. Not in a bubble: it is the servers' own work that takes long.
func TestErasesMuch(t *testing.T) {
	t.Parallel()
	c := &cluster{t: t, server: natstest.New(), change: func(*Config, *courier.Config) {}, parts: 1}
	defer c.server.End()
	r := c.start()
	defer r.stop()
	until(t, "it delivers", func() bool { return r.terms() == r.subjects.Parts })
	webhooks := 3000 // of 10,000 that are kept, in seven days
	if testing.Short() {
		webhooks = 1000
	}
	body := noise(3000)
	for range webhooks {
		r.send(t, "acme", time.Now().String()+body)
	}
	until(t, "delivered", func() bool { return r.courier.Stats().Pending == 0 })
	n, err := r.Erase("p", "acme")
	_, left := r.messages(t)
	if n != webhooks || err != nil {
		t.Errorf("erased %d of %d, %v; %d are left", n, webhooks, err, left)
	}
}
