package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/testkit/pgtest"
	"usher/webhookgate"
)

// Rows that are made by SQL are those of an inbox as it is now.
func TestFill(t *testing.T) {
	for name, text := range map[string]func() string{
		"file":     func() string { return "file:" + filepath.Join(t.TempDir(), "inbox.db") },
		"database": func() string { return pgtest.New(t).DSN() },
	} {
		t.Run(name, func(t *testing.T) {
			dsn := text()
			address, err := inbox.ParseAddress(dsn)
			if err != nil {
				t.Fatal(err)
			}
			look := func(then func(*inbox.Inbox)) {
				in, err := inbox.Open(inbox.Config{Rules: lane.Rules{StoreUnclaimed: true, Log: slog.New(slog.DiscardHandler)}, Address: address, MaxBytes: 1 << 30})
				if err != nil {
					t.Fatal(err)
				}
				then(in)
				if err := in.Close(); err != nil {
					t.Error(err)
				}
			}
			platforms := []string{"crm", "away"}
			look(func(in *inbox.Inbox) { // it learns of the platforms
				for _, platform := range platforms {
					w := &webhookgate.Webhook{ID: webhookgate.NewID(), Type: "TenantProvisioningChange", Lane: webhookgate.LaneName{Platform: platform, Tenant: "first"}}
					if _, err := in.Store(context.Background(), w); err != nil {
						t.Fatal(err)
					}
				}
			})
			for _, platform := range platforms {
				if err := fill(t.Context(), dsn, platform, "some", 7, platform == "away"); err != nil {
					t.Fatal(err)
				}
			}
			look(func(in *inbox.Inbox) {
				if s := in.Stats(); s.Pending != 7 || s.Old {
					t.Errorf("%+v", s)
				}
				if known, err := in.Snapshots(t.Context(), "some-3"); err != nil || len(known) != 1 || known[0].Platform != "crm" {
					t.Errorf("%+v, %v", known, err)
				}
				all, err := in.List(context.Background(), inbox.Filter{})
				if err != nil || len(all) != 9 || all[0].Tenant != "some-7" || all[0].State != state.Waiting {
					t.Errorf("%d, %v", len(all), err)
				}
			})
		})
	}
}
