package shared

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// term is one part, for as long as this replica delivers it.
type term struct {
	s     *Store
	part  int
	claim uint64 // its sequence

	hold    atomic.Pointer[hold]
	heard   atomic.Int64 // when something was last read of the part, in Unix nanoseconds
	leaving chan struct{}
	leaves  sync.Once
	limit   atomic.Int64  // how long deliveries may go on then; zero: as long as they take
	ended   chan struct{} // closed when this replica has done with the part
	fresh   fresh
	writing lines // one note at a time in a lane

	mu     sync.Mutex // guards what follows
	next   uint64     // where to read on
	gather *gathered  // what there was, until all of it is read; nil: the courier has it
	lanes  map[string]*lane
	spots  map[uint64]*spot
}

// lane is one in which something waits.
type lane struct {
	end     end // as far as it was read
	waiting int // webhooks in it that are not finished
}

// spot is where a webhook is, if that is not just its own message in its lane.
type spot struct {
	kind   string // parked or again; empty: in its lane
	seq    uint64 // of the message, there
	status uint64 // sequence of the message that says how it stands; zero: there is none
}

// gathered is what a part had when it was taken over.
type gathered struct {
	records map[uint64]*record.Record
	status  map[uint64]record.Status
	inLane  map[uint64]bool
}

func newTerm(s *Store, part int, claim uint64, h *hold) *term {
	t := &term{
		s: s, part: part, claim: claim, next: 1,
		leaving: make(chan struct{}), ended: make(chan struct{}),
		gather: &gathered{make(map[uint64]*record.Record), make(map[uint64]record.Status), make(map[uint64]bool)},
		lanes:  make(map[string]*lane), spots: make(map[uint64]*spot),
	}
	t.writing.lanes = make(map[string]chan struct{})
	t.hold.Store(h)
	t.heard.Store(time.Now().UnixNano())
	return t
}

// Held says whether a delivery may begin, or go on.
func (t *term) Held() bool {
	h := t.hold.Load()
	return h != nil && record.Elapsed(h.from) < holdTime
}

// leave has the term end.
func (t *term) leave() { t.leaves.Do(func() { close(t.leaving) }) }

// handOver has the term end for another replica to go on soon: what is under way by then is cut
// off, and comes again there.
func (t *term) handOver() {
	t.limit.Store(int64(handOverTime))
	t.leave()
}

const handOverTime = 5 * time.Second

// run serves the part until it is asked to leave, or the lease is lost. Deliveries under way
// may finish, unless the lease or hard ends first.
func (t *term) run(hard context.Context) {
	s := t.s
	work, done := context.WithCancel(s.alive)
	cut, cutOff := context.WithCancel(hard)
	var helping sync.WaitGroup
	helping.Go(func() {
		t.renew(work)
		t.leave()
		cutOff()
	})
	helping.Go(func() { t.follow(work) })
	s.log.Debug("inbox part taken over", "part", t.part)
	<-t.leaving
	if limit := time.Duration(t.limit.Load()); limit > 0 {
		defer time.AfterFunc(limit, cutOff).Stop()
	}
	s.courier.End(cut, t)
	cutOff()
	done()
	helping.Wait()
	t.giveBack()
	s.leases.mu.Lock()
	s.leases.terms[t.part] = nil
	s.leases.mu.Unlock()
	s.log.Debug("inbox part given up", "part", t.part)
	close(t.ended)
	s.leases.poke()
}

// renew keeps the lease until ctx ends or it is lost.
func (t *term) renew(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for t.Held() {
		held := t.hold.Load()
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(held.from.Add(holdTime))): // what is under way ends now, not with the next tick
			continue
		case <-tick.C:
		}
		if time.Since(time.Unix(0, t.heard.Load())) > leaseTime {
			// Its own renewals do not come back: it would not see what there is to deliver.
			t.s.log.Warn("inbox can't be read, another replica may deliver", "part", t.part)
			return
		}
		limit, cancel := context.WithDeadline(ctx, held.from.Add(holdTime))
		h, err := t.s.writeLease(limit, t.part, t.s.self, held.seq)
		switch {
		case err == nil:
			t.hold.Store(h)
		case isConflict(err) && !t.mine(limit, held):
			t.s.log.Warn("inbox lease lost to another replica", "part", t.part)
			t.hold.Store(nil)
		}
		cancel()
	}
}

// mine says whether the lease is still this replica's, and if the servers have it at a
// later message than held, that being one whose answer got lost, takes that for held's.
func (t *term) mine(ctx context.Context, held *hold) bool {
	now, err := t.s.relearn(ctx, t.part, held.seq)
	if err != nil {
		return true // not known; the next renewal tells
	}
	if now.Holder != t.s.self {
		return false
	}
	t.hold.Store(&hold{from: held.from, seq: now.seq})
	return true
}

// giveBack lets the next replica have the lease at once. It is not renewed any more, but the
// last renewal may have got through without its answer.
func (t *term) giveBack() {
	held := t.hold.Swap(nil)
	if held == nil || record.Elapsed(held.from) >= holdTime {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	_, err := t.s.writeLease(ctx, t.part, "", held.seq)
	if isConflict(err) {
		var now leaseSeen
		if now, err = t.s.relearn(ctx, t.part, held.seq); err == nil && now.Holder == t.s.self {
			_, err = t.s.writeLease(ctx, t.part, "", now.seq)
		}
	}
	if err != nil {
		t.s.log.Debug("inbox lease not given back", "part", t.part, "err", err)
	}
}

// follow reads the part until ctx ends: what there is without its content, as that may be much,
// and then what comes with it, as that is delivered soon. Where it breaks off it reads on: nobody
// else deletes what waits.
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
	case "in":
		t.takeLane(m, seq, place)
	case "parked", "again":
		then = t.takeSpot(m, seq, kind, id)
	case "status":
		if s, err := readStatus(m.Headers()); err == nil && t.gather != nil {
			t.gather.status[id] = s
			t.at(id).status = seq
		}
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
func (t *term) takeLane(m jetstream.Msg, seq uint64, place string) {
	h, err := readHead(m.Headers())
	if err != nil {
		t.s.log.Error("inbox has a damaged message", "seq", seq)
		return
	}
	l := t.lanes[place]
	if h.Kind != webhookKind {
		if l != nil {
			l.end = newEnd(seq, h)
		}
		return
	}
	w := t.slim(&h, seq)
	if l == nil {
		l = new(lane)
		t.lanes[place] = l
	}
	l.end = newEnd(seq, h)
	l.waiting++
	r := &record.Record{ID: seq, Webhook: w, Status: record.Status{State: record.Waiting, Changed: w.Received}}
	if t.gather != nil {
		t.gather.records[seq], t.gather.inLane[seq] = r, true
		return
	}
	whole := t.fresh.take(w.ID)
	if whole == nil && len(m.Data()) > 0 {
		whole, _, _ = readContent(m.Headers(), m.Data()) // what is damaged is found out at its turn
	}
	t.s.courier.Take(t, r, whole, false)
}

// slim is what there is to know of a webhook but its content, whose message is seq.
func (t *term) slim(h *head, seq uint64) *webhookgate.Webhook {
	w := slim(h)
	if h.Long {
		if m, err := t.s.read(t.s.alive, seq); err == nil {
			if whole, _, err := readContent(m.Header, m.Data); err == nil {
				return record.Slim(whole)
			}
		}
	}
	return w
}

// takeSpot takes in a webhook that is parked, or sent again, and returns what is to be done once
// t.mu, which is held, is free.
func (t *term) takeSpot(m jetstream.Msg, seq uint64, kind string, id uint64) (then func()) {
	then = func() {}
	h, err := readHead(m.Headers())
	status, err2 := readStatus(m.Headers())
	if err := errors.Join(err, err2); err != nil {
		t.s.log.Error("inbox has a damaged message", "seq", seq)
		return then
	}
	p := t.at(id)
	if t.gather == nil && (kind == "parked" || p.kind == "again" && p.seq >= seq) {
		return then // written here
	}
	r := &record.Record{ID: id, Webhook: t.slim(&h, seq), Status: status}
	if t.gather == nil {
		before := *p
		p.kind, p.seq = kind, seq
		return func() { t.sendAgain(r, before) }
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

// sendAgain hands over what somebody had sent again, and was before until now.
func (t *term) sendAgain(r *record.Record, before spot) {
	if before.kind == "parked" {
		for !t.removed(r) && t.Held() {
			pause(t.s.alive, 10*time.Millisecond) // how it was parked is still being written
		}
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

// Content reads a webhook whole.
func (t *term) Content(id uint64) (*webhookgate.Webhook, error) {
	seq := id
	t.mu.Lock()
	if p := t.spots[id]; p != nil && p.kind != "" {
		seq = p.seq
	}
	t.mu.Unlock()
	m, err := t.s.read(t.s.alive, seq)
	// A leader that was just elected may not have it ready.
	for n := 0; n < 3 && errors.Is(err, jetstream.ErrMsgNotFound); n++ {
		pause(t.s.alive, 500*time.Millisecond)
		m, err = t.s.read(t.s.alive, seq)
	}
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		t.s.log.Error("inbox has lost webhooks that waited: somebody has deleted them; it is read again", "part", t.part, "id", id)
		t.leave()
		return nil, fmt.Errorf("webhook %d: the servers do not have it", id)
	}
	if err != nil {
		return nil, err
	}
	w, _, err := readContent(m.Header, m.Data)
	return w, err
}
