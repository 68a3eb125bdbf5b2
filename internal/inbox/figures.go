package inbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
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
	NotAccepted int // lanes whose first webhook's last try failed, and that are not due again

	// Only of a receiver.
	FailsForEverybody bool      // it is to blame, and not the webhooks: several tenants have begun to fail since it accepted something
	FailingSince      time.Time // when the first of these began to fail; zero: none did
	LastAccepted      time.Time // about; zero: nothing was
	Used              int64     // bytes of webhooks that wait or are parked
}

// everybodyFrom is how many tenants are "everybody".
const everybodyFrom = 3

// Down says whether a receiver takes nothing.
func (f Figures) Down() bool { return f.FailsForEverybody }

// Stats are the figures of the inbox.
type Stats struct {
	Figures
	Receivers  map[string]Figures // by name; "": webhooks that no receiver takes
	Invalid    int                // invalid webhooks that nobody has dealt with
	Used       int64              // bytes of webhooks that wait or are parked
	Limit      int64              // how many bytes may be used, for each receiver
	NoRoom     map[string]int64   // by receiver: the size of the last webhook for which there was no room, if there still is none
	ClockAhead time.Duration      // by how much this machine's clock is ahead of the database's, as far as that is certain
	Tenants    int                // tenants that have a snapshot
	Unknown    int                // those of them whose features can't be read
	Renamed    []Renamed          // the first maxRenamed tenants whose id came again under another code
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

// figures are the last ones, for all who ask.
type figures struct {
	*pauses
	*missing
	countNow chan struct{} // to runCounter: somebody has found the figures too old

	mu      sync.Mutex // guards what follows
	counted *counted
	changes int64 // how often this process has changed something that must show in them at once
	room    room
	heldUp  []HeldUp // the last that usher has read
}

func newFigures(p *pauses) *figures {
	return &figures{
		pauses: p, missing: new(missing), countNow: make(chan struct{}, 1),
		counted: &counted{next: make(chan struct{})},
		room:    room{everAdded: make(map[string]int64), refused: make(map[string]int64)},
	}
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
func (s *figures) publish(c counted) {
	close(s.counted.next)
	c.next = make(chan struct{})
	s.counted = &c
}

// changed has a change of this process's show in the figures at once.
func (s *figures) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
}

// count returns figures that have seen all that this process has changed. With an error they are the last ones that
// could be counted.
func (s *figures) count(ctx context.Context) (*counted, error) {
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

func (s *figures) lastCount() (c *counted, changes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counted, s.changes
}

// runCounter counts whenever somebody has found the figures too old.
func (s *figures) runCounter() {
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
func (s *figures) countFailed(last *counted, err error, pause time.Duration) {
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
func (s *figures) Stats() Stats {
	ctx, cancel := context.WithTimeout(s.run, 5*time.Second)
	defer cancel()
	return s.stats(ctx)
}

func (s *figures) stats(ctx context.Context) Stats {
	inMemory := s.missedInMemory()
	starting := s.cfg.GateUp != nil && !s.asked.Load() // before the count, which has what was found
	c, err := s.count(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := c.Stats
	inMemory.From, inMemory.To = s.clock.dated(inMemory.From), s.clock.dated(inMemory.To)
	st.Missed = st.Missed.Add(inMemory)
	st.Unreadable = s.unreadable.names()
	st.ClockAhead = s.clockAhead()
	receivers := make(map[string]Figures)
	for _, rc := range s.cfg.Receivers.All() {
		receivers[rc.Name] = Figures{}
	}
	now := s.Now().UnixMicro()
	for name, f := range c.Receivers {
		if f.Pending > 0 {
			f.Oldest = ageOf(now, c.oldest[name])
		}
		if _, known := receivers[name]; !known {
			name = "" // it is gone from the settings, or this replica delivers nothing
		}
		r := receivers[name]
		f.Pending, f.Parked, f.NotAccepted = f.Pending+r.Pending, f.Parked+r.Parked, f.NotAccepted+r.NotAccepted
		f.Oldest = max(f.Oldest, r.Oldest)
		receivers[name] = f
		st.Oldest = max(st.Oldest, f.Oldest)
	}
	st.Limit = s.cfg.MaxBytes
	st.Paused = slices.Clone(s.Paused())
	st.Old = err != nil
	st.Starting = starting
	st.NoRoom = make(map[string]int64)
	for name, bytes := range s.room.used {
		st.Used += bytes
		if _, known := receivers[name]; !known {
			name = ""
		}
		f := receivers[name]
		f.Used += bytes
		receivers[name] = f
	}
	st.Receivers = receivers
	for name, size := range s.room.refused {
		if s.room.used[name]+size > s.cfg.MaxBytes {
			st.NoRoom[name] = size
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
func (s *figures) recount(ctx context.Context) error {
	began := time.Now()
	s.mu.Lock()
	before, changes := maps.Clone(s.room.everAdded), s.changes
	s.mu.Unlock()
	st := Stats{Receivers: make(map[string]Figures)}
	oldest, used := make(map[string]int64), make(map[string]int64) // of each receiver
	err := s.read(ctx, func(tx engine.Tx) error {
		now := s.Now()
		tx.Queue("figures", func(r engine.Row) error {
			var name string
			var f Figures
			var since, bytes int64
			err := r.Scan(&name, &f.Pending, &since, &f.Parked, &bytes, &f.NotAccepted)
			st.Receivers[name], oldest[name], used[name] = f, since, bytes
			st.Pending += f.Pending
			st.Parked += f.Parked
			st.NotAccepted += f.NotAccepted
			return err
		}, now.UnixMicro())
		tx.Queue("failing", func(r engine.Row) error {
			var name string
			var since int64
			var failing int
			err := r.Scan(&name, &failing, &since)
			f := st.Receivers[name]
			f.FailsForEverybody, f.FailingSince = failing >= everybodyFrom, clock.Moment(since)
			st.Receivers[name] = f
			return err
		}, now.Add(maxJump).UnixMicro())
		queueNumbers(tx, "receivers", func(name string, at int64) {
			f := st.Receivers[name]
			f.LastAccepted = clock.Moment(at)
			st.Receivers[name] = f
		})
		tx.Queue("invalid_count", func(r engine.Row) error { return r.Scan(&st.Invalid) })
		tx.Queue("tenant_count", func(r engine.Row) error { return r.Scan(&st.Tenants, &st.Unknown) })
		tx.Queue("tenants_renamed", func(r engine.Row) error {
			var one Renamed
			err := r.Scan(&one.Platform, &one.Old, &one.New)
			st.Renamed = append(st.Renamed, one)
			return err
		}, maxRenamed)
		tx.Queue("missed", func(r engine.Row) (err error) { st.Missed, _, err = scanMissed(r); return err })
		tx.Queue("compared", func(r engine.Row) error {
			var at int64
			err := r.Scan(new(int64), new(int64), &at)
			st.Reconciled = momentOrZero(at)
			return err
		})
		return tx.Send()
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, bytes := range s.room.everAdded {
		used[name] += bytes - before[name]
	}
	s.room.used, s.room.counts = used, s.room.counts+1
	st.At = time.Now()
	good := max(time.Second, 20*min(st.At.Sub(began), maxCount))
	s.publish(counted{Stats: st, oldest: oldest, changes: changes, until: st.At.Add(good)})
	return nil
}

// room is how much of the inbox is used. The bytes are those of the last count, with what this process has added and
// removed since. What it changes during a count may be in the sum or not. The limit must hold, so used may be too
// large for a while, but not too small.
type room struct {
	used      map[string]int64 // of each receiver; nil: nobody has counted yet
	everAdded map[string]int64 // all bytes that this process has added; what it removed is not subtracted
	counts    int64            // how often was counted
	refused   map[string]int64 // for each receiver, the size of the last webhook for which there was no room
}

// roomUsed returns how many bytes each receiver uses; nil: the transaction has to count that.
func (s *figures) roomUsed() (used map[string]int64, counts int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.room.used), s.room.counts
}

// noteRefused notes that there was no room for a webhook.
func (s *figures) noteRefused(full *lane.NoRoom) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room.refused[full.Receiver] = full.Size
}

// countChange has a committed transaction show in the figures, before callers get their answers. counts is how often
// had been counted when it began; first is the room that was used, if it has counted that itself.
func (s *figures) countChange(person bool, counts int64, first, added map[string]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.counted; person || f.Pending+f.Parked+f.Tenants <= s.cfg.Limits.AlwaysCounted {
		s.changes++
	}
	if s.room.used == nil {
		s.room.used, s.room.counts = first, 1
		counts = 1
	}
	for name, bytes := range added {
		s.room.everAdded[name] += max(0, bytes)
		if s.room.counts == counts || bytes > 0 { // else a count may have seen already that there are less
			s.room.used[name] += bytes
		}
	}
}

// HeldUp is the first webhook of a lane, if its last try failed: it holds up the webhooks behind it.
type HeldUp struct {
	*lane.Webhook
	Kind   string    // the lane's event type, if the lane has no tenant
	Down   bool      // the receiver fails for everybody, and the webhook is not to blame
	Next   time.Time // when the next try is due; if the receiver is back earlier, it comes earlier. Zero: it is paused
	Behind int       // how many webhooks wait behind it
}

// Answer is the receiver's last answer, in words.
func (h *HeldUp) Answer() string { return h.Tried[len(h.Tried)-1].Words() }

// HeldUp returns the lanes that are held up, the one that waits longest first. In an outage they are those that were
// last known.
func (s *figures) HeldUp() []HeldUp {
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

func (s *figures) readHeldUp(ctx context.Context) (all []HeldUp, err error) {
	counted, _ := s.lastCount()
	err = s.read(ctx, func(tx engine.Tx) error {
		lanes := make(map[webhookgate.LaneName]*lane.Lane)
		var order []webhookgate.LaneName
		tx.Queue("lanes_held_up", func(r engine.Row) error {
			l, err := scanLane(r)
			if err == nil {
				lanes[l.LaneName], order = l, append(order, l.LaneName)
			}
			return err
		}, int64(maxHeldUp), s.Now().UnixMicro())
		if err := tx.Send(); err != nil || len(order) == 0 {
			return err
		}
		first := make(map[webhookgate.LaneName]*lane.Webhook)
		queueFirst(tx, order, func(webhookgate.LaneName) int64 { return 0 }, -1, func(w *lane.Webhook, err error) {
			if err == nil {
				first[w.LaneName] = w
			}
		})
		if err := tx.Send(); err != nil {
			return err
		}
		for _, name := range order {
			l, w := lanes[name], first[name]
			if w == nil || len(w.Tried) == 0 {
				continue
			}
			held := HeldUp{Webhook: w, Kind: l.Type, Down: counted.Receivers[l.ReceiverName].FailsForEverybody, Behind: int(l.Waiting) - 1}
			if !s.lanePaused(l.Platform, l.Tenant, l.ReceiverName) {
				held.Next = clock.Moment(l.Due)
			}
			all = append(all, held)
		}
		return nil
	})
	return all, err
}

// maxHeldUp is how many lanes HeldUp returns.
const maxHeldUp = 1000
