package shared

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

// How a term learns what its part has, and what comes.

// Follow reads the part until ctx ends: first what is stored, without content, because that may be
// much; then what comes in, with its content, because that is delivered soon. When reading
// fails it goes on where it stopped: nobody else deletes what waits.
func (t *term) Follow(ctx context.Context) {
	for ctx.Err() == nil {
		t.mu.Lock()
		from, begun := t.next, t.gather == nil
		t.mu.Unlock()
		reading, stop := context.WithCancel(ctx)
		err := t.s.servers.Consume(reading, jetstream.ConsumerConfig{
			FilterSubject: t.s.subjects.Part(t.Part, ">"), HeadersOnly: !begun,
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		}, func() {}, func(m jetstream.Msg, seq uint64) {
			if t.take(m, seq); !begun && t.hasBegun() {
				stop()
			}
			t.Heard()
		})
		stop()
		if !begun && t.hasBegun() {
			continue
		}
		if ctx.Err() == nil {
			t.s.log.Debug("inbox part can't be read", "part", t.Part, "err", err)
			servers.Sleep(ctx, 100*time.Millisecond)
		}
	}
}

func (t *term) hasBegun() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gather == nil
}

// take takes one message in.
func (t *term) take(m jetstream.Msg, seq uint64) {
	if outdated, _ := t.Outdated(); outdated {
		t.Leave() // what is before t.next may be new, too
		return
	}
	kind, place, id := t.s.subjects.Split(m.Subject())
	then := func() {} // when t.mu is free
	defer func() { then() }()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return
	}
	t.next = seq + 1
	switch {
	case kind == "":
		t.s.log.Error("inbox has a message that is not usher's, ignoring it", "subject", m.Subject(), "seq", seq)
	case kind == "in":
		h, err := message.ReadHead(m.Headers())
		if err != nil {
			then = func() { t.takeDamaged(place, seq, seq) }
			break
		}
		t.takeLane(m, seq, &h)
	case t.gather == nil: // all others are written here
	case kind == "state":
		h, err := message.ReadHead(m.Headers())
		status, err2 := message.ReadStatus(m.Headers())
		if err != nil || err2 != nil {
			then = func() { t.takeDamaged(place, id, seq) }
			break
		}
		t.takeState(m, seq, id, &h, &status)
	}
	if t.gather != nil && seq >= t.Claim {
		t.begin()
	}
}

// takeLane takes in a message of a lane. t.mu is held.
func (t *term) takeLane(m jetstream.Msg, seq uint64, h *message.Head) {
	if h.Kind != message.Webhook {
		if l := t.lanes[h.Lane()]; l != nil {
			l.end = message.NewEnd(seq, *h)
		}
		return
	}
	w := h.Slim()
	l := t.lanes[w.Lane]
	if l == nil {
		l = new(lane)
		t.lanes[w.Lane] = l
	}
	if now := message.NewEnd(seq, *h); seq > l.end.Seq {
		t.s.replaced(l.end, &now) // written while others waited: no rollup may come for long
		l.end = now
	}
	l.waiting++
	r := &record.Record{ID: seq, Webhook: w, Status: record.Status{State: record.Waiting, Changed: w.Received}, Size: message.SizeOf(m.Headers(), m.Data())}
	if t.gather != nil {
		t.gather.records[seq], t.gather.inLane[seq] = r, true
		return
	}
	var whole *webhookgate.Webhook
	if len(m.Data()) > 0 {
		whole, _ = message.Packed(m.Headers(), m.Data()).Unpack() // what is damaged is found out at its turn
	}
	t.s.courier.Take(t, r, whole, false)
}

// takeState takes in how a webhook stands, and itself if it is outside its lane. t.mu is held.
func (t *term) takeState(m jetstream.Msg, seq, id uint64, h *message.Head, status *record.Status) {
	p := spot{seq, message.ContentSize(m.Headers(), m.Data()) > 0}
	t.spots[id] = p
	if p.out {
		t.gather.records[id] = &record.Record{ID: id, Webhook: h.Slim(), Status: *status, Size: message.SizeOf(m.Headers(), m.Data())}
	} else if r := t.gather.records[id]; r != nil {
		r.Status = *status
	}
}

// begin hands the courier all that there was. t.mu is held.
func (t *term) begin() {
	g := t.gather
	t.gather = nil
	for id, p := range t.spots {
		r := g.records[id]
		if r == nil { // what was said of it was not deleted with it
			delete(t.spots, id)
			t.s.background.Go(func() { _ = t.s.servers.Waiting.Remove(t.s.alive, p.seq) })
			continue
		}
		if p.out && g.inLane[id] { // sent again since, too: else it would come once more behind what is newer
			t.s.background.Go(func() { t.finishParking(r) })
		}
	}
	records := slices.Collect(maps.Values(g.records))
	t.s.courier.Begin(t, records)
	if len(records) > 0 {
		t.s.log.Info("this replica delivers a part of the inbox", "part", t.Part, "webhooks", len(records))
	}
}
