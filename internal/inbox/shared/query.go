package shared

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	// In the order in which a webhook goes from one place to the next: one that goes meanwhile is not missed.
	if !f.State.Finished() || f.State == "" {
		if err := s.collect(ctx, stream, records, f, s.prefix+"*.in."+tenant); err != nil {
			return nil, err
		}
	}
	// Always: what was sent again is not finished, and has a history.
	if err := s.collect(ctx, stream, records, f, s.prefix+"*.state."+tenant+".*"); err != nil {
		return nil, err
	}
	if f.State == "" || f.State.Finished() {
		if err := s.collect(ctx, history, records, f, s.historyPrefix+tenant+".*"); err != nil {
			return nil, err
		}
	}
	return entries(records, f), nil
}

// window is how many messages are read at a time, from the stream's end backwards, where
// only the latest are asked for.
const window = 4096

// collect reads the latest webhooks of some subjects. If one is in two places, its state counts, and its history does not: it
// was sent again since, or was not finished after all.
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
		for n := 0; passing(err) && n < 20 && ctx.Err() == nil; n++ { // a consumer may not be there yet, or behind
			pause(ctx, 100*time.Millisecond)
			found, err = s.scan(ctx, stream, subject, from, to)
		}
		if err != nil {
			return err
		}
		matching := 0
		for _, r := range found {
			before := into[r.ID]
			if before == nil && r.Size == 0 {
				continue // it says how another message stands, and that is gone, or not asked for
			}
			if before == nil || !r.Status.State.Finished() {
				into[r.ID] = r
			}
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
			r.Size = contentSize(m.Headers(), m.Data())
			out = append(out, r)
		}
	})
	return out, err
}

// endless is a sequence that no message has.
const endless = 1<<64 - 1

// visit goes through the messages of a subject from one up to another, headers only. The client says nothing
// of those that are lost with its connection: they are missed by the consumer's own count. And the consumer's server may
// be behind: that nothing comes after the last one is what the leader says.
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
	var count, last uint64 // by that count, and in the stream
	for left := consumer.CachedInfo().NumPending; left > 0 && ctx.Err() == nil; {
		batch, err := consumer.Fetch(int(min(left, 1000)), jetstream.FetchMaxWait(requestTimeout))
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
	next, err := request(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return stream.GetMsg(ctx, max(from, last+1), jetstream.WithGetMsgSubject(subject))
	})
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && next.Sequence >= to {
		return nil
	}
	return cmp.Or(err, errMissed)
}

// errMissed is one of the moment; see passing.
var errMissed = fmt.Errorf("%w: messages were lost on their way", nats.ErrTimeout)

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

// entries selects, the newest first.
func entries(records map[uint64]*record.Record, f record.Filter) []record.Entry {
	out := make([]record.Entry, 0, len(records))
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(records))) {
		if e := records[id].Entry(); f.Match(&e, nil) {
			if out = append(out, e); f.Limit > 0 && len(out) == f.Limit {
				break
			}
		}
	}
	return out
}
