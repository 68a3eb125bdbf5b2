package inbox

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
)

// A store is the database, as one process sees it. Everything reads and writes through it.
type store struct {
	cfg    Config
	engine engine.Engine

	run        context.Context // ends with Close
	stop       context.CancelFunc
	background sync.WaitGroup // goroutines beside the writer
	opened     chan struct{}  // closed when the writer has reached the database, or failed to, once
	browsing   chan struct{}  // has an element for each connection with which somebody browses

	// These have locks of their own.
	health     health
	clock      clockOffset
	unreadable unreadable

	// Only the writer uses these.
	idle           bool      // there was no transaction since the last tick
	nextCorrection time.Time // when to look for times that come from a clock that was set back since
}

func newStore(e engine.Engine, cfg Config) *store {
	s := &store{
		cfg: cfg, engine: e,
		opened:     make(chan struct{}),
		browsing:   make(chan struct{}, engine.MaxReaders/2),
		clock:      clockOffset{start: time.Now()},
		unreadable: unreadable{lanes: make(map[webhookgate.LaneName]bool)},
	}
	s.run, s.stop = context.WithCancel(context.Background())
	return s
}

// Shared says whether other replicas may use the inbox, too.
func (s *store) Shared() bool { return s.engine.Shared() }

// ErrClosed says that the inbox has been closed.
var ErrClosed = errors.New("the inbox is closed")

// Health says whether webhooks can be taken in. It asks nobody, so that it also answers while the database hangs.
func (s *store) Health() Health {
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
func (s *store) Err() error {
	if h := s.Health(); h.Unready {
		return h.Err
	}
	return nil
}

// Ready says whether the database could be read and written at least once.
func (s *store) Ready() bool {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	return s.health.everWritten
}

// write runs a transaction of the writer; see Engine.Write. Everything else waits for it, so health knows when it
// began, and how it ended.
func (s *store) write(fn func(engine.Tx) error) error {
	s.idle = false
	began := time.Now()
	s.health.begin(began)
	err := s.engine.Write(fn)
	s.health.end(s.cfg.Log, began, err, s.engine.Full() != nil)
	return err
}

// Opened is when this process opened the inbox, or reached its database again after an outage, by the database's
// clock. What the inbox says of the time before may come from an older copy of it, which somebody has restored.
func (s *store) Opened() time.Time {
	s.health.mu.Lock()
	at := s.health.openedAt
	s.health.mu.Unlock()
	return clock.Moment(s.clock.at(at))
}

// Now is the database's time, computed from the best reading.
func (s *store) Now() time.Time {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	if !s.clock.known {
		return clock.Moment(time.Now().UnixMicro())
	}
	return clock.Moment(int64((s.clock.offset + time.Since(s.clock.start)) / time.Microsecond))
}

// clockAhead is by how much this machine's clock is ahead of the database's, as far as that is certain; zero: they
// agree, or the inbox is a file, which has no clock of its own.
func (s *store) clockAhead() time.Duration {
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
func (s *store) observeClock(now int64, asked time.Time) {
	if s.clock.observe(now, asked) {
		s.cfg.Log.Warn("the database's clock has jumped: for some seconds usher takes over no deliveries of other replicas")
		s.nextCorrection = time.Time{}
	}
}

// applyOffset adds a test's offset to a reading of the database's clock.
func (s *store) applyOffset(now int64) int64 {
	if s.cfg.ClockOffset != nil {
		now += clock.Micros(s.cfg.ClockOffset())
	}
	return now
}

// ours is a time of the database's by our clock.
func (s *store) ours(t time.Time) time.Time { return time.Now().Add(t.Sub(s.Now())) }

// readPatience is how long a query may take.
const readPatience = 30 * time.Second

// read runs fn on one consistent state of the database, until ctx ends, or the inbox does.
func (s *store) read(ctx context.Context, fn func(engine.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	defer context.AfterFunc(s.run, cancel)()
	select {
	case <-s.opened:
	case <-ctx.Done():
	}
	if !s.Ready() {
		return cmp.Or(s.health.lastErr(), errNotOpened)
	}
	return s.engine.Read(ctx, fn)
}

// browse is read for what people look at and what takes seconds if much is stored: lists and histories. However many
// people look, half of the connections are left for what programs need.
func (s *store) browse(ctx context.Context, fn func(engine.Tx) error) error {
	if err := s.startBrowsing(ctx); err != nil {
		return err
	}
	defer s.endBrowsing()
	return s.read(ctx, fn)
}

// listOf returns what one statement finds, as scan reads its rows. how is read or browse.
func listOf[T any](
	ctx context.Context, how func(context.Context, func(engine.Tx) error) error,
	scan func(engine.Row) (T, error), name string, args ...any,
) (all []T, err error) {
	err = how(ctx, func(tx engine.Tx) error {
		tx.Queue(name, into(&all, scan), args...)
		return tx.Send()
	})
	return all, err
}

// into returns what Tx.Queue calls for each row: it adds the row to a list.
func into[T any](all *[]T, scan func(engine.Row) (T, error)) func(engine.Row) error {
	return func(r engine.Row) error {
		row, err := scan(r)
		if err == nil {
			*all = append(*all, row)
		}
		return err
	}
}

// intoPage is into for a page of a list, whose length says whether there are more: a row that cannot be read is there, as
// far as it can be.
func intoPage[T any](all *[]T, scan func(engine.Row) (T, error)) func(engine.Row) error {
	return func(r engine.Row) error {
		row, err := scan(r)
		if err == nil || errors.Is(err, engine.ErrRow) {
			*all = append(*all, row)
		}
		return err
	}
}

func scanText(r engine.Row) (text string, err error) {
	err = r.Scan(&text)
	return text, err
}

// startBrowsing waits until few enough others browse.
func (s *store) startBrowsing(ctx context.Context) error {
	select {
	case s.browsing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &engine.AwayError{Err: busy{ctx.Err()}}
	case <-s.run.Done():
		return ErrClosed
	}
}

func (s *store) endBrowsing() { <-s.browsing }

// busy is a wait for others who browse that has lasted too long.
type busy struct{ error }

func (busy) Error() string {
	return "too many large lists are being read from the inbox: try again in a minute"
}
func (e busy) Unwrap() error { return e.error }

// unreadable are the tenants whose rows this process could not read. Such a row stops its tenant: its webhooks are neither
// taken in nor delivered. Nobody else waits for it. It is logged once, and a trouble.
type unreadable struct {
	mu    sync.Mutex // guards what follows
	lanes map[webhookgate.LaneName]bool
}

// noteUnreadable notes that a row of this lane cannot be read.
func (s *store) noteUnreadable(name webhookgate.LaneName) {
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
