//go:build unix

package e2e

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"usher/internal/testkit"
)

// Values that somebody may put into a webhook to make a query fail, or say something else than the port.
var (
	oddCodes = []string{
		"acme", "Acme", "acme ", "7", "null", `it's`, `a"b\c`, "' OR 1=1 --", "$1", "{}", "%", "_", "a/b", "a\tb\nc", "é", "e\u0301", "שלום", "\u202eneves", "名前😀", "\ufffd",
		strings.Repeat("l", 255), strings.Repeat("ü", 127), "\u00a0", "\U0010ffff", "users",
	}
	oddPlatforms  = []string{"", "crm", `p'"%`, strings.Repeat("p", 255)}
	oddQuantities = []string{
		"null", "0", "-0", "-1", "-1e400", "1", "25", "25.0", "2.5e1", "0.5", "1e400", "9007199254740990", "9007199254740991", "9007199254740992", "9223372036854775808", "99999999999999999999999",
	}
	oddTexts   = []string{`""`, `"gold"`, `"a\u0000b"`, `"\u0000"`, `"it's \"quoted\""`, `"שלום \u202e"`, `"名前 😀"`, `"\\u0000"`, "7", "1e3", "true", "null"}
	unreadable = []string{`"quantity":"5"`, `"quantity":true`, `"quantity":{}`, `"value":{}`, `"value":[1]`}
	noLists    = []string{"null", "{}", `"users"`, "5", `[5]`, `["users"]`, `[{"code":true}]`, `[{"code":{}}]`, `[[]]`}
)

func pickOf[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

func quoted(s string) string { b, _ := json.Marshal(s); return string(b) }

// oddFeatures writes a list of features, a few of which have the same code. Some lists can't be read.
func oddFeatures(r *rand.Rand) string {
	if r.IntN(12) == 0 {
		return pickOf(r, noLists)
	}
	var all []string
	codes := oddCodes[:4+r.IntN(len(oddCodes)-4)]
	for range r.IntN(12) {
		members := []string{`"code":` + pickOf(r, []string{quoted(pickOf(r, codes)), quoted(pickOf(r, codes)), quoted(pickOf(r, codes)), `""`, "null", "7"})}
		if r.IntN(4) > 0 {
			members = append(members, `"quantity":`+pickOf(r, oddQuantities))
		}
		if r.IntN(2) > 0 {
			members = append(members, `"value":`+pickOf(r, oddTexts))
		}
		if r.IntN(2) > 0 {
			members = append(members, `"name":`+pickOf(r, append([]string{"{}", "[1]"}, oddTexts...)))
		}
		if r.IntN(150) == 0 {
			members = []string{members[0], pickOf(r, unreadable)}
		}
		all = append(all, "{"+strings.Join(members, ",")+"}")
	}
	if r.IntN(10) == 0 {
		all = append(all, "null")
	}
	return "[" + strings.Join(all, ",") + "]"
}

// A row is a row of the view entitlements, or a feature in an answer of the port.
type row struct {
	Platform, Tenant, Feature, Name string
	Limit                           *int64
	Value                           string
	AsOf                            time.Time
	Webhook                         string
}

func (r row) String() string {
	limit := "none"
	if r.Limit != nil {
		limit = fmt.Sprint(*r.Limit)
	}
	return fmt.Sprintf("%+q %+q %+q %+q %s %+q %s %s", r.Platform, r.Tenant, r.Feature, r.Name, limit, r.Value, r.AsOf.UTC().Format(time.RFC3339Nano), r.Webhook)
}

// A book is an inbox that is asked in SQL.
type book struct {
	*sql.DB
	words *strings.Replacer // in statements
}

func (b book) query(t *testing.T, each func(scan func(...any) error) error, statement string, args ...any) {
	t.Helper()
	rows, err := b.Query(b.words.Replace(statement), args...)
	if err != nil {
		t.Fatalf("%s %+q: %v", statement, args, err)
	}
	defer rows.Close()
	for rows.Next() && err == nil {
		err = each(func(into ...any) error {
			for i, to := range into {
				if at, ok := to.(*time.Time); ok {
					into[i] = (*textTime)(at)
				}
			}
			return rows.Scan(into...)
		})
	}
	if err = errors.Join(err, rows.Err()); err != nil {
		t.Fatalf("%s %+q: %v", statement, args, err)
	}
}

// textTime is a time, which a file has as text.
type textTime time.Time

func (t *textTime) Scan(value any) (err error) {
	at, isTime := value.(time.Time)
	if !isTime {
		at, err = time.Parse(time.RFC3339Nano, value.(string))
	}
	*t = textTime(at)
	return err
}

// bookOf opens an inbox to ask in SQL.
func bookOf(t *testing.T, inbox string) book {
	t.Helper()
	if !strings.HasPrefix(inbox, "file:") {
		db, schema := schemaOf(t, inbox)
		return book{db, strings.NewReplacer("usher.", schema+".")}
	}
	db, err := sql.Open("sqlite", inbox+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return book{db, strings.NewReplacer("usher.", "", "$", "?")}
}

// schemaOf opens the database of an inbox beside usher, and returns the inbox's schema.
func schemaOf(t *testing.T, inbox string) (db *sql.DB, schema string) {
	t.Helper()
	address, err := url.Parse(inbox)
	if err != nil {
		t.Fatal(err)
	}
	schema = address.Query().Get("schema")
	address.RawQuery = "sslmode=disable"
	if db, err = sql.Open("pgx", address.String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db, schema
}

// Whatever webhooks say, SQL answers as the port does, and no query fails.
func TestSQLAnswersAsThePort(t *testing.T) {
	onBothInboxes(t, func(t *testing.T, inbox string) {
		schema := filepath.Join(t.TempDir(), "schema.json")
		if err := os.WriteFile(schema, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		u := run(t, []string{inbox, "USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0",
			"USHER_WEBHOOK_SCHEMA_FILE=" + schema, "USHER_LOG_FORMAT=json"})
		u.Ready(t)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		type tenant struct{ platform, code string }
		names := make(map[tenant]string)
		for range pick(100, 200) {
			one := tenant{pickOf(r, oddPlatforms), pickOf(r, oddCodes)}
			if r.IntN(3) > 0 {
				one.platform = "crm" // so that most codes are on one platform alone
			}
			name := pickOf(r, oddTexts)
			body := fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":%s,"name":%s,"platform":{"code":%s}},"change":{"features":%s}}}`,
				quoted(one.code), name, quoted(one.platform), oddFeatures(r))
			if status, _, answer := testkit.Post(t, hooks(t, u), body); status != 200 {
				t.Fatalf("%d %s: %s", status, answer, body)
			}
			var text any
			if err := json.Unmarshal([]byte(name), &text); err != nil {
				t.Fatal(err)
			}
			if _, ok := text.(string); !ok && text != nil {
				text = name // a number, as it was written
			} else if text == nil {
				text = ""
			}
			names[one] = strings.ReplaceAll(text.(string), "\x00", "\ufffd")
		}
		erased := slices.Collect(maps.Keys(names))[0]
		if code, out := inboxIn(t, u, "erase", "--yes", "--", url.PathEscape(erased.platform)+"/"+url.PathEscape(erased.code)); code != 0 {
			t.Fatalf("erase: %d %s", code, out)
		}
		delete(names, erased)

		asked := bookOf(t, strings.TrimPrefix(inbox, "USHER_WEBHOOK_INBOX="))
		port := u.URL(t, "entitlements")
		known := 0
		asked.query(t, func(scan func(...any) error) error {
			known++
			var one tenant
			var name, webhook string
			var asOf time.Time
			var featuresKnown bool
			if err := scan(&one.platform, &one.code, &name, &asOf, &webhook, &featuresKnown); err != nil {
				return err
			}
			if want, ok := names[one]; !ok || name != want {
				t.Errorf("tenant %+q has the name %+q, want %+q (%v)", one, name, want, ok)
			}
			status, body := testkit.Get(t, port+"/v1/entitlements/"+url.PathEscape(one.code)+"?platform="+url.QueryEscape(one.platform))
			var answer struct {
				AsOf    time.Time `json:"as_of"`
				Webhook string
			}
			if err := json.Unmarshal([]byte(body), &answer); err != nil {
				return err
			}
			switch {
			case featuresKnown != (status == 200), !featuresKnown && !strings.Contains(body, "FEATURES_UNKNOWN"):
				t.Errorf("tenant %+q: features known %v, and the port says %d %s", one, featuresKnown, status, body)
			case featuresKnown && (webhook != answer.Webhook || !asOf.Equal(answer.AsOf)):
				t.Errorf("tenant %+q: %s %s, and the port says %s", one, webhook, asOf, body)
			}
			return nil
		}, "SELECT platform, tenant, name, as_of, webhook, features_known FROM usher.tenants")
		if known != len(names) {
			t.Errorf("%d tenants, want %d", known, len(names))
		}

		fromSQL := func(statement string, args ...any) (all []string) {
			asked.query(t, func(scan func(...any) error) error {
				var one row
				err := scan(&one.Platform, &one.Tenant, &one.Feature, &one.Name, &one.Limit, &one.Value, &one.AsOf, &one.Webhook)
				all = append(all, one.String())
				return err
			}, `SELECT platform, tenant, feature, name, "limit", value, as_of, webhook FROM usher.entitlements`+statement, args...)
			slices.Sort(all)
			return all
		}
		var everything []string
		for one := range names {
			var answer struct {
				Platform, Tenant string
				Features         []row
				AsOf             time.Time `json:"as_of"`
				Webhook          string
			}
			_, body := testkit.Get(t, port+"/v1/entitlements/"+url.PathEscape(one.code)+"?platform="+url.QueryEscape(one.platform))
			if err := json.Unmarshal([]byte(body), &answer); err != nil {
				t.Fatal(err)
			}
			want := []string{}
			for _, f := range answer.Features {
				f.Platform, f.Tenant, f.AsOf, f.Webhook = answer.Platform, answer.Tenant, answer.AsOf, answer.Webhook
				want = append(want, f.String())
			}
			slices.Sort(want)
			everything = append(everything, want...)
			if got := fromSQL(" WHERE tenant = $1 AND platform = $2", one.code, one.platform); !slices.Equal(got, want) {
				t.Errorf("tenant %+q:\n%s\nand the port says\n%s", one, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		slices.Sort(everything)
		if got := fromSQL(""); !slices.Equal(got, everything) {
			t.Errorf("all of them: %d rows, and %d of the port", len(got), len(everything))
		}
		if !strings.Contains(inbox, "file:") {
			checksInSQL(t, r, asked, port)
		} else if path, err := exec.LookPath("sqlite3"); err == nil {
			out, err := exec.Command(path, "-readonly", strings.TrimPrefix(inbox, "USHER_WEBHOOK_INBOX=file:"), "SELECT count(*) FROM entitlements; SELECT count(*) FROM tenants").CombinedOutput()
			if want := fmt.Sprintf("%d\n%d\n", len(everything), len(names)); err != nil || string(out) != want {
				t.Errorf("sqlite3 says %s, want %s: %v", out, want, err)
			}
		}
	})
}

// checksInSQL asks allowed and /v1/check the same questions.
func checksInSQL(t *testing.T, r *rand.Rand, database book, port string) {
	quantities := []*int64{nil, nil, nil}
	for _, n := range []int64{0, 1, 24, 25, 26, 1<<53 - 2, 1<<53 - 1, 1 << 53, math.MaxInt64, -1, math.MinInt64} {
		quantities = append(quantities, &n)
	}
	platforms := []*string{nil, nil, nil, nil}
	for _, p := range append([]string{"elsewhere"}, oddPlatforms...) {
		platforms = append(platforms, &p)
	}
	codes := append([]string{"", "nobody", strings.Repeat("l", 256)}, oddCodes...)
	results := make(map[string]int)
	statuses := []string{"204", "403", "400", "404", "409"}
	missing := func(status string) bool { return results[status] == 0 }
	for n := 0; n < pick(400, 1500) || n < 10_000 && slices.ContainsFunc(statuses, missing); n++ {
		tenant, feature, quantity, platform := pickOf(r, codes), pickOf(r, codes), pickOf(r, quantities), pickOf(r, platforms)
		query := url.Values{"tenant": {tenant}, "feature": {feature}}
		if quantity != nil {
			query.Set("quantity", fmt.Sprint(*quantity))
		}
		if platform != nil {
			query.Set("platform", *platform)
		}
		status, body := testkit.Get(t, port+"/v1/check?"+query.Encode())
		want, ok := map[int]string{http.StatusNoContent: "true", http.StatusForbidden: "false", 400: "null", 404: "null", 409: "null"}[status]
		if !ok {
			t.Fatalf("%s: %d %s", query, status, body)
		}
		var got string
		database.query(t, func(scan func(...any) error) error { return scan(&got) }, "SELECT coalesce(usher.allowed($1, $2, $3, $4)::text, 'null')", tenant, feature, quantity, platform)
		if got != want {
			t.Errorf("allowed says %s for %+q, and the port %d %s", got, query, status, body)
		}
		results[fmt.Sprint(status)]++
	}
	t.Logf("answers: %v", results)
	if slices.ContainsFunc(statuses, missing) {
		t.Errorf("one of %v is missing: %v", statuses, results)
	}
	for _, nothing := range []string{"NULL, 'users'", "'acme', NULL", "NULL, NULL, NULL, NULL"} {
		database.query(t, func(scan func(...any) error) error {
			var got *bool
			if err := scan(&got); err != nil || got != nil {
				t.Errorf("allowed(%s) is not null", nothing)
			}
			return nil
		}, "SELECT usher.allowed("+nothing+")")
	}
}
