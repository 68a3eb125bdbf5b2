package shared

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

const (
	// eraseTimeout is how long an erasure may take, with the delivery under way that it waits for.
	eraseTimeout = 20 * time.Second
	// lateTime is after how long nobody writes into the history any more what came before an erasure: who takes a
	// webhook in, or has delivered it, has given up by then.
	lateTime = 2 * appendTimeout
)

// Erase deletes all that is kept of a tenant: what waits, what is parked, the history, the last
// snapshot, and what dedup remembers. It says how many webhooks that were. What is left is a note
// that there was a lane. Without it the servers would accept what was sent before and is still on its way.
func (s *Store) Erase(platform, tenant string) (int, error) {
	if err := s.Err(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(s.alive, eraseTimeout)
	defer cancel()
	lane := webhookgate.Lane{Platform: platform, Tenant: tenant}
	place := placeOf(lane)
	entries, err := s.List(record.Filter{Tenant: tenant, Platform: &platform})
	if err != nil {
		return 0, err
	}
	before, err := s.readEnd(ctx, place)
	if err != nil {
		return 0, err
	}
	if err := s.ask(ctx, s.partOf(place), &errand{Act: "erase", Lane: lane}); err != nil {
		return 0, err
	}
	_, history, err := s.streams()
	if err != nil {
		return 0, err
	}
	if err := s.wipe(ctx, history, s.historyPrefix+place+".*", 0); err != nil {
		return 0, err
	}
	last, err := s.readEnd(ctx, place)
	if err != nil {
		return 0, err
	}
	if last.Kind == erasedKind {
		before = last
	}
	s.background.Go(func() { s.wipeLate(history, place, before.seq) })
	return len(entries), s.erased(ctx, lane, last)
}

// wipeLate deletes what was on its way into the history when its tenant was erased: webhooks up to one.
func (s *Store) wipeLate(history jetstream.Stream, place string, upTo uint64) {
	pause(s.alive, lateTime)
	subject := s.historyPrefix + place + "."
	err := s.wipeThose(s.alive, history, subject+"*", func(m jetstream.Msg, _ uint64) bool {
		id, err := strconv.ParseUint(strings.TrimPrefix(m.Subject(), subject), 10, 64)
		return err == nil && id <= upTo
	})
	if err != nil && s.alive.Err() == nil {
		s.log.Warn("cannot look for what came into the history while its tenant was erased, erase it again", "err", err)
	}
}

// erased notes that all is gone, if nothing has come since.
func (s *Store) erased(ctx context.Context, lane webhookgate.Lane, last end) error {
	if last.Kind != erasedKind {
		return nil
	}
	now, err := s.noteErased(ctx, lane, last, true)
	if isConflict(err) {
		return nil // something came
	}
	if err != nil {
		return err
	}
	s.replaced(last, &now)
	s.tellErased(lane, now.seq)
	return nil
}

func (s *Store) tellErased(lane webhookgate.Lane, upTo uint64) {
	if s.cfg.OnErase != nil {
		s.cfg.OnErase(lane, upTo)
	}
}

// noteErased notes at the end of a lane, which is last, that nothing before it counts.
func (s *Store) noteErased(ctx context.Context, lane webhookgate.Lane, last end, wiped bool) (end, error) {
	place := placeOf(lane)
	w := &webhookgate.Webhook{Lane: lane, Received: time.Now()}
	h := newHead(erasedKind, w)
	h.ID, h.Arrived, h.Replica, h.Foreign, h.Wiped = last.ID, last.Arrived, last.Replica, last.Foreign, wiped
	m := nats.NewMsg(s.subject("in", place))
	if h.Long {
		pack(w).put(m)
	}
	h.put(m)
	expect(m, last.seq)
	seq, err := s.publish(ctx, m)
	if err != nil {
		return end{}, err
	}
	e := newEnd(seq, h)
	s.ends.Add(place, e)
	return e, nil
}

// wipe deletes the messages of a subject, those before a sequence only, zero being none, and
// has the servers write over them.
func (s *Store) wipe(ctx context.Context, stream jetstream.Stream, subject string, before uint64) error {
	return s.wipeThose(ctx, stream, subject, func(_ jetstream.Msg, seq uint64) bool { return before == 0 || seq < before })
}

// wipeThose is wipe for some of the messages.
func (s *Store) wipeThose(ctx context.Context, stream jetstream.Stream, subject string, those func(jetstream.Msg, uint64) bool) error {
	var found []uint64
	err := s.visit(ctx, stream, subject, 1, endless, func(m jetstream.Msg, seq uint64) {
		if those(m, seq) {
			found = append(found, seq)
		}
	})
	if err != nil {
		return err
	}
	for _, seq := range found {
		_, err := request(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, stream.SecureDeleteMsg(ctx, seq) })
		if err != nil {
			if _, missing := request(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) { return stream.GetMsg(ctx, seq) }); notFound(missing) != record.ErrNotFound {
				return err
			}
		}
	}
	return nil
}

// erase deletes all of a lane but its history. Only who delivers the part can: nothing of it may
// be on its way to the receiver. What was taken out of the courier and could not be deleted is
// read again with the part.
func (t *term) erase(ctx context.Context, lane webhookgate.Lane) (err error) {
	place := placeOf(lane)
	var removed []record.Record
	t.s.courier.Stop(lane)
	defer func() { t.goOn(lane, err == nil || len(removed) == 0) }()
	for {
		last, err := t.s.readEnd(ctx, place)
		if err != nil {
			return err
		}
		gone, ok := t.removeAll(lane, last.seq)
		removed = append(removed, gone...)
		if ok {
			err = t.eraseLane(ctx, lane, last, removed)
		}
		switch {
		case ok && err == nil:
			return nil
		case ok && !isConflict(err):
			return err
		case ctx.Err() != nil || !t.Held():
			return record.ErrBusy
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// removeAll takes all of a lane out of the courier, once that has been handed everything up to a
// message.
func (t *term) removeAll(lane webhookgate.Lane, last uint64) ([]record.Record, bool) {
	t.mu.Lock()
	read := t.next > last && t.gather == nil
	t.mu.Unlock()
	if !read {
		return nil, false
	}
	return t.s.courier.RemoveAll(t, lane)
}

// eraseLane ends a lane with a note, and deletes what is before it.
func (t *term) eraseLane(ctx context.Context, lane webhookgate.Lane, last end, removed []record.Record) error {
	place := placeOf(lane)
	leave, err := t.writing.enter(ctx, place)
	if err != nil {
		return err
	}
	defer leave()
	note, err := t.s.noteErased(ctx, lane, last, false)
	if err != nil {
		return err
	}
	t.mu.Lock()
	for _, r := range removed {
		if p := t.spots[r.ID]; p == nil || p.kind == "" {
			if l := t.lanes[lane]; l != nil {
				l.waiting--
			}
		}
		delete(t.spots, r.ID)
	}
	if l := t.lanes[lane]; l != nil && l.waiting <= 0 {
		delete(t.lanes, lane)
	}
	t.mu.Unlock()
	stream, _, err := t.s.streams()
	if err != nil {
		return err
	}
	for _, rest := range []string{"*." + place, "*." + place + ".*"} {
		if err := t.s.wipe(ctx, stream, t.s.part(t.part, rest), note.seq); err != nil {
			return err
		}
	}
	return nil
}

// Platforms returns those on which a tenant is known.
func (s *Store) Platforms(tenant string) (all []string, err error) {
	ctx, cancel := context.WithTimeout(s.alive, appendTimeout)
	defer cancel()
	ends, err := s.endsOf(ctx, nil, tenant)
	for _, e := range ends {
		if e.Kind == erasedKind && e.Wiped {
			continue
		}
		lane := e.lane()
		if e.Long {
			w, err := s.whole(ctx, e)
			if err != nil {
				return nil, err
			}
			lane = w.Lane
		}
		all = append(all, lane.Platform)
	}
	return all, err
}

// whole reads a webhook of a lane whose head is too long for a header.
func (s *Store) whole(ctx context.Context, e end) (*webhookgate.Webhook, error) {
	if e.Kind != erasedKind {
		return s.bearer(ctx, e)
	}
	m, err := s.read(ctx, e.seq)
	if err != nil {
		return nil, notFound(err)
	}
	return packed(m.Header, m.Data).unpack()
}
