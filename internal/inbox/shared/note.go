package shared

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// How a webhook stands is written by who delivers its part, in the order of its lane.

// Note writes how r stands now, in the background.
func (t *term) Note(r record.Record, whole *webhookgate.Webhook, noted func()) {
	t.s.background.Go(func() {
		defer noted()
		t.write(t.s.alive, &r, whole)
	})
}

// write writes how r stands, for as long as the term lasts: after that its word no longer
// counts, and who took over delivers again what was not written.
func (t *term) write(ctx context.Context, r *record.Record, whole *webhookgate.Webhook) error {
	place := placeOf(r.Webhook.Lane)
	leave, err := t.writing.enter(ctx, place)
	if err != nil {
		return err
	}
	defer leave()
	t.mu.Lock()
	at := *t.at(r.ID)
	t.mu.Unlock()
	if r.Status.State == record.Waiting {
		return t.insist(ctx, r, func() error { return t.stand(ctx, r, place) })
	}
	var m *nats.Msg
	for _, step := range []func() error{
		func() (err error) { m, err = t.content(ctx, r, whole, at); return err },
		func() error { return t.copyOut(ctx, m, r, place) },
		func() error { return t.takeOut(ctx, m, r, place, at) },
		func() error { return t.s.remove(ctx, at.status) },
	} {
		if err := t.insist(ctx, r, step); err != nil {
			return err
		}
	}
	if r.Status.State != record.Parked {
		t.mu.Lock()
		delete(t.spots, r.ID)
		t.mu.Unlock()
	}
	return nil
}

// insist takes a step until it is done, or the term is over.
func (t *term) insist(ctx context.Context, r *record.Record, step func() error) error {
	for {
		err := step()
		if err == nil {
			return nil
		}
		t.s.log.Debug("inbox note not written yet", "id", r.ID, "err", err)
		if !t.Held() || ctx.Err() != nil {
			return err
		}
		if !isConflict(err) {
			pause(ctx, 100*time.Millisecond)
		}
	}
}

// stand writes how a webhook stands that goes on waiting.
func (t *term) stand(ctx context.Context, r *record.Record, place string) error {
	m := nats.NewMsg(t.s.idSubject("status", place, r.ID))
	putStatus(m, &r.Status)
	seq, err := t.fenced(ctx, m)
	if err == nil {
		t.mu.Lock()
		t.at(r.ID).status = seq
		t.mu.Unlock()
	}
	return err
}

// copyOut writes a webhook to where it belongs from now on.
func (t *term) copyOut(ctx context.Context, m *nats.Msg, r *record.Record, place string) error {
	if r.Status.State == record.Parked {
		return t.park(ctx, m, r, place)
	}
	_, err := t.s.publish(ctx, withSubject(m, t.s.historySubject(place, r.ID)))
	return err
}

// takeOut takes a webhook away from where it was.
func (t *term) takeOut(ctx context.Context, m *nats.Msg, r *record.Record, place string, at spot) error {
	if at.kind == "" {
		return t.vacate(ctx, m, r, place)
	}
	return t.s.remove(ctx, at.seq)
}

// park writes a webhook to a place of its own.
func (t *term) park(ctx context.Context, m *nats.Msg, r *record.Record, place string) error {
	seq, err := t.fenced(ctx, withSubject(m, t.s.idSubject("parked", place, r.ID)))
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.at(r.ID)
	p.kind, p.seq, p.status = "parked", seq, 0
	return nil
}

// fenced publishes what only the holder of the part may say. A former holder's is refused.
func (t *term) fenced(ctx context.Context, m *nats.Msg) (uint64, error) {
	rollup(m)
	expectOn(m, t.s.part(t.part, "claim"), t.claim)
	seq, err := t.s.publish(ctx, m)
	if isConflict(err) {
		t.s.log.Warn("inbox part was taken over by another replica", "part", t.part)
		t.hold.Store(nil)
		t.leave()
	}
	return seq, err
}

// content is r as a message without a subject, whole and with how it stands.
func (t *term) content(ctx context.Context, r *record.Record, whole *webhookgate.Webhook, at spot) (*nats.Msg, error) {
	m := nats.NewMsg("")
	if whole != nil {
		putContent(m, whole, 0)
	} else {
		seq := r.ID
		if at.kind != "" {
			seq = at.seq
		}
		raw, err := t.s.read(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			t.leave() // somebody has deleted it: all is read again
		}
		if err != nil {
			return nil, err
		}
		m.Data = raw.Data
		if encoding := raw.Header.Get(encodingHeader); encoding != "" {
			m.Header.Set(encodingHeader, encoding)
		}
	}
	h := newHead(webhookKind, r.Webhook)
	h.ID = r.ID
	h.put(m)
	putStatus(m, &r.Status)
	return m, nil
}

// withSubject is a copy of m on a subject.
func withSubject(m *nats.Msg, subject string) *nats.Msg {
	c := nats.NewMsg(subject)
	c.Data = m.Data
	for name, values := range m.Header {
		c.Header[name] = values
	}
	return c
}

// finishParking takes a webhook out of its lane that the former holder of the part had
// parked, and not taken out. Its content is read from the lane: the other copy may be gone by now.
func (t *term) finishParking(r *record.Record) {
	leave, err := t.writing.enter(t.s.alive, placeOf(r.Webhook.Lane))
	if err != nil {
		return
	}
	defer leave()
	for t.Held() {
		m, err := t.content(t.s.alive, r, nil, spot{})
		if err == nil {
			err = t.vacate(t.s.alive, m, r, placeOf(r.Webhook.Lane))
		}
		if err == nil {
			return
		}
		pause(t.s.alive, 100*time.Millisecond)
	}
}

// toHistory puts a webhook into the history.
func (s *Store) toHistory(ctx context.Context, r *record.Record, whole *webhookgate.Webhook) error {
	m := nats.NewMsg(s.historySubject(placeOf(r.Webhook.Lane), r.ID))
	putContent(m, whole, 0)
	h := newHead(webhookKind, r.Webhook)
	h.ID = r.ID
	h.put(m)
	putStatus(m, &r.Status)
	_, err := s.publish(ctx, m)
	return err
}
