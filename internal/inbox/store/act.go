package store

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"usher/webhookgate"
)

// What people do. Each action is a transaction that locks the lane's row, on whichever replica it was asked.

// act is an op that one person waits for.
type act struct {
	s     *Store
	wakes bool // the courier may have something to do after it
	wants func(*needs)
	does  func(*work) error
	err   error
	reply chan error
}

func (a *act) weight() int64      { return 0 }
func (a *act) need(n *needs) bool { a.wants(n); return true }
func (a *act) decide(w *work)     { a.err = a.does(w) }

func (a *act) done(err error) {
	if a.wakes {
		a.s.mu.Lock()
		a.s.cache.acted = a.s.cache.changes
		a.s.mu.Unlock()
	}
	a.reply <- errors.Join(err, a.err)
	if a.wakes && a.s.cfg.Courier != nil {
		a.s.cfg.Courier.Look()
	}
}

// actionPatience is how long a person waits for an action, which may wait for a delivery.
const actionPatience = 20 * time.Second

// do runs an action.
func (s *Store) do(wants func(*needs), does func(*work) error) error {
	ctx, cancel := context.WithTimeout(s.run, actionPatience)
	defer cancel()
	return s.perform(ctx, act{s: s, wakes: true, wants: wants, does: does})
}

// perform runs an action. If it finds that a webhook is being delivered, it waits for the outcome.
func (s *Store) perform(ctx context.Context, one act) error {
	for busy := false; ; busy = true {
		a := one
		a.reply = make(chan error, 1)
		err := s.await(ctx, &a, a.reply)
		if busy && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return ErrBusy
		}
		if !errors.Is(err, ErrBusy) {
			return err
		}
		select {
		case <-ctx.Done():
			return ErrBusy
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// find reads the row of a webhook. Its lane never changes.
func (s *Store) find(id int64) (w *Webhook, err error) {
	err = s.read(s.run, func(tx Tx) error {
		tx.Queue("webhooks", func(r Row) (err error) { w, err = s.scanWebhook(r, true); return err }, []int64{id})
		return tx.Send()
	})
	if err == nil && w == nil {
		err = ErrNotFound
	}
	return w, err
}

// Redeliver sends a webhook again, ahead of what its lane has waiting, with a fresh count of tries; one that waits is tried
// now. One that is not the latest of its lane would undo what came after it, and needs force.
func (s *Store) Redeliver(id int64, force bool) error {
	found, err := s.find(id)
	if err != nil {
		return err
	}
	return s.explain(s.do(func(n *needs) {
		n.lane(found.lane)
		n.rows[id] = true
	}, func(w *work) error {
		l, h := w.lanes[found.lane], w.rows[id]
		if h == nil || l == nil {
			return cmpNotFound(h, found)
		}
		w.reclaim(l)
		rc := s.cfg.Receivers.For(h.Platform)
		switch {
		case h.Rejected():
			return ErrRefused
		case h.State == Waiting && w.owned(l) && l.head == id:
			return ErrBusy
		case h.State == Waiting:
			l.fresh()
			if !w.owned(l) {
				l.rest(w.now)
			}
			return nil
		case found.State == Waiting && (h.State == Delivered || h.State == Superseded):
			return nil // it was to be tried now, and that is done: once more would undo what came after it
		case h.State == Kept && rc == nil:
			return ErrKept
		case l.tail > id && !force:
			return &OverwriteError{id, l.last()}
		case h.State != Parked && s.full(h.size):
			return webhookgate.ErrFull
		}
		l.leave(h)
		before := l.bytes
		if h.State == Parked {
			before += h.size
		}
		idle := l.waiting == 0
		h.Status = Status{Attempts: h.Attempts, Again: w.time(), Forced: force && l.tail > id}
		l.enter(h, Waiting, "", w.time())
		w.bytes += l.bytes - before
		w.change(h)
		l.held = nil
		switch {
		case l.tail == id:
			l.tailDigest = digestOf(h)
		case l.owner != nil && l.head == l.tail: // the tail is being delivered, and this one comes after it
			l.tailDigest = nil
		}
		if idle {
			l.since = w.now
		}
		if !w.owned(l) {
			l.fresh()
			l.rest(w.now)
		}
		return nil
	}))
}

// last is what a lane knows about its last webhook.
func (l *lane) last() Entry {
	return Entry{ID: l.tail, Webhook: l.tailID, Platform: l.Platform, Tenant: l.Tenant}
}

// explain adds to an OverwriteError what is known about the newer webhook, unless the history has dropped it.
func (s *Store) explain(err error) error {
	if older, ok := errors.AsType[*OverwriteError](err); ok {
		if latest, gone := s.find(older.Latest.ID); gone == nil {
			older.Latest = latest.Entry
		}
	}
	return err
}

func cmpNotFound(h, found *Webhook) error {
	if h == nil || found.lane == (Key{}) && found.State != Refused {
		return ErrNotFound
	}
	return ErrRefused // it belongs to no lane
}

// Discard sets a webhook aside that waits, is parked or was refused: nothing more is done with it, and it stays to be looked at.
func (s *Store) Discard(id int64) error {
	found, err := s.find(id)
	if err != nil {
		return err
	}
	return s.do(func(n *needs) {
		if found.lane != (Key{}) {
			n.lane(found.lane)
			n.next[found.lane] = id
		}
		n.rows[id] = true
	}, func(w *work) error {
		l, h := w.lanes[found.lane], w.rows[id]
		if l != nil {
			w.reclaim(l)
		}
		switch {
		case h == nil:
			return ErrNotFound
		case h.State.Finished():
			return ErrFinished
		case h.State == Refused:
			if l == nil {
				l = new(lane) // it belongs to none
			}
			w.move(l, h, Discarded, byHand)
			return nil
		case l == nil: // a damaged file
			return ErrNotFound
		case w.owned(l) && l.head == id:
			return ErrBusy
		}
		first := h.State == Waiting && (w.next[l.key] == nil || w.next[l.key].order() > h.order())
		w.move(l, h, Discarded, byHand)
		l.held = nil // the receiver may have got it, though it did not say so
		if first && !w.owned(l) {
			if next := w.next[l.key]; next != nil {
				l.since = next.since().UnixMicro()
			}
			l.fresh()
			l.rest(w.now)
		}
		return nil
	})
}

const byHand = "discarded by hand"

// lanesOf returns the lanes of a tenant, on one platform or on all.
func (s *Store) lanesOf(platform *string, tenant string) (all []*lane, err error) {
	from, to := tenantRange(tenant)
	err = s.read(s.run, func(tx Tx) error {
		all = nil
		tx.Queue("lanes_between", func(r Row) error {
			l, err := s.scanLane(r)
			if err == nil && l.Tenant == tenant && (platform == nil || l.Platform == *platform) {
				all = append(all, l)
			}
			return err
		}, from, to)
		return tx.Send()
	})
	return all, err
}

// Forget drops what a copy is compared with, of a tenant's lanes on one platform or on all, and says of how many: the
// tenant's next snapshot is delivered whatever it is.
func (s *Store) Forget(platform *string, tenant string) (count int, err error) {
	lanes, err := s.lanesOf(platform, tenant)
	if err != nil || len(lanes) == 0 {
		return 0, err
	}
	err = s.do(func(n *needs) {
		for _, l := range lanes {
			n.lane(l.key)
		}
	}, func(w *work) error {
		count = 0
		for _, found := range lanes {
			if w.lanes[found.key].forget() {
				count++
			}
			w.extra = append(w.extra, func(tx Tx) { tx.Queue("seen_forget", nil, found.key[:]) })
		}
		return nil
	})
	return count, err
}

// Erase deletes all that is kept of a tenant: what waits, is parked or was refused, the history, the last snapshot, and
// what dedup remembers. It says how many webhooks that were.
func (s *Store) Erase(platform, tenant string) (count int, err error) {
	key := tenantKey(platform, tenant)
	err = s.do(func(n *needs) { n.lane(key) }, func(w *work) error {
		count = 0
		l := w.lanes[key]
		if l == nil {
			return nil
		}
		if w.owned(l) { // its holder shall not go on with the next one
			if until := w.now + int64(erasing/time.Microsecond); l.wish < until-int64(erasing/2/time.Microsecond) {
				l.wish, l.changed = until, true
			}
			return ErrBusy
		}
		w.bytes -= l.bytes
		l.forget()
		l.waiting, l.again, l.parked, l.refused, l.bytes = 0, 0, 0, 0, 0
		l.tail, l.tailID = 0, ""
		l.fresh()
		l.rest(w.now)
		w.extra = append(w.extra, func(tx Tx) {
			tx.Queue("erase_content", nil, key[:])
			tx.Queue("erase_webhooks", func(r Row) error { count++; var seq int64; return r.Scan(&seq) }, key[:])
			tx.Queue("erase_snapshot", nil, key[:])
			tx.Queue("seen_forget", nil, key[:])
		})
		return nil
	})
	s.cfg.Changed(tenant)
	return count, err
}

// erasing is how long a lane stands still for an erasure that waits for a delivery.
const erasing = 15 * time.Second

// pauses are what is held back by hand, as last read.
type pauses struct {
	reading chan struct{} // one at a time: what was read later must not be replaced by what was read before
	list    atomic.Pointer[[]Pause]
}

// Pause holds deliveries back; see Pause.
func (s *Store) Pause(p Pause) error {
	return s.setPause(p, func(w *work, l *lane) {
		w.extra = append(w.extra, p.add(w.now))
		if l != nil && !l.paused {
			l.paused, l.changed = true, true
			if !w.owned(l) {
				l.rest(w.now)
			}
		}
	})
}

// Resume lifts a pause, and says whether there was one.
func (s *Store) Resume(p Pause) (bool, error) {
	var known bool
	err := s.setPause(p, func(w *work, l *lane) {
		known = false
		w.extra = append(w.extra, func(tx Tx) {
			tx.Queue("pause_remove", func(r Row) error { known = true; var since int64; return r.Scan(&since) }, pauseKey(p))
		})
		if l != nil && l.paused {
			l.paused, l.changed = false, true
			if !w.owned(l) {
				l.rest(w.now)
			}
		}
	})
	return known, err
}

func (s *Store) setPause(p Pause, change func(*work, *lane)) error {
	key := tenantKey(p.Platform, p.Tenant)
	err := s.do(func(n *needs) {
		if p.Tenant != "" {
			n.lanes[key] = webhookgate.Lane{Platform: p.Platform, Tenant: p.Tenant}
		}
	}, func(w *work) error { change(w, w.lanes[key]); return nil })
	if err != nil {
		return err
	}
	return s.ReadPauses(s.run)
}

func pauseKey(p Pause) []byte {
	k := LaneOf(webhookgate.Lane{Platform: p.Platform + "\x00" + p.Receiver, Tenant: p.Tenant, Type: p.Receiver})
	return k[:]
}

// add returns what stores the pause.
func (p Pause) add(since int64) func(Tx) {
	return func(tx Tx) {
		tx.Queue("pause_add", nil, []byte(p.Receiver), []byte(p.Platform), []byte(p.Tenant), pauseKey(p), since)
	}
}

func scanPause(r Row) (Pause, error) {
	var receiver, platform, tenant []byte
	var since int64
	err := r.Scan(&receiver, &platform, &tenant, &since)
	return Pause{string(receiver), string(platform), string(tenant), moment(since)}, err
}

// ReadPauses reads what is held back by hand. After an error what was read before counts.
func (s *Store) ReadPauses(ctx context.Context) error {
	select {
	case s.pauses.reading <- struct{}{}:
		defer func() { <-s.pauses.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	var all []Pause
	err := s.read(ctx, func(tx Tx) error {
		all = nil
		tx.Queue("pauses", func(r Row) error {
			p, err := scanPause(r)
			all = append(all, p)
			return err
		})
		return tx.Send()
	})
	if err == nil {
		s.pauses.list.Store(&all)
	}
	return err
}

// followPauses reads what others pause: it counts here within a second. Only this process changes a file.
func (s *Store) followPauses() {
	tick := time.NewTicker(time.Second / 2)
	defer tick.Stop()
	for s.run.Err() == nil {
		ctx, cancel := context.WithTimeout(s.run, 5*time.Second)
		err := s.ReadPauses(ctx) // an outage shows when something is written
		cancel()
		if err == nil && !s.cfg.Engine.Shared() {
			return
		}
		select {
		case <-tick.C:
		case <-s.run.Done():
		}
	}
}

// Paused returns what is held back by hand, as last read.
func (s *Store) Paused() []Pause {
	if list := s.pauses.list.Load(); list != nil {
		return *list
	}
	return nil
}
