package webhookgate

import (
	"context"
	"sync"
	"time"

	"usher/internal/receiver"
)

// places limits how many webhooks are in flight. Each receiver has as many places as any other, so that one that
// hangs costs the others nothing, and its questions have places of their own.
type places struct {
	limit int // for each

	mu    sync.Mutex // guards what follows
	taken map[place]int
	all   int
	idle  chan struct{} // closed when none is taken; nil: nobody waits for that
}

type place struct {
	to   *receiver.Receiver // nil: the inbox
	kind string             // changes or questions
}

const changes, questions = "changes", "questions"

// take takes a place, and reports whether there was one.
func (p *places) take(at place) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[at] >= p.limit {
		return false
	}
	p.taken[at]++
	p.all++
	return true
}

func (p *places) leave(at place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[at]--
	if p.all--; p.all == 0 && p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
}

// lastWords is how long wait waits until cancelled deliveries have an answer. Their senders should know that
// their webhooks were not delivered.
const lastWords = time.Second

// wait waits until no place is taken. When ctx ends, it returns ctx's error if any was taken.
func (p *places) wait(ctx context.Context) error {
	idle := p.whenIdle()
	if idle == nil {
		return nil // also if ctx has ended
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-idle:
	case <-time.After(lastWords):
	}
	return ctx.Err()
}

// whenIdle returns a channel that is closed when no place is taken, and nil if none is.
func (p *places) whenIdle() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == 0 {
		return nil
	}
	if p.idle == nil {
		p.idle = make(chan struct{})
	}
	return p.idle
}
