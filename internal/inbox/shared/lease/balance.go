package lease

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/servers"
)

// A Term is what a replica does with a part that it has.
type Term interface {
	// Load is what waits or is parked in the part. The others are told with each renewal.
	Load() record.Load
	// Follow reads the part until ctx ends.
	Follow(ctx context.Context)
	// End takes nothing in any more, and returns when the deliveries in progress have ended. When ctx ends they
	// are cancelled.
	End(ctx context.Context)
}

// Begin makes a term of a part that was taken. load is the part's, as its last holder has said.
type Begin func(ctx context.Context, l *Lease, load record.Load) (Term, error)

// Run has this replica's share of the parts until ctx ends, and returns when it has given all of them back. Deliveries in progress may
// finish; when hard ends they are cancelled.
func (k *Keeper) Run(ctx, hard context.Context, begin Begin) {
	var helping sync.WaitGroup
	help, done := context.WithCancel(context.WithoutCancel(ctx))
	helping.Go(func() { k.beHere(help, hard) })
	tick := time.NewTicker(balanceEvery)
	defer tick.Stop()
	var said, before int
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-k.stir:
		case <-tick.C:
			held := k.Held()
			if held == before && held != said { // it has settled
				said = held
				k.Log.Info("this replica delivers its share of the inbox", "parts", held, "of", k.Subjects.Parts)
			}
			before = held
		}
		if ctx.Err() == nil && k.Servers.Conn.IsConnected() && !k.Servers.Blind() {
			k.balance(hard, begin)
		}
	}
	k.endAll()
	done()
	helping.Wait()
}

// endAll gives up all parts, and returns when that is done.
func (k *Keeper) endAll() {
	k.mu.Lock()
	for _, l := range k.held {
		if l != nil {
			l.Leave()
		}
	}
	k.mu.Unlock()
	k.running.Wait()
}

// Drop gives up all parts as if their leases were lost: what is known of them does not count any more.
func (k *Keeper) Drop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.held {
		if l != nil {
			l.Lost()
		}
	}
}

// balance gives up what this replica has beyond its share, or takes what is free.
func (k *Keeper) balance(hard context.Context, begin Begin) {
	k.mu.Lock()
	share, first := k.share(time.Now())
	var held []*Lease
	free := make(map[int]seen)
	var order []int
	for n := range k.held {
		part := (first + n) % len(k.held)
		if l := k.held[part]; l != nil {
			held = append(held, l)
		} else if k.free(part) {
			order = append(order, part)
			free[part] = k.seen[part]
		}
	}
	k.mu.Unlock()
	for n := share; n < len(held); n++ {
		held[n].handOver()
	}
	var claims sync.WaitGroup
	for n := 0; n < len(order) && len(held)+n < share; n++ {
		claims.Go(func() {
			l := k.claim(hard, order[n], free[order[n]], begin) // when ctx ends, too: it is given back then
			if l != nil {
				k.running.Go(func() { l.run(hard) })
			}
		})
	}
	claims.Wait()
}

// share is how many parts this replica should have, and where to begin to look for them:
// replicas that begin at different places get in each other's way less. k.mu is held.
func (k *Keeper) share(now time.Time) (n, first int) {
	names := []string{k.Self}
	for name, heard := range k.peers {
		if now.Sub(heard) > peerTime {
			delete(k.peers, name)
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	at := slices.Index(names, k.Self)
	parts := len(k.held)
	n = parts / len(names)
	if at < parts%len(names) {
		n++
	}
	return n, at * parts / len(names)
}

// claim tries to take a part over, whose lease was last seen as was; nil: it could not.
func (k *Keeper) claim(ctx context.Context, part int, was seen, begin Begin) *Lease {
	ctx, cancel := context.WithTimeout(ctx, holdTime/2)
	defer cancel()
	boot, err := k.Servers.Boot()
	if err != nil {
		return nil
	}
	h, err := k.write(ctx, part, k.Self, was.Load, was.seq)
	if servers.Conflict(err) {
		k.relearn(ctx, part, was.seq)
	}
	if err != nil {
		k.Log.Debug("inbox lease not taken", "part", part, "err", err)
		return nil
	}
	m := nats.NewMsg(k.Subjects.Part(part, "claim"))
	m.Data = []byte(k.Self)
	servers.Rollup(m)
	claim, err := k.Servers.Publish(ctx, m)
	if err != nil {
		k.Log.Debug("inbox part not claimed", "part", part, "err", err)
		return nil
	}
	l := &Lease{Part: part, Claim: claim, boot: boot, keeper: k, leaving: make(chan struct{}), ended: make(chan struct{})}
	l.hold.Store(h)
	l.Heard()
	if l.term, err = begin(ctx, l, was.Load); err != nil {
		k.Log.Debug("inbox part not claimed", "part", part, "err", err)
		l.Leave()
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[part] = l
	return l
}

// beHere tells the others that this replica is there, and listens to them, until ctx ends.
func (k *Keeper) beHere(ctx, hard context.Context) {
	subject := k.Subjects.Live + "here"
	heard, err := k.Servers.Conn.Subscribe(subject, func(m *nats.Msg) {
		name, gone := strings.CutPrefix(string(m.Data), "gone ")
		if name == k.Self {
			return
		}
		k.mu.Lock()
		_, known := k.peers[name]
		if k.peers[name] = time.Now(); gone {
			delete(k.peers, name)
		}
		k.mu.Unlock()
		if known == gone {
			k.poke()
		}
	})
	if err != nil {
		k.Log.Error("cannot listen for other replicas", "err", err)
		return
	}
	defer heard.Unsubscribe()
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		if !k.Servers.Blind() { // else the others would leave parts to it
			_ = k.Servers.Conn.Publish(subject, []byte(k.Self)) // without a connection nobody hears it
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			_ = k.Servers.Conn.Publish(subject, []byte("gone "+k.Self))
			last, cancel := parting(hard)
			defer cancel()
			_ = k.Servers.Conn.FlushWithContext(last)
			return
		}
	}
}

// parting is how long the last requests of this replica may take: when hard ends, a moment more.
func parting(hard context.Context) (context.Context, context.CancelFunc) {
	const moment = 250 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.WithoutCancel(hard), servers.RequestTimeout)
	stop := context.AfterFunc(hard, func() {
		servers.Sleep(ctx, moment)
		cancel()
	})
	return ctx, func() { stop(); cancel() }
}
