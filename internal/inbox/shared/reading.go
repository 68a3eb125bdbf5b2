package shared

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// How a term learns what its part has, and what comes.

// follow reads the part until ctx ends: first what is stored, without content, because that may be
// much; then what comes in, with its content, because that is delivered soon. When reading
// fails it goes on where it stopped: nobody else deletes what waits.
func (t *term) follow(ctx context.Context) {
	for ctx.Err() == nil {
		t.mu.Lock()
		from, begun := t.next, t.gather == nil
		t.mu.Unlock()
		reading, stop := context.WithCancel(ctx)
		err := t.s.consume(reading, jetstream.ConsumerConfig{
			FilterSubject: t.s.part(t.part, ">"), HeadersOnly: !begun,
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		}, func() {}, func(m jetstream.Msg, seq uint64) {
			if t.take(m, seq); !begun && t.hasBegun() {
				stop()
			}
			t.heard.Store(time.Now().UnixNano())
		})
		stop()
		if !begun && t.hasBegun() {
			continue
		}
		if ctx.Err() == nil {
			t.s.log.Debug("inbox part can't be read", "part", t.part, "err", err)
			pause(ctx, 100*time.Millisecond)
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
	kind, place, id := t.s.split(m.Subject())
	// What is sent again is handed over before anything that came after it: else that could
	// be delivered first, and be undone.
	then := func() {}
	defer func() { then() }()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = seq + 1
	switch kind {
	case "in", "parked", "again":
		h, err := readHead(m.Headers())
		status, err2 := readStatus(m.Headers())
		switch {
		case kind == "in" && err == nil:
			t.takeLane(m, seq, &h)
		case err == nil && err2 == nil:
			then = t.takeSpot(m, seq, kind, place, id, &h, &status)
		default:
			then = func() { t.takeDamaged(kind, place, cmp.Or(id, seq), seq) }
		}
	case "status":
		if s, err := readStatus(m.Headers()); err == nil && t.gather != nil {
			t.gather.status[id] = s
			t.at(id).status = seq
		}
	case "":
		t.s.log.Error("inbox has a message that is not usher's, ignoring it", "subject", m.Subject(), "seq", seq)
	}
	if t.gather != nil && seq >= t.claim {
		t.begin()
	}
}

// at returns where a webhook is. t.mu is held.
func (t *term) at(id uint64) *spot {
	p := t.spots[id]
	if p == nil {
		p = new(spot)
		t.spots[id] = p
	}
	return p
}

// takeLane takes in a message of a lane. t.mu is held.
func (t *term) takeLane(m jetstream.Msg, seq uint64, h *head) {
	if h.Kind != webhookKind {
		if l := t.lanes[laneOf(h)]; l != nil {
			l.end = newEnd(seq, *h)
		}
		return
	}
	w := t.slim(h, seq)
	l := t.lanes[w.Lane]
	if l == nil {
		l = new(lane)
		t.lanes[w.Lane] = l
	}
	l.end = newEnd(seq, *h)
	l.waiting++
	r := &record.Record{ID: seq, Webhook: w, Status: record.Status{State: record.Waiting, Changed: w.Received}, Size: sizeOf(m.Headers(), m.Data())}
	if t.gather != nil {
		t.gather.records[seq], t.gather.inLane[seq] = r, true
		return
	}
	var whole *webhookgate.Webhook
	if len(m.Data()) > 0 {
		whole, _ = packed(m.Headers(), m.Data()).unpack() // what is damaged is found out at its turn
	}
	t.s.courier.Take(t, r, whole, false)
}

// slim returns what is known of a webhook, whose message is seq, without its content.
func (t *term) slim(h *head, seq uint64) *webhookgate.Webhook {
	w := slim(h)
	if h.Long {
		if m, err := t.s.read(t.s.alive, seq); err == nil {
			if whole, err := packed(m.Header, m.Data).unpack(); err == nil {
				return record.Slim(whole)
			}
		}
	}
	return w
}

// takeSpot takes in a webhook that is parked, or sent again, and returns what is to be done once
// t.mu, which is held, is free.
func (t *term) takeSpot(m jetstream.Msg, seq uint64, kind, place string, id uint64, h *head, status *record.Status) (then func()) {
	then = func() {}
	p := t.at(id)
	if t.gather == nil && (kind == "parked" || p.kind == "again" && p.seq >= seq) {
		return then // written here
	}
	r := &record.Record{ID: id, Webhook: t.slim(h, seq), Status: *status, Size: sizeOf(m.Headers(), m.Data())}
	switch {
	case t.gather != nil:
	case p.kind == "again": // two had it sent again at once: it is under way
		p.seq, p.late = seq, seq
		return then
	default:
		return func() { t.sendAgain(r, place, seq) }
	}
	switch {
	case p.kind == "parked" && kind == "again":
		old := p.seq
		t.s.background.Go(func() { _ = t.s.remove(t.s.alive, old) })
	case p.kind == "again":
		t.s.background.Go(func() { _ = t.s.remove(t.s.alive, seq) }) // sent again since
		return then
	}
	p.kind, p.seq = kind, seq
	t.gather.records[id] = r
	return then
}

// sendAgain hands over what somebody had sent again by the message seq. How it was parked, or discarded, may still be
// being written: that comes first, or it would be taken for what became of it now.
func (t *term) sendAgain(r *record.Record, place string, seq uint64) {
	for !t.removed(r) && t.Held() {
		pause(t.s.alive, 10*time.Millisecond)
	}
	leave, err := t.writing.enter(t.s.alive, place)
	if err != nil {
		return
	}
	t.mu.Lock()
	p := t.at(r.ID)
	before := *p
	p.kind, p.seq = "again", seq
	t.mu.Unlock()
	leave()
	if before.kind == "parked" {
		t.s.background.Go(func() { _ = t.s.remove(t.s.alive, before.seq) })
	}
	t.s.courier.Take(t, r, nil, true)
}

// removed takes what is parked out of the courier.
func (t *term) removed(r *record.Record) bool {
	_, ok := t.s.courier.Remove(t, r.Webhook.Lane, r.ID)
	if ok {
		return true
	}
	_, there := t.s.courier.Find(r.Webhook.Lane, r.ID)
	return !there
}

// begin hands the courier all that there was. t.mu is held.
func (t *term) begin() {
	g := t.gather
	t.gather = nil
	for id, p := range t.spots {
		r := g.records[id]
		if r == nil { // what was said of it was not deleted with it
			delete(t.spots, id)
			t.s.background.Go(func() { _ = t.s.remove(t.s.alive, p.status) })
			continue
		}
		if p.kind != "" && g.inLane[id] { // sent again since, too: else it would come once more behind what is newer
			t.s.background.Go(func() { t.finishParking(r) })
		}
		if s, ok := g.status[id]; ok && p.kind != "parked" && !s.Again.Before(r.Status.Again) {
			r.Status = s
		}
	}
	ids := slices.Sorted(maps.Keys(g.records))
	records := make([]*record.Record, len(ids))
	for n, id := range ids {
		records[n] = g.records[id]
	}
	t.s.courier.Begin(t, records)
	t.serve()
	if len(records) > 0 {
		t.s.log.Info("this replica delivers a part of the inbox", "part", t.part, "webhooks", len(records))
	}
}
