package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/testkit/pgtest"
	"usher/webhookgate"
)

// missed returns the tenants that the inbox missed something, as the database has it.
func (d *desk) missed() string {
	d.t.Helper()
	var names []string
	for _, t := range must(d.Tenants(context.Background(), TenantFilter{}))(d.t) {
		if !t.Missed.IsZero() {
			names = append(names, strings.TrimPrefix(t.Platform+"/"+t.Tenant, "/"))
		}
	}
	return strings.Join(names, " ")
}

// misses has a webhook get a 5xx.
func (d *desk) misses(w *webhookgate.Webhook) { d.Inbox.cfg.Missed.Add(w.Lane, w.Missed()) }

// missesUnnamed has webhooks get a 5xx before their tenants are known.
func (d *desk) missesUnnamed(count int) {
	now := time.Now()
	d.Inbox.cfg.Missed.AddUnnamed(webhookgate.Unnamed{Count: count, Since: now, Last: now})
}

// stored waits until nothing that is missed is in memory only.
func (d *desk) stored() {
	d.t.Helper()
	missed := d.Inbox.cfg.Missed
	d.until("what was missed is stored", func() bool { return missed.Len() == 0 && missed.Unnamed().Count == 0 })
}

// A webhook for which there is no room is missed, until it comes again, or somebody forgets its tenant. It leaves a
// number, as whatever comes.
func TestMissedWhenFull(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open, func(c *setup) { c.MaxBytes = 5000 })
		check(t, d.Pause(Pause{}))
		large := strings.Repeat("x", 6000)
		began := time.Now()
		for _, tenant := range []string{"eu/acme", "new", "gone", "forgotten", "changed", "older"} {
			d.want(tenant, d.send(tenant, large), "full")
		}
		d.want("older", d.send("older", large+"y"), "full")
		other := d.hook("", large) // it names no tenant
		other.Lane = webhookgate.LaneName{Type: "Other"}
		d.want("no tenant", d.sendHook(other), "full")
		d.stored()
		d.want("missed", d.missed(), "eu/acme changed forgotten gone new older")
		if l := d.row("new"); l.Last == 0 || l.LastAt == 0 {
			t.Error("it left no number in its lane")
		}
		troubled := must(d.Tenants(context.Background(), TenantFilter{Troubled: true}))(t)
		s, early := d.Stats().Missed, began.Add(-time.Second)
		if s.Tenants != 6 || len(troubled) != 6 || s.Since.Before(early) || s.Last.Before(s.Since) ||
			s.More || len(s.Outages) > 0 {
			t.Errorf("%+v, and %d in trouble", s, len(troubled))
		}
		d.until("the one without a tenant is counted", func() bool {
			u := d.Stats().Missed.Unnamed
			return u.Count == 1 && !u.Since.Before(began.Add(-time.Second))
		})
		if all := must(d.Platforms(context.Background(), "new"))(t); len(all) != 1 {
			t.Errorf("%q", all)
		}

		d.restart()
		d.want("missed after a restart", d.missed(), "eu/acme changed forgotten gone new older")
		d.Inbox.cfg.MaxBytes = 1 << 30
		if n := must(d.Forget(nil, "forgotten"))(t); n != 1 {
			t.Error("there was nothing to forget")
		}
		must(d.Erase("", "gone"))(t)
		time.Sleep(time.Millisecond)
		d.take("eu/acme", large)
		d.take("changed", "small")
		d.take("older", large) // the last of it is still missing
		d.want("missed later", d.missed(), "new older")
		if n := d.Stats().Missed.Tenants; n != 2 {
			t.Errorf("%d tenants", n)
		}

		d.take("older", large+"y")
		d.take("new", large)
		d.want("missed in the end", d.missed(), "")
	})
}

// An invalid webhook that somebody accepts settles what got a 5xx before it, and not what came after it.
func TestAcceptDoesNotSettleWhatIsNewer(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		miss := func(tenant string) {
			d.misses(d.hook(tenant, "missed"))
			d.stored()
		}
		d.recordInvalid("before", snapshotOf("before", "x"))
		time.Sleep(5 * time.Millisecond)
		miss("before")
		miss("after")
		time.Sleep(5 * time.Millisecond)
		d.recordInvalid("after", snapshotOf("after", "x"))
		for _, tenant := range []string{"before", "after"} {
			must(d.Accept(d.nth(tenant, 1), true))(t)
		}
		d.want("missed", d.missed(), "before")
	})
}

// What got a 5xx before the tenant's last snapshot was taken in, and is only stored after it, is not missed. An event
// says nothing of the tenant's state, and a copy by its signed id says nothing of what has come since.
func TestMissedBehindAnEvent(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		check(t, d.Pause(Pause{}))
		missed := d.hook("", "missed")
		missed.Received = missed.Received.Add(-time.Minute)
		for tenant, sent := range map[string]string{
			"event":              "AE",
			"snapshot":           "EA",
			"copy of an event":   "EAE",
			"copy of a snapshot": "AEA",
			"only an event":      "E",
		} {
			state, event := d.hook(tenant, "A"), d.event(tenant, "E")
			state.SignedID, event.SignedID = "1", "2"
			for n, w := range sent {
				hook := map[rune]*webhookgate.Webhook{'A': state, 'E': event}[w]
				d.want(tenant, d.sendHook(hook), []string{"+", "+", "="}[n])
			}
			late := *missed
			late.Lane = state.Lane
			d.misses(&late)
		}
		d.stored()
		d.want("missed", d.missed(), "only an event")
	})
}

// A snapshot settles no event, nor an event a snapshot: in a lane, from memory, and after a restart.
func TestMissedEventIsSettledByItself(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		known := newDesk(t, open) // usher knows the tenant: else there is nothing to forget
		known.take("acme", "before")
		known.idle("acme")
		must(known.Erase("", "acme"))(t)
		known.shut()
		for name, tc := range map[string]struct{ missed, taken, late, left string }{
			"a snapshot comes":                  {"E", "A", "", "acme"},
			"the event comes again":             {"E", "E", "", ""},
			"another event comes":               {"E", "F", "", "acme"},
			"the event after a snapshot":        {"SE", "E", "", "acme"},
			"a snapshot before the event":       {"SE", "A", "", "acme"},
			"both":                              {"SE", "AE", "", ""},
			"both come again":                   {"ES", "SE", "", ""},
			"a snapshot came meanwhile":         {"", "A", "E", "acme"},
			"the event came meanwhile":          {"", "E", "E", ""},
			"a snapshot came meanwhile, both":   {"", "A", "SE", "acme"},
			"the event came meanwhile, both":    {"", "E", "SE", "acme"},
			"forgotten meanwhile":               {"", "!", "SE", "acme"}, // it may have come to another replica since
			"forgotten":                         {"SE", "!", "", ""},
			"a later snapshot came, and before": {"E", "A", "S", "acme"},
		} {
			for _, restart := range []bool{false, true} {
				d := newDesk(t, open)
				check(t, d.Pause(Pause{}))
				hook := func(name rune) *webhookgate.Webhook {
					if name == 'E' || name == 'F' {
						return d.event("acme", string(name))
					}
					return d.hook("acme", string(name))
				}
				must(d.Forget(nil, "acme"))(t)
				for _, w := range tc.missed {
					d.misses(hook(w))
				}
				d.stored()
				if restart {
					d.restart()
				}
				for _, w := range tc.taken {
					time.Sleep(5 * time.Millisecond)
					if w == '!' {
						must(d.Forget(nil, "acme"))(t)
						continue
					}
					d.want(name, d.sendHook(hook(w)), "+")
				}
				for n, w := range tc.late {
					late := hook(w)
					late.Received = late.Received.Add(time.Duration(n-10) * 10 * time.Second)
					d.misses(late)
				}
				d.stored()
				if d.want(name, d.missed(), tc.left); t.Failed() {
					t.Fatalf("%s, restart %t", name, restart)
				}
				must(d.Erase("", "acme"))(t)
				d.shut()
			}
		}
	})
}

// A tenant that has missed webhooks before an outage, and again in it, is one tenant: in the outage, while it is
// moved, and afterwards.
func TestMissedBeforeAndInAnOutage(t *testing.T) {
	var gone atomic.Bool
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		missed := func(when string, want int) {
			t.Helper()
			if n := d.Stats().Missed.Tenants; n != want {
				t.Errorf("%s: %d tenants, want %d", when, n, want)
			}
		}
		d.misses(d.hook("acme", "missed"))
		missed("in memory", 1)
		d.stored()
		missed("stored", 1)
		gone.Store(true)
		d.send("acme", "A")
		missed("in the outage", 1)
		d.send("other", "A")
		time.Sleep(time.Minute)
		missed("later", 2)
		gone.Store(false)
		for d.Inbox.cfg.Missed.Len() > 0 { // also while it is moved
			missed("after it", 2)
			time.Sleep(time.Millisecond)
		}
		missed("moved", 2)
		time.Sleep(time.Minute)
		missed("in the end", 2)
	}, between(away(&gone)))
}

// While the inbox cannot be written, the lists of tenants have those, too, that have missed webhooks in memory only.
func TestMissedInMemoryIsListed(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		body := snapshotOf("t")
		d.take("eu/known", body)
		d.take("eu/well", body)
		time.Sleep(5 * time.Minute)
		full.Store(true)
		for _, tenant := range []string{"eu/known", "us/new"} {
			d.send(tenant, body+" ")
		}
		history := func(since, until time.Time, troubled bool) string {
			var all []string
			found, _, err := historyOfAll(context.Background(), d.Inbox, since, until, troubled)
			check(t, err)
			for _, h := range found {
				all = append(all, fmt.Sprintf("%s/%s %d %v %s",
					h.Platform, h.Tenant.Tenant, h.Webhooks, !h.Last.IsZero(), strings.Join(h.Standing(), ",")))
			}
			return strings.Join(all, "; ")
		}
		troubled := func(f TenantFilter) string {
			var all []string
			for _, t := range must(d.Tenants(context.Background(), f))(d.t) {
				all = append(all, fmt.Sprintf("%s/%s %v %s",
					t.Platform, t.Tenant, !t.Latest.IsZero(), strings.Join(t.Standing(), ",")))
			}
			return strings.Join(all, "; ")
		}
		now, never := time.Now(), time.Time{}
		const known, fresh = "eu/known 1 true missed", "; us/new 0 false missed"
		d.want("trouble", history(never, never, true), known+fresh)
		d.want("all", history(never, never, false), known+fresh+"; eu/well 1 true all right")
		recent := history(now.Add(-time.Minute), never, true)
		d.want("trouble of the last minutes", recent, "eu/known 0 true missed"+fresh)
		d.want("trouble before", history(never, now.Add(-time.Minute), true), known)
		page := troubled(TenantFilter{Troubled: true, Limit: 50})
		d.want("the page", page, "eu/known true missed; us/new false missed")
		d.want("the first of it", troubled(TenantFilter{Troubled: true, Limit: 1}), "eu/known true missed")
		d.want("a search", troubled(TenantFilter{Troubled: true, Search: "NEW", Limit: 50}), "us/new false missed")
		d.want("all tenants", troubled(TenantFilter{}), "eu/known true missed; eu/well true all right")
		unread, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, err := historyOfAll(unread, d.Inbox, time.Time{}, time.Time{}, true)
		found := d.MissedHistory(time.Time{}, time.Time{})
		if len(found) != 2 || found[0].Tenant.Tenant != "known" || found[1].Tenant.Tenant != "new" || err == nil {
			t.Errorf("it can't be read: %v %v", found, err)
		}
		full.Store(false)
		d.stored()
		d.want("stored", history(time.Time{}, time.Time{}, true), "eu/known 1 true missed; us/new 0 false missed")
	}, between(intercepted{write: failsWhile(&full)}))
}

// countTenants counts the rows of tenants that are read.
func countTenants(rows *atomic.Int64) func(*statement, int, engine.Row) engine.Row {
	return func(s *statement, _ int, r engine.Row) engine.Row {
		rows.Add(int64(number(s.name == "tenants")))
		return r
	}
}

// Who looks for tenants in trouble reads those alone, also while one has missed webhooks in memory only.
func TestTroubledReadsNoOthers(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		var full atomic.Bool
		var rows atomic.Int64
		d := newDesk(t, open, between(intercepted{write: failsWhile(&full), row: countTenants(&rows)}))
		for n := range 20 {
			d.hears(fmt.Sprint("eu/well", n), "a")
		}
		d.hears("eu/known", "a")
		d.main.set("parked", status(400))
		d.hears("eu/parked", "a")
		d.idle("")
		full.Store(true)
		d.send("eu/known", "missed")
		d.send("eu/new", "missed")
		for name, look := range map[string]func() (int, error){
			"the page": func() (int, error) {
				all, err := d.Tenants(context.Background(), TenantFilter{Troubled: true, Unknown: true})
				return len(all), err
			},
			"the history": func() (int, error) {
				all, _, err := historyOfAll(context.Background(), d.Inbox, time.Time{}, time.Time{}, true)
				return len(all), err
			},
		} {
			rows.Store(0)
			if found := must(look())(t); found != 3 || rows.Load() > 4 {
				t.Errorf("%s: %d tenants found, %d read", name, found, rows.Load())
			}
		}
		full.Store(false)
	})
}

// While the disk is nearly full, what was missed stays in memory. Somebody can forget it there, and at its end usher
// writes it all the same.
func TestMissedOnAFullDisk(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		d.main.set("known", status(400))
		d.take("known", "A")
		time.Sleep(10 * time.Minute)
		full.Store(true)
		for _, tenant := range []string{"known", "new", "gone"} {
			d.misses(d.hook(tenant, "B"))
		}
		time.Sleep(time.Minute)
		if n := d.Inbox.cfg.Missed.Len(); n != 3 {
			t.Errorf("%d are in memory", n)
		}
		for _, want := range []int{1, 0} {
			if n := must(d.Forget(nil, "gone"))(t); n != want {
				t.Errorf("%d forgotten, want %d", n, want)
			}
		}
		found, _, err := historyOfAll(context.Background(), d.Inbox, time.Now().Add(-5*time.Minute), time.Time{}, true)
		check(t, err)
		var all []string
		for _, h := range found {
			all = append(all, h.Tenant.Tenant+" "+strings.Join(h.Standing(), ","))
		}
		d.want("of the last minutes", strings.Join(all, "; "), "known missed,parked,features unknown; new missed")
		d.restart()
		full.Store(false)
		d.want("after a restart", d.missed(), "known new")
	}, between(crowded(&full)))
}

// What is missed, and the webhook that settles it, may be written by one transaction.
func TestMissedTogetherWithWhatSettlesIt(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.take("other", "A") // from then on the database's clock is known
		for n := range 10 {  // the writer may store what was missed by itself before
			tenant := fmt.Sprint("t", n)
			missed := d.hook(tenant, "A")
			// usher knows the order of two only as well as it knows the database's clock.
			missed.Received = missed.Received.Add(-time.Second)
			d.together(func() { d.misses(missed) }, func() { d.want(tenant, d.send(tenant, "B"), "+") })
		}
		d.stored()
		d.want("missed", d.missed(), "")
	})
}

// If the database's first answer took seconds, what usher knows of its clock is too early by as much. An older
// webhook, which another replica took in, does not settle a newer one for that.
func TestMissedAfterASlowReading(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.take("acme", "V")
		d.idle("")
		time.Sleep(500 * time.Millisecond)
		d.clock.mu.Lock()
		d.clock.offset, d.clock.uncertainty = d.clock.offset-3*time.Second, d.clock.uncertainty+3*time.Second
		d.clock.mu.Unlock()
		d.misses(d.hook("acme", "W"))
		d.stored()
		d.want("missed", d.missed(), "acme")
		time.Sleep(time.Second)
		d.take("acme", "X")
		d.want("missed after a newer one", d.missed(), "")
		if strings.Contains(d.log.String(), "clock has jumped") {
			t.Error("it counts as a jump")
		}
	})
}

// Another replica may note what was missed without a name after a run has read the time at which it ends. That run
// does not end it, nor does somebody who dismisses what came before.
func TestUnnamedWhileARunEnds(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("acme", "a")
		d.idle("")
		d.ahead.Store(int64(30 * time.Second))
		d.missesUnnamed(1)
		d.stored()
		d.ahead.Store(0)
		d.reconcile(Pass{}, false, time.Time{}, says("acme", "a"))
		_, n, err := d.Dismiss(d.Now(), nil)
		d.want("left", fmt.Sprint(d.Stats().Missed.Unnamed.Count, n, err), "1 0 <nil>")
	})
}

// What is missed without a name has the times of the database's clock, however far from it ours is: before it is
// stored, and after. A run that began earlier does not end it.
func TestUnnamedByTheDatabasesClock(t *testing.T) {
	for _, ahead := range []time.Duration{0, -2 * time.Hour, 2 * time.Hour, -25 * time.Hour} {
		var gone atomic.Bool
		inBubble(t, ahead.String(), func(t *testing.T, d *desk) {
			d.ahead.Store(int64(ahead))
			d.restart()
			d.hears("acme", "a")
			d.idle("")
			if u := d.Stats().Missed.Unnamed; u != (webhookgate.Unnamed{}) {
				t.Errorf("there is none, and this is shown: %+v", u)
			}
			r := d.begin()
			time.Sleep(time.Minute)
			came := d.Now()
			gone.Store(true)
			d.missesUnnamed(1)
			d.sendHook(d.event("", "E"))
			near := func(when string) {
				t.Helper()
				u := d.Stats().Missed.Unnamed
				first, last := u.Since.Sub(came), u.Last.Sub(came)
				if u.Count != 2 || first.Abs() > time.Second || last.Abs() > time.Minute {
					t.Errorf("%s: %d, from %v after they came to %v", when, u.Count, first, last)
				}
			}
			near("in memory")
			gone.Store(false)
			d.stored()
			near("stored")
			d.decide(r, lane.ToCompare, says("acme", "a"))
			d.endRun(r, true, "", lane.Counts{lane.Equal: 1})
			near("after a run that had begun before")
			gone.Store(true)
			d.missesUnnamed(1)
			gone.Store(false)
			d.stored()
			if _, n, err := d.Dismiss(came.Add(-time.Second), nil); n > 0 || err != nil {
				t.Errorf("%d dismissed that came later: %v", n, err)
			}
			if _, n, err := d.Dismiss(d.Now(), nil); n != 3 || err != nil {
				t.Errorf("%d dismissed: %v", n, err)
			}
		}, between(away(&gone)))
	}
}

// Only what ended until then is dismissed; and if it fails, nothing is.
func TestDismissUntil(t *testing.T) {
	var gone atomic.Bool
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		outage := func(began, ended time.Time) {
			_, err := act(d.Inbox, work{}, func(t *sqlTurn) (nothing, int, error) {
				from, to := began.UnixMicro(), ended.UnixMicro()
				t.tx.Queue("outage_add", nil, from, to, int64(0))
				return nothing{}, 0, nil
			})
			check(t, err)
		}
		outage(d.Now().Add(-time.Hour), d.Now().Add(-time.Minute))
		d.missesUnnamed(1)
		d.stored()
		time.Sleep(time.Second)
		seen := d.Now()
		time.Sleep(time.Second)
		outage(seen.Add(-time.Minute), d.Now())
		gone.Store(true)
		d.missesUnnamed(5)
		if _, _, err := d.Dismiss(time.Time{}, nil); err == nil || d.Inbox.cfg.Missed.Unnamed().Count != 5 {
			t.Errorf("in an outage: %v, and %d are left", err, d.Inbox.cfg.Missed.Unnamed().Count)
		}
		gone.Store(false)
		outages, webhooks, err := d.Dismiss(seen, nil)
		s := d.Stats().Missed
		if err != nil || outages != 1 || webhooks != 1 || len(s.Outages) != 1 || s.Unnamed.Count != 5 {
			t.Errorf("%d outages and %d webhooks dismissed, %v; left: %+v", outages, webhooks, err, s)
		}
	}, between(away(&gone)))
}

// An outage, and a restart in the midst of it: what was in memory is gone, and said; and there was an outage.
func TestMissedAndOutagesInAnOutage(t *testing.T) {
	t.Parallel()
	var gone, up atomic.Bool
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		up.Store(true)
		d.cfg.GateUp = up.Load
		d.restart()
		d.take("fine", "A")
		time.Sleep(time.Minute)
		begin := d.Now()
		if s := d.Stats().Missed; s.Tenants+len(s.Outages)+s.Unnamed.Count > 0 {
			t.Errorf("the first start ever: %+v", s)
		}
		gone.Store(true)
		d.send("lost", "A")
		d.restart()
		if !strings.Contains(d.log.String(), "does not know which tenants' webhooks got a 5xx") {
			t.Error("it does not say that it forgets")
		}
		for i := range 70 {
			d.send(fmt.Sprintf("t%02d", i), "A")
		}
		d.send("back", "A")
		d.missesUnnamed(7)
		time.Sleep(10 * time.Minute)
		if s := d.Stats().Missed; s.Tenants != 71 || s.Unnamed.Count != 7 {
			t.Errorf("in the outage: %+v", s)
		}
		end := d.Now()
		gone.Store(false)
		time.Sleep(20 * time.Second)
		d.send("back", "A")
		s := d.Stats().Missed
		if s.Tenants != 70 || s.Unnamed.Count != 7 || len(s.Outages) != 1 || d.Inbox.cfg.Missed.Len() > 0 {
			t.Fatalf("after it: %+v", s)
		}
		near := func(a, b time.Time) bool { return a.Sub(b).Abs() <= 16*time.Second }
		g, since := s.Outages[0], s.Unnamed.Since
		if !near(g.From, begin) || !near(g.To, end) || !near(since, begin.Add(12*time.Minute)) && since.Before(begin) {
			t.Errorf("an outage of %v, and it was from %v to %v: %+v", g, begin, end, s.Unnamed)
		}
		d.restart()
		time.Sleep(time.Minute)
		if again := d.Stats().Missed; again.Tenants != 70 || again.Unnamed != s.Unnamed || len(again.Outages) != 1 {
			t.Errorf("after a restart: %+v", again)
		}
		// An orderly end says when it was. A minute later is an outage; half a minute is none.
		up.Store(false)
		time.Sleep(2 * time.Second)
		d.shut()
		time.Sleep(50 * time.Second)
		up.Store(true)
		d.start()
		time.Sleep(5 * time.Second)
		if n := len(d.Stats().Missed.Outages); n != 1 {
			t.Errorf("%d outages after a short break", n)
		}
		d.shut()
		time.Sleep(time.Minute)
		d.start()
		if s := d.Stats(); !s.Starting {
			t.Errorf("it does not know yet of the outage, and does not say so: %+v", s.Missed)
		}
		d.GateIsUp()
		time.Sleep(100 * time.Millisecond) // less than until the next heartbeat
		if s := d.Stats(); s.Starting || len(s.Missed.Outages) != 2 {
			t.Errorf("after a long break: starting %v, %+v", s.Starting, s.Missed)
		}
		by := &Action{Who: "ana", What: "dismiss"}
		if outages, webhooks, err := d.Dismiss(time.Time{}, by); outages != 2 || webhooks != 7 || err != nil {
			t.Errorf("%d outages and %d webhooks dismissed, %v", outages, webhooks, err)
		}
		if s := d.Stats().Missed; len(s.Outages) > 0 || s.Unnamed.Count > 0 || s.Tenants != 70 {
			t.Errorf("after it was dismissed: %+v", s)
		}
		all := must(d.Actions(t.Context(), 0, 10))(t)
		if len(all) != 1 || all[0].What != "dismiss" || all[0].Count != 7 {
			t.Errorf("%+v", all)
		}
	}, between(away(&gone)))
}

// A gate that rejects everything because its disk is full is not ready, although it could write that it is there: who
// asks a load balancer in front of it never reaches it.
func TestFullDiskIsAnOutage(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		d.cfg.GateUp = func() bool { return true }
		d.restart()
		d.take("fine", "A")
		time.Sleep(time.Minute)
		for outages, lasts := range []time.Duration{40 * time.Second, 10 * time.Minute} {
			begin := d.Now()
			full.Store(true)
			time.Sleep(lasts)
			full.Store(false)
			end := d.Now()
			time.Sleep(20 * time.Second)
			all := d.Stats().Missed.Outages
			if len(all) != outages {
				t.Fatalf("%v: %+v", lasts, all)
			}
			for _, o := range all {
				if o.From.Sub(begin).Abs() > 16*time.Second || o.To.Sub(end).Abs() > 16*time.Second {
					t.Errorf("an outage of %+v, and it was from %v to %v", o, begin, end)
				}
			}
		}
	}, between(crowded(&full)))
}

// When a gate was not up, by the database's clock.
func TestOutage(t *testing.T) {
	const second, minute = int64(time.Second / time.Microsecond), int64(time.Minute / time.Microsecond)
	now := time.Now().UnixMicro()
	for name, tc := range map[string]struct {
		b           heartbeat
		last, began int64 // before now; began -1: no outage
	}{
		"the first start ever":                    {heartbeat{}, now, -1},
		"just started":                            {heartbeat{}, 5 * second, -1},
		"started after a while":                   {heartbeat{}, 5 * minute, 5 * minute},
		"started after the clock was set back":    {heartbeat{}, -60 * minute, 0},
		"just started, the clock was a bit ahead": {heartbeat{}, -30 * second, -1},
		"up":                     {heartbeat{at: time.Now()}, 15 * second, -1},
		"away":                   {heartbeat{at: time.Now()}, 5 * minute, 5 * minute},
		"the clock was set back": {heartbeat{at: time.Now()}, -60 * minute, -1},
	} {
		began, found := tc.b.outage(now-tc.last, now)
		if found != (tc.began != -1) || found && now-began != tc.began {
			t.Errorf("%s: an outage of %d s: %v", name, (now-began)/second, found)
		}
	}
}

// A reconcile settles what was missed of a tenant that it found equal or took in, unless that came after it had
// begun; and if it leaves nothing that differs, it ends outages.
func TestReconcileSettlesWhatIsMissed(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		miss := func(tenants ...string) {
			for _, tenant := range tenants {
				d.misses(d.hook(tenant, "missed"))
			}
			d.stored()
		}
		d.hears("equal", "a")
		d.hears("differs", "a")
		d.hears("late", "a")
		miss("equal", "differs", "new", "left")
		d.want("missed", d.missed(), "differs equal left new")
		d.missesUnnamed(1)
		d.stored()
		r := d.begin()
		miss("late")
		d.want("equal", d.decide(r, lane.ToCompare, says("equal", "a"), says("late", "a")), "equal; changed")
		applied := d.decide(r, lane.ToApply, says("differs", "b"), says("new"))
		d.want("applied", applied, "differs (+ b, - a) applied; new applied")
		d.want("missed after it", d.missed(), "late left")
		d.endRun(r, true, "", lane.Counts{lane.Equal: 1, lane.NewTenant: 1})
		if n := d.Stats().Missed.Unnamed.Count; n != 1 {
			t.Errorf("it left something, and the outage has ended: %d", n)
		}
		time.Sleep(time.Millisecond)
		r = d.begin()
		time.Sleep(5 * time.Millisecond)
		d.endRun(r, false, "", nil)
		if n := d.Stats().Missed.Unnamed.Count; n != 1 {
			t.Errorf("it was not complete, and the outage has ended: %d", n)
		}
		r = d.begin()
		d.endRun(r, true, "", lane.Counts{lane.Equal: 1})
		if n := d.Stats().Missed.Unnamed.Count; n != 0 {
			t.Errorf("the outage has not ended: %d", n)
		}
		r = d.begin()
		time.Sleep(5 * time.Millisecond)
		d.missesUnnamed(1)
		d.stored()
		d.endRun(r, true, "", lane.Counts{lane.Equal: 1})
		if n := d.Stats().Missed.Unnamed.Count; n != 1 {
			t.Errorf("it began earlier, and the outage has ended: %d", n)
		}
	})
}

// What is missed may be in memory only, or be stored at any time: a reconcile settles it if it arrived before the run
// began, and only then; what is stored while a run is under way is left to the next one.
func TestReconcileSettlesWhatIsMissedInMemory(t *testing.T) {
	var inMemory atomic.Bool
	memoryOnly := func(s *statement) error {
		if s.name == "missed_came" && inMemory.Load() { // only what was missed asks for it
			return &engine.StatementError{Err: errors.New("not now")}
		}
		return nil
	}
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		miss := func(tenants ...string) {
			for _, tenant := range tenants {
				d.misses(d.hook(tenant, fmt.Sprint("missed ", time.Now())))
			}
			time.Sleep(time.Minute)
		}
		room := func(yes bool) {
			inMemory.Store(!yes)
			time.Sleep(time.Minute)
			if yes {
				d.stored()
			}
		}
		all := []string{"equal", "differs", "twice", "late", "stored"}
		for _, tenant := range all {
			d.hears(tenant, "a")
		}
		room(false)
		miss("equal", "differs", "new", "twice")
		r := d.begin()
		time.Sleep(time.Minute)
		miss("late", "twice")
		lines := []string{says("equal", "a"), says("twice", "a"), says("late", "a")}
		d.want("compared", d.decide(r, lane.ToSee, lines...), "equal; equal; equal")
		d.want("settled", d.decide(r, lane.ToCompare, lines...), "equal; equal; equal")
		applied := d.decide(r, lane.ToApply, says("differs", "b"), says("new"))
		d.want("applied", applied, "differs (+ b, - a) applied; new applied")
		if n := d.Stats().Missed.Tenants; n != 2 {
			t.Errorf("%d are missed in memory, not late and twice", n)
		}
		room(true)
		d.want("missed, when it is stored", d.missed(), "late twice")

		room(false)
		miss("stored")
		r = d.begin()
		time.Sleep(time.Minute)
		miss("late")
		room(true)
		lines = []string{says("stored", "a"), says("twice", "a"), says("late", "a")}
		d.want("stored after the begin", d.decide(r, lane.ToCompare, lines...), "changed; equal; changed")
		d.want("missed in the end", d.missed(), "late stored")
		r = d.begin()
		d.want("the next run", d.decide(r, lane.ToCompare, says("stored", "a")), "equal")

		made := time.Now()
		time.Sleep(time.Minute)
		room(false)
		miss("equal", "differs")
		d.begin() // it is killed
		room(true)
		r = d.begin(made)
		lines = []string{says("equal", "a"), says("differs", "c")}
		d.want("with a list that is older", d.decide(r, lane.ToCompare, lines...), "changed; changed")
		d.want("with a list that is older", d.decide(r, lane.ToApply, lines...), "changed; changed")
		d.want("missed after an older list", d.missed(), "differs equal late")
	}, between(intercepted{asks: memoryOnly}))
}

// A commit in doubt that turns out to be one missed nothing, whatever the webhook was.
func TestDoubtMissesNothing(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		var doubt atomic.Bool
		d := newDesk(t, open, between(doubtful(&doubt)))
		check(t, d.Pause(Pause{}))
		d.take("copy", "A")
		doubt.Store(true)
		var wg sync.WaitGroup
		for _, w := range []*webhookgate.Webhook{d.hook("new", "A"), d.hook("copy", "A"), d.event("event", "A")} {
			wg.Go(func() {
				if told := d.sendHook(w); told == "+" || told == "=" {
					t.Errorf("its sender was told %q, and nobody knew that", told)
				}
			})
		}
		wg.Wait()
		if n := d.Inbox.cfg.Missed.Len(); n != 3 {
			t.Errorf("%d in memory", n)
		}
		doubt.Store(false)
		// Before anything that is missed could be stored.
		d.want("an event", d.sendHook(d.event("new", "B")), "+")
		d.stored()
		d.want("missed", d.missed(), "")
	})
}

// The database goes away under two replicas. After it, every tenant whose last webhook got a 503 is missed, on both,
// and no other is. One of the replicas loses its connection for longer, and the tenants' webhooks come again through
// the other one.
func TestMissedByTwoReplicas(t *testing.T) {
	costly(t)
	t.Parallel()
	dsn := pgtest.Schema(t)
	host := must(url.Parse(dsn))(t).Host
	var wires []*pgtest.Wire
	var desks []*desk
	for range 2 {
		w := pgtest.Cut(t, host)
		wires = append(wires, w)
		desks = append(desks, newDesk(t, inDatabase(t, w.Through(dsn))))
		check(t, desks[0].Pause(Pause{}))
	}
	r := rand.New(rand.NewPCG(7, 7))
	var mu sync.Mutex
	last := make(map[string]string) // each tenant's last webhook, if it got a 5xx
	send := func(d *desk, tenant, body string) bool {
		told := d.send(tenant, body)
		ok := told == "+" || told == "="
		mu.Lock()
		defer mu.Unlock()
		if last[tenant] = body; ok {
			last[tenant] = ""
		}
		return ok
	}
	for i := range 20 {
		send(desks[i%2], fmt.Sprintf("t%02d", i), "A")
	}
	for _, w := range wires {
		w.Refuse()
	}
	for _, d := range desks {
		d.until("it is noticed", func() bool { return d.health.lastErr() != nil })
	}
	var wg sync.WaitGroup
	for i := range 40 {
		first, second, twice := desks[r.IntN(2)], desks[r.IntN(2)], r.IntN(2) == 0
		wg.Go(func() {
			tenant := fmt.Sprintf("t%02d", i)
			if send(first, tenant, "B") || twice && send(second, tenant, "C") {
				t.Error("it was taken in")
			}
		})
	}
	wg.Wait()
	if n := desks[0].Stats().Missed.Tenants + desks[1].Stats().Missed.Tenants; n < 40 {
		t.Errorf("%d missed in the outage", n)
	}
	time.Sleep(lane.MaxJump + lane.MaxJump/2) // what comes sooner than that may count as older; see Lane.AddMissed
	wires[1].Pass()
	desks[1].stored()
	for i := range 25 { // through the one that is back
		tenant := fmt.Sprintf("t%02d", i)
		body := last[tenant]
		if i%3 == 0 {
			time.Sleep(50 * time.Millisecond)
		}
		desks[1].until("it is taken in", func() bool { return send(desks[1], tenant, body) })
	}
	wires[0].Pass()
	desks[0].stored()
	var want []string
	for tenant, missing := range last {
		if missing != "" {
			want = append(want, tenant)
		}
	}
	slices.Sort(want)
	for i, d := range desks {
		d.want(fmt.Sprint("missed, as replica ", i, " says"), d.missed(), strings.Join(want, " "))
		d.until("the figures say so", func() bool { return d.Stats().Missed.Tenants == len(want) })
	}
	for _, tenant := range want {
		send(desks[r.IntN(2)], tenant, "Z")
	}
	desks[0].want("missed in the end", desks[0].missed(), "")
}

// A webhook that came before, by its signed id, says nothing about what has come since.
func TestRetryOfAnOlderOneSettlesNothing(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		signed := func(id, body string) *webhookgate.Webhook {
			w := d.hook("acme", snapshotOf("acme", body))
			w.SignedID = id
			return w
		}
		d.want("S", d.sendHook(signed("id0", "s")), "+")
		d.want("A", d.sendHook(signed("id1", "a")), "+")
		d.idle("")
		missed := signed("id2", "b")
		for _, again := range []*webhookgate.Webhook{signed("id0", "s"), signed("id1", "a")} {
			d.misses(missed)
			d.stored()
			time.Sleep(5 * time.Millisecond)
			d.want("one that came before it", d.sendHook(again), "=")
			d.want("missed", d.missed(), "acme")
		}
		d.recordInvalid("acme", snapshotOf("acme", "r"))
		d.want("S again", d.sendHook(signed("id0", "s")), "=")
		must(d.Accept(d.nth("acme", 3), false))(t) // it is newer than all that came
		d.want("the one that is missed", d.sendHook(signed("id2", "b")), "+")
		d.want("missed in the end", d.missed(), "")

		d.misses(signed("id3", "s")) // the tenant is as it was in the beginning
		d.misses(signed("id1", "a")) // a retry, which nobody heard either
		d.stored()
		time.Sleep(5 * time.Millisecond)
		for _, again := range []*webhookgate.Webhook{signed("id0", "s"), signed("id1", "a")} {
			d.want("one that came before", d.sendHook(again), "=")
			d.want("missed", d.missed(), "acme")
		}
		d.want("S", d.sendHook(signed("id3", "s")), "+")
		d.want("missed after it", d.missed(), "")
	})
}

// What got a 5xx is missed if it would have been a change, also if it has the bytes of what was last taken in.
func TestMissedIfItWouldBeAChange(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, d *desk, s string){
		"discarded": func(t *testing.T, d *desk, s string) {
			d.main.set("acme", status(500))
			d.take("acme", s)
			time.Sleep(time.Second)
			d.until("discarded", func() bool { return d.Discard(d.nth("acme", 1)) == nil })
			d.main.set("acme", nil)
		},
		"an older one was forced": func(t *testing.T, d *desk, s string) {
			d.take("acme", snapshotOf("acme", "x"))
			d.idle("acme")
			d.take("acme", s)
			d.idle("acme")
			check(t, d.Redeliver(d.nth("acme", 1), true))
			d.idle("acme")
		},
		"an invalid one was accepted": func(t *testing.T, d *desk, s string) {
			d.take("acme", s)
			d.idle("acme")
			time.Sleep(2 * time.Second)
			d.recordInvalid("acme", snapshotOf("acme", "r"))
			time.Sleep(2 * time.Second)
			d.want("a copy", d.send("acme", s), "=")
			must(d.Accept(d.nth("acme", 2), true))(t)
			d.idle("acme")
		},
		"the window has passed": func(t *testing.T, d *desk, s string) {
			d.take("acme", s)
			d.idle("acme")
			time.Sleep(d.cfg.DedupWindow)
		},
		"it is a copy": func(t *testing.T, d *desk, s string) {
			d.take("acme", s)
			d.idle("acme")
		},
	} {
		for _, away := range []bool{false, true} {
			inBubble(t, fmt.Sprint(name, ", away ", away), func(t *testing.T, d *desk) {
				s := snapshotOf("acme", "s")
				change(t, d, s)
				time.Sleep(5 * time.Second)
				answer, missed := "+", "acme"
				if name == "it is a copy" {
					answer, missed = "=", ""
				}
				if !away {
					d.want("when it comes", d.send("acme", s), answer)
					return
				}
				d.misses(d.hook("acme", s))
				d.stored()
				d.want("missed", d.missed(), missed)
				d.want("when it comes again", d.send("acme", s), answer)
				d.want("missed then", d.missed(), "")
			}, func(c *setup) { c.DedupWindow = time.Minute })
		}
	}
}

// An event without a tenant gets a 5xx before usher has ever reached the database, and does not know its clock. It
// counts all the same.
func TestUnnamedBeforeTheFirstReading(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Schema(t)
	inDatabase(t, dsn)().Close()
	w := pgtest.Cut(t, must(url.Parse(dsn))(t).Host)
	w.Refuse()
	d := newDesk(t, inDatabase(t, w.Through(dsn)))
	for _, hook := range []*webhookgate.Webhook{d.event("", "E"), d.hook("acme", "A")} {
		if told := d.sendHook(hook); told == "+" || told == "=" {
			t.Fatal(told)
		}
	}
	if o := d.Stats().Missed; o.Unnamed.Count != 1 || o.Tenants != 1 {
		t.Errorf("in memory: %+v", o)
	}
	w.Pass()
	d.stored()
	d.until("it is counted", func() bool { return d.Stats().Missed.Unnamed.Count == 1 })
	d.want("missed", d.missed(), "acme")
}

// What is noted late is settled by what was taken in since, if that came a second later, and not, as it seems, in the
// future: that was before the clock was set back.
func TestMissedThatIsNotedLate(t *testing.T) {
	for name, tc := range map[string]struct {
		ahead  []time.Duration // of the clock, when each of the others was taken in
		before time.Duration   // how long before the last of them it got a 5xx
		missed string
	}{
		"half a second before":                  {[]time.Duration{0}, time.Second / 2, "acme"},
		"two seconds before":                    {[]time.Duration{0}, 2 * time.Second, ""},
		"after it":                              {[]time.Duration{0}, -time.Second, "acme"},
		"after it, and the clock was set back":  {[]time.Duration{time.Hour}, -time.Second, "acme"},
		"before it, and the clock was set back": {[]time.Duration{time.Hour, 0}, 2 * time.Second, ""},
	} {
		inBubble(t, name, func(t *testing.T, d *desk) {
			var late *webhookgate.Webhook
			for n, ahead := range tc.ahead {
				d.ahead.Store(int64(ahead))
				if n == len(tc.ahead)-1 && tc.before > 0 {
					late = d.hook("acme", snapshotOf("acme", "late"))
					time.Sleep(tc.before)
				}
				d.hears("acme", fmt.Sprint("a", n))
				d.idle("acme")
			}
			d.ahead.Store(0)
			if late == nil {
				time.Sleep(-tc.before)
				late = d.hook("acme", snapshotOf("acme", "late"))
			}
			d.misses(late)
			d.stored()
			d.want("missed", d.missed(), tc.missed)
		})
	}
}

// What is missed from before the clock was set back is settled by what comes once that was noticed: a webhook, or a
// reconcile.
func TestMissedBeforeTheClockWasSetBack(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.ahead.Store(int64(time.Hour))
		for _, tenant := range []string{"sends", "restarted", "compared", "stays"} {
			d.hears(tenant, "a")
			d.idle(tenant)
			d.misses(d.hook(tenant, `"b"`))
		}
		d.missesUnnamed(3)
		d.stored()
		d.want("missed", d.missed(), "compared restarted sends stays")
		d.ahead.Store(0)
		sends := func(tenant string) {
			d.hears(tenant, "c")
			d.want(tenant+" has sent", fmt.Sprint(strings.Contains(d.missed(), tenant)), "false")
		}
		sends("sends")
		d.restart()
		sends("restarted")
		r := d.begin()
		d.want("a reconcile", d.decide(r, lane.ToCompare, says("compared", "a")), "equal")
		d.want("in the end", d.missed(), "stays")
		d.endRun(r, true, "", lane.Counts{lane.Equal: 1})
		if n := d.Stats().Missed.Unnamed.Count; n != 0 {
			t.Errorf("after a complete reconcile %d without a name", n)
		}
	})
}
