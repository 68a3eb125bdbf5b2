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
	look := func(get func(context.Context) (*jetstream.RawStreamMsg, error)) *found {
		if err != nil {
			return nil
		}
		m, missing := request(ctx, get)
		if missing != nil && !errors.Is(missing, jetstream.ErrMsgNotFound) {
			err = missing
		}
		if missing != nil {
			return nil
		}
		if f := recognise(m); f != nil && f.ID == id { // else id is the place of a message about another one
			return f
		}
		return nil
	}
	// In the order in which it may go from one to the next. What is being parked may still stand in its lane, and what
	// is sent again has a history, too.
	inLane := look(func(ctx context.Context) (*jetstream.RawStreamMsg, error) { return stream.GetMsg(ctx, id) })
	stands := look(func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return stream.GetLastMsgForSubject(ctx, s.prefix+"*.state."+any)
	})
	switch {
	case err != nil:
		return nil, err
	case stands != nil && len(stands.data) > 0:
		return stands, nil
	case stands != nil && inLane != nil:
		inLane.Status = stands.Status
		return inLane, nil
	case inLane != nil:
		return inLane, nil
	}
	past := look(func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return history.GetLastMsgForSubject(ctx, s.historyPrefix+any)
	})
	if past == nil && err == nil {
		err = fmt.Errorf("webhook %d: %w", id, record.ErrNotFound)
	}
	return past, err
}

// recognise makes a webhook of a message; nil: it is none.
func recognise(m *jetstream.RawStreamMsg) *found {
	r := recordIn(m.Header, m.Sequence)
	if r == nil {
		return nil
	}
	r.Size = sizeOf(m.Header, m.Data)
	f := &found{*r, packed(m.Header, m.Data)}
	if w, err := f.unpack(); err == nil {
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
	stream, history, err := s.streams()
	if err != nil {
		return nil, 0
	}
	place := placeOf(f.Webhook.Lane)
	prefix := s.historyPrefix + place + "."
	lane := s.subject("in", place)
	first, err := request(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(lane))
	})
	for from := max(f.ID, window) - window; err == nil && first.Sequence < f.ID; from = 0 { // much may wait
		waiting, err := s.scan(ctx, stream, lane, from, f.ID)
		if len(waiting) > 0 {
			before = waiting[len(waiting)-1].ID
		}
		if len(waiting) > 0 || err != nil || from <= first.Sequence {
			break
		}
	}
	outside, _ := idsOn(ctx, stream, s.subject("state", place)+".")
	for _, id := range outside {
		if id < f.ID {
			before = max(before, id)
		}
	}
	past, _ := idsOn(ctx, history, prefix)
	for _, id := range slices.Backward(past) {
		if id >= f.ID {
			continue
		}
		before = max(before, id)
		m, err := request(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
			return history.GetLastMsgForSubject(ctx, prefix+strconv.FormatUint(id, 10))
		})
		if err != nil {
			return nil, before
		}
		if r := recognise(m); r != nil && r.Webhook.Snapshot && r.Status.State.Taken() {
			return &record.Previous{ID: id, Body: r.Webhook.Body}, before
		}
	}
	return nil, before
}

// idsOn are the ids that a stream has subjects for, in order.
func idsOn(ctx context.Context, stream jetstream.Stream, prefix string) (ids []uint64, err error) {
	info, err := request(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		return stream.Info(ctx, jetstream.WithSubjectFilter(prefix+"*"))
	})
	if err != nil {
		return nil, err
	}
	for subject := range info.State.Subjects {
		if id, err := strconv.ParseUint(strings.TrimPrefix(subject, prefix), 10, 64); err == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}
