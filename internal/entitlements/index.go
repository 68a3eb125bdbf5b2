package entitlements

import (
	"math"
	"slices"
	"sync"
	"time"
	"unique"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// An Index holds the last snapshot of each tenant in memory, for a store to answer from. It knows
// every tenant. With a bound it holds only the snapshots that were asked for recently. So it
// always knows whether a tenant's code exists on several platforms, and never takes the one that
// it happens to hold for the only one.
//
// Its methods may be called concurrently.
type Index struct {
	bound int64 // of size; zero: none

	mu      sync.RWMutex        // guards what follows
	tenants map[string][]*place // by the tenant's code, nearly always on one platform
	count   int                 // of places
	size    int64               // of the held snapshots
	recent  *simplelru.LRU[*place, struct{}]
	dropped map[tenantKey]uint64 // up to where tenants were forgotten that did not come back
}

type tenantKey struct{ platform, tenant string }

// place is what is known about one tenant on one platform.
type place struct {
	Entry
	held bool // if false, Entry has no snapshot
}

// NewIndex returns an empty index. Its snapshots take about bound bytes at most; zero means no
// bound.
func NewIndex(bound int64) *Index {
	x := &Index{bound: bound}
	x.Reset()
	return x
}

// Reset forgets everything, for a store whose numbers do not go on as they were.
func (x *Index) Reset() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tenants, x.dropped = make(map[string][]*place), make(map[tenantKey]uint64)
	x.count, x.size = 0, 0
	if x.bound > 0 {
		// The LRU's own bound is a number of entries, which does not limit memory.
		x.recent, _ = simplelru.NewLRU[*place, struct{}](math.MaxInt, nil) // fails only for a size of 0
	}
}

// Put stores a tenant's snapshot, unless there is a newer one by Entry.Seq, or it is one that was
// dropped. So a store with several writers may call it, and Drop, in any order.
func (x *Index) Put(e Entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.newer(e.Platform, e.Tenant, e.Seq); p != nil && e.Seq >= p.Seq {
		x.hold(p, e)
	}
}

// newer returns the place for a tenant's snapshot of that number, and makes it if there is none;
// nil: it was dropped. x.mu is held.
func (x *Index) newer(platform, tenant string, seq uint64) *place {
	if p := x.find(tenant, platform); p != nil {
		return p
	}
	key := tenantKey{platform, tenant}
	if upTo, ok := x.dropped[key]; ok && seq <= upTo {
		return nil
	}
	delete(x.dropped, key)
	p := &place{Entry: Entry{Platform: unique.Make(platform).Value(), Tenant: tenant}} // there are few platforms, and many tenants
	x.tenants[tenant] = append(x.tenants[tenant], p)
	x.count++
	return p
}

// Restore puts in a snapshot that was not held, after the store has read it, or a newer one that it
// found there. It changes nothing if the snapshot was replaced or dropped meanwhile.
func (x *Index) Restore(e Entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.find(e.Tenant, e.Platform); p != nil && (p.Seq < e.Seq || p.Seq == e.Seq && !p.held) {
		x.hold(p, e)
	}
}

// Drop forgets a tenant, unless its snapshot is newer than upTo: then it came after the order to
// forget. What is told later of a snapshot up to there does not count.
func (x *Index) Drop(platform, tenant string, upTo uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p, key := x.find(tenant, platform), tenantKey{platform, tenant}
	if p == nil { // what came in here may be told later
		x.dropped[key] = max(x.dropped[key], upTo)
		return
	}
	if p.Seq > upTo {
		return
	}
	x.release(p)
	x.count--
	x.dropped[key] = upTo
	places := slices.DeleteFunc(x.tenants[tenant], func(o *place) bool { return o == p })
	if len(places) == 0 {
		delete(x.tenants, tenant)
		return
	}
	x.tenants[tenant] = places
}

// Find returns a tenant's last snapshot, or ErrUnknown, or an *AmbiguousError. If held is false,
// Entry has everything except the snapshot: the store must read it, and may put it back with
// Restore.
func (x *Index) Find(tenant string, platform *string) (_ Entry, held bool, err error) {
	if x.bound > 0 { // the lookup changes the order of the LRU, so it needs the write lock
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

// hold puts e into p, and releases other snapshots if there are too many. x.mu is held.
func (x *Index) hold(p *place, e Entry) {
	x.release(p)
	e.Platform, e.Tenant = p.Platform, p.Tenant // reuse the strings in memory
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

// release drops a snapshot, but the tenant stays known. x.mu is held.
func (x *Index) release(p *place) {
	if x.recent == nil || !p.held {
		return
	}
	x.recent.Remove(p)
	x.size -= p.Snapshot.size()
	p.Snapshot, p.held = Snapshot{}, false
}

// size estimates what a snapshot takes in memory if nothing of it is shared.
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

// Know notes that a tenant has a snapshot with that number in the store's order. The store reads it
// when somebody asks for it.
func (x *Index) Know(platform, tenant string, seq uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.newer(platform, tenant, seq)
	if p == nil || seq <= p.Seq {
		return
	}
	x.release(p)
	p.Seq, p.AsOf, p.Webhook = seq, time.Time{}, ""
	p.Snapshot, p.held = Snapshot{}, false
}
