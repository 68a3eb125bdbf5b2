// Package store keeps the inbox as rows in a database, and makes every decision about them: which webhook is a copy, which
// process may deliver a lane, what a try changes, what an action changes. The decisions are Go code over rows, the same for
// every engine. An engine (packages sqlite and postgres) knows its statements, its transaction and its clock, and nothing
// about webhooks.
//
// A lane is the queue of one tenant, and a row. The transaction that has locked the row decides about the lane. One
// goroutine of each process writes (writer.go): operations that arrive while a transaction commits share the next one.
//
// The way of a webhook:
//
//	intake.go     Add takes it in: it is a duplicate, or a new row at the end of its lane. If the lane was idle, the same
//	              transaction gives this process a lease.
//	lease.go      A Lease is the permission to deliver one lane. Claim gets leases for lanes that wait longer. The courier
//	              (package inbox) delivers, and SaveOutcome writes the result: delivered, tried again later, or parked.
//	retention.go  Finished webhooks are deleted after a while.
//
// Beside it: act.go (what people do), views.go (what people see), refuse.go (webhooks that cannot be taken in), export.go
// (export and import).
package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"usher/internal/receiver"
	"usher/webhookgate"
	"usher/webhookgate/content"
)

// An Engine runs transactions on a database that has the tables of 001.sql.
type Engine interface {
	// Write runs fn in a transaction that may write, and commits it. It is never called concurrently. Statements that fn
	// has queued and not sent are sent together with the commit. fn may run several times; only the last run counts.
	//
	// After a *StatementError the database works, but refused a statement of fn. ErrDoubt says that nobody knows
	// whether the transaction was committed. After any other error it was not.
	Write(fn func(Tx) error) error
	// Import is like Write, for a transaction that may take minutes. Nobody else writes meanwhile. fn runs once at most.
	Import(fn func(Tx) error) error
	// Read runs fn, once at most, on one consistent state of the database.
	Read(ctx context.Context, fn func(Tx) error) error
	// Shared says whether other processes write to the same database. If so, leases end by themselves.
	Shared() bool
	// AlmostFull says whether there is so little room that only outcomes should be written.
	AlmostFull() bool
	// Maintain is called by the writer when it has nothing else to do, at most once a second.
	Maintain()
	Close() error
}

// A Tx collects statements and sends them in one round trip. A statement is called by its name in statements.sql, of this
// package or of the engine. If an argument is a slice (but not []byte or Among) the statement runs once for each element; all slices
// of a call have the same length.
type Tx interface {
	// Queue adds a statement. Send calls each for every row of the answer; nil: the statement returns no rows.
	Queue(name string, each func(Row) error, args ...any)
	// Scrub says that this transaction deletes content that must be gone for good.
	Scrub()
	// Now adds a reading of the database's clock, in microseconds since 1970.
	Now(at *int64)
	// Send runs the statements that were queued.
	Send() error
}

// Among are the numbers of {among} and {other} in a statement.
type Among []int64

// A Row is one row of an answer.
type Row interface{ Scan(into ...any) error }

// ErrDoubt says that nobody knows whether a transaction was committed.
var ErrDoubt = errors.New("the connection to the database broke while it confirmed a transaction: nobody knows whether it was done")

// A StatementError says that the database works, but refused a statement because of its values, or because somebody else has
// locked a row. So one operation of a batch is to blame, and the others can succeed without it.
type StatementError struct{ Err error }

func (e *StatementError) Error() string { return e.Err.Error() }
func (e *StatementError) Unwrap() error { return e.Err }

// A BrokenError says that nothing will be written any more until usher is restarted.
type BrokenError struct{ Err error }

func (e *BrokenError) Error() string { return e.Err.Error() }
func (e *BrokenError) Unwrap() error { return e.Err }

// Config configures a Store. Fields are required unless they say what their zero value means.
type Config struct {
	Engine    Engine
	Receivers *receiver.Set // nil: this usher delivers nothing
	Courier   Courier       // delivers webhooks; nil: this process delivers nothing
	Log       *slog.Logger

	// A webhook is parked after MaxAttempts failed tries, or when it is older than MaxAge.
	MaxAttempts int
	MaxAge      time.Duration
	// MaxBytes bounds the webhooks that wait or are parked. Beyond it nothing is taken in.
	MaxBytes int64
	// Keep says what to do with a webhook that no receiver takes. True: it is kept, and never delivered. False: it waits for a
	// receiver.
	Keep bool
	// KeepLatest supersedes a waiting snapshot when a newer one of its tenant arrives.
	KeepLatest bool
	// DedupWindow is how long usher assumes that the receiver still has the snapshot that it accepted last. Zero: no
	// webhook is a duplicate.
	DedupWindow time.Duration
	// Rules are the gate's: a bare webhook of an import must fit them, too. Nil: the built-in ones.
	Rules *content.Rules
	// Changed is called with a tenant's code when its last snapshot has changed, or may have, and before any caller gets
	// an answer that depends on it. An empty code means any tenant. May be nil.
	Changed func(tenant string)

	Limits    Limits        // zero: DefaultLimits
	LeaseTime time.Duration // only if replicas share the database; zero: DefaultLeaseTime

	// For tests. ClockOffset is added to the database's clock; nil: nothing is. Jitter shortens a backoff to between half
	// and all of its length; nil: by chance.
	ClockOffset func() time.Duration
	Jitter      func(time.Duration) time.Duration
}

// A Courier delivers webhooks under the leases that the store gives it. The writer calls it, so no method may block.
type Courier interface {
	// Reserve asks for room to deliver one more webhook of that size to a receiver. If it returns true, the store calls
	// Release later, and right after that maybe Deliver.
	Reserve(rc *receiver.Receiver, size int64) bool
	Release(rc *receiver.Receiver, size int64)
	// Deliver passes on a lease. The courier delivers its webhook and calls SaveOutcome.
	Deliver(*Lease)
	// Wake says that there may be lanes of this receiver to claim; nil: of any receiver.
	Wake(rc *receiver.Receiver)
}

// Limits bound what is kept of webhooks that are finished or refused.
type Limits struct {
	Finished      int
	FinishedBytes int64
	FinishedAge   time.Duration

	Refused       int
	RefusedTenant int
	RefusedBytes  int64
	RefusedAge    time.Duration

	ActionAge time.Duration

	AlwaysCounted int // up to this many rows are counted whenever Stats is called after a change
}

// DefaultLimits are the documented limits.
var DefaultLimits = Limits{
	Finished: 10_000, FinishedBytes: 256 << 20, FinishedAge: 7 * 24 * time.Hour,
	Refused: 1_000, RefusedTenant: 10, RefusedBytes: 64 << 20, RefusedAge: 30 * 24 * time.Hour,
	ActionAge: 90 * 24 * time.Hour, AlwaysCounted: 10_000,
}

// A Store keeps webhooks.
type Store struct {
	cfg       Config
	owner     []byte        // a random id of this process, for the lanes that it has leased
	leaseTime time.Duration // how long a lease lasts, by the database's clock

	ops        chan *work      // to the writer
	imports    chan *importJob // to the writer
	exporting  chan struct{}   // has an element while somebody exports
	opened     chan struct{}   // closed when the writer has reached the database, or failed to, once
	closed     chan struct{}   // closed when the writer has ended
	run        context.Context // ends with Close
	stop       context.CancelFunc
	background sync.WaitGroup // goroutines beside the writer

	// These have locks of their own.
	health health
	clock  clock
	pauses pauses

	mu      sync.Mutex // guards figures
	figures figureCache

	// Only the writer uses these.
	idle          bool                      // there was no transaction since the last tick
	stale         map[webhookgate.Lane]bool // lanes with rows that do not say yet that they are superseded
	finishedBytes int64                     // of webhooks that were finished since it last looked at bytes
	lastReroute   time.Time                 // when it last looked for lanes of receivers that are gone
	clockJumped   bool                      // times that lanes have may come from before the database's clock was set
	lastSweep     time.Time                 // when it last deleted anything that was kept for too long
	lastFullSweep time.Time                 // when it last looked at ages and bytes, too

	sweepSoon        atomic.Bool // there may be finished webhooks to delete
	sweepRefusedSoon atomic.Bool // there may be refused webhooks to delete
}

// never is a time that does not come.
const never = int64(1) << 62

const (
	// DefaultLeaseTime is how long a lease lasts if replicas share a database. Its holder stops a fifth earlier, because the
	// clocks of the holder and of the database may run at different speeds, and a request takes some time to reach a
	// receiver.
	DefaultLeaseTime = 10 * time.Second
	// fileLeaseTime is for an inbox in a file, where no other process could take a lane over. At its start usher finds the
	// leases of the last process by their far end, so the end must be far ahead even if the clock was wrong then.
	fileLeaseTime = 100 * 365 * 24 * time.Hour
)

// Open starts a store on an engine whose tables exist.
func Open(cfg Config) *Store {
	if cfg.Limits == (Limits{}) {
		cfg.Limits = DefaultLimits
	}
	s := &Store{cfg: cfg, stale: make(map[webhookgate.Lane]bool), owner: make([]byte, 16), leaseTime: fileLeaseTime, ops: make(chan *work, 1024), imports: make(chan *importJob), exporting: make(chan struct{}, 1), opened: make(chan struct{}), closed: make(chan struct{})}
	if cfg.Engine.Shared() {
		s.leaseTime = cmp.Or(cfg.LeaseTime, DefaultLeaseTime)
	}
	if s.cfg.Rules == nil {
		s.cfg.Rules = builtInRules()
	}
	if s.cfg.Changed == nil {
		s.cfg.Changed = func(string) {}
	}
	if s.cfg.Jitter == nil {
		s.cfg.Jitter = jitter
	}
	rand.Read(s.owner)
	s.clockJumped = true // the clock may have been set back while usher did not run
	s.pauses.reading = make(chan struct{}, 1)
	s.clock.start = time.Now()
	s.run, s.stop = context.WithCancel(context.Background())
	go s.runWriter()
	s.background.Go(s.refreshPauses)
	return s
}

var builtInRules = sync.OnceValue(func() *content.Rules {
	rules, err := content.NewRules([]string{content.TenantProvisioningChange}, nil)
	if err != nil {
		panic(err)
	}
	return rules
})

// Close ends the writer, after it has written what was submitted, and closes the engine.
func (s *Store) Close() error {
	s.stop()
	<-s.closed
	s.background.Wait()
	return s.cfg.Engine.Close()
}

// Shared says whether other replicas may use the inbox, too.
func (s *Store) Shared() bool { return s.cfg.Engine.Shared() }

// UsableLeaseTime is how long the holder of a lease may deliver, from the moment at which it asked for the lease.
func (s *Store) UsableLeaseTime() time.Duration { return s.leaseTime - s.leaseTime/5 }

// health is the state of the database, as the writer sees it.
type health struct {
	mu           sync.Mutex
	err          error     // why the last transaction failed; nil: it was committed
	failingSince time.Time // when the first of the last transactions began that failed in a row
	txBegan      time.Time // when the current transaction began; zero: none runs
	everWritten  bool      // a transaction was committed since the start
	broken       bool      // there was a BrokenError
}

// outagePatience is how long a database may be away before usher says that it is not ready.
const outagePatience = 5 * time.Second

// Err says why nothing can be taken in. It returns nil also during the first seconds of an outage.
func (s *Store) Err() error {
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.txBegan.IsZero() && time.Since(h.txBegan) >= outagePatience && !h.broken:
		return errors.New("the inbox's database does not answer")
	case h.err == nil && h.everWritten:
		return nil
	case h.err == nil:
		return errors.New("the inbox has not been opened yet")
	case h.broken || !h.everWritten || time.Since(h.failingSince) >= outagePatience:
		return h.err
	}
	return nil
}

// Ready says whether the database could be read and written at least once.
func (s *Store) Ready() bool {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	return s.health.everWritten
}

// write runs a transaction of the writer; see Engine.Write. Everything else waits for it, so health knows when it began, and how
// it ended.
func (s *Store) write(fn func(Tx) error) error {
	s.idle = false
	began := time.Now()
	s.health.begin(began)
	err := s.cfg.Engine.Write(fn)
	s.health.end(s.cfg.Log, began, err)
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

// unproven says whether the next transaction must write something: only that proves that the database can be written, after the
// start or an outage.
func (h *health) unproven() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err != nil || !h.everWritten
}

// end keeps the result of a transaction. It logs the begin and the end of an outage, not each failure.
func (h *health) end(log *slog.Logger, began time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.txBegan = time.Time{}
	var refused *StatementError
	var broken *BrokenError
	switch {
	case errors.As(err, &refused):
		return // this neither begins an outage, nor proves that one has ended
	case err == nil && h.err != nil:
		log.Info("the inbox can be written again", "after", time.Since(h.failingSince).Round(time.Millisecond))
	case errors.As(err, &broken) && !h.broken:
		h.broken, h.failingSince = true, began
		log.Error("the inbox is broken: usher stores nothing more in it until you restart usher", "err", err)
	case err != nil && h.err == nil:
		h.failingSince = began
		log.Error("cannot write to the inbox, will retry", "err", err)
	}
	h.err = err
	h.everWritten = h.everWritten || err == nil
}

// clock compares the database's clock with our own. When a database fails over to another machine, its time may jump from
// one transaction to the next.
type clock struct {
	mu          sync.Mutex
	start       time.Time     // our time counts from here, by the monotonic clock: it does not jump when the wall clock is set
	known       bool          // the database's clock was read at least once
	offset      time.Duration // the database's time less ours, at the last reading
	uncertainty time.Duration // by how much offset may be too small: the reading took so long
	unsureSince time.Time     // when the offset has jumped, or was first read
}

const maxJump = time.Second

// observe notes a reading of the database's clock that was asked for at a moment of ours. It says whether the clock has
// jumped since the last reading.
func (c *clock) observe(now int64, asked time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	offset := time.Duration(now)*time.Microsecond - time.Since(c.start)
	uncertainty := time.Since(asked)
	jumped := c.known && (offset > c.offset+c.uncertainty+maxJump || c.offset > offset+uncertainty+maxJump)
	if jumped || !c.known { // the clock may have jumped right before we first read it
		c.unsureSince = time.Now()
	}
	c.offset, c.uncertainty, c.known = offset, uncertainty, true
	return jumped
}

// mayTakeOver says whether a lane can be taken from an owner whose lease has ended. For some time after the clock has jumped
// it cannot: the lease looks ended, but its holder, which goes by its own clock, may still be delivering.
func (c *clock) mayTakeOver(leaseTime time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unsureSince.IsZero() || time.Since(c.unsureSince) > leaseTime
}

// Now is the database's time, computed from the last reading.
func (s *Store) Now() time.Time {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	if !s.clock.known {
		return moment(time.Now().UnixMicro())
	}
	return moment(int64((s.clock.offset + time.Since(s.clock.start)) / time.Microsecond))
}

// observeClock notes a reading of the database's clock.
func (s *Store) observeClock(now int64, asked time.Time) {
	if s.clock.observe(now, asked) {
		s.cfg.Log.Warn("the database's clock has jumped: for some seconds usher takes over no deliveries of other replicas")
		s.clockJumped = true
	}
}

// applyOffset adds a test's offset to a reading of the database's clock.
func (s *Store) applyOffset(now int64) int64 {
	if s.cfg.ClockOffset != nil {
		now += micros(s.cfg.ClockOffset())
	}
	return now
}

// micros is a duration in the unit of the database's times.
func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }
