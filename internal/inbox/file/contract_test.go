package file

import (
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
)

// What is finished stays to be looked at: the last 10,000, 7 days, 256 MiB. The tests of the
// history use the constants, and would agree with any.
func TestPromisedHistory(t *testing.T) {
	if keepCount != 10_000 || keepAge != 7*24*time.Hour || keepBytes != 256<<20 {
		t.Errorf("%d, %v, %d bytes", keepCount, keepAge, keepBytes)
	}
}

// A 200 is for what is synced to disk. Killing usher would not show that it is not: the kernel still
// has the pages.
func TestCommitsAreSynced(t *testing.T) {
	s := openStore(t, config(t.TempDir(), new(inboxtest.Receiver)))
	if s.db.NoSync || s.db.NoGrowSync {
		t.Error("the file is not synced")
	}
}
