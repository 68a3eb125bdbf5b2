package store

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"usher/webhookgate"
)

// What people do. Each action is an op that locks the lane's row, on whichever replica the person has asked.

// A funcOp is an op made of two functions, and an error for its caller.
type funcOp struct {
	s        *Store
	byPerson bool // a person has changed something: figures must show it, and the courier may have something to do
	needFn   func(*needs)
	decideFn func(*batch) error
	err      error // what decideFn returned
	reply    chan error
}

func (a *funcOp) weight() int64      { return 0 }
func (a *funcOp) need(n *needs) bool { a.needFn(n); return true }
func (a *funcOp) decide(b *batch)    { a.err = a.decideFn(b) }

func (a *funcOp) done(err error) {
	if a.byPerson {
		a.s.mu.Lock()
		a.s.figures.changeCount++
		a.s.mu.Unlock()
	}
	a.reply <- errors.Join(err, a.err)
	if a.byPerson && a.s.cfg.Courier != nil {
		a.s.cfg.Courier.Wake(nil)
	}
}

// actionPatience is how long a person waits for an action, which may have to wait for a delivery.
const actionPatience = 20 * time.Second

// act runs an action of a person.
func (s *Store) act(wants func(*needs), does func(*batch) error) error {
	ctx, cancel := context.WithTimeout(s.run, actionPatience)
	defer cancel()
	return s.perform(ctx, funcOp{s: s, byPerson: true, needFn: wants, decideFn: does})
}

// perform runs a funcOp. If its webhook is being delivered (ErrBusy), it waits for the outcome and tries again.
func (s *Store) perform(ctx context.Context, template funcOp) error {
	for busy := false; ; busy = true {
		o := template
		o.reply = make(chan error, 1)
		err := s.await(ctx, nil, &o, o.reply)
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

// find reads a webhook with its content. Of the result only the lane and the content never change.
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

// Redeliver sends a webhook again, ahead of the other webhooks that wait in its lane, and counts its tries anew. A webhook that
// waits is tried at once. If its tenant has a newer webhook, it would overwrite that one: this needs force.
func (s *Store) Redeliver(id int64, force bool) error {
	found, err := s.find(id)
	if err != nil {
		return err
	}
	if found.Rejected() { // that never changes, and it may have no lane
		return ErrRefused
	}
	return s.explain(s.act(func(n *needs) {
		n.lane(found.lane)
		n.webhooks[id] = true
	}, func(b *batch) error {
		l, h := b.lanes[found.lane], b.webhooks[id]
		if h == nil || l == nil {
			return ErrNotFound
		}
		b.endExpiredLease(l)
		rc := s.cfg.Receivers.For(h.Platform)
		switch {
		case h.State == Waiting && b.leased(l) && l.leasedID == id:
			return ErrBusy
		case h.State == Waiting:
			l.clearBackoff()
			b.reschedule(l)
			return nil
		case found.State == Waiting && (h.State == Delivered || h.State == Superseded):
			return nil // it was waiting when it was asked for, and was delivered meanwhile; once more could overwrite a newer one
		case h.State == Kept && rc == nil:
			return ErrKept
		case l.Tenant != "" && l.tail > id && !force:
			return &OverwriteError{id, l.tailEntry()}
		case h.State != Parked && s.wouldOverflow(b.bytesAdded+h.size):
			return webhookgate.ErrFull
		}
		before, idle := l.bytes, l.waiting == 0
		l.countOut(h)
		h.Status = Status{Attempts: h.Attempts, Again: b.time(), Forced: force && l.tail > id}
		l.countIn(h, Waiting, "", b.time())
		b.bytesAdded += l.bytes - before
		b.markChanged(h)
		l.held = nil
		switch {
		case l.tail == id:
			l.tailDigest = dedupDigest(h)
		case l.owner != nil && l.leasedID == l.tail:
			// The tail is being delivered, and this one comes after it. So a copy of the tail is a change again.
			l.tailDigest = nil
		}
		if idle {
			l.waitingSince = b.now
		}
		if !b.leased(l) {
			l.clearBackoff()
			l.release(b.now)
		}
		return nil
	}))
}

// tailEntry returns what the lane's row knows about its tail.
func (l *lane) tailEntry() Entry {
	return Entry{ID: l.tail, Webhook: l.tailID, Platform: l.Platform, Tenant: l.Tenant}
}

// explain completes an OverwriteError with the newer webhook, if that one is still stored.
func (s *Store) explain(err error) error {
	if older, ok := errors.AsType[*OverwriteError](err); ok {
		if latest, missing := s.find(older.Latest.ID); missing == nil {
			older.Latest = latest.Entry
		}
	}
	return err
}

// Discard discards a webhook that waits, is parked or was refused: nothing more is done with it, and it stays in the history.
func (s *Store) Discard(id int64) error {
	found, err := s.find(id)
	if err != nil {
		return err
	}
	return s.act(func(n *needs) {
		if found.lane != (Key{}) {
			n.lane(found.lane)
			n.nextExcept[found.lane] = id
		}
		n.webhooks[id] = true
	}, func(b *batch) error {
		l, h := b.lanes[found.lane], b.webhooks[id]
		if l != nil {
			b.endExpiredLease(l)
		}
		switch {
		case h == nil:
			return ErrNotFound
		case h.State.Finished():
			return ErrFinished
		case h.State == Refused:
			if l == nil {
				l = new(lane) // it has no lane: this one is not saved
			}
			b.move(l, h, Discarded, byHand)
			return nil
		case l == nil: // the lane's row is missing: the file is damaged
			return ErrNotFound
		case b.leased(l) && l.leasedID == id:
			return ErrBusy
		}
		first := h.State == Waiting && (b.next[l.key] == nil || b.next[l.key].position() > h.position())
		b.move(l, h, Discarded, byHand)
		l.held = nil // the receiver may have accepted it in a try whose answer got lost
		if first && !b.leased(l) {
			if next := b.next[l.key]; next != nil {
				l.waitingSince = next.AgeFrom().UnixMicro()
			}
			l.clearBackoff()
			l.release(b.now)
		}
		return nil
	})
}

const byHand = "discarded by hand"

// lanesOf returns the lanes of a tenant, on one platform or on all.
func (s *Store) lanesOf(platform *string, tenant string) (all []*lane, err error) {
	from, to := tenantRange(tenant)
	err = s.read(s.run, func(tx Tx) error {
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

// Forget drops what dedup compares with, of a tenant on one platform or on all: the tenant's next snapshot is delivered, even if
// it is a copy. It returns the number of platforms on which there was anything to forget.
func (s *Store) Forget(platform *string, tenant string) (count int, err error) {
	lanes, err := s.lanesOf(platform, tenant)
	if err != nil || len(lanes) == 0 {
		return 0, err
	}
	err = s.act(func(n *needs) {
		for _, l := range lanes {
			n.lane(l.key)
		}
	}, func(b *batch) error {
		count = 0
		for _, found := range lanes {
			if b.lanes[found.key].forgetCopies() {
				count++
			}
			b.statements = append(b.statements, func(tx Tx) { tx.Queue("seen_delete_lane", nil, found.key[:]) })
		}
		return nil
	})
	return count, err
}

// Erase deletes everything about a tenant: all its webhooks, its last snapshot, and what dedup remembers. It returns the number
// of webhooks.
func (s *Store) Erase(platform, tenant string) (count int, err error) {
	key := tenantKey(platform, tenant)
	err = s.act(func(n *needs) { n.lane(key) }, func(b *batch) error {
		count = 0
		l := b.lanes[key]
		if l == nil {
			return nil
		}
		if b.leased(l) {
			// perform calls us again until the lease has ended. Meanwhile its holder must not continue with the lane's next webhook.
			if until := b.now + micros(eraseHold); l.notBefore < until-micros(eraseHold/2) {
				l.notBefore, l.dirty = until, true
			}
			return ErrBusy
		}
		b.bytesAdded -= l.bytes
		l.forgetCopies()
		l.waiting, l.resent, l.parked, l.refused, l.bytes = 0, 0, 0, 0, 0
		l.tail, l.tailID = 0, ""
		l.clearBackoff()
		l.release(b.now)
		b.statements = append(b.statements, func(tx Tx) {
			tx.Queue("erase_content", nil, key[:])
			tx.Queue("erase_webhooks", func(r Row) error { count++; var seq int64; return r.Scan(&seq) }, key[:])
			tx.Queue("erase_snapshot", nil, key[:])
			tx.Queue("seen_delete_lane", nil, key[:])
		})
		return nil
	})
	s.cfg.Changed(tenant)
	return count, err
}

// eraseHold is how long no delivery of a lane begins while an erasure waits for the current one.
const eraseHold = 15 * time.Second

// pauses has the pauses that were read last.
type pauses struct {
	reading chan struct{} // one reader at a time: an older result must not replace a newer one
	list    atomic.Pointer[[]Pause]
}

// Pause holds deliveries back; see type Pause.
func (s *Store) Pause(p Pause) error {
	return s.setPause(p, true, func(b *batch) { b.statements = append(b.statements, p.insert(b.now)) })
}

// Resume lifts a pause, and says whether there was one.
func (s *Store) Resume(p Pause) (bool, error) {
	var known bool
	err := s.setPause(p, false, func(b *batch) {
		known = false
		b.statements = append(b.statements, func(tx Tx) {
			tx.Queue("pause_remove", func(r Row) error { known = true; var since int64; return r.Scan(&since) }, pauseKey(p))
		})
	})
	return known, err
}

// setPause writes a pause's row, and pauses or resumes the lane if the pause is for a tenant. Then it reads the pauses, so that the
// change is in force here when it returns.
func (s *Store) setPause(p Pause, paused bool, writeRow func(*batch)) error {
	key := tenantKey(p.Platform, p.Tenant)
	err := s.act(func(n *needs) {
		if p.Tenant != "" {
			n.lanes[key] = webhookgate.Lane{Platform: p.Platform, Tenant: p.Tenant}
		}
	}, func(b *batch) error {
		writeRow(b)
		if l := b.lanes[key]; l != nil && l.paused != paused {
			l.paused, l.dirty = paused, true
			b.reschedule(l)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.ReadPauses(s.run)
}

func pauseKey(p Pause) []byte {
	k := LaneOf(webhookgate.Lane{Platform: p.Platform + "\x00" + p.Receiver, Tenant: p.Tenant, Type: p.Receiver})
	return k[:]
}

// insert returns a function that queues the pause's row.
func (p Pause) insert(since int64) func(Tx) {
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

// ReadPauses reads the pauses. After an error the ones that were read before stay in force.
func (s *Store) ReadPauses(ctx context.Context) error {
	select {
	case s.pauses.reading <- struct{}{}:
		defer func() { <-s.pauses.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	var all []Pause
	err := s.read(ctx, func(tx Tx) error {
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

// refreshPauses reads the pauses again and again, so that a pause of another replica is in force here within a second. In a file,
// which no other process changes, it reads them once.
func (s *Store) refreshPauses() {
	tick := time.NewTicker(time.Second / 2)
	defer tick.Stop()
	for s.run.Err() == nil {
		ctx, cancel := context.WithTimeout(s.run, 5*time.Second)
		err := s.ReadPauses(ctx) // not logged: the writer notices an outage
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

// Paused returns the pauses that were read last.
func (s *Store) Paused() []Pause {
	if list := s.pauses.list.Load(); list != nil {
		return *list
	}
	return nil
}
