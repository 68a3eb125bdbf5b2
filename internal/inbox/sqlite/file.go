package sqlite

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"zombiezen.com/go/sqlite"

	"usher/internal/filelock"
	"usher/internal/inbox/engine"
)

const lockEnd = ".lock"

// copyEnd is behind the path of the copy that a backup makes, until it has been read.
const copyEnd = ".backup"

// ErrInUse says that another usher has the file.
var ErrInUse = filelock.ErrInUse

// markLock writes something into a lock file that is new. If somebody has removed the lock file of an usher that
// runs, our lock is on another one and says nothing. That usher still has the inbox's file open, which is asked here.
// It is asked for new lock files only: people may look into the inbox while usher starts.
func markLock(lock *os.File, path string) error {
	if info, err := lock.Stat(); err != nil || info.Size() > 0 {
		return err
	}
	c, err := connect(path, "busy_timeout(500)", "locking_mode(EXCLUSIVE)")
	if err == nil {
		_, err = c.value("SELECT count(*) FROM sqlite_master")
		c.Close()
	}
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultBusy {
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
	info, err := os.Stat(name)
	if err == nil && info.IsDir() {
		return errors.New("it is a folder: add the name of a file in it, such as inbox.db")
	}
	if err == nil && info.Size() > 0 {
		return nil
	}
	log := resolveLink(name) + "-wal"
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
	c, err := connect(path, "query_only(1)")
	if err != nil {
		return describe(err)
	}
	defer c.Close()
	_, err = c.version()
	return describe(err)
}

// files are those of the engine.
type files struct {
	name string // the path as it was given; it may be a link
	path string // the file itself
	log  *slog.Logger

	opened  []os.FileInfo // at their opening, to notice when others are in their place
	checked time.Time     // when this was last checked
	broken  error         // a *engine.BrokenError; nil: none

	// fullSince is when there was too little room for webhooks, as Unix nanoseconds; zero: there is enough.
	fullSince atomic.Int64
}

// openFiles are the files that the engine has open, by the names under which they must stay.
func (f *files) openFiles() []string {
	return []string{f.name, f.path + "-wal", f.path + "-shm", f.path + lockEnd}
}

// noteFiles remembers which files are open, for checkFiles. It takes the rights of others: they hold payloads.
func (f *files) noteFiles() error {
	for _, name := range f.openFiles() {
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		forOthers := runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0
		if forOthers && os.Chmod(name, 0o600) == nil {
			f.log.Warn("others could read or write the inbox's file: usher has set its mode to 0600", "file", name)
		}
		f.opened = append(f.opened, info)
	}
	return nil
}

// checkFiles returns an error if the engine is broken, or if one of its files has been moved, removed or replaced. It
// opens none of them: when it closed the file again, SQLite would lose its POSIX locks.
func (f *files) checkFiles() error {
	if f.broken != nil || time.Since(f.checked) < time.Second/2 {
		return f.broken
	}
	f.checked = time.Now()
	for n, name := range f.openFiles() {
		info, err := os.Stat(name)
		if err != nil {
			err = fmt.Errorf("the inbox's file is gone: %w", err)
		} else if !os.SameFile(info, f.opened[n]) {
			err = fmt.Errorf("the inbox's file %s was replaced by another one", name)
		}
		if err != nil {
			f.broken = &engine.BrokenError{Err: err, Gone: true}
			return f.broken
		}
	}
	return nil
}

// removeCopy removes what a backup has left: if usher was killed meanwhile, the next start does it.
func removeCopy(path string) {
	_ = os.Remove(path)
	_ = os.Remove(path + "-journal")
}
