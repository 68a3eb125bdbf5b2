package shared

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

// takeDamaged parks a message whose headers can't be read, so that somebody looks at it. In its
// lane the next rollup would delete it. The messages after it are taken in when that is done.
func (t *term) takeDamaged(place string, id, seq uint64) {
	ctx := t.s.alive
	for t.Held() && !t.isLeaving() && ctx.Err() == nil {
		if outdated, _ := t.Outdated(); outdated {
			return
		}
		err := t.parkDamaged(ctx, place, id, seq)
		if err == nil {
			return
		}
		t.s.log.Debug("damaged message not parked yet", "seq", seq, "err", err)
		servers.Sleep(ctx, 100*time.Millisecond)
	}
}

func (t *term) parkDamaged(ctx context.Context, place string, id, seq uint64) error {
	m, err := t.s.servers.Waiting.Get(ctx, seq)
	if servers.Missing(err) {
		return nil // it got so far the last time
	}
	if err != nil {
		return err
	}
	if len(m.Data) == 0 { // a note: every webhook has a content
		t.s.log.Error("inbox has a damaged note, nothing is taken for a copy until the tenant's next webhook", "seq", seq)
		return nil
	}
	c := message.Packed(m.Header, m.Data)
	w, err := c.Unpack()
	if err != nil || message.PlaceOf(w.Lane) != place {
		w = &webhookgate.Webhook{Lane: t.strangers(seq), Received: m.Time}
	}
	if c.IsEssence() { // it was finished, and is not to be sent: it stays, as what others name
		t.s.log.Error("inbox has a damaged memory, nothing is taken for a copy until the tenant's next webhook", "seq", seq)
		return t.endDamaged(ctx, place, seq, w, c)
	}
	r := &record.Record{ID: id, Webhook: record.Slim(w), Size: message.SizeOf(m.Header, m.Data)}
	r.Enter(record.Parked, record.ErrDamaged.Error())
	if err := t.putState(ctx, c, r, message.PlaceOf(w.Lane)); err != nil {
		return err
	}
	if id == seq { // in a lane
		if err := t.endDamaged(ctx, place, seq, w, c); err != nil {
			return err
		}
	}
	if err := t.s.servers.Waiting.Remove(ctx, seq); err != nil {
		return err
	}
	t.s.log.Error("webhook damaged, parked", "id", id, "webhook", w.ID, "platform", w.Lane.Platform, "tenant", w.Lane.Tenant)
	t.handOverParked(r)
	return nil
}

// strangers is a lane of this part for what is not known to be any tenant's.
func (t *term) strangers(seq uint64) webhookgate.Lane {
	for n := 0; ; n++ {
		lane := webhookgate.Lane{Tenant: fmt.Sprintf("unknown-%d-%d", seq, n)}
		if t.s.subjects.PartOf(message.PlaceOf(lane)) == t.Part {
			return lane
		}
	}
}

// endDamaged ends a lane anew whose last message is damaged, before that is deleted. Otherwise the
// servers would accept a write that expects the message before it. If that was a snapshot, it stays the
// lane's last; if not, or nobody can tell, the one before it does.
func (t *term) endDamaged(ctx context.Context, place string, seq uint64, w *webhookgate.Webhook, c message.Content) error {
	last, err := t.s.servers.LastWaiting(ctx, t.s.subjects.Lane(place))
	if err != nil || last.Sequence != seq {
		return err
	}
	note := nats.NewMsg(last.Subject)
	h := message.NewHead(message.Memory, w)
	if h.Bears {
		h.Last = seq
		c.Remembered(t.s.cfg.Essence).Put(note)
	} else if h, err = t.s.readableBefore(ctx, place, seq, h); err != nil {
		return err
	}
	h.ID, h.Digest, h.Accepted = seq, nil, time.Now()
	h.Arrived, h.Replica, h.Foreign = 0, "", 0
	_, err = t.s.writeEnd(ctx, note, place, seq, h)
	return err
}

// readableBefore is what the last readable message of a lane before a damaged one says, if there is
// one; else h.
func (s *Store) readableBefore(ctx context.Context, place string, seq uint64, h message.Head) (message.Head, error) {
	err := s.servers.Waiting.Visit(ctx, s.subjects.Lane(place), 1, seq, func(m jetstream.Msg, at uint64) { // much may wait
		if before, err := message.ReadHead(m.Headers()); err == nil {
			e := message.NewEnd(at, before)
			h = e.Again(message.Memory)
		}
	})
	return h, err
}

// handOverParked has the courier know of one that is parked.
func (t *term) handOverParked(r *record.Record) {
	t.mu.Lock()
	gathering := t.gather != nil
	if gathering {
		t.gather.records[r.ID] = r
	}
	t.mu.Unlock()
	if _, there := t.s.courier.Find(r.Webhook.Lane, r.ID); !gathering && !there {
		t.s.courier.Take(t, r, nil, false)
	}
}
