package sqlite

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"

	"usher/internal/inbox/engine"
)

// A conn is a connection with its prepared statements. One goroutine at a time uses it. It calls SQLite's C
// interface, which modernc.org/sqlite/lib has in Go: with the driver for database/sql the inbox takes a fifth longer
// for each webhook, because the driver locks the connection for each parameter and each value that it reads.
type conn struct {
	tls      *libc.TLS
	db       uintptr
	prepared map[string]*statement
}

// A statement is a prepared statement. While it runs, it is the engine.Row of its current row.
type statement struct {
	*conn
	handle     uintptr
	parameters int
	limits     []int     // which of them are a LIMIT
	bound      []uintptr // memory of the values that it runs with
}

// A resultError is an error of SQLite.
type resultError struct {
	code int // an extended result code
	text string
}

func (e *resultError) Error() string { return fmt.Sprintf("%s (%d)", e.text, e.code) }

// connect opens a file that exists: it never makes one.
func connect(path string, pragmas []string) (*conn, error) {
	path, err := filepath.Abs(path) // some names, such as :memory:, have a special meaning for SQLite
	if err != nil {
		return nil, err
	}
	c := &conn{tls: libc.NewTLS(), prepared: make(map[string]*statement)}
	name, out := c.text(path), c.tls.Alloc(8)
	const flags = lib.SQLITE_OPEN_READWRITE | lib.SQLITE_OPEN_NOMUTEX | lib.SQLITE_OPEN_EXRESCODE
	result := lib.Xsqlite3_open_v2(c.tls, name, out, flags, 0)
	c.db = libc.AtomicLoadPUintptr(out)
	c.tls.Free(8)
	libc.Xfree(c.tls, name)
	err = c.check(result)
	for i := 0; i < len(pragmas) && err == nil; i++ {
		err = c.exec("PRAGMA " + pragmas[i])
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the connection. SQLite keeps the files open, and locked, as long as there is a statement.
func (c *conn) Close() error {
	for _, s := range c.prepared {
		s.close()
	}
	err := c.check(lib.Xsqlite3_close_v2(c.tls, c.db))
	c.tls.Close()
	return err
}

// text copies a text to where SQLite can read it; libc.Xfree frees it.
func (c *conn) text(s string) uintptr {
	p, err := libc.CString(s)
	if err != nil { // there is no memory left
		panic(err)
	}
	return p
}

// check returns the error of a result code; nil, if it is none.
func (c *conn) check(result int32) error {
	switch result {
	case lib.SQLITE_OK, lib.SQLITE_ROW, lib.SQLITE_DONE:
		return nil
	}
	text := libc.GoString(lib.Xsqlite3_errstr(c.tls, result))
	if detail := libc.GoString(lib.Xsqlite3_errmsg(c.tls, c.db)); detail != text && c.db != 0 {
		text += ": " + detail
	}
	return &resultError{int(result), text}
}

// exec runs a script.
func (c *conn) exec(script string) error {
	text := c.text(script)
	defer libc.Xfree(c.tls, text)
	return c.check(lib.Xsqlite3_exec(c.tls, c.db, text, 0, 0, 0))
}

// queryValue runs a query and returns the first value of the first row: an int64 or a string.
func (c *conn) queryValue(query string) (value any, err error) {
	s, err := c.compile(query)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err := c.check(lib.Xsqlite3_step(c.tls, s.handle)); err != nil {
		return nil, err
	}
	if lib.Xsqlite3_column_type(c.tls, s.handle, 0) == lib.SQLITE_INTEGER {
		return lib.Xsqlite3_column_int64(c.tls, s.handle, 0), nil
	}
	return s.columnText(0), nil
}

// version returns the version of the tables; 0: there are none. If this usher can't work with them, that is an error.
func (c *conn) version() (int, error) {
	tables, err := c.queryValue("SELECT count(*) FROM sqlite_master")
	if err != nil || tables == any(int64(0)) {
		return 0, describe(err)
	}
	version, err := c.queryValue("SELECT version FROM schema_version")
	compatible, err2 := c.queryValue("SELECT compatible FROM schema_version")
	at, ok := version.(int64)
	downTo, ok2 := compatible.(int64)
	switch {
	case code(err) == lib.SQLITE_ERROR || code(err2) == lib.SQLITE_ERROR: // no such table, or column
		return 0, errors.New("it is the database of another program: use another file")
	case err != nil || err2 != nil:
		return 0, describe(cmp.Or(err, err2))
	case !ok || !ok2:
		return 0, errors.New("the file is damaged: its version can't be read")
	}
	if err := migrations.Check(int(at), int(downTo)); err != nil {
		return 0, fmt.Errorf("%w: start the newer usher, or use another file", err)
	}
	return int(at), nil
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

var limitParameter = regexp.MustCompile(`LIMIT \+\?([0-9]+)`)

// prepare returns a statement of statements.sql.
func (c *conn) prepare(name string) (*statement, error) {
	if s := c.prepared[name]; s != nil {
		return s, nil
	}
	text, ok := statements[name]
	if !ok {
		panic("there is no statement " + name)
	}
	s, err := c.compile(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, match := range limitParameter.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(match[1])
		s.limits = append(s.limits, n-1)
	}
	c.prepared[name] = s
	return s, nil
}

func (c *conn) compile(query string) (*statement, error) {
	text, out := c.text(query), c.tls.Alloc(8)
	result := lib.Xsqlite3_prepare_v3(c.tls, c.db, text, -1, lib.SQLITE_PREPARE_PERSISTENT, out, 0)
	s := &statement{conn: c, handle: libc.AtomicLoadPUintptr(out)}
	c.tls.Free(8)
	libc.Xfree(c.tls, text)
	s.parameters = int(lib.Xsqlite3_bind_parameter_count(c.tls, s.handle))
	return s, c.check(result)
}

// run runs a statement: once for each element of the slices in args, which have the same length; or once, if there is
// no slice.
func (c *conn) run(ctx context.Context, name string, each func(engine.Row) error, args []any) error {
	s, err := c.prepare(name)
	if err != nil {
		return err
	}
	args, times := slices.Clone(args), 1
	for i, a := range args {
		switch a := a.(type) {
		case []int64:
			times = len(a)
		case []string:
			times = len(a)
		case [][]byte:
			times = len(a)
		case engine.Listed:
			args[i] = asJSON(append([]string{}, a...))
		case engine.Among:
			args[i] = asJSON(append([]int64{}, a...))
		case engine.Table:
			args[i] = asJSON(rowsOf(a))
		}
	}
	for _, n := range s.limits {
		if limit, ok := args[n].(int64); ok && limit < 0 { // SQLite takes it for no limit, and would read everything
			return &engine.StatementError{Err: fmt.Errorf("statement %s: a negative limit, %d", name, limit)}
		}
	}
	if len(args) < s.parameters {
		panic(fmt.Sprintf("statement %s has %d parameters, and not %d", name, s.parameters, len(args)))
	}
	for n := range times {
		if err := s.run(ctx, each, args[:s.parameters], n); err != nil {
			return err
		}
	}
	return nil
}

func asJSON(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

// rowsOf returns the rows of a table.
func rowsOf(t engine.Table) (rows [][]any) {
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
	return rows
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

// run runs the statement once, with the element n of each slice in args.
func (s *statement) run(ctx context.Context, each func(engine.Row) error, args []any, n int) error {
	defer s.reset() // deferred, so that it also happens if each panics
	for i, a := range args {
		if err := s.check(s.bind(int32(i+1), a, n)); err != nil {
			return err
		}
	}
	return s.step(ctx, each)
}

// bind sets a parameter to a value; to the element n, if it is a slice of values.
func (s *statement) bind(parameter int32, value any, n int) int32 {
	switch v := value.(type) {
	case int64:
		return lib.Xsqlite3_bind_int64(s.tls, s.handle, parameter, v)
	case int:
		return lib.Xsqlite3_bind_int64(s.tls, s.handle, parameter, int64(v))
	case []int64:
		return lib.Xsqlite3_bind_int64(s.tls, s.handle, parameter, v[n])
	case string:
		return s.bindText(parameter, v)
	case []string:
		return s.bindText(parameter, v[n])
	case []byte:
		return s.bindBytes(parameter, v)
	case [][]byte:
		return s.bindBytes(parameter, v[n])
	case nil:
		return lib.Xsqlite3_bind_null(s.tls, s.handle, parameter)
	}
	panic(fmt.Sprintf("a parameter can't be a %T", value))
}

func (s *statement) bindText(parameter int32, text string) int32 {
	s.bound = append(s.bound, s.text(text))
	return lib.Xsqlite3_bind_text(s.tls, s.handle, parameter, s.bound[len(s.bound)-1], int32(len(text)), 0)
}

func (s *statement) bindBytes(parameter int32, bytes []byte) int32 {
	if bytes == nil {
		return lib.Xsqlite3_bind_null(s.tls, s.handle, parameter)
	}
	s.bound = append(s.bound, s.text(string(bytes)))
	return lib.Xsqlite3_bind_blob(s.tls, s.handle, parameter, s.bound[len(s.bound)-1], int32(len(bytes)), 0)
}

// step runs the statement to its end, or until ctx ends.
func (s *statement) step(ctx context.Context, each func(engine.Row) error) error {
	if ctx.Done() != nil {
		defer s.interruptAfter(ctx)()
	}
	for {
		if err := ctx.Err(); err != nil {
			return err // SQLite forgets an interrupt that comes before a statement begins
		}
		result := lib.Xsqlite3_step(s.tls, s.handle)
		err := cmp.Or(ctx.Err(), s.check(result))
		if err == nil && result == lib.SQLITE_ROW && each != nil {
			err = each(s)
		}
		if err != nil || result == lib.SQLITE_DONE {
			return err
		}
	}
}

// interruptAfter has SQLite end the statement when ctx ends, until stop is called.
func (c *conn) interruptAfter(ctx context.Context) (stop func()) {
	interrupted := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		tls := libc.NewTLS() // the other one is in use
		lib.Xsqlite3_interrupt(tls, c.db)
		tls.Close()
		close(interrupted)
	})
	return func() {
		if !cancel() {
			<-interrupted // or it would interrupt the next statement
		}
	}
}

// reset makes a statement ready for its next run. It also ends the current run, if that has not come to its end.
func (s *statement) reset() {
	lib.Xsqlite3_reset(s.tls, s.handle) // returns the error of the last step again
	lib.Xsqlite3_clear_bindings(s.tls, s.handle)
	for _, p := range s.bound {
		libc.Xfree(s.tls, p)
	}
	s.bound = s.bound[:0]
}

func (s *statement) close() {
	lib.Xsqlite3_finalize(s.tls, s.handle)
}

// Scan implements engine.Row. The caller may keep the bytes that it scans.
func (s *statement) Scan(into ...any) error {
	if columns := int(lib.Xsqlite3_column_count(s.tls, s.handle)); len(into) != columns {
		return fmt.Errorf("a row has %d values, and not %d", columns, len(into))
	}
	readable := true
	for i, to := range into {
		column := int32(i)
		kind, ok := lib.Xsqlite3_column_type(s.tls, s.handle, column), false
		switch to := to.(type) {
		case *int64:
			if ok = kind == lib.SQLITE_INTEGER; ok {
				*to = lib.Xsqlite3_column_int64(s.tls, s.handle, column)
			}
		case *int:
			if ok = kind == lib.SQLITE_INTEGER; ok {
				*to = int(lib.Xsqlite3_column_int64(s.tls, s.handle, column))
			}
		case *string:
			if ok = kind == lib.SQLITE_TEXT; ok {
				*to = s.columnText(column)
			}
		case *[]byte:
			*to = s.columnBytes(column)
			// Text, too, which somebody may have written by hand.
			ok = kind == lib.SQLITE_BLOB || kind == lib.SQLITE_NULL || kind == lib.SQLITE_TEXT
		}
		readable = readable && ok
	}
	if !readable {
		return engine.ErrRow
	}
	return nil
}

// columnText returns a value of the current row.
func (s *statement) columnText(column int32) string {
	p := lib.Xsqlite3_column_text(s.tls, s.handle, column)
	return string(s.memory(p, column))
}

// columnBytes returns a value of the current row; nil: it is NULL.
func (s *statement) columnBytes(column int32) []byte {
	if lib.Xsqlite3_column_type(s.tls, s.handle, column) == lib.SQLITE_NULL {
		return nil
	}
	p := lib.Xsqlite3_column_blob(s.tls, s.handle, column)
	return append([]byte{}, s.memory(p, column)...)
}

// memory returns SQLite's memory of a value, which ends with the next step.
func (s *statement) memory(p uintptr, column int32) []byte {
	size := lib.Xsqlite3_column_bytes(s.tls, s.handle, column)
	if p == 0 || size == 0 {
		return nil
	}
	return libc.GoBytes(p, int(size))
}
