package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"usher/internal/clock"
	"usher/internal/entitlements"
	"usher/internal/guard"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
	"usher/webhookgate"
)

// tryOn runs a statement on a file that no usher has open.
func tryOn(path, statement string) error {
	db, err := sql.Open("sqlite", path)
	if err == nil {
		_, err = db.Exec(statement)
		err = errors.Join(err, db.Close())
	}
	return err
}

// sqlOn runs statements on a file that no usher has open.
func sqlOn(t testing.TB, path string, statements ...string) {
	t.Helper()
	for _, s := range statements {
		check(t, tryOn(path, s))
	}
}

// damagedRows are rows of the tenant odd, or of nobody, in tables that webhooks alone do not fill.
var damagedRows = []string{
	`INSERT INTO finding (tenant, platform, result, changes, digest, mark, knows, at)
		VALUES ('odd', '', 'differs', '["users 1 to 2"]', x'01', 1000, 1, 1)`,
	`INSERT INTO seen_id (tenant, platform, event_type, id, digest, seq, at, uuid)
		VALUES ('odd', '', '', x'01', x'01', 1, 1, 'x')`,
	"INSERT INTO reconcile (id, mark, began, as_of, alive, ended, complete) VALUES ('r', 1, 1, 1, 1, 2, 1)",
	"INSERT INTO outage VALUES (1, 2, 0)",
	`UPDATE lane SET missed_since = 1767225600000000,
		missed = '[{"digest":"AQ==","at":"2026-01-01T00:00:00Z","snapshot":true}]' WHERE tenant = 'odd'`,
	"INSERT INTO pause VALUES ('', '', 'third', 1, 4611686018427387904)",
	"INSERT INTO action (at, who, what, about, webhooks) VALUES (1, 'me', 'discard', '1', 1)",
}

// fill gives a tenant a webhook of each kind. The last ones wait: the receiver answers 500 to them.
func (d *desk) fill(tenant string) {
	d.take(tenant, "1")
	d.idle(tenant)
	d.main.set(tenant, answers(422, 500))
	d.take(tenant, "2")
	d.until("parked", func() bool { return strings.Contains(d.states(tenant), "parked") })
	d.recordInvalid(tenant, "odd body of "+tenant)
	d.take(tenant, "3", "4")
}

// wholeFile makes a file in which the tenants odd and fine have webhooks of each kind.
func wholeFile(t *testing.T) (content []byte) {
	path := newFile(t)
	d := newDesk(t, inFile(t, path))
	d.fill("odd")
	d.fill("fine")
	d.shut()
	sqlOn(t, path, damagedRows...)
	return must(os.ReadFile(path))(t)
}

// One wrong value in one row harms its tenant at most. Others are delivered, and lists, an export, entitlements and
// actions work.
func TestOneDamagedValue(t *testing.T) {
	t.Parallel()
	whole := wholeFile(t)
	type wrong struct{ table, column, value string }
	var all []wrong
	for _, table := range engine.Exported {
		for _, c := range table.Columns {
			for _, value := range []string{"NULL", "'text'", "0.5", "-1", "9e99", "x'ff00ff'", "''"} {
				if table.Name != "pause" || value != "''" { // which would be a pause of everything
					all = append(all, wrong{table.Name, c.Name, value})
				}
			}
		}
	}
	random := rand.New(rand.NewPCG(3, 4))
	random.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	if !*long {
		all = all[:60]
	}
	slots := make(chan struct{}, 4)
	for _, w := range all {
		t.Run(fmt.Sprintf("%s.%s=%s", w.table, w.column, w.value), func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			path := filepath.Join(t.TempDir(), "inbox.db")
			check(t, os.WriteFile(path, whole, 0o600))
			where := ""
			for _, table := range engine.Exported {
				for _, c := range table.Columns {
					if table.Name == w.table && c.Name == "tenant" && w.table != "pause" {
						where = " WHERE tenant = 'odd'"
					}
				}
			}
			if w.table == "content" {
				where = " WHERE seq IN (SELECT seq FROM webhook WHERE tenant = 'odd')"
			}
			update := "UPDATE " + w.table + " SET " + w.column + " = " + w.value + where
			if err := tryOn(path, "PRAGMA ignore_check_constraints = 1; "+update); err != nil {
				t.Skip(err)
			}
			d := newDesk(t, inFile(t, path))
			d.checkOthers("odd")
		})
	}
}

// Damage does not hide that something is missed, nor make it something that nothing settles; and it is repaired.
func TestDamagedMissed(t *testing.T) {
	t.Parallel()
	at := clock.Moment(1_700_000_000_000_000)
	whole := missedColumnsOf(webhookgate.MissedSet{{Digest: []byte("A"), At: at, Snapshot: true}})
	for _, text := range []string{
		"", "x", "null", "[]", "{}", "[{}]",
		strings.Replace(whole.webhooks, "snapshot", "snapzhot", 1), strings.Replace(whole.webhooks, "QQ==", "Q===", 1),
	} {
		damaged := missedColumns{whole.since, text}
		set := damaged.set()
		if !set.Since().Equal(at) || len(set.AfterIntake([]byte("B"), true, time.Now())) > 0 || missedColumnsOf(set) == damaged {
			t.Errorf("%s: %+v", text, set)
		}
		if repaired := missedColumnsOf(set); missedColumnsOf(repaired.set()) != repaired {
			t.Errorf("%s: not repaired: %+v", text, repaired)
		}
	}
	if set := (missedColumns{0, whole.webhooks}).set(); missedColumnsOf(set) != whole {
		t.Errorf("without a time: %+v", set)
	}
}

// The tail of a lane that is counted anew is what was taken in last: also if that is deleted by now, and not what was
// only invalid.
func TestTailThatIsCountedAnew(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"deleted":            "DELETE FROM webhook WHERE seq > 1",
		"its number is lost": "UPDATE lane SET tail = -1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			d := newDesk(t, inFile(t, path))
			for _, body := range []string{"1", "2"} {
				d.take("t", body)
				d.idle("t")
			}
			d.recordInvalid("t", snapshotOf("t", "x"))
			check(t, d.Discard(3))
			d.shut()
			sqlOn(t, path, "PRAGMA ignore_check_constraints = 1; UPDATE lane SET waiting = -1; "+damage)
			d.start()
			if err := d.Redeliver(1, false); err == nil {
				t.Error("an older snapshot is sent again")
			}
			if err := d.Redeliver(2, false); err != nil && !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
		})
	}
}

// checkOthers checks that everything works for the tenant fine, and that somebody can deal with the tenant odd.
func (d *desk) checkOthers(odd string) {
	t, ctx := d.t, context.Background()
	d.take("fine", "5")
	delivered := func(body string) func() bool {
		return func() bool {
			got := d.main.got("fine")
			return len(got) > 0 && got[len(got)-1] == body
		}
	}
	d.until("the others' webhooks are delivered", delivered("5"))
	if all := must(d.items(Filter{}))(t); len(all) < 5 {
		t.Errorf("%d are listed", len(all))
	}
	must(d.items(Filter{State: state.Parked}))(t)
	must(d.items(Filter{Tenant: odd}))(t)
	snapshots := must(d.Snapshots(ctx, []string{"fine", odd}))(t)
	if !slices.ContainsFunc(snapshots, func(s snapshot.Stored) bool { return s.Tenant == "fine" }) {
		t.Errorf("the last snapshots are %v", snapshots)
	}
	must(d.Export(ctx, io.Discard))(t)
	must(d.readHeldUp(ctx))(t)
	must(d.Tenants(ctx, TenantFilter{}))(t)
	must(d.Actions(ctx, 0, 10))(t)
	check(t, d.readPauses(ctx))
	if s := d.Stats(); s.Old {
		t.Error("the figures are not known")
	}
	for _, w := range must(d.items(Filter{Tenant: odd}))(t) {
		if err := d.Discard(w.ID); err != nil && !errors.As(err, new(lane.Denied)) {
			t.Errorf("discard: %v", err)
		}
	}
	if _, err := d.Erase("", odd); err != nil && !errors.As(err, new(lane.Denied)) {
		t.Errorf("erase: %v", err)
	}
	d.take("fine", "6")
	d.until("the others' webhooks are delivered still", delivered("6"))
	if err := d.Err(); err != nil {
		t.Error(err)
	}
}

// The same in a database, as far as its types let a wrong value in, while usher runs.
func TestOneDamagedValueInTheDatabase(t *testing.T) {
	costly(t)
	t.Parallel()
	dsn := pgtest.Schema(t)
	d := newDesk(t, inDatabase(t, dsn))
	conn, _ := connectTo(t, dsn)
	exec := func(statement string) error {
		_, err := conn.Exec(t.Context(), statement)
		return err
	}
	values := map[string][]string{
		"int":   {"-1", "99", "9223372036854775807", "-9223372036854775808"},
		"text":  {"''", "'text'"},
		"bytes": {"''", `'\xff00ff'`},
		"json": {
			"'{}'", "'7'", `'"x"'`, "'null'", "'[null]'",
			`'[{"code": 7}]'`, `'[{"code": "a", "limit": "5"}]'`, `'[{"code": "a", "limit": 1e400}]'`,
		},
	}
	type wrong struct {
		table  engine.Layout
		column string
		value  string
	}
	var all []wrong
	for _, table := range engine.Exported {
		for _, c := range table.Columns {
			for _, value := range values[c.Kind] {
				if table.Name != "pause" || value != "''" { // which would be a pause of everything
					all = append(all, wrong{table, c.Name, value})
				}
			}
		}
	}
	if !*long {
		random := rand.New(rand.NewPCG(5, 6))
		random.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		all = all[:12]
	}
	d.take("fine", "1", "2", "3", "4")
	tried, whole := 0, d.t
	for n, w := range all {
		t.Run(fmt.Sprintf("%s.%s=%s", w.table.Name, w.column, w.value), func(t *testing.T) {
			d.t = t
			defer func() { d.t = whole }()
			odd := fmt.Sprint("odd", n)
			name := "'" + odd + "'"
			ours := strings.NewReplacer("'odd'", name, "'third'", name, "'r'", name, "x'01'", `'\x01'`)
			d.fill(odd)
			for _, row := range damagedRows {
				if strings.Contains(row, " "+w.table.Name+" ") {
					check(t, exec(ours.Replace(row)))
				}
			}
			where := ""
			switch {
			case w.table.Name == "content":
				where = " WHERE seq IN (SELECT seq FROM webhook WHERE tenant = '" + odd + "')"
			case slices.ContainsFunc(w.table.Columns, func(c engine.Column) bool { return c.Name == "tenant" }):
				where = " WHERE tenant = '" + odd + "'"
			}
			if err := exec("UPDATE " + w.table.Name + " SET " + w.column + " = " + w.value + where); err != nil {
				t.Skip(err) // the database refuses it
			}
			tried++
			d.checkOthers(odd)
			for _, question := range []string{
				"SELECT count(*) FROM entitlements",
				"SELECT count(*) FROM tenants",
				"SELECT allowed('fine', 'x')",
			} {
				check(t, exec(question))
			}
		})
	}
	t.Logf("%d of %d values", tried, len(all))
}

// Bits are flipped in the file of an usher that does not run. Either the whole inbox says that it is damaged, or one
// tenant pays.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	whole := wholeFile(t)
	worlds := 12
	if *long {
		worlds = 200
	}
	if testkit.WithRace() {
		worlds = 6
	}
	outcomes := make(map[string]int)
	for n := range worlds {
		random := rand.New(rand.NewPCG(11, uint64(n)))
		path := filepath.Join(t.TempDir(), "inbox.db")
		hurt := slices.Clone(whole)
		hurt[random.IntN(len(hurt))] ^= 1 << random.IntN(8)
		check(t, os.WriteFile(path, hurt, 0o600))
		outcomes[flipped(t, n, path)]++
	}
	t.Log(outcomes)
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

func flipped(t *testing.T, world int, path string) string {
	d := openDamaged(t, world, path)
	if d == nil {
		return "does not start"
	}
	defer d.shut()
	for _, tenant := range []string{"fine", "odd", "new"} {
		d.send(tenant, "5")
	}
	failed := 0
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(10 * time.Millisecond) {
		if err := d.Err(); err != nil {
			if !strings.Contains(err.Error(), "damaged") {
				t.Errorf("world %d: the inbox says %v", world, err)
			}
			return "says that it is damaged"
		}
		failed = 0
		for _, tenant := range []string{"fine", "odd", "new"} {
			if got := d.main.got(tenant); len(got) == 0 || got[len(got)-1] != "5" {
				failed++
			}
		}
		if failed <= 1 {
			break
		}
	}
	if failed > 1 {
		t.Errorf("world %d: %d tenants pay: %v\n%s", world, failed, d.main.got(""), d.log)
	}
	return fmt.Sprint(failed, " tenants pay")
}

// What is damaged such that no statement would find it is found at the start, and each minute: it is delivered, or
// parked and said.
func TestDamagedAndNotFound(t *testing.T) {
	t.Parallel()
	due := fmt.Sprint(clock.Never)
	for _, tc := range []struct {
		name, change, state string
		fileOnly            bool
	}{
		{"no bytes", "lane SET bytes = 0", "delivered", false},
		{"no bytes and a text", "lane SET bytes = 0, due = 'text'", "delivered", true},
		{"due never", "lane SET due = " + due, "delivered", false},
		{"due is a text", "lane SET due = 'text'", "delivered", true},
		{"due is a large fraction", "lane SET due = 9e99", "delivered", true},
		{"nothing waits", "lane SET waiting = 0", "delivered", false},
		{"a state that there is not", "webhook SET state = 77", "parked", false},
		{"a negative state", "webhook SET state = -1", "parked", false},
		{"a state that is a text", "webhook SET state = 'text'", "parked", true},
		{"a state that is a fraction", "webhook SET state = 0.5", "parked", true},
	} {
		try := func(t *testing.T, open func() engine.Engine, exec func(statement string)) {
			d := newDesk(t, open)
			check(t, d.Pause(Pause{}))
			d.take("odd", "A")
			d.take("fine", "A")
			d.shut()
			exec("UPDATE " + tc.change + " WHERE tenant = 'odd'")
			exec("DELETE FROM pause")
			d.start()
			d.becomes("odd", tc.state)
			d.becomes("fine", "delivered")
			if tc.state == "parked" {
				d.want("why", d.list("odd")[0].Why, "its row is damaged: state")
			}
			if !strings.Contains(tc.change, "due = "+due) { // which is no value that cannot be
				d.until("it is said", func() bool { return strings.Contains(d.log.String(), "was damaged") })
			}
			d.until("it is counted", func() bool {
				s := d.Stats()
				return s.Pending == 0 && (s.Parked > 0) == (tc.state == "parked")
			})
		}
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			try(t, inFile(t, path), func(statement string) { sqlOn(t, path, statement) })
		})
		if thorough() && !tc.fileOnly {
			t.Run(tc.name+" in the database", func(t *testing.T) {
				t.Parallel()
				dsn := pgtest.Schema(t)
				conn, _ := connectTo(t, dsn)
				try(t, inDatabase(t, dsn), func(statement string) {
					must(conn.Exec(t.Context(), statement))(t)
				})
			})
		}
	}
}

// Features that cannot be read are unknown, of that tenant alone: over HTTP, in both protocols, and in the figures.
func TestDamagedFeatures(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		"'text'", "x'ff00ff'", "0.5", "''",
		"'7'", "'{}'", "'[7]'", `'[{"code":7}]'`, `'[{"code":"users","limit":"5"}]'`,
	} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			d := newDesk(t, inFile(t, path))
			for _, tenant := range []string{"odd", "fine"} {
				w := d.hook(tenant, "A")
				users := []snapshot.Feature{{Code: "users", Limit: 25}}
				w.State = snapshot.Snapshot{Known: true, Features: users}.Stored("", tenant, w.ID)
				d.want("sent", d.sendHook(w), "+")
			}
			d.shut()
			sqlOn(t, path, "UPDATE snapshot SET features = "+value+" WHERE tenant = 'odd'")
			d.start()
			answers := entitlements.New(entitlements.Config{
				Lookup: entitlements.NewBook(d.Snapshots, false).Lookup,
				Hosts:  guard.NewHosts("127.0.0.1:8070", nil, false),
				Log:    d.cfg.Log,
			})
			ask := func(method, target, body, want string) {
				t.Helper()
				r := httptest.NewRequest(method, "http://127.0.0.1:8070"+target, strings.NewReader(body))
				w := httptest.NewRecorder()
				answers.ServeHTTP(w, r)
				got := fmt.Sprint(w.Code, " ", w.Body)
				if !strings.HasPrefix(got, want[:4]) || !strings.Contains(got, want[4:]) {
					t.Errorf("%s %s: %s, want %s", target, body, got, want)
				}
			}
			const unknown = `404 "code":"FEATURES_UNKNOWN"`
			for tenant, want := range map[string][3]string{
				"odd":  {unknown, unknown, `404 "errorCode":"FLAG_NOT_FOUND"`},
				"fine": {"204 ", `200 "limit":25`, `200 "value":true`},
			} {
				ask("GET", "/v1/check?feature=users&tenant="+tenant, "", want[0])
				ask("GET", "/v1/entitlements/"+tenant, "", want[1])
				ask("POST", "/ofrep/v1/evaluate/flags/users", `{"context":{"targetingKey":"`+tenant+`"}}`, want[2])
			}
			d.until("it is counted", func() bool { s := d.Stats(); return s.Unknown == 1 && s.Tenants == 2 })
			all := must(d.Inbox.Unknown(t.Context(), 10))(t)
			d.want("listed", fmt.Sprint(len(all), all[0].Tenant), "1odd")
		})
	}
}
