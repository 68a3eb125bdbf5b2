package webhookgate

import (
	"crypto/sha256"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// maxWaiting is how many webhooks may wait in a lane behind the one that is being delivered.
const maxWaiting = 32

// maxRemembered is how long the codes of a lane may be, together, if the lane is to be
// remembered. The memory is limited by the number of lanes, and a code can be as long as a body.
const maxRemembered = 4 << 10

// passThrough delivers webhooks while their senders wait: one at a time in each lane, in order
// of arrival; lanes do not wait for each other. It remembers what the receiver holds.
type passThrough struct {
	deliver func(*receiver, *Webhook) *answer
	window  time.Duration // zero: nothing is a duplicate

	mu     sync.Mutex                 // guards what follows, also the lanes themselves
	active map[Lane]*lane             // lanes with work in them
	memory *lru.Cache[Lane, accepted] // what the receiver holds, for all other lanes; only these can be evicted
}

// A lane with work in it. It has no goroutine of its own: each delivery runs on the goroutine
// of its request, after the delivery before it has ended.
type lane struct {
	tail    *turn // the last to arrive, being delivered or waiting
	waiting int
}

// A turn is one webhook that is being delivered, or waits for that.
type turn struct {
	digest    [sha256.Size]byte
	forgotten bool          // by hand: a copy of it is delivered, too
	done      chan struct{} // closed when answer is final
	answer    *answer
}

// accepted is the last snapshot that a receiver answered with a 2xx.
type accepted struct {
	receiver string // for another receiver it does not count
	webhook  string
	digest   [sha256.Size]byte
	at       time.Time
}

func (a accepted) is(rc *receiver, w *Webhook) bool {
	return a.receiver == rc.Name && a.digest == w.Digest
}

func newPassThrough(size int, window time.Duration, deliver func(*receiver, *Webhook) *answer) (*passThrough, error) {
	memory, err := lru.New[Lane, accepted](size)
	if err != nil {
		return nil, err
	}
	return &passThrough{deliver: deliver, window: window, active: make(map[Lane]*lane), memory: memory}, nil
}

// send delivers w when its turn comes. If the receiver already holds exactly this snapshot, or
// is about to, w shares the outcome of that one.
func (p *passThrough) send(rc *receiver, w *Webhook) *answer {
	p.mu.Lock()
	l := p.active[w.Lane]
	if l == nil {
		if held, ok := p.memory.Get(w.Lane); ok && p.dedups(w) && held.is(rc, w) && elapsed(held.at) < p.window {
			p.mu.Unlock()
			return duplicateOf(held.webhook) // held.at stays: the window does not slide
		}
		l = new(lane)
		p.active[w.Lane] = l
	} else if p.dedups(w) && l.tail.digest == w.Digest && !l.tail.forgotten {
		// Compare with the tail only. A copy of a snapshot further ahead comes after a
		// different one, and undoes it.
		tail := l.tail
		p.mu.Unlock()
		<-tail.done
		return tail.answer.shared()
	} else if l.waiting >= maxWaiting {
		p.mu.Unlock()
		return busy("too many webhooks of this tenant are waiting; please send this one again")
	}

	t := &turn{digest: w.Digest, done: make(chan struct{})}
	before := l.tail
	l.tail = t
	if before != nil {
		l.waiting++
	}
	// From here on the receiver may hold w or what it held before. Only a 2xx tells.
	p.memory.Remove(w.Lane)
	p.mu.Unlock()

	defer p.finish(rc, w, l, t) // deferred, so that not even a panic blocks the lane
	if before != nil {
		<-before.done
	}
	t.answer = p.deliver(rc, w)
	return t.answer
}

// finish hands the lane to the next delivery, and the outcome to the copies that wait for it.
// The last one notes what the receiver holds now.
func (p *passThrough) finish(rc *receiver, w *Webhook, l *lane, t *turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(t.done)
	if t.answer == nil { // a panic
		t.answer = &answer{status: http.StatusInternalServerError, Decision: failed, Error: "usher failed while delivering this webhook"}
	}
	if l.tail != t {
		l.waiting--
		return
	}
	delete(p.active, w.Lane)
	if p.dedups(w) && !t.forgotten && t.answer.Decision == forwarded && w.Lane.size() <= maxRemembered {
		p.memory.Add(w.Lane, accepted{rc.Name, w.ID, w.Digest, time.Now()})
	}
}

// forget empties the memory of a tenant's lane, and reports whether there was anything in it. What is
// on its way is not remembered either.
func (p *passThrough) forget(platform, tenant string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := Lane{Platform: platform, Tenant: tenant}
	if l := p.active[key]; l != nil {
		known := !l.tail.forgotten
		l.tail.forgotten = true
		return known
	}
	return p.memory.Remove(key)
}

// platforms returns those on which something is remembered about a tenant, or will be.
func (p *passThrough) platforms(tenant string) (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lane := range slices.AppendSeq(p.memory.Keys(), maps.Keys(p.active)) { // no lane is in both
		if lane.Tenant == tenant {
			all = append(all, lane.Platform)
		}
	}
	return all
}

func (p *passThrough) dedups(w *Webhook) bool {
	return p.window > 0 && w.Snapshot
}

// elapsed returns the time since t by the wall clock or the monotonic clock, whichever says
// more: the monotonic clock stands still while a machine sleeps.
func elapsed(t time.Time) time.Duration {
	return max(time.Since(t), time.Now().Round(0).Sub(t.Round(0)))
}
