package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"

	"modernc.org/sqlite"

	"usher/internal/inbox/engine"
)

// A conn is a connection with its prepared statements. It uses SQLite's driver without database/sql, which takes as long for a
// small statement as SQLite itself.
type conn struct {
	driver.Conn
	prepared map[string]*statement
}

// A statement is a prepared statement of statements.sql.
type statement struct{ driver.Stmt }

// connect opens a file that exists: it never makes one.
func connect(path string, pragmas []string) (*conn, error) {
	path, err := filepath.Abs(path) // some names, such as :memory:, have a special meaning for SQLite
	if err != nil {
		return nil, err
	}
	query := url.Values{"_pragma": pragmas, "mode": {"rw"}}
	c, err := new(sqlite.Driver).Open("file:" + (&url.URL{Path: path}).EscapedPath() + "?" + query.Encode())
	if err != nil {
		return nil, err
	}
	return &conn{c, make(map[string]*statement)}, nil
}

// Close closes the connection. SQLite keeps the files open, and locked, as long as there is a statement.
func (c *conn) Close() error {
	for _, s := range c.prepared {
		s.Close()
	}
	return c.Conn.Close()
}

// exec runs a script.
func (c *conn) exec(script string) error {
	_, err := c.Conn.(driver.ExecerContext).ExecContext(context.Background(), script, nil)
	return err
}

// queryValue runs a query and returns the first value of the first row.
func (c *conn) queryValue(query string) (value any, err error) {
	rows, err := c.Conn.(driver.QueryerContext).QueryContext(context.Background(), query, nil)
	if err != nil {
		return nil, err
	}
	values := make([]driver.Value, len(rows.Columns()))
	err = rows.Next(values)
	return values[0], errors.Join(err, rows.Close())
}

// version returns the version of the tables. If a newer usher made them, that is an error.
func (c *conn) version() (int, error) {
	value, err := c.queryValue("PRAGMA user_version")
	if err != nil {
		return 0, describe(err)
	}
	version := int(value.(int64))
	if version > len(migrations) {
		return 0, fmt.Errorf("a newer usher made its tables (version %d; this usher knows %d): start the newer usher, or use another file", version, len(migrations))
	}
	if version > 0 {
		return version, nil
	}
	tables, err := c.queryValue("SELECT count(*) FROM sqlite_master")
	if err == nil && tables != int64(0) {
		err = errors.New("it is the database of another program: use another file")
	}
	return 0, describe(err)
}

// transaction runs fn in a transaction, and commits it.
func (c *conn) transaction(begin string, fn func() error) error {
	ctx := context.Background()
	if err := c.run(ctx, begin, nil, nil); err != nil {
		return err
	}
	committed := false
	defer func() { // deferred, so that it also happens if fn panics
		if !committed {
			c.exec("ROLLBACK") // fails if SQLite has rolled back by itself, as it does after some errors
		}
	}()
	err := fn()
	if err == nil {
		err = c.run(ctx, "commit", nil, nil)
		committed = err == nil
	}
	return err
}

func (c *conn) prepare(name string) (*statement, error) {
	if s := c.prepared[name]; s != nil {
		return s, nil
	}
	text, ok := statements[name]
	if !ok {
		panic("there is no statement " + name)
	}
	prepared, err := c.Prepare(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s := &statement{prepared}
	c.prepared[name] = s
	return s, nil
}

// run runs a statement: once for each element of the slices in args, which have the same length; or once, if there is no slice.
func (c *conn) run(ctx context.Context, name string, each func(engine.Row) error, args []any) error {
	s, err := c.prepare(name)
	if err != nil {
		return err
	}
	values, times := make([]driver.NamedValue, len(args)), -1
	for i, a := range args {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
		switch a := a.(type) {
		case []int64:
			times = len(a)
		case []string:
			times = len(a)
		case [][]byte:
			times = len(a)
		case int:
			values[i].Value = int64(a)
		case engine.Listed:
			text, _ := json.Marshal(append([]string{}, a...))
			values[i].Value = string(text)
		case engine.Among:
			text, _ := json.Marshal(append([]int64{}, a...))
			values[i].Value = string(text)
		case engine.Table:
			values[i].Value = jsonRows(a)
		}
	}
	if times < 0 {
		return s.run(ctx, each, values)
	}
	for n := range times {
		for i, a := range args {
			switch a := a.(type) {
			case []int64:
				values[i].Value = a[n]
			case []string:
				values[i].Value = a[n]
			case [][]byte:
				values[i].Value = a[n]
			}
		}
		if err := s.run(ctx, each, values); err != nil {
			return err
		}
	}
	return nil
}

// jsonRows writes a table as a JSON array of its rows.
func jsonRows(t engine.Table) string {
	var rows [][]any
	for _, column := range t {
		switch column := column.(type) {
		case []string:
			rows = addColumn(rows, column)
		case []int64:
			rows = addColumn(rows, column)
		default: // without it the columns behind it would be read in its place
			panic(fmt.Sprintf("a table has a column of %T", column))
		}
	}
	text, _ := json.Marshal(rows)
	return string(text)
}

func addColumn[V any](rows [][]any, column []V) [][]any {
	if rows == nil {
		rows = make([][]any, len(column))
	}
	for i, v := range column {
		rows[i] = append(rows[i], v)
	}
	return rows
}

func (s *statement) run(ctx context.Context, each func(engine.Row) error, args []driver.NamedValue) error {
	if each == nil {
		_, err := s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
		return err
	}
	rows, err := s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
	if err != nil {
		return err
	}
	defer rows.Close()
	values := make(row, len(rows.Columns()))
	for {
		if err := rows.Next(values); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := errors.Join(each(values), ctx.Err()); err != nil {
			return err
		}
	}
}

// row implements engine.Row. The caller may keep the bytes that it scans.
type row []driver.Value

func (r row) Scan(into ...any) error {
	if len(into) != len(r) {
		return fmt.Errorf("a row has %d values, and not %d", len(r), len(into))
	}
	for i, v := range r {
		ok := true
		switch to := into[i].(type) {
		case *int64:
			*to, ok = v.(int64)
		case *int:
			var n int64
			n, ok = v.(int64)
			*to = int(n)
		case *string:
			if *to, ok = v.(string); !ok {
				var bytes []byte // somebody has damaged the row
				bytes, ok = v.([]byte)
				*to = string(bytes)
			}
		case *[]byte:
			*to, ok = v.([]byte)
			ok = ok || v == nil
		default:
			ok = false
		}
		if !ok {
			return fmt.Errorf("value %d of a row is a %T, and %T was expected", i, v, into[i])
		}
	}
	return nil
}
