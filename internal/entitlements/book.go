package entitlements

import (
	"context"
	"errors"
	"fmt"
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
	// freshFor is how long an answer of a store that others write to, too, is used without asking again. With the time
	// of a query it is less than the second in which other replicas follow.
	freshFor = 900 * time.Millisecond
	// queryPatience is how long the store may take to answer.
	queryPatience = 2 * time.Second
	// hangFor is how long a store counts as one that hangs after a query has waited in vain. The query that a lookup
	// begins meanwhile ends within that time, too.
	hangFor = queryPatience + time.Second
)

// A Book looks up what tenants may use. It holds what was asked for recently, and asks the store for the rest: one
// query for all who ask about the same tenant, and about all platforms that have its code. What it holds counts until
// Changed says otherwise or, if other replicas write to the store, for freshFor. While the store fails, what is held is
// still answered, and marked as stale.
type Book struct {
	snapshots func(ctx context.Context, tenant string) ([]snapshot.Stored, error)
	shared    bool
	bound     int64

	mu      sync.Mutex                     // guards what follows
	held    *simplelru.LRU[string, *entry] // by the tenant's code
	size    int64                          // of held
	hung    time.Time                      // when a query waited in vain; zero: one has succeeded since
	queries map[string]*query              // under way, by the tenant's code, without those that Changed has removed
}

// An entry is what the store said about a tenant's code. It does not change.
type entry struct {
	places []Answer  // one for each platform that has the code, nearly always one
	asked  time.Time // when the query began
}

// A query asks the store about one tenant's code.
type query struct {
	asked time.Time
	done  chan struct{} // closed at its end
	found *entry        // valid after done, as is err
	err   error
}

// NewBook returns a Book that holds nothing yet. snapshots is the store: it returns the last snapshots of a tenant's
// code on all platforms, and soon after its context ends. shared says that others write to the same store, or that a
// commit in doubt may still become visible later.
func NewBook(snapshots func(ctx context.Context, tenant string) ([]snapshot.Stored, error), shared bool) *Book {
	// It fails only for a size of 0. Its own bound is a number of entries.
	held, _ := simplelru.NewLRU[string, *entry](math.MaxInt, nil)
	return &Book{snapshots: snapshots, shared: shared, bound: bookBytes, held: held, queries: make(map[string]*query)}
}

// Changed says that what the store has of a tenant's code has changed, or may have: a snapshot was taken in or erased,
// or a commit is in doubt. The empty code stands for all tenants. The store calls it after the commit, and before it
// says that the change is done: from then on the Book answers by it. A query that is under way may have read the former
// state: later lookups do not wait for it, and what it finds is not held.
func (b *Book) Changed(tenant string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if tenant != "" {
		b.drop(tenant)
		delete(b.queries, tenant)
		return
	}
	b.held.Purge()
	b.size = 0
	clear(b.queries)
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

// find returns what is known of a tenant's code, from what is held or from the store; stale is its age if the store
// cannot be read.
func (b *Book) find(ctx context.Context, tenant string) (_ *entry, stale time.Duration, _ error) {
	for begin := time.Now(); ; {
		b.mu.Lock()
		e, _ := b.held.Get(tenant)
		if b.isCurrent(e) {
			b.mu.Unlock()
			return e, 0, nil
		}
		q, hangs := b.ask(tenant), time.Since(b.hung) < hangFor
		b.mu.Unlock()
		if hangs && e != nil {
			return e, clock.Since(e.asked), nil
		}
		select {
		case <-q.done:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
		switch {
		case q.err != nil:
			return b.stale(tenant, q.err)
		case !b.shared || begin.Sub(q.asked) < freshFor:
			return q.found, 0, nil
		}
		// The query was slow, and began long before this lookup did: another replica may have written since.
	}
}

// stale returns what is held of a tenant's code after the store could not be read.
func (b *Book) stale(tenant string, err error) (*entry, time.Duration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.held.Get(tenant)
	switch {
	case !ok:
		return nil, 0, fmt.Errorf("the inbox cannot be read: %w", err)
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

// ask returns the query for a tenant that is under way, or begins one. b.mu is held.
func (b *Book) ask(tenant string) *query {
	q := b.queries[tenant]
	if q == nil {
		q = &query{asked: time.Now(), done: make(chan struct{})}
		b.queries[tenant] = q
		go b.run(q, tenant)
	}
	return q
}

// run asks the store. It does not use the context of a caller: if one hangs up, the others still want the answer.
func (b *Book) run(q *query, tenant string) {
	defer close(q.done)
	ctx, cancel := context.WithTimeout(context.Background(), queryPatience)
	defer cancel()
	stored, err := b.snapshots(ctx, tenant)
	q.found, q.err = &entry{asked: q.asked}, err
	for _, s := range stored {
		features, _ := snapshot.Decode(s.Features) // damaged ones are unknown
		s.Name, s.Features = "", nil
		q.found.places = append(q.found.places, Answer{Stored: s, Snapshot: features})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.hung = time.Time{}
	} else if ctx.Err() != nil {
		b.hung = time.Now()
	}
	if b.queries[tenant] != q {
		return // Changed has removed it
	}
	delete(b.queries, tenant)
	if err == nil {
		b.drop(tenant)
		b.hold(q.found)
	}
}

// Held returns how many tenants' codes the Book holds.
func (b *Book) Held() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held.Len()
}

// drop removes what is held of a tenant's code. b.mu is held.
func (b *Book) drop(tenant string) {
	if old, ok := b.held.Peek(tenant); ok {
		b.size -= old.size()
		b.held.Remove(tenant)
	}
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
