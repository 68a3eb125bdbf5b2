package inbox

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"usher/internal/inbox/postgres"
	"usher/internal/inbox/store"
	"usher/internal/testkit/pgtest"
	"usher/webhookgate"
)

// A connection breaks while the server still works on the transaction: what its sender is told is what becomes of it.
func TestDoubtWaitsForTheServer(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Schema(t)
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	schema := u.Query().Get("schema")
	wire := pgtest.Cut(t, u.Host)
	a, err := postgres.Parse(wire.Through(dsn))
	if err != nil {
		t.Fatal(err)
	}
	engine, err := postgres.Open(a, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	i := New(engine, Config{Store: store.Config{MaxBytes: 1 << 30, Window: time.Minute, Log: slog.New(slog.DiscardHandler)}})
	defer i.Close()
	keep := func(body string) error {
		_, err := i.Keep(&webhookgate.Webhook{ID: body, Type: "T", Lane: webhookgate.Lane{Tenant: "t"}, Snapshot: true, Body: []byte(body), Digest: sha256.Sum256([]byte(body))})
		return err
	}
	if err := keep("A"); err != nil {
		t.Fatal(err)
	}
	u.RawQuery = "sslmode=disable"
	other, err := pgx.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context())
	exec := func(sql string) {
		if _, err := other.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("BEGIN; LOCK TABLE " + schema + ".webhook IN SHARE MODE")
	answer := make(chan error, 1)
	go func() { answer <- keep("B") }()
	for waiting := 0; waiting == 0; {
		if err := other.QueryRow(t.Context(), "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '"+schema+".webhook'::regclass").Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	wire.Refuse() // the driver can't ask the server to cancel
	time.AfterFunc(100*time.Millisecond, wire.Pass)
	select {
	case err = <-answer:
		exec("ROLLBACK")
	case <-time.After(1500 * time.Millisecond):
		exec("ROLLBACK")
		err = <-answer
	}
	exec("BEGIN; LOCK TABLE " + schema + ".webhook IN ACCESS EXCLUSIVE MODE; ROLLBACK") // the server has ended it
	all, listErr := i.List(store.Filter{})
	for listErr != nil && t.Context().Err() == nil { // on a connection that broke
		all, listErr = i.List(store.Filter{})
	}
	if there := len(all) == 2; there != (err == nil) {
		t.Errorf("its sender was told %v; it is there: %v", err, there)
	}
}

// The first webhook of a tenant comes through two replicas at once: the one that waits for the other sees what that one stored.
func TestNewTenantAtOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Schema(t)
	open := inDatabase(t, dsn)
	for _, tc := range []struct {
		name, first, second string
		latest              bool
		want                string
	}{
		{"a signed id", "A", "A", false, "waiting"},
		{"only the latest", "A", "B", true, "superseded waiting"},
	} {
		change := func(c *Config) { c.Store.KeepLatest, c.Store.Window = tc.latest, 0 }
		a := newDesk(t, open, change)
		b := newDesk(t, open, change)
		check(t, a.Pause(store.Pause{}))
		b.until("paused", func() bool { return len(b.Paused()) > 0 })
		for _, d := range []*desk{a, b} {
			d.take("other", tc.name+fmt.Sprint(d.ahead)) // its first transaction reads everything twice
		}
		conn, schema := connectTo(t, dsn)
		defer conn.Close(context.Background())
		tx := must2(conn.Begin(t.Context()))(t)
		must2(tx.Exec(t.Context(), "LOCK TABLE "+schema+".webhook IN SHARE MODE"))(t)
		tenant := strings.ReplaceAll(tc.name, " ", "-")
		waiting := func(n string) func() bool {
			return func() bool {
				return inSchema(t, dsn, "SELECT count(*)::text FROM pg_locks l JOIN pg_stat_activity USING (pid) WHERE NOT granted AND query LIKE '%{schema}%'") == n
			}
		}
		var wg sync.WaitGroup
		for n, one := range []struct {
			*desk
			body string
		}{{a, tc.first}, {b, tc.second}} {
			w := one.hook(tenant, one.body)
			w.SignedID = "signed" + one.body
			wg.Go(func() { one.sendHook(w) })
			a.until("it waits", waiting(fmt.Sprint(n+1)))
		}
		check(t, tx.Rollback(t.Context()))
		wg.Wait()
		a.want(tc.name, a.states(tenant), tc.want)
		a.shut()
		b.shut()
	}
}

// A copy comes through another replica than the first. Its 200 promises as much: what that replica remembers of the tenant is older.
func TestCopyThroughAnotherReplica(t *testing.T) {
	t.Parallel()
	open := inDatabase(t, pgtest.Schema(t))
	var changed atomic.Pointer[string]
	a := newDesk(t, open)
	b := newDesk(t, open, func(c *Config) { c.Store.Changed = func(tenant string) { changed.Store(&tenant) } })
	a.take("t", "A")
	a.idle("t")
	b.want("a copy", b.send("t", "A"), "=")
	if tenant := changed.Load(); tenant == nil || *tenant != "t" {
		t.Error("who asked the other replica before gets the answer from before")
	}
}
