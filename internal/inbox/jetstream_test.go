package inbox

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"usher/webhookgate"
)

// replicas runs test in a bubble with a server and n replicas, all of which deliver
// to r.
func replicas(t *testing.T, n int, r *receiver, test func(t *testing.T, replicas []*running, wires []*wire)) {
	synctest.Test(t, func(t *testing.T) {
		server := newBubbleServer()
		defer server.end()
		var all []*running
		var wires []*wire
		for range n {
			w := &wire{server: server, delay: time.Millisecond}
			wires = append(wires, w)
			all = append(all, open(t, shared(config("", r), w)))
		}
		for _, replica := range all {
			waitReady(replica)
		}
		test(t, all, wires)
		for n, replica := range all {
			wires[n].mend()
			replica.stop()
		}
	})
}

func waitReady(r *running) {
	for r.Err() != nil {
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *running) mustKeep(tenant, snapshot string) (duplicate bool) {
	r.t.Helper()
	original, err := r.Keep(webhook(tenant, snapshot))
	if err != nil {
		r.t.Fatal(err)
	}
	return original != ""
}

func TestSharedInboxIsOneForAllReplicas(t *testing.T) {
	r := new(receiver)
	replicas(t, 3, r, func(t *testing.T, replicas []*running, _ []*wire) {
		for n, step := range []struct {
			replica  int
			snapshot string
			copy     bool
		}{{0, "A", false}, {1, "A", true}, {1, "B", false}, {0, "A", false}, {2, "A", true}, {2, "B", false}} {
			if got := replicas[step.replica].mustKeep("acme", step.snapshot); got != step.copy {
				t.Errorf("step %d: duplicate %v", n, got)
			}
		}
		time.Sleep(time.Minute)
		if got := r.accepted(); !slices.Equal(got, []string{"acme:A", "acme:B", "acme:A", "acme:B"}) {
			t.Errorf("delivered %q", got)
		}
		time.Sleep(10 * time.Minute)
		if replicas[0].mustKeep("acme", "B") {
			t.Error("dropped after the window")
		}
		time.Sleep(time.Second)
		for n, replica := range replicas {
			entries, err := replica.List(Filter{})
			if err != nil || len(entries) != 5 {
				t.Errorf("replica %d lists %d: %v", n, len(entries), err)
			}
		}
	})
}

// delivering returns the replica that delivers.
func delivering(t *testing.T, replicas []*running) int {
	t.Helper()
	for range 100 {
		for n, r := range replicas {
			if r.store.(*jetStore).leading() {
				return n
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("nobody delivers")
	return 0
}

// What is known of a webhook is known to whoever takes over: its tries, that it is
// parked, that it was superseded; and it is not delivered twice for it.
func TestTakeoverKnowsAll(t *testing.T) {
	r := new(receiver)
	r.set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
		switch w.Lane.Tenant {
		case "refused":
			return webhookgate.Attempt{Status: 422}
		case "failing":
			return webhookgate.Attempt{Status: 500}
		}
		return webhookgate.Attempt{Status: 200}
	})
	replicas(t, 2, r, func(t *testing.T, replicas []*running, wires []*wire) {
		for n, tenant := range []string{"refused", "failing", "fine", "failing"} {
			replicas[n%2].mustKeep(tenant, fmt.Sprint(n))
		}
		time.Sleep(2 * time.Second)
		first := delivering(t, replicas)
		before := standing(t, replicas[first])
		wires[first].sever()
		time.Sleep(8 * time.Second)
		second := 1 - first
		if got := delivering(t, replicas); got != second {
			t.Fatalf("replica %d delivers, which is cut off", got)
		}
		after := standing(t, replicas[second])
		for id, e := range before {
			now := after[id]
			if now.State != e.State || now.Tries < e.Tries || len(now.Attempts) < len(e.Attempts) {
				t.Errorf("before: %+v\nafter: %+v", e, now)
			}
		}
		if s := replicas[second].Stats(); s.Pending != 2 || s.Parked != 1 {
			t.Errorf("%+v", s)
		}
		wires[first].mend()
		r.set(nil)
		time.Sleep(10 * time.Minute)
		if got := r.accepted(); !slices.Equal(got, []string{"fine:2", "failing:1", "failing:3"}) {
			t.Errorf("delivered %q", got)
		}
		// Sent again through the one that does not deliver.
		for id, e := range standing(t, replicas[0]) {
			if e.State == Parked {
				if err := replicas[1-delivering(t, replicas)].Redeliver(id, false); err != nil {
					t.Error(err)
				}
			}
		}
		time.Sleep(time.Second)
		if got := r.accepted(); len(got) != 4 || got[3] != "refused:0" {
			t.Errorf("delivered %q", got)
		}
	})
}

func standing(t *testing.T, r *running) map[uint64]Entry {
	t.Helper()
	entries, err := r.List(Filter{})
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[uint64]Entry)
	for _, e := range entries {
		out[e.ID] = e
	}
	return out
}

var long = flag.Bool("long", false, "more of the same where a test can take longer")

// A thousand lanes in backoff with all that waits behind them hold up no other.
func TestManyWaitAndOthersPass(t *testing.T) {
	lanes, each := 1000, 10
	if *long {
		each = 100
	}
	r := new(receiver)
	r.set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
		if w.Lane.Tenant == "other" {
			return webhookgate.Attempt{Status: 200}
		}
		return webhookgate.Attempt{Status: 500}
	})
	replicas(t, 2, r, func(t *testing.T, replicas []*running, wires []*wire) {
		var sending sync.WaitGroup
		for lane := range lanes {
			sending.Go(func() {
				for n := range each {
					replicas[n%2].mustKeep(fmt.Sprint("t", lane), fmt.Sprint(n))
				}
			})
		}
		sending.Wait()
		replicas[0].mustKeep("other", "A")
		time.Sleep(time.Second)
		if got := r.accepted(); !slices.Equal(got, []string{"other:A"}) {
			t.Errorf("delivered %q", got)
		}
		if s := replicas[1].Stats(); s.Pending != lanes*each {
			t.Errorf("%+v", s)
		}
		// Nor after a takeover.
		wires[delivering(t, replicas)].sever()
		time.Sleep(8 * time.Second)
		replicas[delivering(t, replicas)].mustKeep("other", "B")
		time.Sleep(time.Second)
		if got := r.accepted(); !slices.Equal(got, []string{"other:A", "other:B"}) {
			t.Errorf("delivered %q", got)
		}
	})
}

// A webhook may be as large as a message of the servers, which is then one too many
// bytes; and it comes out as it went in.
func TestLargeWebhook(t *testing.T) {
	r := new(receiver)
	replicas(t, 1, r, func(t *testing.T, replicas []*running, _ []*wire) {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(' ' + rand.IntN('~'-' '+1)) // nothing in it to be left out
		}
		large := string(b)
		replicas[0].mustKeep("acme", large)
		time.Sleep(time.Second)
		if got := r.accepted(); len(got) != 1 || got[0] != "acme:"+large {
			t.Errorf("%d deliveries", len(got))
		}
		entries, err := replicas[0].List(Filter{})
		if err != nil {
			t.Fatal(err)
		}
		if item, err := replicas[0].Show(entries[0].ID); err != nil || string(item.Body) != large {
			t.Errorf("shown otherwise: %v", err)
		}
	})
}

// What is finished goes, oldest first, and what is not stays, wherever it stands.
func TestSharedHistoryIsBounded(t *testing.T) {
	r := new(receiver)
	r.set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
		if string(w.Body) == "bad" {
			return webhookgate.Attempt{Status: 422}
		}
		return webhookgate.Attempt{Status: 200}
	})
	replicas(t, 2, r, func(t *testing.T, replicas []*running, _ []*wire) {
		replicas[0].mustKeep("t0", "first")
		replicas[0].mustKeep("parked", "bad")
		total := keepCount + keepCount/5
		var sending sync.WaitGroup
		for s := range 50 {
			sending.Go(func() {
				for n := range total / 50 {
					replicas[s%2].mustKeep(fmt.Sprint("t", s), fmt.Sprint(n))
				}
			})
		}
		sending.Wait()
		time.Sleep(10 * time.Second)
		s := replicas[0].store.(*jetStore)
		info, err := s.stream().Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// Each finished record and its status, the one that is parked, and the lease.
		if most := uint64(2*(keepCount+keepCount/10) + 100); info.State.Msgs > most || info.State.Msgs < 2*keepCount {
			t.Errorf("%d messages in the stream", info.State.Msgs)
		}
		for n, replica := range replicas {
			entries := standing(t, replica)
			if len(entries) > keepCount+keepCount/10+1 || len(entries) < keepCount {
				t.Errorf("replica %d has %d", n, len(entries))
			}
			parked := 0
			for _, e := range entries {
				if e.State == Parked {
					parked++
				}
			}
			if parked != 1 {
				t.Errorf("replica %d has %d parked", n, parked)
			}
		}
		// Nothing that waited or is parked is lost for who starts now, and lanes whose
		// records are gone take webhooks in.
		replicas[0].mustKeep("t0", "first")
		if item, err := replicas[1].Show(parkedID(t, replicas[1])); err != nil || string(item.Body) != "bad" {
			t.Errorf("%v %v", item, err)
		}
	})
}

// So does what is noted of copies, though the record before them stays.
func TestSharedCopiesAreBounded(t *testing.T) {
	r := new(receiver)
	replicas(t, 2, r, func(t *testing.T, replicas []*running, _ []*wire) {
		const tenants = 50
		total := keepCount + keepCount/5
		replicas[0].mustKeep("quiet", "A")
		replicas[0].mustKeep("quiet", "A")
		var sending sync.WaitGroup
		for s := range tenants {
			replicas[s%2].mustKeep(fmt.Sprint("t", s), "A")
			sending.Go(func() {
				for range total / tenants {
					if !replicas[s%2].mustKeep(fmt.Sprint("t", s), "A") {
						t.Errorf("t%d: a copy was taken in", s)
					}
				}
			})
		}
		sending.Wait()
		time.Sleep(2 * time.Minute)
		info, err := replicas[0].store.(*jetStore).stream().Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if most := uint64(keepCount + keepCount/10 + 2*tenants + 100); info.State.Msgs > most || info.State.Msgs < keepCount {
			t.Errorf("%d messages in the stream", info.State.Msgs)
		}
		// A lane that no longer ends where it did still knows what a copy is, and takes in
		// what is none.
		if !replicas[1].mustKeep("quiet", "A") || replicas[0].mustKeep("quiet", "B") || replicas[1].mustKeep("quiet", "A") {
			t.Error("a copy was taken in, or what is none was not")
		}
		time.Sleep(time.Minute)
		if got := r.accepted(); len(got) != tenants+3 {
			t.Errorf("%d deliveries", len(got))
		}
	})
}

func parkedID(t *testing.T, r *running) uint64 {
	t.Helper()
	entries, err := r.List(Filter{State: Parked})
	if err != nil || len(entries) != 1 {
		t.Fatalf("%d parked: %v", len(entries), err)
	}
	return entries[0].ID
}
