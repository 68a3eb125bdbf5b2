// Package sqlite is the engine of an inbox in a file, for one usher: SQLite, without cgo. It knows statements,
// transactions and their failures, and nothing about webhooks.
//
// A transaction is on disk before Write returns (WAL, synchronous=FULL). After a write that failed with an I/O error nothing
// more is written: the kernel may have dropped pages that the next sync reports as safe. A full disk is not that.
package sqlite

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"usher/internal/inbox/store"
)

//go:embed statements.sql
var statementsText string

//go:embed 001.sql
var schema001 string

// migrations are numbered from 1, and only add.
var migrations = []string{schema001}

var statements = store.Statements(statementsText)

// ErrInUse says that another usher has the file.
var ErrInUse = errors.New("another usher is using it")

// Engine is a store.Engine.
type Engine struct {
	name string // as it was given: it may be a link
	path string
	log  *slog.Logger
	lock *os.File
	file os.FileInfo // as it was opened: is the path still the same file?

	conn    *conn      // the only one that writes
	readers chan *conn // those that read; nil: not opened yet

	broken       error
	fileChecked  time.Time   // when the path was last looked at
	hasReserve   bool        // the reserve file is there
	almostFull   atomic.Bool // it was given up
	scrubPending bool        // the log may still have what was erased
}

// maxReaders is how many connections read at once.
const maxReaders = 4

// Open opens the file, or makes it. Only one usher may have it.
func Open(name string, log *slog.Logger) (*Engine, error) {
	if err := createIfMissing(name); err != nil { // before the lock: of a link to nothing nobody knows yet what is behind it
		return nil, err
	}
	path := resolveLink(name)
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, err
	}
	// A process before this one may have been killed before it could empty the log.
	e := &Engine{name: name, path: path, log: log, lock: lock, readers: make(chan *conn, maxReaders), scrubPending: true}
	if err := e.open(); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// create makes the file if there is none, to give it its mode. It opens no file that exists: SQLite may have it.
func createIfMissing(name string) error {
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// behind is the file behind a link: SQLite's log is beside that one, and so must be the lock, or two ushers have one inbox.
func resolveLink(name string) string {
	if path, err := filepath.EvalSymlinks(name); err == nil {
		return path
	}
	return name // usher check does not make it
}

func (e *Engine) open() error {
	var err error
	if e.conn, err = connect(e.path, append([]string{"auto_vacuum(INCREMENTAL)", "wal_autocheckpoint(4000)"}, pragmas...)); err != nil {
		return describe(err)
	}
	if err := e.migrate(); err != nil {
		return err
	}
	if e.file, err = os.Stat(e.path); err != nil {
		return err
	}
	for range maxReaders {
		e.readers <- nil
	}
	e.makeReserve()
	return nil
}

var pragmas = []string{"busy_timeout(2000)", "journal_mode(WAL)", "synchronous(FULL)", "secure_delete(ON)", "cache_size(-16384)", "journal_size_limit(67108864)",
	"temp_store(MEMORY)", "fullfsync(1)", "checkpoint_fullfsync(1)"} // the last two make a difference on macOS

// migrate makes the tables, and gives back what a former process had leave to deliver.
func (e *Engine) migrate() error {
	version, err := e.conn.version()
	if err != nil {
		return err
	}
	// Damage is found when a page is read. To look for it before, all of the file must be read, and that should not delay a start.
	problem := any("ok")
	if info, err := os.Stat(e.path); err == nil && info.Size() <= maxChecked {
		if problem, err = e.conn.queryValue("PRAGMA quick_check(1)"); err != nil {
			return describe(err)
		}
	}
	if problem != "ok" {
		return fmt.Errorf("the file is damaged (%v): restore it from a backup ('usher inbox import'), or move it away and start anew", problem)
	}
	script := "BEGIN IMMEDIATE;\n"
	for n := version; n < len(migrations); n++ {
		script += store.Columns.Replace(migrations[n]) + "\n"
	}
	// A leave of this engine lasts for years, so lanes with an owner are at the end of the index lane_due.
	now := time.Now()
	script += fmt.Sprintf("PRAGMA user_version = %d;\nUPDATE lane SET owner = x'', due = %d\n"+
		"WHERE platform IN (SELECT hash FROM platform) AND last_result IN (0, 1, 2) AND due > %d AND bytes > 0 AND owner <> x'';\nCOMMIT;",
		len(migrations), now.UnixMicro(), now.Add(100*24*time.Hour).UnixMicro())
	return describe(e.conn.exec(script))
}

// Check says whether usher could use the file. It makes and changes nothing: the person who checks may be another user than
// the one that usher runs as.
func Check(path string) error {
	path = resolveLink(path)
	lock, err := os.OpenFile(path+".lock", os.O_RDWR, 0)
	if err == nil {
		lock.Close()
		if lock, err = lockFile(path + ".lock"); err != nil {
			return err
		}
		defer lock.Close()
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) { // usher makes it
		if f, err = os.CreateTemp(filepath.Dir(path), ".usher-check-*"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
		return err
	}
	if err != nil {
		return err
	}
	f.Close() // before SQLite opens it
	c, err := connect(path, []string{"query_only(1)"})
	if err != nil {
		return describe(err)
	}
	defer c.Close()
	_, err = c.version()
	return err
}

// maxChecked is how large a file may be to be looked through at its start.
const maxChecked = 32 << 20

// Shared is part of store.Engine.
func (e *Engine) Shared() bool { return false }

// Close ends the connections and gives the file free.
func (e *Engine) Close() error {
	var errs []error
	if e.file != nil { // it was opened
		for range maxReaders {
			if c := <-e.readers; c != nil {
				errs = append(errs, c.Close())
			}
		}
	}
	if e.conn != nil {
		if e.broken == nil { // so that the file is whole without the log beside it
			errs = append(errs, e.conn.exec("PRAGMA wal_checkpoint(TRUNCATE)"))
		}
		errs = append(errs, e.conn.Close())
	}
	return errors.Join(append(errs, e.lock.Close())...)
}

// Write is part of store.Engine.
func (e *Engine) Write(fn func(store.Tx) error) error {
	if err := e.checkFile(); err != nil {
		return err
	}
	err := e.transact(fn)
	if isFull(err) {
		e.deleteReserve()
	}
	return e.classify(err)
}

// scrubLog empties the log if it may still have what was erased. While somebody reads it can't; then Tidy does it.
func (e *Engine) scrubLog() {
	if !e.scrubPending {
		return
	}
	busy, err := e.conn.queryValue("PRAGMA wal_checkpoint(TRUNCATE)")
	e.classify(err)
	e.scrubPending = err != nil || busy != int64(0)
}

// verdict says what is wrong, and whether that is for good.
func (e *Engine) classify(err error) error {
	if err != nil && isFatal(err) {
		e.broken = &store.BrokenError{Err: fmt.Errorf("the inbox's file could not be written: %w", err)}
		return e.broken
	}
	return describe(err)
}

func (e *Engine) transact(fn func(store.Tx) error) error {
	t := &tx{ctx: context.Background(), conn: e.conn}
	err := e.conn.transaction("begin_write", func() error {
		if err := fn(t); err != nil {
			return err
		}
		return t.Send()
	})
	if err == nil && t.erased {
		e.scrubPending = true
		e.scrubLog()
	}
	return err
}

// Import is part of store.Engine. Its file can be read only once, so that it is not tried again on a full disk.
func (e *Engine) Import(fn func(store.Tx) error) error {
	if err := e.checkFile(); err != nil {
		return err
	}
	return e.classify(e.transact(fn))
}

// look says whether the file can still be written: it may have been moved or removed.
func (e *Engine) checkFile() error {
	if e.broken != nil || time.Since(e.fileChecked) < time.Second/2 {
		return e.broken
	}
	e.fileChecked = time.Now()
	info, err := os.Stat(e.name)
	switch {
	case err != nil:
		e.broken = &store.BrokenError{Err: fmt.Errorf("the inbox's file is gone: %w", err)}
	case !os.SameFile(info, e.file):
		e.broken = &store.BrokenError{Err: fmt.Errorf("the inbox's file %s was replaced by another one", e.name)}
	}
	return e.broken
}

// Read is part of store.Engine.
func (e *Engine) Read(ctx context.Context, fn func(store.Tx) error) (err error) {
	var c *conn
	select {
	case c = <-e.readers:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { e.readers <- c }()
	if c == nil {
		if c, err = connect(e.path, append(slices.Clone(pragmas), "query_only(1)", "cache_size(-2048)")); err != nil {
			return describe(err)
		}
	}
	return describe(c.transaction("begin_read", func() error { return fn(&tx{ctx: ctx, conn: c}) }))
}

// tx runs statements one after the other, when they are sent.
type tx struct {
	ctx    context.Context
	conn   *conn
	queue  []func() error
	erased bool // it deletes what must not stay in the log either
}

// Now is part of store.Tx.
func (t *tx) Now(at *int64) {
	t.queue = append(t.queue, func() error { *at = time.Now().UnixMicro(); return nil })
}

// Send is part of store.Tx.
func (t *tx) Send() error {
	queue := t.queue
	t.queue = nil
	for _, f := range queue {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// Queue is part of store.Tx.
func (t *tx) Queue(name string, each func(store.Row) error, args ...any) {
	t.erased = t.erased || name == "erase_content"
	t.queue = append(t.queue, func() error { return t.conn.run(t.ctx, name, each, args) })
}

// code is SQLite's number of an error; zero: it is none of SQLite's.
func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

func isFull(err error) bool { return code(err)&0xff == lib.SQLITE_FULL }

// breaks says whether nobody knows any more what is on the disk.
func isFatal(err error) bool {
	switch code(err) & 0xff {
	case lib.SQLITE_IOERR, lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB, lib.SQLITE_CANTOPEN:
		return true
	}
	return false
}

// plain says what is wrong, and whose fault it is.
func describe(err error) error {
	switch code(err) & 0xff {
	case 0:
		return err
	case lib.SQLITE_TOOBIG, lib.SQLITE_CONSTRAINT, lib.SQLITE_MISMATCH, lib.SQLITE_RANGE:
		return &store.StatementError{Err: err}
	case lib.SQLITE_FULL:
		return fmt.Errorf("the disk of the inbox's file is full: %w", err)
	case lib.SQLITE_NOTADB, lib.SQLITE_CORRUPT:
		return fmt.Errorf("the inbox's file is damaged, or no inbox: %w", err)
	case lib.SQLITE_READONLY:
		return fmt.Errorf("the inbox's file may only be read: %w", err)
	}
	return fmt.Errorf("the inbox's file: %w", err)
}

// reserveSize is given up when the disk is full, so that what was delivered can still be noted.
const reserveSize = 4 << 20

func (e *Engine) reservePath() string { return e.path + ".reserve" }

func (e *Engine) makeReserve() {
	if info, err := os.Stat(e.reservePath()); err != nil || info.Size() != reserveSize {
		// Twice as much must fit: what was given up is needed until there is room for more.
		err := os.WriteFile(e.reservePath(), make([]byte, 2*reserveSize), 0o600)
		if err == nil {
			err = os.Truncate(e.reservePath(), reserveSize)
		}
		if err != nil {
			os.Remove(e.reservePath())
			return
		}
	}
	e.hasReserve = true
	e.almostFull.Store(false)
}

// Tight is part of store.Engine.
func (e *Engine) AlmostFull() bool { return e.almostFull.Load() }

// giveReserve makes room for what was delivered. Until there is room for more, nothing new is taken in.
func (e *Engine) deleteReserve() {
	if !e.hasReserve {
		return
	}
	e.log.Warn("the disk of the inbox's file is full")
	e.hasReserve = false
	e.almostFull.Store(true)
	os.Remove(e.reservePath())
}

// Tidy is part of store.Engine: it keeps the log and the file small.
func (e *Engine) Maintain() {
	if e.checkFile() != nil {
		return
	}
	if !e.hasReserve {
		e.makeReserve()
	}
	// Somebody may read for long, as an export does, and webhooks must not wait for that.
	e.conn.exec("PRAGMA busy_timeout(50)")
	defer e.conn.exec("PRAGMA busy_timeout(2000)")
	e.scrubLog()
	if info, err := os.Stat(e.path + "-wal"); err == nil && info.Size() > 16<<20 {
		e.classify(e.conn.exec("PRAGMA wal_checkpoint(RESTART)")) // SQLite says nothing if one of its own fails
	}
	e.classify(e.conn.exec("PRAGMA incremental_vacuum(256)"))
}
