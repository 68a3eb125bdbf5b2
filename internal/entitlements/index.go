package entitlements

import (
	"math"
	"slices"
	"sync"
	"time"
	"unique"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// An Index holds the last snapshot of each tenant in memory, for a store to answer
// from. It knows every tenant that it was told of; with a bound it holds the snapshots
// of those alone that were asked for last. So it can always tell whether a tenant's
// code exists on several platforms, and never takes the one that it happens to hold
// for the only one.
//
// Its methods may be called concurrently.
type Index struct {
	bound int64 // of size; zero: none

	mu      sync.RWMutex        // guards what follows
	tenants map[string][]*place // by the tenant's code, nearly always on one platform
	count   int                 // of places
	size    int64               // of the snapshots that are held
	recent  *simplelru.LRU[*place, struct{}]
}

// place is what is known of one tenant on one platform.
type place struct {
	Entry
	held bool // else Entry has no snapshot
}

// NewIndex returns an empty index. Its snapshots take about bound bytes at most; zero
// is for no bound.
func NewIndex(bound int64) *Index {
	x := &Index{bound: bound, tenants: make(map[string][]*place)}
	if bound > 0 {
		// Its own bound is on their number: that is no measure of memory.
		x.recent, _ = simplelru.NewLRU[*place, struct{}](math.MaxInt, nil) // fails for a size of 0 only
	}
	return x
}

// Put takes in a tenant's snapshot, unless a newer one is there, by Entry.Seq. So it
// does not matter in which order a store that has several writers calls it.
func (x *Index) Put(e Entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.find(e.Tenant, e.Platform)
	switch {
	case p == nil:
		e.Platform = unique.Make(e.Platform).Value() // there are few, and all tenants have one
		p = &place{Entry: Entry{Platform: e.Platform, Tenant: e.Tenant}}
		x.tenants[e.Tenant] = append(x.tenants[e.Tenant], p)
		x.count++
	case e.Seq < p.Seq:
		return
	}
	x.hold(p, e)
}

// Restore takes in again a snapshot that was not held, as the store has read it in
// the meantime. What has been replaced or dropped since stays so.
func (x *Index) Restore(e Entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.find(e.Tenant, e.Platform); p != nil && !p.held && p.Seq == e.Seq {
		x.hold(p, e)
	}
}

// Drop forgets a tenant, unless what is known of it is newer than upTo: it came after
// whatever says that the tenant is to be forgotten.
func (x *Index) Drop(platform, tenant string, upTo uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.find(tenant, platform)
	if p == nil || p.Seq > upTo {
		return
	}
	x.release(p)
	x.count--
	places := slices.DeleteFunc(x.tenants[tenant], func(o *place) bool { return o == p })
	if len(places) == 0 {
		delete(x.tenants, tenant)
		return
	}
	x.tenants[tenant] = places
}

// Find returns a tenant's last snapshot, or ErrUnknown, or an *AmbiguousError. If held
// is false, Entry has everything but the snapshot: the store has to read it, and may
// give it back with Restore.
func (x *Index) Find(tenant string, platform *string) (_ Entry, held bool, err error) {
	if x.bound > 0 { // who is asked for counts as recent, and that is a change
		x.mu.Lock()
		defer x.mu.Unlock()
	} else {
		x.mu.RLock()
		defer x.mu.RUnlock()
	}
	places := x.tenants[tenant]
	var p *place
	switch {
	case platform != nil:
		p = x.find(tenant, *platform)
	case len(places) > 1:
		return Entry{}, false, ambiguous(places)
	case len(places) == 1:
		p = places[0]
	}
	if p == nil {
		return Entry{}, false, ErrUnknown
	}
	if x.recent != nil && p.held {
		x.recent.Get(p)
	}
	return p.Entry, p.held, nil
}

// Len is how many tenants are known, held or not.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.count
}

// find returns the place of a tenant, or nil. x.mu is held.
func (x *Index) find(tenant, platform string) *place {
	for _, p := range x.tenants[tenant] {
		if p.Platform == platform {
			return p
		}
	}
	return nil
}

// hold puts e into p, and lets go of others where that is too much. x.mu is held.
func (x *Index) hold(p *place, e Entry) {
	x.release(p)
	e.Platform, e.Tenant = p.Platform, p.Tenant // the strings that are held already
	p.Entry, p.held = e, true
	if x.recent == nil {
		return
	}
	x.size += p.Snapshot.size()
	x.recent.Add(p, struct{}{})
	for x.size > x.bound {
		oldest, _, _ := x.recent.GetOldest()
		x.release(oldest)
	}
}

// release lets go of a snapshot, and of nothing else. x.mu is held.
func (x *Index) release(p *place) {
	if x.recent == nil || !p.held {
		return
	}
	x.recent.Remove(p)
	x.size -= p.Snapshot.size()
	p.Snapshot, p.held = Snapshot{}, false
}

// size is about what a snapshot takes in memory if nothing of it is shared.
func (s Snapshot) size() int64 {
	n := 48 + len(s.own)
	for _, h := range s.names {
		v := h.Value()
		n += 8 + len(v.code) + len(v.name)
	}
	return int64(n)
}

func ambiguous(places []*place) error {
	e := new(AmbiguousError)
	for _, p := range places {
		e.Platforms = append(e.Platforms, p.Platform)
	}
	slices.Sort(e.Platforms)
	return e
}

// Know takes in that a tenant has a snapshot of that place in the store's order, which the store
// reads when somebody asks for it.
func (x *Index) Know(platform, tenant string, seq uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.find(tenant, platform)
	if p == nil {
		p = &place{Entry: Entry{Platform: unique.Make(platform).Value(), Tenant: tenant}}
		x.tenants[tenant] = append(x.tenants[tenant], p)
		x.count++
	} else if seq <= p.Seq {
		return
	}
	x.release(p)
	p.Seq, p.AsOf, p.Webhook = seq, time.Time{}, ""
	p.Snapshot, p.held = Snapshot{}, false
}
