package shared

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

// eraseTimeout is how long an erasure may take, with the delivery under way that it waits for.
const eraseTimeout = 20 * time.Second

// Erase deletes all that is kept of a tenant: what waits, what is parked, the history, the last
// snapshot, and what dedup remembers. It says how many webhooks that were. What is left are two notes: that
// there was a lane, without which the servers would accept what was sent before and is still on its way; and up to which
// webhook it was erased, for the history.
func (s *Store) Erase(platform, tenant string) (int, error) {
	if err := s.Err(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(s.alive, eraseTimeout)
	defer cancel()
	lane := webhookgate.Lane{Platform: platform, Tenant: tenant}
	entries, err := s.List(record.Filter{Tenant: tenant, Platform: &platform})
	if err != nil {
		return 0, err
	}
	place := message.PlaceOf(lane)
	err = patiently(ctx, func() error {
		last, err := s.readEnd(ctx, place)
		if err != nil {
			return err
		}
		return s.ask(ctx, s.subjects.PartOf(place), &errand{Act: "erase", Lane: lane, Last: last.Seq})
	})
	if err != nil {
		return 0, err
	}
	last, err := s.readEnd(ctx, place)
	if err == nil && last.Kind == message.Erased {
		s.tellErased(lane, last.Seq)
	}
	return len(entries), err
}

func (s *Store) tellErased(lane webhookgate.Lane, upTo uint64) {
	if s.cfg.OnErase != nil {
		s.cfg.OnErase(lane, upTo)
	}
}

// finish writes a webhook that is finished into the history, unless its tenant was erased since.
func (s *Store) finish(ctx context.Context, r *record.Record, c message.Content, place string) error {
	m := message.New(s.subjects.Past(place, r.ID), r, c)
	servers.ExpectOn(m, s.subjects.ErasedUpTo(place), 0)
	_, err := s.servers.Publish(ctx, m)
	if servers.TooLarge(err) { // somebody has lowered that since it came: its tenant's queue is to go on
		s.log.Error("finished webhook is not in the history, it is too large", "id", r.ID, "err", err)
		return nil
	}
	if !servers.Conflict(err) {
		return err
	}
	note, missing := s.servers.History.Last(ctx, s.subjects.ErasedUpTo(place))
	if missing != nil {
		return err // another try tells
	}
	if upTo, err := strconv.ParseUint(string(note.Data), 10, 64); err == nil && r.ID <= upTo {
		return nil
	}
	servers.ExpectOn(m, s.subjects.ErasedUpTo(place), note.Sequence)
	_, err = s.servers.Publish(ctx, m)
	return err
}

// wipe deletes all that a lane has before two messages, one in the stream and one in the history. What came after
// the first may be in the history before the second: it stays.
func (s *Store) wipe(ctx context.Context, place string, before, past uint64) error {
	if err := s.servers.Waiting.Purge(ctx, s.subjects.States(place), before); err != nil {
		return err
	}
	ids, err := s.pastOf(ctx, place)
	if err != nil {
		return err
	}
	old := []string{s.subjects.History + place + ".*"}
	if n, _ := slices.BinarySearch(ids, before); n < len(ids) {
		old = nil
		for _, id := range ids[:n] {
			old = append(old, s.subjects.Past(place, id))
		}
	}
	for _, subject := range old {
		if err := s.servers.History.Purge(ctx, subject, past); err != nil {
			return err
		}
	}
	return s.servers.Waiting.Purge(ctx, s.subjects.Lane(place), before)
}

// erase deletes all of a lane. Only who delivers the part can: nothing of it may
// be on its way to the receiver. What was taken out of the courier and could not be deleted is
// read again with the part.
func (t *term) erase(ctx context.Context, e *errand) (err error) {
	lane, place := e.Lane, message.PlaceOf(e.Lane)
	var removed []record.Record
	t.s.courier.Stop(lane)
	defer func() { t.goOn(lane, err == nil || len(removed) == 0) }()
	for first := true; ; first = false {
		last, err := t.s.readEnd(ctx, place)
		if err != nil {
			return err
		}
		if first && last.Seq != e.Last {
			return errMoved // the request may be old, and what came since another one's
		}
		leave, err := t.writing.enter(ctx, place) // first: something may be about to be sent again
		if err != nil {
			return err
		}
		gone, ok := t.removeAll(lane, last.Seq)
		removed = append(removed, gone...)
		if ok {
			err = t.eraseLane(ctx, lane, last, removed)
		}
		leave()
		switch {
		case ok && err == nil:
			return nil
		case ok && !servers.Conflict(err):
			return err
		case ctx.Err() != nil:
			return record.ErrBusy
		case !t.Held():
			return record.ErrNobody // who has the part next does it
		}
		servers.Sleep(ctx, 10*time.Millisecond)
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

// eraseLane ends a lane with a note, there and in the history, and deletes what is before it. The
// lane's line was entered.
func (t *term) eraseLane(ctx context.Context, lane webhookgate.Lane, last message.End, removed []record.Record) error {
	if !t.Held() { // it may have been stopped since it was asked, and another one deliver
		return record.ErrNobody
	}
	place := message.PlaceOf(lane)
	h := message.NewHead(message.Erased, &webhookgate.Webhook{Lane: lane, Received: time.Now()})
	h.ID, h.Arrived, h.Replica, h.Foreign = last.ID, last.Arrived, last.Replica, last.Foreign
	note, err := t.s.restate(ctx, place, last, h)
	if servers.Passing(err) {
		return record.ErrUnsure
	}
	if err != nil {
		return err
	}
	// After that: what is not erased after all is still to have a history.
	mark := nats.NewMsg(t.s.subjects.ErasedUpTo(place))
	mark.Data = strconv.AppendUint(nil, note.Seq, 10)
	var past uint64
	write := func() (err error) { past, err = t.s.servers.Publish(ctx, mark); return err }
	wipe := func() error { return t.s.wipe(ctx, place, note.Seq, past) }
	for _, step := range []func() error{write, wipe} {
		if err := t.insist(ctx, &record.Record{ID: note.Seq}, step); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range removed {
		if !t.spots[r.ID].out {
			if l := t.lanes[lane]; l != nil {
				l.waiting--
			}
		}
		delete(t.spots, r.ID)
	}
	if l := t.lanes[lane]; l != nil && l.waiting <= 0 {
		delete(t.lanes, lane)
	}
	return nil
}

// Platforms returns those on which a tenant is known.
func (s *Store) Platforms(tenant string) (all []string, err error) {
	ctx, cancel := context.WithTimeout(s.alive, appendTimeout)
	defer cancel()
	ends, err := s.endsOf(ctx, nil, tenant)
	for place, e := range ends {
		left := e.Kind != message.Erased
		if !left && err == nil { // an erasure that was interrupted can be done again
			left, err = s.leftOf(ctx, place, e.Seq)
		}
		if left {
			all = append(all, e.Platform)
		}
	}
	return all, err
}

// leftOf says whether there is anything of a lane before the note that it was erased.
func (s *Store) leftOf(ctx context.Context, place string, note uint64) (left bool, err error) {
	for _, subject := range []string{s.subjects.Lane(place), s.subjects.States(place)} {
		m, err := s.servers.Waiting.Next(ctx, subject, 1)
		if err == nil && m.Sequence < note {
			return true, nil
		}
		if err != nil && !servers.Missing(err) {
			return false, err
		}
	}
	past, err := s.pastOf(ctx, place)
	return len(past) > 0 && past[0] < note, err
}
