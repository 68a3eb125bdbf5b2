package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"usher/internal/inbox/engine"
)

//go:embed 001.sql
var schema001 string

//go:embed views.sql
var viewsText string

// viewsVersion counts the versions of views.sql.
const viewsVersion = 1

// viewsPatience is how long usher waits until it tries again to replace the views.
const viewsPatience = 5 * time.Second

var migrations = engine.Migrations{engine.Tables + schema001}

// safePath comes first in each transaction. Otherwise names of functions and operators are also looked up in the
// schema public, where on PostgreSQL 14 and older every role may create objects. One that fits its arguments better
// than that of pg_catalog would run with usher's rights (CVE-2018-1058). It also decides what the views refer to.
const safePath = "SET LOCAL search_path = pg_catalog, pg_temp"

// tables are those of one schema, and the views on them.
type tables struct {
	schema       string
	dialect      *engine.Dialect
	log          *slog.Logger
	dryRun       bool   // roll the migrations back: only find out whether they would work
	readOnly     bool   // the tables that exist are enough
	views        string // the text of views.sql, and its version
	viewsVersion int
	viewsDue     time.Time // when they are to be replaced; zero: they are there
	viewsRefused bool      // that they could not be replaced was logged
}

func newTables(schema string, log *slog.Logger) tables {
	return tables{schema: schema, dialect: newDialect(schema), log: log, views: viewsText, viewsVersion: viewsVersion}
}

// versions are those of the tables, down to which these are compatible, and of the views.
type versions struct{ tables, compatible, views int }

func (t *tables) versions(ctx context.Context, conn *pgx.Conn) (v versions, err error) {
	row := conn.QueryRow(ctx, "SELECT version, compatible, views FROM "+t.schema+".schema_version")
	return v, row.Scan(&v.tables, &v.compatible, &v.views)
}

// migrate makes the tables. If the role may not do that, the error has the statement that an administrator should run.
func (t *tables) migrate(ctx context.Context, conn *pgx.Conn) error {
	encoding := ""
	if err := conn.QueryRow(ctx, "SELECT getdatabaseencoding()").Scan(&encoding); err != nil {
		return describe(err)
	}
	if encoding != "UTF8" {
		return &SetupError{fmt.Errorf("the inbox's database has the encoding %s, and usher needs UTF8: "+
			"create another one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", encoding)}
	}
	v, err := t.versions(ctx, conn)
	noTable := isCode(err, "42P01") || isCode(err, "3F000")
	if noTable || err == nil && (v.tables < len(migrations) || t.dryRun && !t.readOnly) {
		err = t.change(ctx, conn, func() error { return t.apply(ctx, conn) })
		if err == nil && !t.dryRun {
			v, err = t.versions(ctx, conn)
		}
	}
	switch {
	case isCode(err, "42501"):
		user := conn.Config().User
		role, database := pgx.Identifier{user}.Sanitize(), pgx.Identifier{conn.Config().Database}.Sanitize()
		return &SetupError{fmt.Errorf("the role %q may not do what usher needs (%w); as an administrator run: "+
			"CREATE SCHEMA IF NOT EXISTS %s AUTHORIZATION %s; or, to let usher create it: "+
			"GRANT CREATE ON DATABASE %s TO %s", user, err, t.schema, role, database, role)}
	case isCode(err, "55P03"):
		return errors.New("the inbox's tables can't be changed yet: another transaction is using them")
	case isCode(err, "42703"):
		return t.notOurs(err)
	case err != nil:
		return describe(err)
	}
	if err := migrations.Check(v.tables, v.compatible); err != nil {
		return &SetupError{fmt.Errorf("the schema %s: %w: "+
			"start the newer usher, or name another schema in USHER_WEBHOOK_INBOX", t.schema, err)}
	}
	if t.dryRun { // there are no tables yet, or none any more
		return nil
	}
	if v.views < t.viewsVersion {
		t.viewsDue = time.Now()
	}
	_, err = conn.Exec(ctx, t.dialect.Spell("SELECT {lane} FROM {schema}.lane l LIMIT 0"))
	if isCode(err, "42703") || isCode(err, "42P01") {
		return t.notOurs(err)
	}
	return nil
}

func (t *tables) notOurs(err error) error {
	return &SetupError{fmt.Errorf("the tables in the schema %s are not those of this usher (%w): "+
		"name another schema in USHER_WEBHOOK_INBOX, or drop this one", t.schema, err)}
}

// apply runs the migrations that are missing; in a dry run also the views.
func (t *tables) apply(ctx context.Context, conn *pgx.Conn) error {
	// CREATE SCHEMA IF NOT EXISTS needs a right on the database, even if the schema exists.
	err := t.run(ctx, conn,
		"DO $$ BEGIN IF to_regnamespace('{schema}') IS NULL THEN CREATE SCHEMA {schema}; END IF; END $$")
	there := false // another replica may have made them meanwhile
	if err == nil {
		err = conn.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", t.schema+".schema_version").Scan(&there)
	}
	v := versions{}
	if err == nil && there {
		v, err = t.versions(ctx, conn)
	}
	if scripts, note := migrations.From(v.tables); err == nil && len(scripts) > 0 {
		err = t.run(ctx, conn, strings.Join(scripts, "\n")+note)
	}
	if err == nil && t.dryRun {
		err = t.runViews(ctx, conn)
	}
	return err
}

// replaceViews runs views.sql, unless the database has it already. A view can't be replaced while a transaction that
// has read it is open, a report of an hour perhaps. Webhooks need no views, so that is not an error: Maintain tries
// again.
func (t *tables) replaceViews(ctx context.Context, conn *pgx.Conn) {
	err := t.change(ctx, conn, func() error { return t.runViews(ctx, conn) })
	switch {
	case err == nil:
		t.viewsDue = time.Time{}
		return
	case t.viewsRefused:
	case isCode(err, "55P03"):
		t.log.Warn("the views for SQL can't be replaced yet, because a transaction is using them: will retry",
			"schema", t.schema)
	default:
		t.log.Error("the views for SQL can't be created or replaced: will retry", "schema", t.schema, "err", err)
	}
	t.viewsRefused = true
	t.viewsDue = time.Now().Add(viewsPatience)
}

func (t *tables) runViews(ctx context.Context, conn *pgx.Conn) error {
	v, err := t.versions(ctx, conn)
	if err != nil || v.views >= t.viewsVersion {
		return err // a newer usher's views have all columns of ours
	}
	return t.run(ctx, conn, t.views+fmt.Sprintf(";UPDATE {schema}.schema_version SET views = %d", t.viewsVersion))
}

// change runs fn in a transaction that changes tables or views. One replica does it, and the others wait. In a dry
// run all of it is rolled back.
//
// A statement that waits for an exclusive lock makes all later ones wait, too, even those that only read. So fn waits
// for a moment only, and then fails with 55P03.
func (t *tables) change(ctx context.Context, conn *pgx.Conn, fn func() error) error {
	// READ COMMITTED: who has waited for the advisory lock must see what the one before it has done.
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) // does nothing after a commit
	err = t.run(ctx, conn, safePath+`; SELECT pg_advisory_xact_lock(hashtext('usher schema {schema}'));
		SET LOCAL lock_timeout = 200; SET LOCAL idle_in_transaction_session_timeout = 10000`)
	if err == nil {
		err = fn()
	}
	if err == nil && !t.dryRun {
		err = tx.Commit(ctx)
	}
	return err
}

// run runs a script.
func (t *tables) run(ctx context.Context, conn *pgx.Conn, script string) error {
	return conn.PgConn().Exec(ctx, t.dialect.Spell(script)).Close()
}
