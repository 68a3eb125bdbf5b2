package webhookgate

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// TestNothingIsDroppedOnAGuess throws random traffic at a gate: copies, changes
// back and forth, a receiver that fails, hangs, times out having applied a
// snapshot or not, senders that hang up, evictions, waits beyond the window, all
// of it for several tenants at once. Then it asks what may never be:
//
//	(a) a snapshot suppressed that the receiver did not certainly hold as its latest,
//	(b) a delivery that overtakes or overlaps another of its tenant,
//	(c) a 200 for a snapshot that the receiver neither accepted nor held.
func TestNothingIsDroppedOnAGuess(t *testing.T) {
	// Rapid's default of 100 would let a broken gate pass now and then.
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		checks.Value.Set("300")
		defer checks.Value.Set(checks.DefValue)
	}
	var seen sync.Map // decisions that came up at all: a test that suppresses nothing proves nothing
	rapid.Check(t, func(rt *rapid.T) {
		rapid.SyncTest(rt, func(rt *rapid.T) {
			world := newWorld(t, rt)
			for range rapid.IntRange(1, 40).Draw(rt, "steps") {
				if rapid.IntRange(0, 2).Draw(rt, "step") == 0 {
					time.Sleep(rapid.SampledFrom(world.sleeps).Draw(rt, "sleep"))
					continue
				}
				world.send(rt)
			}
			world.senders.Wait()
			world.judge(rt)
			for _, a := range world.arrivals {
				seen.Store(a.decision, true)
			}
		})
	})
	for _, decision := range []string{forwarded, duplicate, failed} {
		if _, ok := seen.Load(decision); !ok && !t.Failed() {
			t.Errorf("no webhook was %s", decision)
		}
	}
}

const (
	testWindow  = time.Minute
	testTimeout = 2 * time.Second
)

// A world is a gate, who sends to it, and what is behind it.
type world struct {
	gate    *Gate
	tenants []string
	sleeps  []time.Duration
	senders sync.WaitGroup

	mu         sync.Mutex
	arrivals   []*arrival        // in order
	latest     map[string]string // what the receiver holds, by tenant
	tries      map[string]int    // by webhook-id
	underWay   map[string]int    // by tenant
	deliveries []int             // arrivals' numbers, as their tries began
	violations []string
}

// An arrival is one webhook, what became of it, and what the receiver knows of it.
type arrival struct {
	number           int
	tenant, snapshot string
	at               time.Time
	status           int
	decision         string

	delivered  bool
	acceptedAt time.Time // zero: the receiver never said 2xx
}

func newWorld(t *testing.T, rt *rapid.T) *world {
	w := &world{
		tenants:  []string{"t1", "t2", "t3"}[:rapid.IntRange(1, 3).Draw(rt, "tenants")],
		sleeps:   []time.Duration{time.Millisecond, 300 * time.Millisecond, testTimeout, testWindow / 2, testWindow - time.Second, testWindow + time.Second},
		latest:   make(map[string]string),
		tries:    make(map[string]int),
		underWay: make(map[string]int),
	}
	w.gate = newGate(t, func(c *Config) {
		c.Transport = roundTrip(w.receive)
		c.DedupWindow = testWindow
		c.DedupSize = rapid.IntRange(1, 3).Draw(rt, "dedup size")
		c.Timeout = testTimeout
		c.Attempts = rapid.IntRange(1, 2).Draw(rt, "attempts")
		c.MaxInflight = 64
	})
	w.gate.receiver.jitter = func(ceiling time.Duration) time.Duration { return ceiling / 2 } // or failures could not be replayed
	return w
}

// send brings one webhook to the gate and returns once it stands in its lane, so
// that the order of arrivals is known. What the receiver will do with it travels
// along in a header, a word for each try.
func (w *world) send(rt *rapid.T) {
	a := &arrival{
		number:   len(w.arrivals),
		tenant:   rapid.SampledFrom(w.tenants).Draw(rt, "tenant"),
		snapshot: rapid.SampledFrom([]string{"A", "B"}).Draw(rt, "snapshot"),
		at:       time.Now(),
	}
	w.mu.Lock()
	w.arrivals = append(w.arrivals, a)
	w.mu.Unlock()
	word := rapid.SampledFrom([]string{"ok", "ok", "ok", "ok", "ok slowly", "500", "400", "refused", "timeout", "timeout applied"})
	plan := word.Draw(rt, "first try") + "," + word.Draw(rt, "second try")
	patience := rapid.SampledFrom([]time.Duration{time.Hour, time.Hour, 100 * time.Millisecond}).Draw(rt, "sender's patience")
	w.senders.Go(func() {
		ctx, hangUp := context.WithTimeout(context.Background(), patience)
		defer hangUp()
		rec := httptest.NewRecorder()
		w.gate.ServeHTTP(rec, request(snapshot(a.tenant, a.snapshot),
			"X-Arrival", strconv.Itoa(a.number), "X-Plan", plan).WithContext(ctx))
		a.status, a.decision = rec.Code, rec.Header().Get("Usher-Decision")
	})
	synctest.Wait()
}

// receive is the receiver: it does as the webhook's plan says, and keeps a diary.
func (w *world) receive(r *http.Request) (*http.Response, error) {
	number, _ := strconv.Atoi(r.Header.Get("X-Arrival"))
	w.mu.Lock()
	a := w.arrivals[number]
	word := strings.Split(r.Header.Get("X-Plan"), ",")[w.tries[r.Header.Get("webhook-id")]]
	w.tries[r.Header.Get("webhook-id")]++
	w.deliveries = append(w.deliveries, number)
	a.delivered = true
	if w.underWay[a.tenant]++; w.underWay[a.tenant] > 1 {
		w.violations = append(w.violations, fmt.Sprintf("(b) arrival %d overlaps another delivery to %s", number, a.tenant))
	}
	if word == "timeout applied" { // and only the receiver knows
		w.latest[a.tenant] = a.snapshot
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.underWay[a.tenant]--
		w.mu.Unlock()
	}()
	switch word {
	case "refused":
		return nil, fmt.Errorf("connection refused")
	case "timeout", "timeout applied":
		<-r.Context().Done()
		return nil, r.Context().Err()
	case "ok slowly":
		time.Sleep(testTimeout / 2)
		word = "ok"
	default:
		time.Sleep(20 * time.Millisecond)
	}
	if word == "ok" {
		w.mu.Lock()
		a.acceptedAt, w.latest[a.tenant] = time.Now(), a.snapshot
		w.mu.Unlock()
		return respond(200, ""), nil
	}
	status, _ := strconv.Atoi(word)
	return respond(status, ""), nil
}

// judge walks through each tenant's arrivals with a model of what the receiver
// certainly holds: the snapshot that it accepted last, within the window, if no
// other was sent its way since.
func (w *world) judge(rt *rapid.T) {
	for _, v := range w.violations {
		rt.Errorf("%s", v)
	}
	last := make(map[string]int)
	for _, number := range w.deliveries {
		tenant := w.arrivals[number].tenant
		if number < last[tenant] {
			rt.Errorf("(b) arrival %d was delivered after arrival %d of the same tenant", number, last[tenant])
		}
		last[tenant] = number
	}
	holds := make(map[string]*arrival)
	for _, a := range w.arrivals {
		held := holds[a.tenant]
		switch {
		case a.delivered:
			if holds[a.tenant] = nil; !a.acceptedAt.IsZero() {
				holds[a.tenant] = a
			}
			if (a.status == 200) != !a.acceptedAt.IsZero() {
				rt.Errorf("(c) arrival %d was told %d %s; accepted by the receiver: %v", a.number, a.status, a.decision, !a.acceptedAt.IsZero())
			}
		case a.status != 200: // shares a failure, or found no room
		case held == nil || held.snapshot != a.snapshot:
			rt.Errorf("(a) arrival %d (%s of %s) was suppressed; the receiver may hold something else", a.number, a.snapshot, a.tenant)
		case a.at.Sub(held.acceptedAt) >= testWindow:
			rt.Errorf("(a) arrival %d (%s of %s) was suppressed %v after the acceptance", a.number, a.snapshot, a.tenant, a.at.Sub(held.acceptedAt))
		}
	}
	for tenant, a := range holds {
		if a != nil && w.latest[tenant] != a.snapshot {
			rt.Errorf("the model is wrong: the receiver holds %s of %s, not %s", w.latest[tenant], tenant, a.snapshot)
		}
	}
}
