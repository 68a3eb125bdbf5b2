package shared

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

var errGap = errors.New("a message is missing")

// pullBytes is how much is asked for at once; more only where one message may be as large.
const pullBytes = 4 << 20

// consume reads messages, in order and without a gap, until ctx ends or something fails.
// Its consumer lives in the memory of one server, acknowledges nothing, and is made anew each
// time; made is called then.
func (s *Store) consume(ctx context.Context, cfg jetstream.ConsumerConfig, made func(), take func(jetstream.Msg, uint64)) error {
	stream, _, err := s.streams()
	if err != nil {
		return err
	}
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	cfg.AckPolicy, cfg.Replicas, cfg.MemoryStorage, cfg.InactiveThreshold = jetstream.AckNonePolicy, 1, true, 30*time.Second
	consumer, err := request(ctx, func(ctx context.Context) (jetstream.Consumer, error) { return stream.CreateConsumer(ctx, cfg) })
	if err != nil {
		return err
	}
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
		most = jetstream.PullMaxMessagesWithBytesLimit(500, int(max(pullBytes, 2*s.nc.MaxPayload())))
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
	s.background.Go(func() { // it would go by itself, later
		_, _ = request(s.alive, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, stream.DeleteConsumer(ctx, consumer.CachedInfo().Name)
		})
	})
	return context.Cause(ctx)
}
