package webhookgate

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"time"

	"usher/internal/clock"
)

// A Debt is what usher owes one tenant: webhooks that got a 5xx. Each may be a change that nobody sends again. It is a value; the
// zero value is no debt.
type Debt struct {
	Since  time.Time // when the first of them arrived
	Missed []Missed  // the last of them, in the order in which they arrived
}

// Missed is a webhook that got a 5xx.
type Missed struct {
	ID       string // its webhook-id; empty: not known any more
	Digest   [sha256.Size]byte
	At       time.Time // when it arrived
	Snapshot bool      // it has the complete state of its tenant, so the same bytes are the same state
	Received time.Time // when it arrived, by this machine's clock; only with an inbox, where At is by the database's
}

// keptMissed is how many webhooks of a tenant a Debt has.
const keptMissed = 4

// Last is when the last of them arrived.
func (d Debt) Last() time.Time {
	if len(d.Missed) == 0 {
		return time.Time{}
	}
	return d.Missed[len(d.Missed)-1].At
}

// Before says whether all of it arrived before then. If nobody knows when it arrived, it did not.
func (d Debt) Before(at time.Time) bool { return !d.Last().IsZero() && d.Last().Before(at) }

// Add returns the debt with one more webhook.
func (d Debt) Add(m Missed) Debt {
	all := slices.DeleteFunc(slices.Clone(d.Missed), func(old Missed) bool { return old.Digest == m.Digest && !old.At.After(m.At) })
	place := len(all)
	for place > 0 && all[place-1].At.After(m.At) { // its answer took longer than that of a later one
		place--
	}
	all = slices.Insert(all, place, m)
	if d.Since.IsZero() || m.At.Before(d.Since) {
		d.Since = m.At
	}
	d.Missed = all[max(0, len(all)-keptMissed):]
	return d
}

// Without returns the debt without a webhook that is stored as refused now, where people see it. If there are as many as a debt has, it
// stays as it is: there may have been others, whose digests are forgotten.
func (d Debt) Without(digest [sha256.Size]byte) Debt {
	if len(d.Missed) >= keptMissed {
		return d
	}
	d.Missed = slices.DeleteFunc(slices.Clone(d.Missed), func(m Missed) bool { return m.Digest == digest })
	if len(d.Missed) == 0 {
		return Debt{}
	}
	return d
}

// SettledBy says whether nothing is owed any more once a webhook was taken in, which arrived at that time: it is the last one again, or
// a new snapshot that arrived after it. An earlier one that is sent again says nothing about the last, nor does an event that is no snapshot,
// nor a copy of a webhook that came before, by its signed id: for these, snapshot is false.
func (d Debt) SettledBy(digest [sha256.Size]byte, snapshot bool, at time.Time) bool {
	if len(d.Missed) == 0 {
		return true
	}
	if last := d.Missed[len(d.Missed)-1]; last.Digest == digest {
		return snapshot || !at.Before(last.At)
	}
	return snapshot && at.After(d.Last()) && !slices.ContainsFunc(d.Missed, func(m Missed) bool { return m.Digest == digest })
}

// Owed remembers in memory what usher owes. An inbox moves it into its database. It is safe for concurrent use.
type Owed struct {
	mu      sync.Mutex // guards what follows
	debts   map[Lane]*openDebt
	version int64     // counts changes
	unnamed []Unnamed // one for each hour
}

type openDebt struct {
	Debt
	version int64
}

// Unnamed counts webhooks that got a 5xx before usher knew their tenant, or whose tenant usher could not remember.
type Unnamed struct {
	Count int       `json:"webhooks"`
	Since time.Time `json:"since,omitzero"` // when the first of them arrived
	Last  time.Time `json:"last,omitzero"`  // and the last
}

// Add returns both counts together.
func (u Unnamed) Add(v Unnamed) Unnamed {
	switch {
	case u.Count == 0:
		return v
	case v.Count == 0:
		return u
	case v.Since.Before(u.Since):
		u.Since = v.Since
	}
	if v.Last.After(u.Last) {
		u.Last = v.Last
	}
	u.Count += v.Count
	return u
}

const (
	// maxOwed is how many tenants Owed remembers. Webhooks of further ones count as unnamed.
	maxOwed = 10_000
	// UnnamedFor is how long an unnamed webhook counts.
	UnnamedFor = 24 * time.Hour
)

// NewOwed returns an empty memory.
func NewOwed() *Owed { return &Owed{debts: make(map[Lane]*openDebt)} }

// Add notes that a webhook of a tenant got a 5xx. One that names no tenant counts as unnamed: nobody could settle it. These count from now,
// by this machine's clock, because m.At may be a database's.
func (o *Owed) Add(lane Lane, m Missed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.debts[lane]
	if d == nil && (lane.Tenant == "" || len(o.debts) >= maxOwed) {
		now := time.Now()
		o.addUnnamed(Unnamed{1, now, now})
		return
	}
	if d == nil {
		d = new(openDebt)
		o.debts[lane] = d
	}
	o.version++
	d.Debt, d.version = d.Debt.Add(m), o.version
}

// AddUnnamed notes webhooks that got a 5xx before their tenant was known.
func (o *Owed) AddUnnamed(u Unnamed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.addUnnamed(u)
}

func (o *Owed) addUnnamed(u Unnamed) {
	if last := len(o.unnamed) - 1; last >= 0 && u.Last.Sub(o.unnamed[last].Since) < time.Hour {
		o.unnamed[last] = o.unnamed[last].Add(u)
		return
	}
	o.unnamed = append(o.unnamed, u)
	o.expireUnnamed()
}

func (o *Owed) expireUnnamed() {
	o.unnamed = slices.DeleteFunc(o.unnamed, func(u Unnamed) bool { return clock.Since(u.Last) >= UnnamedFor })
}

// Taken notes that a webhook of a tenant was taken in, or is a copy of one that was.
func (o *Owed) Taken(lane Lane, digest [sha256.Size]byte, snapshot bool, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d := o.debts[lane]; d != nil && d.SettledBy(digest, snapshot, at) {
		delete(o.debts, lane)
	}
}

// Without notes that a webhook of a tenant is stored as refused.
func (o *Owed) Without(lane Lane, digest [sha256.Size]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.debts[lane]
	if d == nil {
		return
	}
	o.version++
	if d.Debt, d.version = d.Debt.Without(digest), o.version; len(d.Missed) == 0 {
		delete(o.debts, lane)
	}
}

// SettleBefore drops what is owed to a tenant, if all of it arrived before then.
func (o *Owed) SettleBefore(lane Lane, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d := o.debts[lane]; d != nil && d.Before(at) {
		delete(o.debts, lane)
	}
}

// Forget drops what is owed to a tenant, and says whether there was anything.
func (o *Owed) Forget(lane Lane) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, known := o.debts[lane]
	delete(o.debts, lane)
	return known
}

// Of returns what is owed to a tenant.
func (o *Owed) Of(lane Lane) Debt {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d := o.debts[lane]; d != nil {
		return d.Debt
	}
	return Debt{}
}

// An Owing is a debt with its tenant.
type Owing struct {
	Lane
	Debt
	Version int64 // of the debt, for Drop
}

// Some returns at most so many debts; 0: all.
func (o *Owed) Some(most int) (all []Owing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for lane, d := range o.debts {
		all = append(all, Owing{lane, d.Debt, d.version})
		if len(all) == most {
			break
		}
	}
	return all
}

// List returns all debts, the oldest first.
func (o *Owed) List() []Owing {
	all := o.Some(0)
	slices.SortFunc(all, func(a, b Owing) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Platform, b.Platform), cmp.Compare(a.Tenant, b.Tenant))
	})
	return all
}

// Drop drops a debt that is stored elsewhere now, unless it has changed since.
func (o *Owed) Drop(w Owing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d := o.debts[w.Lane]; d != nil && d.version == w.Version {
		delete(o.debts, w.Lane)
	}
}

// lanes returns the tenants that usher owes something.
func (o *Owed) lanes() []Lane {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.debts))
}

// Len is how many tenants usher owes something.
func (o *Owed) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.debts)
}

// Full says whether usher remembers no further tenants.
func (o *Owed) Full() bool { return o.Len() >= maxOwed }

// Unnamed returns how many webhooks got a 5xx in the last day before their tenant was known.
func (o *Owed) Unnamed() (sum Unnamed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.expireUnnamed()
	for _, u := range o.unnamed {
		sum = sum.Add(u)
	}
	return sum
}

// DropUnnamed drops what Unnamed returns, and says what that was.
func (o *Owed) DropUnnamed() Unnamed { return o.Dismiss(time.Time{}) }

// Dismiss does the same for those that arrived until then; zero: all.
func (o *Owed) Dismiss(until time.Time) (sum Unnamed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.expireUnnamed()
	o.unnamed = slices.DeleteFunc(o.unnamed, func(u Unnamed) bool {
		if !until.IsZero() && u.Last.After(until) {
			return false
		}
		sum = sum.Add(u)
		return true
	})
	return sum
}
