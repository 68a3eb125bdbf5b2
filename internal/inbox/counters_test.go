package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/testkit/pgtest"
)

// The counts in a lane's row are right, whatever people do at the same time through three replicas.
func TestLanesCountWhatTheyHave(t *testing.T) {
	slow(t)
	t.Parallel()
	dsn := pgtest.Schema(t)
	// Some transactions run twice, as after a deadlock, and others are refused, so that batches are split.
	again := func(run func(failure error) error) error {
		switch rand.IntN(6) {
		case 0:
			_ = run(errors.New("a deadlock"))
		case 1:
			if rand.IntN(3) == 0 {
				return run(&engine.StatementError{Err: errors.New("a value that the database does not take")})
			}
		}
		return run(nil)
	}
	var desks []*desk
	for range 3 {
		change := func(c *setup) {
			c.ParkAfter = time.Second
			c.Limits.Finished, c.Limits.Invalid = 6, 5
			if len(desks) > 0 {
				c.Receivers = desks[0].cfg.Receivers
			}
		}
		desks = append(desks, newDesk(t, inDatabase(t, dsn), between(intercepted{write: again}), change))
	}
	desks[0].main.set("", func(int) *http.Response {
		return status([]int{200, 200, 200, 500, 503, 422}[rand.IntN(6)])(0)
	})
	end := time.Now().Add(10 * time.Second)
	var wg sync.WaitGroup
	for n := range 12 {
		wg.Go(func() {
			d := desks[n%3]
			for time.Now().Before(end) {
				tenant, body := fmt.Sprint("t", rand.IntN(3)), fmt.Sprint("body", rand.IntN(3))
				switch rand.IntN(14) {
				case 0, 1, 2, 3, 4, 5:
					w := d.hook(tenant, body)
					w.Snapshot = rand.IntN(5) > 0
					d.sendHook(w)
				case 6:
					d.RecordInvalid(context.Background(), d.invalid(tenant, snapshotOf(tenant, fmt.Sprint("f", rand.IntN(6)))))
				case 7, 8, 9, 10:
					all, err := d.List(context.Background(), Filter{Tenant: tenant})
					if err != nil || len(all) == 0 {
						continue
					}
					id := all[rand.IntN(len(all))].ID
					switch rand.IntN(4) {
					case 0:
						_ = d.Discard(id)
					case 1:
						_, _ = d.Accept(id, rand.IntN(2) == 0)
					default:
						_ = d.Redeliver(id, rand.IntN(2) == 0)
					}
				case 11:
					if rand.IntN(4) == 0 {
						_, _ = d.Erase("", tenant)
					}
				case 12:
					_ = d.Pause(Pause{Tenant: tenant})
				case 13:
					_, _ = d.Resume(Pause{Tenant: tenant})
				}
			}
		})
	}
	wg.Wait()
	desks[0].main.set("", nil)
	for n := range 3 {
		for second(desks[0].Resume(Pause{Tenant: fmt.Sprint("t", n)})) != nil {
		}
	}
	wrong := `SELECT coalesce((
		SELECT string_agg(format('%s: %s', l.tenant, row(l.waiting, c.waiting, l.parked, c.parked,
			l.invalid, c.invalid, l.bytes, c.bytes, l.tail, c.tail, s.seq, c.snap)::text), '; ')
		FROM {schema}.lane l LEFT JOIN {schema}.snapshot s USING (tenant, platform) CROSS JOIN LATERAL (
			SELECT count(*) FILTER (WHERE state = 0) AS waiting, count(*) FILTER (WHERE state = 1) AS parked,
				count(*) FILTER (WHERE state = 2) AS invalid,
				coalesce(sum(size) FILTER (WHERE state < 2), 0) AS bytes,
				max(seq) FILTER (WHERE record NOT LIKE '%"code":%') AS tail,
				max(seq) FILTER (WHERE snapshot = 1 AND record NOT LIKE '%"code":%') AS snap
			FROM {schema}.webhook w
			WHERE (w.tenant, w.platform, w.event_type) = (l.tenant, l.platform, l.event_type)) c
		WHERE (l.waiting, l.parked, l.invalid, l.bytes) <> (c.waiting, c.parked, c.invalid, c.bytes)
			OR c.tail > l.tail OR c.snap > coalesce(s.seq, 0)
			OR l.tenant <> '' AND l.waiting > 0 AND l.due > 4000000000000000
			OR EXISTS (
				SELECT FROM {schema}.webhook w
				WHERE (w.tenant, w.platform, w.event_type) = (l.tenant, l.platform, l.event_type)
					AND NOT EXISTS (SELECT FROM {schema}.content c WHERE c.seq = w.seq))), '')`
	if got := inSchema(t, dsn, wrong); got != "" {
		t.Error(got)
	}
	desks[0].idle("")
	if got := inSchema(t, dsn, wrong); got != "" {
		t.Error(got)
	}
	if got := inSchema(t, dsn, `SELECT count(*)::text FROM {schema}.content c
		WHERE NOT EXISTS (SELECT FROM {schema}.webhook w WHERE w.seq = c.seq)`); got != "0" {
		t.Error("contents without a webhook:", got)
	}
}
