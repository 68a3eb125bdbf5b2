package webhookgate

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"usher/internal/clock"
	"usher/internal/text"
)

// maxWaiting is how many webhooks may wait in a lane behind the one that is being delivered.
const maxWaiting = 32

// maxRemembered is how long the codes of a lane may be, together, if the lane is to be
// remembered. The memory is limited by the number of lanes, and a code can be as long as a body.
const maxRemembered = 4 << 10

// passThrough delivers webhooks while their senders wait: one at a time in each lane, in order
// of arrival; lanes do not wait for each other. It remembers what the receiver holds.
type passThrough struct {
	deliver func(*Webhook) *answer
	window  time.Duration // zero: no snapshot is a duplicate by its content
	log     *slog.Logger

	mu     sync.Mutex                 // guards what follows, also the lanes themselves
	active map[Lane]*lane             // lanes with work in them
	memory *lru.Cache[Lane, accepted] // what the receiver holds, for all other lanes; only these can be evicted
	ids    signedIDs
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
	reused    bool          // its signed id came before, with another body
	forgotten bool          // by hand: a copy of it is delivered, too
	done      chan struct{} // closed when answer is final
	answer    *answer
}

// failed reports whether it has ended, and the receiver did not accept it.
func (t *turn) failed() bool {
	select {
	case <-t.done:
		return t.answer.Decision != forwarded
	default:
		return false
	}
}

// delivered is the turn of a webhook that the receiver accepted before.
func delivered(webhook string) *turn {
	t := &turn{done: make(chan struct{}), answer: &answer{Decision: forwarded, Webhook: webhook}}
	close(t.done)
	return t
}

// accepted is the last snapshot that a lane's receiver answered with a 2xx. A lane has one receiver
// for as long as usher runs: that of its platform.
type accepted struct {
	webhook string
	digest  [sha256.Size]byte
	at      time.Time
}

func newPassThrough(size int, window time.Duration, log *slog.Logger, deliver func(*Webhook) *answer) *passThrough {
	memory, _ := lru.New[Lane, accepted](size) // fails only for a size of 0
	ids, _ := lru.New[idKey, taken](2 * maxIDs)
	return &passThrough{deliver: deliver, window: window, log: log, active: make(map[Lane]*lane), memory: memory, ids: signedIDs{ids}}
}

// send delivers w when its turn comes. If the receiver already holds exactly this snapshot, or
// is about to, or w was recorded and is sent again, w shares the outcome of the first one.
func (p *passThrough) send(w *Webhook) *answer {
	t, before, own := p.join(w)
	switch {
	case t == nil:
		return busy("too many webhooks of this tenant are waiting; please send this one again")
	case !own:
		<-t.done
		if t.answer.Decision == forwarded {
			return duplicateOf(t.answer.Webhook)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ids.drop(w, t)
		return t.answer
	}
	defer p.finish(w, t) // deferred, so that not even a panic blocks the lane
	if t.reused {
		attrs := append(w.attrs(), slog.String("signed_id", text.Clip(w.SignedID, maxShown)))
		p.log.LogAttrs(context.Background(), slog.LevelWarn, "webhook-id was used before, for another body", attrs...)
	}
	if before != nil {
		<-before.done
	}
	t.answer = p.deliver(w)
	return t.answer
}

// join finds the turn that w shares, or gives it one of its own, after the one before. Nil: too
// many wait already.
func (p *passThrough) join(w *Webhook) (t, before *turn, own bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, reused := p.ids.find(w)
	if t != nil {
		return t, nil, false
	}
	l := p.active[w.Lane]
	if l == nil {
		if held, ok := p.memory.Get(w.Lane); ok && p.dedups(w) && held.digest == w.Digest && clock.Since(held.at) < p.window {
			t = delivered(held.webhook) // held.at stays: the window does not slide
			p.ids.note(w, t)
			return t, nil, false
		}
		l = new(lane)
		p.active[w.Lane] = l
	} else if p.dedups(w) && l.tail.digest == w.Digest && !l.tail.forgotten {
		// Compare with the tail only. A copy of a snapshot further ahead comes after a
		// different one, and undoes it.
		p.ids.note(w, l.tail)
		return l.tail, nil, false
	} else if l.waiting >= maxWaiting {
		return nil, nil, false
	}
	t, before = &turn{digest: w.Digest, reused: reused, done: make(chan struct{})}, l.tail
	l.tail = t
	if before != nil {
		l.waiting++
	}
	p.ids.note(w, t)
	// From here on the receiver may hold w or what it held before. Only a 2xx tells.
	p.memory.Remove(w.Lane)
	return t, before, true
}

// finish hands the lane to the next delivery, and the outcome to the copies that wait for it.
// The last one notes what the receiver holds now.
func (p *passThrough) finish(w *Webhook, t *turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(t.done)
	if t.answer == nil { // a panic
		t.answer = &answer{status: http.StatusInternalServerError, Decision: failed, Error: "usher failed while delivering this webhook"}
	}
	if t.answer.Decision != forwarded {
		p.ids.drop(w, t)
	}
	l := p.active[w.Lane]
	if l.tail != t {
		l.waiting--
		return
	}
	delete(p.active, w.Lane)
	if p.dedups(w) && !t.forgotten && t.answer.Decision == forwarded && w.Lane.size() <= maxRemembered {
		p.memory.Add(w.Lane, accepted{w.ID, w.Digest, time.Now()})
	}
}

// Forget drops what is remembered about a tenant, so that its next snapshot is delivered in any
// case. It reports whether anything was remembered. What is on its way is not remembered either. It
// is for a gate without an inbox.
func (g *Gate) Forget(platform, tenant string) bool {
	p := g.lanes
	p.mu.Lock()
	defer p.mu.Unlock()
	key := Lane{Platform: platform, Tenant: tenant}
	known := p.ids.forget(key)
	if l := p.active[key]; l != nil {
		known = known || !l.tail.forgotten
		l.tail.forgotten = true
		return known
	}
	return p.memory.Remove(key) || known
}

// Platforms returns the platforms on which something is remembered about a tenant, or will be. It is
// for a gate without an inbox.
func (g *Gate) Platforms(tenant string) (all []string) {
	p := g.lanes
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lane := range slices.Concat(p.memory.Keys(), slices.Collect(maps.Keys(p.active)), p.ids.lanes()) {
		if lane.Tenant == tenant && !slices.Contains(all, lane.Platform) {
			all = append(all, lane.Platform)
		}
	}
	return all
}

func (p *passThrough) dedups(w *Webhook) bool {
	return p.window > 0 && w.Snapshot
}
