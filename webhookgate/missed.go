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

// A MissedSet is what usher missed of one tenant: webhooks that got a 5xx. Each may be a change that nobody sends
// again. It is a value; the zero value is an empty set. All its times are of one clock: in memory this machine's, in an
// inbox the database's.
type MissedSet struct {
	Since    time.Time       // when the first of them arrived; it may be forgotten
	Webhooks []MissedWebhook // the last of them, in the order in which they arrived
}

// A MissedWebhook is a webhook that got a 5xx.
type MissedWebhook struct {
	ID       string // its webhook-id; empty: not known any more
	Digest   [sha256.Size]byte
	At       time.Time // when it arrived
	Snapshot bool      // it has the complete state of its tenant, so the same bytes are the same state; else it is an event
}

// Missed returns the webhook as one that got a 5xx.
func (w *Webhook) Missed() MissedWebhook {
	return MissedWebhook{ID: w.ID, Digest: w.Digest, At: w.Received, Snapshot: w.Snapshot}
}

// maxMissedOfTenant is how many webhooks of a tenant a MissedSet has.
const maxMissedOfTenant = 4

// Last is when the last of them arrived.
func (d MissedSet) Last() time.Time {
	if len(d.Webhooks) == 0 {
		return time.Time{}
	}
	return d.Webhooks[len(d.Webhooks)-1].At
}

// Before says whether there is something in it, and all of it arrived before then.
func (d MissedSet) Before(at time.Time) bool { return len(d.Webhooks) > 0 && d.Last().Before(at) }

// Add returns the set with one more webhook. Of several that are the same it has the last.
func (d MissedSet) Add(m MissedWebhook) MissedSet {
	if d.Since.IsZero() || m.At.Before(d.Since) {
		d.Since = m.At
	}
	all := slices.Clone(d.Webhooks)
	if n := slices.IndexFunc(all, func(old MissedWebhook) bool { return old.Digest == m.Digest }); n >= 0 {
		if all[n].At.After(m.At) {
			return d
		}
		all = slices.Delete(all, n, n+1)
	}
	place := len(all)
	for place > 0 && all[place-1].At.After(m.At) { // its answer took longer than that of a later one
		place--
	}
	all = slices.Insert(all, place, m)
	if d.Webhooks = all; len(all) > maxMissedOfTenant {
		first := slices.IndexFunc(all, func(m MissedWebhook) bool { return m.Snapshot })
		if first < 0 || &all[first] == d.LastSnapshot() { // a later snapshot makes good for this one, but nothing for an event
			first = 0
		}
		d.Webhooks = slices.Delete(all, first, first+1)
	}
	return d
}

// With returns both sets together.
func (d MissedSet) With(other MissedSet) MissedSet {
	for _, m := range other.Webhooks {
		d = d.Add(m)
	}
	if !other.Since.IsZero() && other.Since.Before(d.Since) {
		d.Since = other.Since
	}
	return d
}

// By returns the set with its times by another clock.
func (d MissedSet) By(clock func(time.Time) time.Time) MissedSet {
	d.Since, d.Webhooks = clock(d.Since), slices.Clone(d.Webhooks)
	for i := range d.Webhooks {
		d.Webhooks[i].At = clock(d.Webhooks[i].At)
	}
	return d
}

// Without returns the set without a webhook that is recorded as invalid now, where people see it. If there are as many
// as a set has, it stays as it is: there may have been others, which are forgotten.
func (d MissedSet) Without(digest [sha256.Size]byte) MissedSet {
	if len(d.Webhooks) >= maxMissedOfTenant {
		return d
	}
	return d.Except(func(m *MissedWebhook) bool { return m.Digest == digest })
}

// Except returns the set without some webhooks.
func (d MissedSet) Except(some func(*MissedWebhook) bool) MissedSet {
	d.Webhooks = slices.DeleteFunc(slices.Clone(d.Webhooks), func(m MissedWebhook) bool { return some(&m) })
	if len(d.Webhooks) == 0 {
		return MissedSet{}
	}
	return d
}

// After returns what is still missed once a webhook was taken in, which arrived at that time. An event is settled by
// itself alone; what settles snapshots, SettlesSnapshots says. snapshot is false for an event, and for a copy of a
// webhook that came before, by its signed id.
func (d MissedSet) After(digest [sha256.Size]byte, snapshot bool, at time.Time) MissedSet {
	settles := d.SettlesSnapshots(digest, snapshot, at)
	return d.Except(func(m *MissedWebhook) bool {
		return m.Snapshot && settles || !m.Snapshot && m.Digest == digest && !at.Before(m.At)
	})
}

// SettlesSnapshots says whether no snapshot is missed any more after it: it is the last of them again, or a new
// snapshot that arrived after that. An earlier one that is sent again says nothing about the last.
func (d MissedSet) SettlesSnapshots(digest [sha256.Size]byte, snapshot bool, at time.Time) bool {
	last := d.LastSnapshot()
	switch {
	case last == nil:
		return false
	case last.Digest == digest:
		return snapshot || !at.Before(last.At)
	}
	isMissed := slices.ContainsFunc(d.Webhooks, func(m MissedWebhook) bool { return m.Digest == digest })
	return snapshot && at.After(last.At) && !isMissed
}

// LastSnapshot is the last of the snapshots; nil: there is none.
func (d MissedSet) LastSnapshot() (last *MissedWebhook) {
	for i := range d.Webhooks {
		if d.Webhooks[i].Snapshot {
			last = &d.Webhooks[i]
		}
	}
	return last
}

// Missed remembers in memory what usher missed. An inbox moves it into its database. It is safe for concurrent use.
type Missed struct {
	mu      sync.Mutex // guards what follows
	missed  map[LaneName]MissedSet
	unnamed []Unnamed // one for each hour
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
	// maxMissed is how many tenants Missed remembers. Webhooks of further ones count as unnamed.
	maxMissed = 10_000
	// UnnamedFor is how long an unnamed webhook counts.
	UnnamedFor = 24 * time.Hour
)

// NewMissed returns an empty memory.
func NewMissed() *Missed { return &Missed{missed: make(map[LaneName]MissedSet)} }

// Add notes that a webhook of a tenant got a 5xx. One that names no tenant counts as unnamed: nobody could settle it.
func (o *Missed) Add(lane LaneName, m MissedWebhook) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d, known := o.missed[lane]
	if !known && (lane.Tenant == "" || len(o.missed) >= maxMissed) {
		o.addUnnamed(Unnamed{1, m.At, m.At})
		return
	}
	o.set(lane, d.Add(m))
}

// AddUnnamed notes webhooks that got a 5xx before their tenant was known.
func (o *Missed) AddUnnamed(u Unnamed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.addUnnamed(u)
}

func (o *Missed) addUnnamed(u Unnamed) {
	if last := len(o.unnamed) - 1; last >= 0 && u.Last.Sub(o.unnamed[last].Since) < time.Hour {
		o.unnamed[last] = o.unnamed[last].Add(u)
		return
	}
	o.unnamed = append(o.unnamed, u)
	o.expireUnnamed()
}

func (o *Missed) expireUnnamed() {
	o.unnamed = slices.DeleteFunc(o.unnamed, func(u Unnamed) bool { return clock.Since(u.Last) >= UnnamedFor })
}

// Taken notes that a webhook of a tenant was taken in, or is a copy of one that was.
func (o *Missed) Taken(lane LaneName, digest [sha256.Size]byte, snapshot bool, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.set(lane, o.missed[lane].After(digest, snapshot, at))
}

// Without notes that a webhook of a tenant is recorded as invalid.
func (o *Missed) Without(lane LaneName, digest [sha256.Size]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.set(lane, o.missed[lane].Without(digest))
}

// set replaces what was missed of a tenant. The caller holds mu.
func (o *Missed) set(lane LaneName, d MissedSet) {
	if o.missed[lane] = d; len(d.Webhooks) == 0 {
		delete(o.missed, lane)
	}
}

// SettleBefore drops what was missed of a tenant, if all of it arrived before then.
func (o *Missed) SettleBefore(lane LaneName, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.missed[lane].Before(at) {
		delete(o.missed, lane)
	}
}

// Forget drops what was missed of a tenant, and says whether there was anything.
func (o *Missed) Forget(lane LaneName) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, known := o.missed[lane]
	delete(o.missed, lane)
	return known
}

// Of returns what was missed of a tenant.
func (o *Missed) Of(lane LaneName) MissedSet {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.missed[lane]
}

// A MissedTenant is a missed set with its tenant.
type MissedTenant struct {
	LaneName
	MissedSet
}

// Some returns at most so many missed; 0: all.
func (o *Missed) Some(most int) (all []MissedTenant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for lane, d := range o.missed {
		all = append(all, MissedTenant{lane, d})
		if len(all) == most {
			break
		}
	}
	return all
}

// List returns all missed, the oldest first.
func (o *Missed) List() []MissedTenant {
	all := o.Some(0)
	slices.SortFunc(all, func(a, b MissedTenant) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Platform, b.Platform), cmp.Compare(a.Tenant, b.Tenant))
	})
	return all
}

// Drop drops a set that is stored elsewhere now, unless it has changed since.
func (o *Missed) Drop(w MissedTenant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.Equal(o.missed[w.LaneName].Webhooks, w.Webhooks) {
		delete(o.missed, w.LaneName)
	}
}

// lanes returns the tenants with missed webhooks.
func (o *Missed) lanes() []LaneName {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.missed))
}

// Len is how many tenants usher has missed something.
func (o *Missed) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.missed)
}

// Full says whether usher remembers no further tenants.
func (o *Missed) Full() bool { return o.Len() >= maxMissed }

// Unnamed returns how many webhooks got a 5xx in the last day before their tenant was known.
func (o *Missed) Unnamed() (sum Unnamed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.expireUnnamed()
	for _, u := range o.unnamed {
		sum = sum.Add(u)
	}
	return sum
}

// DropUnnamed drops what Unnamed has returned, once it is stored elsewhere. More may have come since.
func (o *Missed) DropUnnamed(stored Unnamed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.unnamed {
		n := min(stored.Count, o.unnamed[i].Count)
		o.unnamed[i].Count -= n
		stored.Count -= n
	}
	o.unnamed = slices.DeleteFunc(o.unnamed, func(u Unnamed) bool { return u.Count == 0 })
}

// Dismiss drops those that arrived until then (zero: all), and says how many these were.
func (o *Missed) Dismiss(until time.Time) (sum Unnamed) {
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
