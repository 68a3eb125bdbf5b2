package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/webhookgate"
)

// The reading half of jetStore: from the mirror, and the contents from the log.

func (s *jetStore) Unfinished() ([]*record, error) {
	s.mirror.mu.Lock()
	defer s.mirror.mu.Unlock()
	return s.mirror.unfinished(), nil
}

func (s *jetStore) Read(id uint64) (*record, error) {
	r, ok := s.mirror.find(id)
	if !ok {
		return nil, fmt.Errorf("webhook %d: %w", id, ErrNotFound)
	}
	w, _, err := s.content(id)
	if err != nil {
		return nil, fmt.Errorf("webhook %d: %w", id, err)
	}
	return &record{id: id, webhook: w, status: r.status}, nil
}

// List searches in what the mirror has, which is not the contents.
func (s *jetStore) List(f Filter) ([]Entry, error) {
	m := s.mirror
	if _, read := m.heardAt(); !read {
		return nil, s.Err() // what is there is not known, which is not the same as nothing
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Entry
	for n := len(m.order) - 1; n >= 0 && (f.Limit == 0 || len(out) < f.Limit); n-- {
		if e := m.order[n].entry(); f.match(&e, nil) {
			out = append(out, e)
		}
	}
	return out, nil
}

func (s *jetStore) Show(id uint64) (*Item, error) {
	r, ok := s.mirror.find(id)
	if _, read := s.mirror.heardAt(); !ok && !read {
		return nil, s.Err()
	}
	if !ok {
		return nil, ErrNotFound
	}
	item := &Item{Entry: r.entry()}
	w, previous, err := s.content(id)
	if err != nil {
		return item, nil // as much of it as there is
	}
	item.Header, item.Body = w.Header, w.Body
	if previous == 0 {
		return item, nil
	}
	if before, _, err := s.content(previous); err == nil {
		item.Previous = &Previous{ID: previous, Body: before.Body}
	}
	return item, nil
}

func (s *jetStore) Newest(lane webhookgate.Lane) (Entry, bool, error) {
	m, token := s.mirror, laneToken(lane)
	m.mu.Lock()
	defer m.mu.Unlock()
	for n := len(m.order) - 1; n >= 0; n-- {
		if r := m.order[n]; r.token == token {
			return r.entry(), true, nil
		}
	}
	return Entry{}, false, nil
}

// stats counts what all replicas together have.
func (s *jetStore) stats() Stats {
	m := s.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	out := Stats{Pending: m.pending, Parked: m.parked, Delivering: s.leading(), Unknown: !m.caughtUp}
	if m.pending == 0 {
		return out
	}
	for _, r := range m.order { // the first that waits is the oldest
		if r.status.State == Waiting {
			out.Oldest = max(0, time.Since(r.webhook.Received)) // by another replica's clock, perhaps
			break
		}
	}
	return out
}

// content reads a record from the log.
func (s *jetStore) content(id uint64) (*webhookgate.Webhook, uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), appendTimeout)
	defer cancel()
	m, err := s.message(ctx, id)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		// A leader that was just elected may not have it ready; once it has taken a
		// mark it has.
		if err := s.catchUp(ctx); err != nil {
			return nil, 0, err
		}
		if m, err = s.message(ctx, id); errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, 0, ErrNotFound
		}
	}
	if err != nil {
		return nil, 0, err
	}
	return unpackRecord(m.Data, m.Header.Get(encodingHeader) == deflate)
}

func (s *jetStore) message(ctx context.Context, id uint64) (m *jetstream.RawStreamMsg, err error) {
	for {
		request, cancel := context.WithTimeout(ctx, requestTimeout)
		m, err = s.stream().GetMsg(request, id)
		cancel()
		if !passing(err) || ctx.Err() != nil {
			return m, err
		}
	}
}
