// Package courier decides when and how the inbox's webhooks are tried: one at a time in a
// lane and in order, lanes independent of each other, with backoff, and gently while a
// receiver is down. What must survive the process is a store's, which gives the courier
// leave to deliver in a [Term].
package courier

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// Receiver is one who takes webhooks.
type Receiver struct {
	Name        string
	Try         func(context.Context, *webhookgate.Webhook) webhookgate.Attempt // one try
	Concurrency int                                                             // deliveries under way at once; at least 1
}

// Config is what a courier needs to know.
type Config struct {
	Receivers []Receiver
	// Route names the receiver of a lane's webhooks; "" or an unknown name: no receiver takes
	// them for now, and they wait. Nil: all go to the first receiver.
	Route func(webhookgate.Lane) string
	// Attempts and MaxAge are when a webhook is parked. Both required.
	Attempts int
	MaxAge   time.Duration
	// KeepLatest has a snapshot that waits superseded by a newer one of its tenant.
	KeepLatest bool
	// Delivered is told of each webhook that was accepted: by whom, and how long after it was
	// taken in, or was last sent again by hand. May be nil.
	Delivered func(receiver string, after time.Duration)
	// Log is told what becomes of each webhook. Required.
	Log *slog.Logger
	// Pause is any time up to ceiling. Nil: full jitter.
	Pause func(ceiling time.Duration) time.Duration
}

// holdMost is how much memory whole webhooks may take that wait, so that what is delivered soon
// need not be read again. A long queue must not fill it. A webhook takes its body, and about
// holdBeside for its headers and all else.
const (
	holdMost   = 16 << 20
	holdBeside = 3 << 10
)

// Courier delivers. A lane that waits is an entry in a heap; there are goroutines only for
// deliveries under way.
type Courier struct {
	cfg  Config
	wake chan struct{} // something has changed for Run

	mu        sync.Mutex // guards what follows; never held over I/O, nor while a Term is called, but for Held
	receivers []*receiver
	terms     map[Term]*term
	lanes     map[webhookgate.Lane]*lane
	held      int // bytes of whole webhooks in memory
	pauses    []record.Pause
	stopped   map[webhookgate.Lane]int // how often; see Stop
}

// New makes a courier. It delivers while Run runs.
func New(cfg Config) *Courier {
	if cfg.Pause == nil {
		cfg.Pause = rand.N[time.Duration]
	}
	c := &Courier{
		cfg:   cfg,
		wake:  make(chan struct{}, 1),
		terms: make(map[Term]*term),
		lanes: make(map[webhookgate.Lane]*lane),

		stopped: make(map[webhookgate.Lane]int),
	}
	for _, r := range cfg.Receivers {
		c.receivers = append(c.receivers, newReceiver(r))
	}
	return c
}

// Run delivers until ctx ends, and returns when the deliveries under way have ended. Those
// run under hard.
func (c *Courier) Run(ctx, hard context.Context) {
	var underway sync.WaitGroup
	defer underway.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hard.Done():
			return
		case <-c.wake:
		case <-timer.C:
		}
		wait := long
		for _, rc := range c.receivers {
			for {
				t, pause := c.next(rc)
				if t == nil {
					wait = min(wait, pause)
					break
				}
				underway.Go(func() { c.work(ctx, hard, t) })
			}
		}
		timer.Reset(wait)
	}
}

// work makes one delivery after the other to a receiver, as long as there are: who has
// ended one begins the next, which need not wait until Run and a new goroutine get their
// turn.
func (c *Courier) work(ctx, hard context.Context, t *turn) {
	for t != nil {
		c.deliver(hard, t)
		if ctx.Err() != nil || hard.Err() != nil {
			return
		}
		t, _ = c.next(t.receiver)
	}
	c.poke() // for the timer
}

// turn is that of the first of a lane.
type turn struct {
	receiver *receiver
	lane     *lane
	item     *item
}

// next takes the lane whose turn it is, with what is first in it, or says how long
// there is none.
func (c *Courier) next(rc *receiver) (*turn, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for {
		l, wait := rc.candidate(now)
		if l == nil {
			return nil, wait
		}
		if !l.term.Held() {
			// A renewal may still come through, and wakes nobody.
			rc.remove(l)
			l.at, l.wish = now.Add(firstPause), now.Add(firstPause)
			rc.add(l)
			continue
		}
		wait, ok := rc.breaker.admit(now)
		if !ok && wait == 0 {
			wait = long
		}
		if !ok {
			return nil, wait
		}
		rc.remove(l)
		l.busy = true
		l.term.underway++
		return &turn{rc, l, l.waiting[0]}, 0
	}
}

// ReceiverOf names the current receiver of a lane's webhooks; empty: no receiver takes them.
func (c *Courier) ReceiverOf(key webhookgate.Lane) string {
	if rc := c.route(key); rc != nil {
		return rc.Name
	}
	return ""
}

// route finds who takes the webhooks of a lane; nil: nobody.
func (c *Courier) route(key webhookgate.Lane) *receiver {
	if c.cfg.Route == nil && len(c.receivers) > 0 {
		return c.receivers[0]
	}
	name := ""
	if c.cfg.Route != nil {
		name = c.cfg.Route(key)
	}
	for _, rc := range c.receivers {
		if rc.Name == name && name != "" {
			return rc
		}
	}
	return nil
}

// schedule puts l where it belongs, after whatever has changed. c.mu is held.
func (c *Courier) schedule(l *lane) {
	if l.queue != nil {
		l.queue.remove(l)
	}
	switch {
	case l.busy || len(l.notes) > 0 || l.term.ended:
		return
	case len(l.waiting) == 0:
		if len(l.parked) == 0 {
			delete(c.lanes, l.key)
		}
		return
	}
	rc := c.route(l.key)
	if rc == nil || c.stopped[l.key] > 0 || c.holdsBack(l.key, rc.Name) {
		return
	}
	if l.at.IsZero() {
		l.at = time.Now()
	}
	if l.down && rc.woken.After(l.last) {
		l.wake() // wakeDown saw only lanes in the heap
	}
	rc.add(l)
}

func (c *Courier) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
