//go:build unix

package sqlite

import (
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"usher/internal/inbox/engine"
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
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	add := func(seq, size int64) error {
		return e.Write(func(tx engine.Tx) error { tx.Queue("add_content", nil, seq, []byte{}, make([]byte, size)); return nil })
	}
	if err := add(1, 20<<20); err != nil {
		t.Fatal(err)
	}
	e.Maintain()
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 30 << 20, Max: 1 << 40}); err != nil {
		t.Fatal(err)
	}
	if err := add(2, 20<<20); err != nil { // there is room for it in the log, but not in the file
		t.Fatal(err)
	}
	e.Maintain()
	if err := add(3, 1); err == nil {
		t.Error("it takes more in")
	}
}
