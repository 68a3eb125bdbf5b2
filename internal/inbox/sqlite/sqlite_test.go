package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"

	"usher/internal/inbox/engine"
)

// While somebody reads, the write-ahead log can't be emptied after an erasure. Other writes do not wait for the
// export.
func TestWritesDoNotWaitForReaders(t *testing.T) {
	e := opened(t, t.TempDir())
	e.conn.SetBusyTimeout(0)
	check(t, e.addContent(1, 1))
	err := e.Read(t.Context(), func(tx engine.Tx) error {
		tx.Queue("line", func(r engine.Row) error { return nil })
		check(t, tx.Send())
		check(t, e.Write(func(tx engine.Tx) error {
			tx.Queue("content_delete", nil, []int64{1})
			tx.Scrub()
			return nil
		}))
		if !e.scrubPending {
			t.Error("the log was emptied while somebody reads")
		}
		e.conn.SetBusyTimeout(24 * time.Hour)
		return e.write("touch")
	})
	check(t, err)
	if e.Maintain(); e.scrubPending {
		t.Error("the log is not emptied when nobody reads any more")
	}
}

// Somebody may name a folder, or a file of another program. usher then does not start, and must not keep others from
// using it: a program that does not expect a write-ahead log may not find it, or not be allowed to write it.
func TestWhatIsNoInboxIsNotChanged(t *testing.T) {
	dir := t.TempDir()
	notes, other := filepath.Join(dir, "notes.txt"), filepath.Join(dir, "other.db")
	check(t, errors.Join(
		os.Chmod(dir, 0o755),
		os.WriteFile(notes, bytes.Repeat([]byte("notes\n"), 100), 0o644),
		os.WriteFile(other, nil, 0o644)))
	c, err := connect(other)
	check(t, err)
	check(t, errors.Join(c.exec("CREATE TABLE theirs (a)"), c.Close()))
	for _, name := range []string{dir, notes, other} {
		before, err := os.Stat(name)
		check(t, err)
		was, _ := os.ReadFile(name)
		e, problem := Open(name, slog.New(slog.DiscardHandler))
		if problem == nil {
			e.Close()
			t.Fatalf("%s is used as an inbox", name)
		}
		if err := Check(name); err == nil || err.Error() != problem.Error() {
			t.Errorf("Check says %v, Open says %v", err, problem)
		}
		after, err := os.Stat(name)
		check(t, err)
		if is, _ := os.ReadFile(name); !bytes.Equal(is, was) || after.Mode() != before.Mode() {
			t.Errorf("%s was changed: mode %o", name, after.Mode())
		}
	}
}

// After an import, or a day of many webhooks, far more finished webhooks may be stored than are kept. Retention
// counts the newest. Intake waits meanwhile, so that must not take longer the more there are.
func TestRetentionReadsOnlyWhatIsKept(t *testing.T) {
	e := opened(t, t.TempDir())
	err := e.conn.exec(`WITH RECURSIVE n (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM n WHERE seq < 10000)
		INSERT INTO webhook SELECT seq, '', '', '', '', '', 1, x'', 1, 0, 3, seq, seq, '', '', '' FROM n`)
	check(t, err)
	check(t, e.conn.exec("UPDATE webhook SET size = 1.0 WHERE seq = 9990")) // a damaged row must not stop retention
	search := func(kept int64) int32 {
		check(t, e.conn.run("finished_total", func(r engine.Row) error {
			var count, bytes, first int64
			err := r.Scan(&count, &bytes, &first)
			if count != kept || bytes != kept || first != 10_001-kept {
				t.Errorf("of the newest %d it counted %d, with %d bytes, from %d on", kept, count, bytes, first)
			}
			return err
		}, kept))
		return status(t, e, "finished_total", lib.SQLITE_STMTSTATUS_VM_STEP)
	}
	if few, many := search(100), search(9_000); few > many/5 {
		t.Errorf("it takes %d steps if 100 of 10,000 are kept, and %d if 9,000 are", few, many)
	}
}

// status is what SQLite has counted of a statement since it was last asked.
func status(t *testing.T, e *Engine, name string, counter int32) int32 {
	s, err := e.conn.Prepare(statements[name])
	check(t, err)
	handle := reflect.ValueOf(s).Elem().FieldByName("stmt").Uint() // the library has no other way to it
	tls := libc.NewTLS()
	defer tls.Close()
	return lib.Xsqlite3_stmt_status(tls, uintptr(handle), counter, 1)
}

// A file whose tables another build of usher made is refused at the start, and not at the first statement that misses
// a column.
func TestTablesOfAnotherBuild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inbox.db")
	log := slog.New(slog.DiscardHandler)
	e, err := Open(path, log)
	check(t, err)
	check(t, e.conn.exec("ALTER TABLE lane RENAME COLUMN last_at TO odd"))
	e.Close()
	if e, err := Open(path, log); err == nil || !strings.Contains(err.Error(), "move the file away") {
		t.Errorf("%v", err)
		if err == nil {
			e.Close()
		}
	}
}

// A newer usher migrates the file. An older one starts again on it, if the migration says that it can, and works;
// else it says why not.
func TestMigrations(t *testing.T) {
	ours := migrations
	defer func() { migrations = ours }()
	for compatible, works := range map[int]bool{1: true, 2: false} {
		path := filepath.Join(t.TempDir(), "inbox.db")
		usher := func(knows engine.Migrations) error {
			migrations = knows
			if err := Check(path); err != nil {
				return err
			}
			e, err := Open(path, slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			defer e.Close()
			return e.Write(func(tx engine.Tx) error {
				tx.Queue("lane_add", nil, []string{fmt.Sprint(len(knows))}, []string{""}, []string{""})
				return nil
			})
		}
		const mood = "-- compatible: %d\nALTER TABLE {schema}.lane ADD COLUMN mood {int} NOT NULL DEFAULT 7;"
		newer := append(slices.Clone(ours), fmt.Sprintf(mood, compatible))
		for _, err := range []error{usher(ours), usher(newer), usher(newer)} {
			check(t, err)
		}
		const older = "a newer usher made the tables " +
			"(version 2, which needs an usher that knows version 2; this one knows 1)"
		if err := usher(ours); works != (err == nil) || !works && !strings.Contains(err.Error(), older) {
			t.Errorf("compatible with %d: the older one: %v", compatible, err)
		}
		if err := usher(newer); err != nil {
			t.Errorf("the newer one again: %v", err)
		}
	}
}
