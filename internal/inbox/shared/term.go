package shared

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// term is one part, for as long as this replica delivers it.
type term struct {
	s      *Store
	part   int
	claim  uint64       // its sequence
	before courier.Load // as the lease was found

	hold    atomic.Pointer[hold]
	heard   atomic.Int64 // when something was last read of the part, in Unix nanoseconds
	leaving chan struct{}
	leaves  sync.Once
	limit   atomic.Int64  // how long deliveries may go on then; zero: as long as they take
	ended   chan struct{} // closed when this replica has done with the part
	writing lines         // one note at a time in a lane

	mu     sync.Mutex // guards what follows
	over   bool       // nothing is taken in any more: the courier must not begin after it was told to end
	next   uint64     // where to read on
	gather *gathered  // what there was, until all of it is read; nil: the courier has it
	lanes  map[webhookgate.Lane]*lane
	spots  map[uint64]spot
}

// lane is one in which something waits.
type lane struct {
	end     end // as far as it was read
	waiting int // webhooks in it that are not finished
}

// spot is the message that says how a webhook stands; zero: there is none.
type spot struct {
	seq uint64
	out bool // it has the content, too: the webhook is outside its lane
}

// gathered is what a part had when it was taken over.
type gathered struct {
	records map[uint64]*record.Record
	inLane  map[uint64]bool
}

func newTerm(s *Store, part int, claim uint64, h *hold) *term {
	t := &term{
		s: s, part: part, claim: claim, next: 1,
		leaving: make(chan struct{}), ended: make(chan struct{}),
		gather: &gathered{make(map[uint64]*record.Record), make(map[uint64]bool)},
		lanes:  make(map[webhookgate.Lane]*lane), spots: make(map[uint64]spot),
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

// load is what waits or is parked in the part.
func (t *term) load() courier.Load {
	if !t.hasBegun() {
		return t.before
	}
	return t.s.courier.Load(t)
}

// leave has the term end.
func (t *term) leave() { t.leaves.Do(func() { close(t.leaving) }) }

func (t *term) isLeaving() bool {
	select {
	case <-t.leaving:
		return true
	default:
		return false
	}
}

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
	s.leaseChanged("taken")
	<-t.leaving
	change := "given_back"
	if !t.Held() {
		change = "lost"
	}
	s.leaseChanged(change)
	if limit := time.Duration(t.limit.Load()); limit > 0 {
		defer time.AfterFunc(limit, cutOff).Stop()
	}
	load := t.load()
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	s.courier.End(cut, t)
	cutOff()
	done()
	helping.Wait()
	t.giveBack(load)
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
			// Its own renewals do not come back: it would not see what to deliver.
			t.s.log.Warn("cannot read the inbox, another replica may deliver", "part", t.part)
			return
		}
		limit, cancel := context.WithDeadline(ctx, held.from.Add(holdTime))
		h, err := t.s.writeLease(limit, t.part, t.s.self, t.load(), held.seq)
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
	if now.Holder != t.s.self || now.seq < held.seq { // or the servers have lost the end of the stream
		return false
	}
	t.hold.Store(&hold{from: held.from, seq: now.seq})
	return true
}

// giveBack lets the next replica have the lease at once. It is not renewed any more, but the
// last renewal may have got through without its answer.
func (t *term) giveBack(load courier.Load) {
	held := t.hold.Swap(nil)
	if held == nil || record.Elapsed(held.from) >= holdTime {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	_, err := t.s.writeLease(ctx, t.part, "", load, held.seq)
	if isConflict(err) {
		var now leaseSeen
		if now, err = t.s.relearn(ctx, t.part, held.seq); err == nil && now.Holder == t.s.self {
			_, err = t.s.writeLease(ctx, t.part, "", load, now.seq)
		}
	}
	if err != nil {
		t.s.log.Debug("inbox lease not given back", "part", t.part, "err", err)
	}
}

// Content reads a webhook whole.
func (t *term) Content(id uint64) (*webhookgate.Webhook, error) {
	m, err := t.s.readThere(t.s.alive, t.whereIs(id))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		t.s.log.Error("somebody deleted webhooks that waited in the inbox, reading it again", "part", t.part, "id", id)
		t.leave()
		return nil, fmt.Errorf("webhook %d: the servers do not have it", id)
	}
	if err != nil {
		return nil, err
	}
	return packed(m.Header, m.Data).unpack()
}

// whereIs is the message that has a webhook now.
func (t *term) whereIs(id uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.spots[id]; p.out {
		return p.seq
	}
	return id
}
