package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"zombiezen.com/go/sqlite"

	"usher/internal/inbox/engine"
)

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

// roomNeeded is how much must be free on a disk of this size for a webhook to be taken in; what is left is for outcomes.
// All that the write-ahead log may hold when its next checkpoint is due (wal_autocheckpoint, and a transaction) may make
// the file larger, and before that nothing more fits into the log. On a small disk it is half, which is as much as the
// log and the file can take together. It is zero where nobody knows the size.
func roomNeeded(size int64) int64 { return min(32<<20, size/2) }

// isFull says whether SQLite failed because the disk is full. It takes a quota that is used up for a disk that fails. Of
// the -shm file, which it could not enlarge, nothing is lost: that is an index of the log, made anew at each start.
func (e *Engine) isFull(err error) bool {
	code := sqlite.ErrCode(err)
	return code == sqlite.ResultFull || code == sqlite.ResultIOErrSHMSize || code == sqlite.ResultIOErrWrite && e.noRoom()
}

// noRoom says whether there is no room for a small file beside the inbox's.
func (e *Engine) noRoom() bool {
	defer os.Remove(e.path + ".probe")
	err := os.WriteFile(e.path+".probe", make([]byte, 64<<10), 0o600)
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
