package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// follow reads the log into the mirror until ctx ends, whatever becomes of servers
// and connections meanwhile.
func (s *jetStore) follow(ctx context.Context) {
	const pause, sayEvery = 250 * time.Millisecond, time.Minute
	said := time.Now() // by firstLook
	for ctx.Err() == nil {
		err := s.prepare(ctx)
		if err == nil {
			err = s.read(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		s.setTrouble(err)
		if time.Since(said) > sayEvery {
			said = time.Now()
			s.log.Warn("inbox still not usable, trying on", "err", err)
		}
		s.log.Debug("inbox log broke off", "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// read reads on until something breaks off. Its consumer lives in the memory of one
// server and is made anew each time: what was read is known here.
func (s *jetStore) read(ctx context.Context) error {
	ctx, broken := context.WithCancelCause(ctx)
	defer broken(nil)
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	consumer, err := s.js.CreateConsumer(request, s.cfg.Stream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: s.mirror.begin(),
		AckPolicy: jetstream.AckNonePolicy, // so that no number of webhooks that wait is too many
		Replicas:  1, MemoryStorage: true, InactiveThreshold: 30 * time.Second,
	})
	if err != nil {
		return err
	}
	r := &logReader{store: s, broken: broken}
	consuming, err := consumer.Consume(r.message,
		jetstream.PullExpiry(10*time.Second), jetstream.PullHeartbeat(time.Second),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { broken(err) }))
	if err != nil {
		return err
	}
	reached := make(chan struct{})
	go func() {
		defer close(reached)
		if err := s.catchUp(ctx); err != nil {
			broken(err)
			return
		}
		s.setTrouble(nil)
	}()
	s.watch(ctx, broken)
	r.stop()
	consuming.Stop()
	<-reached
	return context.Cause(ctx)
}

// watch returns when ctx ends, and ends it when the log says nothing for too long: a
// consumer may hang, though its server is well. Now and then it looks at the stream.
func (s *jetStore) watch(ctx context.Context, broken context.CancelCauseFunc) {
	tick, look := time.NewTicker(silence), time.NewTicker(lookEvery)
	defer tick.Stop()
	defer look.Stop()
	before := s.mirror.begin()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			if err := s.prepare(ctx); err != nil {
				s.log.Debug("inbox stream not looked at", "err", err)
			}
		case <-tick.C:
			now := s.mirror.begin()
			if now == before {
				broken(errSilent)
			}
			before = now
		}
	}
}

// logReader takes messages as they come. One that is missing ends it.
type logReader struct {
	store  *jetStore
	broken context.CancelCauseFunc

	mu      sync.Mutex // held while a message is taken in
	stopped bool
	last    uint64 // the consumer's own count
}

// stop returns when no message is being taken in, and sees to it that none will be.
func (r *logReader) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
}

var (
	errGap    = errors.New("a message of the log is missing")
	errSilent = errors.New("no majority of its servers has answered of late")
)

func (r *logReader) message(m jetstream.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	meta, err := m.Metadata()
	if err == nil && meta.Sequence.Consumer != r.last+1 {
		err = errGap
	}
	if err != nil {
		r.stopped = true
		r.broken(err)
		return
	}
	r.last = meta.Sequence.Consumer
	r.store.apply(m, meta.Sequence.Stream)
}

// apply puts one message into the mirror.
func (s *jetStore) apply(m jetstream.Msg, seq uint64) {
	kind, token, _ := strings.Cut(strings.TrimPrefix(m.Subject(), s.prefix), ".")
	switch kind {
	case "in":
		if webhook := m.Headers().Get(copyHeader); webhook != "" {
			s.mirror.copyCame(seq, token, webhook)
			return
		}
		s.mirror.appended(seq, token, m.Data(), m.Headers().Get(encodingHeader) == deflate)
	case "status":
		id, err := strconv.ParseUint(token, 10, 64)
		if err != nil {
			s.mirror.passed(seq)
			return
		}
		s.mirror.noted(seq, id, m.Data())
	case "forget":
		s.mirror.forgot(seq, token)
	case "trim":
		end, err := strconv.ParseUint(string(m.Data()), 10, 64)
		if err != nil {
			s.log.Error("inbox trim can't be read", "err", fmt.Errorf("message %d: %w", seq, err))
		}
		s.mirror.trimmed(seq, end)
	case "lease":
		var l leaseSeen
		if err := json.Unmarshal(m.Data(), &l); err != nil {
			s.log.Error("inbox lease can't be read", "err", fmt.Errorf("message %d: %w", seq, err))
		}
		s.mirror.leased(seq, l)
	default:
		s.mirror.passed(seq)
	}
}
