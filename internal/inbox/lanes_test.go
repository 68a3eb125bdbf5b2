package inbox

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"usher/internal/receiver"
	"usher/webhookgate"
)

// A sim is a world on lanes alone: no database, no goroutines, its own clock.
type sim struct {
	*world
	m        *Memory
	now      time.Time
	events   []event // by time
	works    []Work
	life     *life
	shared   bool
	started  time.Time
	underTry map[*attempt]func()
}

type event struct {
	at   time.Time
	life *life // it ends with it; nil: it does not
	do   func()
}

func (s *sim) at(d time.Duration, l *life, do func()) {
	e := event{s.now.Add(d), l, do}
	n, _ := slices.BinarySearchFunc(s.events, e, func(a, b event) int {
		if a.at.After(b.at) {
			return 1
		}
		return -1
	})
	s.events = slices.Insert(s.events, n, e)
}

// submit gathers works; one transaction takes all that came while the last one was written.
func (s *sim) submit(w Work) {
	s.works = append(s.works, w)
	if len(s.works) == 1 {
		life := s.life
		s.at(disk, life, func() {
			works := s.works
			s.works = nil
			s.m.Now = s.now.UnixMicro()
			after := s.m.Turn(works)
			s.at(disk, life, func() {
				for _, f := range after {
					f()
				}
			})
			s.m.Continue()
			if err := s.m.Check(); err != nil {
				s.violation("%v at %v", err, s.now)
			}
		})
	}
}

func (s *sim) receiverFor(platform string) *receiver.Receiver {
	rc := s.life.receivers.For(platform)
	if rc == nil || s.isPaused("", "", rc.Name) {
		return nil
	}
	return rc
}

func (s *sim) isPaused(platform, tenant, receiver string) bool {
	for p := range s.pauses {
		if p.Covers(platform, tenant, receiver) {
			return true
		}
	}
	return false
}

// advance runs what happens until then, and claims lanes when they are due.
func (s *sim) advance(until time.Time) {
	for {
		due := time.UnixMicro(s.m.NextDue(s.receiverFor)).UTC()
		claim := len(s.works) == 0 && due.Before(until) && (len(s.events) == 0 || due.Before(s.events[0].at))
		if claim {
			if due.After(s.now) {
				s.now = due
			}
			s.submit(s.m.Claim(s.receiverFor, s.leased))
			continue
		}
		if len(s.events) == 0 || s.events[0].at.After(until) {
			s.now = until
			return
		}
		e := s.events[0]
		s.events = s.events[1:]
		s.now = e.at
		if e.life == nil || e.life.dead.IsZero() {
			e.do()
		}
	}
}

func (s *sim) leased(leases []*Lease) {
	for _, l := range leases {
		s.deliver(l)
	}
}

func (s *sim) settle(o *Outcome, a *arrival) {
	s.submit(s.m.Settle(o, a.webhook.Lane, func() {
		if o.NextLease != nil {
			s.deliver(o.NextLease)
		}
	}))
}

func (s *sim) deliver(lease *Lease) {
	w, life := s.world, s.life
	a := w.byID[lease.Webhook.Webhook]
	o := &Outcome{Lease: lease, Began: time.Now(), WantsNext: w.r.IntN(10) > 0}
	name := lease.Receiver.Name
	if s.isPaused(a.webhook.Lane.Platform, a.tenant, name) {
		o.Aborted = true
		s.settle(o, a)
		return
	}
	t := &attempt{arrival: a, life: life, receiver: name, instance: len(a.again), began: s.now}
	w.tries = append(w.tries, t)
	word := "ok"
	switch {
	case w.healthy:
	case t.began.Before(w.outages[name]):
		word = "refused"
	case len(a.plan) > 0:
		word, a.plan = a.plan[0], a.plan[1:]
	}
	if w.underway[a.tenant]++; w.underway[a.tenant] > 1 {
		w.violation("(b) arrival %d overlaps another delivery to %s", a.number, a.tenant)
	}
	word, applied := strings.CutPrefix(word, "applied, ")
	if applied {
		w.holds(name, a)
	}
	took := w.answer
	switch word {
	case "refused":
		took = 0
	case "timeout":
		took = w.timeout
	case "ok slowly":
		word, took = "ok", w.timeout/2
	}
	s.underTry[t] = func() { t.cut, t.ended = true, s.now; w.underway[a.tenant]-- }
	s.at(took, life, func() {
		delete(s.underTry, t)
		w.underway[a.tenant]--
		t.ended = s.now
		switch word {
		case "timeout", "refused":
			o.Attempt.Err = syscall.ECONNREFUSED
		case "ok":
			w.holds(name, a)
			t.status = 200
		default:
			t.status, _ = strconv.Atoi(word)
		}
		o.Attempt.Status, o.Took = t.status, took
		s.settle(o, a)
	})
}

func (s *sim) send(tenant, snapshot string) {
	w := s.world
	a := &arrival{number: len(w.arrivals), tenant: tenant, snapshot: snapshot, life: s.life, from: s.now}
	for range 1 + w.r.IntN(4) {
		a.plan = append(a.plan, pick(w.r, "ok", "ok", "ok", "ok", "applied, ok", "ok slowly", "500", "422", "503", "refused", "timeout", "applied, timeout"))
	}
	body := []byte(tenant + snapshot)
	rc := s.life.receivers.For(platform(tenant))
	a.webhook = &webhookgate.Webhook{
		ID: fmt.Sprintf("%d-%x", a.number, w.seed), Type: "TenantProvisioningChange", Lane: webhookgate.Lane{Platform: platform(tenant), Tenant: tenant},
		Snapshot: true, Body: body, Digest: sha256.Sum256(body), Header: http.Header{"X-Test": {"1"}}, Received: s.now, Receiver: rc,
	}
	if w.r.IntN(10) == 0 {
		a.webhook.Type, a.webhook.Snapshot = "Other", false
	}
	if rc != nil {
		a.receiver = rc.Name
	}
	w.arrivals = append(w.arrivals, a)
	w.byID[a.webhook.ID] = a
	life := s.life
	s.submit(s.m.Take(a.webhook, func(got Answer, lease *Lease) {
		a.ended, a.to = true, s.now
		if !life.dead.IsZero() {
			return
		}
		a.ok, a.err, a.original = got.Err == nil, got.Err, got.DuplicateOf
		if lease != nil {
			s.deliver(lease)
		}
	}))
}

// retry does an action again while its webhook is being delivered.
func (s *sim) act(work func(done func(error)) Work, done func(error)) {
	life, began := s.life, s.now
	over := false
	defer func() {
		for !over && s.now.Sub(began) < 30*time.Second {
			s.advance(s.now.Add(disk))
		}
	}()
	var try func()
	try = func() {
		s.submit(work(func(err error) {
			if errors.Is(err, ErrBusy) && s.now.Sub(began) < 20*time.Second {
				s.at(20*time.Millisecond, life, try)
				return
			}
			over = true
			done(err)
		}))
	}
	try()
}

func (s *sim) start() {
	w := s.world
	s.life = &life{place: w.places[0]}
	var all []*receiver.Receiver
	for _, name := range []string{"one", "two"} {
		var platforms []string
		for code, to := range w.routes {
			if to == name {
				platforms = append(platforms, code)
			}
		}
		all = append(all, &receiver.Receiver{Name: name, Platforms: append(platforms, "only "+name), URL: &url.URL{Scheme: "http", Host: name}, Timeout: w.timeout, Concurrency: 4})
	}
	s.life.receivers = receiver.NewSet(all...)
	w.cfg.Receivers = s.life.receivers
	w.places[0].life = s.life
}

func (s *sim) some(fits func(Entry) bool) (e Entry, a *arrival) {
	all := slices.DeleteFunc(s.m.List(), func(e Entry) bool { return !fits(e) })
	if len(all) == 0 {
		return e, nil
	}
	e = all[s.r.IntN(min(6, len(all)))]
	return e, s.byID[e.Webhook]
}

func (s *sim) step(n int) {
	w := s.world
	tenant, snapshot := pick(w.r, w.tenants...), pick(w.r, "A", "B")
	lane := webhookgate.Lane{Platform: platform(tenant), Tenant: tenant}
	step := pick(w.r, "send", "send", "send", "send", "send", "copy", "copy", "copy", "burst", "burst", "sleep", "sleep", "sleep", "redeliver", "redeliver",
		"discard", "forget", "erase", "outage", "pause", "resume", "kill")
	w.story = append(w.story, s.now.Format("15:04:05.000000 ")+fmt.Sprintf("step %d: %s", n, step))
	switch step {
	case "send":
		s.send(tenant, snapshot)
	case "copy":
		if n := len(w.arrivals); n > 0 {
			a := w.arrivals[n-1-w.r.IntN(min(3, n))]
			s.send(a.tenant, a.snapshot)
		}
	case "burst":
		for range 2 + w.r.IntN(4) {
			s.send(tenant, pick(w.r, "A", "B"))
		}
	case "sleep":
		s.advance(s.now.Add(pick(w.r, w.sleeps...)))
		return
	case "redeliver":
		e, a := s.some(func(Entry) bool { return true })
		if a == nil {
			break
		}
		force := w.r.IntN(2) == 0
		again := &redelivery{from: s.now, to: s.now.Add(time.Hour), forced: force, unsure: e.State == Waiting || e.State == Superseded}
		a.again = append(a.again, again)
		s.act(func(done func(error)) Work { return s.m.Redeliver(e, force, done) }, func(err error) {
			again.to = s.now
			if err != nil {
				n := slices.Index(a.again, again)
				for _, t := range w.tries {
					if t.arrival == a && t.instance > n {
						t.instance--
					}
				}
				a.again = slices.Delete(a.again, n, n+1)
			} else {
				w.seen["redelivered"] = true
			}
		})
	case "discard":
		e, a := s.some(func(e Entry) bool { return !e.State.Finished() })
		if a == nil {
			break
		}
		d := &discard{from: s.now, to: s.now.Add(time.Hour), instance: len(a.again), unsure: true}
		a.discards = append(a.discards, d)
		s.act(func(done func(error)) Work { return s.m.Discard(e, done) }, func(err error) {
			d.to = s.now
			if err == nil {
				d.unsure = false
				w.seen["discarded"] = true
			} else {
				a.discards = slices.DeleteFunc(a.discards, func(x *discard) bool { return x == d })
			}
		})
	case "forget":
		s.submit(s.m.Forget(lane))
	case "erase":
		e := span{tenant: tenant, from: s.now, to: s.now.Add(time.Hour), unsure: true}
		w.erasures = append(w.erasures, e)
		n := len(w.erasures) - 1
		s.act(func(done func(error)) Work { return s.m.Erase(lane, done) }, func(err error) {
			w.erasures[n].to, w.erasures[n].unsure = s.now, err != nil
			w.seen["erased"] = true
		})
	case "outage":
		w.outages[pick(w.r, "one", "two")] = s.now.Add(pick(w.r, w.pace.outages...))
	case "pause":
		s.submit(s.m.Pause(lane, true, func(error) {}))
	case "resume":
		s.submit(s.m.Pause(lane, false, func(error) {}))
	case "kill":
		s.life.dead = s.now
		s.life.troubles = append(s.life.troubles, trouble{s.now, s.now, true})
		for _, cut := range s.underTry {
			cut()
		}
		clear(s.underTry)
		for _, a := range w.arrivals {
			if !a.ended {
				a.to = s.now
			}
		}
		for _, a := range w.arrivals {
			for _, r := range a.again {
				if r.to.After(s.now) {
					r.to, r.unsure = s.now, true
				}
			}
		}
		s.works = nil
		w.seen["killed"] = true
		s.m.Now = s.now.UnixMicro()
		s.m.Crash(s.shared)
		if w.r.IntN(4) == 0 {
			w.reroute()
		}
		s.start()
	}
	if w.r.IntN(3) == 0 {
		s.advance(s.now.Add(time.Duration(w.r.IntN(10)) * time.Millisecond))
	}
}

func (s *sim) live() {
	w := s.world
	s.start()
	for n := range 5 + w.r.IntN(w.steps-5) {
		w.r = rand.New(rand.NewPCG(w.seed, uint64(n)))
		s.step(n)
	}
	w.healthy = true
	for _, tenant := range w.tenants {
		s.submit(s.m.Pause(webhookgate.Lane{Platform: platform(tenant), Tenant: tenant}, false, func(error) {}))
	}
	s.advance(s.now.Add(w.pace.calm))
	for _, e := range s.m.List() {
		a := w.byID[e.Webhook]
		a.entry = &e
		if w.unfinished(e) {
			w.violation("(c) still waiting: %d, arrival %d: %+v", e.ID, a.number, e.Status)
		}
	}
	w.judge()
}

func TestWorldsOnLanes(t *testing.T) {
	count := uint64(3000)
	if *long {
		count = 100_000
	}
	began, asked, tries, arrivals := time.Now(), 0, 0, 0
	seen := make(map[string]int)
	failed := 0
	from := uint64(1)
	if *worldSeed != 0 {
		from, count = *worldSeed, *worldSeed
	}
	for seed := from; seed <= count && failed < 1; seed++ {
		w := newWorld(seed, filePace)
		w.cfg.Log = slog.New(slog.DiscardHandler)
		w.cfg.Limits = DefaultLimits
		w.places = []*place{{world: w}}
		shorter := w.cfg.Jitter
		w.cfg.Jitter = func(d time.Duration) time.Duration { return max(shorter(d), 500*time.Millisecond) } // there is no courier that knows of receivers that are down
		s := &sim{world: w, now: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), underTry: make(map[*attempt]func()), shared: seed%2 == 0}
		lease := 100 * 365 * 24 * time.Hour
		if s.shared {
			lease = 10 * time.Second
			w.lease = lease
		}
		s.m = NewMemory(&w.cfg, seed, lease)
		s.m.Alone = !s.shared
		s.m.Reserve = func(rc *receiver.Receiver) bool { return !s.isPaused("", "", rc.Name) && w.r.IntN(5) > 0 }
		s.live()
		asked, tries, arrivals = asked+s.m.Asked, tries+len(w.tries), arrivals+len(w.arrivals)
		seen["world"]++
		for k := range w.seen {
			seen[k]++
		}
		if len(w.violations) > 0 {
			failed++
			t.Errorf("world %d", seed)
			w.tell(t)
		}
	}
	took := time.Since(began)
	t.Logf("%.0f worlds a second; %d arrivals, %d tries, %d questions; %v", float64(seen["world"])/took.Seconds(), arrivals, tries, asked, seen)
}
