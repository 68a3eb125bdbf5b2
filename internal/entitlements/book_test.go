package entitlements

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/snapshot"
)

// fakeStore is a store for which a test says when it reads its snapshots, and how long that takes.
type fakeStore struct {
	mu      sync.Mutex // guards what follows
	rows    []snapshot.Stored
	queries []string      // the tenant of each
	before  time.Duration // that a query takes before it reads
	after   time.Duration // and after it has read
	err     error
}

func (f *fakeStore) snapshots(ctx context.Context, tenant string) (found []snapshot.Stored, _ error) {
	f.mu.Lock()
	f.queries = append(f.queries, tenant)
	before, after, err := f.before, f.after, f.err
	f.mu.Unlock()
	if err := wait(ctx, before); err != nil {
		return nil, err
	}
	f.mu.Lock()
	for _, s := range f.rows {
		if s.Tenant == tenant {
			found = append(found, s)
		}
	}
	f.mu.Unlock()
	return found, errors.Join(err, wait(ctx, after))
}

func wait(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// set writes a tenant's snapshot, as another replica does; a seq of zero erases it.
func (f *fakeStore) set(platform, tenant string, seq int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rows = slices.DeleteFunc(f.rows, func(s snapshot.Stored) bool { return s.Platform == platform && s.Tenant == tenant })
	if seq > 0 {
		f.rows = append(f.rows, snapshot.Stored{Platform: platform, Tenant: tenant, Seq: seq, Webhook: fmt.Sprint("w", seq),
			Features: fmt.Appendf(nil, `[{"code":"users","limit":%d}]`, seq)})
	}
}

func (f *fakeStore) slow(before, after time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after, f.err = before, after, err
}

// asked returns the queries since the last call.
func (f *fakeStore) asked() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.queries = nil }()
	return strings.Join(f.queries, " | ")
}

// look looks up a tenant and returns the answer in short; the platform "-" stands for none given.
func look(b *Book, tenant, platform string) string {
	p := &platform
	if platform == "-" {
		p = nil
	}
	a, err := b.Lookup(context.Background(), tenant, p)
	var several *AmbiguousError
	f, _ := a.Snapshot.Feature("users")
	switch {
	case errors.As(err, &several):
		return "several: " + strings.Join(several.Platforms, " ")
	case errors.Is(err, ErrUnknown):
		return "unknown"
	case err != nil:
		return "error: " + err.Error()
	case a.Tenant != tenant || int64(f.Limit) != a.Seq || a.Webhook != fmt.Sprint("w", a.Seq):
		return fmt.Sprintf("somebody else's: %+v", a)
	case a.Stale > 0:
		return fmt.Sprintf("%s#%d, stale for %v", a.Platform, a.Seq, a.Stale)
	}
	return fmt.Sprintf("%s#%d", a.Platform, a.Seq)
}

func expect(t *testing.T, b *Book, tenant, want string) {
	t.Helper()
	if got := look(b, tenant, "-"); got != want {
		t.Errorf("%s: %s, want %s", tenant, got, want)
	}
}

func TestPlatforms(t *testing.T) {
	f := new(fakeStore)
	f.set("eu", "acme", 1)
	f.set("", "plain", 2)
	f.set("us", "twice", 3)
	f.set("eu", "twice", 4)
	f.set("", "both", 5)
	f.set("eu", "both", 6)
	f.set("eu/a", "b", 7)
	for _, shared := range []bool{false, true} {
		b := NewBook(f.snapshots, shared)
		for _, tc := range []struct{ tenant, platform, want string }{
			{"nobody", "-", "unknown"},
			{"acme", "-", "eu#1"},
			{"acme", "eu", "eu#1"},
			{"acme", "us", "unknown"},
			{"acme", "", "unknown"},
			{"Acme", "-", "unknown"},
			{"plain", "-", "#2"},
			{"plain", "", "#2"},
			{"plain", "eu", "unknown"},
			{"twice", "-", "several: eu us"},
			{"twice", "us", "us#3"},
			{"twice", "eu", "eu#4"},
			{"twice", "", "unknown"},
			{"both", "-", "several:  eu"},
			{"both", "", "#5"},
			{"a/b", "eu", "unknown"},
			{"b", "eu", "unknown"},
		} {
			for range 2 { // from the store, then from memory
				if got := look(b, tc.tenant, tc.platform); got != tc.want {
					t.Errorf("%s on %s: %s, want %s", tc.tenant, tc.platform, got, tc.want)
				}
			}
		}
	}
}

// If nobody else writes to the store, an entry is used until it changes. An unknown tenant is never held.
func TestHeldUntilItChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := new(fakeStore)
		b := NewBook(f.snapshots, false)
		expect(t, b, "a", "unknown")
		f.set("eu", "a", 1)
		expect(t, b, "a", "eu#1")
		time.Sleep(time.Hour)
		expect(t, b, "a", "eu#1")
		if got := f.asked(); got != "a | a" {
			t.Errorf("asked %s", got)
		}
		f.set("eu", "a", 2)
		b.Changed("a")
		expect(t, b, "a", "eu#2")
		f.set("us", "a", 3) // the same code, on another platform
		b.Changed("a")
		expect(t, b, "a", "several: eu us")
		f.set("eu", "a", 0)
		b.Changed("") // all
		expect(t, b, "a", "us#3")
		f.set("us", "a", 0)
		b.Changed("a")
		expect(t, b, "a", "unknown")
		b.Changed("nobody")
		if b.size != 0 || b.held.Len() != 0 || f.asked() != "a | a | a | a" {
			t.Errorf("%d bytes, %d tenants", b.size, b.held.Len())
		}
	})
}

// All who ask about a tenant while a query for it is under way share its answer, unless it began so long before a
// lookup that another replica may have written since.
func TestOneQueryForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := new(fakeStore)
		f.slow(0, 1500*time.Millisecond, nil)
		f.set("eu", "a", 1)
		b := NewBook(f.snapshots, true)
		var running sync.WaitGroup
		for range 100 {
			running.Go(func() { expect(t, b, "a", "eu#1") })
		}
		time.Sleep(100 * time.Millisecond)
		f.set("eu", "a", 2)
		time.Sleep(freshFor - 200*time.Millisecond)
		running.Go(func() { expect(t, b, "a", "eu#1") })
		time.Sleep(100 * time.Millisecond)
		for range 100 {
			running.Go(func() { expect(t, b, "a", "eu#2") })
		}
		running.Wait()
		if got := f.asked(); got != "a | a" {
			t.Errorf("asked %s", got)
		}
	})
}

// A query that began before a change answers only lookups that began before the change, and its answer is not
// held, whether the query has read the old state or the new one.
func TestChangeDuringAQuery(t *testing.T) {
	for _, tc := range []struct {
		name          string
		to            int64 // the new state; zero: erased
		before, after time.Duration
		first, then   string
	}{
		{"a new one, read before", 2, 0, 100, "eu#1", "eu#2"},
		{"a new one, read after", 2, 100, 0, "eu#2", "eu#2"},
		{"erased, read before", 0, 0, 100, "eu#1", "unknown"},
		{"erased, read after", 0, 100, 0, "unknown", "unknown"},
	} {
		for n := range 8 {
			held, asked, changed := n&1 > 0, n&2 > 0, "a"
			if n&4 > 0 {
				changed = "" // all
			}
			t.Run(fmt.Sprintf("%s, held %t, asked meanwhile %t, changed %q", tc.name, held, asked, changed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := new(fakeStore)
					f.set("eu", "a", 1)
					b := NewBook(f.snapshots, true)
					if held {
						expect(t, b, "a", "eu#1")
						time.Sleep(2 * time.Second)
					}
					f.slow(tc.before, tc.after, nil)
					first := make(chan string)
					go func() { first <- look(b, "a", "-") }()
					time.Sleep(50 * time.Nanosecond)
					f.set("eu", "a", tc.to)
					b.Changed(changed)
					if asked {
						expect(t, b, "a", tc.then) // asked anew, not the query under way
					}
					if got := <-first; got != tc.first {
						t.Errorf("the first is %s, want %s", got, tc.first)
					}
					expect(t, b, "a", tc.then)
				})
			})
		}
	}
}

// While the store fails or hangs, lookups get what is held, marked as stale, or else an error. The first success ends
// this. Another replica may have taken in a tenant's first webhook meanwhile, so nobody is unknown.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := new(fakeStore)
		f.set("eu", "a", 1)
		f.set("eu", "b", 2)
		b := NewBook(f.snapshots, true)
		expect(t, b, "a", "eu#1")
		time.Sleep(time.Minute)
		f.slow(0, 0, errors.New("refused"))
		expect(t, b, "a", "eu#1, stale for 1m0s")
		expect(t, b, "b", "error: the inbox cannot be read: refused")
		if got := look(b, "a", "us"); !strings.HasPrefix(got, "error: ") {
			t.Errorf("on another platform: %s", got)
		}
		f.slow(time.Hour, 0, nil)
		expect(t, b, "a", "eu#1, stale for 1m2s")
		begin := time.Now() // only the first lookup of a tenant that is held waits for a store that hangs
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if got := look(b, "a", "-"); !strings.HasPrefix(got, "eu#1, stale for 1m") {
				t.Error(got)
			}
		}
		if took := time.Since(begin); took != 10*time.Second {
			t.Errorf("100 lookups took %v", took)
		}
		expect(t, b, "b", "error: the inbox cannot be read: context deadline exceeded")
		f.set("eu", "a", 2)
		f.slow(0, 0, nil)
		time.Sleep(time.Minute) // nobody asks, and the store is well again
		expect(t, b, "a", "eu#2")
		f.slow(0, 0, errors.New("refused"))
		f.set("eu", "a", 3)
		b.Changed("a") // what was held is not true any more
		expect(t, b, "a", "error: the inbox cannot be read: refused")
		f.slow(0, 0, nil)
		expect(t, b, "b", "eu#2")
		expect(t, b, "a", "eu#3")
	})
}

// A caller that hangs up waits no longer, and does not fail the others.
func TestCallerHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := new(fakeStore)
		f.set("eu", "a", 1)
		f.slow(time.Second, 0, nil)
		b := NewBook(f.snapshots, false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		begin := time.Now()
		if _, err := b.Lookup(ctx, "a", nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		time.Sleep(time.Second)
		expect(t, b, "a", "eu#1")
		if got := f.asked(); got != "a" {
			t.Errorf("asked %s", got)
		}
	})
}

// The features of a tenant are unknown if they are damaged, and the same code on another
// platform does not answer for it.
func TestDamaged(t *testing.T) {
	f := new(fakeStore)
	f.set("eu", "a", 1)
	f.set("us", "a", 2)
	f.rows[0].Features = []byte("damaged")
	b := NewBook(f.snapshots, false)
	for platform, want := range map[string]string{"-": "several: eu us", "us": "us#2"} {
		if got := look(b, "a", platform); got != want {
			t.Errorf("%s: %s, want %s", platform, got, want)
		}
	}
	eu := "eu"
	if a, err := b.Lookup(context.Background(), "a", &eu); err != nil || a.Snapshot.Known {
		t.Errorf("%+v, %v", a, err)
	}
}

// The least recently used entry goes first. An entry that is larger than the limit is answered, but not held.
func TestBound(t *testing.T) {
	f := new(fakeStore)
	for i, tenant := range []string{"a", "b", "c"} {
		f.set("eu", tenant, int64(i+1))
	}
	b := NewBook(f.snapshots, false)
	expect(t, b, "a", "eu#1")
	b.bound = 2 * b.size
	expect(t, b, "b", "eu#2")
	expect(t, b, "a", "eu#1")
	expect(t, b, "c", "eu#3") // so b goes
	f.asked()
	expect(t, b, "a", "eu#1")
	expect(t, b, "c", "eu#3")
	expect(t, b, "b", "eu#2")
	if got := f.asked(); got != "b" {
		t.Errorf("asked %s", got)
	}
	for n := range 1000 { // nor do unknown tenants push others out
		expect(t, b, fmt.Sprint("unknown", n), "unknown")
	}
	f.asked()
	expect(t, b, "b", "eu#2")
	f.set("eu", "large", 9)
	f.rows[len(f.rows)-1].Features = fmt.Appendf(nil, `[{"code":"users","limit":9},{"code":"%s","limit":0}]`, strings.Repeat("x", 10_000))
	expect(t, b, "large", "eu#9")
	expect(t, b, "large", "eu#9")
	if got := f.asked(); got != "large | large" || b.size != 0 || b.held.Len() != 0 {
		t.Errorf("asked %s, %d bytes of %d tenants are held", got, b.size, b.held.Len())
	}
}

// Random changes, by this replica and by another one, random lookups, and a store that is slow, fails and
// hangs: no answer is older than a change of this replica before the lookup began; none that is not marked as
// stale is older than a change of another replica one second before; and none is about another tenant.
func TestNeverOlder(t *testing.T) {
	for seed := range uint64(15) {
		for _, shared := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) { neverOlder(t, rand.New(rand.NewPCG(seed, 0)), shared) })
			if t.Failed() {
				t.Fatalf("seed %d, shared %t", seed, shared)
			}
		}
	}
}

// change is a change of a tenant on a platform.
type change struct {
	at     time.Time // of the commit
	seq    int64     // zero: erased
	remote bool
	done   time.Time // when it was said that it is done; zero: not yet
}

func neverOlder(t *testing.T, rng *rand.Rand, shared bool) {
	var mu sync.Mutex // guards rng and what follows
	between := func(from, to time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return from + time.Duration(rng.Int64N(int64(to-from)+1))
	}
	type lane struct{ platform, tenant string }
	lanes := []lane{{"eu", "a"}, {"us", "a"}, {"eu", "b"}, {"", "b"}, {"eu", "c"}}
	history := make(map[lane][]*change)
	for _, l := range lanes {
		history[l] = []*change{{at: time.Now().Add(-time.Hour), done: time.Now().Add(-time.Hour)}}
	}
	f := new(fakeStore)
	b := NewBook(f.snapshots, shared)
	b.bound = 1500 // two or three tenants
	failures := 0
	end := time.Now().Add(time.Minute)
	var running sync.WaitGroup

	running.Go(func() { // the store's moods
		for time.Now().Before(end) {
			mood := between(0, 5)
			if mu.Lock(); mood < 2 {
				failures++
			}
			mu.Unlock()
			switch mood {
			case 0:
				f.slow(between(0, time.Second), between(0, time.Second), errors.New("refused"))
			case 1:
				f.slow(between(0, 5*time.Second), between(0, 5*time.Second), nil)
			default:
				f.slow(between(0, 100*time.Millisecond), between(0, 100*time.Millisecond), nil)
			}
			time.Sleep(between(0, 5*time.Second))
		}
	})
	seq := int64(0)
	for _, l := range lanes { // one writer at a time for each, as in an inbox
		for _, remote := range []bool{false, true} {
			if remote && !shared {
				continue
			}
			running.Go(func() {
				for time.Now().Before(end) {
					time.Sleep(between(0, 3*time.Second))
					erase := between(0, 4) == 0
					mu.Lock()
					c := &change{at: time.Now(), remote: remote}
					if seq++; !erase {
						c.seq = seq
					}
					history[l] = append(history[l], c)
					f.set(l.platform, l.tenant, c.seq)
					mu.Unlock()
					if between(0, 1) == 0 {
						time.Sleep(between(0, 200*time.Millisecond))
					}
					if !remote {
						b.Changed(l.tenant)
					}
					mu.Lock()
					c.done = time.Now()
					mu.Unlock()
				}
			})
		}
	}
	// allowed reports whether a lookup that began at this time may get this answer. mu is held.
	allowed := func(l lane, began time.Time, seq int64, stale bool) bool {
		all := history[l]
		for i := len(all) - 1; i >= 0; i-- {
			c := all[i]
			if c.seq == seq {
				return true
			}
			here := !c.remote && !c.done.IsZero() && c.done.Before(began)
			elsewhere := !stale && !c.at.After(began.Add(-freshFor))
			if here || elsewhere {
				return false // this one must be seen, or a newer one
			}
		}
		return false
	}
	for range 8 {
		running.Go(func() {
			for time.Now().Before(end) {
				time.Sleep(between(0, 500*time.Millisecond))
				l := lanes[between(0, time.Duration(len(lanes)-1))]
				began := time.Now()
				platform, named := &l.platform, between(0, 1) == 0
				if !named {
					platform = nil
				}
				a, err := b.Lookup(context.Background(), l.tenant, platform)
				mu.Lock()
				switch several := new(AmbiguousError); {
				case errors.As(err, &several):
					if named || len(several.Platforms) != 2 {
						t.Errorf("%v: %v", l, err)
					}
				case errors.Is(err, ErrUnknown):
					for _, other := range lanes {
						if (other == l || !named && other.tenant == l.tenant) && !allowed(other, began, 0, false) {
							t.Errorf("%v is unknown", other)
						}
					}
				case err != nil: // the store fails: it must have done so
					if failures == 0 {
						t.Error(err)
					}
				default:
					if found := (lane{a.Platform, a.Tenant}); named && found != l || a.Tenant != l.tenant || !allowed(found, began, a.Seq, a.Stale > 0) {
						t.Errorf("%v: %+v", l, a)
					}
					if f, _ := a.Snapshot.Feature("users"); int64(f.Limit) != a.Seq || a.Stale > 0 && (!shared || a.Stale < freshFor) {
						t.Errorf("%v: %+v", l, a)
					}
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.held.Values() {
		b.size -= e.size()
	}
	if b.size != 0 || len(b.queries) > 0 {
		t.Errorf("%d bytes, %v", b.size, b.queries)
	}
}
