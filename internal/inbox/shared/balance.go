package shared

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// How the parts spread over the running replicas.

// Run delivers this replica's share of the parts until ctx ends, and returns when the deliveries in
// progress have ended. When hard ends they are cancelled.
func (s *Store) Run(ctx, hard context.Context) {
	if s.cfg.Idle {
		<-ctx.Done()
		return
	}
	var delivering, helping sync.WaitGroup
	delivering.Go(func() { s.courier.Run(ctx, hard) })
	help, done := context.WithCancel(s.alive)
	helping.Go(func() { s.beHere(help) })
	tick := time.NewTicker(balanceEvery)
	defer tick.Stop()
	var said, before int
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-s.leases.stir:
		case <-tick.C:
			held := s.held()
			if held == before && held != said { // it has settled
				said = held
				s.log.Info("this replica delivers its share of the inbox", "parts", held, "of", s.parts)
			}
			before = held
		}
		if ctx.Err() == nil && s.nc.IsConnected() && !s.isBlind() {
			s.balance(ctx, hard)
		}
	}
	s.endTerms()
	delivering.Wait()
	done()
	helping.Wait()
}

// endTerms gives up all parts, and returns when that is done.
func (s *Store) endTerms() {
	var ending []*term
	s.leases.mu.Lock()
	for _, t := range s.leases.terms {
		if t != nil {
			t.leave()
			ending = append(ending, t)
		}
	}
	s.leases.mu.Unlock()
	for _, t := range ending {
		<-t.ended
	}
}

// dropTerms ends all terms as if their leases were lost: what they know of their parts does not count any more.
func (s *Store) dropTerms() {
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	for _, t := range s.leases.terms {
		if t != nil {
			t.hold.Store(nil)
			t.leave()
		}
	}
}

// balance gives up what this replica has beyond its share, or takes what is free.
func (s *Store) balance(ctx, hard context.Context) {
	l := &s.leases
	l.mu.Lock()
	share, first := l.share(s.self, time.Now())
	var held []*term
	free := make(map[int]leaseSeen)
	var order []int
	for n := range l.parts {
		part := (first + n) % l.parts
		if t := l.terms[part]; t != nil {
			held = append(held, t)
		} else if l.free(part, s.self) {
			order = append(order, part)
			free[part] = l.seen[part]
		}
	}
	l.mu.Unlock()
	for n := share; n < len(held); n++ {
		held[n].handOver()
	}
	var claims sync.WaitGroup
	for n := 0; n < len(order) && len(held)+n < share; n++ {
		claims.Go(func() { s.claim(ctx, hard, order[n], free[order[n]]) })
	}
	claims.Wait()
}

// share is how many parts this replica should have, and where to begin to look for them:
// replicas that begin at different places get in each other's way less.
func (l *leases) share(self string, now time.Time) (n, first int) {
	names := []string{self}
	for name, heard := range l.peers {
		if now.Sub(heard) > peerTime {
			delete(l.peers, name)
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	at := slices.Index(names, self)
	n = l.parts / len(names)
	if at < l.parts%len(names) {
		n++
	}
	return n, at * l.parts / len(names)
}

// free says whether a part can be taken. By the monotonic clock alone: the other one can be set
// forward, and the holder's was not. Of one that was not read yet the servers refuse another lease. l.mu is held.
func (l *leases) free(part int, self string) bool {
	seen := &l.seen[part]
	return seen.Holder == "" || seen.Holder == self || time.Since(seen.seen) > leaseTime
}

// beHere tells the others that this replica is there, and listens to them, until ctx ends.
func (s *Store) beHere(ctx context.Context) {
	subject := s.livePrefix + "here"
	heard, err := s.nc.Subscribe(subject, func(m *nats.Msg) {
		name, gone := strings.CutPrefix(string(m.Data), "gone ")
		if name == s.self {
			return
		}
		s.leases.mu.Lock()
		_, known := s.leases.peers[name]
		if s.leases.peers[name] = time.Now(); gone {
			delete(s.leases.peers, name)
		}
		s.leases.mu.Unlock()
		if known == gone {
			s.leases.poke()
		}
	})
	if err != nil {
		s.log.Error("cannot listen for other replicas", "err", err)
		return
	}
	defer heard.Unsubscribe()
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		if !s.isBlind() { // else the others would leave parts to it
			_ = s.nc.Publish(subject, []byte(s.self)) // without a connection nobody hears it
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			_ = s.nc.Publish(subject, []byte("gone "+s.self))
			_ = s.nc.FlushTimeout(requestTimeout)
			return
		}
	}
}

// held is how many parts this replica delivers.
func (s *Store) held() (n int) {
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	for _, t := range s.leases.terms {
		if t != nil && t.Held() {
			n++
		}
	}
	return n
}

// Delivers reports whether this replica delivers anything right now.
func (s *Store) Delivers() bool { return s.held() > 0 }
