package inbox

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"usher/internal/inbox/engine"
)

func (d *desk) actions() string {
	d.t.Helper()
	var all []string
	for _, a := range must(d.Actions(context.Background(), 0, 100))(d.t) {
		all = append(all, fmt.Sprintf("%s %s %s %d", a.Who, a.What, a.About, a.Count))
	}
	return strings.Join(all, "; ")
}

// What a person asks for has one entry, in the transaction that does it: either both are there, or neither.
func TestActionIsStoredWithWhatItDoes(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		var refused atomic.Bool
		d := newDesk(t, open, between(intercepted{asks: func(s *statement) error {
			if refused.Load() && s.name == "action_add" {
				s.args[1] = nil // which its column does not allow
			}
			return nil
		}}))
		d.main.set("", status(422))
		d.take("acme", "A")
		d.take("other", "A", "B")
		d.take("third", "A")
		d.recordInvalid("odd", snapshotOf("odd", "a"))
		d.until("parked", func() bool { return !strings.Contains(d.states(""), "waiting") })
		state := func() string {
			check(t, d.readPauses(t.Context()))
			return fmt.Sprint(d.states(""), len(d.Paused()), d.actions())
		}
		invalid := d.nth("odd", 1)
		for _, act := range []struct {
			want string
			does func(by *Action) error
		}{
			{"ana pause all 0", func(by *Action) error { return second(d.Inbox.Pause(Pause{}, 0, by)) }},
			{"ana discard all 1", func(by *Action) error { return d.Inbox.Discard(d.nth("third", 1), by) }},
			{"ana redeliver all 1", func(by *Action) error {
				return d.Inbox.Redeliver(d.nth("other", 2), "", true, by)
			}},
			{"ana accept all 1", func(by *Action) error { return second(d.Inbox.Accept(invalid, false, by)) }},
			{"ana erase all 2", func(by *Action) error { return second(d.Inbox.Erase("", "other", by)) }},
			{"ana resume all 0", func(by *Action) error { return second(d.Inbox.Resume(Pause{}, by)) }},
		} {
			before := state()
			refused.Store(true)
			if err := act.does(&Action{Who: "ana", What: "secretly"}); err == nil {
				t.Errorf("%s, without an entry", act.want)
			}
			refused.Store(false)
			d.want(act.want+", undone", state(), before)
			what := strings.Fields(act.want)[1]
			check(t, act.does(&Action{Who: "ana", What: what, About: "all"}))
			last, _, _ := strings.Cut(d.actions(), ";")
			d.want("the entry", last, act.want)
		}
	})
}

// An action on many webhooks has one entry, which counts what was done, also if it ends halfway.
func TestOneEntryForOneAction(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		check(t, d.Pause(Pause{}))
		d.take("acme", "A", "B", "C")
		by := &Action{Who: "ana", What: "discard", About: "state waiting"}
		for n := range 2 {
			check(t, d.Inbox.Discard(d.nth("acme", n+1), by))
		}
		d.want("an error", errorWord(d.Inbox.Discard(d.nth("acme", 1), by)), "finished")
		d.want("halfway", d.actions(), "ana discard state waiting 2")
		check(t, d.Inbox.Discard(d.nth("acme", 3), by))
		d.want("at the end", d.actions(), "ana discard state waiting 3")
		if by.Count != 3 {
			t.Errorf("it counts %d", by.Count)
		}
		nobody := d.Inbox.Discard(d.nth("acme", 3), &Action{Who: "ana", What: "discard"})
		d.want("nobody's", errorWord(nobody), "finished")
		d.want("what was not done has no entry", d.actions(), "ana discard state waiting 3")
	})
}
