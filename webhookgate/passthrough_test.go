package webhookgate

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestTwentyCopiesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := &counting{takes: time.Second}
		g := newGate(t, func(c *setup) { c.Transport = receiver })
		var wg sync.WaitGroup
		var mu sync.Mutex
		told := make(map[string]int)
		ids := make(map[string]bool)
		for range 20 {
			wg.Go(func() {
				got := post(t, g, documented)
				mu.Lock()
				defer mu.Unlock()
				told[fmt.Sprint(got.Code, " ", got.Decision)]++
				ids[got.Webhook] = true
			})
		}
		wg.Wait()
		if told["200 forwarded"] != 1 || told["200 duplicate"] != 19 || receiver.count() != 1 || len(ids) != 1 {
			t.Errorf("told %v about %d webhooks, delivered %d", told, len(ids), receiver.count())
		}
	})
}

func TestCopiesShareTheFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deliveries := 0
		g := newGate(t, func(c *setup) {
			c.Transport = roundTrip(func(*http.Request) (*http.Response, error) {
				deliveries++
				time.Sleep(time.Second)
				return respond(409, "no such plan"), nil
			})
		})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				got := post(t, g, documented)
				if got.Code != 502 || got.Receiver == nil || got.Receiver.Status != 409 || strings.Contains(got.Body.String(), "no such plan") {
					t.Errorf("got %v", got)
				}
			})
		}
		wg.Wait()
		if deliveries != 1 {
			t.Errorf("%d deliveries", deliveries)
		}
		post(t, g, documented)
		if deliveries != 2 {
			t.Errorf("a failure was remembered")
		}
	})
}

// lockstep sends snapshots of one tenant one after the other without waiting
// for the answers, and returns the decisions.
func lockstep(t *testing.T, g *Gate, names string) []string {
	var wg sync.WaitGroup
	decisions := make([]string, len(names))
	for i, name := range names {
		wg.Go(func() { decisions[i] = post(t, g, snapshotOf("acme", string(name))).Decision })
		synctest.Wait()
	}
	wg.Wait()
	return decisions
}

func TestOnlyTheTailIsShared(t *testing.T) {
	for names, want := range map[string]string{
		"ABA":   "[forwarded forwarded forwarded]",
		"AA":    "[forwarded duplicate]",
		"ABB":   "[forwarded forwarded duplicate]",
		"ABAAB": "[forwarded forwarded forwarded duplicate forwarded]",
	} {
		synctest.Test(t, func(t *testing.T) {
			receiver := &counting{takes: time.Second}
			g := newGate(t, func(c *setup) { c.Transport = receiver })
			if got := fmt.Sprint(lockstep(t, g, names)); got != want {
				t.Errorf("%s: got %v, want %v", names, got, want)
			}
			if n := strings.Count(want, "forwarded"); receiver.count() != n {
				t.Errorf("%s: %d deliveries, want %d", names, receiver.count(), n)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	const window = 10 * time.Minute
	type step struct {
		after    time.Duration
		tenant   string
		name     string
		receiver string // ok unless said
		want     string
	}
	for name, steps := range map[string][]step{
		"a copy": {
			{0, "acme", "A", "", forwarded}, {time.Minute, "acme", "A", "", duplicate}},
		"there and back": {
			{0, "acme", "A", "", forwarded}, {0, "acme", "B", "", forwarded}, {0, "acme", "A", "", forwarded}},
		"the window does not slide": {
			{0, "acme", "A", "", forwarded}, {window - time.Second, "acme", "A", "", duplicate}, {time.Second, "acme", "A", "", forwarded}},
		"a failed change may have arrived": {
			{0, "acme", "A", "", forwarded}, {0, "acme", "B", "400", failed}, {0, "acme", "A", "", forwarded}},
		"a timeout may have arrived": {
			{0, "acme", "A", "", forwarded}, {0, "acme", "B", "timeout", failed}, {0, "acme", "A", "", forwarded}},
		"a failure is not remembered": {
			{0, "acme", "A", "400", failed}, {0, "acme", "A", "", forwarded}},
		"tenants don't know each other": {
			{0, "acme", "A", "", forwarded}, {0, "umbra", "A", "", forwarded}, {0, "acme", "A", "", duplicate}},
		"two are remembered, the longest idle goes": {
			{0, "t1", "A", "", forwarded}, {0, "t2", "A", "", forwarded}, {0, "t3", "A", "", forwarded},
			{0, "t3", "A", "", duplicate}, {0, "t2", "A", "", duplicate}, {0, "t1", "A", "", forwarded}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var now step
				g := newGate(t, func(c *setup) {
					c.DedupWindow, c.DedupSize, c.Tries = window, 2, 1
					c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
						switch now.receiver {
						case "timeout":
							<-r.Context().Done()
							return nil, r.Context().Err()
						case "400":
							return respond(400, ""), nil
						}
						return respond(204, ""), nil
					})
				})
				for i, s := range steps {
					now = s
					time.Sleep(s.after)
					if got := post(t, g, snapshotOf(s.tenant, s.name)); got.Decision != s.want {
						t.Errorf("step %d: got %v, want %s", i, got, s.want)
					}
				}
			})
		})
	}
}

func TestBusyLanesAreNotEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := &counting{takes: time.Second}
		g := newGate(t, func(c *setup) { c.Transport, c.DedupSize = receiver, 1 })
		var wg sync.WaitGroup
		for i := range 10 { // ten at once, memory for one
			for range 2 {
				wg.Go(func() { post(t, g, snapshotOf(fmt.Sprint(i), "A")) })
			}
		}
		wg.Wait()
		if receiver.count() != 10 || len(g.lanes.active) != 0 || g.lanes.memory.Len() != 1 {
			t.Errorf("%d deliveries, %d busy, %d remembered", receiver.count(), len(g.lanes.active), g.lanes.memory.Len())
		}
	})
}

func TestSlowTenantDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, func(c *setup) {
			c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				body, _ := io.ReadAll(r.Body)
				if strings.Contains(string(body), "slow") {
					time.Sleep(9 * time.Second)
				}
				return respond(200, ""), nil
			})
		})
		var wg sync.WaitGroup
		for _, name := range []string{"A", "B", "C"} {
			wg.Go(func() { post(t, g, snapshotOf("slow", name)) })
		}
		synctest.Wait()
		start := time.Now()
		if got := post(t, g, snapshotOf("quick", "A")); got.Code != 200 || time.Since(start) != 0 {
			t.Errorf("%v after %v", got, time.Since(start))
		}
		wg.Wait()
	})
}

func TestLaneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := &counting{takes: time.Second}
		g := newGate(t, func(c *setup) { c.Transport = receiver })
		var wg sync.WaitGroup
		send := func(name string, want int) {
			wg.Go(func() {
				if got := post(t, g, snapshotOf("acme", name)); got.Code != want {
					t.Errorf("%s: got %v, want %d", name, got, want)
				}
			})
			synctest.Wait()
		}
		for i := range 1 + maxWaiting {
			send(fmt.Sprint("change ", i), 200)
		}
		send("one too many", 503)
		send(fmt.Sprint("change ", maxWaiting), 200) // a copy of the tail needs no room
		time.Sleep(1500 * time.Millisecond)          // the first is done
		send("there is room again", 200)
		send("but for one only", 503)
		wg.Wait()
		for i, body := range receiver.bodies[:1+maxWaiting] {
			if body != snapshotOf("acme", fmt.Sprint("change ", i)) {
				t.Fatalf("delivery %d is %s", i, body)
			}
		}
		if len(receiver.bodies) != 2+maxWaiting {
			t.Errorf("%d deliveries", len(receiver.bodies))
		}
	})
}

func TestDedupOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := &counting{takes: time.Second}
		g := newGate(t, func(c *setup) { c.Transport, c.DedupWindow = receiver, 0 })
		if got := fmt.Sprint(lockstep(t, g, "AAA")); got != "[forwarded forwarded forwarded]" || receiver.count() != 3 {
			t.Errorf("%v, %d deliveries", got, receiver.count())
		}
	})
}

func TestPanicFreesTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blow := true
		g := newGate(t, func(c *setup) {
			c.Transport = roundTrip(func(*http.Request) (*http.Response, error) {
				if time.Sleep(time.Second); blow {
					panic(errors.New("boom"))
				}
				return respond(200, ""), nil
			})
		})
		go func() {
			defer func() { recover() }()
			post(t, g, documented)
		}()
		synctest.Wait()
		if got := post(t, g, documented); got.Code != 500 { // a copy shares the outcome
			t.Error(got)
		}
		blow = false
		if got := post(t, g, documented); got.Decision != forwarded || g.places.all != 0 {
			t.Errorf("%v, %d in flight", got, g.places.all)
		}
	})
}
