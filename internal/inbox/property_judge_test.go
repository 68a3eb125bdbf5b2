package inbox

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"pgregory.net/rapid"
)

func (w *world) judge(rt *rapid.T, seen *sync.Map) {
	for _, v := range w.violations {
		rt.Errorf("%s", v)
	}
	if w.asked > 0 {
		seen.Store("asked", true)
	}
	if w.paused {
		seen.Store("paused", true)
	}
	for range w.crashes {
		seen.Store("crash", true)
	}
	for _, p := range w.places {
		if !p.life.dead && len(p.life.troubles) > 0 {
			seen.Store("cut", true)
		}
	}
	for _, a := range w.arrivals {
		if a.given {
			seen.Store("given up", true)
		}
		switch {
		case !a.returned:
			if a.entry != nil {
				seen.Store("in doubt", true)
			}
		case a.original != "":
			seen.Store("duplicate", true)
			w.judgeDuplicate(rt, a)
		case a.entry == nil:
			rt.Errorf("(c) arrival %d was acknowledged, and is gone", a.number)
		default:
			w.judgeKept(rt, a)
		}
		if a.entry != nil {
			seen.Store(string(a.entry.State), true)
		}
		for _, r := range a.again {
			seen.Store(map[bool]string{true: "forced", false: "redelivered"}[r.forced], true)
		}
	}
	w.judgeOrder(rt, seen)
	for _, tenant := range w.tenants {
		w.judgeEnd(rt, tenant)
	}
	if rt.Failed() {
		w.tell(rt)
	}
}

// judgeDuplicate is (a): of all that stood in the lane when n came, the last that was
// sent to the receiver is what n was. It was accepted within the window before n, or
// n came before its end.
func (w *world) judgeDuplicate(rt *rapid.T, n *arrival) {
	original := w.byID[n.original]
	if original.tenant != n.tenant || original.snapshot != n.snapshot {
		rt.Errorf("(a) arrival %d was said to be a copy of %d", n.number, original.number)
	}
	if w.cfg.KeepLatest && w.neverConcluded(original, n) {
		return // it stood last, and what came after n superseded it
	}
	for _, d := range original.discards {
		if d.at.After(n.at) {
			return // it stood last, and somebody wanted neither of them
		}
	}
	var last, lastAnswered *attempt
	for _, t := range w.tries {
		switch {
		case t.tenant != n.tenant:
		case t.ahead(n):
			last, lastAnswered = t, t
		case t.instance > 0 && t.arrival.again[t.instance-1].at.Before(n.answered):
			lastAnswered = t // n waited while it was sent again: which was first nobody can say
		}
	}
	if why := w.notHeld(last, n); why != "" && w.notHeld(lastAnswered, n) != "" {
		rt.Errorf("(a) arrival %d (%s of %s) was dropped as a copy of %d; %s", n.number, n.snapshot, n.tenant, original.number, why)
	}
}

// notHeld says why after a try, the last of its tenant when n came, the receiver does not
// hold what n was.
func (w *world) notHeld(last *attempt, n *arrival) string {
	switch {
	case last == nil || last.snapshot != n.snapshot:
		return "the receiver got something else since"
	case last.accepted() && last.receiver != n.receiver && last.ended.Before(n.at):
		return fmt.Sprint("that was accepted by ", last.receiver)
	case last.accepted() && n.at.Sub(last.ended) >= testWindow:
		return fmt.Sprint("that was accepted ", n.at.Sub(last.ended), " before")
	case !last.accepted() && last.ended.Before(n.at) && !w.unknown(last, n.at):
		return fmt.Sprint("and ", last.number, " had failed for good")
	}
	return ""
}

// neverConcluded says of n's original that it was neither accepted nor refused before
// its redelivery, if any, and that nothing came between the two.
func (w *world) neverConcluded(original, n *arrival) bool {
	// An arrival that was stuck on its way may be a copy of one that was sent after it.
	for _, m := range w.arrivals[min(original.number+1, n.number):n.number] {
		if m.tenant == n.tenant && m.entry != nil {
			return false
		}
	}
	for _, t := range w.tries {
		if t.arrival == original && t.ahead(n) && (t.accepted() || t.status == 422) && !w.lost(t) {
			return false
		}
	}
	return true
}

// lost says whether a crash or a cut may have undone what usher had learnt from a try.
func (w *world) lost(t *attempt) bool {
	for _, x := range t.life.troubles {
		// Who is cut off delivers on for a while, and none of it gets known.
		if !t.ended.Add(w.settled()).Before(x.from) && t.began.Before(x.to.Add(testLease+w.settled())) {
			return true
		}
	}
	return false
}

// unknown says whether the end of a try may not have been known to all at that time.
func (w *world) unknown(t *attempt, at time.Time) bool {
	return w.several() && !t.ended.Add(w.settled()).Before(at) || t.cut
}

// judgeKept is (c), for one that was acknowledged.
func (w *world) judgeKept(rt *rapid.T, a *arrival) {
	var last *attempt
	refusals := 0
	accepted := false
	for _, t := range w.tries {
		if t.arrival == a && t.instance == len(a.again) {
			last = t
			accepted = accepted || t.accepted()
			if t.status == 500 {
				refusals++
			}
		}
	}
	since := a.webhook.Received
	if len(a.again) > 0 {
		since = a.again[len(a.again)-1].at
	}
	good := false
	discarded := slices.ContainsFunc(a.discards, func(d discard) bool { return d.instance == len(a.again) })
	switch e := a.entry; e.State {
	case Discarded:
		good = discarded
	case Delivered:
		good = accepted
	case Parked:
		good = last != nil && (last.status == 422 || refusals >= testTries || last.ended.Sub(since) > testMaxAge)
	case Superseded:
		for _, b := range w.arrivals[a.number+1:] {
			good = good || b.tenant == a.tenant && b.entry != nil && (w.cfg.KeepLatest && len(a.again) == 0 || w.wasAccepted(b))
		}
	}
	if !good {
		rt.Errorf("(c) arrival %d was acknowledged, and is %s %q after %d redeliveries; last try: %+v", a.number, a.entry.State, a.entry.Why, len(a.again), last)
	}
}

func (w *world) wasAccepted(a *arrival) bool {
	for _, t := range w.tries {
		if t.arrival == a && t.accepted() {
			return true
		}
	}
	return false
}

// judgeOrder is (b).
func (w *world) judgeOrder(rt *rapid.T, seen *sync.Map) {
	type during struct {
		tenant string
		life   *life
	}
	type delivery struct {
		*arrival
		instance int
	}
	front := make(map[during]*attempt)      // the highest number tried so far
	accepted := make(map[delivery]*attempt) // when it was
	for _, t := range w.tries {
		d := delivery{t.arrival, t.instance}
		if before := accepted[d]; before != nil {
			seen.Store("repeat", true)
			if !w.lost(before) {
				rt.Errorf("(b) arrival %d was accepted, and delivered again", t.number)
			}
		}
		if t.accepted() {
			accepted[d] = t
		}
		for _, x := range t.arrival.discards {
			if x.instance == t.instance && t.began.After(x.at) && !x.unsure {
				rt.Errorf("(b) arrival %d was discarded, and delivered", t.number)
			}
		}
		if t.instance > 0 {
			continue
		}
		l := during{t.tenant, t.life}
		// Who lost the lease and got it back begins anew with what was not noted.
		if f := front[l]; f != nil && t.number < f.number && !w.lost(f) {
			rt.Errorf("(b) arrival %d was delivered after %d of the same tenant", t.number, f.number)
		}
		front[l] = t
	}
}

// newest is the last arrival of a tenant.
func (w *world) newest(tenant string) (newest *arrival) {
	for _, a := range w.arrivals {
		if a.tenant == tenant {
			newest = a
		}
	}
	return newest
}

// judgeEnd is (d).
func (w *world) judgeEnd(rt *rapid.T, tenant string) {
	var newest *arrival
	for _, a := range w.arrivals {
		if a.tenant == tenant && a.entry != nil {
			newest = a
		}
	}
	if newest == nil || newest.entry.State != Delivered {
		return
	}
	for _, a := range w.arrivals {
		for _, r := range a.again {
			if a.tenant == tenant && r.forced && a.number < newest.number && r.after > newest.number {
				return // somebody wanted it so
			}
		}
	}
	if held := w.latest[holding{newest.entry.Receiver, tenant}]; held != newest.snapshot {
		rt.Errorf("(d) receiver %s holds %s of %s, the newest is %s (arrival %d, %s)", newest.entry.Receiver, held, tenant, newest.snapshot, newest.number, newest.entry.State)
	}
}

// tell writes the story of a failure.
func (w *world) tell(rt *rapid.T) {
	begin := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // a bubble's time begins there
	for _, a := range w.arrivals {
		state := "not kept"
		if a.entry != nil {
			state = fmt.Sprint("id ", a.entry.ID, " ", a.entry.State)
		}
		if a.original != "" {
			state = fmt.Sprint("duplicate of ", w.byID[a.original].number)
		}
		rt.Logf("%v: arrival %d: %s of %s, returned %v, %s", a.at.Sub(begin), a.number, a.snapshot, a.tenant, a.returned, state)
		for _, r := range a.again {
			rt.Logf("   redelivered at %v, before arrival %d, forced %v", r.at.Sub(begin), r.after, r.forced)
		}
	}
	for _, a := range w.arrivals {
		for _, d := range a.discards {
			rt.Logf("%v: arrival %d discarded", d.at.Sub(begin), a.number)
		}
	}
	for _, t := range w.tries {
		rt.Logf("%v to %v: try of %d (%s of %s) at %s: %d, cut %v", t.began.Sub(begin), t.ended.Sub(begin), t.number, t.snapshot, t.tenant, t.receiver, t.status, t.cut)
	}
	for _, c := range w.crashes {
		rt.Logf("%v: crash", c.Sub(begin))
	}
}
