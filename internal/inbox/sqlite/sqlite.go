// Package sqlite is the engine of an inbox in a file, for one usher: SQLite, without cgo. It knows statements,
// transactions and their failures, and nothing about webhooks.
//
// A transaction is on disk before Write returns (WAL, synchronous=FULL). After an I/O error nothing more is written
// until a restart: the kernel may have dropped pages that the next sync reports as safe. A full disk is not such an
// error: usher answers 503, and goes on when there is room again.
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
	"strings"
	"sync"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"usher/internal/filelock"
	"usher/internal/inbox/engine"
)

// Engine implements engine.Engine.
type Engine struct {
	files
	lock *os.File

	conn    *conn      // the only connection that writes
	readers chan *conn // connections that read and are not in use right now
	count   int        // how many there are

	copying sync.Mutex // held while there is a copy; see Backup

	damaged      sync.Map // the statements that have found a damaged row, which was logged
	scrubPending bool     // the write-ahead log may still have content that was erased
}

// Open opens the file, or makes it. It fails with ErrInUse if another usher has it.
func Open(name string, log *slog.Logger) (*Engine, error) {
	// This comes before the lock: a link can only be resolved if the file behind it exists.
	if err := createIfMissing(name); err != nil {
		return nil, err
	}
	path := resolveLink(name)
	// Not the database file itself: to open and close it would end SQLite's POSIX locks on it.
	lock, err := filelock.Take(path + lockEnd)
	if err != nil {
		return nil, err
	}
	if err := markLock(lock, path); err != nil {
		lock.Close()
		return nil, err
	}
	e := &Engine{
		files:   files{name: name, path: path, log: log},
		lock:    lock,
		readers: make(chan *conn, engine.MaxReaders),
		// A former process may have been killed after an erasure, before it could empty the write-ahead log.
		scrubPending: true,
	}
	removeCopy(path + copyEnd)
	if err := e.open(); err != nil {
		e.Close()
		if e.isFull(err) {
			return nil, fmt.Errorf("%w: usher needs 40 MiB", e.fullError(err))
		}
		return nil, describe(err)
	}
	return e, nil
}

func (e *Engine) open() (err error) {
	own := append(slices.Clip(pragmas), "auto_vacuum(INCREMENTAL)", "wal_autocheckpoint(4000)")
	if e.conn, err = connect(e.path, own...); err != nil {
		return err
	}
	if err := e.migrate(); err != nil {
		return err
	}
	// This comes after the tables: until then it may be something else that was named by mistake.
	if err := e.noteFiles(); err != nil {
		return err
	}
	// All are opened at once, and have read: when the file is removed or replaced, no other can be opened (SQLite would
	// empty the log, which may have what is nowhere else), and a backup can still save what is in it.
	for range engine.MaxReaders {
		c, err := connect(e.path, append(slices.Clip(pragmas), "query_only(1)", "cache_size(-2048)")...)
		if err != nil {
			return err
		}
		e.count++
		e.readers <- c
		if _, err := c.version(); err != nil {
			return err
		}
	}
	return nil
}

// The cache is small, because after most transactions SQLite goes through all of it.
var pragmas = []string{
	"synchronous(FULL)",
	"secure_delete(ON)",
	"cache_size(-4096)",
	"journal_size_limit(67108864)",
	"temp_store(MEMORY)",
	"fullfsync(1)", "checkpoint_fullfsync(1)", // these matter on macOS only
}

// migrate makes the tables.
func (e *Engine) migrate() error {
	version, err := e.conn.version()
	if err != nil {
		return err
	}
	// Not earlier: it changes the file, which may be that of another program.
	if err := e.conn.exec("PRAGMA journal_mode = WAL"); err != nil {
		return err
	}
	// A small file is checked for damage. To check a large one, which means to read all of it, would delay the start:
	// there damage is found when a damaged page is read.
	if info, err := os.Stat(e.path); err == nil && info.Size() <= maxChecked {
		problem, err := e.conn.value("PRAGMA quick_check(1)")
		if err != nil {
			return err
		}
		if problem != "ok" {
			return fmt.Errorf("the file is damaged (%v): "+
				"put a backup in its place, or move it away and start with an empty inbox", problem)
		}
	}
	err = e.conn.transaction("BEGIN IMMEDIATE", func() error {
		scripts, note := migrations.From(version)
		if len(scripts) > 0 {
			script := dialect.Spell(strings.Join(scripts, "\n") + note)
			if err := sqlitex.ExecuteScript(e.conn.Conn, script, nil); err != nil {
				return err
			}
		}
		return e.conn.exec("UPDATE number SET home = ''") // an era begins: the file may be an older copy
	})
	if err != nil {
		return err
	}
	if err := e.conn.exec(dialect.Spell("SELECT {lane} FROM lane l LIMIT 0")); err != nil {
		return fmt.Errorf("the tables in the file are not those of this usher (%w): "+
			"start the usher that made them, or move the file away", err)
	}
	return nil
}

// maxChecked is the size up to which a file is checked for damage at its opening.
const maxChecked = 32 << 20

// Shared implements engine.Engine.
func (e *Engine) Shared() bool { return false }

// Close closes the connections, and unlocks the file.
func (e *Engine) Close() error {
	var errs []error
	for range e.count {
		errs = append(errs, (<-e.readers).Close())
	}
	if e.conn != nil {
		if e.broken == nil {
			// Move everything from the write-ahead log into the file, so that the file alone is complete.
			errs = append(errs, e.conn.exec("PRAGMA wal_checkpoint(TRUNCATE)"))
		}
		errs = append(errs, e.conn.Close())
	}
	return errors.Join(append(errs, e.lock.Close())...)
}

// Write implements engine.Engine.
func (e *Engine) Write(fn func(engine.Tx) error) error {
	if err := e.checkFiles(); err != nil {
		return err
	}
	if free, size := diskSpace(filepath.Dir(e.path)); free < roomNeeded(size) {
		e.noteFull()
	}
	t := &tx{e: e, conn: e.conn}
	err := e.conn.transaction("BEGIN IMMEDIATE", func() error {
		if err := fn(t); err != nil {
			return err
		}
		return t.Send()
	})
	if err == nil && t.scrubs {
		e.scrubPending = true
		e.scrubLog()
	}
	return e.noted(err)
}

// Read implements engine.Engine.
func (e *Engine) Read(ctx context.Context, fn func(engine.Tx) error) error {
	return e.reading(ctx, func(c *conn) error {
		return c.transaction("BEGIN", func() error { return fn(&tx{e: e, conn: c}) })
	})
}

// reading runs fn with a connection to read with. What it runs on it ends when ctx ends.
func (e *Engine) reading(ctx context.Context, fn func(*conn) error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case c := <-e.readers:
		defer func() {
			c.SetInterrupt(nil)
			e.readers <- c
		}()
		c.SetInterrupt(ctx.Done())
		err := fn(c)
		if sqlite.ErrCode(err) == sqlite.ResultInterrupt {
			return ctx.Err()
		}
		return describe(err)
	}
}

// Maintain implements engine.Engine: it keeps the write-ahead log and the file small.
func (e *Engine) Maintain() {
	if e.checkFiles() != nil {
		return
	}
	e.findRoom()
	// Somebody may read for long, and webhooks must not wait for its end.
	e.conn.SetBusyTimeout(50 * time.Millisecond)
	defer e.conn.SetBusyTimeout(patience)
	e.scrubLog()
	if info, err := os.Stat(e.path + "-wal"); err == nil && info.Size() > 16<<20 {
		e.noted(e.conn.exec("PRAGMA wal_checkpoint(RESTART)")) // an error of SQLite's own checkpoints would go unnoticed
	}
	e.noted(e.conn.exec("PRAGMA incremental_vacuum(256)"))
}

// scrubLog empties the write-ahead log if it may still have content that was erased. That is not possible while
// somebody reads; then Maintain tries again.
func (e *Engine) scrubLog() {
	if !e.scrubPending {
		return
	}
	busy, err := e.conn.value("PRAGMA wal_checkpoint(TRUNCATE)")
	e.noted(err)
	e.scrubPending = err != nil || busy != "0"
}

// noted describes an error of the writer's connection. If nobody knows after it what is on the disk, the engine is
// broken.
func (e *Engine) noted(err error) error {
	if e.isFull(err) {
		e.noteFull()
		return e.fullError(err)
	}
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultIOErr, sqlite.ResultCorrupt, sqlite.ResultNotADB, sqlite.ResultCantOpen:
		e.broken = &engine.BrokenError{Err: fmt.Errorf("the inbox's file could not be written: %w", withCode(err))}
		return e.broken
	}
	return describe(err)
}

// tx implements engine.Tx. Send runs the statements one after the other.
type tx struct {
	e      *Engine
	conn   *conn
	queue  []func() error
	scrubs bool // it erases content, which must not stay in the write-ahead log either
}

// Queue implements engine.Tx.
func (t *tx) Queue(name string, each func(engine.Row) error, args ...any) {
	skipping := each
	if each != nil {
		skipping = func(r engine.Row) error {
			err := each(r)
			if !errors.Is(err, engine.ErrRow) {
				return err
			}
			if _, logged := t.e.damaged.LoadOrStore(name, true); !logged {
				t.e.log.Error("a row of the inbox's file is damaged, and is left out", "statement", name)
			}
			return nil
		}
	}
	t.queue = append(t.queue, func() error { return t.conn.run(name, skipping, args...) })
}

// Now implements engine.Tx.
func (t *tx) Now(at *int64) {
	t.queue = append(t.queue, func() error { *at = time.Now().UnixMicro(); return nil })
}

// Scrub implements engine.Tx.
func (t *tx) Scrub() { t.scrubs = true }

// Send implements engine.Tx.
func (t *tx) Send() error {
	queue := t.queue
	t.queue = nil
	for _, run := range queue {
		if err := run(); err != nil {
			return err
		}
	}
	return nil
}
