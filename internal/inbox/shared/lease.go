package shared

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/courier"
)

// A lease is a message that says which replica delivers a part. Its holder writes it again
// every second. It may deliver for holdTime, counted from when it began to write the last lease
// that the servers took. The other replicas take the part over when they have seen no new lease
// for leaseTime. That is longer and begins later, so two replicas never deliver at once, whatever
// the network does, as long as their clocks run at about the same speed. A replica that was
// stopped for a while checks its lease before its next write to the receiver.
//
// A claim is written once, when a part is taken over. The holder's notes name it, so the
// servers refuse a note of a former holder that arrives late.
//
// JetStream can pin a consumer to one client, too. But only the consumer's leader knows the pin:
// the next leader pins the first client that asks, while the former one still delivers, and
// the order in a lane would be lost.
const (
	renewEvery = time.Second
	leaseTime  = 5 * time.Second
	holdTime   = 4 * time.Second
	// peerTime is how long a replica counts after it was last heard of. It is shorter than
	// leaseTime: when a lease runs out the others know how many they are.
	peerTime = 4 * time.Second
	// balanceEvery is how often a replica looks whether it has its share.
	balanceEvery = 250 * time.Millisecond
)

// leaseMessage is the content of a lease.
type leaseMessage struct {
	Holder       string `json:"holder"` // empty: it was given back
	Host         string `json:"host"`   // only to be read by people
	courier.Load        // of the part
}

// leaseSeen is a lease as this replica last saw it.
type leaseSeen struct {
	leaseMessage
	seq  uint64
	seen time.Time // by this replica's clock
}

// leases is what this replica knows of all parts, and of the others that are there.
type leases struct {
	stir chan struct{} // something has changed

	mu    sync.Mutex // guards what follows
	parts int        // there are
	seen  [parts]leaseSeen
	terms [parts]*term         // of this replica
	peers map[string]time.Time // when others were last heard of
}

func (l *leases) init(parts int) {
	l.parts = parts
	l.stir = make(chan struct{}, 1)
	l.peers = make(map[string]time.Time)
}

func (l *leases) poke() {
	select {
	case l.stir <- struct{}{}:
	default:
	}
}

// term returns this replica's term of a part; nil: it has none.
func (s *Store) term(part int) *term {
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	return s.leases.terms[part]
}

// claim tries to take a part over, whose lease was last seen as was.
func (s *Store) claim(ctx, hard context.Context, part int, was leaseSeen) {
	ctx, cancel := context.WithTimeout(ctx, holdTime/2)
	defer cancel()
	h, err := s.writeLease(ctx, part, s.self, was.Load, was.seq)
	if isConflict(err) {
		s.relearn(ctx, part, was.seq)
	}
	if err != nil {
		s.log.Debug("inbox lease not taken", "part", part, "err", err)
		return
	}
	m := nats.NewMsg(s.part(part, "claim"))
	m.Data = []byte(s.self)
	rollup(m)
	claim, err := s.publish(ctx, m)
	if err != nil {
		s.log.Debug("inbox part not claimed", "part", part, "err", err)
		return
	}
	t := newTerm(s, part, claim, h)
	t.before = was.Load
	t.serve() // before that: who pauses deliveries asks this replica, or is done before they are read
	if _, _, err := s.readPauses(ctx); err != nil {
		s.log.Debug("inbox part not claimed", "part", part, "err", err)
		t.leave()
		return
	}
	s.leases.mu.Lock()
	s.leases.terms[part] = t
	s.leases.mu.Unlock()
	s.background.Go(func() { t.run(hard) })
}

// hold is how long a replica may deliver.
type hold struct {
	from time.Time // when the renewal that got through was begun
	seq  uint64    // of that message
}

// writeLease writes that holder delivers a part, if the lease's last message is still last.
func (s *Store) writeLease(ctx context.Context, part int, holder string, load courier.Load, last uint64) (*hold, error) {
	host, _ := os.Hostname()
	data, err := json.Marshal(leaseMessage{Holder: holder, Host: host, Load: load})
	if err != nil {
		return nil, err
	}
	m := nats.NewMsg(s.part(part, "lease"))
	m.Data = data
	rollup(m)
	expect(m, last)
	h := &hold{from: time.Now()}
	h.seq, err = s.publish(ctx, m)
	return h, err
}

// relearn asks the servers for a lease, where they did not have the message that was expected:
// somebody may have deleted it, and without it nobody could have the lease again.
func (s *Store) relearn(ctx context.Context, part int, was uint64) (leaseSeen, error) {
	m, err := s.lastOn(ctx, s.part(part, "lease"))
	var now leaseSeen
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
	case err != nil:
		return now, err
	default:
		now.seq = m.Sequence
		_ = json.Unmarshal(m.Data, &now.leaseMessage) // what can't be read runs out
	}
	s.leases.saw(part, now, was)
	return now, nil
}

// saw takes in a lease. An older one than is known does not count, unless that is was.
func (l *leases) saw(part int, now leaseSeen, was uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := &l.seen[part]
	if now.seq == known.seq || now.seq < known.seq && known.seq != was {
		return
	}
	now.seen = time.Now()
	if now.Holder != known.Holder {
		defer l.poke()
	}
	*known = now
}

// followLeases reads who delivers what, until ctx ends.
func (s *Store) followLeases(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.consume(ctx, jetstream.ConsumerConfig{
			FilterSubject: s.prefix + "*.lease", DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
		}, func() { s.blind.Store(0) }, s.takeLease)
		s.blind.CompareAndSwap(0, time.Now().UnixNano())
		if ctx.Err() == nil {
			s.log.Debug("cannot follow the inbox's leases", "err", err)
			pause(ctx, 100*time.Millisecond)
		}
	}
}

func (s *Store) takeLease(m jetstream.Msg, seq uint64) {
	part := s.partOf(strings.TrimPrefix(m.Subject(), s.prefix))
	now := leaseSeen{seq: seq}
	if err := json.Unmarshal(m.Data(), &now.leaseMessage); err != nil {
		s.log.Error("cannot read an inbox lease", "part", part, "err", err)
	}
	s.leases.saw(part, now, 0)
}

// leaseChanged tells what became of a part's lease.
func (s *Store) leaseChanged(change string) {
	if s.cfg.LeaseChanged != nil {
		s.cfg.LeaseChanged(change)
	}
}
