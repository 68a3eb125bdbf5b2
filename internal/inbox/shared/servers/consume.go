package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var errGap = errors.New("a message is missing")

// pullBytes is how much is asked for at once; more only where one message may be as large.
const pullBytes = 4 << 20

// consumer makes one that lives in the memory of one server and acknowledges nothing.
func (s *Stream) consumer(ctx context.Context, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	cfg.AckPolicy, cfg.Replicas, cfg.MemoryStorage, cfg.InactiveThreshold = jetstream.AckNonePolicy, 1, true, 30*time.Second
	return ask(ctx, s, func(ctx context.Context, stream jetstream.Stream) (jetstream.Consumer, error) {
		return stream.CreateConsumer(ctx, cfg)
	})
}

// dismiss deletes a consumer, which would go by itself, later.
func (s *Stream) dismiss(ctx context.Context, consumer jetstream.Consumer) {
	_, _ = ask(ctx, s, func(ctx context.Context, stream jetstream.Stream) (struct{}, error) {
		return struct{}{}, stream.DeleteConsumer(ctx, consumer.CachedInfo().Name)
	})
}

// Consume reads what waits, in order and without a gap, until ctx ends or something fails. Its consumer is made anew each time;
// made is called then.
func (s *Servers) Consume(ctx context.Context, cfg jetstream.ConsumerConfig, made func(), take func(jetstream.Msg, uint64)) error {
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	consumer, err := s.Waiting.consumer(ctx, cfg)
	if err != nil {
		return err
	}
	defer s.background.Go(func() { s.Waiting.dismiss(s.alive, consumer) })
	made()
	var (
		mu      sync.Mutex // held while a message is taken in
		stopped bool
		last    uint64 // the consumer's own count
	)
	take1 := func(m jetstream.Msg) {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return
		}
		meta, err := m.Metadata()
		if err == nil && meta.Sequence.Consumer != last+1 {
			err = errGap
		}
		if err != nil {
			stopped = true
			broken(err)
			return
		}
		last = meta.Sequence.Consumer
		s.saw(meta.Sequence.Stream)
		take(m, meta.Sequence.Stream)
	}
	// Webhooks may be large: many of them at once would fill the memory.
	var most jetstream.PullConsumeOpt = jetstream.PullMaxMessages(500)
	if !cfg.HeadersOnly {
		most = jetstream.PullMaxMessagesWithBytesLimit(500, int(max(pullBytes, 2*s.Conn.MaxPayload())))
	}
	consuming, err := consumer.Consume(take1, most, jetstream.PullExpiry(10*time.Second), jetstream.PullHeartbeat(time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { broken(err) }))
	if err != nil {
		return err
	}
	<-ctx.Done()
	mu.Lock()
	stopped = true
	mu.Unlock()
	consuming.Stop()
	return context.Cause(ctx)
}

// Visit goes through the messages of a subject from one up to another, headers only. The client says nothing
// of those that are lost with its connection: they are missed by the consumer's own count. And the consumer's server may
// be behind: that nothing comes after the last one is what the leader says.
func (s *Stream) Visit(ctx context.Context, subject string, from, to uint64, each func(jetstream.Msg, uint64)) error {
	consumer, err := s.consumer(ctx, jetstream.ConsumerConfig{
		FilterSubject: subject, HeadersOnly: true, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(from, 1),
	})
	if err != nil {
		return err
	}
	defer s.dismiss(ctx, consumer)
	var count, last uint64 // by that count, and in the stream
	for left := consumer.CachedInfo().NumPending; left > 0 && ctx.Err() == nil; {
		batch, err := consumer.Fetch(int(min(left, 1000)), jetstream.FetchMaxWait(RequestTimeout))
		if err != nil {
			return err
		}
		before := count
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return err
			}
			if count++; meta.Sequence.Consumer != count {
				return errMissed
			}
			if left, last = meta.NumPending, meta.Sequence.Stream; last >= to {
				return nil
			}
			each(m, last)
		}
		if err := batch.Error(); err != nil {
			return err
		}
		if count == before {
			break // somebody may have deleted them meanwhile
		}
	}
	next, err := s.Next(ctx, subject, max(from, last+1))
	if Missing(err) || err == nil && next.Sequence >= to {
		return nil
	}
	return cmp.Or(err, errMissed)
}

// errMissed is one of the moment; see Passing.
var errMissed = fmt.Errorf("%w: messages were lost on their way", nats.ErrTimeout)
