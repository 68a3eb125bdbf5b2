// Package postgres is the engine of an inbox that replicas share: a PostgreSQL database, version 13 or newer. It
// knows statements, transactions and their failures, and nothing about webhooks.
//
// All settings that a transaction depends on are made in its first round trip, because a pooler such as PgBouncer
// gives the connection to another client after each transaction. For the same reason tables are named with their
// schema, and nothing depends on a session: no LISTEN, no session lock, no SET.
package postgres

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"usher/internal/inbox/engine"
	"usher/internal/secret"
)

//go:embed statements.sql
var statementsText string

//go:embed 001.sql
var schema001 string

//go:embed views.sql
var viewsText string

// viewsVersion counts the versions of views.sql.
const viewsVersion = 1

var migrations = engine.Migrations{engine.Tables + schema001}

// An Address says where the database is. Parse makes it.
type Address struct {
	config *pgxpool.Config
	schema string
}

// Parse reads an address as every PostgreSQL client takes it, postgres://user@host[,host]/database. One more
// parameter, schema, is usher's own. Errors never show a password.
func Parse(address string) (*Address, error) {
	base, text, _ := strings.Cut(address, "?") // url.Parse can't read an address with several hosts
	query, err := url.ParseQuery(text)
	if err != nil {
		return nil, errors.New("its parameters can't be read")
	}
	schema := query.Get("schema")
	if !query.Has("schema") {
		schema = "usher"
	}
	if schema == "" || len(schema) > 63 || strings.Trim(schema, nameCharacters) != "" {
		return nil, errors.New("its schema should be a name of 1 to 63 letters, digits and underscores")
	}
	query.Del("schema")
	for _, name := range ownParameters {
		if query.Has(name) {
			return nil, fmt.Errorf("it has the parameter %s, which usher sets itself", name)
		}
	}
	// pgx reads these files without a limit, and waits for a pipe.
	for _, name := range []string{"sslrootcert", "sslcert", "sslkey"} {
		if file := query.Get(name); file != "" && !(name == "sslrootcert" && file == "system") {
			if _, err := secret.ReadRegular(file); err != nil {
				return nil, fmt.Errorf("its %s cannot be used: %w", name, err)
			}
		}
	}
	config, err := pgxpool.ParseConfig(base + "?" + query.Encode())
	if err != nil {
		return nil, errors.New(parseReason(err))
	}
	for name := range config.ConnConfig.RuntimeParams {
		switch {
		case name == "application_name":
		case !query.Has(name): // from the environment (PGTZ, PGOPTIONS), for other programs
			delete(config.ConnConfig.RuntimeParams, name)
		case strings.Contains(text, "@"): // a question mark in the password: the name may be a part of it
			return nil, errors.New("it can't be read as an address: write a ? inside the password as %3F")
		default:
			// A pooler refuses parameters that it does not know, and passes none on.
			return nil, fmt.Errorf("it has the parameter %q, which usher does not know", name)
		}
	}
	config.ConnConfig.RuntimeParams["application_name"] = "usher"
	config.ConnConfig.ConnectTimeout = connectPatience
	dialer := &net.Dialer{
		Timeout: connectPatience,
		Control: userTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable:   true,
			Idle:     5 * time.Second,
			Interval: 2 * time.Second,
			Count:    3,
		},
	}
	config.ConnConfig.DialFunc = dialer.DialContext
	config.MaxConns = engine.MaxReaders
	config.MinConns = 0
	config.MaxConnIdleTime = time.Minute
	config.HealthCheckPeriod = time.Minute
	return &Address{config, schema}, nil
}

// nameCharacters are those that the name of a schema may have.
const nameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

// ownParameters are those of an address that usher sets itself.
var ownParameters = []string{
	"pool_max_conns",
	"pool_min_conns",
	"pool_max_conn_lifetime",
	"pool_max_conn_idle_time",
	"pool_health_check_period",
	"pool_max_conn_lifetime_jitter",
}

// parseReason returns pgx's error about an address without the address itself, which may have a password.
func parseReason(err error) string {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		if inner := errors.Unwrap(parse); inner != nil {
			return inner.Error()
		}
	}
	return "it can't be read as an address"
}

// Unencrypted says whether the connection goes to another host without TLS that checks the server's name: then others
// could read or change what usher sends.
func (a *Address) Unencrypted() bool {
	c := a.config.ConnConfig
	first := &pgconn.FallbackConfig{Host: c.Host, TLSConfig: c.TLSConfig}
	return slices.ContainsFunc(append(slices.Clone(c.Fallbacks), first), func(to *pgconn.FallbackConfig) bool {
		ip := net.ParseIP(to.Host)
		here := strings.HasPrefix(to.Host, "/") || to.Host == "localhost" || ip != nil && ip.IsLoopback()
		return !here && (to.TLSConfig == nil || to.TLSConfig.InsecureSkipVerify)
	})
}

// HasPassword says whether a password is part of the address.
func (a *Address) HasPassword() bool { return a.config.ConnConfig.Password != "" }

const (
	connectPatience = 5 * time.Second
	// stepPatience is how long a transaction may take before its COMMIT.
	stepPatience = 10 * time.Second
	// commitPatience is how long a COMMIT may take. It is long because a second connection would not help: until the
	// COMMIT has ended, the server keeps the rows of its lanes locked.
	commitPatience = time.Minute
	// planPatience is how long the server keeps its query plans. A plan that was made for a table with three rows
	// reads the whole table each time when it has grown, and without DISCARD PLANS only autovacuum, once a minute,
	// would end that.
	planPatience = 5 * time.Second
	// viewsPatience is how long usher waits until it tries again to replace the views.
	viewsPatience = 5 * time.Second
)

// safePath comes first in each transaction. Otherwise names of functions and operators are also looked up in the
// schema public, where on PostgreSQL 14 and older every role may create objects. One that fits its arguments better
// than that of pg_catalog would run with usher's rights (CVE-2018-1058). It also decides what the views refer to.
const safePath = "SET LOCAL search_path = pg_catalog, pg_temp"

// Engine implements engine.Engine.
type Engine struct {
	config     *pgxpool.Config
	schema     string
	spelling   *strings.Replacer
	statements map[string]string
	log        *slog.Logger
	pool       *pgxpool.Pool

	// The writer's connection, and what is known about it.
	conn           *pgx.Conn // nil: not connected
	migrated       bool      // the tables are there
	dryRun         bool      // roll the migrations back: only find out whether they would work
	readOnly       bool      // the tables that exist are enough
	views          string    // the text of views.sql, and its version
	viewsVersion   int
	viewsDue       time.Time // when they are to be replaced; zero: they are there
	viewsRefused   bool      // that they could not be replaced was logged
	lockTimedOut   time.Time // when a statement last gave up waiting for a lock; see noteLock
	waitedInVain   bool      // one did since findLock last looked
	plansDiscarded time.Time // when the server was last told to discard its plans
	warned         bool      // the server has sent a warning; commit resets it

	full   atomic.Pointer[engine.FullError] // its disk is full; nil: it is not, as far as usher knows
	locked atomic.Pointer[time.Time]        // since when a whole table is locked; nil: none is, as far as usher knows
}

// Open connects and makes the tables. If the server cannot be reached, that is no error: Write tries to connect
// again. Only a *SetupError, which somebody has to correct, is returned.
func Open(a *Address, password func() string, log *slog.Logger) (*Engine, error) {
	return newEngine(a, password, log).open()
}

func (e *Engine) open() (*Engine, error) {
	readers := e.config.Copy()
	if readers.ConnConfig.ValidateConnect == nil {
		// Reads must not go to a standby, which may lag behind what senders were told is stored. A writer notices a
		// standby by its errors, but a reader does not.
		readers.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	// After the server was away the pool's connections are dead. The pool finds that out before it gives one to a
	// reader.
	readers.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	var err error
	if e.pool, err = pgxpool.NewWithConfig(context.Background(), readers); err != nil {
		return nil, errors.New(parseReason(err))
	}
	if err := e.connect(); err != nil {
		var setup *SetupError
		if errors.As(err, &setup) {
			e.pool.Close()
			return nil, err
		}
		e.log.Warn("the inbox's database can't be reached yet, will retry", "err", err)
	}
	return e, nil
}

func newEngine(a *Address, password func() string, log *slog.Logger) *Engine {
	e := &Engine{
		config:       a.config.Copy(),
		schema:       pgx.Identifier{a.schema}.Sanitize(),
		log:          log,
		views:        viewsText,
		viewsVersion: viewsVersion,
	}
	e.spelling = engine.Spelling(
		"{schema}", e.schema,
		"{int}", "bigint",
		"{text}", `text COLLATE "C"`,
		"{json}", "jsonb",
		"{bytes}", "bytea",
		"{empty}", "''::bytea",
		"{keyed}", "",
		"{counter}", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
		"{among}", "= ANY($1::bigint[])",
		"{other}", "<> ALL($1::bigint[])",
		"{listed}", "= ANY($2::text[])",
		"{lock}", "FOR UPDATE OF w",
		"{skip}", "FOR UPDATE SKIP LOCKED",
	)
	e.statements = engine.Statements(statementsText, e.spelling)
	e.config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		if password != nil {
			c.Password = password()
		}
		return nil
	}
	return e
}

// A SetupError says that somebody has to change something, and that waiting does not help.
type SetupError struct{ Err error }

func (e *SetupError) Error() string { return e.Err.Error() }
func (e *SetupError) Unwrap() error { return e.Err }

// Shared implements engine.Engine.
func (e *Engine) Shared() bool { return true }

// Full implements engine.Engine.
func (e *Engine) Full() *engine.FullError { return e.full.Load() }

// Locked implements engine.Engine.
func (e *Engine) Locked() time.Time {
	if since := e.locked.Load(); since != nil {
		return *since
	}
	return time.Time{}
}

// Maintain implements engine.Engine. PostgreSQL has its autovacuum; only views that could not be replaced yet are
// tried again, whether its disk has room again, and whether its tables are locked.
func (e *Engine) Maintain() {
	e.findRoom()
	e.findLock()
	if e.viewsDue.IsZero() || time.Now().Before(e.viewsDue) || e.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	e.replaceViews(ctx, e.conn)
	if e.conn.IsClosed() {
		e.disconnect()
	}
}

// findRoom finds out whether a disk that was full has room again. Something small can be written that fits into pages
// that are free already: only a large row shows it.
func (e *Engine) findRoom() {
	if e.Full() == nil {
		return
	}
	enough := errors.New("there is room")
	err := e.Write(func(tx engine.Tx) error {
		tx.Queue("need_room", nil)
		return cmp.Or(tx.Send(), enough) // and all of it is rolled back
	})
	if errors.Is(err, enough) {
		e.full.Store(nil)
		e.log.Info("the disk of the inbox's database has room again")
	}
}

// findLock finds out, after a statement has waited in vain for a lock, whether a whole table is locked, and not only
// a row: then no work is to blame, and nothing can be written.
func (e *Engine) findLock() {
	since := e.Locked()
	if !e.waitedInVain && since.IsZero() {
		return
	}
	err := e.Write(func(tx engine.Tx) error {
		tx.Queue("lock_tables", nil)
		return tx.Send()
	})
	e.waitedInVain = false
	switch refused := errors.As(err, new(*engine.StatementError)); {
	case refused && since.IsZero():
		now := time.Now()
		e.locked.Store(&now)
		e.log.Error("another client has locked a table of the inbox: nothing can be written", "schema", e.schema)
	case !refused && !since.IsZero():
		e.locked.Store(nil)
		e.log.Info("the tables of the inbox are no longer locked",
			"schema", e.schema, "after", time.Since(since).Round(time.Millisecond))
	}
}

// Close closes the connections.
func (e *Engine) Close() error {
	e.disconnect()
	e.pool.Close()
	return nil
}

// connect makes the writer's connection, and at the first time the tables.
func (e *Engine) connect() error {
	ctx, cancel := context.WithTimeout(context.Background(), stepPatience)
	defer cancel()
	config := e.config.ConnConfig.Copy()
	e.config.BeforeConnect(ctx, config)
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		e.warned = e.warned || severity((*pgconn.PgError)(n)) == "WARNING"
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return describe(err)
	}
	if !e.migrated {
		if err := e.migrate(ctx, conn); err != nil {
			conn.Close(ctx)
			return err
		}
		e.migrated = true
		e.replaceViews(ctx, conn)
	}
	e.conn = conn
	return nil
}

// disconnect drops the writer's connection. The next transaction makes a new one, maybe to another host.
func (e *Engine) disconnect() {
	if e.conn != nil {
		e.conn.PgConn().Conn().Close() // conn.Close would wait, and the end of a context would ask the server to cancel
	}
	e.conn = nil
}

// Write implements engine.Engine.
func (e *Engine) Write(fn func(engine.Tx) error) error {
	var err error
	hurried := e.hurried()
	for range 5 {
		if e.conn == nil {
			if err := e.connect(); err != nil {
				return err
			}
		}
		if err = e.transact(fn); !isSerialization(err) {
			break
		}
	}
	e.noteLock(err, hurried)
	err = describe(err)
	if full, ok := errors.AsType[*engine.FullError](err); ok {
		e.full.CompareAndSwap(nil, full)
	}
	return err
}

// hurried says whether transactions do not wait for locks for long, because one has just waited in vain.
func (e *Engine) hurried() bool { return time.Since(e.lockTimedOut) < 5*time.Second }

// noteLock notes that a transaction has waited in vain for a lock. One that was hurried does not count: otherwise, if
// commits take long, all would be hurried for ever.
func (e *Engine) noteLock(err error, hurried bool) {
	timedOut := isCode(err, "55P03")
	e.waitedInVain = e.waitedInVain || timedOut
	if timedOut && !hurried {
		e.lockTimedOut = time.Now()
	}
}

func isCode(err error, code string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == code
}

// Backup implements engine.Engine.
func (e *Engine) Backup(context.Context) (io.ReadCloser, int64, error) {
	return nil, 0, errors.ErrUnsupported
}

func isSerialization(err error) bool { return isCode(err, "40001") || isCode(err, "40P01") }

// begin begins a transaction of the writer. It is READ COMMITTED, because a statement that has waited for a lane's
// lock must see what the transaction that had the lock has committed.
func (e *Engine) begin(ctx context.Context) *tx {
	t := &tx{e: e, conn: e.conn, ctx: ctx}
	t.batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	t.batch.Queue(e.statements["settings"])
	if time.Since(e.plansDiscarded) > planPatience {
		e.plansDiscarded = time.Now()
		t.batch.Queue("DISCARD PLANS")
	}
	return t
}

func (e *Engine) transact(fn func(engine.Tx) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), stepPatience)
	defer cancel()
	t := e.begin(ctx)
	if e.hurried() {
		// Another client has locked a row. The writer splits the batch until the operation that needs this row is
		// alone, and the other operations must not wait for the row at each step.
		t.batch.Queue("SELECT set_config('lock_timeout', '200', true)")
	}
	if err := fn(t); err != nil {
		e.rollback(err)
		return err
	}
	return t.commit()
}

// rollback ends a transaction that failed, and drops the connection if it is no longer usable.
func (e *Engine) rollback(cause error) {
	var pg *pgconn.PgError
	// 25006: it is read-only, but another host may be the primary.
	usable := !errors.As(cause, &pg) || pg.Code != "25006" && severity(pg) != "FATAL"
	if usable && !e.conn.IsClosed() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := e.conn.Exec(ctx, "ROLLBACK"); err == nil {
			return
		}
	}
	e.disconnect()
}

// severity returns an error's severity in English, whatever the server's language is. A pooler sends only the
// localized one, in English.
func severity(e *pgconn.PgError) string { return cmp.Or(e.SeverityUnlocalized, e.Severity) }

// tx implements engine.Tx with a pgx.Batch.
type tx struct {
	e     *Engine
	conn  *pgx.Conn
	ctx   context.Context
	batch pgx.Batch
}

// Queue implements engine.Tx.
func (t *tx) Queue(name string, each func(engine.Row) error, args ...any) {
	statement, ok := t.e.statements[name]
	if !ok {
		panic("there is no statement " + name)
	}
	values := make([]any, 0, len(args))
	for _, a := range args {
		switch a := a.(type) {
		case engine.Among:
			values = append(values, []int64(a))
		case engine.Listed:
			values = append(values, []string(a))
		case engine.Table:
			values = append(values, a...)
		default:
			values = append(values, a)
		}
	}
	q := t.batch.Queue(statement, values...)
	if each == nil {
		return
	}
	q.Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			if err := each(rows); err != nil && !errors.Is(err, engine.ErrRow) {
				return err
			}
		}
		return rows.Err()
	})
}

// Scrub implements engine.Tx. What the server has deleted is its own business.
func (t *tx) Scrub() {}

// Now implements engine.Tx.
func (t *tx) Now(at *int64) {
	t.Queue("now", func(r engine.Row) error { return r.Scan(at) })
}

// Send implements engine.Tx.
func (t *tx) Send() error {
	if t.batch.Len() == 0 {
		return nil
	}
	err := t.conn.SendBatch(t.ctx, &t.batch).Close()
	t.batch = pgx.Batch{}
	return err
}

// commit sends the statements that are still queued, together with COMMIT. It uses no context: when a context ends,
// the driver asks the server to cancel. A COMMIT that is cancelled while it waits for a standby is committed here,
// becomes visible, and is lost in a failover.
func (t *tx) commit() error {
	e := t.e
	socket := t.conn.PgConn().Conn()
	defer time.AfterFunc(commitPatience, func() { socket.Close() }).Stop()
	e.warned = false
	var tag pgconn.CommandTag
	t.batch.Queue("COMMIT").Exec(func(ct pgconn.CommandTag) error { tag = ct; return nil })
	err := t.conn.SendBatch(context.Background(), &t.batch).Close()
	var pg *pgconn.PgError
	switch {
	case err == nil && tag.String() == "COMMIT" && e.warned: // it is committed here, but maybe not on the standby
		return engine.ErrDoubt
	case err == nil && tag.String() == "COMMIT":
		return nil
	case err == nil:
		return errors.New("the database rolled a transaction back")
	case errors.As(err, &pg) && severity(pg) != "FATAL" && severity(pg) != "PANIC":
		e.rollback(err) // a statement before COMMIT has failed, or COMMIT itself
		return err
	case pgconn.SafeToRetry(err):
		e.disconnect()
		return err
	}
	e.disconnect()
	e.log.Debug("a commit was not confirmed", "err", describe(err))
	return engine.ErrDoubt
}

// Read implements engine.Engine.
func (e *Engine) Read(ctx context.Context, fn func(engine.Tx) error) error {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return describe(err)
	}
	defer conn.Release()
	t := &tx{e: e, conn: conn.Conn(), ctx: ctx}
	t.batch.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
	t.batch.Queue(safePath)
	if err := fn(t); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn.Exec(ctx, "ROLLBACK")
		return describe(err)
	}
	t.batch.Queue("COMMIT")
	return describe(t.Send())
}

// describe says in words what an error means for the inbox. An error that somebody has to correct becomes a
// *SetupError, and one that a statement's values or a locked row have caused a *engine.StatementError.
func describe(err error) error {
	if err == nil || errors.Is(err, engine.ErrDoubt) {
		return err
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		var setup *SetupError
		if errors.As(err, &setup) {
			return err
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return &engine.AwayError{Err: noAnswer{err}}
		}
		return &engine.AwayError{Err: fmt.Errorf("the inbox's database can't be reached: %w", oneLine{err})}
	}
	switch {
	case pg.Code == "28P01" || pg.Code == "28000":
		return &SetupError{fmt.Errorf("the inbox's database refuses the user: %s "+
			"(check USHER_WEBHOOK_INBOX and USHER_WEBHOOK_INBOX_PASSWORD)", pg.Message)}
	case pg.Code == "3D000":
		return &SetupError{fmt.Errorf("the inbox's database does not exist: %s; create it with CREATE DATABASE",
			pg.Message)}
	case pg.Code == "26000" || pg.Code == "42P05": // a prepared statement is missing, or there already
		return fmt.Errorf("the inbox's database: %w; "+
			"a pooler in transaction mode needs default_query_exec_mode=exec in USHER_WEBHOOK_INBOX", pg)
	case pg.Code == "25006":
		return fmt.Errorf("the inbox's database can't be written: %w; it is a standby, or was made read-only; "+
			"with several hosts in USHER_WEBHOOK_INBOX add target_session_attrs=read-write", engine.ErrReadOnly)
	case pg.Code == "55P03":
		return &engine.StatementError{Err: err, Locked: true}
	case strings.HasPrefix(pg.Code, "22"), strings.HasPrefix(pg.Code, "23"), pg.Code == "54000",
		pg.Code == "57014",                                         // one piece of work takes too long
		pg.Code == "XX001", pg.Code == "XX002", pg.Code == "P0001": // a damaged row or index, or somebody's trigger
		return &engine.StatementError{Err: err}
	case pg.Code == "53100":
		return &engine.FullError{Of: "the inbox's database", Since: time.Now(), Err: err}
	// It starts, stops, or has too many clients.
	case strings.HasPrefix(pg.Code, "08"), strings.HasPrefix(pg.Code, "53"), strings.HasPrefix(pg.Code, "57"):
		return &engine.AwayError{Err: fmt.Errorf("the inbox's database: %w", pg)}
	}
	return fmt.Errorf("the inbox's database: %w", pg) // without the list of tries if it cannot connect
}

// noAnswer is a database that was asked, and is silent. pgx would say: failed to receive message: timeout: context
// deadline exceeded.
type noAnswer struct{ error }

func (noAnswer) Error() string   { return "the inbox's database does not answer" }
func (e noAnswer) Unwrap() error { return e.error }

// oneLine is an error of pgx when it cannot connect. pgx names the user and the database, and has a line for each
// try, with TLS and without: what is the same is said once.
type oneLine struct{ error }

func (e oneLine) Unwrap() error { return e.error }
func (e oneLine) Error() string {
	err := e.error
	if c, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		err = c.Unwrap()
	}
	return strings.Join(slices.Compact(strings.Split(err.Error(), "\n")), "; ")
}

// migrate makes the tables. If the role may not do that, the error has the statement that an administrator should run.
func (e *Engine) migrate(ctx context.Context, conn *pgx.Conn) error {
	encoding := ""
	if err := conn.QueryRow(ctx, "SELECT getdatabaseencoding()").Scan(&encoding); err != nil {
		return describe(err)
	}
	if encoding != "UTF8" {
		return &SetupError{fmt.Errorf("the inbox's database has the encoding %s, and usher needs UTF8: "+
			"create another one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", encoding)}
	}
	version, compatible, views := 0, 0, 0
	row := conn.QueryRow(ctx, "SELECT version, compatible, views FROM "+e.schema+".schema_version")
	err := row.Scan(&version, &compatible, &views)
	noTable := isCode(err, "42P01") || isCode(err, "3F000")
	if noTable || err == nil && (version < len(migrations) || e.dryRun && !e.readOnly) {
		version, compatible, err = e.apply(ctx, conn)
	}
	switch {
	case isCode(err, "42501"):
		user := conn.Config().User
		role, database := pgx.Identifier{user}.Sanitize(), pgx.Identifier{conn.Config().Database}.Sanitize()
		return &SetupError{fmt.Errorf("the role %q may not do what usher needs (%w); as an administrator run: "+
			"CREATE SCHEMA IF NOT EXISTS %s AUTHORIZATION %s; or, to let usher create it: "+
			"GRANT CREATE ON DATABASE %s TO %s", user, err, e.schema, role, database, role)}
	case isCode(err, "55P03"):
		return errors.New("the inbox's tables can't be changed yet: another transaction is using them")
	case isCode(err, "42703"):
		return e.notOurs(err)
	case err != nil:
		return describe(err)
	}
	if err := migrations.Check(version, compatible); err != nil {
		return &SetupError{fmt.Errorf("the schema %s: %w: "+
			"start the newer usher, or name another schema in USHER_WEBHOOK_INBOX", e.schema, err)}
	}
	if e.dryRun { // there are no tables yet, or none any more
		return nil
	}
	if views < e.viewsVersion {
		e.viewsDue = time.Now()
	}
	_, err = conn.Exec(ctx, e.spelling.Replace("SELECT {lane} FROM {schema}.lane l LIMIT 0"))
	if isCode(err, "42703") || isCode(err, "42P01") {
		return e.notOurs(err)
	}
	return nil
}

func (e *Engine) notOurs(err error) error {
	return &SetupError{fmt.Errorf("the tables in the schema %s are not those of this usher (%w): "+
		"name another schema in USHER_WEBHOOK_INBOX, or drop this one", e.schema, err)}
}

// apply runs the migrations that are missing, and returns the version of the tables, and down to which they are
// compatible.
func (e *Engine) apply(ctx context.Context, conn *pgx.Conn) (version, compatible int, err error) {
	err = e.change(ctx, conn, func(tx pgx.Tx, run runScript) error {
		// CREATE SCHEMA IF NOT EXISTS needs a right on the database, even if the schema exists.
		err := run("DO $$ BEGIN IF to_regnamespace('{schema}') IS NULL THEN CREATE SCHEMA {schema}; END IF; END $$")
		read := func() error {
			row := tx.QueryRow(ctx, "SELECT version, compatible FROM "+e.schema+".schema_version")
			return row.Scan(&version, &compatible)
		}
		there := false // another replica may have made them meanwhile
		if err == nil {
			err = tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", e.schema+".schema_version").Scan(&there)
		}
		if err == nil && there {
			err = read()
		}
		scripts, note := migrations.From(version)
		for _, script := range scripts {
			if err == nil {
				err = run(e.spelling.Replace(script))
			}
		}
		if err == nil && len(scripts) > 0 {
			err = errors.Join(run(note), read())
		}
		if err == nil && e.dryRun {
			err = e.runViews(ctx, tx, run)
		}
		return err
	})
	return version, compatible, err
}

// replaceViews runs views.sql, unless the database has it already. A view can't be replaced while a transaction that
// has read it is open, a report of an hour perhaps. Webhooks need no views, so that is not an error: Maintain tries
// again.
func (e *Engine) replaceViews(ctx context.Context, conn *pgx.Conn) {
	if e.viewsDue.IsZero() {
		return
	}
	err := e.change(ctx, conn, func(tx pgx.Tx, run runScript) error { return e.runViews(ctx, tx, run) })
	switch {
	case err == nil:
		e.viewsDue = time.Time{}
		return
	case e.viewsRefused:
	case isCode(err, "55P03"):
		e.log.Warn("the views for SQL can't be replaced yet, because a transaction is using them: will retry",
			"schema", e.schema)
	default:
		e.log.Error("the views for SQL can't be created or replaced: will retry", "schema", e.schema, "err", err)
	}
	e.viewsRefused = true
	e.viewsDue = time.Now().Add(viewsPatience)
}

func (e *Engine) runViews(ctx context.Context, tx pgx.Tx, run runScript) error {
	there := 0
	err := tx.QueryRow(ctx, "SELECT views FROM "+e.schema+".schema_version").Scan(&there)
	if err != nil || there >= e.viewsVersion {
		return err // a newer usher's views have all columns of ours
	}
	return run(e.views + fmt.Sprintf(";UPDATE {schema}.schema_version SET views = %d", e.viewsVersion))
}

// A runScript runs a script in a transaction.
type runScript func(script string) error

// change runs fn in a transaction that changes tables or views. One replica does it, and the others wait. In a dry
// run all of it is rolled back.
//
// A statement that waits for an exclusive lock makes all later ones wait, too, even those that only read. So fn waits
// for a moment only, and then fails with 55P03.
func (e *Engine) change(ctx context.Context, conn *pgx.Conn, fn func(pgx.Tx, runScript) error) error {
	// READ COMMITTED: who has waited for the advisory lock must see what the one before it has done.
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) // does nothing after a commit
	run := func(script string) error {
		return conn.PgConn().Exec(ctx, strings.ReplaceAll(script, "{schema}", e.schema)).Close()
	}
	err = run(safePath + `; SELECT pg_advisory_xact_lock(hashtext('usher schema {schema}'));
		SET LOCAL lock_timeout = 200; SET LOCAL idle_in_transaction_session_timeout = 10000`)
	if err == nil {
		err = fn(tx, run)
	}
	if err == nil && !e.dryRun {
		err = tx.Commit(ctx)
	}
	return err
}

// Check says whether usher could use the database, or only read it. It changes nothing.
func Check(a *Address, password func() string, readOnly bool) error {
	e := newEngine(a, password, slog.New(slog.DiscardHandler))
	e.dryRun, e.readOnly = true, readOnly
	err := e.connect()
	e.disconnect()
	return err
}
