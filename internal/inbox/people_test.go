package inbox

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"usher/internal/inbox/engine"
	"usher/internal/lane/state"
)

// After a forced redelivery the receiver holds an older snapshot than the last one that was taken in. A copy of the
// older one is a change, and entitlements must follow it.
func TestAfterAForcedRedeliveryTheSameIsAChange(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		a, b := snapshotOf("acme", "a"), snapshotOf("acme", "b")
		d.take("acme", a, b)
		d.idle("acme")
		check(t, d.Redeliver(d.nth("acme", 1), true))
		d.until("redelivered", func() bool { return len(d.main.got("acme")) == 3 })
		d.idle("acme")
		d.want("the first once more", d.send("acme", a), "+")
		all, err := d.Snapshots(t.Context(), "acme")
		if err != nil || len(all) != 1 || !strings.Contains(string(all[0].Features), `"a"`) {
			t.Errorf("the sender's last word was a, and entitlements say %s, %v", all[0].Features, err)
		}
	})
}

// Events without a tenant overwrite nothing, so an older one can be sent again, too.
func TestSendsAnEventWithoutATenantAgain(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		for _, body := range []string{"one", "two"} {
			d.want(body, d.sendHook(d.event("", body)), "+")
		}
		d.idle("")
		check(t, d.Redeliver(d.nth("", 1), false))
		d.until("redelivered", func() bool { return len(d.main.got("")) == 3 })
	})
}

// To send a waiting webhook again means to try it now. If it is being delivered, and is accepted, that is done. To
// send it once more would overwrite newer ones.
func TestSentAgainWhileItIsDelivered(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		var actions atomic.Int64 // transactions that write, and read a webhook by its number
		d := newDesk(t, open, between(intercepted{asks: func(s *statement) error {
			actions.Add(int64(number(s.name == "webhooks" && s.tx.writes)))
			return nil
		}}))
		release := d.main.hang("acme")
		d.take("acme", "A", "B")
		d.untilTried("acme", 1)
		asked := make(chan error)
		go func() { asked <- d.Redeliver(d.nth("acme", 1), true) }()
		d.until("it waits for the outcome", func() bool { return actions.Load() > 0 })
		release()
		check(t, <-asked)
		d.idle("acme")
		d.want("accepted", fmt.Sprint(d.main.got("acme")), "[A B]")
	})
}

// Somebody asks for all that wait, or are parked, and looks at the list before saying yes. What was delivered
// meanwhile is not sent once more, not even with force: it would overwrite newer ones.
func TestDeliveredSinceItWasChosen(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		for _, chosen := range []state.State{state.Waiting, state.Parked} {
			d := newDesk(t, open)
			d.take("acme", "A", "B")
			d.idle("acme")
			check(t, d.Inbox.Redeliver(d.nth("acme", 1), chosen, true, nil))
			check(t, d.Inbox.Redeliver(d.nth("acme", 2), chosen, false, nil))
			d.idle("acme")
			d.want("accepted", fmt.Sprint(d.main.got("acme")), "[A B]")
			d.shut()
		}
	})
}
