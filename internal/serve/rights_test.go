package serve

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/entitlements"
	"usher/internal/inbox"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/internal/testkit"
)

// A tenant whose last snapshot is damaged is known, and what it may use is not: it is no stranger, for
// which callers have a default, and the same code on another platform does not answer for it.
func TestRightsOfADamagedSnapshot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inbox.db")
	open := func() (*rights, *inbox.Inbox) {
		g := newRights(true)
		var err error
		g.inbox, err = inbox.Open(inbox.Config{
			URL: "file:" + path, KeepUnclaimed: true, Attempts: 1, MaxAge: time.Hour, DedupSize: 10, DedupWindow: time.Minute,
			OnSnapshot: g.onSnapshot, OnErase: g.onErase, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		return g, g.inbox
	}
	keep := func(i *inbox.Inbox, platform, body string) {
		w := inboxtest.Webhook("acme", body)
		w.Lane.Platform = platform
		if _, err := i.Keep(w); err != nil {
			t.Fatal(err)
		}
	}
	_, i := open()
	crm, docs := testkit.Snapshot("acme", 5), testkit.Snapshot("acme", 9)
	keep(i, "crm", crm)
	keep(i, "docs", docs)
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("records")).Put(record.IDKey(1), []byte("damaged"))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}

	g, i := open()
	defer i.Close()
	var ambiguous *entitlements.AmbiguousError
	if a, err := g.lookup(t.Context(), "acme", nil); !errors.As(err, &ambiguous) {
		t.Errorf("without a platform: %+v, %v", a, err)
	}
	var notReady *entitlements.NotReadyError
	name := "crm"
	if a, err := g.lookup(t.Context(), "acme", &name); !errors.As(err, &notReady) {
		t.Errorf("where it is damaged: %+v, %v", a, err)
	}
	keep(i, "crm", crm) // which makes it whole again
	a, err := g.lookup(t.Context(), "acme", &name)
	if f, ok := a.Snapshot.Feature("users"); err != nil || !ok || f.Limit != 5 {
		t.Errorf("after it came again: %+v, %v", a, err)
	}
}
