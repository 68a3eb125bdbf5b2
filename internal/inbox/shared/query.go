package shared

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// List returns entries, newest first. It searches in what tells webhooks from each other, not
// in their contents.
func (s *Store) List(f record.Filter) ([]record.Entry, error) {
	ctx, cancel := context.WithTimeout(s.alive, time.Minute)
	defer cancel()
	stream, history, err := s.streams()
	if err != nil {
		return nil, err
	}
	records := make(map[uint64]*record.Record)
	tenant := "*.*"
	if f.Tenant != "" {
		token, _, _ := strings.Cut(placeOf(webhookgate.Lane{Tenant: f.Tenant}), ".")
		tenant = token + ".*"
	}
	if f.State == "" || f.State.Finished() {
		if err := s.collect(ctx, history, records, f, s.historyPrefix+tenant+".*"); err != nil {
			return nil, err
		}
	}
	if f.State == "" || !f.State.Finished() {
		for _, subject := range []string{"*.in." + tenant, "*.parked." + tenant + ".*", "*.again." + tenant + ".*"} {
			if err := s.collect(ctx, stream, records, f, s.prefix+subject); err != nil {
				return nil, err
			}
		}
	}
	return s.entries(ctx, records, f), nil
}

// window is how many messages are read at a time, from the stream's end backwards, where
// only the latest are asked for.
const window = 4096

// collect reads the latest webhooks of some subjects. What a later subject has is what counts.
func (s *Store) collect(ctx context.Context, stream jetstream.Stream, into map[uint64]*record.Record, f record.Filter, subject string) error {
	info, err := request(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) { return stream.Info(ctx) })
	if err != nil {
		return err
	}
	to := info.State.LastSeq + 1
	for size := uint64(window); to > info.State.FirstSeq; size *= 4 {
		from := info.State.FirstSeq
		// Only in lanes does the order of the messages say which webhooks are the latest.
		if f.Limit > 0 && strings.Contains(subject, ".in.") && to > from+size {
			from = to - size
		}
		found, err := s.scan(ctx, stream, subject, from, to)
		for n := 0; passing(err) && n < 5 && ctx.Err() == nil; n++ { // a consumer that was just made may not be there yet
			pause(ctx, 100*time.Millisecond)
			found, err = s.scan(ctx, stream, subject, from, to)
		}
		if err != nil {
			return err
		}
		matching := 0
		for _, r := range found {
			into[r.ID] = r
			if e := r.Entry(); f.Match(&e, nil) {
				matching++
			}
		}
		if to = from; f.Limit > 0 && matching >= f.Limit {
			return nil
		}
	}
	return nil
}

// scan reads the webhooks of a subject from one message up to another, without their contents.
func (s *Store) scan(ctx context.Context, stream jetstream.Stream, subject string, from, to uint64) (out []*record.Record, err error) {
	err = s.visit(ctx, stream, subject, from, to, func(m jetstream.Msg, seq uint64) {
		if r := recordIn(m.Headers(), seq); r != nil {
			out = append(out, r)
		}
	})
	return out, err
}

// endless is a sequence that no message has.
const endless = 1<<64 - 1

// visit goes through the messages of a subject from one up to another, headers only. The client says nothing
// of those that are lost with its connection: they are missed by the consumer's own count.
func (s *Store) visit(ctx context.Context, stream jetstream.Stream, subject string, from, to uint64, each func(jetstream.Msg, uint64)) error {
	consumer, err := request(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
		return stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			FilterSubject: subject, HeadersOnly: true, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(from, 1),
			AckPolicy: jetstream.AckNonePolicy, Replicas: 1, MemoryStorage: true, InactiveThreshold: 10 * time.Second,
		})
	})
	if err != nil {
		return err
	}
	defer func() {
		_, _ = request(ctx, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, stream.DeleteConsumer(ctx, consumer.CachedInfo().Name)
		})
	}()
	var last uint64 // by that count
	for left := consumer.CachedInfo().NumPending; left > 0 && ctx.Err() == nil; {
		batch, err := consumer.Fetch(int(min(left, 1000)), jetstream.FetchMaxWait(requestTimeout))
		if err != nil {
			return err
		}
		got := 0
		for m := range batch.Messages() {
			got++
			meta, err := m.Metadata()
			if err != nil {
				return err
			}
			if last++; meta.Sequence.Consumer != last {
				return errMissed
			}
			if left = meta.NumPending; meta.Sequence.Stream >= to {
				return nil
			}
			each(m, meta.Sequence.Stream)
		}
		if err := batch.Error(); err != nil {
			return err
		}
		if got == 0 { // somebody may have deleted them meanwhile
			return allSent(ctx, consumer, last)
		}
	}
	return ctx.Err()
}

// errMissed is one of the moment; see passing.
var errMissed = fmt.Errorf("%w: messages were lost on their way", nats.ErrTimeout)

// allSent says whether a consumer has nothing for us but what came.
func allSent(ctx context.Context, consumer jetstream.Consumer, last uint64) error {
	info, err := request(ctx, consumer.Info)
	if err == nil && (info.NumPending > 0 || info.Delivered.Consumer != last) {
		return errMissed
	}
	return err
}

// recordIn makes a record of a message, by its headers; nil: it has none.
func recordIn(header nats.Header, seq uint64) *record.Record {
	h, err := readHead(header)
	if err != nil || h.Kind != webhookKind {
		return nil
	}
	r := &record.Record{ID: newEnd(seq, h).ID, Webhook: slim(&h), Status: record.Status{State: record.Waiting, Changed: h.Received}}
	if status, err := readStatus(header); err == nil {
		r.Status = status
	}
	return r
}

// entries selects, and completes how what waits stands: some at a time, as the servers have
// to be asked for what other replicas deliver.
func (s *Store) entries(ctx context.Context, records map[uint64]*record.Record, f record.Filter) []record.Entry {
	ids := slices.Sorted(maps.Keys(records))
	slices.Reverse(ids)
	var chosen []*record.Record
	for _, id := range ids {
		if e := records[id].Entry(); f.Match(&e, nil) {
			if chosen = append(chosen, records[id]); f.Limit > 0 && len(chosen) == f.Limit {
				break
			}
		}
	}
	slots := make(chan struct{}, 16)
	var asking sync.WaitGroup
	for _, r := range chosen {
		if r.Status.State != record.Waiting {
			continue
		}
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			s.stand(ctx, r)
		})
	}
	asking.Wait()
	out := make([]record.Entry, 0, len(chosen))
	for _, r := range chosen {
		if e := r.Entry(); f.Match(&e, nil) { // it may stand otherwise by now
			out = append(out, e)
		}
	}
	return out
}
