package inbox

import (
	"database/sql"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"usher/internal/clock"
	"usher/internal/entitlements"
	"usher/internal/guard"
	"usher/internal/inbox/engine"
	"usher/internal/snapshot"
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
