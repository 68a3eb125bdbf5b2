package sqlite

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"usher/internal/inbox/engine"
)

// opened opens the inbox in a folder until the test ends.
func opened(t *testing.T, dir string) *Engine {
	t.Helper()
	e, err := Open(filepath.Join(dir, "inbox.db"), slog.New(slog.DiscardHandler))
	check(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

// addContent stores so many bytes as the content of a webhook.
func (e *Engine) addContent(seq, size int64) error {
	return e.Write(func(tx engine.Tx) error {
		tx.Queue("add_content", nil, seq, []byte{}, make([]byte, size))
		return nil
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What goes in comes out, byte for byte: whatever a sender puts into a name, a header or a body.
func TestValuesComeBackAsTheyWere(t *testing.T) {
	c := opened(t, t.TempDir()).conn
	large := bytes.Repeat([]byte{0, 255, 'x'}, 1<<14)
	for _, text := range []string{"", "plain", "with\x00zero", "\x00", "\xff\xfe", "ü😀", string(large)} {
		for _, number := range []int64{0, math.MaxInt64, math.MinInt64} {
			for _, blob := range [][]byte{{}, {0}, []byte("text"), large} {
				check(t, c.run(t.Context(), "run_begin", nil, []any{text, number, number, int64(1)}))
				check(t, c.run(t.Context(), "add_content", nil, []any{[]int64{1}, [][]byte{blob}, [][]byte{large}}))
				rows := 0
				err := c.run(t.Context(), "run_lock", func(r engine.Row) error {
					rows++
					var id string
					var mark, began, completed int64
					var action int
					err := r.Scan(&id, &mark, &began, &action, &completed)
					if id != text || mark != number || began != number || action != 1 {
						t.Errorf("%d, %.20q became %d, %.20q", number, text, mark, id)
					}
					return err
				}, nil)
				check(t, err)
				err = c.run(t.Context(), "content", func(r engine.Row) error {
					rows++
					var header, body []byte
					err := r.Scan(&header, &body)
					if header == nil || !bytes.Equal(header, blob) || !bytes.Equal(body, large) {
						t.Errorf("%.20q became %.20q", blob, header)
					}
					return err
				}, []any{int64(1)})
				if err != nil || rows != 2 {
					t.Fatal(rows, err)
				}
				check(t, c.exec("DELETE FROM content"))
			}
		}
	}
}

// The bytes of a row are the caller's, also after the next row and after the statement.
func TestBytesMayBeKept(t *testing.T) {
	c := opened(t, t.TempDir()).conn
	headers, bodies := [][]byte{[]byte("one"), []byte("two")}, [][]byte{[]byte("ONE"), []byte("TWO")}
	check(t, c.run(t.Context(), "add_content", nil, []any{[]int64{1, 2}, headers, bodies}))
	var kept [][]byte
	read := func() error {
		return c.run(t.Context(), "content", func(r engine.Row) error {
			var header, body []byte
			err := r.Scan(&header, &body)
			kept = append(kept, header, body)
			return err
		}, []any{[]int64{1, 2}})
	}
	check(t, errors.Join(read(), c.exec("UPDATE content SET header = x'00', body = x'00'"), read()))
	if got := string(bytes.Join(kept, []byte(" "))); got != "one ONE two TWO \x00 \x00 \x00 \x00" {
		t.Errorf("%q", got)
	}
}

// A value that somebody has damaged is said, and all others of its row are read. Bytes are no text: as the name of a
// tenant they would be another key.
func TestDamagedValuesAreErrors(t *testing.T) {
	c := opened(t, t.TempDir()).conn
	var number int64
	var text string
	var blob []byte
	for _, damaged := range []struct {
		value string
		into  any
		want  bool
	}{
		{"7", &number, true}, {"7.5", &number, false},
		{"'7'", &number, false}, {"x'37'", &number, false}, {"NULL", &number, false},
		{"'7'", &text, true}, {"x'37'", &text, false}, {"7", &text, false}, {"NULL", &text, false},
		{"x'37'", &blob, true}, {"NULL", &blob, true}, {"'7'", &blob, true}, {"7", &blob, false},
		{"7", new(bool), false},
	} {
		s, err := c.compile("SELECT " + damaged.value)
		check(t, err)
		err = s.step(t.Context(), func(r engine.Row) error { return r.Scan(damaged.into) })
		if (err == nil) != damaged.want || err != nil && !errors.Is(err, engine.ErrRow) {
			t.Errorf("%s into %T: %v", damaged.value, damaged.into, err)
		}
		s.reset()
		if err := s.step(t.Context(), func(r engine.Row) error { return r.Scan(damaged.into, new(int)) }); err == nil {
			t.Error("a row of one value was read as two")
		}
		s.close()
	}
}

// Who does not wait for an answer any more does not keep a connection, and whoever gets it next is not disturbed.
func TestReadEndsWithItsCaller(t *testing.T) {
	c := opened(t, t.TempDir()).conn
	endless, err := c.compile("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
	check(t, err)
	defer endless.close()
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		if err := endless.step(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("it ended with %v", err)
		}
		endless.reset()
		cancel()
		if err := c.run(t.Context(), "receivers", func(engine.Row) error { return nil }, nil); err != nil {
			t.Fatalf("the next statement: %v", err)
		}
	}
}

// After a panic in the midst of its rows a statement begins anew, and no transaction stays open.
func TestStatementRunsAgainAfterAPanic(t *testing.T) {
	e := opened(t, t.TempDir())
	none := [][]byte{{}, {}, {}}
	err := e.conn.run(t.Context(), "add_content", nil, []any{[]int64{1, 2, 3}, none, none})
	check(t, err)
	read := func(each func(engine.Row) error) error {
		return e.Read(t.Context(), func(tx engine.Tx) error {
			tx.Queue("content", each, []int64{1, 2, 3})
			return tx.Send()
		})
	}
	func() {
		defer func() { _ = recover() }()
		rows := 0
		_ = read(func(engine.Row) error {
			if rows++; rows == 2 {
				panic("as net/http expects it")
			}
			return nil
		})
	}()
	rows := 0
	if err := read(func(engine.Row) error { rows++; return nil }); err != nil || rows != 3 {
		t.Errorf("%d rows, %v", rows, err)
	}
	if busy, err := e.conn.queryValue("PRAGMA wal_checkpoint(TRUNCATE)"); err != nil || busy != int64(0) {
		t.Errorf("somebody still reads: %v, %v", busy, err)
	}
}

// Somebody has made the file with another program, and that has another encoding.
func TestFileInAnotherEncoding(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inbox.db")
	check(t, createIfMissing(path))
	c, err := connect(path, []string{"encoding = 'UTF-16le'"})
	if err == nil {
		err = errors.Join(c.exec("CREATE TABLE a (b); DROP TABLE a"), c.Close())
	}
	check(t, err)
	e, err := Open(path, slog.New(slog.DiscardHandler))
	check(t, err)
	defer e.Close()
	check(t, e.conn.run(t.Context(), "run_begin", nil, []any{"Zoë", int64(1), int64(1), int64(1)}))
	id := ""
	err = e.conn.run(t.Context(), "run_lock", func(r engine.Row) error {
		var n int64
		return r.Scan(&id, &n, &n, &n, &n)
	}, nil)
	if err != nil || id != "Zoë" {
		t.Errorf("%q, %v", id, err)
	}
}

// A statement that failed can be run again, and its error says what was wrong.
func TestStatementRunsAgainAfterItFailed(t *testing.T) {
	c := opened(t, t.TempDir()).conn
	add := func(seq int64) error {
		return c.run(t.Context(), "add_content", nil, []any{seq, []byte{}, []byte{}})
	}
	err := errors.Join(add(1), add(2))
	check(t, err)
	var refused *engine.StatementError
	const twice = "UNIQUE constraint failed: content.seq"
	if err := describe(add(1)); !errors.As(err, &refused) || !strings.Contains(err.Error(), twice) {
		t.Errorf("the same number twice: %v", err)
	}
	stop := errors.New("enough")
	err = c.run(t.Context(), "content", func(engine.Row) error { return stop }, []any{int64(1)})
	if !errors.Is(err, stop) {
		t.Error(err)
	}
	if err := add(3); err != nil {
		t.Errorf("the next one: %v", err)
	}
}
