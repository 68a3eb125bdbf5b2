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
func (f *files) Full() *engine.FullError {
	if f.fullSince.Load() == 0 {
		return nil
	}
	return f.fullError(nil)
}

func (f *files) fullError(err error) *engine.FullError {
	full := &engine.FullError{Of: f.path, Since: time.Unix(0, f.fullSince.Load()), Err: err}
	full.Free, full.Size = diskSpace(filepath.Dir(f.path))
	return full
}

// noteFull notes that no webhook can be taken in, until findRoom finds enough room.
func (f *files) noteFull() {
	if f.fullSince.CompareAndSwap(0, time.Now().UnixNano()) {
		f.log.Warn("the disk of the inbox's file is full")
	}
}

// findRoom finds out whether a disk that was full has room again. It wants more than what is needed: else the disk would
// be full, and not, again and again. Of a quota only a file that is written shows something.
func (f *files) findRoom() {
	free, size := diskSpace(filepath.Dir(f.path))
	if need := roomNeeded(size); f.Full() != nil && free >= need+need/4 && !f.noRoom() {
		f.fullSince.Store(0)
		f.log.Info("the disk of the inbox's file has room again")
	}
}

// roomNeeded is how much must be free on a disk of this size for a webhook to be taken in; what is left is for outcomes.
// All that the write-ahead log may hold when its next checkpoint is due (wal_autocheckpoint, and a transaction) may make
// the file larger, and before that nothing more fits into the log. On a small disk it is half, which is as much as the
// log and the file can take together. It is zero where nobody knows the size.
func roomNeeded(size int64) int64 { return min(32<<20, size/2) }

// isFull says whether SQLite failed because the disk is full. It takes a quota that is used up for a disk that fails. Of
// the -shm file, which it could not enlarge, nothing is lost: that is an index of the log, made anew at each start.
func (f *files) isFull(err error) bool {
	code := sqlite.ErrCode(err)
	return code == sqlite.ResultFull || code == sqlite.ResultIOErrSHMSize || code == sqlite.ResultIOErrWrite && f.noRoom()
}

// noRoom says whether there is no room for a small file beside the inbox's.
func (f *files) noRoom() bool {
	defer os.Remove(f.path + ".probe")
	err := os.WriteFile(f.path+".probe", make([]byte, 64<<10), 0o600)
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
