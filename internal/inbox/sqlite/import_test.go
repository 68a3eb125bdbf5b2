package sqlite

import (
	"log/slog"
	"path/filepath"
	"testing"

	"usher/internal/inbox/store"
)

// An import reads its file once. On a full disk it must fail, and not run again with what is left of that file.
func TestAnImportRunsOnce(t *testing.T) {
	e, err := Open(filepath.Join(t.TempDir(), "inbox.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.conn.exec("PRAGMA max_page_count = 100"); err != nil {
		t.Fatal(err)
	}
	runs := 0
	err = e.Import(func(tx store.Tx) error {
		if runs++; runs > 1 {
			return nil // the file has been read
		}
		tx.Queue("content_add", nil, int64(1), []byte{}, make([]byte, 1<<20))
		return tx.Send()
	})
	if err == nil || runs != 1 {
		t.Errorf("ran %d times on a full disk: %v", runs, err)
	}
	if !e.reserve {
		t.Error("the reserve is given up for an import")
	}
}
