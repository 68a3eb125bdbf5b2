package webhookgate

import (
	"crypto/sha256"
	"net/http"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// maxWaiting is how many webhooks may wait in a lane behind the one that is
// being delivered.
const maxWaiting = 32

// maxRemembered is how long the codes of a lane may be, together, for it to be
// remembered: the memory is bounded in lanes, and a code can be as long as a body.
const maxRemembered = 4 << 10

// passThrough takes webhooks to the receiver while their senders wait: one at a
// time in each lane, in order of arrival, lanes independent of each other. And
// it remembers what the receiver holds.
type passThrough struct {
	deliver func(*receiver, *Webhook) answer
	window  time.Duration // zero: nothing is a duplicate

	mu     sync.Mutex                 // guards what follows, lanes' insides included
	active map[Lane]*lane             // lanes with work in them
	memory *lru.Cache[Lane, accepted] // what the receiver holds of the others; only those can be evicted
}

// A lane with work in it. It has no goroutine: each delivery runs on that of the
// request which brought it, once the delivery before it is done.
type lane struct {
	tail    *delivery // the last to arrive, being delivered or waiting
	waiting int
}

type delivery struct {
	digest [sha256.Size]byte
	done   chan struct{} // closed when answer is final
	answer answer
}

// accepted is the last snapshot that a receiver took with a 2xx.
type accepted struct {
	receiver string // what another one took does not count
	webhook  string
	digest   [sha256.Size]byte
	at       time.Time
}

func (a accepted) is(rc *receiver, w *Webhook) bool {
	return a.receiver == rc.name && a.digest == w.Digest
}

func newPassThrough(size int, window time.Duration, deliver func(*receiver, *Webhook) answer) (*passThrough, error) {
	memory, err := lru.New[Lane, accepted](size)
	if err != nil {
		return nil, err
	}
	return &passThrough{deliver: deliver, window: window, active: make(map[Lane]*lane), memory: memory}, nil
}

// send delivers w when its turn comes, unless the receiver holds exactly it, or
// is about to: then w shares what becomes of the other.
func (p *passThrough) send(rc *receiver, w *Webhook) answer {
	p.mu.Lock()
	l := p.active[w.Lane]
	if l == nil {
		if held, ok := p.memory.Get(w.Lane); ok && p.dedups(w) && held.is(rc, w) && elapsed(held.at) < p.window {
			p.mu.Unlock()
			return duplicateOf(held.webhook) // held.at stays: the window does not slide
		}
		l = new(lane)
		p.active[w.Lane] = l
	} else if p.dedups(w) && l.tail.digest == w.Digest {
		// Only of the tail: a copy of what is further ahead comes after
		// something else, and undoes it.
		tail := l.tail
		p.mu.Unlock()
		<-tail.done
		return tail.answer.shared()
	} else if l.waiting >= maxWaiting {
		p.mu.Unlock()
		return *busy("too many webhooks of this tenant are waiting; please send this one again")
	}

	d := &delivery{digest: w.Digest, done: make(chan struct{}), answer: brokenOff()}
	before := l.tail
	l.tail = d
	if before != nil {
		l.waiting++
	}
	// From here on the receiver may hold w, or still what it held, and until it
	// says 2xx nobody knows.
	p.memory.Remove(w.Lane)
	p.mu.Unlock()

	defer p.finish(rc, w, l, d) // deferred: not even a panic may leave a lane standing
	if before != nil {
		<-before.done
	}
	d.answer = p.deliver(rc, w)
	return d.answer
}

// finish gives the lane to whoever waits next, and to those who wait for the
// outcome. The last one out leaves behind what the receiver is known to hold.
func (p *passThrough) finish(rc *receiver, w *Webhook, l *lane, d *delivery) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(d.done)
	if l.tail != d {
		l.waiting--
		return
	}
	delete(p.active, w.Lane)
	if p.dedups(w) && d.answer.Decision == forwarded && w.Lane.size() <= maxRemembered {
		p.memory.Add(w.Lane, accepted{rc.name, w.ID, w.Digest, time.Now()})
	}
}

// forget empties the memory of a tenant's lane, and says whether there was one.
func (p *passThrough) forget(platform, tenant string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.memory.Remove(Lane{Platform: platform, Tenant: tenant})
}

// platforms are those on which something is remembered of a tenant.
func (p *passThrough) platforms(tenant string) (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lane := range p.memory.Keys() {
		if lane.Tenant == tenant {
			all = append(all, lane.Platform)
		}
	}
	return all
}

func (p *passThrough) dedups(w *Webhook) bool {
	return p.window > 0 && w.Snapshot
}

// elapsed is the time since t, by the wall clock or the monotonic one, whichever
// went further: the latter stands still while a machine sleeps.
func elapsed(t time.Time) time.Duration {
	return max(time.Since(t), time.Now().Round(0).Sub(t.Round(0)))
}

// brokenOff is the answer when a delivery does not come to one.
func brokenOff() answer {
	return answer{status: http.StatusInternalServerError, Decision: failed, Error: "usher failed while delivering this webhook"}
}
