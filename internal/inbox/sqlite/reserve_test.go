package sqlite

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// A reserve that could not be given up, since somebody had it open, is still there: once there is room webhooks are taken in again.
func TestReserveThatStayed(t *testing.T) {
	e, err := Open(filepath.Join(t.TempDir(), "inbox.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	content, err := os.ReadFile(e.reservePath())
	if err != nil {
		t.Fatal(err)
	}
	e.giveReserve()
	if !e.Tight() {
		t.Error("a full disk is not tight")
	}
	if err := os.WriteFile(e.reservePath(), content, 0o600); err != nil { // as if it had not been removed
		t.Fatal(err)
	}
	e.Tidy()
	if e.Tight() {
		t.Error("nothing is taken in any more")
	}
}
