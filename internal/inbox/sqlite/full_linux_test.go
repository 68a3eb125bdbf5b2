package sqlite

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zombiezen.com/go/sqlite"

	"usher/internal/inbox/engine"
)

// wantFull reports an error that is not that of a full disk.
func wantFull(t *testing.T, e *Engine, err error, cause sqlite.ResultCode) {
	t.Helper()
	if full := new(engine.FullError); !errors.As(err, &full) || sqlite.ErrCode(err) != cause {
		t.Fatalf("without room: %v, want a full disk with the cause %s", err, cause)
	}
	if e.Full() == nil {
		t.Error("without room: webhooks are still taken in")
	}
}

// smallDisk returns a folder that is a file system of its own.
func smallDisk(t *testing.T) string {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=100m"); err != nil {
		t.Skipf("no file system of its own: %v", err) // only root may
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// fill uses up the room, until free is called.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	if err := os.WriteFile(dir+"/filler", make([]byte, 100<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() { _ = os.Remove(dir + "/filler") }
}

// The disk may be full just when SQLite enlarges its -shm file.
func TestFullDiskForTheIndex(t *testing.T) {
	// A log of 20 MB that begins anew: there is room for a large transaction in it, and the -shm file is small after
	// a start.
	from := t.TempDir()
	e := opened(t, from)
	check(t, errors.Join(e.addContent(1, 20<<20), e.addContent(2, 1)))
	dir := smallDisk(t)
	for _, end := range []string{"", "-wal", lockEnd} { // as a kill leaves them
		content, err := os.ReadFile(filepath.Join(from, "inbox.db"+end))
		check(t, err)
		check(t, os.WriteFile(filepath.Join(dir, "inbox.db"+end), content, 0o600))
	}
	e = opened(t, dir)
	free := fill(t, dir)
	wantFull(t, e, e.addContent(3, 18<<20), sqlite.ResultIOErrSHMSize)
	free()
	e.Maintain()
	if err := e.addContent(3, 18<<20); err != nil || e.Full() != nil {
		t.Errorf("with room again: %v", err)
	}
}

// Without room for what SQLite writes at its opening usher does not start, and says why.
func TestStartOnAFullDisk(t *testing.T) {
	dir := smallDisk(t)
	e, err := Open(filepath.Join(dir, "inbox.db"), slog.New(slog.DiscardHandler))
	if err == nil {
		err = errors.Join(e.addContent(1, 1<<20), e.Close())
	}
	check(t, err)
	fill(t, dir)
	if e, err := Open(filepath.Join(dir, "inbox.db"), slog.New(slog.DiscardHandler)); !strings.Contains(fmt.Sprint(err), "is too full") {
		t.Errorf("%v", err)
		if err == nil {
			e.Close()
		}
	}
}

// SQLite takes a quota that is used up for a disk that fails. Here a limit of the process stands for it, on a disk
// without room.
func TestFailedWriteWithoutRoom(t *testing.T) {
	dir := os.Getenv("USHER_SQLITE_DIR")
	if dir == "" { // the limit counts for a whole process
		cmd := exec.Command(os.Args[0], "-test.run=^TestFailedWriteWithoutRoom$", "-test.v")
		cmd.Env = append(os.Environ(), "USHER_SQLITE_DIR="+smallDisk(t))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	e := opened(t, dir)
	signal.Ignore(syscall.SIGXFSZ)
	limit := func(bytes uint64) {
		t.Helper()
		check(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: 1 << 40}))
	}
	free := fill(t, dir)
	log, err := os.Stat(e.path + "-wal")
	check(t, err)
	limit(uint64(log.Size()))
	wantFull(t, e, e.addContent(1, 2<<20), sqlite.ResultIOErrWrite)
	limit(1 << 40)
	free()
	e.Maintain()
	if err := e.addContent(1, 2<<20); err != nil || e.Full() != nil {
		t.Errorf("with room again: %v", err)
	}
	limit(1 << 20)
	if err := e.addContent(2, 20<<20); e.broken == nil {
		t.Errorf("a write that fails although there is room: %v", err)
	}
}
