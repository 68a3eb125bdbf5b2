package inbox

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"usher/internal/inbox/engine"
)

// An intercepted engine lets a test see what goes through it, hold it up, refuse it, or change it. What is nil does
// nothing.
type intercepted struct {
	engine.Engine
	// write stands around each transaction that writes, but for imports. It calls run, once or more. With a failure the
	// transaction is undone at its end, and returns that.
	write func(run func(failure error) error) error
	// read stands around each transaction that reads.
	read func(ctx context.Context, run func() error) error
	// asks sees each statement before it is queued. Its error is the transaction's; errLeftOut: it is not queued.
	asks func(s *statement) error
	// row sees each row of the answers. nth is its number in the answer of its statement, from 1.
	row    func(s *statement, nth int, r engine.Row) engine.Row
	full   func() *engine.FullError
	shared bool // leases end by themselves, as in a database that replicas share
}

// A statement is one that a transaction queues.
type statement struct {
	tx   *interceptedTx // its transaction
	name string
	args []any
}

var errLeftOut = errors.New("it is left out")

// on returns the engine with what i does.
func (i intercepted) on(to engine.Engine) engine.Engine {
	i.Engine = to
	return &i
}

// between has an engine intercepted.
func between(i intercepted) func(*setup) { return func(c *setup) { c.between = i } }

func (i *intercepted) Write(fn func(engine.Tx) error) error {
	run := func(failure error) error {
		return i.Engine.Write(i.seen(true, func(tx engine.Tx) error { return cmp.Or(fn(tx), failure) }))
	}
	if i.write == nil {
		return run(nil)
	}
	return i.write(run)
}

func (i *intercepted) Import(fn func(engine.Tx) error) error {
	return i.Engine.Import(i.seen(true, fn))
}

func (i *intercepted) Read(ctx context.Context, fn func(engine.Tx) error) error {
	run := func() error { return i.Engine.Read(ctx, i.seen(false, fn)) }
	if i.read == nil {
		return run()
	}
	return i.read(ctx, run)
}

// seen returns a transaction's fn with an interceptedTx.
func (i *intercepted) seen(writes bool, fn func(engine.Tx) error) func(engine.Tx) error {
	return func(inner engine.Tx) error {
		tx := &interceptedTx{Tx: inner, by: i, writes: writes}
		err := fn(tx)
		return cmp.Or(tx.refused, err)
	}
}

func (i *intercepted) Shared() bool { return i.shared || i.Engine.Shared() }

func (i *intercepted) Full() *engine.FullError {
	if i.full == nil {
		return i.Engine.Full()
	}
	return i.full()
}

type interceptedTx struct {
	engine.Tx
	by      *intercepted
	writes  bool
	refused error // what asks has returned
}

func (tx *interceptedTx) Queue(name string, each func(engine.Row) error, args ...any) {
	s := &statement{tx, name, args}
	if tx.by.asks != nil {
		switch err := tx.by.asks(s); err {
		case errLeftOut:
			return
		default:
			tx.refused = cmp.Or(tx.refused, err)
		}
	}
	if see := tx.by.row; see != nil && each != nil {
		got, nth := each, 0
		each = func(r engine.Row) error { nth++; return got(see(s, nth, r)) }
	}
	tx.Tx.Queue(name, each, args...)
}

// What several tests do to an engine.

var errAway = errors.New("the inbox's database can't be reached")

// failsWhile fails what it stands around while away is set.
func failsWhile(away *atomic.Bool) func(run func(failure error) error) error {
	return func(run func(failure error) error) error {
		if away.Load() {
			return errAway
		}
		return run(nil)
	}
}

// away is a database that can't be reached while gone is set.
func away(gone *atomic.Bool) intercepted {
	fails := failsWhile(gone)
	return intercepted{
		write: fails,
		read: func(_ context.Context, run func() error) error {
			return fails(func(error) error { return run() })
		},
	}
}

// unanswered is a database that does not answer reads while silent is set.
func unanswered(silent *atomic.Bool) intercepted {
	return intercepted{read: func(ctx context.Context, run func() error) error {
		if silent.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		return run()
	}}
}

// crowded is a disk that has room for outcomes only while full is set.
func crowded(full *atomic.Bool) intercepted {
	return intercepted{full: func() *engine.FullError {
		if full.Load() {
			return &engine.FullError{Of: "the file"}
		}
		return nil
	}}
}

// doubtful is a database whose transactions are in doubt while on is set, although they are committed.
func doubtful(on *atomic.Bool) intercepted {
	return intercepted{write: func(run func(failure error) error) error {
		err := run(nil)
		if err == nil && on.Load() {
			return engine.ErrDoubt
		}
		return err
	}}
}

// A refusedLane is the lane of a tenant that the database refuses to lock, or to write.
type refusedLane struct {
	statement string       // for which it is refused
	count     atomic.Int64 // the transactions for which it was

	mu     sync.Mutex // guards what follows
	tenant string
	err    error // nil: it is not refused
}

var errLockedRow = &engine.StatementError{Err: errors.New("canceling statement due to lock timeout"), Locked: true}

func (l *refusedLane) set(tenant string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenant, l.err = tenant, err
}

func (l *refusedLane) asked(s *statement) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil || s.name != l.statement || !slices.Contains(s.args[0].([]string), l.tenant) {
		return nil
	}
	if s.tx.refused == nil {
		l.count.Add(1)
	}
	return l.err
}

// A held lets one transaction that writes through at a time, and none while it is held.
type held struct {
	place   chan struct{} // for one transaction
	waiting atomic.Int64
}

func newHeld() *held { return &held{place: make(chan struct{}, 1)} }

func (h *held) hold() { h.place <- struct{}{} }
func (h *held) goOn() { <-h.place }

func (h *held) write(run func(failure error) error) error {
	h.waiting.Add(1)
	h.hold()
	defer h.goOn()
	h.waiting.Add(-1)
	return run(nil)
}

// A tally counts transactions, and what statements return.
type tally struct {
	mu           sync.Mutex
	transactions int // that write
	calls, rows  map[string]int
	most         map[string]int // rows of one call
}

func newTally() *tally {
	return &tally{calls: make(map[string]int), rows: make(map[string]int), most: make(map[string]int)}
}

// counts is an engine that it counts.
func (c *tally) counts() intercepted {
	return intercepted{
		write: func(run func(failure error) error) error {
			c.mu.Lock()
			c.transactions++
			c.mu.Unlock()
			return run(nil)
		},
		asks: func(s *statement) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.calls[s.name]++
			return nil
		},
		row: func(s *statement, nth int, r engine.Row) engine.Row {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.rows[s.name]++
			c.most[s.name] = max(c.most[s.name], nth)
			return r
		},
	}
}

// reset forgets what was counted.
func (c *tally) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.transactions = 0
	clear(c.calls)
	clear(c.rows)
	clear(c.most)
}

// sum is how many statements ran, and how many rows they returned.
func (c *tally) sum() (calls, rows int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.calls {
		calls, rows = calls+c.calls[name], rows+c.rows[name]
	}
	return calls, rows
}

// largest is the statement of which one call returned most rows, and how many.
func (c *tally) largest() (name string, rows int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, most := range c.most {
		if most > rows {
			name, rows = n, most
		}
	}
	return name, rows
}
