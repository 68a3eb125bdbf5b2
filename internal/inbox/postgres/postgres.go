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
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"usher/internal/inbox/engine"
)

const (
	// stepPatience is how long a transaction may take before its COMMIT.
	stepPatience = 10 * time.Second
	// commitPatience is how long a COMMIT may take. It is long because a second connection would not help: until the
	// COMMIT has ended, the server keeps the rows of its lanes locked.
	commitPatience = time.Minute
	// silencePatience is how long a COMMIT waits for a client that says nothing; see endSilent.
	silencePatience = time.Second
	// planPatience is how long the server keeps its query plans. A plan that was made for a table with three rows
	// reads the whole table each time when it has grown, and without DISCARD PLANS only autovacuum, once a minute,
	// would end that.
	planPatience = 5 * time.Second
)

// Engine implements engine.Engine.
type Engine struct {
	tables
	config     *pgxpool.Config
	statements map[string]string
	pool       *pgxpool.Pool // to read

	// The writer's connection, and what is known about it.
	conn           *pgx.Conn // nil: not connected
	migrated       bool      // the tables are there
	plansDiscarded time.Time // when the server was last told to discard its plans
	warned         bool      // the server has sent a warning; commit resets it

	full atomic.Pointer[engine.FullError] // its disk is full; nil: it is not, as far as usher knows
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
		config: a.config.Copy(),
		tables: newTables(pgx.Identifier{a.schema}.Sanitize(), log),
	}
	e.statements = e.dialect.All()
	e.config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		if password != nil {
			c.Password = password()
		}
		return nil
	}
	return e
}

// Check says whether usher could use the database, or only read it. It changes nothing.
func Check(a *Address, password func() string, readOnly bool) error {
	e := newEngine(a, password, slog.New(slog.DiscardHandler))
	e.dryRun, e.readOnly = true, readOnly
	err := e.connect()
	e.disconnect()
	return err
}

// Shared implements engine.Engine.
func (e *Engine) Shared() bool { return true }

// Backup implements engine.Engine.
func (e *Engine) Backup(context.Context) (io.ReadCloser, int64, error) {
	return nil, 0, errors.ErrUnsupported
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
		if !e.viewsDue.IsZero() {
			e.replaceViews(ctx, conn)
		}
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

// stoodStill is the code of idle_in_transaction_session_timeout: usher stood still, and before that it had not sent COMMIT.
const stoodStill = "25P03"

// Write implements engine.Engine.
func (e *Engine) Write(fn func(engine.Tx) error) error {
	var err error
	for range 5 {
		if e.conn == nil {
			if err := e.connect(); err != nil {
				return err
			}
		}
		if err = e.transact(fn); !isCode(err, "40001") && !isCode(err, "40P01") && !isCode(err, stoodStill) { // a serialization failure, a deadlock
			break
		}
	}
	err = describe(err)
	if full, ok := errors.AsType[*engine.FullError](err); ok {
		e.full.CompareAndSwap(nil, full)
	}
	return err
}

// transact runs fn in a transaction. It is READ COMMITTED, because a statement that has waited for a lock must see what
// the transaction that had it has committed.
func (e *Engine) transact(fn func(engine.Tx) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), stepPatience)
	defer cancel()
	t := &tx{e: e, conn: e.conn, ctx: ctx}
	t.batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	t.batch.Queue(e.statements["settings"]).Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			set, err := rows.Values()
			if err != nil {
				return err
			}
			t.backend = set[len(set)-1].(int32)
		}
		return rows.Err()
	})
	if time.Since(e.plansDiscarded) > planPatience {
		e.plansDiscarded = time.Now()
		t.batch.Queue("DISCARD PLANS")
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

// commit sends the statements that are still queued, together with COMMIT. It uses no context: when a context ends,
// the driver asks the server to cancel. A COMMIT that is cancelled while it waits for a standby is committed here,
// becomes visible, and is lost in a failover.
func (t *tx) commit() error {
	e := t.e
	socket := t.conn.PgConn().Conn()
	defer time.AfterFunc(commitPatience, func() { socket.Close() }).Stop()
	waits, committed := context.WithCancel(context.Background())
	defer committed()
	backend := t.backend
	defer time.AfterFunc(silencePatience, func() { e.endSilent(waits, backend) }).Stop()
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
	case pgconn.SafeToRetry(err) || isCode(err, stoodStill):
		e.disconnect()
		return err
	}
	e.disconnect()
	e.log.Debug("a commit was not confirmed", "err", describe(err))
	return engine.ErrDoubt
}

// endSilent ends the backends for whose locks another one waits, and whose clients say nothing, as long as it waits. A
// replica that stops while it sends its last statements holds the row of numbers, for which all others wait, and
// idle_in_transaction_session_timeout does not count while a statement is expected. One that waits for a standby is
// committed, and must not be ended.
func (e *Engine) endSilent(waits context.Context, backend int32) {
	for waits.Err() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), stepPatience) // to cancel it would cost the connection
		err := e.Read(ctx, func(read engine.Tx) error {
			read.Queue("end_silent", func(row engine.Row) error {
				pid, ended := 0, false
				err := row.Scan(&pid, &ended)
				e.log.Warn("a client of the inbox's database says nothing in a transaction that usher waits for: "+
					"its connection is ended", "pid", pid, "ended", ended)
				return err
			}, backend)
			return read.Send()
		})
		cancel()
		if err != nil {
			e.log.Debug("whom a commit waits for can't be asked", "err", err)
		}
		select {
		case <-waits.Done():
		case <-time.After(silencePatience):
		}
	}
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

// Full implements engine.Engine.
func (e *Engine) Full() *engine.FullError { return e.full.Load() }

// Maintain implements engine.Engine. PostgreSQL has its autovacuum; only views that could not be replaced yet are
// tried again, and whether its disk has room again.
func (e *Engine) Maintain() {
	e.findRoom()
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

// tx implements engine.Tx with a pgx.Batch.
type tx struct {
	e     *Engine
	conn  *pgx.Conn
	ctx   context.Context
	batch pgx.Batch

	// backend is the server's process that runs it, known after the first Send. A pooler may choose another one for each
	// transaction.
	backend int32
}

// Queue implements engine.Tx.
func (t *tx) Queue(name string, each func(engine.Row) error, args ...any) {
	statement, ok := t.e.statements[name]
	if !ok {
		panic("there is no statement " + name)
	}
	q := t.batch.Queue(statement, args...)
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
