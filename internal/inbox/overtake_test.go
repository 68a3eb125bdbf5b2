package inbox

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane/state"
	"usher/webhookgate"
)

// A webhook that is sent again while a newer one is being delivered is the last one that the receiver gets. So a copy
// of the newer one is no duplicate.
func TestCopyOfWhatIsBeingOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1, filePace)
		w.tenants, w.healthy = []string{"t4"}, true
		w.dir, w.places = t.TempDir(), []*place{{world: w}}
		p := w.places[0]
		p.start()
		p.sendAs("t4", "A", false)
		time.Sleep(time.Second)
		p.sendAs("t4", "B", false)
		time.Sleep(5 * disk) // it is being delivered
		a := w.byID["0-1"]
		a.again = append(a.again, &redelivery{from: time.Now(), to: time.Now().Add(disk), forced: true})
		all, err := p.inbox.List(context.Background(), Filter{State: state.Delivered})
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		if err := p.inbox.Redeliver(all[0].ID, "", true, nil); err != nil {
			t.Error(err)
		}
		p.sendAs("t4", "B", false)
		w.calm()
		p.stop(true)
		w.senders.Wait()
		w.judge()
		if len(w.violations) > 0 {
			w.tell(t)
		}
	})
}

// A webhook whose sender's connection has ended is not taken in. When it is sent again, it is.
func TestGoneSender(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		for _, gone := range []bool{true, false} {
			w := d.hook("acme", "A")
			w.Gone = func() bool { return gone }
			if _, err := d.Store(context.Background(), w); errors.Is(err, webhookgate.ErrGone) != gone || !gone && err != nil {
				t.Errorf("gone %t: %v", gone, err)
			}
		}
		if n := len(d.list("acme")); n != 1 {
			t.Errorf("%d webhooks", n)
		}
	})
}
