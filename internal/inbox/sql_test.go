package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"usher/internal/testkit/pgtest"
)

// A role with the three grants of the docs reads the two views and calls the function. It reads nothing else and
// changes nothing. Neither it, nor a role that was there before usher, can make them run or believe something else.
func TestRightsInSQL(t *testing.T) {
	if testing.Short() {
		t.Skip("it looks at what the server does, which has no races")
	}
	t.Parallel()
	s := pgtest.New(t)
	s.Exec(t, `
		CREATE ROLE box LOGIN;
		CREATE ROLE app LOGIN;
		CREATE ROLE stranger LOGIN;
		CREATE ROLE mallory LOGIN;
		GRANT CREATE ON DATABASE postgres TO box, app, mallory;
		GRANT CREATE ON SCHEMA public TO mallory`)
	// Calls that fit better than those of pg_catalog, and operators, in a schema that is in everybody's search_path.
	traps := func(schema string) string {
		return strings.ReplaceAll(`
			CREATE FUNCTION {}.to_timestamp(bigint) RETURNS timestamptz LANGUAGE sql
				AS 'SELECT ''2001-01-01''::timestamptz';
			CREATE FUNCTION {}.jsonb_to_recordset(jsonb) RETURNS SETOF record LANGUAGE sql
				AS 'SELECT ''all''::text, ''all''::text, NULL::bigint, ''''::text';
			CREATE FUNCTION {}.yes(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
			CREATE FUNCTION {}.yes(bigint, integer) RETURNS boolean LANGUAGE sql AS 'SELECT true';
			CREATE FUNCTION {}.two(bigint, integer) RETURNS bigint LANGUAGE sql AS 'SELECT 2::bigint';
			CREATE OPERATOR {}.= (LEFTARG = text, RIGHTARG = text, FUNCTION = {}.yes);
			CREATE OPERATOR {}.>= (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = {}.yes);
			CREATE OPERATOR {}.= (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = {}.yes);
			CREATE OPERATOR {}./ (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = {}.two);`, "{}", schema)
	}
	client := func(role string) *pgx.Conn {
		conn, _ := connectTo(t, as(s, role, "postgres")+"&default_query_exec_mode=simple_protocol")
		return conn
	}
	mallory := client("mallory")
	must(mallory.Exec(t.Context(), traps("public")))(t)
	// What usher itself runs must not be led astray either: on PostgreSQL 14 and older every role may create objects
	// in public.
	must(mallory.Exec(t.Context(), `
		CREATE TABLE public.stolen (what text);
		GRANT ALL ON public.stolen TO PUBLIC;
		CREATE FUNCTION public.steal(numeric, integer) RETURNS numeric LANGUAGE plpgsql AS '
			BEGIN
				INSERT INTO public.stolen VALUES (''clock'');
				RETURN $1 OPERATOR(pg_catalog.*) $2::numeric;
			END';
		CREATE FUNCTION public.steal(double precision, integer) RETURNS double precision LANGUAGE plpgsql AS '
			BEGIN
				INSERT INTO public.stolen VALUES (''clock'');
				RETURN $1 OPERATOR(pg_catalog.*) $2::double precision;
			END';
		CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = public.steal);
		CREATE OPERATOR public.* (LEFTARG = double precision, RIGHTARG = integer, FUNCTION = public.steal);
		CREATE FUNCTION public.pg_advisory_xact_lock(integer) RETURNS void LANGUAGE sql AS '
			INSERT INTO public.stolen VALUES (''lock'')';
		CREATE FUNCTION public.pg_try_advisory_xact_lock(integer) RETURNS boolean LANGUAGE sql AS '
			INSERT INTO public.stolen VALUES (''sweep'');
			SELECT true';
		CREATE FUNCTION public.coalescing(bigint, integer) RETURNS boolean LANGUAGE plpgsql AS '
			BEGIN
				IF current_user OPERATOR(pg_catalog.=) ''box'' THEN
					INSERT INTO public.stolen VALUES (''read'');
				END IF;
				RETURN $1 OPERATOR(pg_catalog.<) $2::bigint;
			END';
		CREATE OPERATOR public.< (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = public.coalescing)`))(t)

	d := newDesk(t, inDatabase(t, as(s, "box", "postgres")))
	w := d.hook("acme", `{"type":"TenantProvisioningChange","payload":{
		"tenant":{"code":"acme","name":"Acme","account":{"email":"contact@example.com"}},
		"change":{"features":[{"code":"users","quantity":25}]}}}`)
	d.want("sent", d.sendHook(w), "+")
	d.idle("")
	must(d.List(context.Background(), Filter{Tenant: "acme"}))(t)
	const stolen = "SELECT coalesce(string_agg(DISTINCT what, ' '), 'nothing') FROM public.stolen"
	if got := s.Exec(t, stolen); got != "nothing" {
		t.Errorf("usher has run somebody else's functions: %s", got)
	}
	s.Exec(t, `
		GRANT USAGE ON SCHEMA usher TO app;
		GRANT SELECT ON usher.tenants, usher.entitlements TO app;
		GRANT EXECUTE ON FUNCTION usher.allowed TO app`)

	app, stranger := client("app"), client("stranger")
	denied := func(who *pgx.Conn, statement string) {
		t.Helper()
		_, err := who.Exec(t.Context(), statement)
		const denied, noUpdate = "42501", "55000" // of a view
		if pg := new(pgconn.PgError); !errors.As(err, &pg) || pg.Code != denied && pg.Code != noUpdate {
			t.Errorf("%s as %s: %v", statement, who.Config().User, err)
		}
	}
	rows, err := d.Snapshots(t.Context(), "acme")
	check(t, err)
	answers := func(why string, who *pgx.Conn) {
		t.Helper()
		var got string
		check(t, who.QueryRow(t.Context(), `
			SELECT pg_catalog.concat_ws(' ', t.tenant, t.name, t.webhook,
				pg_catalog.to_char(t.as_of AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'),
				e.feature, e."limit", e.as_of OPERATOR(pg_catalog.=) t.as_of,
				usher.allowed('acme', 'users'), usher.allowed('acme', 'users', 26),
				usher.allowed('acme', 'sso'), usher.allowed('nobody', 'users') IS NULL)
			FROM usher.tenants t, usher.entitlements e`).Scan(&got))
		at := rows[0].Received.UTC().Format("2006-01-02T15:04:05.000000")
		want := fmt.Sprintf("acme Acme %s %s users 25 t t f f t", rows[0].Webhook, at)
		if got != want {
			t.Errorf("%s: %s\nwant %s", why, got, want)
		}
	}
	answers("with the three grants", app)

	// Whatever else is in the schema is closed, by name, so that a new table is, too.
	list := must(mallory.Query(t.Context(), `
		SELECT c.relkind::text, c.relname FROM pg_class c
		WHERE c.relnamespace::regnamespace::text OPERATOR(pg_catalog.=) 'usher'
			AND c.relkind IN ('r', 'v', 'm', 'S', 'p', 'f')`))(t)
	relations := must(pgx.CollectRows(list, pgx.RowToStructByPos[struct{ Kind, Name string }]))(t)
	if len(relations) < 10 {
		t.Fatalf("only %v", relations)
	}
	for _, r := range relations {
		name := "usher." + r.Name
		denied(stranger, "SELECT * FROM "+name)
		if r.Kind != "v" {
			denied(app, "SELECT * FROM "+name)
			denied(app, "SELECT count(*) FROM "+name)
		}
		if r.Kind != "S" {
			denied(app, "DELETE FROM "+name)
			denied(app, "DO $$ BEGIN LOCK TABLE "+name+" IN SHARE MODE; END $$")
			denied(app, "SELECT 1 FROM "+name+" FOR KEY SHARE")
		}
	}
	denied(app, "UPDATE usher.tenants SET name = ''")
	denied(app, "SELECT last FROM usher.number")
	denied(app, "CREATE TABLE usher.mine ()")
	denied(app, `CREATE OR REPLACE FUNCTION usher.allowed(text, text, bigint, text)
		RETURNS boolean LANGUAGE sql AS 'SELECT true'`)
	denied(stranger, "SELECT usher.allowed('acme', 'users')")
	s.Exec(t, "GRANT USAGE ON SCHEMA usher TO stranger")
	denied(stranger, "SELECT usher.allowed('acme', 'users')")
	denied(stranger, "SELECT * FROM usher.tenants")
	list = must(app.Query(t.Context(), `
		SELECT pg_catalog.concat(to_jsonb(t), to_jsonb(e)) FROM usher.tenants t, usher.entitlements e`))(t)
	if all := fmt.Sprint(must(pgx.CollectRows(list, pgx.RowTo[string]))(t)); strings.Contains(all, "contact") {
		t.Errorf("a contact is shown: %s", all)
	}

	// The caller's own objects change nothing, also before pg_catalog.
	must(app.Exec(t.Context(), "CREATE SCHEMA mine; GRANT USAGE ON SCHEMA mine TO PUBLIC;"+traps("mine")+`
		CREATE TABLE mine.snapshot (tenant text, platform text, features jsonb);
		CREATE TEMP TABLE snapshot (tenant text, platform text, features jsonb);
		CREATE FUNCTION mine.count() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
		SET search_path = mine, pg_temp, pg_catalog; SET enable_indexscan = off; SET enable_bitmapscan = off`))(t)
	answers("with a search_path of its own", app)
	must(app.Exec(t.Context(), "SET search_path = ''"))(t)
	answers("without a search_path", app)
}

// A plan says what EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) has counted.
type plan struct {
	Hit  int `json:"Shared Hit Blocks"`
	Read int `json:"Shared Read Blocks"`
}

func explain(t *testing.T, conn *pgx.Conn, query string) plan {
	t.Helper()
	var text string
	check(t, conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+query).Scan(&text))
	var all []struct{ Plan plan }
	check(t, json.Unmarshal([]byte(text), &all))
	return all[0].Plan
}

// One tenant is found by an index, on one platform or on many, also in a join with a table of an application, and by a
// session that has planned its question while there were few.
func TestPlansInSQL(t *testing.T) {
	costly(t)
	t.Parallel()
	dsn := pgtest.Schema(t)
	e := inDatabase(t, dsn)()
	defer e.Close()
	conn, schema := connectTo(t, dsn)
	do := func(statement string) {
		t.Helper()
		must(conn.Exec(t.Context(), strings.ReplaceAll(statement, "{}", schema)))(t)
	}
	do(`ALTER TABLE {}.snapshot SET (autovacuum_enabled = off);
		INSERT INTO {}.snapshot SELECT 'early', 'p' || i, -i, 'id', 0, '', '[]' FROM generate_series(1, 3) i;
		ANALYZE {}.snapshot`)
	for range 10 {
		do("SELECT {}.allowed('t1', 'users')")
	}
	do(`INSERT INTO {}.snapshot (tenant, platform, seq, uuid, received, name, features)
		SELECT 't' || i, CASE WHEN i % 2 = 0 THEN 'one' ELSE 'p' || i % 1000 END, i, 'id-' || i, 1700000000000000 + i,
			'Name ' || i, '[{"code": "users", "limit": 25}, {"code": "sso", "limit": null}]' FROM generate_series(1, 5000) i;
		INSERT INTO {}.snapshot SELECT 'everywhere', 'p' || i, -1000 - i, 'id', 0, '', '[]' FROM generate_series(1, 1000) i;
		CREATE TABLE {}.app (id bigint PRIMARY KEY, tenant text UNIQUE, filler text DEFAULT repeat('x', 100));
		INSERT INTO {}.app SELECT i, 't' || i FROM generate_series(1, 10000) i;
		ANALYZE {}.app`)
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			do("ANALYZE {}.snapshot")
		}
		for query, blocks := range map[string]int{
			"SELECT {}.allowed('t77', 'users')":                                                                         20,
			"SELECT {}.allowed('t77', 'users', 5, 'p77')":                                                               20,
			"SELECT {}.allowed('everywhere', 'users', 5, 'p77')":                                                        20,
			"SELECT {}.allowed('nobody', 'users')":                                                                      20,
			"SELECT * FROM {}.tenants WHERE tenant = 't77'":                                                             20,
			"SELECT * FROM {}.entitlements WHERE tenant = 'everywhere' AND platform = 'p5'":                             20,
			"SELECT * FROM {}.entitlements WHERE tenant IN ('t1', 't2', 't3')":                                          60,
			"SELECT a.id, e.feature FROM {}.app a JOIN {}.entitlements e ON e.tenant = a.tenant WHERE a.id = 55":        40,
			"SELECT a.id, t.name FROM {}.app a LEFT JOIN {}.tenants t ON t.tenant = a.tenant WHERE a.id = 55":           40,
			"SELECT a.id, e.feature FROM {}.app a JOIN {}.entitlements e ON e.tenant = a.tenant WHERE e.tenant = 't77'": 40,
		} {
			query = strings.ReplaceAll(query, "{}", schema)
			explain(t, conn, query) // what the session reads of the catalog the first time does not count
			if p := explain(t, conn, query); p.Hit+p.Read > blocks {
				t.Errorf("%s\nanalyzed: %t: it reads %d blocks", query, analyzed, p.Hit+p.Read)
			}
		}
	}
}
