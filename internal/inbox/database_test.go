package inbox

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"usher/internal/inbox/engine"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// inSchema runs a statement in a test's schema, and returns the first value.
func inSchema(t testing.TB, dsn, statement string) string {
	t.Helper()
	key := session{t, dsn}
	sessions.Lock()
	conn := sessions.idle[key]
	delete(sessions.idle, key)
	sessions.Unlock()
	if conn == nil {
		conn, _ = connectTo(t, dsn)
	}
	u, err := url.Parse(dsn)
	check(t, err)
	rows, err := conn.Query(context.Background(), strings.ReplaceAll(statement, "{schema}", u.Query().Get("schema")))
	check(t, err)
	defer func() {
		rows.Close()
		sessions.Lock()
		defer sessions.Unlock()
		sessions.idle[key] = conn
	}()
	value := ""
	for rows.Next() {
		check(t, rows.Scan(&value))
	}
	check(t, rows.Err())
	return value
}

// sessions has the connections of inSchema that nobody uses: to make one takes ten times as long as most statements.
var sessions = struct {
	sync.Mutex
	idle map[session]*pgx.Conn
}{idle: make(map[session]*pgx.Conn)}

type session struct {
	testing.TB
	dsn string
}

// connectTo connects to a test's database as another program does, until the test ends. Its names are those of the
// test's schema.
func connectTo(t testing.TB, dsn string) (conn *pgx.Conn, schema string) {
	t.Helper()
	u := must(url.Parse(dsn))(t)
	query := u.Query()
	schema = query.Get("schema")
	query.Del("schema")
	u.RawQuery = query.Encode()
	conn = must(pgx.Connect(context.Background(), u.String()))(t)
	t.Cleanup(func() { conn.Close(context.Background()) })
	if schema != "" {
		must(conn.Exec(context.Background(), "SET search_path = "+pgx.Identifier{schema}.Sanitize()))(t)
	}
	return conn, schema
}

// another has another client begin a transaction with these statements.
func another(t testing.TB, dsn string, statements ...string) pgx.Tx {
	t.Helper()
	conn, _ := connectTo(t, dsn)
	tx := must(conn.Begin(t.Context()))(t)
	for _, s := range statements {
		must(tx.Exec(t.Context(), s))(t)
	}
	return tx
}

// waitsForLocks says whether so many statements like this of the test's schema wait for a lock.
func waitsForLocks(t testing.TB, dsn, like string, count int) func() bool {
	question := `SELECT count(*)::text FROM pg_locks JOIN pg_stat_activity USING (pid)
		WHERE NOT granted AND query LIKE '` + like + `{schema}%'`
	return func() bool { return inSchema(t, dsn, question) == fmt.Sprint(count) }
}

// as returns the address of a server for another user, or another database.
func as(s *pgtest.Server, user, database string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", user, s.Addr(), database)
}

// writable returns the address of whichever of two servers is the primary.
func writable(a, b *pgtest.Server) string {
	const options = "sslmode=disable&target_session_attrs=read-write"
	return fmt.Sprintf("postgres://usher@%s,%s/postgres?%s", a.Addr(), b.Addr(), options)
}

// replayed waits until a standby has all that its primary has.
func replayed(t *testing.T, primary, standby *pgtest.Server) {
	t.Helper()
	at := primary.Exec(t, "SELECT pg_current_wal_lsn()")
	testkit.Eventually(t, "it is replayed", func() bool {
		return standby.Exec(t, "SELECT pg_last_wal_replay_lsn() >= '"+at+"'") == "t"
	})
}

// A problem that somebody has to correct is an error at the start, and the error says what to do.
func TestDatabaseSetup(t *testing.T) {
	costly(t)
	t.Parallel()
	s := pgtest.New(t, "wal_writer_delay=10s")
	s.Write(t, "pg_hba.conf", "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
	s.Exec(t, `
		CREATE ROLE app LOGIN PASSWORD 'one';
		CREATE ROLE poor LOGIN PASSWORD 'one';
		GRANT CREATE ON DATABASE postgres TO app;
		SELECT pg_reload_conf()`)
	s.Exec(t, `
		CREATE SCHEMA newer;
		CREATE TABLE newer.schema_version (version int, compatible int, views int);
		INSERT INTO newer.schema_version VALUES (1000, 1000, 1);
		GRANT ALL ON SCHEMA newer TO app;
		GRANT SELECT ON newer.schema_version TO app`)
	s.Exec(t, `
		CREATE SCHEMA odd;
		CREATE TABLE odd.schema_version (version int, compatible int, views int);
		INSERT INTO odd.schema_version VALUES (1, 1, 1000);
		CREATE TABLE odd.lane (tenant text);
		GRANT ALL ON SCHEMA odd TO app;
		GRANT SELECT ON odd.schema_version, odd.lane TO app`)
	s.Exec(t, "CREATE DATABASE latin OWNER app ENCODING 'LATIN1' TEMPLATE template0")
	s.Exec(t, "CREATE DATABASE bytes OWNER app ENCODING 'SQL_ASCII' TEMPLATE template0")
	password := atomic.Value{}
	password.Store("one")
	get := func() string { return password.Load().(string) }
	for _, tt := range []struct{ name, dsn, password, says string }{
		{"a wrong password", as(s, "app", "postgres"), "two", "USHER_WEBHOOK_INBOX_PASSWORD"},
		{"an unknown user", as(s, "nobody", "postgres"), "one", "refuses the user"},
		{"a missing database", as(s, "app", "nowhere"), "one", "CREATE DATABASE"},
		{"a role without rights", as(s, "poor", "postgres"), "one", `GRANT CREATE ON DATABASE "postgres" TO "poor"`},
		{"another encoding", as(s, "app", "latin"), "one", "has the encoding LATIN1, and usher needs UTF8"},
		{"no encoding", as(s, "app", "bytes"), "one", "has the encoding SQL_ASCII, and usher needs UTF8"},
		{"tables of a newer usher", as(s, "app", "postgres") + "&schema=newer", "one", "newer usher"},
		{"tables of another build", as(s, "app", "postgres") + "&schema=odd", "one", "name another schema"},
	} {
		_, err := openDatabase(tt.dsn, func() string { return tt.password })
		if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "two") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}

	// The password is rotated: new connections use the new one, and what goes wrong until then goes on by itself.
	d := newDesk(t, func() engine.Engine { return must(openDatabase(as(s, "app", "postgres"), get))(t) })
	d.take("t", "A")
	// It is committed before the connections end: otherwise a new one may still be as the old ones were.
	alter := func(sql string) {
		s.Exec(t, "ALTER ROLE app "+sql)
		s.Exec(t, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'app'")
	}
	alter("PASSWORD 'three'")
	if got := d.send("t", "B"); got == "+" {
		t.Error("taken in with the old password")
	}
	password.Store("three")
	d.insist("t", "B")

	// A role's default does not make a 200 worth less: what is committed without a sync goes with the server.
	alter("SET synchronous_commit = off")
	d.insist("t", "C")
	d.until("paused", func() bool { return d.Pause(Pause{}) == nil })
	d.insist("u", "A")
	s.Kill()
	s.Start()
	d.until("back", func() bool {
		all, err := d.List(context.Background(), Filter{Tenant: "u"})
		return err == nil && len(all) == 1
	})

	// It may only be read for a while.
	alter("SET default_transaction_read_only = on")
	d.until("refused", func() bool { return strings.Contains(d.send("t", time.Now().String()), "is read-only") })
	s.Exec(t, "ALTER ROLE app RESET default_transaction_read_only")
	d.until("taken in again", func() bool { return d.send("t", time.Now().String()) == "+" })
	d.until("resumed", func() bool { _, err := d.Resume(Pause{}); return err == nil })
	d.idle("")
}

// Somebody ends all connections, or the server is restarted in order: whoever reads next does not notice.
func TestReadersGetAnotherConnection(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	d := newDesk(t, inDatabase(t, s.DSN()))
	d.take("t", "A")
	d.idle("t")
	for range 5 {
		s.Exec(t, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'usher'")
		d.want("read", d.states("t"), "delivered")
	}
}

// A server is killed and comes back: senders get 503 meanwhile, nothing that got 200 is lost, everything goes on by
// itself, and the outage is logged once.
func TestDatabaseIsKilled(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	d := newDesk(t, inDatabase(t, s.DSN()))
	var taken atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-stop:
					return
				default:
				}
				for body := fmt.Sprintf("%05d", k); ; {
					if got := d.send(fmt.Sprint("t", n), body); got == "+" || got == "=" {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				taken.Add(1)
			}
		})
	}
	for range 2 {
		before := taken.Load()
		d.until("some taken in", func() bool { return taken.Load() > before+50 })
		s.Kill()
		time.Sleep(200 * time.Millisecond)
		s.Start()
	}
	before := taken.Load()
	d.until("some taken in", func() bool { return taken.Load() > before+50 })
	close(stop)
	wg.Wait()
	d.idle("")
	for n := range 8 {
		got := d.main.got(fmt.Sprint("t", n))
		if !slices.IsSorted(got) {
			t.Errorf("t%d is out of order: %v", n, got)
		}
		got = slices.Compact(got)
		if len(got) == 0 || got[len(got)-1] != fmt.Sprintf("%05d", len(got)-1) {
			t.Errorf("t%d got %d, the last is %s", n, len(got), got[len(got)-1])
		}
	}
	if n := strings.Count(d.log.String(), "cannot write to the inbox, will retry"); n > 4 {
		t.Errorf("two outages are said %d times", n)
	}
}

// A failover to a synchronous standby loses nothing that got 200.
func TestFailover(t *testing.T) {
	slow(t)
	t.Parallel()
	primary := pgtest.New(t)
	standby := primary.Standby(t)
	d := newDesk(t, inDatabase(t, writable(primary, standby)))
	var mu sync.Mutex
	acknowledged := make(map[string]bool)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-stop:
					return
				default:
				}
				tenant, body := fmt.Sprint("t", n), fmt.Sprintf("%05d", k)
				if d.send(tenant, body) == "+" {
					mu.Lock()
					acknowledged[tenant+":"+body] = true
					mu.Unlock()
				}
			}
		})
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(acknowledged) }
	d.until("some", func() bool { return count() > 200 })
	primary.Kill()
	standby.Promote(t)
	before := count()
	d.until("some more", func() bool { return count() > before+200 })
	close(stop)
	wg.Wait()
	d.idle("")
	have := make(map[string]bool)
	for _, one := range d.main.got("") {
		have[one] = true
	}
	for one := range acknowledged {
		if !have[one] {
			t.Errorf("%s was lost", one)
		}
	}
	for n := range 8 {
		if got := d.main.got(fmt.Sprint("t", n)); !slices.IsSorted(got) {
			t.Errorf("t%d is out of order", n)
		}
	}
}

// usher works through a pooler in transaction mode, and over a connection with latency.
func TestPoolerAndLatency(t *testing.T) {
	costly(t)
	t.Parallel()
	dsn := pgtest.Schema(t)
	use := func(t *testing.T, dsn string) {
		d := newDesk(t, inDatabase(t, dsn))
		d.main.set("t1", answers(500, 503, 200))
		var wg sync.WaitGroup
		for n := range 20 {
			wg.Go(func() {
				for _, body := range []string{"A", "B", "A"} {
					if got := d.send(fmt.Sprint("t", n), body); got != "+" {
						t.Errorf("t%d:%s: %s", n, body, got)
					}
				}
			})
		}
		wg.Wait()
		d.idle("")
		for n := range 20 {
			d.want(fmt.Sprint("t", n), fmt.Sprint(d.main.got(fmt.Sprint("t", n))), "[A B A]")
		}
		check(t, d.Pause(Pause{Tenant: "t0"}))
		must(d.Erase("", "t1"))(t)
		d.want("a copy", d.send("t2", "A"), "=")
	}
	t.Run("latency", func(t *testing.T) {
		u := must(url.Parse(dsn))(t)
		w := pgtest.Cut(t, u.Host)
		w.Latency(10 * time.Millisecond)
		use(t, w.Through(dsn))
	})
	t.Run("pooler", func(t *testing.T) {
		use(t, pgtest.New(t).Pooler(t)+"&default_query_exec_mode=exec")
	})
}

// Another client has locked a lane's row: only the webhook of that lane fails, and the others get their answers in
// time.
func TestLockedLane(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Schema(t)
	d := newDesk(t, inDatabase(t, dsn))
	d.take("locked", "A")
	d.idle("")
	tx := another(t, dsn, "SELECT 1 FROM lane WHERE tenant = 'locked' FOR UPDATE")
	var wg sync.WaitGroup
	var locked string
	for n := range 32 {
		wg.Go(func() {
			if n == 13 {
				locked = d.send("locked", "B")
			} else {
				d.want("another tenant", d.told(fmt.Sprint("t", n), "B"), "+")
			}
		})
	}
	wg.Wait()
	if locked == "+" || d.Err() != nil {
		t.Errorf("the locked one: %s, %v", locked, d.Err())
	}
	check(t, tx.Rollback(t.Context()))
	d.insist("locked", "B")
	d.idle("")
}

// The database's clock jumps, as after a failover to another machine: waiting webhooks are delivered, in order, and
// once.
func TestClockJumps(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		for n, jump := range []time.Duration{3 * time.Hour, -6 * time.Hour, 48 * time.Hour, -100 * time.Hour} {
			tenant := fmt.Sprint("t", n)
			d.main.set(tenant, status(500))
			d.take(tenant, "A", "B")
			d.untilTried(tenant, 4)
			d.ahead.Add(int64(jump))
			d.take("other", fmt.Sprint(n))
			d.main.set(tenant, nil)
			d.idle(tenant)
			d.want(fmt.Sprint("after ", jump), fmt.Sprint(d.main.got(tenant)), "[A B]")
		}
		if !strings.Contains(d.log.String(), "clock has jumped") {
			t.Error("it is not said")
		}
	})
}

// A standby may lag behind. While the primary is away for a moment, a connection may go to the standby, and what is
// read there is older than what got 200, or is missing.
func TestStandbyIsNotRead(t *testing.T) {
	costly(t)
	t.Parallel()
	primary := pgtest.New(t)
	standby := primary.Standby(t)
	wire := pgtest.Cut(t, primary.Addr())
	dsn := fmt.Sprintf("postgres://usher@%s,%s/postgres?sslmode=disable", wire.Addr(), standby.Addr())
	d := newDesk(t, inDatabase(t, dsn))
	d.take("t", "A")
	d.idle("t")
	standby.Exec(t, "SELECT pg_wal_replay_pause()")
	wire.Refuse()
	for range 3 { // whoever reads finds another connection
		_, _ = d.List(context.Background(), Filter{})
	}
	wire.Pass()
	d.until("paused", func() bool { return d.Pause(Pause{Tenant: "t"}) == nil })
	large := strings.Repeat("B", 100_000) // it is not read ahead
	before := must(d.Snapshots(t.Context(), "t"))(t)[0].Seq
	d.until("taken in", func() bool { return d.send("t", large) == "+" })
	if now := must(d.Snapshots(t.Context(), "t"))(t)[0].Seq; now <= before {
		t.Errorf("the last snapshot is still %d", before)
	}
	must(d.Resume(Pause{Tenant: "t"}))(t)
	d.idle("t")
	d.want("states", d.states("t"), "delivered delivered")
}

// Somebody has locked a whole table, with CREATE INDEX or by hand: no webhook can be stored until the lock is gone, and
// senders are told so.
func TestLockedTable(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Schema(t)
	d := newDesk(t, inDatabase(t, dsn))
	d.take("t", "A")
	d.idle("t")
	ctx, end := context.WithCancel(t.Context())
	defer end()
	tx := another(t, dsn, "LOCK TABLE webhook IN SHARE MODE")
	go func() { _, _ = tx.Exec(ctx, "SELECT pg_sleep(600)") }() // if it said nothing, usher would end it
	d.want("told", d.told("t", "B"), engine.ErrLocked.Error())
	end()
	d.until("stored", func() bool { return d.send("t", "B") == "+" })
	d.until("ready", func() bool { return d.Health() == (Health{}) })
	d.idle("t")
	d.want("accepted", fmt.Sprint(d.main.got("t")), "[A B]")
}

// Somebody's trigger refuses a tenant's webhooks. That is the fault of these webhooks: others that arrive with them
// are taken in.
func TestTriggerThatRefusesATenant(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Schema(t)
	d := newDesk(t, inDatabase(t, dsn))
	d.until("open", d.Ready)
	conn, _ := connectTo(t, dsn)
	must(conn.Exec(t.Context(), `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON webhook FOR EACH ROW WHEN (NEW.tenant = 'bad')
			EXECUTE FUNCTION refuse()`))(t)
	var all []func()
	for n := range 20 {
		all = append(all, func() {
			if n%5 == 0 {
				if told := d.told("bad", fmt.Sprint(n)); !strings.Contains(told, "not this one") {
					t.Errorf("the sender was told %q", told)
				}
				return
			}
			d.want("another tenant", d.told(fmt.Sprint("t", n), "A"), "+")
		})
	}
	d.together(all...)
}
