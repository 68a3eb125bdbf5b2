package inbox

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/internal/testkit"
	"usher/webhookgate"
)

// A sim is a world on lanes alone: no database, no goroutines, its own clock.
type sim struct {
	*world
	m         *Memory
	now       time.Time
	events    []event // by time
	works     []Work
	gathering bool
	life      *life
	underTry  map[*try]func()

	rejections []*rejection
	byInvalid  map[string]*rejection // by webhook-id
	dealt      map[int64]bool        // rejections that somebody has accepted or discarded: true if that is certain
	resumes    int
	isHeld     map[string]bool  // tenants that are paused for sure
	accepted   map[string]int64 // webhook-ids of those that are invalid, and their former numbers

}

// A rejection is a webhook that could not be taken in.
type rejection struct {
	webhook  *webhookgate.Webhook
	from, to time.Time
	ok       bool
	id       int64
	version  int // of the state that it has; 0: its tenant is not certain, or it is no snapshot
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
func (s *sim) submit(w ...Work) {
	s.works = append(s.works, w...)
	if !s.gathering {
		s.gathering = true
		life := s.life
		s.at(disk, life, func() {
			works := s.works
			s.works, s.gathering = nil, false
			s.m.Now = s.now.UnixMicro()
			after, leases := s.m.Turn(works)
			s.at(disk, life, func() {
				for _, f := range after {
					f()
				}
				for _, l := range leases {
					s.deliver(l)
				}
			})
			if err := s.m.Check(); err != nil {
				s.violation("%v at %v", err, s.now)
			}
		})
	}
}

// mayDeliver says whether a lane has a receiver, and neither is paused.
func (s *sim) mayDeliver(name webhookgate.LaneName) bool {
	rc := s.life.receivers.For(name.Platform)
	return rc != nil && !s.isPaused(name.Platform, name.Tenant, rc.Name) && !s.isHeld[name.Tenant]
}

// mayBeDealt notes that somebody may have dealt with a rejection, also if nobody hears of it.
func (s *sim) mayBeDealt(id int64) {
	if _, known := s.dealt[id]; !known {
		s.dealt[id] = false
	}
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
		due := time.UnixMicro(s.m.NextDue(s.mayDeliver)).UTC()
		claim := !s.gathering && due.Before(until) && (len(s.events) == 0 || due.Before(s.events[0].at))
		if claim {
			if due.After(s.now) {
				s.now = due
			}
			s.submit(s.m.Claim(s.mayDeliver))
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

func (s *sim) settle(o *lane.Outcome, a *arrival) {
	s.submit(s.m.Settle(o, a.webhook.Lane))
}

func (s *sim) deliver(lease *lane.Lease) {
	w, life := s.world, s.life
	a := w.byID[lease.Webhook.UUID]
	o := &lane.Outcome{Lease: lease, Began: time.Now()}
	name := lease.Receiver.Name
	if w.r.IntN(40) == 0 || s.isHeld[a.tenant] || s.isPaused(a.webhook.Lane.Platform, a.tenant, name) {
		o.Aborted = true
		s.settle(o, a)
		return
	}
	t, word, took := w.begin(a, life, name, s.now)
	s.underTry[t] = func() { t.cut, t.ended = true, s.now; w.underway[a.tenant]-- }
	s.at(took, life, func() {
		delete(s.underTry, t)
		if w.end(t, word, s.now); t.status == 0 {
			o.Try.Err = syscall.ECONNREFUSED
		}
		o.Try.Status, o.Took = t.status, took
		if w.r.IntN(20) == 0 {
			// It stands still, and the lease ends before the outcome is written.
			until := s.now.Add(w.lease + pick(w.r, 10*time.Millisecond, time.Second/2, time.Second, 5*time.Second))
			life.troubles = append(life.troubles, trouble{t.began, until, true})
			w.seen["late"] = true
			s.at(until.Sub(s.now), life, func() { s.settle(o, a) })
			return
		}
		s.settle(o, a)
	})
}

// hook makes a webhook.
func (s *sim) hook(id, tenant, state string) *webhookgate.Webhook {
	body, other := tenant+state, s.r.IntN(10) == 0
	if other {
		body += " other"
	}
	hook := s.world.hook(id, tenant, []byte(body))
	hook.Received, hook.Receiver = s.now, s.life.receivers.For(platform(tenant))
	if other {
		hook.Type, hook.Snapshot = "Other", false
	}
	says := snapshot.Snapshot{Known: true, Features: []snapshot.Feature{{Code: state}}}
	hook.State = says.Stored(hook.Lane.Platform, tenant, id)
	return hook
}

// arrive notes that a webhook comes.
func (s *sim) arrive(hook *webhookgate.Webhook, tenant, snapshot string) *arrival {
	w := s.world
	a := &arrival{number: len(w.arrivals), tenant: tenant, snapshot: snapshot, life: s.life, from: s.now, webhook: hook}
	a.plan = w.plan()
	if hook.Receiver != nil {
		a.receiver = hook.Receiver.Name
	}
	w.arrivals = append(w.arrivals, a)
	w.byID[hook.ID] = a
	return a
}

// recordInvalid has a webhook come that cannot be taken in.
func (s *sim) recordInvalid(tenant, snapshot string) {
	hook := s.hook(fmt.Sprintf("r%d-%x", len(s.rejections), s.seed), tenant, snapshot)
	if s.r.IntN(5) == 0 { // its tenant is not certain
		hook.Lane = webhookgate.LaneName{}
	}
	r := &rejection{webhook: hook, from: s.now, to: s.now.Add(time.Hour)}
	if hook.Lane.Tenant != "" && hook.Snapshot {
		r.version = s.change(tenant, snapshot)
	}
	s.rejections = append(s.rejections, r)
	s.byInvalid[hook.ID] = r
	life := s.life
	s.submit(s.m.RecordInvalid(hook, func(id int64) {
		if life.dead.IsZero() {
			r.ok, r.to, r.id = true, s.now, id
		}
	}))
}

// accept takes in a rejection.
func (s *sim) accept() {
	w := s.world
	all := slices.DeleteFunc(s.m.List(), func(e *lane.Webhook) bool { return !e.Rejected() || e.Tenant == "" })
	if len(all) == 0 {
		return
	}
	e := all[w.r.IntN(min(4, len(all)))]
	hook := *s.byInvalid[e.UUID].webhook
	hook.ID, hook.Receiver = fmt.Sprintf("a%d-%x", len(s.accepted), w.seed), s.life.receivers.For(hook.Lane.Platform)
	s.accepted[hook.ID] = e.ID
	a := s.arrive(&hook, e.Tenant, strings.TrimSuffix(strings.TrimPrefix(string(hook.Body), e.Tenant), " other"))
	life := s.life
	s.mayBeDealt(e.ID)
	s.submit(s.m.Accept(e.ID, &hook, w.r.IntN(2) == 0, func(got lane.Answer, err error) {
		a.ended, a.to = true, s.now
		if !life.dead.IsZero() {
			return
		}
		if a.ok = err == nil; a.ok {
			w.seen["accepted"] = true
			if got.DuplicateOf != "" || s.dealt[e.ID] {
				s.violation("(i) rejection %d was accepted twice, or as a copy", e.ID)
			}
			s.dealt[e.ID] = true
		}
	}))
}

// resume ends the pause of a tenant.
func (s *sim) resume(tenant string) {
	s.resumes++
	delete(s.isHeld, tenant)
}

// lastInvalid is when a rejection, or a copy of it, may last have come.
func (s *sim) lastInvalid(id int64, hook *webhookgate.Webhook) (last time.Time) {
	for _, c := range s.rejections {
		if c.webhook.Digest == hook.Digest && (c.id == id || !c.ok) && c.to.After(last) {
			last = c.to
		}
	}
	return last
}

// judgeInvalid looks at what became of rejections.
func (s *sim) judgeInvalid() {
	w := s.world
	for _, e := range s.m.List() {
		if !e.Rejected() {
			continue
		}
		r := s.byInvalid[e.UUID]
		w.seen["invalid "+string(e.State)] = true
		unsure := !r.ok
		var last time.Time
		for _, c := range s.rejections {
			if c.webhook.Digest == r.webhook.Digest && c.webhook.Lane == r.webhook.Lane {
				unsure = unsure || !c.ok
				if c.id == e.ID {
					last = c.to
				}
			}
		}
		newer := func(certain bool) bool {
			return slices.ContainsFunc(w.arrivals, func(a *arrival) bool {
				former, accepted := s.accepted[a.webhook.ID] // it only supersedes what came before it
				isNewer := a.tenant == e.Tenant && a.webhook.Snapshot && a.entry != nil && a.entry.ID > e.ID
				if !certain && a.tenant == e.Tenant && a.webhook.Snapshot && (a.original != "" || !a.ok) {
					isNewer = isNewer || !a.to.Before(r.from) // a copy of the last snapshot is one, too
				}
				switch {
				case certain:
					return isNewer && a.from.After(last) && !accepted
				case accepted:
					return isNewer && !s.lastInvalid(former, a.webhook).Before(last)
				}
				return isNewer
			})
		}
		good := false
		switch e.State {
		case state.Invalid:
			good = !s.dealt[e.ID] && (unsure || e.Type != "TenantProvisioningChange" || !newer(true))
		case state.Superseded:
			good = e.Tenant != "" && newer(false) && e.Type == "TenantProvisioningChange"
		case state.Replaced, state.Discarded:
			_, good = s.dealt[e.ID]
		}
		if !good {
			w.violation("(i) rejection %d of %q is %s %q", e.ID, e.Tenant, e.State, e.Why)
		}
	}
	// None is gone, unless its tenant was erased.
	for _, r := range s.rejections {
		if !r.ok || slices.ContainsFunc(s.m.List(), func(e *lane.Webhook) bool { return e.ID == r.id }) {
			continue
		}
		erased := slices.ContainsFunc(w.erasures, func(e span) bool {
			return e.tenant == r.webhook.Lane.Tenant && e.to.After(r.from)
		})
		if !erased {
			w.violation("(i) rejection %d of %q is gone", r.id, r.webhook.Lane.Tenant)
		}
	}
}

// judgeTaken looks at webhooks that were taken in although they were copies of the one that had come before them.
// Where somebody has done something to the tenant meanwhile it says nothing.
func (s *sim) judgeTaken() {
	w := s.world
	for i, n := range w.arrivals {
		if _, accepted := s.accepted[n.webhook.ID]; accepted || !n.ok || n.original != "" || !n.webhook.Snapshot {
			continue
		}
		var o *arrival // what came last, and was taken in
		for _, m := range w.arrivals[:i] {
			if m.tenant == n.tenant && (m.original == "" && (m.ok || m.err == nil)) {
				o = m
			}
		}
		if o == nil || !o.ok || !o.webhook.Snapshot || o.webhook.Digest != n.webhook.Digest {
			continue
		}
		if s.touched(n.tenant, o.from, n.to) {
			continue
		}
		if o.entry != nil && o.entry.State == state.Stored {
			if n.receiver == "" && n.to.Sub(o.from) < w.window {
				w.violation("(a) arrival %d was taken in, though it is a copy of %d, which was stored",
					n.number, o.number)
			}
			continue
		}
		if o.entry == nil && o.receiver == "" { // erased since then; it may have been stored
			continue
		}
		waits, held := n.to.Sub(o.from) < w.maxAge, false
		for _, t := range w.tries {
			if t.arrival != o || t.ended.IsZero() || t.ended.After(n.to) {
				continue
			}
			waits = waits && !t.accepted() && t.status != 422
			settled := t.ended.Add(w.settled).Before(n.from) && !w.trouble(t.began, n.to, true)
			held = t.accepted() && t.receiver == n.receiver && settled && n.to.Sub(t.ended) < w.window
		}
		if waits || held {
			w.violation("(a) arrival %d was taken in, though it is a copy of %d, which waits: %v, or was accepted",
				n.number, o.number, waits)
		}
	}
}

// judgeTries looks at tries of what had come to its end.
func (s *sim) judgeTries() {
	w := s.world
	type delivery struct {
		*arrival
		instance int
	}
	ended := make(map[delivery]bool)
	for _, t := range w.tries {
		d := delivery{t.arrival, t.instance}
		isUnsure := func(r *redelivery) bool { return r.unsure }
		unsure := w.trouble(t.from, t.began, true) || slices.ContainsFunc(t.again, isUnsure)
		if ended[d] && !unsure {
			w.violation("(b) arrival %d was tried again, though it is parked", t.number)
		}
		ended[d] = ended[d] || t.status == 422
	}
}

// touched says whether somebody may have done something to a tenant's webhooks between two moments.
func (s *sim) touched(tenant string, from, to time.Time) bool {
	during := func(f, t time.Time) bool { return !f.After(to) && !t.Before(from) }
	over := func(x span) bool { return x.tenant == tenant && during(x.from, x.to) }
	byHand := func(a *arrival) bool {
		again := func(r *redelivery) bool { return during(r.from, r.to) }
		discarded := func(d *discard) bool { return during(d.from, d.to) }
		return a.tenant == tenant &&
			(slices.ContainsFunc(a.again, again) || slices.ContainsFunc(a.discards, discarded))
	}
	return slices.ContainsFunc(s.erasures, over) ||
		slices.ContainsFunc(s.arrivals, byHand)
}

func (s *sim) send(tenant, snapshot string) {
	w := s.world
	hook := s.hook(fmt.Sprintf("%d-%x", len(w.arrivals), w.seed), tenant, snapshot)
	a := s.arrive(hook, tenant, snapshot)
	if hook.Snapshot {
		a.version = s.change(tenant, snapshot)
	}
	life := s.life
	s.submit(s.m.Take(a.webhook, func(got lane.Answer, err error) {
		a.ended, a.to = true, s.now
		if !life.dead.IsZero() {
			return
		}
		a.ok, a.err, a.original = err == nil, err, got.DuplicateOf
	}))
}

// reconcile compares what the billing service says of all tenants with what is known. It is a process of its own, and
// outlives usher.
func (s *sim) reconcile(
	mode lane.ReconcileMode, asks, goesOn time.Duration, done func(tenant string, c lane.Compared),
) {
	w := s.world
	w.runs++
	run := &aRun{number: w.runs, stores: mode == lane.ToStore}
	began := s.life
	s.submit(s.m.Begin(run.number, func() {
		if !began.dead.IsZero() {
			return // nobody was told that it has begun
		}
		run.began = s.now
		s.at(asks, nil, func() {
			said := maps.Clone(w.service)
			s.at(goesOn, nil, func() {
				for _, tenant := range slices.Sorted(maps.Keys(said)) {
					s.compare(run, mode, said[tenant], done)
				}
			})
		})
	}))
}

// compare compares what the billing service said of one tenant.
func (s *sim) compare(run *aRun, mode lane.ReconcileMode, said saying, done func(tenant string, c lane.Compared)) {
	id := fmt.Sprintf("x%d-%s-%x", run.number, said.tenant, s.seed)
	hook := s.world.hook(id, said.tenant, fmt.Appendf(nil, "%s of run %d", said.snapshot, run.number))
	hook.Received, hook.Receiver = s.now, s.life.receivers.For(platform(said.tenant))
	says := snapshot.Snapshot{Known: true, Features: []snapshot.Feature{{Code: said.snapshot}}}
	hook.State = says.Stored(hook.Lane.Platform, hook.Lane.Tenant, hook.ID)
	if hook.Receiver == nil && !s.cfg.StoreUnclaimed {
		return // it is passed over
	}
	a := s.arrive(hook, said.tenant, said.snapshot)
	a.version, a.run = said.version, run
	life := s.life
	s.submit(s.m.Reconcile(run.number, hook, mode, func(c lane.Compared) {
	}, func(c lane.Compared) {
		a.ended, a.to = true, s.now
		if life.dead.IsZero() {
			a.ok = c.Applied
			s.world.seen["reconciled "+string(c.Result)] = true
			done(said.tenant, c)
		}
	}))
}

// reconcileAll compares everything in the end: what differs is taken in, and then nothing differs.
func (s *sim) reconcileAll() {
	want := func(results ...lane.Result) func(string, lane.Compared) {
		return func(tenant string, c lane.Compared) {
			if c.Result == lane.Left && slices.ContainsFunc(s.erasures, func(e span) bool { return e.tenant == tenant }) {
				return
			}
			if !slices.Contains(results, c.Result) || c.Result != lane.Equal && !c.Applied {
				s.violation("(k) in the end %s is %s, applied: %t", tenant, c.Result, c.Applied)
			}
		}
	}
	s.reconcile(lane.ToApply, time.Second, time.Second, want(lane.Equal, lane.Differs, lane.NewTenant))
	s.advance(s.now.Add(s.pace.calm))
	s.reconcile(lane.ToCompare, time.Second, time.Second, func(tenant string, c lane.Compared) {
		want(lane.Equal)(tenant, c)
	})
	s.advance(s.now.Add(time.Minute))
}

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
			if errors.Is(err, lane.ErrBusy) && s.now.Sub(began) < 20*time.Second {
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
	s.life.receivers = w.receivers(func(*receiver.Receiver) {})
	w.cfg.Receivers = s.life.receivers
	w.places[0].life = s.life
}

func (s *sim) some(fits func(*lane.Webhook) bool) (e *lane.Webhook, a *arrival) {
	all := slices.DeleteFunc(s.m.List(), func(e *lane.Webhook) bool { return !fits(e) })
	if len(all) == 0 {
		return e, nil
	}
	e = all[s.r.IntN(min(6, len(all)))]
	return e, s.byID[e.UUID]
}

func (s *sim) step(n int) {
	w := s.world
	tenant, snapshot := pick(w.r, w.tenants...), pick(w.r, "A", "B")
	name := webhookgate.LaneName{Platform: platform(tenant), Tenant: tenant}
	step := pick(w.r,
		"send", "send", "send", "send", "send", "copy", "copy", "copy", "burst", "burst", "sleep", "sleep", "sleep",
		"redeliver", "redeliver", "discard", "erase", "outage", "pause", "resume", "kill",
		"reject", "reject", "reject", "reject again", "accept", "discard invalid", "sleep long", "lose", "lose",
		"reconcile", "reconcile", "reconcile")
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
	case "sleep long": // longer than signed ids are remembered
		s.advance(s.now.Add(15*time.Minute + time.Second))
		return
	case "redeliver":
		e, a := s.some(func(*lane.Webhook) bool { return true })
		if a == nil {
			break
		}
		force := w.r.IntN(2) == 0
		unsure := e.State == state.Waiting || e.State == state.Superseded
		again := &redelivery{from: s.now, to: s.now.Add(time.Hour), forced: force, unsure: unsure}
		a.again = append(a.again, again)
		s.act(func(done func(error)) Work { return s.m.Redeliver(e, force, done) }, func(err error) {
			again.to = s.now
			if err != nil {
				w.takeBack(a, again)
			} else {
				w.seen["redelivered"] = true
			}
		})
	case "discard":
		e, a := s.some(func(e *lane.Webhook) bool { return !e.State.Finished() })
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
	case "reject":
		s.recordInvalid(tenant, pick(w.r, "A", "B", "C", "D", "E"))
	case "reject again":
		if n := len(s.rejections); n > 0 {
			r := s.rejections[n-1-w.r.IntN(min(3, n))]
			if tenant := r.webhook.Lane.Tenant; tenant != "" {
				body := strings.TrimPrefix(string(r.webhook.Body), tenant)
				s.recordInvalid(tenant, strings.TrimSuffix(body, " other"))
			}
		}
	case "accept":
		s.accept()
	case "lose":
		s.change(tenant, snapshot)
	case "reconcile":
		mode := pick(w.r, lane.ToCompare, lane.ToApply, lane.ToApply, lane.ToStore)
		asks, goesOn := pick(w.r, w.sleeps...)/2, pick(w.r, w.sleeps...)/2
		s.reconcile(mode, asks, goesOn, func(string, lane.Compared) {})
	case "discard invalid":
		all := slices.DeleteFunc(s.m.List(), func(e *lane.Webhook) bool { return e.State != state.Invalid })
		if len(all) == 0 {
			break
		}
		e := all[w.r.IntN(len(all))]
		s.mayBeDealt(e.ID)
		s.submit(s.m.Discard(e, func(err error) { s.dealt[e.ID] = s.dealt[e.ID] || err == nil }))
	case "erase":
		e := span{tenant: tenant, from: s.now, to: s.now.Add(time.Hour), unsure: true}
		w.erasures = append(w.erasures, e)
		n := len(w.erasures) - 1
		s.act(func(done func(error)) Work { return s.m.Erase(name, done) }, func(err error) {
			w.erasures[n].to, w.erasures[n].unsure = s.now, err != nil
			w.seen["erased"] = true
		})
	case "outage":
		w.outages[pick(w.r, "one", "two")] = s.now.Add(pick(w.r, w.pace.outages...))
	case "pause":
		s.isHeld[tenant] = true
	case "resume":
		s.resume(tenant)
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
		s.works, s.gathering = nil, false
		w.seen["killed"] = true
		s.m.Now = s.now.UnixMicro()
		s.m.Crash()
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
		s.resume(tenant)
	}
	s.advance(s.now.Add(w.pace.calm))
	if w.seed%2 == 0 {
		s.reconcileAll()
	}
	for _, r := range s.rejections {
		if r.ok && r.version > 0 {
			w.invalid = append(w.invalid, saying{r.webhook.Lane.Tenant, "", r.version, r.from, r.to})
		}
	}
	for _, e := range s.m.List() {
		if e.Rejected() {
			continue
		}
		a := w.byID[e.UUID]
		a.entry = e
		if w.unfinished(e) {
			w.violation("(c) still waiting: %d, arrival %d: %+v", e.ID, a.number, e.Status)
		}
	}
	w.judge()
	s.judgeInvalid()
	s.judgeTaken()
	s.judgeTries()
}

func TestWorldsOnLanes(t *testing.T) {
	t.Parallel()
	count := *worldCount
	switch {
	case *long:
		count = 100_000
	case testkit.WithRace(): // one goroutine has no races
		count = 300
	}
	began, tries, arrivals := time.Now(), 0, 0
	seen := make(map[string]int)
	failed := 0
	from := uint64(1)
	if *worldSeed != 0 {
		from, count = *worldSeed, *worldSeed
	}
	for seed := from; seed <= count && failed < 1; seed++ {
		w := newWorld(seed, filePace)
		w.cfg.Log = quiet
		w.cfg.Limits = DefaultLimits
		w.places = []*place{{world: w}}
		shorter := w.cfg.Jitter // there is no courier that knows of receivers that are down
		w.cfg.Jitter = func(d time.Duration) time.Duration { return max(shorter(d), 500*time.Millisecond) }
		s := &sim{
			world:     w,
			now:       time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
			underTry:  make(map[*try]func()),
			byInvalid: make(map[string]*rejection),
			accepted:  make(map[string]int64),
			isHeld:    make(map[string]bool),
			dealt:     make(map[int64]bool),
		}
		w.lease = 10*time.Second + w.timeout
		s.m = NewMemory(&w.cfg, seed)
		s.m.Places = func(name webhookgate.LaneName) bool { return s.mayDeliver(name) && w.r.IntN(5) > 0 }
		s.live()
		tries, arrivals = tries+len(w.tries), arrivals+len(w.arrivals)
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
	t.Logf("%.0f worlds a second; %d arrivals, %d tries; %v",
		float64(seen["world"])/took.Seconds(), arrivals, tries, seen)
}

// A lane is read as it was written: its fields are the columns of 001.sql, each once.
func TestLaneIsItsColumns(t *testing.T) {
	// columnOf is the name that a field's column should have.
	columnOf := func(l *lane.Lane, field any) string {
		others := map[string]string{"ReceiverName": "receiver", "LeasedID": "leased", "Type": "event_type"}
		for _, part := range []reflect.Value{reflect.ValueOf(l).Elem(), reflect.ValueOf(&l.LaneName).Elem()} {
			for n := range part.NumField() {
				name := part.Type().Field(n).Name
				if part.Type().Field(n).IsExported() && part.Field(n).Addr().Interface() == field {
					words := regexp.MustCompile("([a-z])([A-Z])").ReplaceAllString(name, "${1}_$2")
					return cmp.Or(others[name], strings.ToLower(words))
				}
			}
		}
		return ""
	}
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		e := open()
		defer e.Close()
		wrote := &lane.Lane{LaneName: webhookgate.LaneName{Tenant: "t", Platform: "p"}}
		columns := engine.LaneColumns
		fields := laneFields(wrote)
		if len(fields) != len(columns) {
			t.Fatalf("%d fields, and %d columns", len(fields), len(columns))
		}
		for n, c := range columns {
			switch f := fields[n].(type) {
			case *int64:
				if n > 3 {
					*f = 100 + int64(n)
				}
			case *string:
				if n > 2 {
					*f = fmt.Sprint("text", n)
				}
			case *[]byte:
				*f = fmt.Append(nil, "bytes", n)
			}
			if name := columnOf(wrote, fields[n]); name != c {
				t.Errorf("column %s is the field %s", c, name)
			}
		}
		check(t, e.Write(func(tx engine.Tx) error {
			tx.Queue("lane_add", nil, []string{"t"}, []string{"p"}, []string{""})
			queueRows(tx, "lane_save", []*lane.Lane{wrote}, laneRow)
			return nil
		}))
		var read *lane.Lane
		check(t, e.Read(t.Context(), func(tx engine.Tx) error {
			tx.Queue("lanes_of_tenant", func(r engine.Row) (err error) { read, err = scanLane(r); return err }, "t")
			return tx.Send()
		}))
		got, want := fmt.Sprintf("%+v", laneRow(read)), fmt.Sprintf("%+v", laneRow(wrote))
		if got != want {
			t.Errorf("read  %s\nwrote %s", got, want)
		}
	})
}

// A webhook is read as it was written: its values are the columns of 001.sql, in their order.
func TestWebhookIsItsColumns(t *testing.T) {
	wrote := &lane.Webhook{
		ID: 101, UUID: "uuid", Tenant: "tenant", Platform: "platform", Type: "type", Source: "source",
		LaneName: webhookgate.LaneName{Tenant: "tenant", Platform: "platform", Type: "event_type"},
		Snapshot: true, Digest: []byte("digest"), Size: 102, Received: clock.Moment(103), Rank: 104,
		Status: lane.Status{State: state.Parked, Changed: clock.Moment(105), Why: "why", Record: lane.Record{Tries: 106}},
	}
	row := func(w *lane.Webhook) string {
		values := make(map[string]any)
		for n, v := range webhookColumns(w) {
			values[engine.WebhookColumns[n]] = v
		}
		return fmt.Sprintf("%d %v", len(values), values)
	}
	named := map[string]any{
		"seq": int64(101), "uuid": "uuid", "tenant": "tenant", "platform": "platform", "event_type": "event_type",
		"type": "type", "snapshot": true, "digest": []byte("digest"), "size": int64(102), "received": int64(103),
		"state": state.Parked.Number(), "rank": int64(104), "changed": int64(105), "why": "why", "source": "source",
		"record": encodeRecord(wrote),
	}
	if got, want := row(wrote), fmt.Sprintf("%d %v", len(engine.WebhookColumns), named); got != want {
		t.Fatalf("it writes %s\nwant      %s", got, want)
	}
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		e := open()
		defer e.Close()
		readAfter := func(what string, wrote *lane.Webhook, write func(engine.Tx)) {
			check(t, e.Write(func(tx engine.Tx) error { write(tx); return nil }))
			var read *lane.Webhook
			check(t, e.Read(t.Context(), func(tx engine.Tx) error {
				tx.Queue("webhooks", func(r engine.Row) (err error) { read, err = scanWhole(r); return err }, []int64{101})
				return tx.Send()
			}))
			if got, want := row(read), row(wrote); got != want {
				t.Errorf("%s: read  %s\nwrote %s", what, got, want)
			}
		}
		readAfter("new", wrote, func(tx engine.Tx) { queueRows(tx, "webhook_add", []*lane.Webhook{wrote}, webhookColumns) })
		later := *wrote
		later.State, later.Why, later.Tries = state.Discarded, "another", 201
		later.Rank, later.Changed = 202, clock.Moment(203)
		readAfter("changed", &later, func(tx engine.Tx) {
			queueRows(tx, "webhook_save", []*lane.Webhook{&later}, webhookChanges)
		})
	})
}
