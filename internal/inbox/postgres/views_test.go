package postgres

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"usher/internal/inbox/engine"
	"usher/internal/testkit/pgtest"
)

// A newer usher brings newer views while somebody's report is open: nobody waits for its end. Later they are
// replaced, in one piece, and what was granted and built on them stays.
func TestViewsAreReplacedInPlace(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	log := new(bytes.Buffer)
	open := func(change func(*Engine)) *Engine {
		t.Helper()
		a, err := Parse(s.DSN())
		check(t, err)
		e := newEngine(a, nil, slog.New(slog.NewTextHandler(log, nil)))
		change(e)
		e, err = e.open()
		check(t, err)
		t.Cleanup(func() { e.Close() })
		return e
	}
	writes := func(who string, e *Engine) {
		t.Helper()
		if err := e.Write(func(tx engine.Tx) error { tx.Queue("touch", nil); return nil }); err != nil {
			t.Errorf("%s can't write: %v", who, err)
		}
	}
	report, other := connected(t, s), connected(t, s)
	reads := func(who, query string) {
		t.Helper()
		if _, err := other.Exec(t.Context(), query); err != nil {
			t.Errorf("%s: %v", who, err)
		}
	}
	older := open(func(*Engine) {})
	s.Exec(t, `
		CREATE ROLE app;
		GRANT USAGE ON SCHEMA usher TO app;
		GRANT SELECT ON usher.tenants, usher.entitlements TO app;
		GRANT EXECUTE ON FUNCTION usher.allowed TO app;
		GRANT CREATE ON DATABASE postgres TO app`)
	s.Exec(t, `
		CREATE SCHEMA mine AUTHORIZATION app;
		SET ROLE app;
		CREATE VIEW mine.users AS SELECT * FROM usher.entitlements WHERE feature = 'users'`)
	check(t, second(report.Exec(t.Context(), "BEGIN; SELECT * FROM usher.entitlements")))

	newer := open(func(e *Engine) {
		e.viewsVersion++
		const from = "\nFROM {schema}.snapshot s CROSS JOIN"
		e.views = strings.Replace(viewsText, "AS webhook"+from, "AS webhook, s.seq AS more"+from, 1)
		e.views = strings.Replace(e.views, "RETURN (", "RETURN 1 = 1 AND (", 1)
		if strings.Count(e.views, "AS more") != 1 || e.views == strings.Replace(e.views, "1 = 1", "", 1) {
			t.Fatal("views.sql does not look as expected")
		}
	})
	others := make(chan error)
	go func() { // others read all the time, and must not wait until the report ends
		for range 200 {
			_, err := other.Exec(context.Background(), "SELECT usher.allowed('t', 'f') FROM usher.entitlements")
			if err != nil {
				others <- err
			}
		}
		close(others)
	}()
	for range 3 {
		writes("the older usher", older)
		writes("the newer usher", newer)
		newer.viewsDue = time.Now()
		newer.Maintain()
	}
	for err := range others {
		t.Errorf("somebody else: %v", err)
	}
	if newer.viewsDue.IsZero() {
		t.Error("the views were replaced while a report had read them")
	}
	if n := strings.Count(log.String(), "can't be replaced yet"); n != 1 {
		t.Errorf("it is said %d times:\n%s", n, log)
	}
	check(t, second(report.Exec(t.Context(), "COMMIT")))
	newer.viewsDue = time.Now()
	newer.Maintain()
	if !newer.viewsDue.IsZero() {
		t.Fatalf("the views were not replaced:\n%s", log)
	}
	writes("the older usher", older)

	again := open(func(*Engine) {}) // an older usher that is restarted
	writes("the restarted usher", again)
	reads("the new column", "SELECT more FROM usher.entitlements")
	reads("what was granted", `
		SET ROLE app;
		SELECT * FROM usher.tenants;
		SELECT more, usher.allowed('t', 'f') FROM usher.entitlements;
		SELECT * FROM mine.users;
		RESET ROLE`)
	if got := s.Exec(t, "SELECT prosrc LIKE '%1 = 1%' FROM pg_proc WHERE oid = 'usher.allowed'::regproc"); got != "t" {
		t.Error("the function was not replaced")
	}
}

// A database where nothing but the tables can be made works on, without views, and says so.
func TestViewsThatCannotBeMade(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	s.Exec(t, "CREATE SCHEMA usher; CREATE TABLE usher.tenants ()")
	a, err := Parse(s.DSN())
	check(t, err)
	if err := Check(a, nil, false); err == nil || !strings.Contains(err.Error(), "tenants") {
		t.Errorf("check says %v", err)
	}
	log := new(bytes.Buffer)
	e, err := Open(a, nil, slog.New(slog.NewTextHandler(log, nil)))
	check(t, err)
	defer e.Close()
	check(t, e.Write(func(tx engine.Tx) error { tx.Queue("touch", nil); return nil }))
	if !strings.Contains(log.String(), "views for SQL can't be created") {
		t.Errorf("it is not said:\n%s", log)
	}
	s.Exec(t, "DROP TABLE usher.tenants")
	check(t, Check(a, nil, false))
	if got := s.Exec(t, "SELECT coalesce(to_regclass('usher.tenants')::text, 'none')"); got != "none" {
		t.Errorf("the check has made %s", got)
	}
	e.viewsDue = time.Now()
	e.Maintain()
	if got := s.Exec(t, "SELECT count(*) FROM usher.tenants"); got != "0" {
		t.Errorf("there are %s tenants", got)
	}
}

func connected(t *testing.T, s *pgtest.Server) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), s.DSN()+"&default_query_exec_mode=simple_protocol")
	check(t, err)
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func second[T any](_ T, err error) error { return err }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
