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

	"usher/internal/content"
	"usher/internal/receiver"
)

// TestNothingIsDroppedOnAGuess throws random traffic at a gate: copies, changes
// back and forth, two receivers with failures of their own, each of which fails,
// hangs, times out having applied a snapshot or not; senders that hang up, evictions,
// waits beyond the window, events of another type, all of it
// for several tenants at once, some of which have the same code on two platforms. Then it
// asks what may never be:
//
//	(a) a snapshot suppressed that the receiver did not certainly hold as its latest,
//	(b) a delivery that overtakes or overlaps another of its tenant,
//	(c) a 200 for a snapshot that the receiver neither accepted nor held,
//	(d) a webhook at a receiver that its platform is not given to,
//	(e) a webhook that waits, or finds no room, for the sake of another receiver.
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
				switch rapid.IntRange(0, 8).Draw(rt, "step") {
				case 0, 1, 2:
					time.Sleep(rapid.SampledFrom(world.sleeps).Draw(rt, "sleep"))
				case 3: // an outage, or the end of one
					receiver := rapid.SampledFrom([]string{receiver.Main, "docs"}).Draw(rt, "receiver")
					mood := rapid.SampledFrom([]string{"", "", "timeout", "500"}).Draw(rt, "mood")
					world.mu.Lock()
					world.moods[receiver] = mood
					world.mu.Unlock()
				default:
					world.send(rt)
				}
			}
			world.senders.Wait()
			if err := world.gate.Shutdown(context.Background()); err != nil { // some deliveries go on without their senders
				rt.Error(err)
			}
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
	testShare   = 4 // of what may be in flight: each receiver's

	reminder = "reminder" // in the place of a snapshot: an event that is none, and never a duplicate
)

// A world is a gate, who sends to it, and what is behind it.
type world struct {
	gate    *Gate
	tenants []string
	sleeps  []time.Duration
	senders sync.WaitGroup

	mu         sync.Mutex
	arrivals   []*arriving       // in order
	latest     map[string]string // what the receiver holds, by tenant
	moods      map[string]string // of each receiver: what it does, whatever a plan says; empty: the plan
	unanswered map[string]int    // webhooks of each tenant that are in the gate
	tries      map[string]int    // by webhook-id
	underWay   map[string]int    // by tenant
	deliveries []int             // arrivals' numbers, as their tries began
	violations []string
}

// An arriving is one webhook, what became of it, and what the receiver knows of it.
type arriving struct {
	number           int
	tenant, snapshot string // the tenant with its platform; A or B, or an event of another type
	receiver         string // that gets it
	at               time.Time
	alone            bool // no other of its tenant was in the gate
	room             bool // its receiver had some
	status           int
	decision         string

	delivered  bool
	firstTry   time.Time
	acceptedAt time.Time // zero: the receiver never said 2xx
}

func newWorld(t *testing.T, rt *rapid.T) *world {
	w := &world{
		tenants:    []string{"crm/t1", "docs/t1", "docs/t2", "/t1"}[:rapid.IntRange(1, 4).Draw(rt, "tenants")],
		moods:      make(map[string]string),
		unanswered: make(map[string]int),
		sleeps:     []time.Duration{time.Millisecond, 300 * time.Millisecond, testTimeout, testWindow / 2, testWindow - time.Second, testWindow + time.Second},
		latest:     make(map[string]string),
		tries:      make(map[string]int),
		underWay:   make(map[string]int),
	}
	w.gate = newGate(t, func(c *setup) {
		c.Types = append(c.Types, content.TenantProvisioningChange, "Reminder")
		c.Transport = w.receiver(receiver.Main)
		c.Further = []*receiver.Receiver{{Name: "docs", Platforms: []string{"docs"}, URL: c.URL, Transport: w.receiver("docs")}}
		c.DedupWindow = testWindow
		c.DedupSize = rapid.IntRange(1, 3).Draw(rt, "dedup size")
		c.Timeout = testTimeout
		c.Tries = rapid.IntRange(1, 2).Draw(rt, "tried")
		c.AnswerWithin = rapid.SampledFrom([]time.Duration{time.Hour, testTimeout / 4}).Draw(rt, "answered within")
		c.MaxInflight = 2*testShare + 32 // with room for those that are turned away
	})
	w.gate.places.limit = testShare
	// or failures could not be replayed
	w.gate.courier.jitter = func(ceiling time.Duration) time.Duration { return ceiling / 2 }
	return w
}

// send brings one webhook to the gate and returns once it stands in its lane, so
// that the order of arrivals is known. What the receiver will do with it travels
// along in a header, a word for each try.
func (w *world) send(rt *rapid.T) {
	a := &arriving{
		number:   len(w.arrivals),
		tenant:   rapid.SampledFrom(w.tenants).Draw(rt, "tenant"),
		snapshot: rapid.SampledFrom([]string{"A", "A", "B", "B", reminder}).Draw(rt, "snapshot"),
		at:       time.Now(),
	}
	platform, code, _ := strings.Cut(a.tenant, "/")
	if a.receiver = receiver.Main; platform == "docs" {
		a.receiver = "docs"
	}
	w.mu.Lock()
	w.arrivals = append(w.arrivals, a)
	a.alone, a.room = w.unanswered[a.tenant] == 0 && !w.goesOn(platform, code), w.taken(platform) < testShare
	w.count(a, 1)
	w.mu.Unlock()
	word := rapid.SampledFrom([]string{"ok", "ok", "ok", "ok", "ok slowly", "500", "400", "unreachable", "timeout", "timeout applied"})
	plan := word.Draw(rt, "first try") + "," + word.Draw(rt, "second try")
	patience := rapid.SampledFrom([]time.Duration{time.Hour, time.Hour, 100 * time.Millisecond}).Draw(rt, "sender's patience")
	w.senders.Go(func() {
		ctx, hangUp := context.WithTimeout(context.Background(), patience)
		defer hangUp()
		rec := httptest.NewRecorder()
		body := strings.Replace(snapshotOf(code, a.snapshot), `"tenant":{`, fmt.Sprintf(`"tenant":{"platform":{"code":%q},`, platform), 1)
		if a.snapshot == reminder {
			body = strings.Replace(body, content.TenantProvisioningChange, "Reminder", 1)
		}
		w.gate.ServeHTTP(rec, request(body,
			"X-Arrival", strconv.Itoa(a.number), "X-Plan", plan).WithContext(ctx))
		w.mu.Lock()
		defer w.mu.Unlock()
		a.status, a.decision = rec.Code, rec.Header().Get("Usher-Decision")
		w.count(a, -1)
	})
	synctest.Wait()
}

// goesOn reports whether something of a tenant is being delivered, perhaps without its sender.
func (w *world) goesOn(platform, code string) bool {
	w.gate.lanes.mu.Lock()
	defer w.gate.lanes.mu.Unlock()
	return w.gate.lanes.active[LaneName{Platform: platform, Tenant: code}] != nil
}

// taken returns how many places of a platform's receiver are taken.
func (w *world) taken(platform string) int {
	w.gate.places.mu.Lock()
	defer w.gate.places.mu.Unlock()
	return w.gate.places.taken[place{w.gate.cfg.Receivers.For(platform), changes}]
}

// count adds n to what is in the gate. It needs w.mu.
func (w *world) count(a *arriving, n int) {
	w.unanswered[a.tenant] += n
}

// receiver is one that does as its mood or the webhook's plan says, and keeps a diary.
func (w *world) receiver(name string) roundTrip {
	return func(r *http.Request) (*http.Response, error) { return w.receive(name, r) }
}

func (w *world) receive(name string, r *http.Request) (*http.Response, error) {
	number, _ := strconv.Atoi(r.Header.Get("X-Arrival"))
	w.mu.Lock()
	a := w.arrivals[number]
	word := strings.Split(r.Header.Get("X-Plan"), ",")[w.tries[r.Header.Get("webhook-id")]]
	if mood := w.moods[name]; mood != "" {
		word = mood
	}
	w.tries[r.Header.Get("webhook-id")]++
	w.deliveries = append(w.deliveries, number)
	if !a.delivered {
		a.delivered, a.firstTry = true, time.Now()
	}
	if name != a.receiver {
		w.violations = append(w.violations, fmt.Sprintf("(d) arriving %d of %s came to %s", number, a.tenant, name))
	}
	if w.underWay[a.tenant]++; w.underWay[a.tenant] > 1 {
		w.violations = append(w.violations, fmt.Sprintf("(b) arriving %d overlaps another delivery to %s", number, a.tenant))
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
	case "unreachable":
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
			rt.Errorf("(b) arriving %d was delivered after arriving %d of the same tenant", number, last[tenant])
		}
		last[tenant] = number
	}
	holds := make(map[string]*arriving)
	for _, a := range w.arrivals {
		if a.alone && a.delivered && !a.firstTry.Equal(a.at) {
			rt.Errorf("(e) arriving %d (%s) waited %v, though nothing of its tenant was before it", a.number, a.tenant, a.firstTry.Sub(a.at))
		}
		if a.room && a.alone && !a.delivered && a.status != 200 {
			rt.Errorf("(e) arriving %d (%s) was told %d, though its receiver had room", a.number, a.tenant, a.status)
		}
		held := holds[a.tenant]
		switch {
		case a.delivered:
			if holds[a.tenant] = nil; !a.acceptedAt.IsZero() && a.snapshot != reminder {
				holds[a.tenant] = a
			}
			late := a.status == 504 && w.gate.cfg.AnswerWithin < testTimeout
			if (a.status == 200) != !a.acceptedAt.IsZero() && !late {
				rt.Errorf("(c) arriving %d was told %d %s; accepted by the receiver: %v", a.number, a.status, a.decision, !a.acceptedAt.IsZero())
			}
		case a.status != 200: // shares a failure, or found no room
		case held == nil || held.snapshot != a.snapshot:
			rt.Errorf("(a) arriving %d (%s of %s) was suppressed; the receiver may hold something else", a.number, a.snapshot, a.tenant)
		case a.at.Sub(held.acceptedAt) >= testWindow:
			rt.Errorf("(a) arriving %d (%s of %s) was suppressed %v after the acceptance", a.number, a.snapshot, a.tenant, a.at.Sub(held.acceptedAt))
		}
	}
	for tenant, a := range holds {
		if a != nil && w.latest[tenant] != a.snapshot {
			rt.Errorf("the model is wrong: the receiver holds %s of %s, not %s", w.latest[tenant], tenant, a.snapshot)
		}
	}
}
