// Package store is the inbox as rows in a database, and every decision about them: what is a copy, who
// may deliver a lane, what came of a try, what an action changes. The decisions are Go code over rows, the
// same for every engine. An engine (packages sqlite and postgres) knows its statements, its transaction and
// its clock, and nothing about webhooks.
//
// A lane is a row, and the transaction that has locked that row decides about the lane. One goroutine of each process
// writes: what arrives while a transaction commits gathers, and shares the next one. See writer.go.
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
)

// An Engine runs transactions on a database that has the tables of schema.sql.
type Engine interface {
	// Write runs fn in a transaction that may write, and commits it. It is never called concurrently. What fn
	// has queued and not sent is sent together with the commit. fn may run several times; only the
	// last run counts.
	//
	// A *GuiltyError says that a statement failed because of what fn wanted to write, and not because of
	// the database. ErrDoubt says that nobody knows whether the transaction was committed. After any other error it was not.
	Write(fn func(Tx) error) error
	// Import is as Write, for a transaction that may take minutes. Nobody else writes meanwhile. fn runs once at most.
	Import(fn func(Tx) error) error
	// Read runs fn on one consistent state of the database.
	Read(ctx context.Context, fn func(Tx) error) error
	// Shared says whether other processes write to the same database. Then a leave to deliver ends by itself.
	Shared() bool
	// Tight says whether there is so little room that only outcomes are to be written.
	AlmostFull() bool
	// Tidy is called by the writer when it has nothing else to do, every second at most.
	Maintain()
	Close() error
}

// A Tx collects statements and sends them in one round trip. A statement is called by its name in the engine's
// .sql file. If an argument is a slice (but not []byte) the statement runs once for each element; all
// slices of a call are of the same length.
type Tx interface {
	// Queue adds a statement; each is called for every row, during Send. Nil: it returns none.
	Queue(name string, each func(Row) error, args ...any)
	// Now adds a look at the database's clock, in microseconds since 1970.
	Now(at *int64)
	// Send runs what was queued.
	Send() error
}

// A Row is one row of an answer.
type Row interface{ Scan(into ...any) error }

// ErrDoubt says that nobody knows whether a transaction was committed.
var ErrDoubt = errors.New("the connection to the database broke while it confirmed a transaction")

// A GuiltyError says that a statement failed because of its values.
type StatementError struct{ Err error }

func (e *StatementError) Error() string { return e.Err.Error() }
func (e *StatementError) Unwrap() error { return e.Err }

// A BrokenError says that nothing will be written any more until usher is restarted.
type BrokenError struct{ Err error }

func (e *BrokenError) Error() string { return e.Err.Error() }
func (e *BrokenError) Unwrap() error { return e.Err }

// Config is what a store needs to know. All of it is required but where it says so.
type Config struct {
	Engine      Engine
	Receivers   *receiver.Set // nil: this usher delivers nothing
	Courier     Courier       // who delivers; nil: nobody, as far as this process is concerned
	MaxAttempts int           // then a webhook is parked
	MaxAge      time.Duration // so is one that is older
	// KeepLatest supersedes a snapshot that waits when a newer one of its tenant arrives.
	KeepLatest bool
	// Window is how long a delivered snapshot counts as held by the receiver; zero: nothing is a copy.
	DedupWindow time.Duration
	MaxBytes    int64 // what may wait or be parked
	// Changed is called with a tenant's code when its last snapshot has changed, or may have, before anybody is
	// told so; with an empty one when those of any tenants may have. May be nil.
	Changed func(tenant string)
	Log     *slog.Logger

	Limits    Limits        // zero: those of the contract
	LeaseTime time.Duration // where replicas share a database; zero: Lease
	// Ahead is added to the database's clock, for tests.
	ClockOffset func() time.Duration
	// Jitter returns a pause of at most that long, and at least half of it. Nil: by chance.
	Jitter func(time.Duration) time.Duration
}

// A Courier delivers what the store gives it leave to. The writer calls it: it must be quick.
type Courier interface {
	// Grant says whether there is room to deliver one more webhook of that size to a receiver. Each true is
	// followed by Ungrant, and then maybe by Start.
	Reserve(rc *receiver.Receiver, size int64) bool
	Release(rc *receiver.Receiver, size int64)
	Deliver(*Lease)
	// Look says that anything may have changed.
	Wake()
	// Left says that something waits for a receiver that nobody delivers yet.
	LaneReady(rc *receiver.Receiver)
}

// Limits bound what is kept of what is finished or refused.
type Limits struct {
	Finished      int
	FinishedBytes int64
	FinishedAge   time.Duration

	Refused       int
	RefusedTenant int
	RefusedBytes  int64
	RefusedAge    time.Duration

	ActionAge time.Duration

	AlwaysCounted int // rows that are counted at each look; zero: 10,000
}

// DefaultLimits are those of the contract.
var DefaultLimits = Limits{
	Finished: 10_000, FinishedBytes: 256 << 20, FinishedAge: 7 * 24 * time.Hour,
	Refused: 1_000, RefusedTenant: 10, RefusedBytes: 64 << 20, RefusedAge: 30 * 24 * time.Hour,
	ActionAge: 90 * 24 * time.Hour,
}

// A Store keeps webhooks.
type Store struct {
	cfg        Config
	owner      []byte        // this process
	leaseTime  time.Duration // how long a leave lasts
	ops        chan op
	imports    chan *importJob
	opened     chan struct{} // the writer has looked at the database once
	closed     chan struct{} // the writer has ended
	stop       context.CancelFunc
	run        context.Context
	background sync.WaitGroup // who reads what other replicas do
	health     health

	platforms platforms
	pauses    pauses
	clock     clock

	mu      sync.Mutex // guards what follows
	figures figureCache

	clockJumped      bool        // of the writer: lanes may have times of a clock that has jumped
	lastSweep        time.Time   // of the writer: when it last deleted what is kept for too long
	lastFullSweep    time.Time   // and when it last looked at ages and bytes
	sweepRefusedSoon atomic.Bool // there may be too many refused ones
	sweepSoon        atomic.Bool // there may be finished webhooks to delete
}

// never is a due time that does not come.
const never = int64(1) << 62

// Lease is how long a leave to deliver lasts where replicas share a database. Its holder stops a fifth of that before its
// end: the clocks of a holder and of the database may run at different speeds, and a request takes some time to
// reach a receiver.
const (
	DefaultLeaseTime = 10 * time.Second
	// alone is the leave in a file: nobody else could take it. It ends far ahead also if it was given before a clock was set right,
	// so that a start finds it.
	fileLeaseTime = 100 * 365 * 24 * time.Hour
)

// Open starts a store on an engine whose tables exist.
func Open(cfg Config) *Store {
	if cfg.Limits == (Limits{}) {
		cfg.Limits = DefaultLimits
	}
	s := &Store{cfg: cfg, owner: make([]byte, 16), leaseTime: fileLeaseTime, ops: make(chan op, 1024), imports: make(chan *importJob), opened: make(chan struct{}), closed: make(chan struct{})}
	if cfg.Engine.Shared() {
		s.leaseTime = cmp.Or(cfg.LeaseTime, DefaultLeaseTime)
	}
	if s.cfg.Changed == nil {
		s.cfg.Changed = func(string) {}
	}
	if s.cfg.Jitter == nil {
		s.cfg.Jitter = jitter
	}
	rand.Read(s.owner)
	s.clockJumped = true // it may have been set back while nobody looked
	s.pauses.reading = make(chan struct{}, 1)
	s.clock.start = time.Now()
	s.run, s.stop = context.WithCancel(context.Background())
	go s.runWriter()
	s.background.Go(s.refreshPauses)
	return s
}

// Close ends the writer, after what it is doing, and the engine.
func (s *Store) Close() error {
	s.stop()
	<-s.closed
	s.background.Wait()
	return s.cfg.Engine.Close()
}

// Leased is how long a leave lasts that is asked for now.
func (s *Store) UsableLeaseTime() time.Duration { return s.leaseTime - s.leaseTime/5 }

// health is how the database does, as the writer sees it.
type health struct {
	mu           sync.Mutex
	err          error     // of the last transaction; nil: it was committed
	failingSince time.Time // the first in a row that failed
	txBegan      time.Time // of the transaction that runs now; zero: none does
	everWritten  bool      // there was one
	broken       bool
}

// patience is how long a database may be away before usher says that it is not ready.
const outagePatience = 5 * time.Second

// Err says why nothing can be taken in; nil: it can, or could a moment ago.
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

// note keeps the outcome of a transaction, and logs the begin and the end of an outage, not each failure.
func (h *health) record(log *slog.Logger, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var broken *BrokenError
	switch {
	case err == nil && h.err != nil:
		log.Info("the inbox can be written again", "after", time.Since(h.failingSince).Round(time.Millisecond))
	case errors.As(err, &broken) && !h.broken:
		h.broken, h.failingSince = true, time.Now()
		log.Error("the inbox is broken, and takes nothing in until usher is restarted", "err", err)
	case err != nil && h.err == nil:
		h.failingSince = time.Now()
		log.Error("the inbox can't be written, will retry", "err", err)
	}
	h.err, h.txBegan = err, time.Time{}
	h.everWritten = h.everWritten || err == nil
}

// clock compares the database's clock with our own. A database that fails over to another machine may have another
// time from one transaction to the next.
type clock struct {
	mu          sync.Mutex
	offset      time.Duration // the database's time less ours, when last seen
	uncertainty time.Duration // by how much that may be too small: the answer took so long
	known       bool
	unsureSince time.Time // when the offset has jumped, or was first seen
	start       time.Time // ours counts from there: differences of it do not jump, whatever is done to the wall clock
}

const maxJump = time.Second

// see notes what the database's clock said to a question that was asked between two moments of ours. It says whether the
// clock has jumped.
func (c *clock) observe(now int64, asked time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	offset := time.Duration(now)*time.Microsecond - time.Since(c.start)
	took := time.Since(asked)
	jumped := c.known && (offset > c.offset+c.uncertainty+maxJump || c.offset > offset+took+maxJump)
	if jumped || !c.known { // it may have jumped right before we first saw it
		c.unsureSince = time.Now()
	}
	c.offset, c.uncertainty, c.known = offset, took, true
	return jumped
}

// takeover says whether a lane may be taken whose holder has let its leave run out. After a jump of the clock it may still
// be delivering.
func (c *clock) mayTakeOver(lease time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unsureSince.IsZero() || time.Since(c.unsureSince) > lease
}

// now is the database's time, as far as it is known without asking.
func (s *Store) now() time.Time {
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	if !s.clock.known {
		return time.Now()
	}
	return time.UnixMicro(int64((s.clock.offset + time.Since(s.clock.start)) / time.Microsecond))
}

// Clock is the database's time, as far as it is known without asking.
func (s *Store) Clock() time.Time { return moment(s.now().UnixMicro()) }
