package entitlements

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"usher/internal/clock"
	"usher/internal/snapshot"
)

const (
	// bookBytes is about how much memory a Book takes.
	bookBytes = 64 << 20
	// freshFor is how long an answer of a store that others write to, too, is used without asking again.
	freshFor = time.Second
	// queryPatience is how long the store may take to answer.
	queryPatience = 2 * time.Second
	// probeEvery is how often a store that fails is asked again.
	probeEvery = time.Second
	// batch is for how many tenants the store is asked at once. It limits the memory of an answer.
	batch = 100
)

// A Book looks up what tenants may use. It holds what was asked for recently, and asks the store for
// what it does not hold.
//
// It knows a tenant's code as a whole: the store always answers with the snapshots of all platforms
// that have the code. So a code that exists on several platforms is never answered with the one that
// happens to be held.
//
// What the Book holds counts until Changed says otherwise. If other replicas write to the store, it
// counts for one second. While the store fails, what is held is still answered, and marked as stale.
//
// One rule keeps answers right, whatever happens at the same time: a lookup is answered only by a query
// that began after the lookup did, and what a query found is held only if nothing changed since the
// query began. The Book never merges, so it needs no order of events.
type Book struct {
	snapshots func(ctx context.Context, tenants []string) ([]snapshot.Stored, error)
	shared    bool
	bound     int64

	mu      sync.Mutex                     // guards what follows
	held    *simplelru.LRU[string, *entry] // by the tenant's code
	size    int64                          // of held
	running *query                         // the query that run waits for, or nil
	next    *query                         // the one after it, or nil
	failure error                          // of the last query, or nil
	probe   time.Time                      // when a store that fails is asked again
}

// An entry is what the store said about a tenant's code. It does not change.
type entry struct {
	places []Answer  // one for each platform that has the code, nearly always one
	asked  time.Time // when the query began
}

// A query asks the store about everything that was asked for while the query before it ran.
type query struct {
	// tenants are the codes that it asks for; while it runs, those that have not changed since it began.
	tenants map[string]bool
	done    chan struct{}     // closed at its end
	found   map[string]*entry // the answer; valid after done, as is err
	err     error
}

// NewBook returns a Book that holds nothing yet.
//
// snapshots is the store: it returns all last snapshots whose tenant code is one of these, on whichever
// platform, and reads them after it was called. It must return soon after its context ends, and must not
// fail because of what a code looks like, or because one row is damaged: then all tenants suffer. shared
// says that others write to the same store, or that a commit in doubt may still become visible later.
func NewBook(snapshots func(ctx context.Context, tenants []string) ([]snapshot.Stored, error), shared bool) *Book {
	// It fails only for a size of 0. Its own bound is a number of entries.
	held, _ := simplelru.NewLRU[string, *entry](math.MaxInt, nil)
	return &Book{snapshots: snapshots, shared: shared, bound: bookBytes, held: held}
}

// Changed says that what the store has of a tenant's code has changed, or may have: a snapshot was taken
// in or erased, or a commit is in doubt. The empty code stands for all tenants. The store calls it after the
// commit, and before it says that the change is done: from then on the Book answers by it. An extra call does
// no harm.
func (b *Book) Changed(tenant string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var asked map[string]bool
	if b.running != nil {
		asked = b.running.tenants
	}
	if tenant != "" {
		delete(asked, tenant)
		if b.drop(tenant) {
			b.ask(tenant) // or an outage would find nothing held of a tenant that somebody asks for
		}
		return
	}
	b.held.Purge()
	b.size = 0
	clear(asked)
}

// Lookup is a [Lookup].
func (b *Book) Lookup(ctx context.Context, tenant string, platform *string) (Answer, error) {
	e, stale, err := b.find(ctx, tenant)
	if err != nil {
		return Answer{}, err
	}
	a, err := e.on(platform)
	if stale > 0 && errors.Is(err, ErrUnknown) { // another replica may have taken in its first webhook since
		return Answer{}, errors.New("usher does not know this tenant, and cannot read the inbox now")
	}
	a.Stale = stale
	return a, err
}

// find returns what is known of a tenant's code, from what is held or from the store; stale is its age while
// the store fails.
func (b *Book) find(ctx context.Context, tenant string) (_ *entry, stale time.Duration, _ error) {
	b.mu.Lock()
	e, _ := b.held.Get(tenant)
	if b.isCurrent(e) {
		b.mu.Unlock()
		return e, 0, nil
	}
	var q *query
	failure, now := b.failure, time.Now()
	old := now.Sub(b.probe) > probeEvery // nobody has asked for a while: the store may be well again
	if failure == nil || !now.Before(b.probe) {
		q, b.probe = b.ask(tenant), now.Add(probeEvery)
	}
	b.mu.Unlock()
	// While the store fails, a lookup waits only if it has no other answer.
	if failure == nil || q != nil && (e == nil || old) {
		select {
		case <-q.done:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
		if q.err == nil {
			return q.found[tenant], 0, nil
		}
		failure = q.err
	}
	b.mu.Lock()
	e, _ = b.held.Get(tenant) // again: the tenant may have changed meanwhile
	b.mu.Unlock()
	switch {
	case e == nil:
		return nil, 0, fmt.Errorf("the inbox cannot be read: %w", failure)
	case b.isCurrent(e): // another query has brought it meanwhile
		return e, 0, nil
	}
	return e, clock.Since(e.asked), nil
}

// isCurrent reports whether an entry can be used without asking the store.
func (b *Book) isCurrent(e *entry) bool {
	return e != nil && (!b.shared || clock.Since(e.asked) < freshFor)
}

// on returns what is known about the tenant on that platform; with nil, on the only platform that has it.
func (e *entry) on(platform *string) (Answer, error) {
	if platform == nil && len(e.places) > 1 {
		several := new(AmbiguousError)
		for _, p := range e.places {
			several.Platforms = append(several.Platforms, p.Platform)
		}
		slices.Sort(several.Platforms)
		return Answer{}, several
	}
	for _, p := range e.places {
		if platform == nil || p.Platform == *platform {
			return p, nil
		}
	}
	return Answer{}, ErrUnknown
}

// ask adds a tenant to the next query. b.mu is held.
func (b *Book) ask(tenant string) *query {
	if b.next == nil {
		b.next = &query{tenants: make(map[string]bool), done: make(chan struct{})}
		if b.running == nil {
			go b.run()
		}
	}
	b.next.tenants[tenant] = true
	return b.next
}

// run asks the store, one query after the other, until there is no next one.
func (b *Book) run() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.next != nil {
		q := b.next
		b.running, b.next = q, nil
		codes := slices.Collect(maps.Keys(q.tenants))
		b.mu.Unlock()
		q.found, q.err = b.query(codes)
		b.mu.Lock()
		b.running = nil
		b.end(q)
	}
}

// end holds the answer of a query, and wakes the lookups that wait for it. b.mu is held.
func (b *Book) end(q *query) {
	defer close(q.done)
	for tenant, e := range q.found {
		if b.drop(tenant); q.tenants[tenant] {
			b.hold(e)
		}
	}
	if b.failure = q.err; b.failure == nil {
		return
	}
	b.probe = time.Now().Add(probeEvery)
	if b.next != nil { // it would wait for the same failure
		b.next.err = q.err
		close(b.next.done)
		b.next = nil
	}
}

// query asks the store. It does not use the context of a caller: if one hangs up, the others still want the
// answer.
func (b *Book) query(codes []string) (map[string]*entry, error) {
	found := make(map[string]*entry, len(codes))
	for some := range slices.Chunk(codes, batch) {
		for _, code := range some {
			found[code] = &entry{asked: time.Now()}
		}
		ctx, cancel := context.WithTimeout(context.Background(), queryPatience)
		stored, err := b.snapshots(ctx, some)
		if cancel(); err != nil {
			return nil, err
		}
		for _, s := range stored {
			if e := found[s.Tenant]; e != nil {
				a := Answer{Stored: s}
				// Features that are damaged are unknown, of this tenant alone.
				a.Snapshot, _ = snapshot.Decode(s.Features)
				a.Name, a.Features = "", nil
				e.places = append(e.places, a)
			}
		}
	}
	return found, nil
}

// Held returns how many tenants' codes the Book holds.
func (b *Book) Held() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held.Len()
}

// drop removes what is held of a tenant's code, and reports whether there was anything. b.mu is held.
func (b *Book) drop(tenant string) bool {
	old, ok := b.held.Peek(tenant)
	if ok {
		b.size -= old.size()
		b.held.Remove(tenant)
	}
	return ok
}

// hold adds an entry, and drops the least recently used ones if there is too much. It does not hold an
// unknown tenant, because questions about many of them must not push out the others. b.mu is held.
func (b *Book) hold(e *entry) {
	if len(e.places) == 0 {
		return
	}
	b.held.Add(e.places[0].Tenant, e) // the caller's own string may be part of a large request
	for b.size += e.size(); b.size > b.bound; {
		_, oldest, _ := b.held.RemoveOldest()
		b.size -= oldest.size()
	}
}

// size estimates what an entry takes in memory.
func (e *entry) size() (n int64) {
	for _, p := range e.places {
		n += 400 + int64(len(p.Platform)+2*len(p.Tenant)+len(p.Webhook))
		for _, f := range p.Snapshot.Features {
			n += 80 + int64(len(f.Code)+len(f.Name)+len(f.Value))
		}
	}
	return n
}
