package inbox

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// A queue hands operations to the writer.
type queue struct {
	*store
	ops    chan *op
	closed chan struct{} // closed when the writer has ended
}

func newQueue(s *store) *queue {
	return &queue{store: s, ops: make(chan *op, 1024), closed: make(chan struct{})}
}

// answerWithin is the longest time that a sender waits for the inbox.
const answerWithin = 10 * time.Second

var (
	errLocked    = errors.New("somebody else has locked the tenant's row in the inbox's database for long")
	errNotInTime = errors.New("the inbox did not confirm the webhook in time")
)

// submit hands an operation to the writer. It blocks while the writer's queue is full.
func (s *queue) submit(ctx context.Context, o *op) error {
	o.began = time.Now()
	select {
	case s.ops <- o:
		return nil
	case <-s.run.Done():
		return ErrClosed
	case <-ctx.Done():
		if s.run.Err() != nil {
			return ErrClosed
		}
		return ctx.Err()
	}
}

// do hands something to the writer, and returns what run has returned once that is committed. When ctx ends first it is not
// done later; it may be done if it was decided on already, and its commit is under way.
func do[T any](ctx context.Context, s *queue, o op, run func(*turn) (T, error)) (result T, err error) {
	type reply struct {
		result T
		err    error
	}
	var gaveUp atomic.Bool
	var last T
	replies := make(chan reply, 1)
	o.wanted = func() bool { return !gaveUp.Load() }
	o.run = func(t *turn) (err error) {
		// Its lanes are locked until the transaction ends. So if a sender gives up from here on, and sends a newer webhook
		// through another replica, the newer one comes after this one. If the sender gave up before, a newer one may
		// already be in the lane, and this one must not come after it.
		if gaveUp.Load() {
			return context.Canceled
		}
		last, err = run(t)
		return err
	}
	o.done = func(err error) { replies <- reply{last, err} }
	if err := s.submit(ctx, &o); err != nil {
		return result, err
	}
	select {
	case r := <-replies:
		return r.result, r.err
	case <-ctx.Done():
		if gaveUp.Store(true); s.run.Err() == nil {
			return result, ctx.Err()
		}
		<-s.closed // it may still have been written
	case <-s.closed:
	}
	select {
	case r := <-replies:
		return r.result, r.err
	default:
		return result, ErrClosed
	}
}
