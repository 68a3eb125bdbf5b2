package inbox

import (
	"context"
	"encoding/json"
	"os"
	"time"
)

// The lease: a message in the log that says which replica delivers. Its holder writes
// it anew every second, and may deliver for holdTime after it began to write the last
// one that got through. The others take it over when they have seen nothing of it for
// leaseTime. As that is longer, and begins later, two never deliver at once, whatever
// the network does; only clocks must go at about the same speed. A replica that was
// stopped for a while finds out before its next delivery.
//
// JetStream can pin a consumer to one client, too. But the pin is known to the
// consumer's leader alone: the next leader pins whoever asks first, while the former
// client still delivers, and order in a lane would be lost.
const (
	renewEvery = time.Second
	leaseTime  = 5 * time.Second
	holdTime   = 4 * time.Second
)

// leaseSeen is the lease as the log tells it.
type leaseSeen struct {
	Holder string `json:"holder"` // empty: it was given back
	Host   string `json:"host"`

	seq  uint64
	seen time.Time // by this replica's clock
}

// deadline is when this replica has to stop, unless the lease is renewed.
type deadline struct {
	from time.Time // when the renewal that got through was begun
	seq  uint64    // of that message
}

// leading says whether this replica may begin a delivery.
func (s *jetStore) leading() bool {
	d := s.until.Load()
	return d != nil && elapsed(d.from) < holdTime
}

// run delivers whenever this replica holds the lease, until ctx ends; each time with a
// courier of its own, that knows what the log says and nothing else. Deliveries under
// way end with hard, or with the lease.
func (s *jetStore) run(ctx, hard context.Context, newCourier func() *courier) {
	for s.acquire(ctx) {
		// The term ends by itself when renewals no longer get through, or with ctx.
		term, endTerm := context.WithCancel(ctx)
		cut, cutOff := context.WithCancel(hard)
		renewed := make(chan struct{})
		go func() {
			defer close(renewed)
			s.renew(cut)
			endTerm()
			cutOff()
		}()
		s.log.Info("this replica delivers now")
		c := newCourier()
		s.notes.begin(c.noted)
		s.mirror.attach(c)
		c.run(term, cut)
		s.mirror.detach()
		s.notes.flush(cut) // what is given up with the lease ends that, too
		cutOff()
		<-renewed
		s.giveBack()
		s.until.Store(nil)
		s.log.Info("this replica no longer delivers", "pending", s.stats().Pending)
	}
}

// acquire waits until this replica holds the lease, and knows all that was written
// before; or ctx ends.
func (s *jetStore) acquire(ctx context.Context) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.mirror.stir:
		case <-timer.C:
		}
		wait := renewEvery
		if free, last := s.free(); free && s.claim(ctx, last) {
			return true
		} else if !free {
			wait = renewEvery / 2
		}
		timer.Reset(wait)
	}
}

// free says whether the lease can be had, and which message is its last.
func (s *jetStore) free() (bool, uint64) {
	l, caughtUp := s.mirror.leaseNow()
	// By the monotonic clock alone: the other one can be set forward, and the holder's
	// was not.
	return caughtUp && (l.Holder == "" || l.Holder == s.self || time.Since(l.seen) > leaseTime), l.seq
}

// claim writes the lease behind last, and then waits until all before it was read. Who
// can't read the log at the moment leaves the lease to others.
func (s *jetStore) claim(ctx context.Context, last uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, holdTime)
	defer cancel()
	if s.catchUp(ctx) != nil {
		return false
	}
	d, err := s.writeLease(ctx, s.self, last)
	if isConflict(err) {
		_ = s.relearn(ctx, last) // the next claim is better
	} else if err != nil && ctx.Err() == nil {
		s.log.Debug("inbox lease not had", "err", err)
	}
	if err != nil {
		return false
	}
	if s.mirror.await(ctx, d.seq) != nil {
		return false
	}
	s.until.Store(d)
	return s.leading()
}

// renew keeps the lease until ctx ends or it is lost.
func (s *jetStore) renew(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for s.leading() {
		held := s.until.Load()
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(held.from.Add(holdTime))): // what is under way ends now, not with the next tick
			continue
		case <-tick.C:
		}
		if heard, _ := s.mirror.heardAt(); elapsed(heard) > leaseTime {
			// Its own renewals do not come back: it would not see what there is to deliver.
			s.log.Warn("inbox log can't be read, another replica may deliver")
			return
		}
		limit, cancel := context.WithDeadline(ctx, held.from.Add(holdTime))
		d, err := s.writeLease(limit, s.self, held.seq)
		cancel()
		switch {
		case err == nil:
			s.until.Store(d)
		case isConflict(err) && !s.mine(held):
			s.log.Warn("inbox lease lost to another replica")
			s.until.Store(nil)
		}
	}
}

// mine says whether the lease is still this replica's, and if the log has it at a
// later message than held, that being one whose answer got lost, takes that for held's.
func (s *jetStore) mine(held *deadline) bool {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	if s.relearn(ctx, held.seq) != nil {
		return true // not known; the next renewal tells
	}
	l, _ := s.mirror.leaseNow()
	if l.Holder != s.self {
		return false
	}
	s.until.Store(&deadline{from: held.from, seq: l.seq})
	return true
}

// relearn catches up with the lease. If its last message still seems to be was, it asks
// the servers: somebody may have deleted that, and without it nobody could have the
// lease again.
func (s *jetStore) relearn(ctx context.Context, was uint64) error {
	if err := s.catchUp(ctx); err != nil {
		return err
	}
	if now, _ := s.mirror.leaseNow(); now.seq != was {
		return nil
	}
	last, err := s.lastOn(ctx, s.prefix+"lease")
	if err == nil {
		s.mirror.replaceLease(was, last)
	}
	return err
}

// giveBack lets the next replica have the lease at once. It is not renewed any more.
func (s *jetStore) giveBack() {
	held := s.until.Load()
	if held == nil || !s.leading() || !s.mine(held) {
		return
	}
	if _, err := s.writeLease(context.Background(), "", s.until.Swap(nil).seq); err != nil {
		s.log.Debug("inbox lease not given back", "err", err)
	}
}

// writeLease writes that holder delivers, if the lease's last message is still last.
func (s *jetStore) writeLease(ctx context.Context, holder string, last uint64) (*deadline, error) {
	host, _ := os.Hostname() // only to be read by people
	data, err := json.Marshal(leaseSeen{Holder: holder, Host: host})
	if err != nil {
		return nil, err
	}
	m := message(s.prefix+"lease", data)
	expect(m, last)
	d := &deadline{from: time.Now()}
	d.seq, err = s.publish(ctx, m)
	return d, err
}
