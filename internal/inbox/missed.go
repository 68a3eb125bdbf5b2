package inbox

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
)

// Webhooks that got a 5xx. They are in memory first (webhookgate.Missed), because mostly the database is away then. The
// writer moves them into their lanes (lane.AddMissed) as soon as it can. Meanwhile the tenant may have sent again,
// through another replica: where usher is not certain of that, the tenant counts as missed.

// missedSets is what is missed of tenants, as far as it is in memory, with times of the database's clock. Read it
// before the database, because it moves there.
type missedSets map[webhookgate.LaneName]webhookgate.MissedSet

func (s *Inbox) missedInMemory() missedSets {
	all := s.cfg.Missed.All()
	for name, d := range all {
		all[name] = d.MapTimes(s.clock.dated)
	}
	return all
}

const (
	// maxMissedWorks is how many tenants one transaction notes with missed webhooks.
	maxMissedWorks = 64
	// missedPause is the time until the next such transaction, after one that failed.
	missedPause = time.Second
	// lastMissing is how long that may take when the inbox is closed.
	lastMissing = 2 * time.Second
)

// mayStoreMissed says whether there is something that was missed to be moved from memory into lanes, and no reason to
// wait.
func (s *Inbox) mayStoreMissed() bool {
	return s.cfg.Missed.Len() > 0 && s.health.lastErr() == nil && s.engine.Full() == nil &&
		time.Since(s.missedFailed) >= missedPause
}

// missedWorks returns works, so many at most, that move what was missed from memory into lanes.
func (s *Inbox) missedWorks(most int) (works []*work) {
	for name, missed := range s.cfg.Missed.All() {
		if len(works) == most {
			break
		}
		w := &work{lanes: []webhookgate.LaneName{name}, numbers: 1}
		w.failed = func(error) { s.missedFailed = time.Now() }
		w.decide = func(t *sqlTurn) {
			t.Lanes[name].AddMissed(missed.MapTimes(func(at time.Time) time.Time {
				return clock.Moment(min(t.Now, s.clock.latest(at))) // the latest: an older webhook must not settle this one
			}))
			t.Then(s.changed) // first: it must always be in the one or in the other
			t.Then(func() { s.cfg.Missed.Drop(name, missed) })
		}
		works = append(works, w)
	}
	return works
}

// closeMissed stores what was missed, before the inbox is closed. On a full disk, too: while usher runs, the last
// room there is for outcomes, but what is in memory now is bounded, and would be forgotten.
func (s *Inbox) closeMissed() {
	began := time.Now()
	for works := range slices.Chunk(s.missedWorks(math.MaxInt), maxMissedWorks) {
		if s.health.lastErr() != nil || time.Since(began) > lastMissing || s.commit(works) != nil {
			break
		}
	}
	s.beat(false)
	if n := s.cfg.Missed.Len(); n > 0 {
		s.cfg.Log.Error("the inbox cannot be written: after a restart usher does not know which tenants' webhooks got "+
			"a 5xx. The log has them: 'webhook answered' with status 503", "tenants", n)
	}
}

// settleInMemory drops what was missed of a tenant up to what a run knows, as far as that is in memory. A second less,
// because the clocks of replicas and database differ.
func (s *Inbox) settleInMemory(name webhookgate.LaneName, r *lane.Run) {
	settleUpTo(s.cfg.Missed, name, s.ours(r.KnowsUpTo()).Add(-lane.MaxJump))
}

func settleUpTo(all *webhookgate.Missed, name webhookgate.LaneName, at time.Time) {
	all.Settle(name, func(d webhookgate.MissedSet) webhookgate.MissedSet {
		if d.Last().Before(at) {
			return nil
		}
		return d
	})
}

// forgetMissed drops what was missed of a tenant, as far as it is in memory, and returns in which lanes there was
// something.
func (s *Inbox) forgetMissed(platform *string, tenant string) (lanes []webhookgate.LaneName) {
	for name := range s.cfg.Missed.All() {
		if name.Tenant == tenant && (platform == nil || name.Platform == *platform) && s.cfg.Missed.Forget(name) {
			lanes = append(lanes, name)
		}
	}
	return lanes
}

// MissedOf returns since when a tenant has missed webhooks; zero: it has none.
func (s *Inbox) MissedOf(ctx context.Context, platform, tenant string) (since time.Time, err error) {
	missed := s.missedInMemory()[webhookgate.LaneName{Platform: platform, Tenant: tenant}]
	lanes, err := s.lanesOf(ctx, &platform, tenant)
	for _, l := range lanes {
		missed = missed.Add(l.Missed...)
	}
	return missed.Since(), err
}

// Missed is what usher may have missed.
type Missed struct {
	Tenants int         `json:"tenants"` // whose webhooks got a 5xx, and who have not sent again since
	First   []TenantRef `json:"-"`       // those who are missed webhooks for longest
	// More says that there are more of them, whose names usher could not keep: they are in Unnamed.
	More    bool                `json:"more,omitempty"`
	Since   time.Time           `json:"since,omitzero"` // when the first of these webhooks arrived
	Last    time.Time           `json:"last,omitzero"`  // and the last
	Unnamed webhookgate.Unnamed `json:"unnamed"`        // webhooks that got a 5xx before their tenant was known
	Outages []Outage            `json:"outages"`        // the newest first

	stored missedSets // the first maxStoredMissed that the database has; Tenants counts all
}

const (
	// maxStoredMissed is of how many missed tenants usher knows whether the database has them. Beyond it a tenant may
	// count twice.
	maxStoredMissed = 10_000
	// shownMissed is how many are in First.
	shownMissed = 3
)

// MissedInMemory is what usher may have missed without an inbox.
func MissedInMemory(missed *webhookgate.Missed) Missed {
	return Missed{}.with(missed.All(), missed.Full(), missed.Unnamed())
}

// with adds what is in memory. A tenant may be in both: it had missed webhooks when the database went away, or is
// being moved.
func (m Missed) with(inMemory missedSets, full bool, unnamed webhookgate.Unnamed) Missed {
	m.More, m.Unnamed = full, m.Unnamed.Add(unnamed)
	if len(inMemory) == 0 && m.First != nil {
		return m // it has all that is stored
	}
	all := make(missedSets)
	maps.Copy(all, m.stored)
	for name, d := range inMemory {
		if all[name] == nil {
			m.Tenants++
		}
		all[name] = all[name].Add(d...)
	}
	names := slices.SortedFunc(maps.Keys(all), func(a, b webhookgate.LaneName) int {
		return cmp.Or(all[a].Since().Compare(all[b].Since()), lane.CompareNames(a, b))
	})
	m.First = nil
	for n, name := range names {
		if n == 0 {
			m.Since = all[name].Since()
		}
		if n < shownMissed {
			m.First = append(m.First, TenantRef{name.Platform, name.Tenant})
		}
		if last := all[name].Last(); last.After(m.Last) {
			m.Last = last
		}
	}
	return m
}

// queueMissedStats queues the reading of what the database has.
func queueMissedStats(tx engine.Tx, m *Missed) {
	m.stored = make(missedSets)
	tx.Queue("missed_tenants", func(r engine.Row) error {
		var name webhookgate.LaneName
		var c missedColumns
		err := r.Scan(&name.Platform, &name.Tenant, &c.since, &c.webhooks, &m.Tenants)
		m.stored[name] = c.set()
		return err
	}, int64(maxStoredMissed))
	tx.Queue("outages", func(r engine.Row) error {
		u, err := scanUnnamed(r)
		if u.Count == 0 {
			m.Outages = append(m.Outages, Outage{u.Since, u.Last})
		}
		m.Unnamed = m.Unnamed.Add(u)
		return err
	}, int64(shownOutages))
}
