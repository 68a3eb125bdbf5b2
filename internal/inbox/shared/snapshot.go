package shared

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
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
	var (
		next   atomic.Uint64 // where to read on
		high   uint64        // the last message that was read
		newest time.Time     // the latest time of any
		cut    atomic.Bool   // the connection was lost
	)
	next.Store(1)
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
			high, newest = 0, time.Time{}
			next.Store(1)
			if s.cfg.OnLost != nil {
				s.cfg.OnLost() // here: nothing is told meanwhile that it would drop
			}
		}
		// Not the last of each lane alone: of a million lanes the servers take longer to find those
		// than a request may take, and would be asked for them again and again.
		cfg := jetstream.ConsumerConfig{
			FilterSubject: s.subjects.Prefix + "*.in.>", HeadersOnly: true,
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: next.Load(),
		}
		s.background.Go(func() {
			if s.untilCut(reading) {
				cut.Store(true)
				stop()
			}
		})
		s.background.Go(func() { s.caughtUp(reading, &next, heard) })
		err := s.servers.Consume(reading, cfg, func() {}, func(m jetstream.Msg, seq uint64) {
			meta, err := m.Metadata()
			if err != nil || seq <= high && meta.Timestamp.After(newest) {
				f.restart() // the servers have lost the end of the stream, and use its numbers again
				return
			}
			s.tellSnapshot(m, seq)
			next.Store(seq + 1)
			if high = max(high, seq); meta.Timestamp.After(newest) {
				newest = meta.Timestamp
			}
		})
		stop()
		if cut.Swap(false) {
			next.Store(1) // the server behind the next connection may have lost something
		}
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		if f.since.IsZero() {
			f.since = time.Now()
		}
		f.mu.Unlock()
		s.log.Debug("inbox can't be followed", "err", err)
		servers.Sleep(ctx, 100*time.Millisecond)
	}
}

// caughtUp calls heard when all is read up to what the servers' leader has. The consumer's own server may be behind,
// and does not know how much is still to come.
func (s *Store) caughtUp(ctx context.Context, next *atomic.Uint64, heard func()) {
	for ctx.Err() == nil {
		var target uint64
		m, err := s.servers.LastWaiting(ctx, s.subjects.Prefix+"*.in.>")
		if err == nil {
			target = m.Sequence
		}
		known := err == nil || servers.Missing(err)
		for n := 0; n < 20 && ctx.Err() == nil; n++ { // the message may be gone by now
			if known && next.Load() > target {
				heard()
				return
			}
			servers.Sleep(ctx, 20*time.Millisecond)
		}
	}
}

// untilCut returns when ctx ends, or the connection is lost, and says so: without a connection the client does not notice that
// it hears nothing from a consumer.
func (s *Store) untilCut(ctx context.Context) bool {
	lost := s.servers.Conn.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer s.servers.Conn.RemoveStatusListener(lost)
	select {
	case <-lost:
		return true
	case <-ctx.Done():
		return false
	}
}

// tellSnapshot tells OnSnapshot which one a lane has last.
func (s *Store) tellSnapshot(m jetstream.Msg, seq uint64) {
	h, err := message.ReadHead(m.Headers())
	if err != nil {
		return
	}
	e := message.NewEnd(seq, h)
	lane := e.Lane()
	if e.Last == 0 { // the lane has none, or none any more: what said that it was erased may be gone by now
		s.tellErased(lane, seq)
		return
	}
	s.cfg.OnSnapshot(lane, e.Last, nil)
}

// bearer reads the snapshot that a lane's end names.
func (s *Store) bearer(ctx context.Context, e message.End) (*webhookgate.Webhook, error) {
	m, err := s.servers.Waiting.Get(ctx, e.Bearer)
	if servers.Missing(err) {
		return nil, record.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return message.Packed(m.Header, m.Data).Unpack()
}

// Snapshot reads the last snapshot that was taken in for a lane, and its id.
func (s *Store) Snapshot(ctx context.Context, lane webhookgate.Lane) (*webhookgate.Webhook, uint64, error) {
	place := message.PlaceOf(lane)
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
		if now, err := s.readEnd(ctx, place); err != nil || now.Seq == e.Seq {
			return nil, 0, fmt.Errorf("the last snapshot of tenant %q: %w", lane.Tenant, record.ErrDamaged)
		}
	}
}
