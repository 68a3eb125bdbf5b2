package shared

import (
	"context"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
)

// found is a webhook as the servers have it, whole.
type found struct {
	record.Record
	message.Content
}

// find reads a webhook, wherever it is.
func (s *Store) find(ctx context.Context, id uint64) (*found, error) {
	any := "*.*." + strconv.FormatUint(id, 10)
	var err error
	look := func(m *jetstream.RawStreamMsg, missing error) *found {
		if err != nil {
			return nil
		}
		if missing != nil {
			if !servers.Missing(missing) {
				err = missing
			}
			return nil
		}
		f := recognise(m)
		if f == nil || f.ID != id { // id is the place of a message about another one
			return nil
		}
		return f
	}
	// In the order in which it may go from one to the next. What is being parked may still stand in its lane, and what
	// is sent again has a history, too.
	inLane := look(s.servers.Waiting.Get(ctx, id))
	stands := look(s.servers.Waiting.Last(ctx, s.subjects.Prefix+"*.state."+any))
	switch {
	case err != nil:
		return nil, err
	case stands != nil && len(stands.Data) > 0:
		return stands, nil
	case stands != nil && inLane != nil:
		inLane.Status = stands.Status
		return inLane, nil
	case inLane != nil:
		return inLane, nil
	}
	past := look(s.servers.History.Last(ctx, s.subjects.History+any))
	if past == nil && err == nil {
		err = record.ErrNotFound
	}
	return past, err
}

// recognise makes a webhook of a message; nil: it is none.
func recognise(m *jetstream.RawStreamMsg) *found {
	r := message.Record(m.Header, m.Sequence)
	if r == nil {
		return nil
	}
	r.Size = message.SizeOf(m.Header, m.Data)
	f := &found{*r, message.Packed(m.Header, m.Data)}
	if w, err := f.Unpack(); err == nil {
		w.Lane = f.Webhook.Lane // where it is, also if it got there by mistake
		f.Webhook = w
	}
	return f
}

// Show returns a webhook with its content, and that of its tenant's which was taken before it.
func (s *Store) Show(id uint64) (*record.Item, error) {
	ctx, cancel := context.WithTimeout(s.alive, appendTimeout)
	defer cancel()
	f, err := s.find(ctx, id)
	if err != nil {
		return nil, err
	}
	item := &record.Item{Entry: f.Entry(), Header: f.Webhook.Header, Body: f.Webhook.Body}
	if f.Webhook.Lane.Tenant != "" {
		item.Previous, item.Before = s.previous(ctx, f)
	}
	return item, nil
}

// previous is the last snapshot before another one that was taken, as far as the history has it; and the id of the
// tenant's webhook before it, which may not have been.
func (s *Store) previous(ctx context.Context, f *found) (taken *record.Previous, before uint64) {
	place := message.PlaceOf(f.Webhook.Lane)
	lane := s.subjects.Lane(place)
	first, err := s.servers.Waiting.Next(ctx, lane, 1)
	for from := max(f.ID, window) - window; err == nil && first.Sequence < f.ID; from = 0 { // much may wait
		waiting, err := scan(ctx, s.servers.Waiting, lane, from, f.ID)
		if len(waiting) > 0 {
			before = waiting[len(waiting)-1].ID
		}
		if len(waiting) > 0 || err != nil || from <= first.Sequence {
			break
		}
	}
	outside, _ := idsOn(ctx, s.servers.Waiting, s.subjects.States(place))
	for _, id := range outside {
		if id < f.ID {
			before = max(before, id)
		}
	}
	past, _ := s.pastOf(ctx, place)
	for _, id := range slices.Backward(past) {
		if id >= f.ID {
			continue
		}
		before = max(before, id)
		m, err := s.servers.History.Last(ctx, s.subjects.Past(place, id))
		if err != nil {
			return nil, before
		}
		if r := recognise(m); r != nil && r.Webhook.Snapshot && r.Status.State.Taken() {
			return &record.Previous{ID: id, Body: r.Webhook.Body}, before
		}
	}
	return nil, before
}

// pastOf are the ids that the history has of a lane, in order.
func (s *Store) pastOf(ctx context.Context, place string) ([]uint64, error) {
	return idsOn(ctx, s.servers.History, s.subjects.History+place+".*")
}

// idsOn are the ids that a stream has subjects for, in order.
func idsOn(ctx context.Context, stream *servers.Stream, filter string) ([]uint64, error) {
	info, err := stream.Info(ctx, filter)
	if err != nil {
		return nil, err
	}
	ids := message.IDs(info.State.Subjects)
	slices.Sort(ids)
	return ids, nil
}
