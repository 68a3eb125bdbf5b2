package inbox

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The replica that delivers drops what is finished and old. It says so in the log first,
// up to which record, and each mirror drops what is finished when it reads that. So a
// redelivery either comes before it, and then the record waits and stays; or after it,
// and finds the record gone. Only what was dropped is deleted.

// tend drops what is finished and old, where this replica delivers.
func (s *jetStore) tend(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !s.leading() {
			continue
		}
		if err := s.trim(ctx, time.Now()); err != nil && ctx.Err() == nil {
			s.log.Warn("inbox could not delete what is finished", "err", err)
		}
	}
}

func (s *jetStore) trim(ctx context.Context, now time.Time) error {
	if end := s.mirror.excess(now); end != 0 {
		seq, err := s.publish(ctx, message(s.prefix+"trim", strconv.AppendUint(nil, end, 10)))
		if err == nil {
			err = s.request(ctx, func(ctx context.Context) error { return s.mirror.await(ctx, seq) })
		}
		if err != nil {
			return err
		}
	}
	// What who delivered before has left is among these.
	if ids, begin := s.mirror.toErase(); len(ids) > 0 {
		if err := s.erase(ctx, ids, begin); err != nil {
			return err
		}
		s.mirror.erased(ids, begin)
	}
	for _, seq := range s.mirror.oldCopies(now) {
		if err := s.delete(ctx, seq); err != nil || !s.leading() {
			return err
		}
		s.mirror.copyErased(seq)
	}
	return nil
}

// excess says up to which record what is finished is too much, or too old; zero: none is.
func (m *mirror) excess(now time.Time) (end uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	full := m.finished > keepCount+keepCount/10 || m.bytes > keepBytes+keepBytes/10
	if !full && now.Sub(m.looked) < trimEvery {
		return 0
	}
	m.looked = now
	count, bytes := m.finished, m.bytes
	for _, r := range m.order {
		if !r.finished() {
			continue
		}
		if count <= keepCount && bytes <= keepBytes && now.Sub(r.status.Changed) < keepAge {
			break // those that follow are younger, or near enough
		}
		count, bytes, end = count-1, bytes-r.size, r.id
	}
	return end
}

func (r *mirrored) finished() bool {
	return r.status.State == Delivered || r.status.State == Superseded
}

// trimmed takes in that what is finished goes, up to the record end.
func (m *mirror) trimmed(seq, end uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var dropped []uint64
	m.order = slices.DeleteFunc(m.order, func(r *mirrored) bool {
		if r.id > end || !r.finished() {
			return false
		}
		m.count(r, -1)
		delete(m.records, r.id)
		if l := m.lanes[r.token]; l != nil {
			if l.records--; l.records <= 0 && l.ID <= r.id {
				delete(m.lanes, r.token)
			}
		}
		dropped = append(dropped, r.id)
		return true
	})
	if len(dropped) > 0 {
		m.dropped = dropped
	}
	m.advance(seq)
}

// toErase returns what was dropped last, and where what is left begins.
func (m *mirror) toErase() (ids []uint64, begin uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	begin = m.lease.seq // the lease stays in any case
	if len(m.order) > 0 {
		begin = min(begin, m.order[0].id)
	}
	return m.dropped, begin
}

// erased notes that these are no longer in the log, nor anything before begin.
func (m *mirror) erased(ids []uint64, begin uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Equal(m.dropped, ids) {
		m.dropped = nil
	}
	m.copies = slices.DeleteFunc(m.copies, func(c copied) bool { return c.seq < begin })
}

// oldCopies returns the messages about copies that are too many. The latest stay: what
// they are there for may still be on its way.
func (m *mirror) oldCopies(now time.Time) (old []uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.copies) <= keepCount+keepCount/10 {
		return nil
	}
	for _, c := range m.copies[:len(m.copies)-keepCount] {
		if now.Sub(c.seen) < time.Minute {
			break
		}
		old = append(old, c.seq)
	}
	return old
}

func (m *mirror) copyErased(seq uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.copies = slices.DeleteFunc(m.copies, func(c copied) bool { return c.seq == seq })
}

// erase deletes records from the log. What goes before begin goes at once, with all
// that was said of it; what is behind a record that is still needed goes one by one.
func (s *jetStore) erase(ctx context.Context, ids []uint64, begin uint64) error {
	if begin > 1 {
		if err := s.request(ctx, func(ctx context.Context) error {
			return s.stream().Purge(ctx, jetstream.WithPurgeSequence(begin))
		}); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if id < begin {
			continue
		}
		if !s.leading() {
			return nil
		}
		// The record first: one without a status would seem to wait.
		if err := s.delete(ctx, id); err != nil {
			return err
		}
		if err := s.request(ctx, func(ctx context.Context) error {
			return s.stream().Purge(ctx, jetstream.WithPurgeSubject(s.statusSubject(id)))
		}); err != nil {
			return err
		}
	}
	return nil
}

// delete deletes one message. Who delivered before may have done so.
func (s *jetStore) delete(ctx context.Context, seq uint64) error {
	err := s.request(ctx, func(ctx context.Context) error { return s.stream().DeleteMsg(ctx, seq) })
	if err == nil {
		return nil
	}
	if _, gone := s.message(ctx, seq); errors.Is(gone, jetstream.ErrMsgNotFound) {
		return nil
	}
	return err
}

func (s *jetStore) request(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return do(ctx)
}
