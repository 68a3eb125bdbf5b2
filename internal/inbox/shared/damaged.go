package shared

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// takeDamaged parks a message whose headers can't be read, so that somebody looks at it. In its
// lane the next rollup would delete it. The messages after it are taken in when that is done.
func (t *term) takeDamaged(place string, id, seq uint64) {
	ctx := t.s.alive
	for t.Held() && !t.isLeaving() && ctx.Err() == nil {
		err := t.parkDamaged(ctx, place, id, seq)
		if err == nil {
			return
		}
		t.s.log.Debug("damaged message not parked yet", "seq", seq, "err", err)
		pause(ctx, 100*time.Millisecond)
	}
}

func (t *term) parkDamaged(ctx context.Context, place string, id, seq uint64) error {
	m, err := t.s.read(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil // it got so far the last time
	}
	if err != nil {
		return err
	}
	if len(m.Data) == 0 { // a note: every webhook has a content
		t.s.log.Error("inbox has a damaged note, nothing is taken for a copy until the tenant's next webhook", "seq", seq)
		return nil
	}
	c := packed(m.Header, m.Data)
	w, err := c.unpack()
	if err != nil || placeOf(w.Lane) != place {
		w = &webhookgate.Webhook{Lane: t.strangers(seq), Received: m.Time}
	}
	r := &record.Record{ID: id, Webhook: record.Slim(w), Size: sizeOf(m.Header, m.Data)}
	r.Enter(record.Parked, record.ErrDamaged.Error())
	if err := t.putState(ctx, c, r, placeOf(w.Lane)); err != nil {
		return err
	}
	if id == seq { // in a lane
		if err := t.endDamaged(ctx, place, seq, w, c); err != nil {
			return err
		}
	}
	if err := t.s.remove(ctx, seq); err != nil {
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
		if t.s.partOf(placeOf(lane)) == t.part {
			return lane
		}
	}
}

// endDamaged ends a lane anew whose last message is damaged, before that is deleted. Otherwise the
// servers would accept a write that expects the message before it. If that was a snapshot, it stays the
// lane's last; if not, or nobody can tell, the one before it does.
func (t *term) endDamaged(ctx context.Context, place string, seq uint64, w *webhookgate.Webhook, c content) error {
	last, err := t.s.lastOn(ctx, t.s.subject("in", place))
	if err != nil || last.Sequence != seq {
		return err
	}
	note := nats.NewMsg(last.Subject)
	h := newHead(memoryKind, w)
	if h.Bears {
		h.Last = seq
		c.put(note)
	} else if h, err = t.s.readableBefore(ctx, place, seq, h); err != nil {
		return err
	}
	h.ID, h.Digest, h.Accepted = seq, nil, time.Now()
	h.Arrived, h.Replica, h.Foreign = 0, "", 0
	h.put(note)
	expect(note, seq)
	now, err := t.s.publish(ctx, note)
	if err == nil {
		t.s.ends.Add(place, newEnd(now, h))
	}
	return err
}

// readableBefore is what the last readable message of a lane before a damaged one says, if there is
// one; else h.
func (s *Store) readableBefore(ctx context.Context, place string, seq uint64, h head) (head, error) {
	stream, _, err := s.streams()
	if err != nil {
		return h, err
	}
	err = s.each(ctx, stream, s.subject("in", place), 1, func(m *jetstream.RawStreamMsg) error {
		if before, err := readHead(m.Header); err == nil && m.Sequence < seq {
			e := newEnd(m.Sequence, before)
			h = e.again(memoryKind)
		}
		return nil
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
