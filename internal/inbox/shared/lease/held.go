package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/servers"
)

// Lease is one part, for as long as this replica has it.
type Lease struct {
	Part  int
	Claim uint64 // its sequence

	boot string // of the server, when it was taken; see Outdated

	keeper  *Keeper
	term    Term
	hold    atomic.Pointer[hold] // nil: it is lost, or given back
	heard   atomic.Int64         // when something was last read of the part, in Unix nanoseconds
	leaving chan struct{}
	leaves  sync.Once
	limit   atomic.Int64  // how long deliveries may go on then; zero: as long as they take
	ended   chan struct{} // closed when this replica has done with the part
}

// hold is how long a replica may deliver.
type hold struct {
	from time.Time // when the renewal that got through was begun
	seq  uint64    // of that message
}

// Held says whether a delivery may begin, or go on.
func (l *Lease) Held() bool {
	h := l.hold.Load()
	return h != nil && record.Elapsed(h.from) < holdTime
}

// Outdated says that the only server was started again since the part was taken: what was read of it may be gone, and its numbers may be those of
// other messages. Nothing may be written on the strength of it any more. An error: there is no connection right now.
func (l *Lease) Outdated() (bool, error) {
	boot, err := l.keeper.Servers.Boot()
	return err == nil && boot != l.boot, err
}

// Heard notes that something was read of the part. A holder that hears nothing, not even its own renewals, would not see what to
// deliver, and loses it.
func (l *Lease) Heard() { l.heard.Store(time.Now().UnixNano()) }

// Leave has the part given up.
func (l *Lease) Leave() { l.leaves.Do(func() { close(l.leaving) }) }

// Lost has it given up, and nothing more delivered: another replica has it.
func (l *Lease) Lost() {
	l.hold.Store(nil)
	l.Leave()
}

// Leaving is closed when the part is being given up, and Ended when it was.
func (l *Lease) Leaving() <-chan struct{} { return l.leaving }
func (l *Lease) Ended() <-chan struct{}   { return l.ended }

// handOver has the part given up for another replica to go on soon: what is under way by then is cut
// off, and comes again there.
func (l *Lease) handOver() {
	l.limit.Store(int64(handOverTime))
	l.Leave()
}

// run serves the part until it is to be given up, or the lease is lost. Deliveries under way
// may finish, unless the lease or hard ends first.
func (l *Lease) run(hard context.Context) {
	k := l.keeper
	work, done := context.WithCancel(context.WithoutCancel(hard))
	cut, cutOff := context.WithCancel(hard)
	var helping sync.WaitGroup
	helping.Go(func() {
		l.renew(work)
		l.Leave()
		cutOff()
	})
	helping.Go(func() { l.term.Follow(work) })
	k.Log.Debug("inbox part taken over", "part", l.Part)
	l.changed("taken")
	<-l.leaving
	if l.Held() {
		l.changed("given_back")
	} else {
		l.changed("lost")
	}
	if limit := time.Duration(l.limit.Load()); limit > 0 {
		defer time.AfterFunc(limit, cutOff).Stop()
	}
	load := l.term.Load()
	l.term.End(cut)
	cutOff()
	done()
	helping.Wait()
	l.giveBack(hard, load)
	k.mu.Lock()
	k.held[l.Part] = nil
	k.mu.Unlock()
	k.Log.Debug("inbox part given up", "part", l.Part)
	close(l.ended)
	k.poke()
}

// changed tells what became of the lease.
func (l *Lease) changed(change string) {
	if l.keeper.Changed != nil {
		l.keeper.Changed(change)
	}
}

// renew keeps the lease until ctx ends or it is lost.
func (l *Lease) renew(ctx context.Context) {
	k := l.keeper
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for l.Held() {
		if outdated, _ := l.Outdated(); outdated {
			k.Log.Debug("the inbox server was started again, reading what waits", "part", l.Part)
			return
		}
		held := l.hold.Load()
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(held.from.Add(holdTime))): // what is under way ends now, not with the next tick
			continue
		case <-tick.C:
		}
		if time.Since(time.Unix(0, l.heard.Load())) > Time {
			k.Log.Warn("cannot read the inbox, another replica may deliver", "part", l.Part)
			return
		}
		limit, cancel := context.WithDeadline(ctx, held.from.Add(holdTime))
		h, err := k.write(limit, l.Part, k.Self, l.term.Load(), held.seq)
		switch {
		case err == nil:
			l.hold.Store(h)
		case servers.Conflict(err) && !l.mine(limit, held):
			k.Log.Warn("inbox lease lost to another replica", "part", l.Part)
			l.hold.Store(nil)
		}
		cancel()
	}
}

// mine says whether the lease is still this replica's, and if the servers have it at a
// later message than held, that being one whose answer got lost, takes that for held's.
func (l *Lease) mine(ctx context.Context, held *hold) bool {
	now, err := l.keeper.relearn(ctx, l.Part, held.seq)
	if err != nil {
		return true // not known; the next renewal tells
	}
	if now.Holder != l.keeper.Self || now.seq < held.seq { // or the servers have lost the end of the stream
		return false
	}
	l.hold.Store(&hold{from: held.from, seq: now.seq})
	return true
}

// giveBack lets the next replica have the lease at once. It is not renewed any more, but the
// last renewal may have got through without its answer.
func (l *Lease) giveBack(hard context.Context, load record.Load) {
	k := l.keeper
	held := l.hold.Swap(nil)
	if held == nil || record.Elapsed(held.from) >= holdTime {
		return
	}
	ctx, cancel := parting(hard)
	defer cancel()
	_, err := k.write(ctx, l.Part, "", load, held.seq)
	if servers.Conflict(err) {
		var now seen
		if now, err = k.relearn(ctx, l.Part, held.seq); err == nil && now.Holder == k.Self {
			_, err = k.write(ctx, l.Part, "", load, now.seq)
		}
	}
	if err != nil {
		k.Log.Debug("inbox lease not given back", "part", l.Part, "err", err)
	}
}
