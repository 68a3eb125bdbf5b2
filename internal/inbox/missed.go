package inbox

import (
	"context"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
)

// What usher may have missed: webhooks that got a 5xx, and outages, in which no gate was there to take any.
//
// A webhook that got a 5xx is in memory first (webhookgate.Missed), because mostly the database is away then. The
// writer moves it into the table missed as soon as it can, and meanwhile the tenant may have sent again, through
// another replica: where usher is not certain of that, the tenant counts as missed. The row of a lane says only since
// when the lane has missed webhooks. So one that has none, as nearly all, never reads the table.

// missedInMemory is what is missed in memory, the oldest first, with times of the database's clock.
func (s *Inbox) missedInMemory() []webhookgate.MissedTenant {
	all := s.cfg.Missed.List()
	for i := range all {
		all[i].MissedSet = all[i].By(s.clock.dated)
	}
	return all
}

// unnamedInMemory is the same for what is missed without a name.
func (s *Inbox) unnamedInMemory() webhookgate.Unnamed {
	u := s.cfg.Missed.Unnamed()
	u.Since, u.Last = s.clock.dated(u.Since), s.clock.dated(u.Last)
	return u
}

const (
	// maxMissedWorks is how many tenants one transaction notes with missed webhooks.
	maxMissedWorks = 64
	// missedPause is the time until the next such transaction, after one that failed.
	missedPause = time.Second
	// lastMissing is how long that may take when the inbox is closed.
	lastMissing = 2 * time.Second
)

// mayMiss says whether there is anything to move from memory into lanes, and no reason to wait.
func (s *Inbox) mayMiss() bool {
	return s.cfg.Missed.Len() > 0 && s.health.lastErr() == nil && s.engine.Full() == nil &&
		time.Since(s.missedFailed) >= missedPause
}

// storingMissed returns works that move what was missed from memory into lanes, unless there is a reason to wait.
func (s *Inbox) storingMissed() []*work {
	if !s.mayMiss() {
		return nil
	}
	return s.missedWorks()
}

func (s *Inbox) missedWorks() (works []*work) {
	for _, o := range s.cfg.Missed.Some(maxMissedWorks) {
		w := &work{lanes: []webhookgate.LaneName{o.LaneName}, missed: []webhookgate.MissedTenant{o}, numbers: 1}
		w.failed = func(error) { s.missedFailed = time.Now() }
		w.decide = func(t *sqlTurn) {
			t.Lanes[lane.NameInRow(o.LaneName)].AddMissed(o.By(func(at time.Time) time.Time {
				return clock.Moment(min(t.Now, s.clock.latest(at))) // the latest: an older webhook must not settle this one
			}))
			t.Then(s.changed) // first: it must always be in the one or in the other
			t.Then(func() { s.cfg.Missed.Drop(o) })
		}
		works = append(works, w)
	}
	return works
}

// settleInMemory drops what was missed of a tenant up to what a run knows, as far as that is in memory. A second less,
// because the clocks of replicas and database differ.
func (s *Inbox) settleInMemory(name webhookgate.LaneName, r *lane.Run) {
	s.cfg.Missed.SettleBefore(name, s.ours(r.KnowsUpTo()).Add(-lane.MaxJump))
}

// forgetMissed drops what was missed of a tenant, as far as it is in memory, and returns in which lanes there was
// something.
func (s *Inbox) forgetMissed(platform *string, tenant string) (lanes []webhookgate.LaneName) {
	for _, o := range s.cfg.Missed.Some(0) {
		if o.Tenant == tenant && (platform == nil || o.Platform == *platform) && s.cfg.Missed.Forget(o.LaneName) {
			lanes = append(lanes, lane.NameInRow(o.LaneName))
		}
	}
	return lanes
}

// closeMissed stores what was missed, before the inbox is closed. On a full disk, too: while usher runs, the last
// room there is for outcomes, but what is in memory now is bounded, and would be forgotten.
func (s *Inbox) closeMissed() {
	for began := time.Now(); s.health.lastErr() == nil && time.Since(began) < lastMissing; {
		works, before := s.missedWorks(), s.cfg.Missed.Len()
		s.missedFailed = time.Time{}
		if len(works) == 0 || s.commit(works) != nil {
			break
		}
		if !s.missedFailed.IsZero() && s.cfg.Missed.Len() >= before {
			break // no number is left, for one: it would be the same again and again
		}
	}
	s.beat(false)
	if n := s.cfg.Missed.Len(); n > 0 {
		s.cfg.Log.Error("the inbox cannot be written: after a restart usher does not know which tenants' webhooks got "+
			"a 5xx. The log has them: 'webhook answered' with status 503", "tenants", n)
	}
}

// An Outage is a time in which no replica's gate was up and ready.
type Outage struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

const (
	// minOutage is the shortest outage.
	minOutage = time.Minute
	// beatInterval is how often a gate that is up and ready says so.
	beatInterval = 15 * time.Second
	// shownOutages is how many outages Stats has.
	shownOutages = 100
)

// A heartbeat is when this process last said that its gate is up and ready.
type heartbeat struct {
	up    bool          // the gate was up then
	at    clock.Instant // by our clock; zero: it never said so
	wrote int64         // by the database's
}

// outage says whether no gate was up for a while, and since when: last is when one last said so, by the database's
// clock, and now is its time; own is how long ago this process said so, whatever clocks were set to: while usher
// runs, that counts. Over a restart nobody knows what was done to clocks: if the database's went back, the outage
// begins after its end, which says so.
func (b *heartbeat) outage(own time.Duration, last, now int64) (began int64, found bool) {
	switch since := now - clock.Micros(own); {
	case last == 0: // the first start ever
		return 0, false
	case b.at.IsZero():
		return last, now-last >= clock.Micros(minOutage) || last-now > clock.Micros(minOutage)
	case last != b.wrote: // another replica was up later
		began = max(since, last)
	default:
		began = since
	}
	return began, now-began >= clock.Micros(minOutage)
}

// GateIsUp says that the gate takes webhooks from now on. So the inbox finds out at once whether there was an outage
// before.
func (s *Inbox) GateIsUp() {
	select {
	case s.gateIsUp <- struct{}{}:
	default:
	}
}

// beat says that the gate is up and ready, each beatInterval and when it ends, and stores the outage before, if there
// was one. It also stores how many webhooks got a 5xx before their tenant was known.
func (s *Inbox) beat(up bool) {
	b := &s.heart
	due := up && b.at.Elapsed() >= beatInterval || b.up && !up
	unnamed := s.cfg.Missed.Unnamed()
	if !due && unnamed.Count == 0 {
		return
	}
	var now int64
	var missed *Outage
	asked, at := time.Now(), clock.Now()
	err := s.write(func(tx engine.Tx) error {
		var last int64
		missed = nil
		tx.Queue("gate_up", func(r engine.Row) error { return r.Scan(&last) })
		tx.Now(&now)
		if err := tx.Send(); err != nil {
			return err
		}
		now = s.applyOffset(now)
		if due {
			if began, found := b.outage(b.at.Elapsed(), last, now); found {
				missed = &Outage{clock.Moment(began), clock.Moment(now)}
				tx.Queue("outage_add", nil, began, now, int64(0))
			}
			tx.Queue("gate_up_save", nil, now)
		}
		return storeUnnamed(tx, unnamed, now, asked)
	})
	if err != nil {
		return
	}
	if missed != nil {
		s.cfg.Log.Warn("no gate was ready to take webhooks for a while: usher may have missed some",
			"from", missed.From, "to", missed.To)
	}
	if due {
		s.heart = heartbeat{up, at, now}
	}
	s.changed() // first: they must always be in the one or in the other
	s.asked.Store(s.asked.Load() || due)
	s.cfg.Missed.DropUnnamed(unnamed)
}

// storeUnnamed adds webhooks without a tenant to the row of this hour. asked is our time before the database's was
// read: so they may seem to have come a little later than they did, but never before a reconcile that had begun
// earlier.
func storeUnnamed(tx engine.Tx, u webhookgate.Unnamed, now int64, asked time.Time) error {
	if u.Count == 0 {
		return nil
	}
	since, last := now-clock.Micros(asked.Sub(u.Since)), now-clock.Micros(asked.Sub(u.Last))
	counted := false
	row := func(r engine.Row) error { counted = true; return r.Scan(new(int64)) }
	tx.Queue("unnamed_count", row, last, int64(u.Count), now-clock.Micros(time.Hour), since)
	if err := tx.Send(); err != nil || counted {
		return err
	}
	tx.Queue("outage_add", nil, since, last, int64(u.Count))
	return nil
}

// endOutages queues the end of all outages up to a time, and of what was missed without a name: somebody has asked
// the service itself since.
func endOutages(tx engine.Tx, upTo int64) { tx.Queue("outage_end", nil, upTo) }

// Dismiss says that outages, and what was missed without a name, are dealt with, if they ended until then; zero: all.
// It returns how many outages and how many webhooks that were.
func (s *Inbox) Dismiss(until time.Time, by *Action) (outages, webhooks int, err error) {
	upTo, ours := int64(clock.Never), time.Time{}
	if !until.IsZero() {
		upTo, ours = until.UnixMicro(), s.ours(until)
	}
	dropped := s.cfg.Missed.Dismiss(ours)
	type counts struct{ outages, webhooks int }
	n, err := act(s, work{by: by}, func(t *sqlTurn) (n counts, touched int, err error) {
		t.tx.Queue("outage_dismiss", func(r engine.Row) error {
			var webhooks int64
			err := r.Scan(&webhooks)
			n.webhooks += int(webhooks)
			n.outages += int(boolNumber(webhooks == 0))
			return err
		}, upTo)
		t.send()
		return n, n.webhooks + dropped.Count, nil
	})
	if err != nil {
		s.cfg.Missed.AddUnnamed(dropped)
		return 0, 0, err
	}
	return n.outages, n.webhooks + dropped.Count, nil
}

// Missed is what usher may have missed.
type Missed struct {
	Tenants int `json:"tenants"` // whose webhooks got a 5xx, and who have not sent again since
	// More says that there are more of them, whose names usher could not keep: they are in Unnamed.
	More    bool                `json:"more,omitempty"`
	Since   time.Time           `json:"since,omitzero"` // when the first of these webhooks arrived
	Last    time.Time           `json:"last,omitzero"`  // and the last
	Unnamed webhookgate.Unnamed `json:"unnamed"`        // webhooks that got a 5xx before their tenant was known
	Outages []Outage            `json:"outages"`        // the newest first

	stored map[TenantRef]bool // the tenants that the inbox has
}

// MissedTenants returns some of the tenants whose webhooks were missed, those first that have missed webhooks for longest.
func (s *Inbox) MissedTenants(ctx context.Context, most int) (all []Tenant, err error) {
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("missed_tenants", func(r engine.Row) error {
			var t Tenant
			var since int64
			err := r.Scan(&t.Platform, &t.Tenant, &since)
			t.Missed = clock.Moment(since)
			all = append(all, t)
			return err
		}, int64(most))
		return tx.Send()
	})
	for _, o := range s.missedInMemory() {
		isListed := func(t Tenant) bool { return t.Platform == o.Platform && t.Tenant == o.Tenant }
		if len(all) < most && !slices.ContainsFunc(all, isListed) {
			all = append(all, Tenant{Platform: o.Platform, Tenant: o.Tenant, Missed: o.Since})
		}
	}
	return all, err
}

// MissedOf returns since when a tenant has missed webhooks; zero: it has none.
func (s *Inbox) MissedOf(ctx context.Context, platform, tenant string) (since time.Time, err error) {
	// Memory before the database, because what was missed moves there.
	inMemory := s.cfg.Missed.Of(webhookgate.LaneName{Platform: platform, Tenant: tenant})
	since = s.clock.dated(inMemory.Since)
	lanes, err := s.lanesOf(ctx, &platform, tenant)
	for _, l := range lanes {
		if stored := clock.Moment(l.MissedSince); l.MissedSince > 0 && (since.IsZero() || stored.Before(since)) {
			since = stored
		}
	}
	return since, err
}

// MissedInMemory is what usher may have missed without an inbox.
func MissedInMemory(missed *webhookgate.Missed) Missed {
	return Missed{}.with(missed.Some(0), missed.Full(), missed.Unnamed())
}

// with adds what is in memory. A tenant may be in both: it had missed webhooks when the database went away, or is
// being moved.
func (m Missed) with(inMemory []webhookgate.MissedTenant, full bool, unnamed webhookgate.Unnamed) Missed {
	for _, o := range inMemory {
		if !m.stored[TenantRef{o.Platform, o.Tenant}] {
			m.Tenants++
		}
		if m.Since.IsZero() || o.Since.Before(m.Since) {
			m.Since = o.Since
		}
		if o.Last().After(m.Last) {
			m.Last = o.Last()
		}
	}
	m.More = full
	m.Unnamed = m.Unnamed.Add(unnamed)
	return m
}

// maxStoredMissed is of how many missed tenants usher knows whether the database has them. Beyond it a tenant may
// count twice.
const maxStoredMissed = 10_000

// queueMissedStats queues the reading of what the database has.
func queueMissedStats(tx engine.Tx, m *Missed) {
	tx.Queue("missed_count", func(r engine.Row) error {
		var since, last int64
		err := r.Scan(&m.Tenants, &since, &last)
		if m.Tenants > 0 {
			m.Since, m.Last = clock.Moment(since), clock.Moment(last)
		}
		return err
	})
	m.stored = make(map[TenantRef]bool)
	tx.Queue("missed_tenants", func(r engine.Row) error {
		var t TenantRef
		err := r.Scan(&t.Platform, &t.Tenant, new(int64))
		m.stored[t] = true
		return err
	}, int64(maxStoredMissed))
	tx.Queue("outages", func(r engine.Row) error {
		var began, ended, webhooks int64
		err := r.Scan(&began, &ended, &webhooks)
		from, to := clock.Moment(began), clock.Moment(ended)
		if webhooks > 0 {
			m.Unnamed = m.Unnamed.Add(webhookgate.Unnamed{Count: int(webhooks), Since: from, Last: to})
		} else {
			m.Outages = append(m.Outages, Outage{from, to})
		}
		return err
	}, int64(shownOutages))
}
