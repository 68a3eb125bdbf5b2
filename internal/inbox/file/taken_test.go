package file

import (
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/inboxtest"
)

// A webhook is compared with what the receiver took last, which may not be the one right before it.
func TestComparedWithWhatWasTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		i := open(t, config(t.TempDir(), rc))
		i.keep("t", "A")
		time.Sleep(time.Second)
		rc.Set(inboxtest.Status(422))
		i.keep("t", "B") // parked
		time.Sleep(time.Second)
		rc.Set(inboxtest.Status(500))
		i.keep("t", "C") // waits
		i.keep("t", "D")
		time.Sleep(time.Second)
		for id, want := range map[uint64]struct{ taken, before uint64 }{1: {0, 0}, 2: {1, 1}, 3: {1, 2}, 4: {1, 3}} {
			item, err := i.Show(id)
			if err != nil {
				t.Fatal(err)
			}
			taken := uint64(0)
			if item.Previous != nil {
				if taken = item.Previous.ID; string(item.Previous.Body) != "A" {
					t.Errorf("%d is compared with %s", id, item.Previous.Body)
				}
			}
			if taken != want.taken || item.Before != want.before {
				t.Errorf("%d comes after %d, and is compared with %d, want %+v", id, item.Before, taken, want)
			}
		}
	})
}

// A snapshot is compared with a snapshot, whatever else of its tenant came in between; and what is none
// is compared with nothing.
func TestComparedWithASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := open(t, config(t.TempDir(), new(inboxtest.Receiver)))
		i.keep("t", "A")
		for range 2 {
			other := inboxtest.Webhook("t", "an event")
			other.Type, other.Snapshot = "Other", false
			i.keepWebhook(other)
		}
		i.keep("t", "B")
		time.Sleep(time.Second)
		if item, err := i.Show(4); err != nil || item.Previous == nil || item.Previous.ID != 1 || item.Before != 1 {
			t.Errorf("%+v, %v", item, err)
		}
		if item, err := i.Show(3); err != nil || item.Previous != nil || item.Before != 0 {
			t.Errorf("%+v, %v", item, err)
		}
	})
}
