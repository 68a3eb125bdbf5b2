package shared

import (
	"context"
	"fmt"
	"sync"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/lease"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

// term is one part, for as long as this replica delivers it.
type term struct {
	*lease.Lease
	s       *Store
	before  record.Load // as the lease was found
	writing lines       // one note at a time in a lane

	mu     sync.Mutex // guards what follows
	over   bool       // nothing is taken in any more: the courier must not begin after it was told to end
	next   uint64     // where to read on
	gather *gathered  // what there was, until all of it is read; nil: the courier has it
	lanes  map[webhookgate.Lane]*lane
	spots  map[uint64]spot
}

// lane is one in which something waits.
type lane struct {
	end     message.End // as far as it was read
	waiting int         // webhooks in it that are not finished
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

func newTerm(s *Store, l *lease.Lease, load record.Load) *term {
	return &term{
		Lease: l, s: s, before: load, next: 1,
		gather: &gathered{make(map[uint64]*record.Record), make(map[uint64]bool)},
		lanes:  make(map[webhookgate.Lane]*lane), spots: make(map[uint64]spot),
	}
}

// begin makes a term of a part.
func (s *Store) begin(ctx context.Context, l *lease.Lease, load record.Load) (lease.Term, error) {
	t := newTerm(s, l, load)
	t.serve() // before that: who pauses deliveries asks this replica, or is done before they are read
	_, _, err := s.readPauses(ctx)
	return t, err
}

// term returns this replica's term of a part; nil: it has none.
func (s *Store) term(part int) *term {
	t, _ := s.leases.Term(part).(*term)
	return t
}

// Load is what waits or is parked in the part.
func (t *term) Load() record.Load {
	if !t.hasBegun() {
		return t.before
	}
	return t.s.courier.Load(t)
}

func (t *term) isLeaving() bool {
	select {
	case <-t.Leaving():
		return true
	default:
		return false
	}
}

// End takes nothing in any more, and returns when the deliveries in progress have ended. When ctx ends they are cancelled.
func (t *term) End(ctx context.Context) {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.s.courier.End(ctx, t)
}

// Content reads a webhook whole.
func (t *term) Content(ctx context.Context, id uint64) (*webhookgate.Webhook, error) {
	m, err := t.s.servers.Waiting.GetSure(ctx, t.whereIs(id))
	if outdated, _ := t.Outdated(); outdated { // it may be another one that was read
		t.Leave()
		return nil, record.ErrUnsure
	}
	if servers.Missing(err) {
		t.s.log.Error("somebody deleted webhooks that waited in the inbox, reading it again", "part", t.Part, "id", id)
		t.Leave()
		return nil, fmt.Errorf("webhook %d: the servers do not have it", id)
	}
	if err != nil {
		return nil, err
	}
	return message.Packed(m.Header, m.Data).Unpack()
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
