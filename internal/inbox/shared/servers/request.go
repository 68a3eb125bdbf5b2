package servers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
)

// large is from how many bytes on messages are written one after the other. Many of them at once would keep the connection busy for longer
// than a request may take: leases would run out, and what is sent again for want of an answer would make it worse.
const large = 32 << 10

// Publish writes one message and returns its sequence, once a majority has it.
func (s *Servers) Publish(ctx context.Context, m *nats.Msg) (uint64, error) {
	if len(m.Data) >= large {
		select {
		case s.large <- struct{}{}:
			defer func() { <-s.large }()
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	defer s.timed(time.Now())
	ack, err := s.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
	if TooLarge(err) {
		err = fmt.Errorf("it takes %d bytes, and max_payload of the NATS servers is %d: %w", m.Size(), s.Conn.MaxPayload(), err)
	}
	if err != nil {
		return 0, err
	}
	s.heard.Store(time.Now().UnixNano())
	if ack.Stream == s.cfg.Stream {
		s.saw(ack.Sequence)
	}
	return ack.Sequence, nil
}

// timed notes when a request that began then took too long.
func (s *Servers) timed(began time.Time) {
	if record.Elapsed(began) > slow {
		s.troubled.Store(time.Now().UnixNano())
	}
}

// saw notes that what waits has a message of that sequence.
func (s *Servers) saw(seq uint64) {
	for {
		old := s.seen.Load()
		if seq <= old || s.seen.CompareAndSwap(old, seq) {
			return
		}
	}
}

// Expect has m refused unless the last message on its subject is that one; zero: none.
func Expect(m *nats.Msg, last uint64) {
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
}

// ExpectOn is Expect for another subject than m's own.
func ExpectOn(m *nats.Msg, subject string, last uint64) {
	Expect(m, last)
	m.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, subject)
}

// Rollup has m take the place of all before it on its subject.
func Rollup(m *nats.Msg) { m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject) }

// Conflict says whether a message was refused because something else was there.
func Conflict(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// TooLarge says whether a message was not sent because the servers take none of its size.
func TooLarge(err error) bool { return errors.Is(err, nats.ErrMaxPayload) }

// Missing says whether the servers do not have a message.
func Missing(err error) bool { return errors.Is(err, jetstream.ErrMsgNotFound) }

// Passing says whether an error may be of the moment, as while the servers elect a
// leader. Whether the message was taken is then not known.
func Passing(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, nats.ErrNoResponders) || errors.As(err, &api) && (api.ErrorCode == duplicateUnderWay || api.Code == 503)
}

// duplicateUnderWay: the servers are about to take a message of that id.
const duplicateUnderWay = 10158

// Again says whether to ask the servers again after an error, and waits a little: that no leader is there
// is said at once.
func (s *Servers) Again(ctx context.Context, err error) bool {
	if !Passing(err) || ctx.Err() != nil {
		return false
	}
	s.troubled.Store(time.Now().UnixNano())
	Sleep(ctx, 50*time.Millisecond)
	return ctx.Err() == nil
}

// Stream is one of the two streams. Each request has a limit of time.
type Stream struct {
	servers *Servers
	stream  jetstream.Stream // nil: not reached yet; servers.mu guards it
}

func (s *Stream) get() (jetstream.Stream, error) {
	s.servers.mu.Lock()
	stream := s.stream
	s.servers.mu.Unlock()
	if stream != nil {
		return stream, nil
	}
	if err := s.servers.Err(); err != nil {
		return nil, err
	}
	return nil, errors.New("usher has not reached the inbox servers yet")
}

// ask makes one request.
func ask[T any](ctx context.Context, s *Stream, request func(context.Context, jetstream.Stream) (T, error)) (answer T, err error) {
	stream, err := s.get()
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	return request(ctx, stream)
}

// Info is what the leader says of the stream; with a filter, also how many messages each subject has.
func (s *Stream) Info(ctx context.Context, filter ...string) (*jetstream.StreamInfo, error) {
	return ask(ctx, s, func(ctx context.Context, stream jetstream.Stream) (*jetstream.StreamInfo, error) {
		var options []jetstream.StreamInfoOpt
		for _, subject := range filter {
			options = append(options, jetstream.WithSubjectFilter(subject))
		}
		return stream.Info(ctx, options...)
	})
}

// Get reads the message of that sequence.
func (s *Stream) Get(ctx context.Context, seq uint64) (*jetstream.RawStreamMsg, error) {
	return ask(ctx, s, func(ctx context.Context, stream jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return stream.GetMsg(ctx, seq)
	})
}

// GetSure is Get for a message that should be there: a leader that was just elected may not have it ready.
func (s *Stream) GetSure(ctx context.Context, seq uint64) (m *jetstream.RawStreamMsg, err error) {
	m, err = s.Get(ctx, seq)
	for n := 0; n < 3 && Missing(err); n++ {
		Sleep(ctx, 500*time.Millisecond)
		m, err = s.Get(ctx, seq)
	}
	return m, err
}

// Next reads the first message of a subject from a sequence on.
func (s *Stream) Next(ctx context.Context, subject string, from uint64) (*jetstream.RawStreamMsg, error) {
	return ask(ctx, s, func(ctx context.Context, stream jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return stream.GetMsg(ctx, max(from, 1), jetstream.WithGetMsgSubject(subject))
	})
}

// Last reads the last message of a subject.
func (s *Stream) Last(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	return ask(ctx, s, func(ctx context.Context, stream jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return stream.GetLastMsgForSubject(ctx, subject)
	})
}

// LastWaiting is Last for what waits. When that takes long the servers are in trouble.
func (s *Servers) LastWaiting(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	defer s.timed(time.Now())
	return s.Waiting.Last(ctx, subject)
}

// Each goes through the messages of a subject from one on, up to the last, as the leader has them. It asks for one after
// the other: who needs to know all of a few can't ask a consumer, whose server may be behind.
func (s *Stream) Each(ctx context.Context, subject string, from uint64, do func(*jetstream.RawStreamMsg)) error {
	for {
		m, err := s.Next(ctx, subject, from)
		if Missing(err) {
			return nil
		}
		if err != nil {
			return err
		}
		do(m)
		from = m.Sequence + 1
	}
}

// Remove deletes a message, zero being none. One that is gone already is fine.
func (s *Stream) Remove(ctx context.Context, seq uint64) error {
	if seq == 0 {
		return nil
	}
	_, err := ask(ctx, s, func(ctx context.Context, stream jetstream.Stream) (struct{}, error) {
		return struct{}{}, stream.DeleteMsg(ctx, seq)
	})
	if errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		if _, gone := s.Get(ctx, seq); Missing(gone) {
			return nil
		}
	}
	return err
}

// Purge deletes what a subject has before a message.
func (s *Stream) Purge(ctx context.Context, subject string, before uint64) error {
	_, err := ask(ctx, s, func(ctx context.Context, stream jetstream.Stream) (struct{}, error) {
		return struct{}{}, stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(before))
	})
	return err
}
