package courier

import (
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/webhookgate"
)

// A delivery takes from when the webhook was taken in, over all its tries.
func TestDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(inboxtest.Receiver)
		r.Set(func(_ *webhookgate.Webhook, n int) webhookgate.Attempt {
			if n < 3 {
				return webhookgate.Attempt{Status: 500}
			}
			return webhookgate.Attempt{Status: 200}
		})
		type told struct {
			receiver string
			after    time.Duration
		}
		all := make(chan told, 10)
		cfg := config(r)
		cfg.Pause = full
		cfg.Delivered = func(receiver string, after time.Duration) { all <- told{receiver, after} }
		d := run(t, cfg)
		d.send("acme", "1")
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(all) != 1 {
			t.Fatalf("told %d times", len(all))
		}
		if got := <-all; got != (told{cfg.Receivers[0].Name, 3 * time.Second}) { // pauses of 1 s and 2 s
			t.Errorf("%+v", got)
		}
	})
}
