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
	if err := mark(path); err != nil {
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
	return e.reading(ctx, func(c *conn) error {
		if err := c.exec("PRAGMA query_only(0)"); err != nil { // it would be for the copy, too
			return err
		}
		defer func() {
			c.SetInterrupt(nil)
			c.exec("PRAGMA query_only(1)")
		}()
		return c.exec("VACUUM INTO '" + strings.ReplaceAll(path, "'", "''") + "'")
	})
}

// mark makes the copy an inbox of its own, which begins paused: what the original has done since must not be done again.
func mark(path string) error {
	c, err := connect(path, "journal_mode(MEMORY)")
	if err != nil {
		return describe(err)
	}
	err = c.transaction("BEGIN IMMEDIATE", func() error {
		if err := c.run("copy_identity", nil); err != nil {
			return err
		}
		return c.run("copy_pause", nil, time.Now().UnixMicro())
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
