package shared

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
)

// found is a webhook as the servers have it, whole.
type found struct {
	record.Record
	content
}

// find reads a webhook, wherever it is.
func (s *Store) find(ctx context.Context, id uint64) (*found, error) {
	stream, history, err := s.streams()
	if err != nil {
		return nil, err
	}
	any := "*.*." + strconv.FormatUint(id, 10)
	// Where it is wanted first: what is sent again has a history, too, and what is being
	// parked may still stand in its lane.
	for _, look := range []func(context.Context) (*jetstream.RawStreamMsg, error){
		func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
			return stream.GetLastMsgForSubject(ctx, s.prefix+"*.again."+any)
		},
		func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
			return stream.GetLastMsgForSubject(ctx, s.prefix+"*.parked."+any)
		},
		func(ctx context.Context) (*jetstream.RawStreamMsg, error) { return stream.GetMsg(ctx, id) },
		func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
			return history.GetLastMsgForSubject(ctx, s.historyPrefix+any)
		},
	} {
		m, err := request(ctx, look)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if f := s.recognise(ctx, m); f != nil && f.ID == id { // else id is the place of a message about another one
			return f, nil
		}
	}
	return nil, fmt.Errorf("webhook %d: %w", id, record.ErrNotFound)
}

// recognise makes a webhook of a message; nil: it is none.
func (s *Store) recognise(ctx context.Context, m *jetstream.RawStreamMsg) *found {
	r := recordIn(m.Header, m.Sequence)
	if r == nil {
		return nil
	}
	f := &found{*r, packed(m.Header, m.Data)}
	if w, err := f.unpack(); err == nil {
		f.Webhook = w
	}
	if f.Status.State == record.Waiting {
		s.stand(ctx, &f.Record)
	}
	return f
}

// stand completes how a webhook that waits stands.
func (s *Store) stand(ctx context.Context, r *record.Record) {
	if now, ok := s.courier.Find(r.Webhook.Lane, r.ID); ok {
		r.Status = now.Status
		return
	}
	m, err := s.lastOn(ctx, s.idSubject("status", placeOf(r.Webhook.Lane), r.ID))
	if err != nil {
		return
	}
	if status, err := readStatus(m.Header); err == nil && !status.Again.Before(r.Status.Again) {
		r.Status = status
	}
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
	stream, history, err := s.streams()
	if err != nil {
		return nil, 0
	}
	place := placeOf(f.Webhook.Lane)
	lane, prefix := s.subject("in", place), s.historyPrefix+place+"."
	// What waits: the first of the lane tells whether there is any before it.
	first, err := request(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(lane))
	})
	if err == nil {
		if h, err := readHead(first.Header); err == nil {
			if id := newEnd(first.Sequence, h).ID; id < f.ID {
				before = id
			}
		}
	}
	for _, id := range idsBelow(ctx, stream, s.subject("parked", place)+".", f.ID) {
		before = max(before, id)
	}
	for _, id := range slices.Backward(idsBelow(ctx, history, prefix, f.ID)) {
		before = max(before, id)
		m, err := request(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
			return history.GetLastMsgForSubject(ctx, prefix+strconv.FormatUint(id, 10))
		})
		if err != nil {
			return nil, before
		}
		if r := s.recognise(ctx, m); r != nil && r.Webhook.Snapshot && r.Status.State.Taken() {
			return &record.Previous{ID: id, Body: r.Webhook.Body}, before
		}
	}
	return nil, before
}

// idsBelow are the ids below one that a stream has subjects for, in order.
func idsBelow(ctx context.Context, stream jetstream.Stream, prefix string, limit uint64) (ids []uint64) {
	info, err := request(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		return stream.Info(ctx, jetstream.WithSubjectFilter(prefix+"*"))
	})
	if err != nil {
		return nil
	}
	for subject := range info.State.Subjects {
		if id, err := strconv.ParseUint(strings.TrimPrefix(subject, prefix), 10, 64); err == nil && id < limit {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
