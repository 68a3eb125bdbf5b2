package shared

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// How lanes end: read, and said again by notes.

// noteCopy notes at the lane's end that a, a copy of its last, came.
func (s *Store) noteCopy(ctx context.Context, a *arriving, last end) error {
	if a.kept {
		if err := s.completeKept(ctx, a, last); err != nil {
			return err
		}
	}
	h := last.again(copyKind)
	h.Arrived, h.Replica, h.Foreign = 0, s.self, last.others(s.self)
	e, err := s.restate(ctx, a.place, last, h)
	if err == nil {
		s.ends.Add(a.place, e)
	}
	return err
}

// restate writes a note at the lane's end.
func (s *Store) restate(ctx context.Context, place string, last end, h head) (end, error) {
	m := nats.NewMsg(s.subject("in", place))
	h.put(m)
	expect(m, last.seq)
	seq, err := s.publish(ctx, m)
	if err != nil {
		return end{}, err
	}
	e := newEnd(seq, h)
	s.replaced(last, &e)
	return e, nil
}

// replaced deletes a message that all is said again of by the one after it. If that
// fails it does no harm: the lane's next rollup deletes it.
func (s *Store) replaced(last end, by *end) {
	obsolete := last.isNote() || (last.Kind == keptKind || last.Kind == memoryKind) && by.Bearer != last.seq
	if last.seq == 0 || !obsolete {
		return
	}
	s.background.Go(func() {
		_ = s.remove(s.alive, last.seq)
	})
}

// endOf returns a lane's last message, as far as is known here.
func (s *Store) endOf(ctx context.Context, place string) (end, error) {
	if e, ok := s.ends.Get(place); ok {
		return e, nil
	}
	return s.readEnd(ctx, place)
}

// readEnd asks the servers for a lane's last message.
func (s *Store) readEnd(ctx context.Context, place string) (end, error) {
	m, err := s.lastOn(ctx, s.subject("in", place))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return end{}, nil
	}
	if err != nil {
		return end{}, err
	}
	h, err := readHead(m.Header)
	if err != nil {
		// Only as a place in the lane: nothing is held to be a copy of it. What the message before it says of the last
		// snapshot still holds, and if it is a note, of the last webhook, too.
		s.log.Error("inbox has a damaged message", "seq", m.Sequence)
		if h, err = s.readableBefore(ctx, place, m.Sequence, head{Kind: memoryKind}); err != nil {
			return end{}, err
		}
		h.Digest, h.Arrived, h.Replica, h.Foreign = nil, 0, "", 0
		if len(m.Data) > 0 {
			h.ID = 0
		} else {
			h.Kind = copyKind
		}
	}
	e := newEnd(m.Sequence, h)
	s.ends.Add(place, e)
	return e, nil
}
