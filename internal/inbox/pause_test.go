package inbox

import (
	"strings"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
)

// A pause with an end ends by itself, by the database's clock, on each replica and over a restart and a move: what
// waited is delivered, and nobody shows it any more. Until then it has its end wherever it shows.
func TestPauseEndsByItself(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		if set, err := d.Inbox.Pause(Pause{}, -time.Second, nil); err == nil || len(d.Paused()) != 0 {
			t.Errorf("a pause that has ended before it began: %+v, in force %+v", set, d.Paused())
		}
		d.take("acme", "one")
		d.idle("")
		for _, p := range []Pause{{Tenant: "acme"}, {Receiver: "main"}} {
			set, err := d.Inbox.Pause(p, 2*time.Hour, nil)
			lasts := set.Until.Sub(set.Since)
			if err != nil || lasts != 2*time.Hour || !strings.Contains(set.Words(), " until 20") {
				t.Fatalf("%+v: %v", set, err)
			}
			again, err := d.Inbox.Pause(p, 3*time.Hour, nil)
			if err != nil || again.Until.Sub(set.Since) < 3*time.Hour || !again.Since.Equal(set.Since) {
				t.Fatalf("its new end: %+v after %+v: %v", again, set, err)
			}
		}
		d.take("acme", "two")
		tenants := must(d.Tenants(t.Context(), TenantFilter{Search: "acme"}))(t)
		if !tenants[0].Paused || tenants[0].Until.IsZero() {
			t.Errorf("the tenant is %+v", tenants[0])
		}
		d.ahead.Add(int64(2 * time.Hour))
		d.restart()
		d.until("the pauses are known", func() bool { return len(d.Paused()) == 2 })
		d.ahead.Add(int64(61 * time.Minute))
		d.until("delivered", func() bool { return strings.Contains(strings.Join(d.main.got("acme"), " "), "two") })
		d.until("gone", func() bool {
			all := must(d.Tenants(t.Context(), TenantFilter{Search: "acme"}))(t)
			return len(d.Paused()) == 0 && len(d.allPauses()) == 0 && !all[0].Paused
		})
	})
}

// Whoever gave a pause a later end, or none, is not overtaken by one who saw the old end pass.
func TestPauseIsNotEndedEarly(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		must(d.Inbox.Pause(Pause{}, 0, nil))(t)
		if was, err := d.endPause(Pause{}, 0, nil); err != nil || was || len(d.Paused()) != 1 {
			t.Errorf("ended: %t, %v", was, err)
		}
		if was, err := d.Inbox.Resume(Pause{}, nil); err != nil || !was || len(d.Paused()) != 0 {
			t.Errorf("resumed: %t, %v", was, err)
		}
	})
}

// What a filter chooses is read page by page, and what waits behind another of its tenant is known without a list of
// tenants.
func TestBehindAndGone(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		check(t, d.Pause(Pause{}))
		d.take("a", "1", "2", "3")
		d.take("b", "1")
		var all []*lane.Webhook
		check(t, d.EachPage(t.Context(), Filter{State: state.Waiting}, func(page []*lane.Webhook) error {
			all = append(all, page...)
			return nil
		}))
		last := all[0].ID
		behind := must(d.Behind(t.Context(), Filter{}, all))(t)
		if len(all) != 4 || len(behind) != 2 || behind[last] || behind[last-3] || !behind[last-1] || !behind[last-2] {
			t.Errorf("%d, behind: %v", len(all), behind)
		}
		later := Filter{Since: all[2].Received.Add(time.Microsecond)}
		if behind := must(d.Behind(t.Context(), later, all[:2]))(t); len(behind) > 1 || behind[last-2] {
			t.Errorf("the first that came then is behind none: %v", behind)
		}
		for f, want := range map[*Filter]int64{
			{Tenant: "a", Platform: new(""), After: last - 3, Limit: 1}:  last - 2,
			{Tenant: "a", Platform: new(""), Before: last - 1, Limit: 1}: last - 2,
			{After: last - 1}: last,
		} {
			if found := must(d.List(t.Context(), *f))(t); len(found) != 1 || found[0].ID != want {
				t.Errorf("%+v: %v, want %d", *f, found, want)
			}
		}
	})
}
