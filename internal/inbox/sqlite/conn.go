package sqlite

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"usher/internal/inbox/engine"
)

// A conn is a connection, which prepares each statement once. One goroutine at a time uses it.
type conn struct{ *sqlite.Conn }

// connect opens a file that exists: it never makes one.
func connect(path string, pragmas ...string) (*conn, error) {
	path, err := filepath.Abs(path) // some names, such as :memory:, have a special meaning for SQLite
	if err != nil {
		return nil, err
	}
	opened, err := sqlite.OpenConn(path, sqlite.OpenReadWrite)
	if err != nil {
		return nil, err
	}
	c := &conn{opened}
	c.SetBusyTimeout(patience)
	for _, pragma := range pragmas {
		if err := c.exec("PRAGMA " + pragma); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// patience is how long a connection waits for others.
const patience = 2 * time.Second

func (c *conn) exec(statement string) error { return sqlitex.ExecuteTransient(c.Conn, statement, nil) }

// value returns the first column of a query's row.
func (c *conn) value(query string) (text string, err error) {
	first := func(s *sqlite.Stmt) error { text = s.ColumnText(0); return nil }
	err = sqlitex.ExecuteTransient(c.Conn, query, &sqlitex.ExecOptions{ResultFunc: first})
	return text, err
}

// transaction runs fn in a transaction, and commits it. sqlitex has its own, but that takes one that SQLite has rolled
// back by itself, as it does after some errors, for committed.
func (c *conn) transaction(begin string, fn func() error) error {
	if err := sqlitex.Execute(c.Conn, begin, nil); err != nil {
		return err
	}
	defer func() { // deferred, so that it also happens if fn panics
		if !c.AutocommitEnabled() {
			c.SetInterrupt(nil) // or this would fail, too
			sqlitex.Execute(c.Conn, "ROLLBACK", nil)
		}
	}()
	if err := fn(); err != nil {
		return err
	}
	return sqlitex.Execute(c.Conn, "COMMIT", nil)
}

// run runs a statement of statements.sql: once for each element of the slices in args, which have the same length; or
// once, if there is no slice. Arguments that the statement does not have are for PostgreSQL.
func (c *conn) run(name string, each func(engine.Row) error, args ...any) error {
	text, ok := statements[name]
	if !ok {
		panic("there is no statement " + name)
	}
	s, err := c.Prepare(text)
	if err != nil {
		return fmt.Errorf("statement %s: %w", name, errors.Unwrap(err)) // which would show all of it
	}
	times := 1
	for _, a := range args {
		switch a := a.(type) {
		case []int64:
			times = len(a)
		case []string:
			times = len(a)
		case [][]byte:
			times = len(a)
		}
	}
	for n := range times {
		for i := range s.BindParamCount() {
			bind(s, i+1, args[i], n)
		}
		if err := step(s, each); err != nil {
			return err
		}
	}
	return nil
}

// step runs a statement to its end, and makes it ready for its next run.
func step(s *sqlite.Stmt, each func(engine.Row) error) error {
	defer s.Reset() // also if each panics; it returns the error of the last step again
	for {
		there, err := s.Step()
		if err == nil && there && each != nil {
			err = each(row{s})
		}
		if err != nil || !there {
			return err
		}
	}
}

// bind sets a parameter to a value; to the element n, if it is a slice of values.
func bind(s *sqlite.Stmt, parameter int, value any, n int) {
	switch v := value.(type) {
	case nil:
		s.BindNull(parameter)
	case int64:
		s.BindInt64(parameter, v)
	case int:
		s.BindInt64(parameter, int64(v))
	case []int64:
		s.BindInt64(parameter, v[n])
	case string:
		s.BindText(parameter, v)
	case []string:
		s.BindText(parameter, v[n])
	case []byte:
		bindBytes(s, parameter, v)
	case [][]byte:
		bindBytes(s, parameter, v[n])
	default:
		panic(fmt.Sprintf("a parameter can't be a %T", value))
	}
}

// bindBytes binds nil as NULL, which the library would take for no bytes.
func bindBytes(s *sqlite.Stmt, parameter int, bytes []byte) {
	if bytes == nil {
		s.BindNull(parameter)
		return
	}
	s.BindBytes(parameter, bytes)
}

// row implements engine.Row.
type row struct{ *sqlite.Stmt }

// Scan implements engine.Row. The caller may keep the bytes that it scans.
func (r row) Scan(into ...any) error {
	if columns := r.ColumnCount(); len(into) != columns {
		return fmt.Errorf("a row has %d values, and not %d", columns, len(into))
	}
	readable := true
	for i, to := range into {
		kind, ok := r.ColumnType(i), false
		switch to := to.(type) {
		case *int64:
			if ok = kind == sqlite.TypeInteger; ok {
				*to = r.ColumnInt64(i)
			}
		case *int:
			if ok = kind == sqlite.TypeInteger; ok {
				*to = r.ColumnInt(i)
			}
		case *string:
			if ok = kind == sqlite.TypeText; ok {
				*to = r.ColumnText(i)
			}
		case *[]byte:
			switch kind {
			case sqlite.TypeNull:
				*to, ok = nil, true
			case sqlite.TypeBlob, sqlite.TypeText: // text, too, which somebody may have written by hand
				*to, ok = make([]byte, r.ColumnLen(i)), true
				r.ColumnBytes(i, *to)
			}
		default:
			panic(fmt.Sprintf("a value can't be read into a %T", to))
		}
		readable = readable && ok
	}
	if !readable {
		return engine.ErrRow
	}
	return nil
}

// version returns the version of the tables; 0: there are none. If this usher can't work with them, that is an error.
func (c *conn) version() (version int, err error) {
	tables, err := c.value("SELECT count(*) FROM sqlite_master")
	if err != nil || tables == "0" {
		return 0, err
	}
	both, err := c.value("SELECT version || ' ' || compatible FROM schema_version")
	if sqlite.ErrCode(err) == sqlite.ResultError { // no such table, or column
		return 0, errors.New("it is the database of another program: use another file")
	}
	if err != nil {
		return 0, err
	}
	compatible := 0
	if _, err := fmt.Sscan(both, &version, &compatible); err != nil {
		return 0, errors.New("the file is damaged: its version can't be read")
	}
	if err := migrations.Check(version, compatible); err != nil {
		return 0, fmt.Errorf("%w: start the newer usher, or use another file", err)
	}
	return version, nil
}

// describe adds to an error of SQLite what it means for the inbox. An error that a statement's values have caused
// becomes a *engine.StatementError.
func describe(err error) error {
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultOK, sqlite.ResultError: // what is not SQLite's own has this code, too
		return err
	case sqlite.ResultTooBig, sqlite.ResultConstraint, sqlite.ResultMismatch, sqlite.ResultRange:
		return &engine.StatementError{Err: err}
	case sqlite.ResultNotADB, sqlite.ResultCorrupt:
		return fmt.Errorf("the inbox's file is damaged, or is not an inbox: %w", err)
	case sqlite.ResultReadOnly:
		return fmt.Errorf("the inbox's file can't be written: %w: %w", engine.ErrReadOnly, err)
	}
	return fmt.Errorf("the inbox's file: %w", withCode(err))
}

// withCode adds which error of SQLite it is: its text says "disk I/O error" of thirty.
func withCode(err error) error { return fmt.Errorf("%w (%s)", err, sqlite.ErrCode(err)) }
