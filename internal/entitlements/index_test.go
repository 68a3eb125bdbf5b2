package entitlements

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// find asks for a tenant; "-" is for no platform named.
func find(x *Index, tenant, platform string) string {
	p := &platform
	if platform == "-" {
		p = nil
	}
	e, held, err := x.Find(tenant, p)
	var several *AmbiguousError
	switch {
	case errors.As(err, &several):
		return "several: " + strings.Join(several.Platforms, " ")
	case errors.Is(err, ErrUnknown):
		return "unknown"
	case err != nil:
		return err.Error()
	case e.Tenant != tenant || platform != "-" && e.Platform != platform:
		return fmt.Sprintf("somebody else's: %+v", e)
	case !held:
		return fmt.Sprintf("not held %s#%d", e.Platform, e.Seq)
	}
	return fmt.Sprintf("%s#%d", e.Platform, e.Seq)
}

func TestIndex(t *testing.T) {
	s := listing(t, `{"code":"users"}`)
	put := func(platform, tenant string, seq uint64) func(*Index) {
		return func(x *Index) { x.Put(Entry{Platform: platform, Tenant: tenant, Snapshot: s, Seq: seq}) }
	}
	drop := func(platform, tenant string, upTo uint64) func(*Index) {
		return func(x *Index) { x.Drop(platform, tenant, upTo) }
	}
	know := func(platform, tenant string, seq uint64) func(*Index) {
		return func(x *Index) { x.Know(platform, tenant, seq) }
	}
	for _, tc := range []struct {
		name             string
		do               []func(*Index)
		tenant, platform string
		want             string
		len              int
	}{
		{"nothing", nil, "acme", "-", "unknown", 0},
		{"one", []func(*Index){put("eu", "acme", 1)}, "acme", "-", "eu#1", 1},
		{"one, by its platform", []func(*Index){put("eu", "acme", 1)}, "acme", "eu", "eu#1", 1},
		{"one, by another platform", []func(*Index){put("eu", "acme", 1)}, "acme", "us", "unknown", 1},
		{"one, by none", []func(*Index){put("eu", "acme", 1)}, "acme", "", "unknown", 1},
		{"one without a platform", []func(*Index){put("", "acme", 1)}, "acme", "-", "#1", 1},
		{"one without a platform, by none", []func(*Index){put("", "acme", 1)}, "acme", "", "#1", 1},
		{"codes count letter by letter", []func(*Index){put("eu", "acme", 1)}, "Acme", "-", "unknown", 1},
		{"no key made of two can be confused", []func(*Index){put("eu/a", "b", 1)}, "a/b", "eu", "unknown", 1},
		{"two platforms", []func(*Index){put("us", "acme", 1), put("eu", "acme", 2)}, "acme", "-", "several: eu us", 2},
		{"two platforms, one named", []func(*Index){put("us", "acme", 1), put("eu", "acme", 2)}, "acme", "us", "us#1", 2},
		{"one of them is none", []func(*Index){put("", "acme", 1), put("eu", "acme", 2)}, "acme", "-", "several:  eu", 2},
		{"one of them is none, and meant", []func(*Index){put("", "acme", 1), put("eu", "acme", 2)}, "acme", "", "#1", 2},
		{"newer", []func(*Index){put("eu", "acme", 1), put("eu", "acme", 5)}, "acme", "-", "eu#5", 1},
		{"older, late", []func(*Index){put("eu", "acme", 5), put("eu", "acme", 1)}, "acme", "-", "eu#5", 1},
		{"dropped", []func(*Index){put("eu", "acme", 1), drop("eu", "acme", 1)}, "acme", "-", "unknown", 0},
		{"dropped, and newer came first", []func(*Index){put("eu", "acme", 3), drop("eu", "acme", 2)}, "acme", "-", "eu#3", 1},
		{"dropped and back", []func(*Index){put("eu", "acme", 1), drop("eu", "acme", 2), put("eu", "acme", 3)}, "acme", "-", "eu#3", 1},
		{"dropped, and told late", []func(*Index){put("eu", "acme", 1), drop("eu", "acme", 3), put("eu", "acme", 2)}, "acme", "-", "unknown", 0},
		{"dropped, and known late", []func(*Index){put("eu", "acme", 1), drop("eu", "acme", 3), know("eu", "acme", 2)}, "acme", "-", "unknown", 0},
		{"dropped before it was known, and told late", []func(*Index){drop("eu", "acme", 3), put("eu", "acme", 2)}, "acme", "-", "unknown", 0},
		{"dropped before it was known, and back", []func(*Index){drop("eu", "acme", 3), drop("eu", "acme", 1), know("eu", "acme", 2), put("eu", "acme", 4)}, "acme", "-", "eu#4", 1},
		{"dropped, back, and told late", []func(*Index){put("eu", "acme", 1), drop("eu", "acme", 3), put("eu", "acme", 4), put("eu", "acme", 2)}, "acme", "-", "eu#4", 1},
		{"dropped, and known again", []func(*Index){put("eu", "acme", 1), drop("eu", "acme", 3), know("eu", "acme", 4)}, "acme", "-", "not held eu#4", 1},
		{"one of two dropped", []func(*Index){put("us", "acme", 1), put("eu", "acme", 2), drop("eu", "acme", 9)}, "acme", "-", "us#1", 1},
		{"another dropped", []func(*Index){put("eu", "acme", 1), drop("us", "acme", 9), drop("eu", "other", 9)}, "acme", "-", "eu#1", 1},
		{"restored, but never there", []func(*Index){func(x *Index) { x.Restore(Entry{Platform: "eu", Tenant: "acme"}) }}, "acme", "-", "unknown", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, bound := range []int64{0, 1 << 20} {
				x := NewIndex(bound)
				for _, do := range tc.do {
					do(x)
				}
				if got := find(x, tc.tenant, tc.platform); got != tc.want || x.Len() != tc.len {
					t.Errorf("bound %d: %s, %d tenants; want %s, %d", bound, got, x.Len(), tc.want, tc.len)
				}
			}
		})
	}
}

// With a bound, whose snapshot is not held is still known: as a tenant, and as one of
// two of the same code.
func TestBoundedIndex(t *testing.T) {
	s := listing(t, `{"code":"users"}`)
	entry := func(platform, tenant string, seq uint64) Entry {
		return Entry{Platform: platform, Tenant: tenant, Snapshot: s, Seq: seq, Webhook: "w", AsOf: time.Unix(1, 0)}
	}
	x := NewIndex(3 * s.size())
	expect := func(tenant, platform, want string) {
		t.Helper()
		if got := find(x, tenant, platform); got != want {
			t.Errorf("%s: %s, want %s", tenant, got, want)
		}
		if x.size > x.bound {
			t.Errorf("%d bytes are held", x.size)
		}
	}
	x.Put(entry("eu", "a", 1))
	x.Put(entry("us", "a", 2))
	x.Put(entry("eu", "b", 3))
	expect("a", "eu", "eu#1") // so that us is the one that goes
	x.Put(entry("eu", "c", 4))
	expect("a", "-", "several: eu us")
	expect("a", "us", "not held us#2")

	x.Restore(entry("us", "a", 1)) // an older one, read from a server that is behind
	expect("a", "us", "not held us#2")
	x.Restore(entry("us", "a", 2))
	expect("a", "us", "us#2")
	x.Restore(entry("us", "a", 5)) // another replica's, of which this one was not told yet
	expect("a", "us", "us#5")
	expect("b", "-", "not held eu#3")

	// It was read, and then dropped, or replaced, before it was restored.
	x.Drop("eu", "b", 9)
	x.Restore(entry("eu", "b", 3))
	expect("b", "-", "unknown")
	x.Put(entry("eu", "b", 10))
	x.Restore(entry("eu", "b", 3))
	expect("b", "-", "eu#10")

	var large []string
	for i := range 1000 {
		large = append(large, fmt.Sprintf(`{"code":"f%d"}`, i))
	}
	x.Put(Entry{Tenant: "large", Snapshot: listing(t, large...), Seq: 11}) // more than fits alone
	expect("large", "-", "not held #11")
	if x.Len() != 5 || x.size != 0 || x.recent.Len() != 0 {
		t.Errorf("%d tenants, %d bytes, %d snapshots", x.Len(), x.size, x.recent.Len())
	}
	x.Put(entry("eu", "b", 12))
	expect("b", "-", "eu#12")
}

func TestIndexConcurrently(t *testing.T) {
	s := listing(t, `{"code":"users"}`)
	for _, bound := range []int64{0, 5 * s.size()} {
		x := NewIndex(bound)
		var running sync.WaitGroup
		for g := range uint64(4) {
			running.Go(func() {
				for i := range uint64(2000) {
					tenant := fmt.Sprint("t", rand.N(10))
					e := Entry{Platform: "eu", Tenant: tenant, Snapshot: s, Seq: i*4 + g}
					switch rand.N(4) {
					case 0:
						x.Put(e)
					case 1:
						x.Drop("eu", tenant, i*4)
					case 2:
						x.Restore(e)
					}
					got, held, err := x.Find(tenant, nil)
					if err == nil && (got.Tenant != tenant || held != got.Snapshot.Known()) {
						t.Errorf("%+v", got)
					}
				}
			})
		}
		running.Wait()
		if x.Len() > 10 || x.size > bound || x.size < 0 {
			t.Errorf("%d tenants, %d bytes", x.Len(), x.size)
		}
	}
}

// What tenants with 20 features each take: 1,200 bytes at most, so 120 MB for 100,000.
// Each has its own choice of features, its own limits, and here and there a value of
// its own.
func TestMemory(t *testing.T) {
	const tenants, features, aim = 20_000, 20, 20_000 * 1200
	before := heap()
	x := NewIndex(0)
	for i := range tenants {
		x.Put(Entry{
			Platform: string([]byte("eu")), Tenant: fmt.Sprintf("tenant-%06d", i), Seq: uint64(i), AsOf: time.Now(),
			Webhook:  fmt.Sprintf("0199a1b2-c3d4-7e5f-8a9b-%012d", i),
			Snapshot: FromValue(wide(i, features)),
		})
	}
	took := heap() - before
	t.Logf("a tenant of %d features takes %d bytes", features, took/tenants)
	if took > aim {
		t.Errorf("%d bytes; the aim is %d", took, aim)
	}
	if e, _, err := x.Find("tenant-012345", nil); err != nil || len(slices.Collect(e.Snapshot.Features())) != features {
		t.Errorf("%+v, %v", e, err)
	}
}

// wide is a webhook that lists so many out of a catalogue of 60 features.
func wide(seed, features int) any {
	list := make([]any, 0, features)
	for i := range features {
		n := (seed*7 + i*3) % 60
		f := map[string]any{"code": fmt.Sprintf("feature-%02d-code", n), "name": fmt.Sprintf("The feature number %02d", n), "quantity": nil}
		if i%2 == 0 {
			f["quantity"] = json.Number(fmt.Sprint(seed % 5000))
		}
		if i%5 == 0 {
			f["value"] = fmt.Sprintf("value-%d", seed)
		}
		list = append(list, f)
	}
	return map[string]any{"payload": map[string]any{"change": map[string]any{"features": list}}}
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // interned names go a cycle later
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// After a reset lower numbers count, of what was dropped too.
func TestReset(t *testing.T) {
	s := listing(t, `{"code":"users"}`)
	for _, bound := range []int64{0, 1 << 20} {
		x := NewIndex(bound)
		x.Put(Entry{Platform: "eu", Tenant: "a", Snapshot: s, Seq: 5})
		x.Put(Entry{Platform: "eu", Tenant: "b", Snapshot: s, Seq: 6})
		x.Drop("eu", "b", 7)
		x.Reset()
		if got := find(x, "a", "-"); got != "unknown" || x.Len() != 0 || x.size != 0 {
			t.Errorf("%s, %d tenants, %d bytes", got, x.Len(), x.size)
		}
		x.Put(Entry{Platform: "eu", Tenant: "a", Snapshot: s, Seq: 2})
		x.Put(Entry{Platform: "eu", Tenant: "b", Snapshot: s, Seq: 3})
		if a, b := find(x, "a", "-"), find(x, "b", "-"); a != "eu#2" || b != "eu#3" {
			t.Error(a, b)
		}
	}
}
