//go:build unix

package sqlite

import (
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
)

// Committed pages stay in the write-ahead log until a checkpoint copies them into the file. If that fails, it must
// not be tried again and again unnoticed.
func TestCheckpointFails(t *testing.T) {
	path := os.Getenv("USHER_SQLITE_CHILD")
	if path == "" { // the limit counts for a whole process
		cmd := exec.Command(os.Args[0], "-test.run=^TestCheckpointFails$")
		cmd.Env = append(os.Environ(), "USHER_SQLITE_CHILD="+t.TempDir()+"/inbox.db")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	e, err := Open(path, slog.New(slog.DiscardHandler))
	check(t, err)
	defer e.Close()
	check(t, e.addContent(1, 20<<20))
	e.Maintain()
	signal.Ignore(syscall.SIGXFSZ)
	check(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 30 << 20, Max: 1 << 40}))
	check(t, e.addContent(2, 20<<20)) // there is room for it in the log, but not in the file
	e.Maintain()
	if err := e.addContent(3, 1); err == nil {
		t.Error("it takes more in")
	}
}
