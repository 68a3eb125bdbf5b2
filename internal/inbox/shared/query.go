package shared

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
)

// List returns entries, newest first. It searches in what tells webhooks from each other, not
// in their contents.
func (s *Store) List(f record.Filter) ([]record.Entry, error) {
	ctx, cancel := context.WithTimeout(s.alive, time.Minute)
	defer cancel()
	records := make(map[uint64]*record.Record)
	tenant := "*.*"
	if f.Tenant != "" {
		tenant = message.PlacesOf(f.Tenant)
	}
	// In the order in which a webhook goes from one place to the next: one that goes meanwhile is not missed.
	if f.State == "" || !f.State.Finished() {
		if err := s.collect(ctx, s.servers.Waiting, records, f, s.subjects.Prefix+"*.in."+tenant); err != nil {
			return nil, err
		}
	}
	// Always: what was sent again is not finished, and has a history.
	if err := s.collect(ctx, s.servers.Waiting, records, f, s.subjects.Prefix+"*.state."+tenant+".*"); err != nil {
		return nil, err
	}
	if f.State == "" || f.State.Finished() {
		if err := s.collect(ctx, s.servers.History, records, f, s.subjects.History+tenant+".*"); err != nil {
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
func (s *Store) collect(ctx context.Context, stream *servers.Stream, into map[uint64]*record.Record, f record.Filter, subject string) error {
	info, err := stream.Info(ctx)
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
		found, err := scan(ctx, stream, subject, from, to)
		for n := 0; servers.Passing(err) && n < 20 && ctx.Err() == nil; n++ { // a consumer may not be there yet, or behind
			servers.Sleep(ctx, 100*time.Millisecond)
			found, err = scan(ctx, stream, subject, from, to)
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
func scan(ctx context.Context, stream *servers.Stream, subject string, from, to uint64) (out []*record.Record, err error) {
	err = stream.Visit(ctx, subject, from, to, func(m jetstream.Msg, seq uint64) {
		if r := message.Record(m.Headers(), seq); r != nil {
			r.Size = message.ContentSize(m.Headers(), m.Data())
			out = append(out, r)
		}
	})
	return out, err
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
