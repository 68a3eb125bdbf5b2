package inbox

import (
	"container/heap"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"usher/webhookgate"
)

const (
	firstPause = time.Second
	lastPause  = 5 * time.Minute
	// longestWish bounds what a receiver's Retry-After can ask for.
	longestWish = time.Hour
	// holdMost is how many bytes of content may wait in memory, so that what is
	// delivered soon need not be read again. A long queue must not fill it.
	holdMost = 8 << 20
	// keptAttempts is how many of a webhook's attempts are remembered.
	keptAttempts = 20
)

// courier delivers what waits in the store: in each lane one at a time and in
// order, over all lanes as many at once as the receiver can take. A lane that waits
// is an entry in a heap; there are goroutines only for deliveries under way.
type courier struct {
	store      Store
	try        func(context.Context, *webhookgate.Webhook) webhookgate.Attempt
	attempts   int
	maxAge     time.Duration
	keepLatest bool
	log        *slog.Logger
	pause      func(ceiling time.Duration) time.Duration // full jitter
	// awaitNotes has a lane wait until the store has written how its last one stands:
	// where another replica may take over, what is not written is delivered again.
	awaitNotes bool
	may        func() bool // whether a delivery may begin here, and not elsewhere; nil: always

	wake chan struct{} // something has changed for run

	mu       sync.Mutex // guards what follows; never held over I/O
	lanes    map[webhookgate.Lane]*lane
	queue    laneQueue // lanes that have something to deliver, by when they may
	breaker  breaker
	accepted time.Time // when the receiver last took something
	down     bool      // some lane waits because the receiver was down
	pending  int
	held     int // bytes of content in memory
	ended    int // deliveries so far
}

// progress says whether more wait for nothing but a place among the deliveries under
// way than there are places, and how many of those have ended so far.
func (c *courier) progress() (behind bool, ended int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := &c.breaker
	behind = !b.open && b.underway >= b.now && len(c.queue) > b.limit && !c.queue[0].at.After(time.Now())
	return behind, c.ended
}

// release lets go of the content of r. c.mu is held.
func (c *courier) release(r *record) {
	if r.whole != nil {
		c.held -= len(r.whole.Body)
		r.whole = nil
	}
}

// content is the whole webhook of r, from memory or from the store.
func (c *courier) content(r *record) (*webhookgate.Webhook, error) {
	c.mu.Lock()
	whole := r.whole
	c.mu.Unlock()
	if whole != nil {
		return whole, nil
	}
	full, err := c.store.Read(r.id)
	if err != nil {
		return nil, err
	}
	return full.webhook, nil
}

func (c *courier) lane(key webhookgate.Lane) *lane {
	l := c.lanes[key]
	if l == nil {
		l = &lane{key: key, index: -1}
		c.lanes[key] = l
	}
	return l
}

// schedule puts l where it belongs in the queue, if it has something to deliver and
// is not at it.
func (c *courier) schedule(l *lane, now time.Time) {
	if l.busy || l.noting || len(l.waiting) == 0 {
		return
	}
	if l.at.Before(now) && l.index < 0 {
		l.at = now // behind those that wait already
	}
	if l.index < 0 {
		heap.Push(&c.queue, l)
	} else {
		heap.Fix(&c.queue, l.index)
	}
}

// run delivers until ctx ends, and returns when the deliveries under way have
// ended. Those run under hard.
func (c *courier) run(ctx, hard context.Context) {
	var underway sync.WaitGroup
	defer underway.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-timer.C:
		}
		for {
			l, r, wait := c.next(time.Now())
			if l == nil {
				timer.Reset(wait)
				break
			}
			underway.Go(func() {
				// Whoever has ended one begins the next: that need not wait until run
				// and a new goroutine get their turn.
				for l != nil {
					c.deliver(hard, l, r)
					if ctx.Err() != nil {
						return
					}
					l, r, _ = c.next(time.Now())
				}
				c.poke() // for the timer
			})
		}
	}
}

// next takes the lane whose turn it is, with what is first in it, or says how long
// there is none.
func (c *courier) next(now time.Time) (*lane, *record, time.Duration) {
	const long = time.Hour // whatever happens before wakes run
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		return nil, nil, long
	}
	if c.may != nil && !c.may() {
		return nil, nil, firstPause // a renewal may still come through, and wakes nobody
	}
	l := c.queue[0]
	at := l.at
	if c.breaker.open && l.down {
		at = l.wish // the breaker sees to the pauses, and lanes with long ones must not keep it from probing
	}
	if wait := at.Sub(now); wait > 0 {
		return nil, nil, wait
	}
	if wait, ok := c.breaker.admit(now); !ok {
		if wait == 0 {
			wait = long
		}
		return nil, nil, wait
	}
	heap.Pop(&c.queue)
	l.busy = true
	return l, l.waiting[0], 0
}

// delivery is what came of a record's turn.
type delivery struct {
	began   time.Time
	attempt webhookgate.Attempt
	err     error // its content could not be read
	cut     bool  // usher is ending, or no longer delivers: as if it had not been tried
}

// deliver tries r, the first of a lane, once.
func (c *courier) deliver(ctx context.Context, l *lane, r *record) {
	d := c.send(ctx, r)
	c.mu.Lock()
	wasDown := c.breaker.open
	c.finish(l, r, &d)
	outcome := *r                                                    // the next try may begin as soon as the lock is free
	room := c.breaker.underway+1 < c.breaker.now && len(c.queue) > 1 // for others than who goes on here
	down, pending := c.breaker.open, c.pending
	c.mu.Unlock()
	if room {
		c.poke()
	}
	c.report(&outcome, &d)
	switch {
	case down && !wasDown:
		c.log.Warn("receiver seems to be down, it is tried with one delivery at a time", "pending", pending)
	case wasDown && !down:
		c.log.Info("receiver answers again", "pending", pending)
	}
}

// right is the leave to make one delivery. Lost once, it is lost for that delivery, though
// a renewal of the lease may bring it back a moment later: what was held back meanwhile
// must not be taken for a try that failed.
type right struct {
	may  func() bool // nil: always
	lost atomic.Bool
}

func (r *right) held() bool {
	if r.may != nil && !r.may() {
		r.lost.Store(true)
	}
	return !r.lost.Load()
}

// send tries r once, if its content can be had and this process may.
func (c *courier) send(ctx context.Context, r *record) (d delivery) {
	whole, err := c.content(r)
	d.began, d.err = time.Now(), err
	// A process that was stopped since its turn has not been told yet that it lost the
	// right to deliver, and would send what others have gone beyond.
	leave := &right{may: c.may}
	if err == nil && leave.held() {
		sending := ctx
		if c.may != nil {
			sending = webhookgate.Fenced(ctx, leave.held)
		}
		d.attempt = c.try(sending, whole)
	}
	d.cut = (ctx.Err() != nil || !leave.held()) && !d.attempt.Accepted()
	return d
}

// settle tells the store how records stand now. c.mu is held, as of two notes of the
// same record the later has to come last; the store only takes them down.
func (c *courier) settle(records []*record) {
	for _, r := range records {
		if l := c.lanes[r.webhook.Lane]; c.awaitNotes && l != nil {
			l.noting = true
		}
		c.store.Update(r)
	}
}

// noted is told that all notes of a lane are written, or given up.
func (c *courier) noted(key webhookgate.Lane) {
	c.mu.Lock()
	if l := c.lanes[key]; l != nil {
		l.noting = false
		if c.accepted.After(l.last) {
			l.wake() // wakeDown saw only lanes in the queue
		}
		c.schedule(l, time.Now())
		c.tidy(l)
	}
	c.mu.Unlock()
	c.poke()
}

// tidy drops a lane that nothing is left of. c.mu is held.
func (c *courier) tidy(l *lane) {
	if len(l.waiting) == 0 && len(l.parked) == 0 && !l.noting && !l.busy {
		delete(c.lanes, l.key)
	}
}

func (c *courier) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// stats counts what waits and what is parked.
func (c *courier) stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{Pending: c.pending, Delivering: true}
	now := time.Now()
	oldest := now
	for _, l := range c.lanes {
		s.Parked += len(l.parked)
		for _, r := range l.waiting {
			if r.webhook.Received.Before(oldest) {
				oldest = r.webhook.Received
			}
		}
	}
	s.Oldest = now.Sub(oldest)
	return s
}
