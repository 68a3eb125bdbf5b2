package shared

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// follower is how far this replica knows which snapshots came in through others.
type follower struct {
	mu    sync.Mutex // guards what follows
	ready bool       // all was read once
	since time.Time  // from when on nothing was heard any more; zero: it is being followed
	anew  bool       // all is to be read again
	stop  func()     // ends the reading under way
}

// restart has all be read again: until then nothing is known.
func (f *follower) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ready, f.anew = false, true
	if f.stop != nil {
		f.stop()
	}
}

// Following says for how long nothing was heard of what other replicas take in; zero while
// they are heard. ready is false until all was read once.
func (s *Store) Following() (stale time.Duration, ready bool) {
	s.follower.mu.Lock()
	defer s.follower.mu.Unlock()
	if !s.follower.since.IsZero() {
		stale = max(1, time.Since(s.follower.since))
	}
	return stale, s.follower.ready
}

// followSnapshots tells OnSnapshot what comes in, until ctx ends.
func (s *Store) followSnapshots(ctx context.Context) {
	f := &s.follower
	next := uint64(1) // where to read on
	heard := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.ready, f.since = !f.anew, time.Time{}
	}
	for ctx.Err() == nil {
		reading, stop := context.WithCancel(ctx)
		f.mu.Lock()
		f.stop = stop
		anew := f.anew
		f.anew = false
		f.mu.Unlock()
		if anew {
			next = 1
			if s.cfg.OnLost != nil {
				s.cfg.OnLost() // here: nothing is told meanwhile that it would drop
			}
		}
		// Not the last of each lane alone: of a million lanes the servers take longer to find those
		// than a request may take, and would be asked for them again and again.
		cfg := jetstream.ConsumerConfig{
			FilterSubject: s.prefix + "*.in.>", HeadersOnly: true,
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: next,
		}
		s.background.Go(func() { s.untilCut(reading, stop) })
		err := s.consume(reading, cfg, heard, func(m jetstream.Msg, seq uint64) {
			s.tellSnapshot(m, seq)
			next = seq + 1
		})
		stop()
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		if f.since.IsZero() {
			f.since = time.Now()
		}
		f.mu.Unlock()
		s.log.Debug("inbox can't be followed", "err", err)
		pause(ctx, 100*time.Millisecond)
	}
}

// untilCut calls stop when the connection is lost: without a connection the client does not notice that
// it hears nothing from a consumer.
func (s *Store) untilCut(ctx context.Context, stop func()) {
	lost := s.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer s.nc.RemoveStatusListener(lost)
	select {
	case <-lost:
		stop()
	case <-ctx.Done():
	}
}

// tellSnapshot tells OnSnapshot which one a lane has last.
func (s *Store) tellSnapshot(m jetstream.Msg, seq uint64) {
	h, err := readHead(m.Headers())
	if err != nil {
		return
	}
	e := newEnd(seq, h)
	lane := e.lane()
	if h.Long {
		if e.Last == 0 && e.Kind != erasedKind {
			return // no message has its name
		}
		whole, err := s.whole(s.alive, e)
		if err != nil {
			s.log.Error("inbox has a snapshot that can't be read", "seq", seq, "err", err)
			return
		}
		lane = whole.Lane
	}
	if e.Last == 0 { // the lane has none, or none any more: what said that it was erased may be gone by now
		s.tellErased(lane, seq)
		return
	}
	s.cfg.OnSnapshot(lane, e.Last, nil)
}

// bearer reads the snapshot that a lane's end names.
func (s *Store) bearer(ctx context.Context, e end) (*webhookgate.Webhook, error) {
	m, err := s.read(ctx, e.Bearer)
	if err != nil {
		return nil, notFound(err)
	}
	return packed(m.Header, m.Data).unpack()
}

// Snapshot reads the last snapshot that was taken in for a lane, and its id.
func (s *Store) Snapshot(ctx context.Context, lane webhookgate.Lane) (*webhookgate.Webhook, uint64, error) {
	place := placeOf(lane)
	for {
		e, err := s.readEnd(ctx, place)
		if err == nil && e.Last == 0 {
			err = record.ErrNotFound
		}
		if err != nil {
			return nil, 0, err
		}
		w, err := s.bearer(ctx, e)
		if err == nil {
			return w, e.Last, nil
		}
		if !errors.Is(err, record.ErrNotFound) || ctx.Err() != nil {
			return nil, 0, fmt.Errorf("the last snapshot of tenant %q: %w", lane.Tenant, err)
		}
		// The lane went on while it was read; unless somebody has deleted what it names.
		if now, err := s.readEnd(ctx, place); err != nil || now.seq == e.seq {
			return nil, 0, fmt.Errorf("the last snapshot of tenant %q: %w", lane.Tenant, record.ErrDamaged)
		}
	}
}
