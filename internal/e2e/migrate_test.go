//go:build unix

package e2e

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
)

// A newer usher has migrated the file: this one starts if it may, and else says why not and ends with 1.
func TestOlderUsherOnNewerTables(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inbox.db")
	environ := gateAlone("http://127.0.0.1:9", "USHER_WEBHOOK_INBOX=file:"+path)
	is := func(version string) {
		t.Helper()
		db, err := sql.Open("sqlite", path)
		if err == nil {
			defer db.Close()
			_, err = db.Exec("UPDATE schema_version SET " + version)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	starts := func() {
		t.Helper()
		u := startProcess(t, environ)
		u.Ready(t)
		u.End()
	}
	starts()
	is("version = 2, compatible = 1")
	starts()
	is("compatible = 2")
	u := startProcess(t, environ)
	if <-u.Ended; u.Code != 1 || !strings.Contains(u.Stderr.String(), "a newer usher made the tables") {
		t.Errorf("exit code %d: %s", u.Code, u.Stderr.String())
	}
}
