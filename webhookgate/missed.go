package webhookgate

import (
	"bytes"
	"crypto/sha256"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"
)

// A MissedSet is what usher missed of one tenant: webhooks that got a 5xx, in the order in which they arrived, the
// first and the last four of them. Each may be a change that nobody sends again. It is a value: its methods return
// another one. All its times are of one clock: in memory this machine's, in an inbox the database's.
type MissedSet []MissedWebhook

// A MissedWebhook is a webhook that got a 5xx.
type MissedWebhook struct {
	ID     string    `json:"-"`      // its webhook-id; empty: not known any more
	Digest []byte    `json:"digest"` // nil: not known any more; only who asks the service itself settles it
	At     time.Time `json:"at"`     // when it arrived
	// Snapshot: it has the complete state of its tenant, so the same bytes are the same state; else it is an event.
	Snapshot bool   `json:"snapshot"`
	SignedID []byte `json:"signed_id,omitempty"` // the hash of the id that its sender has signed; nil: it has not
}

// Missed returns the webhook as one that got a 5xx.
func (w *Webhook) Missed() MissedWebhook {
	m := MissedWebhook{ID: w.ID, Digest: bytes.Clone(w.Digest[:]), At: w.Received, Snapshot: w.Snapshot}
	if w.SignedID != "" {
		hash := sha256.Sum256([]byte(w.SignedID))
		m.SignedID = hash[:]
	}
	return m
}

// maxMissedOfTenant is how many webhooks a MissedSet has.
const maxMissedOfTenant = 5

// Since is when the first of them arrived; zero: there is none.
func (d MissedSet) Since() (at time.Time) {
	if len(d) > 0 {
		at = d[0].At
	}
	return at
}

// Last is when the last of them arrived.
func (d MissedSet) Last() (at time.Time) {
	if len(d) > 0 {
		at = d[len(d)-1].At
	}
	return at
}

// LastSnapshot is the last of the snapshots; nil: there is none.
func (d MissedSet) LastSnapshot() (last *MissedWebhook) {
	for i := range d {
		if d[i].Snapshot {
			last = &d[i]
		}
	}
	return last
}

// Add returns the set with others. The first of all stays, and of several others that are the same the last.
func (d MissedSet) Add(others ...MissedWebhook) MissedSet {
	for _, m := range others {
		d = d.add(m)
	}
	return d
}

func (d MissedSet) add(m MissedWebhook) MissedSet {
	all := append(slices.Clone(d), m)
	slices.SortStableFunc(all, func(a, b MissedWebhook) int { return a.At.Compare(b.At) }) // answers overtake each other
	others := all[1:]
	n := others.index(m.Digest)
	if n < 0 || others[n+1:].index(m.Digest) < 0 {
		if len(all) <= maxMissedOfTenant {
			return all
		}
		event := func(m MissedWebhook) bool { return !m.Snapshot }
		n = slices.IndexFunc(others, func(m MissedWebhook) bool { return m.Snapshot })
		if n < 0 || &others[n] == all.LastSnapshot() {
			// A later snapshot makes good for a snapshot, but nothing for an event: two become one that nothing settles.
			n = slices.IndexFunc(others, event)
			next := n + 1 + slices.IndexFunc(others[n+1:], event)
			others[next] = MissedWebhook{At: others[next].At}
		}
	}
	return slices.Delete(all, n+1, n+2)
}

// index is the place of the first webhook with these bytes; negative: there is none.
func (d MissedSet) index(digest []byte) int {
	return slices.IndexFunc(d, func(m MissedWebhook) bool { return bytes.Equal(m.Digest, digest) })
}

// MapTimes returns the set with other times, such as those of another clock.
func (d MissedSet) MapTimes(clock func(time.Time) time.Time) MissedSet {
	d = slices.Clone(d)
	for i := range d {
		d[i].At = clock(d[i].At)
	}
	return d
}

// Except returns the set without some webhooks.
func (d MissedSet) Except(some func(MissedWebhook) bool) MissedSet {
	return slices.DeleteFunc(slices.Clone(d), some)
}

// AfterInvalid returns what is still missed once a webhook was recorded as invalid: people see it there. A set that is
// full stays as it is: there may have been others, which are forgotten.
func (d MissedSet) AfterInvalid(digest []byte) MissedSet {
	if len(d) >= maxMissedOfTenant {
		return d
	}
	return d.Except(func(m MissedWebhook) bool { return bytes.Equal(m.Digest, digest) })
}

// AfterSignedCopy returns what is still missed once a webhook came again, by its signed id: it is not missed, and says
// nothing about others, even if their bytes are the same.
func (d MissedSet) AfterSignedCopy(digest, signedID []byte) MissedSet {
	return d.Except(func(m MissedWebhook) bool {
		return bytes.Equal(m.Digest, digest) && bytes.Equal(m.SignedID, signedID)
	})
}

// AfterIntake returns what is still missed once a webhook was taken in, or is a copy of one by its bytes; it arrived at
// that time. snapshot is false for an event.
//
// An event is settled by itself alone. The snapshots are settled by the last of them again, or by a new snapshot that
// arrived after that. An earlier one that is sent again says nothing about the last.
func (d MissedSet) AfterIntake(digest []byte, snapshot bool, at time.Time) MissedSet {
	settles := false
	if last := d.LastSnapshot(); last != nil && snapshot {
		settles = bytes.Equal(last.Digest, digest) || at.After(last.At) && d.index(digest) < 0
	}
	return d.Except(func(m MissedWebhook) bool {
		again := bytes.Equal(m.Digest, digest) && !at.Before(m.At)
		return m.Snapshot && settles || !m.Snapshot && again
	})
}

// Missed remembers in memory what usher missed. An inbox moves it into its database. It is safe for concurrent use.
type Missed struct {
	mu      sync.Mutex // guards what follows
	tenants map[LaneName]MissedSet
	unnamed Unnamed
}

// maxMissed is how many tenants Missed remembers. Webhooks of further ones count as unnamed.
const maxMissed = 10_000

// NewMissed returns an empty memory.
func NewMissed() *Missed { return &Missed{tenants: make(map[LaneName]MissedSet)} }

// Add notes that a webhook of a tenant got a 5xx. One that names no tenant counts as unnamed: nobody could settle it.
func (o *Missed) Add(lane LaneName, m MissedWebhook) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.tenants[lane]; !known && (lane.Tenant == "" || len(o.tenants) >= maxMissed) {
		o.unnamed = o.unnamed.Add(Unnamed{1, m.At, m.At})
		return
	}
	o.tenants[lane] = o.tenants[lane].Add(m)
}

// Settle replaces what was missed of a tenant by what is still missed of it, and says whether there was anything.
func (o *Missed) Settle(lane LaneName, still func(MissedSet) MissedSet) (known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d, known := o.tenants[lane]
	if d = still(d); len(d) > 0 {
		o.tenants[lane] = d
	} else {
		delete(o.tenants, lane)
	}
	return known
}

// Forget drops what was missed of a tenant, and says whether there was anything.
func (o *Missed) Forget(lane LaneName) bool {
	return o.Settle(lane, func(MissedSet) MissedSet { return nil })
}

// Drop drops what All has returned of a tenant, once it is stored elsewhere, unless more has come since.
func (o *Missed) Drop(lane LaneName, stored MissedSet) {
	o.Settle(lane, func(now MissedSet) MissedSet {
		if reflect.DeepEqual(now, stored) {
			return nil
		}
		return now
	})
}

// Of returns what was missed of a tenant.
func (o *Missed) Of(lane LaneName) MissedSet {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tenants[lane]
}

// All returns what was missed of each tenant.
func (o *Missed) All() map[LaneName]MissedSet {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.tenants)
}

// Len is how many tenants usher has missed something.
func (o *Missed) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.tenants)
}

// Full says whether usher remembers no further tenants.
func (o *Missed) Full() bool { return o.Len() >= maxMissed }

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

// AddUnnamed notes webhooks that got a 5xx before their tenant was known.
func (o *Missed) AddUnnamed(u Unnamed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unnamed = o.unnamed.Add(u)
}

// Unnamed returns how many webhooks got a 5xx before their tenant was known.
func (o *Missed) Unnamed() Unnamed {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unnamed
}

// DropUnnamed drops what Unnamed has returned, once it is stored elsewhere, or somebody has dismissed it. More may have
// come since.
func (o *Missed) DropUnnamed(u Unnamed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unnamed.Count -= u.Count; o.unnamed.Count <= 0 {
		o.unnamed = Unnamed{}
	} else {
		o.unnamed.Since = u.Last // about: they came after it
	}
}
