package courier

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
)

var errNotNow = errors.New("not at the moment")

// The receiver is down, and what its lanes have waiting can't be read: that is not
// tried without a pause, as nothing of it tells whether the receiver is back.
func TestUnreadableStoreWhileTheReceiverIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Refusing)
		d := run(t, config(rc))
		reads := 0
		d.change(func() {
			d.read = func() error {
				d.change(func() { reads++ })
				time.Sleep(time.Millisecond)
				return errNotNow
			}
		})
		for n := range 2 * opensAfter {
			d.sendWebhook(inboxtest.Webhook(fmt.Sprint("t", n), "A"), nil)
		}
		time.Sleep(time.Minute)
		d.mu.Lock()
		defer d.mu.Unlock()
		if reads == 0 || reads > 20*opensAfter {
			t.Errorf("%d reads in a minute", reads)
		}
	})
}

// A store that can't be read is asked again after the same pauses as a receiver: at random, or all lanes would
// ask it at once.
func TestPauseOfAnUnreadableStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, rc := time.Now(), new(inboxtest.Receiver)
		cfg := config(rc)
		cfg.Pause = func(ceiling time.Duration) time.Duration { return ceiling / 4 }
		d := run(t, cfg)
		d.change(func() {
			d.read = func() error {
				if time.Since(began) == 0 {
					return errNotNow
				}
				return nil
			}
		})
		d.sendWebhook(inboxtest.Webhook("t", "A"), nil)
		time.Sleep(firstPause / 4)
		d.want(record.Delivered)
	})
}

// What is gone from the store, or damaged, is parked, and holds nobody up.
func TestContentIsGone(t *testing.T) {
	for _, fault := range []error{record.ErrNotFound, fmt.Errorf("webhook 1: %w", record.ErrDamaged)} {
		synctest.Test(t, func(t *testing.T) {
			rc := new(inboxtest.Receiver)
			d := run(t, config(rc))
			d.change(func() { d.read = func() error { return fault } })
			d.sendWebhook(inboxtest.Webhook("t", "A"), nil)
			next := inboxtest.Webhook("t", "B")
			next.Snapshot = false // or it would supersede the other
			d.sendWebhook(next, next)
			d.want(record.Parked, record.Delivered)
			if d.stands(1).Why != fault.Error() {
				t.Errorf("parked: %q", d.stands(1).Why)
			}
		})
	}
}
