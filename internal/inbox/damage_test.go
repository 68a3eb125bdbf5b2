package inbox

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"usher/internal/testkit/pgtest"

	"usher/internal/inbox/engine"
)

// sqlOn runs statements on a file that no usher has open.
func sqlOn(t testing.TB, path string, statements ...string) {
	t.Helper()
	for _, s := range statements {
		db := must(sql.Open("sqlite", path))(t)
		_, err := db.Exec(s)
		check(t, errors.Join(err, db.Close()))
	}
}

// openDamaged opens a file that may be damaged. Nil: the inbox does not start, and says why.
func openDamaged(t *testing.T, world int, path string) *desk {
	t.Helper()
	e, err := openFile(path, quiet)
	if err == nil {
		return newDesk(t, func() engine.Engine { return e })
	}
	if !strings.Contains(err.Error(), "damaged") && !strings.Contains(err.Error(), "newer") {
		t.Errorf("world %d: does not start, and says %v", world, err)
	}
	return nil
}

// A row that cannot be read stops its own tenant: it is skipped, logged once, and said; all others go on.
func TestUnreadableRow(t *testing.T) {
	onBoth := map[string]func(t *testing.T) (open func() engine.Engine, exec func(statement string)){
		"file": func(t *testing.T) (func() engine.Engine, func(string)) {
			path := newFile(t)
			return inFile(t, path), func(s string) { sqlOn(t, path, s) }
		},
		"database": func(t *testing.T) (func() engine.Engine, func(string)) {
			dsn := pgtest.Schema(t)
			conn, _ := connectTo(t, dsn)
			return inDatabase(t, dsn), func(s string) { must(conn.Exec(t.Context(), s))(t) }
		},
	}
	for engineName, make := range onBoth {
		for what, damage := range map[string]string{
			"a lane":    "UPDATE lane SET bytes = 1, waiting = -1, due = 0 WHERE tenant LIKE 'odd%'",
			"a webhook": "UPDATE webhook SET state = 0, record = '{' WHERE tenant LIKE 'odd%'",
		} {
			t.Run(engineName+" "+what, func(t *testing.T) {
				t.Parallel()
				open, exec := make(t)
				d := newDesk(t, open)
				check(t, d.Pause(Pause{}))
				tenants := []string{}
				for n := range 40 { // more than a claim asks for
					tenants = append(tenants, fmt.Sprint("odd", n))
					d.take(tenants[n], "A")
				}
				d.take("fine", "A")
				d.shut()
				exec(damage)
				d.start()
				must(d.Resume(Pause{}))(t)
				d.take("fine", "B")
				d.idle("fine")
				d.take("new", "A")
				d.idle("new")
				d.want("accepted", fmt.Sprint(d.main.got("fine"), d.main.got("new")), "[A B] [A]")
				d.until("it is said", func() bool { return len(d.Stats().Unreadable) == len(tenants) })
				if n := strings.Count(d.log.String(), "cannot be read: its webhooks are neither taken in nor delivered\" tenant=odd7 "); n != 1 {
					t.Errorf("logged %d times", n)
				}
				if what == "a lane" {
					for name, err := range map[string]error{
						"taken in":  d.add(t.Context(), d.hook("odd1", "B")),
						"discarded": d.Discard(d.nth("odd1", 1)),
						"erased":    second(d.Erase("", "odd1")),
					} {
						if !errors.Is(err, errUnreadable) {
							t.Errorf("%s: %v", name, err)
						}
					}
				}
				if all := d.list(""); len(all) != len(tenants)+3 {
					t.Errorf("%d are listed", len(all))
				}
				must(d.Tenants(t.Context(), TenantFilter{}))(t)
				must(d.readHeldUp(t.Context()))(t)
				check(t, d.Err())
			})
		}
	}
}
