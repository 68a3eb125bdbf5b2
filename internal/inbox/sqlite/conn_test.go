package sqlite

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"usher/internal/clock"
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

// write runs a statement in a transaction.
func (e *Engine) write(name string, args ...any) error {
	return e.Write(func(tx engine.Tx) error {
		tx.Queue(name, func(engine.Row) error { return nil }, args...)
		return nil
	})
}

// addContent stores so many bytes as the content of a webhook.
func (e *Engine) addContent(seq, size int64) error {
	return e.write("content_add", seq, []byte{}, make([]byte, size))
}

// content calls each with the content of webhooks.
func (e *Engine) content(t *testing.T, each func(engine.Row) error, seqs ...int64) error {
	return e.Read(t.Context(), func(tx engine.Tx) error {
		tx.Queue("content", each, seqs)
		return tx.Send()
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What goes in comes out, byte for byte, and is the caller's: whatever a sender puts into a name, a header or a body,
// and also in a file that another program has made in another encoding.
func TestValuesComeBackAsTheyWere(t *testing.T) {
	for _, encoding := range []string{"UTF-8", "UTF-16le"} {
		path := filepath.Join(t.TempDir(), "inbox.db")
		check(t, createIfMissing(path))
		c, err := connect(path, "encoding = '"+encoding+"'")
		check(t, err)
		check(t, errors.Join(c.exec("CREATE TABLE a (b)"), c.exec("DROP TABLE a"), c.Close()))
		e := opened(t, filepath.Dir(path))
		for n, text := range []string{"", "plain", "with\x00zero", "\x00", "ü😀", strings.Repeat("x\x00", 1<<14)} {
			seq := int64(n)
			check(t, e.write("content_add", []int64{seq, -1}, [][]byte{[]byte(text), {}}, [][]byte{{}, []byte(text + "\xff")}))
			var kept [][]byte
			check(t, e.content(t, func(r engine.Row) error {
				var header, body []byte
				err := r.Scan(&header, &body)
				kept = append(kept, header, body)
				return err
			}, seq, -1))
			check(t, e.write("content_delete", []int64{seq, -1}))
			want := [][]byte{[]byte(text), {}, {}, []byte(text + "\xff")}
			same := func(a, b []byte) bool { return a != nil && bytes.Equal(a, b) }
			if !slices.EqualFunc(kept, want, same) {
				t.Errorf("%s: %.20q became %.20q", encoding, text, kept)
			}
			got := ""
			s, err := e.conn.Prepare("SELECT ?1")
			check(t, err)
			bind(s, 1, text, 0)
			check(t, step(s, func(r engine.Row) error { return r.Scan(&got) }))
			if got != text {
				t.Errorf("%s: %.20q became %.20q", encoding, text, got)
			}
		}
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
	} {
		s, err := c.Prepare("SELECT " + damaged.value + ", 8")
		check(t, err)
		other := 0
		err = step(s, func(r engine.Row) error { return r.Scan(damaged.into, &other) })
		if (err == nil) != damaged.want || err != nil && !errors.Is(err, engine.ErrRow) || other != 8 {
			t.Errorf("%s into %T: %v, and then %d", damaged.value, damaged.into, err, other)
		}
		if err := step(s, func(r engine.Row) error { return r.Scan(damaged.into) }); err == nil {
			t.Error("a row of two values was read as one")
		}
	}
}

// Who does not wait for an answer any more does not keep a connection, and whoever gets it next is not disturbed.
func TestReadEndsWithItsCaller(t *testing.T) {
	e := opened(t, t.TempDir())
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		err := e.reading(ctx, func(c *conn) error {
			return c.exec("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
		})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("it ended with %v", err)
		}
		for range engine.MaxReaders {
			if err := e.content(t, nil, 1); err != nil {
				t.Fatalf("the next one: %v", err)
			}
		}
	}
}

// A handler that panics in the midst of its rows leaves no transaction open: its connection could never be used again,
// and the write-ahead log never be emptied.
func TestReadPanics(t *testing.T) {
	e := opened(t, t.TempDir())
	check(t, errors.Join(e.addContent(1, 1), e.addContent(2, 1)))
	for range engine.MaxReaders {
		func() {
			defer func() { _ = recover() }()
			_ = e.content(t, func(engine.Row) error { panic("as net/http expects it") }, 1, 2)
		}()
	}
	for range engine.MaxReaders {
		rows := 0
		if err := e.content(t, func(engine.Row) error { rows++; return nil }, 1, 2); err != nil || rows != 2 {
			t.Errorf("%d rows, %v", rows, err)
		}
	}
	if busy, err := e.conn.value("PRAGMA wal_checkpoint(TRUNCATE)"); err != nil || busy != "0" {
		t.Errorf("somebody still reads: %v, %v", busy, err)
	}
}

// A statement that was refused can be run again, and its error says what was wrong. A negative limit is refused, too:
// SQLite would take it for none, and read every row.
func TestRefusedStatement(t *testing.T) {
	e := opened(t, t.TempDir())
	check(t, e.addContent(1, 1))
	var refused *engine.StatementError
	const twice = "UNIQUE constraint failed: content.seq"
	if err := e.addContent(1, 1); !errors.As(err, &refused) || !strings.Contains(err.Error(), twice) {
		t.Errorf("the same number twice: %v", err)
	}
	check(t, e.addContent(2, 1))
	if err := e.write("actions", clock.Never, int64(-1)); !errors.As(err, &refused) {
		t.Errorf("a negative limit: %v", err)
	}
	check(t, e.write("actions", clock.Never, int64(0)))
	stop := errors.New("enough")
	if err := e.content(t, func(engine.Row) error { return stop }, 1); !errors.Is(err, stop) {
		t.Error(err)
	}
}
