package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// copyEnd is behind the path of the copy that a backup makes, until it has been read.
const copyEnd = ".backup"

// ErrBackup says that there is one backup at a time.
var ErrBackup = errors.New("another backup is under way")

// Backup implements engine.Engine. Others read and write meanwhile: VACUUM INTO copies one state, whose pages stay in
// the write-ahead log until it ends. It uses a connection that is open, because a file that was removed can be read
// through such a one alone.
func (e *Engine) Backup(ctx context.Context) (copied io.ReadCloser, size int64, err error) {
	if !e.copying.TryLock() {
		return nil, 0, ErrBackup
	}
	path := e.path + copyEnd
	defer func() {
		if err != nil {
			removeCopy(path)
			e.copying.Unlock()
		}
	}()
	removeCopy(path)
	// SQLite takes an empty file, and its mode.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, err
	}
	if err := f.Close(); err != nil {
		return nil, 0, err
	}
	if err := e.copyTo(ctx, path); err != nil {
		return nil, 0, fmt.Errorf("the copy could not be made: %w", err)
	}
	if err := mark(ctx, path); err != nil {
		return nil, 0, fmt.Errorf("the copy could not be marked: %w", err)
	}
	if f, err = os.Open(path); err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return &copyFile{f, e}, info.Size(), nil
}

func (e *Engine) copyTo(ctx context.Context, path string) error {
	c, err := e.reader(ctx)
	if err != nil {
		return err
	}
	defer func() { e.readers <- c }()
	if err := c.exec("PRAGMA query_only(0)"); err != nil { // it would be for the copy, too
		return err
	}
	defer c.exec("PRAGMA query_only(1)")
	stop := c.interruptAfter(ctx)
	defer stop()
	return describe(c.exec("VACUUM INTO '" + strings.ReplaceAll(path, "'", "''") + "'"))
}

// mark makes the copy an inbox of its own, which begins paused: what the original has done since must not be done again.
func mark(ctx context.Context, path string) error {
	c, err := connect(path, []string{"journal_mode(MEMORY)"})
	if err != nil {
		return describe(err)
	}
	err = c.transaction("begin_write", func() error {
		if err := c.run(ctx, "copy_identity", nil, nil); err != nil {
			return err
		}
		return c.run(ctx, "copy_pause", nil, []any{time.Now().UnixMicro()})
	})
	return describe(errors.Join(err, c.Close()))
}

// copyFile is the copy. Close removes it.
type copyFile struct {
	*os.File
	e *Engine
}

func (f *copyFile) Close() error {
	err := f.File.Close()
	removeCopy(f.Name())
	f.e.copying.Unlock()
	return err
}

// removeCopy removes what a backup has left: if usher was killed meanwhile, the next start does it.
func removeCopy(path string) {
	_ = os.Remove(path)
	_ = os.Remove(path + "-journal")
}
