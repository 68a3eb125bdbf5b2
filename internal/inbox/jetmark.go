package inbox

import (
	"context"
	"time"
)

// markPause is between two marks that did not get through.
const markPause = 50 * time.Millisecond

// mark is a message that says nothing: who has read it has read all before it.
type mark struct {
	made chan struct{}
	seq  uint64
	err  error
}

// catchUp returns when the mirror holds all that had been agreed on when it was
// called.
func (s *jetStore) catchUp(ctx context.Context) error {
	begin := s.mirror.begin()
	seq, err := s.mark(ctx)
	for passing(err) && ctx.Err() == nil {
		select {
		case <-time.After(markPause): // that no leader is there is said at once
			seq, err = s.mark(ctx)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	switch {
	case err != nil:
		return err
	case seq < begin: // what was read before the mark was made is behind it
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fatal = errShorter
		return s.fatal
	}
	return s.mirror.await(ctx, seq)
}

// mark has a mark made after it was called, and returns its sequence. Those who call
// at once share one.
func (s *jetStore) mark(ctx context.Context) (uint64, error) {
	s.mu.Lock()
	if err := s.alive.Err(); err != nil {
		s.mu.Unlock()
		return 0, err
	}
	m := s.next
	if m == nil {
		m = &mark{made: make(chan struct{})}
		s.next = m
	}
	if !s.marking {
		s.marking = true
		s.ended.Go(s.makeMarks)
	}
	s.mu.Unlock()
	select {
	case <-m.made:
		return m.seq, m.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s *jetStore) makeMarks() {
	for {
		s.mu.Lock()
		m := s.next
		s.next = nil
		s.marking = m != nil
		s.mu.Unlock()
		if m == nil {
			return
		}
		m.seq, m.err = s.publish(s.alive, message(s.prefix+"mark", nil))
		close(m.made)
	}
}
