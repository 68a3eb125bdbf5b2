package inbox

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane/state"
)

// judge looks for violations of the rules (a) to (l); see TestWorldsInAFile.
func (w *world) judge() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.arrivals {
		if a.entry != nil {
			w.seen[string(a.entry.State)] = true
		}
		switch {
		case a.ok && a.original != "":
			w.seen["duplicate"] = true
			w.judgeDuplicate(a)
		case a.ok && a.entry == nil:
			if !w.mayBeErased(a) {
				w.violation("(c) arrival %d was acknowledged, and is gone", a.number)
			}
		case a.ok:
			w.judgeStored(a)
		default:
			w.judgeUnsure(a)
		}
	}
	w.judgeOrder()
	w.judgeRuns()
	w.judgeAsks()
	for _, tenant := range w.tenants {
		w.judgeEnd(tenant)
	}
}

// lives returns the lives of all processes.
func (w *world) lives() map[*life]bool {
	all := make(map[*life]bool)
	for _, a := range w.arrivals {
		all[a.life] = true
	}
	for _, t := range w.tries {
		all[t.life] = true
	}
	for _, p := range w.places {
		all[p.life] = true
	}
	return all
}

// trouble says whether any process had a problem with its database between two moments: it may hold a lock that
// others need.
func (w *world) trouble(from, to time.Time, away bool) bool {
	hit := func(t trouble) bool { return (t.away || !away) && !t.from.After(to) && !t.to.Before(from) }
	if slices.ContainsFunc(w.group.troubles(), hit) {
		return true
	}
	for l := range w.lives() {
		if slices.ContainsFunc(l.troubles, hit) {
			return true
		}
	}
	return false
}

// away says whether a process may not have heard from its database between two moments.
func (w *world) away(l *life, from, to time.Time) bool {
	return w.trouble(from.Add(-w.lease), to, true) || !l.dead.IsZero() && l.dead.Before(to)
}

// isBehind says whether an arrival is behind another one, a, that is there in the end, in the same lane.
func (b *arrival) isBehind(a *arrival) bool {
	return b.tenant == a.tenant && b.entry != nil && b.entry.ID > a.entry.ID
}

func (w *world) mayBeErased(a *arrival) bool {
	return slices.ContainsFunc(w.erasures, func(e span) bool { return e.tenant == a.tenant && e.to.After(a.from) })
}

// isErased says whether an arrival has certainly been erased at that time.
func (w *world) isErased(a *arrival, at time.Time) bool {
	return a.ok && slices.ContainsFunc(w.erasures, func(e span) bool {
		return e.tenant == a.tenant && !e.unsure && e.from.After(a.to) && e.to.Before(at)
	})
}

// judgeUnsure checks (g) for an arrival whose sender got an error, or no answer.
func (w *world) judgeUnsure(a *arrival) {
	if a.entry == nil {
		if a.err != nil && w.dsn == "" {
			w.violation("arrival %d: %v", a.number, a.err)
		}
		return
	}
	w.seen["in doubt"] = true
	switch {
	case a.err == nil: // it was told nothing
	case !a.gave && !errors.Is(a.err, engine.ErrDoubt) && !w.trouble(a.from, a.to, true):
		w.violation("(g) arrival %d was answered %q, and is there", a.number, a.err)
	case a.entry.Received.After(a.to):
		late := a.entry.Received.Sub(a.to)
		w.violation("(g) arrival %d was taken in %v after its sender had given up", a.number, late)
	}
}

// judgeDuplicate checks (a). Of all webhooks in the lane when n came, the last one that was sent to the receiver must
// have n's content. The receiver accepted it within the window before n came, or n came before its delivery ended.
func (w *world) judgeDuplicate(n *arrival) {
	o := w.byID[n.original]
	if o == nil || o.tenant != n.tenant || o.snapshot != n.snapshot || !o.webhook.Snapshot || !n.webhook.Snapshot {
		w.violation("(a) arrival %d was said to be a copy of %q", n.number, n.original)
		return
	}
	later := func(d *discard) bool { return d.to.After(n.from) }
	erased := slices.ContainsFunc(w.erasures, func(e span) bool { return e.tenant == n.tenant && e.to.After(n.from) })
	supersedes := func(t *try) bool { // somebody sent it again ahead of o
		later := t.instance > 0 && t.accepted() && t.began.After(n.from)
		return t.webhook.Snapshot && t.entry != nil && t.isBehind(o) && later
	}
	switch {
	case erased, slices.ContainsFunc(o.discards, later):
		return // it stood last, and somebody wanted neither of them
	case o.entry == nil:
		w.violation("(a) arrival %d was dropped as a copy of %d, which is gone", n.number, o.number)
		return
	case w.isTail(o, n) && o.entry.State == state.Waiting:
		return // nobody takes it
	case w.isTail(o, n) && o.entry.State == state.Superseded && slices.ContainsFunc(w.tries, supersedes):
		return // it stood last, and a newer one that somebody sent again ahead of it superseded it
	case w.isTail(o, n) && w.wasSentAgainLast(o, n):
		return // it stood last and was on its way, ahead of the others that waited: what becomes of it is n's fate, too
	case w.stores && o.receiver == "" && n.receiver == "" && len(o.again) > 0 && o.again[0].to.After(n.from) &&
		w.isTail(o, n) && n.from.Sub(o.entry.Received) <= w.window:
		return // it was stored, and somebody redelivered it later, when its platform had a receiver
	case o.entry.State == state.Stored && n.receiver == "": // what was sent again would be no longer
		if !w.isTail(o, n) || n.from.Sub(o.entry.Received) > w.window {
			w.violation("(a) arrival %d was dropped as a copy of %d, which was stored before", n.number, o.number)
		}
		return
	}
	var last *try // of what stood in the lane for sure
	var maybe []*try
	for _, t := range w.tries {
		switch {
		case t.tenant != n.tenant || !t.webhook.Snapshot:
		case w.before(t, n):
			last, maybe = t, nil
		case !w.after(t, n):
			maybe = append(maybe, t)
		}
	}
	why := w.notHeld(last, n)
	if why == "" || slices.ContainsFunc(maybe, func(t *try) bool { return w.notHeld(t, n) == "" }) {
		return
	}
	w.violation("(a) arrival %d (%s of %s) was dropped as a copy of %d; %s",
		n.number, n.snapshot, n.tenant, o.number, why)
}

// wasSentAgainLast says whether o was sent again before n came, and nothing else was since, and was tried after n had
// come.
func (w *world) wasSentAgainLast(o, n *arrival) bool {
	return slices.ContainsFunc(w.tries, func(t *try) bool {
		if t.arrival != o || t.instance == 0 || t.ended.Before(n.from) || t.again[t.instance-1].from.After(n.to) {
			return false
		}
		asked := t.again[t.instance-1].from
		meanwhile := func(r *redelivery) bool { return r.to.After(asked) && r.from.Before(n.to) }
		return !slices.ContainsFunc(w.arrivals, func(m *arrival) bool {
			return m.tenant == n.tenant && m != o && slices.ContainsFunc(m.again, meanwhile)
		})
	})
}

// before says whether the webhook of a try was certainly in the lane when n came, and after, whether it certainly
// came later.
func (w *world) before(t *try, n *arrival) bool {
	if t.instance > 0 {
		return t.began.Before(n.from) || t.again[t.instance-1].to.Before(n.from)
	}
	return t.began.Before(n.from) || t.to.Before(n.from)
}

func (w *world) after(t *try, n *arrival) bool {
	if t.instance > 0 {
		r := t.again[t.instance-1]
		return r.from.After(n.to) && (!r.unsure || t.from.After(n.to))
	}
	return t.from.After(n.to)
}

// isTail says whether certainly no webhook of o's tenant came between o and n.
func (w *world) isTail(o, n *arrival) bool {
	return !slices.ContainsFunc(w.arrivals, func(m *arrival) bool {
		return m.isBehind(o) && m.to.Before(n.from)
	})
}

// notHeld says why, after the last try of its tenant before n came, the receiver does not hold n's content.
func (w *world) notHeld(last *try, n *arrival) string {
	failed := last != nil && !last.accepted() && !last.cut
	switch {
	case last == nil || last.snapshot != n.snapshot:
		return "the receiver got something else since"
	case last.accepted() && last.receiver != n.receiver && last.ended.Before(n.from) && n.receiver != "":
		return fmt.Sprint("that was accepted by ", last.receiver)
	case last.accepted() && n.from.Sub(last.ended) >= w.window+w.settled && !w.trouble(last.began, n.from, false):
		return fmt.Sprint("that was accepted ", n.from.Sub(last.ended), " before")
	case failed && last.ended.Add(w.settled).Before(n.from) && !w.trouble(last.began, n.from, false):
		return fmt.Sprint("and ", last.number, " had failed for good")
	}
	return ""
}

// judgeStored checks (c) for an arrival that was acknowledged.
func (w *world) judgeStored(a *arrival) {
	e := a.entry
	unsure := slices.ContainsFunc(a.again, func(r *redelivery) bool { return r.unsure })
	var last *try
	rejections, accepted := 0, false
	for _, t := range w.tries {
		if t.arrival == a && (unsure || t.instance == len(a.again)) {
			last = t
			accepted = accepted || t.accepted() && t.receiver == e.Receiver
			rejections += number(t.status == 500)
		}
	}
	since := e.Received
	if !e.Redelivered.IsZero() {
		since = e.Redelivered
	}
	good := false
	switch e.State {
	case state.Waiting:
		good = !w.unfinished(e)
	case state.Discarded:
		good = slices.ContainsFunc(a.discards, func(d *discard) bool { return unsure || d.instance == len(a.again) })
	case state.Delivered:
		good = accepted
	case state.Stored:
		good = (w.stores && a.receiver == "" || a.run != nil && a.run.stores) && (len(a.again) == 0 || unsure)
	case state.Parked:
		good = last != nil && (last.status == 422 || e.Changed.Sub(since) >= w.maxAge)
	case state.Superseded:
		parkedBefore := func(b *arrival) bool { // or accepted
			accepted := func(t *try) bool { return t.arrival == b && t.accepted() && !t.ended.After(e.Changed) }
			return b.webhook.Snapshot && b.isBehind(a) &&
				(slices.ContainsFunc(w.tries, accepted) || w.mayBeParked(b, e.Changed))
		}
		good = w.mayBeParked(a, e.Changed) && slices.ContainsFunc(w.arrivals, parkedBefore)
	}
	if !good {
		w.violation("(c) arrival %d was acknowledged, and is %s %q after %d redeliveries; last try: %+v",
			a.number, e.State, e.Why, len(a.again), last)
	}
	isParked := e.State == state.Parked && a.webhook.Snapshot
	if isParked && slices.ContainsFunc(w.arrivals, func(b *arrival) bool {
		newer := b.webhook.Snapshot && b.isBehind(a)
		return newer && b.entry.State == state.Delivered && b.entry.Changed.After(e.Changed)
	}) {
		w.violation("(c) arrival %d is parked, though a newer snapshot was accepted since", a.number)
	}
	if isParked && slices.ContainsFunc(w.arrivals, func(b *arrival) bool {
		return b != a && b.tenant == a.tenant && b.webhook.Snapshot && b.entry != nil && b.entry.State == state.Parked
	}) {
		w.violation("(c) arrival %d is parked, and another snapshot of its tenant, too", a.number)
	}
	if e.State == state.Stored && slices.ContainsFunc(w.arrivals, func(b *arrival) bool {
		if b.entry == nil || !a.isBehind(b) {
			return false
		}
		parked := b.entry.State == state.Parked && b.entry.Changed.Before(a.from)
		return parked || b.entry.State == state.Waiting && len(b.again) == 0
	}) {
		w.violation("(c) arrival %d was stored, though an older one waits or is parked", a.number)
	}
	if w.isErased(a, time.Now()) {
		w.violation("(b) arrival %d was erased, and is there", a.number)
	}
}

// mayBeParked says whether a snapshot may have been parked by then, for a reason.
func (w *world) mayBeParked(a *arrival, by time.Time) bool {
	return a.webhook.Snapshot && slices.ContainsFunc(w.tries, func(t *try) bool {
		if t.arrival != a || t.ended.After(by) {
			return false
		}
		return !t.accepted() && (t.status == 422 || t.ended.Sub(a.entry.Received) >= w.maxAge)
	})
}

// judgeOrder checks (b).
func (w *world) judgeOrder() {
	type delivery struct {
		*arrival
		instance int
	}
	front := make(map[string]*try)      // the last of those that were not sent again
	accepted := make(map[delivery]*try) // when it was
	for _, t := range w.tries {
		d := delivery{t.arrival, t.instance}
		if before := accepted[d]; before != nil {
			w.seen["repeat"] = true
			asked := t.instance > 0 && t.again[t.instance-1].unsure // a redelivery that came while it was tried
			// With any trouble the outcome of the first delivery may not be written before the lease ends.
			late := w.away(before.life, before.began, t.began) || w.trouble(before.began.Add(-w.lease), t.began, false)
			if !asked && !late {
				w.violation("(b) arrival %d was accepted, and delivered again", t.number)
			}
		}
		if t.accepted() {
			accepted[d] = t
		}
		for _, x := range t.discards {
			if x.instance == t.instance && t.began.After(x.to) && !x.unsure {
				w.violation("(b) arrival %d was discarded, and delivered", t.number)
			}
		}
		if w.isErased(t.arrival, t.began) {
			w.violation("(b) arrival %d was erased, and delivered", t.number)
		}
		if t.instance > 0 || t.entry == nil {
			continue
		}
		if f := front[t.tenant]; f != nil && t.entry.ID < f.entry.ID {
			w.violation("(b) arrival %d was delivered after %d of the same tenant", t.number, f.number)
		}
		front[t.tenant] = t
	}
	for n, b := range w.arrivals {
		for _, a := range w.arrivals[:n] {
			if a.ok && a.to.Before(b.from) && b.entry != nil && a.entry != nil && a.isBehind(b) {
				w.violation("(b) arrival %d was acknowledged before %d came, and has a higher number",
					a.number, b.number)
			}
		}
	}
}

// judgeRuns checks (k): whatever had come for a tenant before reconcile took a state in is not newer than that.
func (w *world) judgeRuns() {
	for _, r := range w.arrivals {
		if r.run == nil || r.entry == nil {
			continue
		}
		w.seen["reconciled"] = true
		wrong := func(format string, args ...any) {
			took := fmt.Sprintf("reconcile %d took in %s of %s, version %d",
				r.run.number, r.snapshot, r.tenant, r.version)
			w.violation("(k) %s; before that, "+format, append([]any{took}, args...)...)
		}
		for _, a := range w.arrivals {
			before := a.entry != nil && a.entry.ID < r.entry.ID || a.ok && a.original != "" && a.to.Before(r.from)
			if a.run == nil && a.tenant == r.tenant && a.version > r.version && before {
				wrong("version %d (arrival %d) had come", a.version, a.number)
			}
		}
		for _, s := range w.invalid {
			if s.tenant == r.tenant && s.version > r.version && s.to.Before(r.from) {
				wrong("version %d is invalid", s.version)
			}
		}
		for _, e := range w.erasures {
			if e.tenant == r.tenant && !e.unsure && e.from.After(r.run.began) && e.to.Before(r.from) {
				w.violation("(k) reconcile %d took in %s, which was erased meanwhile", r.run.number, r.tenant)
			}
		}
	}
}

// judgeAsks checks (e).
func (w *world) judgeAsks() {
	for _, q := range w.asks {
		if got := w.byID[q.webhook]; got != nil && w.isErased(got, q.at) {
			w.violation("(e) the snapshot of %s is arrival %d, which was erased", q.tenant, got.number)
		}
		for _, a := range w.arrivals {
			promised := a
			if a.original != "" {
				promised = w.byID[a.original]
			}
			if a.tenant != q.tenant || !a.ok || !a.webhook.Snapshot || !a.to.Before(q.at) {
				continue
			}
			if promised == nil || promised.entry == nil || w.mayBeErased(promised) {
				continue
			}
			if q.seq < promised.entry.ID {
				w.violation("(e) the snapshot of %s is %d; arrival %d, id %d, was acknowledged before",
					q.tenant, q.seq, a.number, promised.entry.ID)
			}
		}
	}
}

// newest returns the last arrival of a tenant.
func (w *world) newest(tenant string) (newest *arrival) {
	for _, a := range w.arrivals {
		if a.tenant == tenant {
			newest = a
		}
	}
	return newest
}

// judgeEnd checks (d).
func (w *world) judgeEnd(tenant string) {
	var newest *arrival
	for _, a := range w.arrivals {
		if a.tenant != tenant || !a.webhook.Snapshot || a.entry == nil {
			continue
		}
		if newest == nil || a.isBehind(newest) {
			newest = a
		}
	}
	if newest == nil || newest.entry.State != state.Delivered {
		return
	}
	for _, a := range w.arrivals {
		for _, r := range a.again {
			if a != newest && a.tenant == tenant && r.to.After(newest.from) {
				return // somebody wanted it so
			}
		}
	}
	if held := w.latest[holding{newest.entry.Receiver, tenant}]; held != newest.snapshot {
		w.violation("(d) receiver %s holds %s of %s, the newest is %s (arrival %d)",
			newest.entry.Receiver, held, tenant, newest.snapshot, newest.number)
	}
}

// tell prints the story of a world.
func (w *world) tell(t *testing.T) {
	for _, v := range w.violations {
		t.Error(v)
	}
	const clock = "15:04:05.000000"
	story := slices.Clone(w.story)
	add := func(at time.Time, format string, args ...any) {
		story = append(story, at.Format(clock+" ")+fmt.Sprintf(format, args...))
	}
	for _, a := range w.arrivals {
		state := "not there"
		if a.entry != nil {
			state = fmt.Sprint("id ", a.entry.ID, " ", a.entry.State, " ", a.entry.Why)
		}
		if o := w.byID[a.original]; o != nil {
			state = fmt.Sprint("duplicate of ", o.number)
		}
		add(a.from, "arrival %d: %s of %s (%s), place %d, until %s: %v %v, %s", a.number, a.snapshot, a.tenant,
			a.webhook.Type, a.life.place.number, a.to.Format(clock), a.ok, a.err, state)
	}
	for _, a := range w.tries {
		add(a.began, "try of %d/%d (%s of %s) at %s by place %d, until %s: %d, cut %v", a.number, a.instance,
			a.snapshot, a.tenant, a.receiver, a.life.place.number, a.ended.Format(clock), a.status, a.cut)
	}
	for l := range w.lives() {
		for _, x := range l.troubles {
			add(x.from, "trouble of place %d until %s, away %v", l.place.number, x.to.Format(clock), x.away)
		}
	}
	for _, x := range w.group.troubles() {
		add(x.from, "server restarted, or the machine stood still, until %s", x.to.Format(clock))
	}
	slices.Sort(story)
	t.Logf("world %d: stores %v, routes %v, jitter %d, tenants %v",
		w.seed, w.stores, w.routes, w.jitter, w.tenants)
	for _, s := range story {
		t.Log(s)
	}
}
