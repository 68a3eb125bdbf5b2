package shared

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
)

// What is asked of the servers.

// publish writes one message and returns its sequence, once a majority has it.
func (s *Store) publish(ctx context.Context, m *nats.Msg) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	defer s.timed(time.Now())
	ack, err := s.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, err
	}
	s.heard.Store(time.Now().UnixNano())
	if ack.Stream == s.cfg.NATS.Stream {
		s.saw(ack.Sequence)
	}
	return ack.Sequence, nil
}

// timed notes when a request that began then took too long.
func (s *Store) timed(began time.Time) {
	if time.Since(began) > slow {
		s.troubled.Store(time.Now().UnixNano())
	}
}

// saw notes that the stream has a message of that sequence.
func (s *Store) saw(seq uint64) {
	for {
		old := s.seen.Load()
		if seq <= old || s.seen.CompareAndSwap(old, seq) {
			return
		}
	}
}

// lastOn reads the last message of a subject.
func (s *Store) lastOn(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	stream, _, err := s.streams()
	if err != nil {
		return nil, err
	}
	defer s.timed(time.Now())
	return request(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return stream.GetLastMsgForSubject(ctx, subject)
	})
}

// read reads the message of that sequence.
func (s *Store) read(ctx context.Context, seq uint64) (*jetstream.RawStreamMsg, error) {
	stream, _, err := s.streams()
	if err != nil {
		return nil, err
	}
	return request(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) { return stream.GetMsg(ctx, seq) })
}

// readThere is read for a message that should be there: a leader that was just elected may not have it ready.
func (s *Store) readThere(ctx context.Context, seq uint64) (m *jetstream.RawStreamMsg, err error) {
	for n := 0; n < 4 && ctx.Err() == nil; n++ {
		if n > 0 {
			pause(ctx, 500*time.Millisecond)
		}
		if m, err = s.read(ctx, seq); !errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
	}
	return m, err
}

// each goes through the messages of a subject from one on, up to the last, as the leader has them. It asks for one after
// the other: who needs to know all of a few can't ask a consumer, whose server may be behind.
func (s *Store) each(ctx context.Context, stream jetstream.Stream, subject string, from uint64, do func(*jetstream.RawStreamMsg) error) error {
	for seq := max(from, 1); ; {
		m, err := request(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
			return stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subject))
		})
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err == nil {
			err = do(m)
		}
		if err != nil {
			return err
		}
		seq = m.Sequence + 1
	}
}

// remove deletes a message, zero being none. One that is gone already is fine.
func (s *Store) remove(ctx context.Context, seq uint64) error {
	if seq == 0 {
		return nil
	}
	stream, _, err := s.streams()
	if err != nil {
		return err
	}
	_, err = request(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, stream.DeleteMsg(ctx, seq) })
	if err == nil || errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) && s.gone(ctx, seq) {
		return nil
	}
	return err
}

func (s *Store) gone(ctx context.Context, seq uint64) bool {
	_, err := s.read(ctx, seq)
	return errors.Is(err, jetstream.ErrMsgNotFound)
}

func request[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return do(ctx)
}

// notFound is record.ErrNotFound where the servers do not have a message.
func notFound(err error) error {
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return record.ErrNotFound
	}
	return err
}
