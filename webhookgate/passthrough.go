package webhookgate

import (
	"crypto/sha256"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"usher/internal/clock"
)

// maxWaiting is how many webhooks may wait in a lane behind the one that is being delivered.
const maxWaiting = 32

// passThrough delivers webhooks one at a time in each lane, in order of arrival. Lanes do not wait for each other. It
// remembers what the receiver holds.
type passThrough struct {
	deliver func(*Webhook) *answer
	window  time.Duration // zero: no snapshot is a duplicate because of its content
	log     *slog.Logger

	mu     sync.Mutex         // guards what follows, also the lanes themselves
	active map[LaneName]*lane // the lanes that have a webhook in progress

	// memory has the last snapshot that the receiver has accepted, for lanes that are not active. (A
	// lane always has the same receiver while usher runs, that of its platform.)
	memory *lru.Cache[LaneName, *turn]
}

// A lane has at least one webhook in progress.
type lane struct {
	tail    *turn // of the webhook that arrived last
	waiting int
}

// A turn is the delivery of one webhook: waiting, in progress or ended.
type turn struct {
	digest [sha256.Size]byte
	done   chan struct{} // closed at the end, when answer and ended are set
	answer *answer
	ended  time.Time
}

func newPassThrough(size int, window time.Duration, log *slog.Logger, deliver func(*Webhook) *answer) *passThrough {
	memory, _ := lru.New[LaneName, *turn](size) // fails only if size is 0
	return &passThrough{deliver: deliver, window: window, log: log, active: make(map[LaneName]*lane), memory: memory}
}

// send has w delivered when its turn comes, and returns its turn. If w is a copy of a webhook whose delivery is in
// progress or done, that is the turn of the original. Nil: too many webhooks wait already.
func (p *passThrough) send(w *Webhook) (t *turn, isCopy bool) {
	t, before, isCopy := p.join(w)
	if t != nil && !isCopy {
		go p.run(w, t, before)
	}
	return t, isCopy
}

func (p *passThrough) run(w *Webhook, t, before *turn) {
	defer p.finish(w, t) // deferred, so that a panic does not block the lane
	defer func() {
		if why := recover(); why != nil {
			p.log.Error("a delivery panicked", "webhook", w.ID, "panic", why, "stack", string(debug.Stack()))
		}
	}()
	if before != nil {
		<-before.done
	}
	t.answer = p.deliver(w)
}

// join finds the turn of the webhook that w is a copy of. If w is not a copy, join gives it a turn of
// its own, to begin when the turn before has ended. t is nil if too many webhooks wait already.
func (p *passThrough) join(w *Webhook) (t, before *turn, isCopy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.active[w.Lane]
	held, _ := p.memory.Get(w.Lane)
	switch {
	case l != nil && p.dedups(w) && l.tail.digest == w.Digest:
		// Compare with the tail only. If w equals a snapshot further ahead, a different snapshot is
		// between the two, and w undoes that one.
		return l.tail, nil, true
	case l != nil && l.waiting >= maxWaiting:
		return nil, nil, false
	case l == nil && held != nil && p.dedups(w) && held.digest == w.Digest && clock.Since(held.ended) < p.window:
		return held, nil, true // held.ended does not change: the window does not slide
	case l == nil:
		l = new(lane)
		p.active[w.Lane] = l
	}
	t, before = &turn{digest: w.Digest, done: make(chan struct{})}, l.tail
	l.tail = t
	if before != nil {
		l.waiting++
	}
	// From here on the receiver may hold w, or what it held before. Only a 2xx will tell.
	p.memory.Remove(w.Lane)
	return t, before, false
}

// finish starts the lane's next delivery and gives the outcome to the copies of w. If w was the
// lane's last webhook, finish remembers what the receiver holds now.
func (p *passThrough) finish(w *Webhook, t *turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(t.done)
	t.ended = time.Now()
	if t.answer == nil { // deliver panicked
		t.answer = fail(http.StatusInternalServerError, "usher failed while delivering this webhook")
	}
	l := p.active[w.Lane]
	if l.tail != t {
		l.waiting--
		return
	}
	delete(p.active, w.Lane)
	if p.dedups(w) && t.answer.Decision == forwarded {
		p.memory.Add(w.Lane, t)
	}
}

// platforms returns the platforms on which a tenant is remembered, or has a delivery in progress.
func (p *passThrough) platforms(tenant string) (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lane := range slices.AppendSeq(p.memory.Keys(), maps.Keys(p.active)) {
		if lane.Tenant == tenant && !slices.Contains(all, lane.Platform) {
			all = append(all, lane.Platform)
		}
	}
	return all
}

func (p *passThrough) dedups(w *Webhook) bool {
	return p.window > 0 && w.Snapshot
}
