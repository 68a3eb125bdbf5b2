package shared

import (
	"context"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
)

// vacate takes a webhook out of its lane. If it was the last one and nothing else waits, the
// lane's memory replaces all messages of the lane. If it has the lane's last snapshot, that
// is written again at the lane's end.
func (t *term) vacate(ctx context.Context, c message.Content, r *record.Record, place string) error {
	if r.Webhook.Lane.Tenant == "" {
		return t.vacated(r, nil, t.s.servers.Waiting.Remove(ctx, r.ID))
	}
	t.mu.Lock()
	l := t.lanes[r.Webhook.Lane]
	if l == nil {
		t.mu.Unlock()
		return nil // it got so far the last time
	}
	last, alone := l.end, l.waiting == 1
	t.mu.Unlock()

	isLast := last.ID == r.ID
	if !isLast && last.Bearer != r.ID {
		return t.vacated(r, nil, t.s.servers.Waiting.Remove(ctx, r.ID))
	}
	h := last.Again(message.Memory)
	if isLast {
		if h.Accepted = r.Status.Changed; r.Status.State != record.Delivered {
			h.Digest = nil // nobody knows what the receiver holds
		}
		h.Receiver = r.Status.Receiver
	}
	note := nats.NewMsg(t.s.subjects.Lane(place))
	all := isLast && alone
	if h.Bearer == r.ID || all && h.Bearer != 0 {
		if err := t.bear(ctx, note, &h, c, r.ID); err != nil {
			return err
		}
		all = all && h.Bears
	}
	if all {
		servers.Rollup(note)
	}
	now, err := t.s.writeEnd(ctx, note, place, last.Seq, h)
	if servers.Conflict(err) {
		return t.reread(ctx, r, place, err)
	}
	if err != nil {
		return err
	}
	if !all {
		t.s.replaced(last, &now)
		err = t.s.servers.Waiting.Remove(ctx, r.ID)
	}
	return t.vacated(r, &now, err)
}

// bear puts the lane's last snapshot into note, whose head is h. c is the content of the
// webhook id. If the servers do not have the snapshot, note goes on naming it, and must not replace it: a leader that
// was just elected says so, too, of what it has.
func (t *term) bear(ctx context.Context, note *nats.Msg, h *message.Head, c message.Content, id uint64) error {
	if h.Bearer != id {
		raw, err := t.s.servers.Waiting.Get(ctx, h.Bearer)
		if servers.Missing(err) {
			return nil
		}
		if err != nil {
			return err
		}
		c = message.Packed(raw.Header, raw.Data)
	}
	c.Remembered(t.s.cfg.Essence).Put(note)
	h.Bears = true
	return nil
}

// vacated counts r out of its lane, which ends with now from then on; nil: as before.
func (t *term) vacated(r *record.Record, now *message.End, err error) error {
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lanes[r.Webhook.Lane]
	if l == nil {
		return nil
	}
	if now != nil && now.Seq > l.end.Seq {
		l.end = *now
	}
	if l.waiting--; l.waiting <= 0 {
		delete(t.lanes, r.Webhook.Lane)
	}
	return nil
}

// reread asks the servers how r's lane ends, and returns conflict, for another try.
func (t *term) reread(ctx context.Context, r *record.Record, place string, conflict error) error {
	e, err := t.s.readEnd(ctx, place)
	if err != nil {
		return err
	}
	if e.Seq == 0 {
		t.Leave() // somebody has deleted all of it, or a new leader is not ready: see content
		return jetstream.ErrMsgNotFound
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lanes[r.Webhook.Lane]; l != nil {
		l.end = e
	}
	return conflict
}
