package inbox

import (
	"context"
	"sync"
	"time"

	"usher/internal/lane"
	"usher/internal/receiver"
)

// Each receiver has places: so many webhooks are on their way to it at once. A transaction gives a free place, or one
// that soon will be, a lease: of a lane that it has claimed, because it is due; or of one that it has before it anyway, of an intake or an outcome.
//
// Lanes that have not failed go first, those that have take at most half of the places, and a receiver's first success
// after a while makes due what has failed since (turn.noteAccepted). That is all: what must survive the process, or what
// replicas must agree on, is in the database.
type places struct {
	*pauses
	all      []*target
	claimNow chan struct{} // to the writer: there may be lanes to claim

	mu         sync.Mutex // guards what follows, and targets
	freed      *sync.Cond // target.bodies has become less
	leases     map[lane.LeaseKey]bool
	unfinished int             // deliveries whose outcomes are not written
	ending     bool            // no new deliveries: before Run has begun, and after its end
	hard       context.Context // its end cancels deliveries
}

func newPlaces(s *pauses) *places {
	p := &places{pauses: s, claimNow: make(chan struct{}, 1), leases: make(map[lane.LeaseKey]bool), ending: true}
	p.freed = sync.NewCond(&p.mu)
	for _, rc := range s.cfg.Receivers.All() {
		p.all = append(p.all, &target{Receiver: rc, mayClaim: true})
	}
	return p
}

// wakeWriter has the writer look for lanes to claim, and for operations that wait for a lock.
func (p *places) wakeWriter() {
	select {
	case p.claimNow <- struct{}{}:
	default:
	}
}

// A target is one receiver, as the courier sees it.
type target struct {
	*receiver.Receiver
	leases   int           // of this process, until their outcomes are written
	failed   int           // of these: of lanes whose last try failed
	queue    []*lane.Lease // those that wait for a place
	underWay int           // places that are taken
	bodies   int64
	reads    int // deliveries that have read a large body

	mayClaim bool      // there may be lanes that are due
	retryAt  time.Time // when the next lane that failed here is due; zero: none is known
	notUntil time.Time // the database has refused a claim: no other one before
}

// most is how many leases there may be: as many wait as have a place, so that no place waits for a transaction.
func (t *target) most() int { return 2 * t.Concurrency }

// half is how many leases lanes may have whose last try failed: for half of the places.
func (t *target) half() int { return max(1, t.Concurrency/2) }

func (p *places) target(rc *receiver.Receiver) *target {
	for _, t := range p.all {
		if t.Receiver == rc {
			return t
		}
	}
	return nil
}

// A claim asks for lanes of one receiver that are due: so many that have not failed, and so many that have.
type claim struct {
	*target
	fresh, failed int
	found         []*lane.Lane
	seen          [2]int // how many of both there were
	given         int    // leases
}

// plan returns what the next transaction should claim. The places of leases that it ends are free.
func (p *places) plan(ending []*lane.Lease) (claims []*claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ended, failed := make(map[*receiver.Receiver]int), make(map[*receiver.Receiver]int)
	for _, lease := range ending {
		ended[lease.Receiver]++
		failed[lease.Receiver] += int(boolNumber(lease.Failed))
	}
	now := time.Now()
	for _, t := range p.all {
		if !t.retryAt.IsZero() && !t.retryAt.After(now) {
			t.mayClaim, t.retryAt = true, time.Time{}
		}
		free := t.most() - t.leases + ended[t.Receiver]
		if p.ending || !t.mayClaim || free < t.half() || now.Before(t.notUntil) || p.paused(t.Name) {
			continue
		}
		claims = append(claims, &claim{target: t, fresh: free, failed: min(free, max(0, t.half()-t.failed+failed[t.Receiver]))})
	}
	return claims
}

// dealt is what a transaction does with places.
type dealt struct {
	claims []*claim
	leases []*lane.Lease // given
	ended  []*lane.Lease
	waits  map[*receiver.Receiver]bool // lanes are due that did not get a lease
}

// freePlaces are the leases that a transaction may give.
type freePlaces map[*receiver.Receiver]*freeOf

type freeOf struct {
	all, failed int
	others      bool // lanes wait that are not part of the transaction: those that come later must not pass them
}

// free returns them. ended are leases whose places are given back once the transaction is committed.
func (p *places) free(ended []*lane.Lease) freePlaces {
	p.mu.Lock()
	defer p.mu.Unlock()
	free := make(freePlaces)
	if p.ending {
		return free
	}
	for _, of := range p.all {
		free[of.Receiver] = &freeOf{of.most() - of.leases, of.half() - of.failed, of.mayClaim}
	}
	for _, lease := range ended {
		of := free[lease.Receiver]
		of.all++
		of.failed += int(boolNumber(lease.Failed))
	}
	return free
}

// take takes what a committed transaction has leased, and has settled, and returns the leases that have a place.
func (p *places) take(d *dealt) (begin []*lane.Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, of := range d.claims {
		// With fewer than it has asked for, there is nothing more. What has failed may wait for the end of another one.
		of.mayClaim = of.seen[0] >= of.fresh || of.seen[1] >= of.failed && of.failed > 0
		if len(of.found) > 0 && of.given == 0 { // a pause that is not known everywhere yet
			of.notUntil = time.Now().Add(100 * time.Millisecond)
		}
	}
	for rc := range d.waits {
		if of := p.target(rc); of != nil {
			of.mayClaim = true
		}
	}
	for _, lease := range d.ended {
		p.giveBack(lease)
	}
	for _, lease := range d.leases {
		of := p.target(lease.Receiver)
		of.leases++
		of.failed += int(boolNumber(lease.Failed))
		p.leases[lease.Key()] = true
		p.unfinished++
		of.queue = append(of.queue, lease)
		begin = append(begin, p.fill(of)...)
	}
	p.wakeIfDue()
	return begin
}

// fill returns the leases that have a place now. At the end all have one, and are then given back. p.mu is held.
func (p *places) fill(t *target) (begin []*lane.Lease) {
	for len(t.queue) > 0 && (t.underWay < t.Concurrency || p.ending) {
		begin = append(begin, t.queue[0])
		t.queue = t.queue[1:]
		t.underWay++
	}
	return begin
}

// left is called when a delivery has left its place, and returns the leases that have one now.
func (p *places) left(t *target) (begin []*lane.Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.underWay--
	return p.fill(t)
}

// end lets nothing begin any more, and returns the leases that wait for a place.
func (p *places) end() (begin []*lane.Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending = true
	for _, t := range p.all {
		begin = append(begin, p.fill(t)...)
	}
	return begin
}

// giveBack gives back the place of a lease. p.mu is held.
func (p *places) giveBack(lease *lane.Lease) {
	of := p.target(lease.Receiver)
	of.leases--
	if lease.Failed {
		of.failed--
		of.mayClaim = true
	}
	delete(p.leases, lease.Key())
	p.unfinished--
}

// wakeIfDue wakes the writer if there is something to claim. p.mu is held.
func (p *places) wakeIfDue() {
	for _, t := range p.all {
		if t.mayClaim && t.most()-t.leases >= t.half() && !p.ending && !time.Now().Before(t.notUntil) {
			p.wakeWriter()
		}
	}
}

// refused is called when the database has refused a transaction with claims.
func (p *places) refused(claims []*claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, of := range claims {
		of.notUntil = time.Now().Add(time.Second)
	}
}

// wake says that there may be lanes to claim.
func (p *places) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.all {
		t.mayClaim = true
	}
	p.wakeIfDue()
}

// delivering returns the leases of this process whose outcomes are not written yet.
func (p *places) delivering() map[lane.LeaseKey]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[lane.LeaseKey]bool, len(p.leases))
	for key := range p.leases {
		all[key] = true
	}
	return all
}

func (p *places) giveUp(lease *lane.Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.giveBack(lease)
}

func (p *places) hardStopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hard.Err() != nil
}

func (p *places) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unfinished > 0
}

// nextRetry is when the next lane that failed is due.
func (p *places) nextRetry() (next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.all {
		if !t.retryAt.IsZero() && (next.IsZero() || t.retryAt.Before(next)) {
			next = t.retryAt
		}
	}
	return next
}

// waitForRetry has those whose time has come wait for a place, and no longer for their time.
func (p *places) waitForRetry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.all {
		if !t.retryAt.IsZero() && !t.retryAt.After(time.Now()) {
			t.mayClaim, t.retryAt = true, time.Time{}
		}
	}
}
