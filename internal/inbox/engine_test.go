package inbox

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/inbox/postgres"
	"usher/internal/inbox/sqlite"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// onEngines runs a test on each engine. open opens the same inbox each time: after a restart, or by another replica.
//
// PostgreSQL is tried only in a thorough run, as CI's: it takes ten times as long, and what is decided does not depend
// on it. Its statements are tried always, by the random worlds, by its own tests, and by those
// onBothEngines.
func onEngines(t *testing.T, test func(t *testing.T, open func() engine.Engine)) {
	if thorough() {
		onBothEngines(t, test)
		return
	}
	t.Parallel()
	onFile(t, test)
}

// onFile runs a test in a file, in a bubble: what a file does takes no time that a test would have to wait for.
func onFile(t *testing.T, test func(t *testing.T, open func() engine.Engine)) {
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		path := newFile(t)
		synctest.Test(t, func(t *testing.T) { test(t, inFile(t, path)) })
	})
}

// thorough says whether also those tests run that take much and seldom find what others do not.
func thorough() bool { return *long || testkit.Thorough() }

// costly skips a test that takes much: it runs only in a thorough run.
func costly(t *testing.T) {
	t.Helper()
	if !thorough() {
		t.Skip("only with USHER_TEST_THOROUGH=true or -long")
	}
}

// slow skips a test that takes long: it runs only with -long.
func slow(t *testing.T) {
	t.Helper()
	if !*long {
		t.Skip("only with -long")
	}
}

// some returns the first few of what a test tries, and all of it in a thorough run.
func some[T any](few int, all ...T) []T {
	if thorough() {
		return all
	}
	return all[:few]
}

// onBothEngines is for tests of what an engine does itself: a statement that no other test runs on PostgreSQL.
func onBothEngines(t *testing.T, test func(t *testing.T, open func() engine.Engine)) {
	t.Parallel()
	onFile(t, test)
	t.Run("database", func(t *testing.T) {
		t.Parallel()
		test(t, inDatabase(t, pgtest.Schema(t)))
	})
}

// quiet is a log that nobody reads.
var quiet = slog.New(slog.DiscardHandler)

// newFile returns the path of an inbox with nothing in it, which is a copy: to make the tables takes longer than many
// tests.
func newFile(t testing.TB) string {
	path := filepath.Join(t.TempDir(), "inbox.db")
	for end, content := range must(emptyInbox())(t) {
		check(t, os.WriteFile(path+end, content, 0o600))
	}
	return path
}

// killed returns a copy of a file and its log, as they are if usher is killed now.
func killed(t testing.TB, path string) (copied string) {
	t.Helper()
	copied = newFile(t)
	for _, end := range []string{"", "-wal"} {
		content, err := os.ReadFile(path + end)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		check(t, err)
		check(t, os.WriteFile(copied+end, content, 0o600))
	}
	return copied
}

// emptyInbox returns the files of an inbox with nothing in it, by the ends of their names.
var emptyInbox = sync.OnceValues(func() (files map[string][]byte, err error) {
	dir, err := os.MkdirTemp("", "empty")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "inbox.db")
	e, err := sqlite.Open(path, quiet)
	if err == nil {
		err = e.Close()
	}
	files = make(map[string][]byte)
	for _, end := range []string{"", ".lock"} {
		content, failed := os.ReadFile(path + end)
		files[end], err = content, errors.Join(err, failed)
	}
	return files, err
})

func inFile(t testing.TB, path string) func() engine.Engine {
	return func() engine.Engine {
		t.Helper()
		e, err := openFile(path, quiet)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
}

// openFile opens a file that may have been closed a moment ago. A process that another test has started keeps a copy
// of the lock until it runs its own program.
func openFile(path string, log *slog.Logger) (e *sqlite.Engine, err error) {
	for range 100_000 {
		if e, err = sqlite.Open(path, log); !errors.Is(err, ErrInUse) {
			break
		}
		time.Sleep(10 * time.Nanosecond) // nearly nothing: in a bubble nobody waits for real
	}
	return e, err
}

func inDatabase(t testing.TB, dsn string) func() engine.Engine {
	return func() engine.Engine {
		t.Helper()
		e, err := openDatabase(dsn, nil)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
}

func openDatabase(dsn string, password func() string) (engine.Engine, error) {
	a, err := postgres.Parse(dsn)
	if err != nil {
		return nil, err
	}
	return postgres.Open(a, password, quiet)
}

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
