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
		if f := s.recognise(ctx, m); f != nil {
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

// Show returns a webhook with its content, and that of its tenant's before it.
func (s *Store) Show(id uint64) (*record.Item, error) {
	ctx, cancel := context.WithTimeout(s.alive, appendTimeout)
	defer cancel()
	f, err := s.find(ctx, id)
	if err != nil {
		return nil, err
	}
	item := &record.Item{Entry: f.Entry(), Header: f.Webhook.Header, Body: f.Webhook.Body}
	if f.Webhook.Lane.Tenant != "" {
		item.Previous = s.previous(ctx, f)
	}
	return item, nil
}

// previous is the snapshot that was delivered before another one, as far as the history has it.
func (s *Store) previous(ctx context.Context, f *found) *record.Previous {
	_, history, err := s.streams()
	if err != nil {
		return nil
	}
	prefix := s.historyPrefix + placeOf(f.Webhook.Lane) + "."
	info, err := request(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		return history.Info(ctx, jetstream.WithSubjectFilter(prefix+"*"))
	})
	if err != nil {
		return nil
	}
	var ids []uint64
	for subject := range info.State.Subjects {
		if id, err := strconv.ParseUint(strings.TrimPrefix(subject, prefix), 10, 64); err == nil && id < f.ID {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range slices.Backward(ids) {
		m, err := request(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
			return history.GetLastMsgForSubject(ctx, prefix+strconv.FormatUint(id, 10))
		})
		if err != nil {
			return nil
		}
		before := s.recognise(ctx, m)
		if before != nil && before.Webhook.Snapshot && (before.Status.State == record.Delivered || before.Status.State == record.Kept) {
			return &record.Previous{ID: id, Body: before.Webhook.Body}
		}
	}
	return nil
}
