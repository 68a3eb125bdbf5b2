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
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	lib "modernc.org/sqlite/lib"

	"usher/internal/filelock"
	"usher/internal/inbox/engine"
)

//go:embed statements.sql
var statementsText string

//go:embed 001.sql
var schema001 string

var migrations = engine.Migrations{engine.Tables + schema001}

// spelling also drops PostgreSQL's casts. Its parameters are $1, and SQLite's ?1. If a parameter alone is the limit,
// SQLite plans the statement anew each time that it runs, because another limit might have a better plan: that took
// more time than all else. With a plus it does not.
var spelling = engine.Spelling(
	"{schema}.", "",
	"{int}", "INTEGER",
	"{text}", "TEXT",
	"{json}", "TEXT",
	"{bytes}", "BLOB",
	"{empty}", "x''",
	"{keyed}", "WITHOUT ROWID",
	"{counter}", "INTEGER PRIMARY KEY AUTOINCREMENT",
	"{among}", "IN (SELECT value FROM json_each(?1))",
	"{other}", "NOT IN (SELECT value FROM json_each(?1))",
	"{listed}", "IN (SELECT value FROM json_each(?2))",
	"{lock}", "", "{skip}", "", // the whole file is locked already
	"LIMIT $", "LIMIT +?",
	"::bigint", "", "::text", "",
	"$1", "?1", "$2", "?2", "$3", "?3", "$4", "?4", "$5", "?5", "$6", "?6", "$7", "?7", "$8", "?8", "$9", "?9",
)

var statements = engine.Statements(statementsText, spelling)

// ErrInUse says that another usher has the file.
var ErrInUse = filelock.ErrInUse

// Engine implements engine.Engine.
type Engine struct {
	name string // the path as it was given; it may be a link
	path string // the file itself
	log  *slog.Logger
	lock *os.File

	conn     *conn         // the only connection that writes
	readers  chan *conn    // connections that read and are not in use right now
	unopened chan struct{} // has an element for each connection that may still be opened to read

	// files are the files at their opening, by their names, to notice when others are in their place.
	files        map[string]os.FileInfo
	filesChecked time.Time // when this was last checked
	broken       error     // a *engine.BrokenError; nil: none

	copying sync.Mutex // held while there is a copy; see Backup

	// fullSince is when there was too little room for webhooks, as Unix nanoseconds; zero: there is enough.
	fullSince    atomic.Int64
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
		name:     name,
		path:     path,
		log:      log,
		lock:     lock,
		readers:  make(chan *conn, engine.MaxReaders),
		unopened: make(chan struct{}, engine.MaxReaders),
		// A former process may have been killed after an erasure, before it could empty the write-ahead log.
		scrubPending: true,
	}
	removeCopy(path + copyEnd)
	err = e.open()
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

const lockEnd = ".lock"

// markLock writes something into a lock file that is new. If somebody has removed the lock file of an usher that
// runs, our lock is on another one and says nothing. That usher still has the inbox's file open, which is asked here.
// It is asked for new lock files only: people may look into the inbox while usher starts.
func markLock(lock *os.File, path string) error {
	if info, err := lock.Stat(); err != nil || info.Size() > 0 {
		return err
	}
	c, err := connect(path, []string{"busy_timeout(500)", "locking_mode(EXCLUSIVE)"})
	if err == nil {
		_, err = c.queryValue("SELECT count(*) FROM sqlite_master")
		c.Close()
	}
	if code(err)&0xff == lib.SQLITE_BUSY {
		return fmt.Errorf("%w, or another program has it open", ErrInUse)
	}
	_, err = lock.WriteString("usher has locked this file while it runs. Do not remove it.\n")
	return err
}

// createIfMissing makes the file with the right mode. It does not open a file that exists: when it closed that again,
// SQLite would lose its POSIX locks if it has the file open.
func createIfMissing(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// checkName returns an error if the name is that of a folder, or if there is a write-ahead log without its file:
// SQLite would empty it for a new file.
func checkName(name string) error {
	log := resolveLink(name) + "-wal"
	info, err := os.Stat(name)
	if err == nil && info.IsDir() {
		return errors.New("it is a folder: add the name of a file in it, such as inbox.db")
	}
	if err == nil && info.Size() > 0 {
		return nil
	}
	if info, err := os.Stat(log); err == nil && info.Size() > 0 {
		return fmt.Errorf("the file is gone or empty, but %s exists, which belongs to it and has its newest webhooks: "+
			"put the file back, or move that one away to start with an empty inbox", log)
	}
	return nil
}

// resolveLink returns the file behind a link. SQLite puts its write-ahead log beside that file. Our lock file belongs
// there, too, or two ushers could use one inbox through two links.
func resolveLink(name string) string {
	if path, err := filepath.EvalSymlinks(name); err == nil {
		return path
	}
	return name // the file does not exist: Check does not make it
}

func (e *Engine) open() error {
	var err error
	own := []string{"busy_timeout(2000)", "auto_vacuum(INCREMENTAL)", "wal_autocheckpoint(4000)"}
	if e.conn, err = connect(e.path, append(own, pragmas...)); err != nil {
		return describe(err)
	}
	if err := e.migrate(); err != nil {
		return err
	}
	// It holds payloads. This comes after the tables: until then it may be something else that was named by mistake.
	for _, end := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(e.path + end)
		forOthers := err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0
		if forOthers && os.Chmod(e.path+end, 0o600) == nil {
			e.log.Warn("others could read or write the inbox's file: usher has set its mode to 0600", "file", e.path+end)
		}
	}
	files := make(map[string]os.FileInfo)
	for _, name := range []string{e.name, e.path + "-wal", e.path + "-shm", e.path + lockEnd} {
		if files[name], err = os.Stat(name); err != nil {
			return err
		}
	}
	// One is opened at once, and has read: when the file has been removed no other can be opened, and what is in it
	// can still be saved by a backup.
	reader, err := e.connectReader()
	if err != nil {
		return describe(err)
	}
	if _, err := reader.version(); err != nil {
		reader.Close()
		return err
	}
	e.readers <- reader
	e.files = files
	for range engine.MaxReaders - 1 {
		e.unopened <- struct{}{}
	}
	return nil
}

func (e *Engine) connectReader() (*conn, error) {
	return connect(e.path, append(slices.Clone(pragmas), "query_only(1)", "cache_size(-2048)"))
}

// The cache is small, because after most transactions SQLite goes through all of it.
var pragmas = []string{
	"busy_timeout(2000)",
	"synchronous(FULL)",
	"secure_delete(ON)",
	"cache_size(-4096)",
	"journal_size_limit(67108864)",
	"temp_store(MEMORY)",
	"fullfsync(1)", "checkpoint_fullfsync(1)", // these matter on macOS only
}

// migrate makes the tables, and ends the leases of a former process.
func (e *Engine) migrate() error {
	version, err := e.conn.version()
	if err != nil {
		return err
	}
	// Not earlier: it changes the file, which may be that of another program.
	if err := e.conn.exec("PRAGMA journal_mode = WAL"); err != nil {
		return describe(err)
	}
	// A small file is checked for damage. To check a large one, which means to read all of it, would delay the start:
	// there damage is found when a damaged page is read.
	problem := any("ok")
	if info, err := os.Stat(e.path); err == nil && info.Size() <= maxChecked {
		if problem, err = e.conn.queryValue("PRAGMA quick_check(1)"); err != nil {
			return describe(err)
		}
	}
	if problem != "ok" {
		return fmt.Errorf("the file is damaged (%v): "+
			"put a backup in its place, or move it away and start with an empty inbox", problem)
	}
	script := "BEGIN IMMEDIATE;\n"
	scripts, note := migrations.From(version)
	for _, s := range scripts {
		script += spelling.Replace(s) + "\n"
	}
	if len(scripts) > 0 {
		script += spelling.Replace(note) + ";\n"
	}
	// Leases of this engine last for a hundred years, so the leased lanes are at the end of the index lane_due.
	now := time.Now()
	script += fmt.Sprintf("UPDATE lane SET owner = x'', due = %d\n"+
		"WHERE receiver IN (%s) AND last_result IN (0, 1, 2) AND due > %d AND bytes > 0 AND owner <> x'';\nCOMMIT;",
		now.UnixMicro(), statements["receivers"], now.Add(100*24*time.Hour).UnixMicro())
	if err := e.conn.exec(script); err != nil {
		return describe(err)
	}
	if err := e.conn.exec(spelling.Replace("SELECT {lane} FROM lane l LIMIT 0")); err != nil {
		return fmt.Errorf("the tables in the file are not those of this usher (%w): "+
			"start the usher that made them, or move the file away", describe(err))
	}
	return nil
}

// Check says whether usher could use the file. It makes and changes no files, because the person who checks may be
// another user than the one that usher runs as, and usher could not open them.
func Check(path string) error {
	path = resolveLink(path)
	lock, err := os.OpenFile(path+lockEnd, os.O_RDWR, 0)
	if err == nil {
		lock.Close()
		if lock, err = filelock.Take(path + lockEnd); err != nil {
			return err
		}
		defer lock.Close()
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := checkName(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) { // usher would make it: could it?
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

// maxChecked is the size up to which a file is checked for damage at its opening.
const maxChecked = 32 << 20

// Shared implements engine.Engine.
func (e *Engine) Shared() bool { return false }

// Close closes the connections, and unlocks the file.
func (e *Engine) Close() error {
	var errs []error
	if e.files != nil { // it was opened
		for range engine.MaxReaders {
			select {
			case c := <-e.readers:
				errs = append(errs, c.Close())
			case <-e.unopened:
			}
		}
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
	err := e.classify(e.transact(fn))
	if errors.Is(err, errFull) {
		e.noteFull()
		return e.fullError(err)
	}
	return err
}

// scrubLog empties the write-ahead log if it may still have content that was erased. That is not possible while
// somebody reads; then Maintain tries again.
func (e *Engine) scrubLog() {
	if !e.scrubPending {
		return
	}
	busy, err := e.conn.queryValue("PRAGMA wal_checkpoint(TRUNCATE)")
	e.classify(err)
	e.scrubPending = err != nil || busy != int64(0)
}

// classify describes an error, and marks the engine as broken after a fatal one.
func (e *Engine) classify(err error) error {
	// SQLite knows a full disk, but takes a quota that is used up for a disk that fails.
	if code(err) == lib.SQLITE_IOERR_WRITE && e.noRoom() {
		return fmt.Errorf("%w: %w", errFull, err)
	}
	if isFatal(err) {
		e.broken = &engine.BrokenError{Err: fmt.Errorf("the inbox's file could not be written: %w", err)}
		return e.broken
	}
	return describe(err)
}

func (e *Engine) transact(fn func(engine.Tx) error) error {
	t := &tx{ctx: context.Background(), e: e, conn: e.conn}
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

// checkFiles returns an error if the engine is broken, or if one of its files has been moved, removed or replaced.
func (e *Engine) checkFiles() error {
	if time.Since(e.filesChecked) < time.Second/2 {
		return e.broken
	}
	e.filesChecked = time.Now()
	if e.broken == nil {
		if err := e.gone(); err != nil {
			e.broken = &engine.BrokenError{Err: err, Gone: true}
		}
	}
	return e.broken
}

// gone returns an error if one of the files is not in its place any more. It opens none of them: when it closed the
// file again, SQLite would lose its POSIX locks.
func (e *Engine) gone() error {
	for _, name := range slices.Sorted(maps.Keys(e.files)) {
		switch info, err := os.Stat(name); {
		case err != nil:
			return fmt.Errorf("the inbox's file is gone: %w", err)
		case !os.SameFile(info, e.files[name]):
			return fmt.Errorf("the inbox's file %s was replaced by another one", name)
		}
	}
	return nil
}

// Read implements engine.Engine.
func (e *Engine) Read(ctx context.Context, fn func(engine.Tx) error) error {
	c, err := e.reader(ctx)
	if err != nil {
		return err
	}
	defer func() { e.readers <- c }()
	return describe(c.transaction("begin_read", func() error { return fn(&tx{ctx: ctx, e: e, conn: c}) }))
}

// reader waits for a connection to read with. It opens one only while all that are open are in use: a new one reads
// the schema, and prepares each statement anew.
func (e *Engine) reader(ctx context.Context) (c *conn, err error) {
	select {
	case c := <-e.readers:
		return c, nil
	default:
	}
	select {
	case c := <-e.readers:
		return c, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-e.unopened:
	}
	if e.gone() != nil { // of another file SQLite would empty the log, which may have what is nowhere else
		e.unopened <- struct{}{}
		select {
		case c := <-e.readers:
			return c, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if c, err = e.connectReader(); err != nil {
		e.unopened <- struct{}{}
		return nil, describe(err)
	}
	return c, nil
}

// tx implements engine.Tx. Send runs the statements one after the other.
type tx struct {
	ctx    context.Context
	e      *Engine
	conn   *conn
	queue  []func() error
	erased bool // it erases content, which must not stay in the write-ahead log either
}

// Now implements engine.Tx.
func (t *tx) Now(at *int64) {
	t.queue = append(t.queue, func() error { *at = time.Now().UnixMicro(); return nil })
}

// Send implements engine.Tx.
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

// Scrub implements engine.Tx.
func (t *tx) Scrub() { t.erased = true }

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
	t.queue = append(t.queue, func() error { return t.conn.run(t.ctx, name, skipping, args) })
}

// code returns SQLite's code of an error; zero: it is not an error of SQLite.
func code(err error) int {
	var e *resultError
	if errors.As(err, &e) {
		return e.code
	}
	return 0
}

// isFatal says whether, after this error, nobody knows what is on the disk.
func isFatal(err error) bool {
	switch code(err) & 0xff {
	case lib.SQLITE_IOERR:
		return code(err) != lib.SQLITE_IOERR_SHMSIZE
	case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB, lib.SQLITE_CANTOPEN:
		return true
	}
	return false
}

var errFull = errors.New("the disk of the inbox's file is full, and usher needs 40 MiB")

// describe adds to an error of SQLite what it means for the inbox. An error that a statement's values have caused
// becomes a *engine.StatementError.
func describe(err error) error {
	if code(err) == lib.SQLITE_IOERR_SHMSIZE {
		// There was no room to enlarge the -shm file. Nothing is lost with it: it is an index of the log, made anew
		// at each start.
		return fmt.Errorf("%w: %w", errFull, err)
	}
	switch code(err) & 0xff {
	case 0:
		return err
	case lib.SQLITE_TOOBIG, lib.SQLITE_CONSTRAINT, lib.SQLITE_MISMATCH, lib.SQLITE_RANGE:
		return &engine.StatementError{Err: err}
	case lib.SQLITE_FULL:
		return fmt.Errorf("%w: %w", errFull, err)
	case lib.SQLITE_NOTADB, lib.SQLITE_CORRUPT:
		return fmt.Errorf("the inbox's file is damaged, or is not an inbox: %w", err)
	case lib.SQLITE_READONLY:
		return fmt.Errorf("the inbox's file can't be written: %w: %w", engine.ErrReadOnly, err)
	}
	return fmt.Errorf("the inbox's file: %w", err)
}

// roomNeeded is how much must be free on a disk of this size for a webhook to be taken in; what is left is for outcomes.
// All that the write-ahead log may hold when its next checkpoint is due (wal_autocheckpoint, and a transaction) may make
// the file larger, and before that nothing more fits into the log. On a small disk it is half, which is as much as the
// log and the file can take together. It is zero where nobody knows the size.
func roomNeeded(size int64) int64 { return min(32<<20, size/2) }

// noRoom says whether there is no room for a small file beside the inbox's.
func (e *Engine) noRoom() bool {
	defer os.Remove(e.path + ".probe")
	err := os.WriteFile(e.path+".probe", make([]byte, 64<<10), 0o600)
	return isFull(err)
}

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// Locked implements engine.Engine. No other process writes to the file.
func (e *Engine) Locked() time.Time { return time.Time{} }

// Full implements engine.Engine.
func (e *Engine) Full() *engine.FullError {
	if e.fullSince.Load() == 0 {
		return nil
	}
	return e.fullError(nil)
}

func (e *Engine) fullError(err error) *engine.FullError {
	full := &engine.FullError{Of: e.path, Since: time.Unix(0, e.fullSince.Load()), Err: err}
	full.Free, full.Size = diskSpace(filepath.Dir(e.path))
	return full
}

// noteFull notes that no webhook can be taken in, until findRoom finds enough room.
func (e *Engine) noteFull() {
	if e.fullSince.CompareAndSwap(0, time.Now().UnixNano()) {
		e.log.Warn("the disk of the inbox's file is full")
	}
}

// findRoom finds out whether a disk that was full has room again. It wants more than what is needed: else the disk would
// be full, and not, again and again. Of a quota only a file that is written shows something.
func (e *Engine) findRoom() {
	free, size := diskSpace(filepath.Dir(e.path))
	if need := roomNeeded(size); e.Full() != nil && free >= need+need/4 && !e.noRoom() {
		e.fullSince.Store(0)
		e.log.Info("the disk of the inbox's file has room again")
	}
}

// Maintain implements engine.Engine: it keeps the write-ahead log and the file small.
func (e *Engine) Maintain() {
	if e.checkFiles() != nil {
		return
	}
	e.findRoom()
	// Somebody may read for long, and webhooks must not wait for its end.
	e.conn.exec("PRAGMA busy_timeout(50)")
	defer e.conn.exec("PRAGMA busy_timeout(2000)")
	e.scrubLog()
	if info, err := os.Stat(e.path + "-wal"); err == nil && info.Size() > 16<<20 {
		e.classify(e.conn.exec("PRAGMA wal_checkpoint(RESTART)")) // an error of SQLite's own checkpoints would go unnoticed
	}
	e.classify(e.conn.exec("PRAGMA incremental_vacuum(256)"))
}
