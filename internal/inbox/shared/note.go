package shared

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

// The replica that delivers a part writes how its webhooks stand, in the order of each lane.

// Note writes how r stands now, in the background. If it can't, r is read again with the part.
func (t *term) Note(r record.Record, whole *webhookgate.Webhook, noted func()) {
	t.s.background.Go(func() {
		defer noted()
		if t.write(t.s.alive, &r, whole) != nil {
			t.s.courier.Stop(r.Webhook.Lane)
			t.goOn(r.Webhook.Lane, false)
		}
	})
}

// write writes how r stands, for as long as the term lasts: after that its word no longer
// counts, and who took over delivers again what was not written.
func (t *term) write(ctx context.Context, r *record.Record, whole *webhookgate.Webhook) error {
	leave, err := t.writing.enter(ctx, message.PlaceOf(r.Webhook.Lane))
	if err != nil {
		return err
	}
	defer leave()
	return t.writeNext(ctx, r, whole)
}

// writeNext is write once the lane's line was entered.
func (t *term) writeNext(ctx context.Context, r *record.Record, whole *webhookgate.Webhook) error {
	place := message.PlaceOf(r.Webhook.Lane)
	t.mu.Lock()
	at := t.spots[r.ID]
	t.mu.Unlock()
	var c message.Content
	read := func() (err error) { c, err = t.content(ctx, r, whole, at); return err }
	put := func() error { return t.putState(ctx, c, r, place) }
	finish := func() error { return t.s.finish(ctx, r, c, place) }
	vacate := func() error { return t.vacate(ctx, c, r, place) }
	remove := func() error { return t.s.servers.Waiting.Remove(ctx, at.seq) }
	var steps []func() error
	switch state := r.Status.State; {
	case state == record.Waiting && !at.out:
		steps = []func() error{put} // its content stays where it is
	case state.Finished() && at.out:
		steps = []func() error{read, finish, remove}
	case state.Finished():
		steps = []func() error{read, finish, vacate, remove}
	case at.out:
		steps = []func() error{read, put} // in the place of what was there
	default:
		steps = []func() error{read, put, vacate}
	}
	for _, step := range steps {
		if err := t.insist(ctx, r, step); err != nil {
			return err
		}
	}
	if r.Status.State.Finished() {
		t.mu.Lock()
		delete(t.spots, r.ID)
		t.mu.Unlock()
	}
	return nil
}

// insist takes a step until it is done, or the term is over. A process that was stopped for a while takes none: another
// replica may have delivered the webhook meanwhile.
func (t *term) insist(ctx context.Context, r *record.Record, step func() error) error {
	const sayEvery = time.Minute
	say := time.Now().Add(sayEvery / 6)
	for {
		outdated, err := t.Outdated()
		if outdated || !t.Held() {
			t.Leave() // a renewal may still come through, and what was not written is to be read again
			return record.ErrUnsure
		}
		if err == nil {
			err = step()
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return record.ErrUnsure
		}
		t.s.log.Debug("inbox note not written yet", "id", r.ID, "err", err)
		if servers.Missing(err) {
			return err // see content
		}
		if now := time.Now(); now.After(say) {
			say = now.Add(sayEvery)
			t.s.log.Warn("cannot write what became of a webhook, its tenant's queue waits", "id", r.ID, "err", err)
		}
		wait := 10 * underWay
		if servers.Conflict(err) {
			wait = underWay
		}
		servers.Sleep(ctx, wait)
	}
}

// putState writes how a webhook stands; with its content, if it is outside its lane from then on.
func (t *term) putState(ctx context.Context, c message.Content, r *record.Record, place string) error {
	seq, err := t.fenced(ctx, message.New(t.s.subjects.State(place, r.ID), r, c))
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spots[r.ID] = spot{seq, len(c.Data) > 0}
	return nil
}

// fenced publishes what only the holder of the part may say. A former holder's is refused. While another message that
// names the claim is under way several servers refuse this one, too, with an error of its own: it is to be tried again.
func (t *term) fenced(ctx context.Context, m *nats.Msg) (uint64, error) {
	servers.Rollup(m)
	servers.ExpectOn(m, t.s.subjects.Part(t.Part, "claim"), t.Claim)
	seq, err := t.s.servers.Publish(ctx, m)
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		t.s.log.Warn("inbox part was taken over by another replica", "part", t.Part)
		t.Lost()
	}
	return seq, err
}

// content is r whole: as the courier has it, or from where it is.
func (t *term) content(ctx context.Context, r *record.Record, whole *webhookgate.Webhook, at spot) (message.Content, error) {
	if whole != nil {
		return message.Pack(whole), nil
	}
	seq := r.ID
	if at.out {
		seq = at.seq
	}
	m, err := t.s.servers.Waiting.GetSure(ctx, seq)
	if servers.Missing(err) {
		t.Leave() // somebody has deleted it: all is read again, once nothing is to be written any more
	}
	if err != nil {
		return message.Content{}, err
	}
	return message.Packed(m.Header, m.Data), nil
}

// finishParking takes a webhook out of its lane that the former holder of the part had
// parked, and not taken out. Its content is read from the lane: the other copy may be gone by now.
func (t *term) finishParking(r *record.Record) {
	leave, err := t.writing.enter(t.s.alive, message.PlaceOf(r.Webhook.Lane))
	if err != nil {
		return
	}
	defer leave()
	_ = t.insist(t.s.alive, r, func() error {
		c, err := t.content(t.s.alive, r, nil, spot{})
		if err == nil {
			err = t.vacate(t.s.alive, c, r, message.PlaceOf(r.Webhook.Lane))
		}
		return err
	})
}
