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

// The replica that delivers a part writes how its webhooks stand, in the order of each lane.

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
	var c content
	for _, step := range []func() error{
		func() (err error) { c, err = t.content(ctx, r, whole, at); return err },
		func() error { return t.copyOut(ctx, c, r, place) },
		func() error { return t.takeOut(ctx, c, r, place, at) },
		func() error { return t.s.remove(ctx, at.status) },
	} {
		if err := t.insist(ctx, r, step); err != nil {
			return err
		}
	}
	t.mu.Lock()
	p := t.at(r.ID)
	late := p.late
	if p.late = 0; r.Status.State != record.Parked {
		delete(t.spots, r.ID)
	}
	t.mu.Unlock()
	if late == 0 {
		return nil
	}
	return t.insist(ctx, r, func() error { return t.s.remove(ctx, late) })
}

// insist takes a step until it is done, or the term is over. A process that was stopped for a while takes none: the
// tenant may have been erased meanwhile, and the history takes what anybody writes.
func (t *term) insist(ctx context.Context, r *record.Record, step func() error) error {
	for err := errOver; ; {
		if !t.Held() {
			t.leave() // a renewal may still come through, and what was not written is to be read again
		}
		if !t.Held() || ctx.Err() != nil {
			return err
		}
		if err = step(); err == nil {
			return nil
		}
		t.s.log.Debug("inbox note not written yet", "id", r.ID, "err", err)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return err // see content
		}
		if !isConflict(err) {
			pause(ctx, 100*time.Millisecond)
		}
	}
}

var errOver = errors.New("another replica delivers it by now")

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
func (t *term) copyOut(ctx context.Context, c content, r *record.Record, place string) error {
	if r.Status.State == record.Parked {
		return t.park(ctx, c, r, place)
	}
	_, err := t.s.publish(ctx, newMessage(t.s.historySubject(place, r.ID), r, c))
	return err
}

// takeOut takes a webhook away from where it was.
func (t *term) takeOut(ctx context.Context, c content, r *record.Record, place string, at spot) error {
	if at.kind == "" {
		return t.vacate(ctx, c, r, place)
	}
	return t.s.remove(ctx, at.seq)
}

// park writes a webhook to a place of its own.
func (t *term) park(ctx context.Context, c content, r *record.Record, place string) error {
	seq, err := t.fenced(ctx, newMessage(t.s.idSubject("parked", place, r.ID), r, c))
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

// content is r whole: as the courier has it, or from where it is.
func (t *term) content(ctx context.Context, r *record.Record, whole *webhookgate.Webhook, at spot) (content, error) {
	if whole != nil {
		return pack(whole), nil
	}
	seq := r.ID
	if at.kind != "" {
		seq = at.seq
	}
	m, err := t.s.read(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		t.leave() // somebody has deleted it: all is read again, once nothing is to be written any more
	}
	if err != nil {
		return content{}, err
	}
	return packed(m.Header, m.Data), nil
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
		c, err := t.content(t.s.alive, r, nil, spot{})
		if err == nil {
			err = t.vacate(t.s.alive, c, r, placeOf(r.Webhook.Lane))
		}
		if err == nil || errors.Is(err, jetstream.ErrMsgNotFound) {
			return
		}
		pause(t.s.alive, 100*time.Millisecond)
	}
	t.leave() // as in insist
}
