package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Checks are answers to "may this tenant use this feature?": over HTTP from usher, and in SQL from
// the database of its inbox.

const (
	checkTenants = 100_000
	checkers     = 8 // connections that ask, each its next question when the last one is answered
)

// asker is one connection. It is called with a number of a tenant, one of checkTenants, and fails
// if the answer is not yes.
type asker func(ctx context.Context, tenant int) error

func checks(ctx context.Context, b *bench) ([]*table, error) {
	inbox, stop, err := b.inboxFor(database)
	if err != nil {
		return nil, err
	}
	defer stop()
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	u, err := b.start(ctx, inbox, "USHER_ENTITLEMENTS_LISTEN="+ports[0])
	if err != nil {
		return nil, err
	}
	defer u.stop()
	if err := fill(ctx, inbox, "crm", "known", checkTenants, false); err != nil {
		return nil, err
	}
	db, err := pgx.Connect(ctx, inbox)
	if err != nil {
		return nil, err
	}
	defer db.Close(ctx)
	for _, s := range []string{
		`UPDATE usher.snapshot SET features = features || (
			SELECT jsonb_agg(jsonb_build_object('code', 'feature-' || i, 'limit', i, 'name', 'Feature ' || i))
			FROM generate_series(1, 9) i)`,
		`CREATE TABLE customers AS SELECT i AS id, 'known-' || i AS tenant, repeat('x', 100) AS filler
			FROM generate_series(1, ` + fmt.Sprint(2*checkTenants) + `) i`,
		`ALTER TABLE customers ADD PRIMARY KEY (id), ADD UNIQUE (tenant)`, `VACUUM ANALYZE`,
	} {
		if _, err := db.Exec(ctx, s); err != nil {
			return nil, err
		}
	}
	single, err := b.singleChecks(ctx, inbox, "http://"+ports[0])
	if err != nil {
		return nil, err
	}
	all, err := b.allChecks(ctx, db)
	return []*table{single, all}, err
}

// singleChecks measures questions about one tenant, each way in its turn.
func (b *bench) singleChecks(ctx context.Context, inbox, port string) (*table, error) {
	ways := []struct {
		name    string
		tenants int // it asks about one of so many
		asker   func() (asker, error)
	}{
		{"HTTP, /v1/check", checkTenants, func() (asker, error) { return askHTTP(port), nil }},
		{"HTTP, about 100 of the tenants", 100, func() (asker, error) { return askHTTP(port), nil }},
		{"SQL, the function allowed", checkTenants, func() (asker, error) {
			return askSQL(ctx, inbox, "SELECT usher.allowed($1, 'users', 5)")
		}},
		{"SQL, the view entitlements", checkTenants, func() (asker, error) {
			return askSQL(ctx, inbox, `SELECT EXISTS (SELECT FROM usher.entitlements
				WHERE tenant = $1 AND feature = 'users' AND coalesce("limit" >= 5, true))`)
		}},
	}
	askers := make([][]asker, len(ways))
	for i, w := range ways {
		for range checkers {
			one, err := w.asker()
			if err != nil {
				return nil, err
			}
			askers[i] = append(askers[i], one)
		}
	}
	samples := make([][]calls, len(ways))
	for round := range pick(b, 1, 5) {
		b.say("checks, round %d", round+1)
		for turn := range ways {
			i := (turn + round) % len(ways) // none is always the first
			c, err := ask(ctx, askers[i], ways[i].tenants, pick(b, time.Second, 2*time.Second))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", ways[i].name, err)
			}
			samples[i] = append(samples[i], c)
		}
	}
	t := &table{title: "Checks of one tenant", header: []string{"", "checks/s", "p50, ms", "p99, ms"}}
	for i, w := range ways {
		t.add(w.name, number(median(samples[i], calls.rate)),
			medianMillis(samples[i], func(c calls) time.Duration { return c.p50 }),
			medianMillis(samples[i], func(c calls) time.Duration { return c.p99 }))
	}
	t.note("%d connections ask about any of %d tenants with 10 features. usher holds an answer for a second. "+
		"Clients, usher and PostgreSQL share the machine.", checkers, checkTenants)
	return t, nil
}

func askHTTP(port string) asker {
	client := &http.Client{Transport: &http.Transport{}}
	return func(ctx context.Context, tenant int) error {
		address := fmt.Sprintf("%s/v1/check?tenant=known-%d&feature=users&quantity=5", port, tenant)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(r)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNoContent {
			return fmt.Errorf("the answer is %s", resp.Status)
		}
		return nil
	}
}

func askSQL(ctx context.Context, inbox, query string) (asker, error) {
	db, err := pgx.Connect(ctx, inbox) // the end of the server closes it
	return func(ctx context.Context, tenant int) error {
		var yes *bool
		if err := db.QueryRow(ctx, query, fmt.Sprint("known-", tenant)).Scan(&yes); err != nil {
			return err
		}
		if yes == nil || !*yes {
			return fmt.Errorf("known-%d is not allowed", tenant)
		}
		return nil
	}, err
}

// ask lets all askers ask for a while.
func ask(ctx context.Context, askers []asker, tenants int, length time.Duration) (c calls, err error) {
	var mu sync.Mutex
	var latencies []time.Duration
	var all sync.WaitGroup
	began := time.Now()
	for _, one := range askers {
		all.Go(func() {
			var own []time.Duration
			var failed error
			for asked := time.Now(); asked.Sub(began) < length && failed == nil; {
				failed = one(ctx, 1+rand.IntN(tenants))
				now := time.Now()
				own = append(own, now.Sub(asked))
				asked = now
			}
			mu.Lock()
			defer mu.Unlock()
			latencies = append(latencies, own...)
			if failed != nil {
				err = failed
			}
		})
	}
	all.Wait()
	c.took, c.requests = time.Since(began), len(latencies)
	slices.Sort(latencies)
	c.p50, c.p99 = quantile(latencies, 0.5), quantile(latencies, 0.99)
	return c, err
}

// allChecks measures questions about all tenants at once.
func (b *bench) allChecks(ctx context.Context, db *pgx.Conn) (*table, error) {
	queries := []struct {
		name string
		want int64
		text string
	}{
		{"read usher's table, as text", 10 * checkTenants,
			"SELECT count(*) * 10 FROM usher.snapshot WHERE length(features::text) > 0"},
		{"a report over the view entitlements", 10 * checkTenants,
			`SELECT sum(n) FROM (
				SELECT feature, count(*) AS n, max("limit") FROM usher.entitlements GROUP BY feature) r`},
		{"join 200000 customers with the view", checkTenants,
			"SELECT count(*) FROM customers c JOIN usher.entitlements e USING (tenant) WHERE e.feature = 'users'"},
		{"WHERE allowed(…) for 200000 customers", checkTenants,
			"SELECT count(*) FROM customers c WHERE usher.allowed(c.tenant, 'users')"},
	}
	took := make([][]time.Duration, len(queries))
	for round := range pick(b, 1, 3) {
		b.say("reports, round %d", round+1)
		for i, q := range queries {
			var n int64
			began := time.Now()
			if err := db.QueryRow(ctx, q.text).Scan(&n); err != nil {
				return nil, err
			}
			if took[i] = append(took[i], time.Since(began)); n != q.want {
				return nil, fmt.Errorf("%s: %d rows", q.name, n)
			}
		}
	}
	t := &table{title: "All tenants in one query", header: []string{"", "ms"}}
	for i, q := range queries {
		t.add(q.name, medianMillis(took[i], func(d time.Duration) time.Duration { return d }))
	}
	return t, nil
}
