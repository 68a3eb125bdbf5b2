package inbox

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
)

// health is the state of the database, as the writer sees it.
type health struct {
	mu           sync.Mutex
	err          error     // why the last transaction failed; nil: it was committed
	failingSince time.Time // when the outage began: a first transaction that failed; zero: there is none
	txBegan      time.Time // when the current transaction began; zero: none runs
	everWritten  bool      // a transaction was committed since the start
	openedAt     time.Time // when the first of them began, or the first after the last outage
	broken       bool      // there was a BrokenError
}

// outagePatience is how long a database may be away before usher says that it is not ready.
const outagePatience = 5 * time.Second

// Health says whether webhooks can be taken in.
type Health struct {
	Err     error     // why none can be; nil: they can
	Since   time.Time // since when
	Unready bool      // it lasts for longer than usher waits before it says that it is not ready
}

// Health says whether webhooks can be taken in. It asks nobody, so that it also answers while the database hangs.
func (s *Inbox) Health() Health {
	if full := s.engine.Full(); full != nil && !s.cfg.ReadOnly {
		return Health{full, full.Since, time.Since(full.Since) >= outagePatience}
	}
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.txBegan.IsZero() && time.Since(h.txBegan) >= outagePatience && !h.broken:
		return Health{errors.New("the inbox's database does not answer"), h.txBegan, true}
	case h.err == nil && h.everWritten:
		return Health{}
	case h.err == nil:
		return Health{errNotOpened, s.clock.start, true}
	}
	return Health{h.err, h.failingSince, h.broken || !h.everWritten || time.Since(h.failingSince) >= outagePatience}
}

var errNotOpened = errors.New("the inbox has not been opened yet")

// Err says why nothing can be taken in. It returns nil also during the first seconds of an outage.
func (s *Inbox) Err() error {
	if h := s.Health(); h.Unready {
		return h.Err
	}
	return nil
}

// Ready says whether the database could be read and written at least once.
func (s *Inbox) Ready() bool {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	return s.health.everWritten
}

// write runs a transaction of the writer; see Engine.Write. Everything else waits for it, so health knows when it
// began, and how it ended.
func (s *Inbox) write(fn func(engine.Tx) error) error {
	s.idle = false
	began := time.Now()
	s.health.begin(began)
	err := s.engine.Write(fn)
	s.health.end(s.cfg.Log, began, err, s.engine.Full() != nil)
	return err
}

func (h *health) begin(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.txBegan = at
}

// lastErr is why the last transaction failed; nil: it was committed.
func (h *health) lastErr() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// unproven says whether the next transaction must write something: only that proves that the database can be written,
// after the start or an outage.
func (h *health) unproven() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err != nil || !h.everWritten
}

// end keeps the result of a transaction. It logs the begin and the end of an outage, not each failure. On a disk that
// is full outcomes can still be written, which is not the end.
func (h *health) end(log *slog.Logger, began time.Time, err error, full bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.txBegan = time.Time{}
	var refused *engine.StatementError
	var broken *engine.BrokenError
	switch {
	case errors.As(err, &refused):
		return // this neither begins an outage, nor proves that one has ended
	case err == nil && (full || h.failingSince.IsZero()):
	case err == nil:
		log.Info("the inbox can be written again", "after", time.Since(h.failingSince).Round(time.Millisecond))
		h.failingSince = time.Time{}
	case errors.As(err, &broken) && !h.broken:
		h.broken, h.failingSince = true, began
		log.Error("the inbox is broken: usher stores nothing more in it until you restart usher", "err", err)
	case h.failingSince.IsZero():
		h.failingSince = began
		log.Error("cannot write to the inbox, will retry", "err", err)
	}
	if err == nil && (h.err != nil || !h.everWritten) {
		h.openedAt = began
	}
	h.err = err
	h.everWritten = h.everWritten || err == nil
}

// Opened is when this process opened the inbox, or reached its database again after an outage, by the database's
// clock. What the inbox says of the time before may come from an older copy of it, which somebody has restored.
func (s *Inbox) Opened() time.Time {
	s.health.mu.Lock()
	at := s.health.openedAt
	s.health.mu.Unlock()
	return clock.Moment(s.clock.at(at))
}

// maxJump is by how much the clocks of replicas and database may differ, or jump, without anything following from it.
const maxJump = time.Second

// clockOffset compares the database's clock with our own. When a database fails over to another machine, its time may
// jump from one transaction to the next.
type clockOffset struct {
	mu          sync.Mutex
	start       time.Time     // our time counts from here, by the monotonic clock, which nobody sets
	known       bool          // the database's clock was read at least once
	offset      time.Duration // the database's time less ours, at the best reading
	uncertainty time.Duration // by how much offset may be too small: the reading took so long
	unsureSince time.Time     // when the offset has jumped, or was first read
}

// observe notes a reading of the database's clock that was asked for at a moment of ours. It says whether the clock has
// jumped since the last reading.
func (c *clockOffset) observe(now int64, asked time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	offset := time.Duration(now)*time.Microsecond - time.Since(c.start)
	uncertainty := time.Since(asked)
	jumped := c.known && (offset > c.offset+c.uncertainty+maxJump || c.offset > offset+uncertainty+maxJump)
	if jumped || !c.known { // the clock may have jumped right before we first read it
		c.unsureSince = time.Now()
	}
	// A reading that only took longer says nothing new. So the offset does not waver, and two moments of ours stay in
	// their order.
	contradicts := offset > c.offset+c.uncertainty || c.offset > offset+uncertainty
	if !c.known || contradicts || uncertainty < c.uncertainty {
		c.offset, c.uncertainty, c.known = offset, uncertainty, true
	}
	return jumped
}

// mayTakeOver says whether a lane can be taken from an owner whose lease has ended. For some time after the clock has
// jumped it cannot: the lease looks ended, but its holder, which goes by its own clock, may still be delivering.
func (c *clockOffset) mayTakeOver(leaseTime time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unsureSince.IsZero() || time.Since(c.unsureSince) > leaseTime
}

// Now is the database's time, computed from the best reading.
func (s *Inbox) Now() time.Time {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	if !s.clock.known {
		return clock.Moment(time.Now().UnixMicro())
	}
	return clock.Moment(int64((s.clock.offset + time.Since(s.clock.start)) / time.Microsecond))
}

// clockAhead is by how much this machine's clock is ahead of the database's, as far as that is certain; zero: they
// agree, or the inbox is a file, which has no clock of its own.
func (s *Inbox) clockAhead() time.Duration {
	if !s.engine.Shared() {
		return 0
	}
	s.clock.mu.Lock()
	uncertainty, known := s.clock.uncertainty, s.clock.known
	s.clock.mu.Unlock()
	ahead := time.Now().Round(0).Sub(s.Now()) // Round: by the wall clock, which may have been set since the start
	if !known || ahead.Abs() <= uncertainty {
		return 0
	}
	return ahead
}

// observeClock notes a reading of the database's clock.
func (s *Inbox) observeClock(now int64, asked time.Time) {
	if s.clock.observe(now, asked) {
		s.cfg.Log.Warn("the database's clock has jumped: for some seconds usher takes over no deliveries of other replicas")
		s.nextCorrection = time.Time{}
	}
}

// applyOffset adds a test's offset to a reading of the database's clock.
func (s *Inbox) applyOffset(now int64) int64 {
	if s.cfg.ClockOffset != nil {
		now += clock.Micros(s.cfg.ClockOffset())
	}
	return now
}

// at converts a time of ours into one of the database's clock; zero: that one is not known yet.
func (c *clockOffset) at(t time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		return 0
	}
	return int64((c.offset + t.Sub(c.start)) / time.Microsecond)
}

// dated is a time of ours by the database's clock, as far as that is known.
func (c *clockOffset) dated(t time.Time) time.Time {
	if at := c.at(t); at != 0 && !t.IsZero() {
		return clock.Moment(at)
	}
	return t
}

// ours is a time of the database's by our clock.
func (s *Inbox) ours(t time.Time) time.Time { return time.Now().Add(t.Sub(s.Now())) }

// unreadable are the tenants whose rows this process could not read. Such a row stops its tenant: its webhooks are neither
// taken in nor delivered. Nobody else waits for it. It is logged once, and a trouble.
type unreadable struct {
	mu    sync.Mutex // guards what follows
	lanes map[webhookgate.LaneName]bool
}

// noteUnreadable notes that a row of this lane cannot be read.
func (s *Inbox) noteUnreadable(name webhookgate.LaneName) {
	u := &s.unreadable
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.lanes[name] {
		u.lanes[name] = true
		s.cfg.Log.Error("a row of this tenant in the inbox cannot be read: its webhooks are neither taken in nor delivered",
			"tenant", name.Tenant, "platform", name.Platform)
	}
}

// names returns the tenants.
func (u *unreadable) names() (all []TenantRef) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, name := range lane.SortedNames(u.lanes) {
		all = append(all, TenantRef{name.Platform, name.Tenant})
	}
	return all
}

// count is how many there are.
func (u *unreadable) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.lanes)
}

// checkDatabase finds out whether the database can be reached. To open it, or after an outage, it also writes. Each
// minute, and when the database's clock has jumped, it corrects times that are further ahead than is possible, because the
// clock was set back since, and gives lanes the receivers of the settings.
func (s *Inbox) checkDatabase() {
	var correct bool
	err := s.write(func(tx engine.Tx) error {
		var now int64
		tx.Now(&now)
		asked := time.Now()
		if err := tx.Send(); err != nil {
			return err
		}
		now = s.applyOffset(now)
		s.observeClock(now, asked)
		if s.cfg.ReadOnly {
			return nil // it was read, which is enough
		}
		if correct = s.mayCorrectTimes(); correct {
			tx.Queue("lane_due_correct", nil, now, now+clock.Micros(lane.MaxBackoff+maxJump), now+clock.Micros(lane.MaxRetryAfter+maxJump),
				now+clock.Micros(2*s.cfg.LongestLease()+time.Minute))
			if s.cfg.Receivers != nil {
				s.route(tx, now)
			}
		}
		if s.health.unproven() {
			tx.Queue("touch", nil)
		}
		return nil
	})
	if err == nil && correct {
		s.nextCorrection = time.Now().Add(time.Minute)
	}
}

// mayCorrectTimes says whether it is time to look for times that are further ahead than is possible.
func (s *Inbox) mayCorrectTimes() bool { return !time.Now().Before(s.nextCorrection) }
