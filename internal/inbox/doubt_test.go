package inbox

import (
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/testkit/pgtest"
)

// A connection breaks while the server still works on the transaction. The sender gets no 200, and sends through
// another replica, which finds the result: nothing is stored twice, and nothing comes after a webhook that was sent
// later.
func TestConnectionBreaksInACommit(t *testing.T) {
	t.Parallel()
	for _, tenant := range []string{"known", "new"} {
		for _, next := range some(1, "B", "C") {
			t.Run(tenant+", then "+next, func(t *testing.T) {
				t.Parallel()
				dsn := pgtest.Schema(t)
				wire := pgtest.Cut(t, must(url.Parse(dsn))(t).Host)
				d := newDesk(t, inDatabase(t, wire.Through(dsn)))
				check(t, d.Pause(Pause{}))
				d.take("known", "A")
				replica := newDesk(t, inDatabase(t, dsn))
				replica.until("it is paused", func() bool { return len(replica.Paused()) > 0 })
				noSweeps(t, dsn)
				other := another(t, dsn, "LOCK TABLE webhook IN SHARE MODE")
				first, second := make(chan string, 1), make(chan string, 1)
				go func() { first <- d.send(tenant, "B") }()
				d.until("the first waits for the table", waitsForLocks(t, dsn, "%", 1))
				began := time.Now()
				wire.Refuse() // the driver can't ask the server to cancel
				if told := <-first; told == "+" || told == "=" {
					t.Errorf("its sender was told %q, and nobody knew that", told)
				}
				go func() {
					for told := ""; told != "+" && told != "="; {
						told = replica.send(tenant, next) // while the first one has the tenant's row it is refused
						if told == "+" || told == "=" {
							second <- told
						}
					}
				}()
				time.Sleep(100 * time.Millisecond)
				check(t, other.Rollback(t.Context()))
				if time.Since(began) > time.Second {
					t.Skip("this machine is too slow: the first transaction may have given up its wait for the lock")
				}
				told := <-second
				want := map[string]string{"B": "waiting", "C": "waiting waiting"}[next]
				if tenant == "known" {
					want = "waiting " + want // A
				}
				replica.want("what is stored, after "+told, replica.states(tenant), want)
				if all := replica.list(tenant); next == "C" {
					last := must(replica.Show(t.Context(), all[len(all)-1].ID))(t)
					replica.want("what was sent last", string(last.Body), "C")
				}
				wire.Pass()
				d.until("the same again is a copy", func() bool { return d.send(tenant, next) == "=" })
			})
		}
	}
}

// noSweeps keeps replicas from deleting old webhooks, until the test ends: a writer that waits for the table to do
// that does not take in what the test sends.
func noSweeps(t *testing.T, dsn string) {
	t.Helper()
	conn, schema := connectTo(t, dsn)
	must(conn.Exec(t.Context(), "SELECT pg_advisory_lock(hashtext($1))", `usher sweep "`+schema+`"`))(t)
}

// The first webhook of a tenant comes through two replicas at once: the replica that waits for the other sees what
// the other has stored.
func TestNewTenantAtOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Schema(t)
	open := inDatabase(t, dsn)
	noSweeps(t, dsn)
	for _, tc := range []struct {
		name, first, second string
		want                string
	}{
		{"a copy", "A", "A", "waiting"},
		{"another", "A", "B", "waiting waiting"},
	} {
		a := newDesk(t, open)
		b := newDesk(t, open)
		check(t, a.Pause(Pause{}))
		b.until("paused", func() bool { return len(b.Paused()) > 0 })
		tx := another(t, dsn, "LOCK TABLE webhook IN SHARE MODE")
		tenant := strings.ReplaceAll(tc.name, " ", "-")
		var wg sync.WaitGroup
		for n, one := range []struct {
			*desk
			body string
		}{{a, tc.first}, {b, tc.second}} {
			wg.Go(func() { one.send(tenant, one.body) })
			a.until("it waits", waitsForLocks(t, dsn, "%", n+1))
		}
		check(t, tx.Rollback(t.Context()))
		wg.Wait()
		a.want(tc.name, a.states(tenant), tc.want)
		a.shut()
		b.shut()
	}
}

// A copy comes through another replica than the original. Its 200 promises as much, although that replica's cache has
// an older snapshot of the tenant.
func TestCopyThroughAnotherReplica(t *testing.T) {
	t.Parallel()
	open := inDatabase(t, pgtest.Schema(t))
	var changed atomic.Pointer[string]
	a := newDesk(t, open)
	b := newDesk(t, open, func(c *setup) { c.Changed = func(tenant string) { changed.Store(&tenant) } })
	a.take("t", "A")
	a.idle("t")
	b.want("a copy", b.send("t", "A"), "=")
	if tenant := changed.Load(); tenant == nil || *tenant != "t" {
		t.Error("who asked the other replica before gets the answer from before")
	}
}

// No sender has a 200 for what a transaction in doubt has stored. In an outage, which often begins with such a
// transaction, entitlements must go on answering with what they hold.
func TestDoubtKeepsEntitlements(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		var changes atomic.Int64
		var doubt atomic.Bool
		d := newDesk(t, open, between(doubtful(&doubt)), func(c *setup) {
			c.Changed = func(string) { changes.Add(1) }
		})
		release := d.main.hang("t")
		d.take("t", "A")
		d.untilTried("t", 1)
		before := changes.Load()
		doubt.Store(true)
		release() // the outcome is in doubt, and so is what arrives
		if told := d.send("u", "B"); told == "+" || told == "=" {
			t.Errorf("its sender was told %q, and nobody knew that", told)
		}
		if n := changes.Load() - before; n != 0 {
			t.Errorf("%d changes", n)
		}
		doubt.Store(false)
		d.idle("t")
		d.want("the same again", d.send("u", "B"), "=")
	})
}
