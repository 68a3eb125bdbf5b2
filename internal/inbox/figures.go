package inbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
)

// Figures count webhooks, of the whole inbox or of one receiver.
type Figures struct {
	Pending     int           // webhooks that wait or are being delivered
	Oldest      time.Duration // the age of the oldest of them
	Parked      int
	NotAccepted int // lanes whose first webhook's last try failed, and began since the receiver was last back

	// Only of a receiver.
	FailsForEverybody bool      // several tenants have begun to fail, and nothing was accepted since
	FailingSince      time.Time // when the first of these began to fail; zero: none did since something was accepted
	LastAccepted      time.Time // zero: nothing was, or not since a long time ago

	back int64 // when this process saw that the receiver was back after it had failed for everybody; zero: it did not
}

// at returns the figures with what the database says of all replicas, and of the time before a restart: each process
// may see fewer tenants fail than count as everybody, and another may have delivered something meanwhile. What was
// counted may be some seconds old.
func (f Figures) at(counted *Figures) Figures {
	if counted.LastAccepted.After(f.FailingSince) {
		f.FailsForEverybody = false
	}
	if counted.FailsForEverybody && !f.FailsForEverybody && !f.LastAccepted.After(counted.FailingSince) {
		f.FailsForEverybody, f.FailingSince = true, counted.FailingSince
	}
	if counted.LastAccepted.After(f.LastAccepted) {
		f.LastAccepted = counted.LastAccepted
	}
	return f
}

// Down says whether a receiver takes nothing. People and metrics go by this, and by the same rule as deliveries.
func (f Figures) Down() bool { return f.FailsForEverybody && f.NotAccepted > 0 }

// Stats are the figures of the inbox.
type Stats struct {
	Figures
	Receivers map[string]Figures // by name; "": webhooks that no receiver takes
	Invalid   int                // invalid webhooks that nobody has dealt with
	Used      int64              // bytes of webhooks that wait or are parked
	Limit     int64              // how many bytes may be used
	// NoRoom is for each receiver the last webhook for which there was no room, if there still is none.
	NoRoom     map[string]NoRoom
	ClockAhead time.Duration // by how much this machine's clock is ahead of the database's, as far as that is certain
	Tenants    int           // tenants that have a snapshot
	Unknown    int           // those of them whose features can't be read
	Renamed    []Renamed     // the first maxRenamed tenants whose id came again under another code
	Missed     Missed

	Reconciled time.Time // when 'usher reconcile' has last compared a whole list; zero: never
	// Unreadable are the tenants whose rows in the inbox this process has found to be damaged.
	Unreadable []TenantRef

	Paused []Pause   // nil: not known yet
	At     time.Time // when they were counted; zero: they never were, and mean nothing

	// Starting says that this process's gate has not asked yet whether there was an outage before it was started.
	Starting bool
	Old      bool // the database can't be read now, so they are the last ones that could be counted
}

// Renamed is a tenant whose id came later under another code of the same platform. Nobody knows whether the billing
// service has renamed it, so both have what their last snapshots say until somebody erases the old one.
type Renamed struct{ Platform, Old, New string }

const maxRenamed = int64(100)

// counted are figures, and how long they are good for.
type counted struct {
	Stats
	oldest  map[string]int64 // for each receiver, when its oldest webhook came
	changes int64            // how many changes of this process they have seen
	err     error            // why counting has failed since; nil: it has not
	until   time.Time        // until then nobody counts again, unless this process has changed something
	next    chan struct{}    // closed when others have taken their place
}

// good says whether nobody has to count again for somebody who has seen so many changes of this process.
func (c *counted) good(changes int64) bool {
	return time.Now().Before(c.until) && (c.err != nil || c.changes >= changes)
}

const (
	// After countPatience nobody waits for a count: a database that hangs must not keep each page waiting.
	countPatience = 2 * time.Second
	// After countLimit a count gives up.
	countLimit = 5 * time.Second
	// A count that took longer than maxCount counts as this: old figures must not stay long after a database has hung.
	maxCount = time.Second / 2
)

var errCounting = errors.New("counting takes long")

// publish has others take the place of the last figures. s.mu is locked.
func (s *Inbox) publish(c counted) {
	close(s.counted.next)
	c.next = make(chan struct{})
	s.counted = &c
}

// changed has a change of this process's show in the figures at once.
func (s *Inbox) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
}

// count returns figures that have seen all that this process has changed. With an error they are the last ones that
// could be counted.
func (s *Inbox) count(ctx context.Context) (*counted, error) {
	c, changes := s.lastCount()
	for !c.good(changes) {
		select {
		case s.countNow <- struct{}{}:
		default: // somebody has asked already
		}
		select {
		case <-c.next:
		case <-ctx.Done():
			return c, ctx.Err()
		}
		c, _ = s.lastCount()
	}
	return c, c.err
}

func (s *Inbox) lastCount() (c *counted, changes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counted, s.changes
}

// runCounter counts whenever somebody has found the figures too old.
func (s *Inbox) runCounter() {
	for {
		select {
		case <-s.countNow:
		case <-s.run.Done():
			return
		}
		last, changes := s.lastCount()
		if last.good(changes) {
			continue // who asked came while it was counted
		}
		began := time.Now()
		late := time.AfterFunc(countPatience, func() { s.countFailed(last, errCounting, countLimit) })
		ctx, cancel := context.WithTimeout(s.run, countLimit)
		if err := s.recount(ctx); err != nil {
			took := min(time.Since(began), countLimit) // the process may have stood still meanwhile
			s.countFailed(nil, err, max(time.Second, took))
		}
		late.Stop()
		cancel()
	}
}

// countFailed keeps the last figures, and nobody counts for some time. With last: only if they still are the last
// ones, and there are any.
func (s *Inbox) countFailed(last *counted, err error, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last == nil || last == s.counted && !last.At.IsZero() {
		c := *s.counted
		c.err, c.until = err, time.Now().Add(pause)
		s.publish(c)
	}
}

// Stats returns figures. Changes of this process show at once, changes of other replicas within a second. If there is
// much to count, both may be late by twenty times as long as counting takes, except that what a person has changed
// here shows at once.
func (s *Inbox) Stats() Stats {
	ctx, cancel := context.WithTimeout(s.run, 5*time.Second)
	defer cancel()
	return s.stats(ctx)
}

func (s *Inbox) stats(ctx context.Context) Stats {
	missed := s.missedInMemory()
	starting := s.cfg.GateUp != nil && !s.asked.Load() // before the count, which has what was found
	c, err := s.count(ctx)
	receivers := make(map[string]Figures)
	for _, rc := range s.cfg.Receivers.All() {
		receivers[rc.Name] = s.courier.figures(rc)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := c.Stats
	for name, f := range receivers {
		counted := st.Receivers[name]
		receivers[name] = f.at(&counted)
	}
	missed.From, missed.To = s.clock.dated(missed.From), s.clock.dated(missed.To)
	st.Missed = st.Missed.Add(missed)
	st.Unreadable = s.unreadable.names()
	st.ClockAhead = s.clockAhead()
	now := s.Now().UnixMicro()
	for name, f := range c.Receivers {
		age := ageOf(now, c.oldest[name])
		if _, known := receivers[name]; !known {
			name = "" // it is gone from the settings, or this replica delivers nothing
		}
		r := receivers[name]
		r.Pending += f.Pending
		r.Parked += f.Parked
		r.NotAccepted += f.NotAccepted
		if f.Pending > 0 {
			r.Oldest = max(r.Oldest, age)
		}
		receivers[name] = r
		st.Oldest = max(st.Oldest, r.Oldest)
	}
	st.Receivers = receivers
	st.Limit = s.cfg.MaxBytes
	st.Paused = slices.Clone(s.Paused())
	st.Old = err != nil
	st.Starting = starting
	for _, bytes := range s.room.used {
		st.Used += bytes
	}
	st.NoRoom = make(map[string]NoRoom)
	for name, n := range s.room.noRoom {
		now, ofLane := *n, int64(0)
		if n.Share == TenantShare {
			ofLane = n.Held
		}
		if s.room.lack(&now, s.cfg, nil, ofLane) {
			st.NoRoom[name] = now
		}
	}
	return st
}

func ageOf(now, since int64) time.Duration {
	if since >= clock.Never || since > now {
		return 0
	}
	return time.Duration(now-since) * time.Microsecond
}

// recount counts.
func (s *Inbox) recount(ctx context.Context) error {
	began := time.Now()
	s.mu.Lock()
	before, changes, noRoom := maps.Clone(s.room.everAdded), s.changes, maps.Clone(s.room.noRoom)
	s.mu.Unlock()
	st := Stats{Receivers: make(map[string]Figures)}
	oldest, used := make(map[string]int64), make(map[string]int64) // of each receiver
	err := s.read(ctx, func(tx engine.Tx) error {
		for _, rc := range s.cfg.Receivers.All() {
			back := s.courier.figures(rc).back
			tx.Queue("failing", func(r engine.Row) error {
				var lanes, since, accepted, sinceBack int64
				err := r.Scan(&lanes, &since, &accepted, &sinceBack)
				f := Figures{FailsForEverybody: lanes >= everybodyFrom, NotAccepted: int(sinceBack), back: back}
				if lanes > 0 {
					f.FailingSince = clock.Moment(since)
				}
				if accepted > 0 {
					f.LastAccepted = clock.Moment(accepted)
				}
				st.Receivers[rc.Name] = f
				return err
			}, rc.Name, s.Now().Add(maxJump).UnixMicro(), back, s.Now().UnixMicro())
		}
		tx.Queue("figures", func(r engine.Row) error {
			var name string
			var waiting, since, parked, bytes, failing int64
			if err := r.Scan(&name, &waiting, &since, &parked, &bytes, &failing); err != nil {
				return err
			}
			f := st.Receivers[name]
			if f.Pending, f.Parked = int(waiting), int(parked); f.back == 0 {
				f.NotAccepted = int(failing)
			}
			st.Receivers[name], oldest[name], used[name] = f, since, bytes
			st.Pending += f.Pending
			st.Parked += f.Parked
			st.NotAccepted += f.NotAccepted
			return nil
		})
		for name, n := range noRoom {
			now := *n
			if noRoom[name] = &now; n.Share == TenantShare {
				tx.Queue("lane_bytes", func(r engine.Row) error { return r.Scan(&now.Held) }, n.Tenant, n.Platform, n.Type)
			}
		}
		tx.Queue("invalid_count", func(r engine.Row) error { return r.Scan(&st.Invalid) })
		tx.Queue("tenant_count", func(r engine.Row) error { return r.Scan(&st.Tenants, &st.Unknown) })
		tx.Queue("tenants_renamed", func(r engine.Row) error {
			var one Renamed
			err := r.Scan(&one.Platform, &one.Old, &one.New)
			st.Renamed = append(st.Renamed, one)
			return err
		}, maxRenamed)
		queueMissed(tx, "missed", func(m Missed) { st.Missed = st.Missed.Add(m) })
		_, completed, err := lastRun(tx, "run")
		st.Reconciled = momentOrZero(completed)
		return err
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, bytes := range s.room.everAdded {
		used[name] += bytes - before[name]
	}
	for name, n := range noRoom {
		now := s.room.noRoom[name]
		if now != nil && now.Share == n.Share && now.LaneName == n.LaneName && now.Size == n.Size {
			s.room.noRoom[name] = n
		}
	}
	s.room.used = used
	s.room.counts++
	st.At = time.Now()
	good := max(time.Second, 20*min(st.At.Sub(began), maxCount))
	s.publish(counted{Stats: st, oldest: oldest, changes: changes, until: st.At.Add(good)})
	return nil
}

// HeldUp is the first webhook of a lane, if its last try failed: it holds up the webhooks behind it.
type HeldUp struct {
	*lane.Webhook
	Kind   string    // the lane's event type, if the lane has no tenant
	Down   bool      // the receiver fails for everybody, and the webhook is not to blame
	Next   time.Time // when the next try is due; if the receiver is back earlier, it comes earlier
	Behind int       // how many webhooks wait behind it
}

// Answer is the receiver's last answer, in words.
func (h *HeldUp) Answer() string { return h.Tried[len(h.Tried)-1].Words() }

// HeldUp returns the lanes that are held up, the one that waits longest first. In an outage they are those that were
// last known.
func (s *Inbox) HeldUp() []HeldUp {
	s.mu.Lock()
	all, old := s.heldUp, s.counted.err != nil && time.Now().Before(s.counted.until)
	s.mu.Unlock()
	if old { // Stats has just found out
		return slices.Clone(all)
	}
	ctx, cancel := context.WithTimeout(s.run, countPatience)
	defer cancel()
	now, err := s.readHeldUp(ctx)
	if err != nil {
		return slices.Clone(all) // Health reports the outage
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heldUp = now
	return slices.Clone(now)
}

func (s *Inbox) readHeldUp(ctx context.Context) (all []HeldUp, err error) {
	err = s.read(ctx, func(tx engine.Tx) error {
		var order []*lane.Lane
		heads := make(map[webhookgate.LaneName]int64)
		tx.Queue("lanes_held_up", func(r engine.Row) error {
			l, err := scanLane(r)
			if err == nil {
				heads[l.LaneName], order = 0, append(order, l)
			}
			return err
		}, int64(maxHeldUp))
		if err := tx.Send(); err != nil || len(order) == 0 {
			return err
		}
		first := make(map[webhookgate.LaneName]*lane.Webhook)
		s.queueNext(tx, heads, -1, func(h *lane.Webhook) { first[h.LaneName] = h })
		if err := tx.Send(); err != nil {
			return err
		}
		for _, l := range order {
			if l.Owner != nil { // it is being tried, and due is the end of the lease
				l.Due = l.LastTry
			}
			h := first[l.LaneName]
			if h == nil || len(h.Tried) == 0 || l.LastTry < s.back(l.ReceiverName) && l.NotBefore <= s.Now().UnixMicro() {
				continue
			}
			held := HeldUp{
				Webhook: h,
				Kind:    l.Type,
				Down:    s.isDown(l.ReceiverName, h.Tried[len(h.Tried)-1]),
				Behind:  int(l.Waiting) - 1,
			}
			if l.Due < clock.Never { // else it is paused
				held.Next = clock.Moment(l.Due)
			}
			all = append(all, held)
		}
		return nil
	})
	return all, err
}

// back is when this process saw that a receiver was back; lanes that were not tried since are due at once.
func (s *Inbox) back(name string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counted.Receivers[name].back
}

// isDown says whether a receiver fails for everybody. A replica that delivers nothing cannot know, and goes by the
// last try alone.
func (s *Inbox) isDown(name string, last lane.Try) bool {
	if s.courier == nil {
		return lane.IsDown(last.Status)
	}
	for _, rc := range s.cfg.Receivers.All() {
		if rc.Name == name {
			s.mu.Lock()
			counted := s.counted.Receivers[name]
			s.mu.Unlock()
			return s.courier.figures(rc).at(&counted).FailsForEverybody
		}
	}
	return false
}

// maxHeldUp is how many lanes HeldUp returns.
const maxHeldUp = 1000
