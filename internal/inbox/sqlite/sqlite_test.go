package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	lib "modernc.org/sqlite/lib"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/testkit"
)

// While somebody reads, the write-ahead log can't be emptied after an erasure. Other writes do not wait for the
// export.
func TestWritesDoNotWaitForReaders(t *testing.T) {
	e := opened(t, t.TempDir())
	write := func(timeout string, fn func(tx engine.Tx)) {
		t.Helper()
		err := e.conn.exec("PRAGMA busy_timeout(" + timeout + ")")
		if err == nil {
			err = e.Write(func(tx engine.Tx) error { fn(tx); return nil })
		}
		check(t, err)
	}
	write("0", func(tx engine.Tx) { tx.Queue("add_content", nil, int64(1), []byte{}, []byte("secret")) })
	err := e.Read(t.Context(), func(tx engine.Tx) error {
		tx.Queue("highest_last", func(r engine.Row) error { return nil })
		if err := tx.Send(); err != nil {
			return err
		}
		write("0", func(tx engine.Tx) {
			tx.Queue("content_delete", nil, engine.Among{1})
			tx.Scrub()
		})
		if !e.scrubPending {
			t.Error("the log was emptied while somebody reads")
		}
		write("100000000", func(tx engine.Tx) { tx.Queue("touch", nil) }) // it would take a day
		return nil
	})
	check(t, err)
	if e.Maintain(); e.scrubPending {
		t.Error("the log is not emptied when nobody reads any more")
	}
}

// A handler that panics in a read must not leave its transaction open: the connection could never be used again, and
// the write-ahead log never be emptied.
func TestReadPanics(t *testing.T) {
	e := opened(t, t.TempDir())
	read := func(each func(engine.Row) error) error {
		return e.Read(t.Context(), func(tx engine.Tx) error { tx.Queue("highest_last", each); return tx.Send() })
	}
	for range engine.MaxReaders {
		func() {
			defer func() { _ = recover() }()
			_ = read(func(engine.Row) error { panic("as net/http expects it") })
		}()
	}
	for range engine.MaxReaders {
		if err := read(func(engine.Row) error { return nil }); err != nil {
			t.Error(err)
		}
	}
}

// Somebody may name a folder, or a file of another program. usher then does not start, and must not keep others from
// using it.
func TestWhatIsNoInboxKeepsItsMode(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "notes.txt")
	check(t, errors.Join(
		os.Chmod(dir, 0o755),
		os.WriteFile(file, bytes.Repeat([]byte("notes\n"), 100), 0o644),
		os.Chmod(file, 0o644)))
	for name, want := range map[string]os.FileMode{dir: 0o755, file: 0o644} {
		e, problem := Open(name, slog.New(slog.DiscardHandler))
		if problem == nil {
			e.Close()
			t.Fatalf("%s is used as an inbox", name)
		}
		if err := Check(name); err == nil || err.Error() != problem.Error() {
			t.Errorf("Check says %v, Open says %v", err, problem)
		}
		info, err := os.Stat(name)
		check(t, err)
		if got := info.Mode().Perm(); runtime.GOOS != "windows" && got != want {
			t.Errorf("%s has the mode %o now, want %o", name, got, want)
		}
	}
}

// A program that does not expect a write-ahead log may not find it, or not be allowed to write it.
func TestDatabaseOfAnotherProgramIsNotChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "other.db")
	check(t, os.WriteFile(file, nil, 0o600))
	c, err := connect(file, nil)
	check(t, err)
	check(t, errors.Join(c.exec("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)"), c.Close()))
	before, _ := os.ReadFile(file)
	if e, err := Open(file, slog.New(slog.DiscardHandler)); err == nil {
		e.Close()
		t.Error("it is used as an inbox")
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Error("it was changed", err)
	}
}

// After an import, or a day of many webhooks, far more finished webhooks may be stored than are kept. Retention
// counts the newest. Intake waits meanwhile, so that must not take longer the more there are.
func TestRetentionReadsOnlyWhatIsKept(t *testing.T) {
	e := opened(t, t.TempDir())
	err := e.conn.exec(`PRAGMA synchronous = OFF;
		WITH RECURSIVE n (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM n WHERE seq < 10000)
		INSERT INTO webhook SELECT seq, '', '', '', '', '', 1, x'', 1, 0, 3, seq, seq, '', '', '' FROM n`)
	check(t, err)
	search := func(kept int64) time.Duration {
		began := time.Now()
		err := e.Write(func(tx engine.Tx) error {
			tx.Queue("finished_total", func(r engine.Row) error {
				var count, bytes, first int64
				err := r.Scan(&count, &bytes, &first)
				if count != kept || bytes != kept || first != 10_001-kept {
					t.Errorf("of the newest %d it counted %d, with %d bytes, from %d on", kept, count, bytes, first)
				}
				return err
			}, kept)
			return tx.Send()
		})
		check(t, err)
		return time.Since(began)
	}
	check(t, e.conn.exec("UPDATE webhook SET size = 1.0 WHERE seq = 9990")) // a damaged row must not stop retention
	few, many := time.Hour, time.Hour                                       // others run at the same time, so one measurement says little
	less := func() bool {
		for range 5 {
			few, many = min(few, search(100)), min(many, search(9_000))
		}
		return few <= many/5
	}
	if !testkit.Comes(less) {
		t.Errorf("it takes %s if 100 of 10,000 are kept, and %s if 9,000 are", few, many)
	}
}

// SQLite makes a new plan for a statement whenever it runs, if the value of a parameter might lead to a better one.
// That takes longer than what the statement does.
func TestStatementsKeepTheirPlans(t *testing.T) {
	e := opened(t, t.TempDir())
	for name := range statements {
		if name == "begin_write" || name == "begin_read" || name == "commit" {
			continue
		}
		s, err := e.conn.prepare(name)
		check(t, err)
		for run := range 3 {
			args := slices.Repeat([]any{int64(run)}, s.parameters)
			err := e.conn.run(t.Context(), name, func(engine.Row) error { return nil }, args)
			if err != nil && code(err)&0xff != lib.SQLITE_CONSTRAINT {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := lib.Xsqlite3_stmt_status(s.tls, s.handle, lib.SQLITE_STMTSTATUS_REPREPARE, 0); n > 0 {
			t.Errorf("%s was planned anew %d times", name, n)
		}
	}
}

// stepsOf is how many steps a statement's runs took in SQLite's virtual machine, since it was last asked.
func stepsOf(s *statement) int32 {
	return lib.Xsqlite3_stmt_status(s.tls, s.handle, lib.SQLITE_STMTSTATUS_VM_STEP, 1)
}

// What usher does at its start, and once in a second, does not look at all lanes that wait.
func TestStartReadsFewLanes(t *testing.T) {
	e := opened(t, t.TempDir())
	const lanes = 5000
	now := time.Now().UnixMicro()
	err := e.conn.exec(fmt.Sprintf(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
		INSERT INTO lane
			(tenant, platform, event_type, receiver, tail, waiting, bytes, waiting_since, last_result, last_try, due)
		SELECT 't' || i, '', '', 'main', i, 1, 3000, i, i %% 3, i, i FROM n`, lanes))
	if err == nil { // one of each kind lies in the future
		err = e.conn.exec(fmt.Sprintf("UPDATE lane SET due = %d, last_try = %d WHERE tail <= 3", now+1e12, now+1e12))
	}
	check(t, err)
	for _, run := range []struct {
		name string
		args []any
	}{
		{"lane_try_correct", []any{now, "main"}},
		{"lane_due_correct", []any{now, now + 1e9, "main", 0, now, clock.Never}},
		{"lane_due_correct", []any{now, now + 1e9, "main", 1, now + 1e9, clock.Never}},
		{"lane_due_correct", []any{now, now + 1e9, "main", 2, now + 1e9, clock.Never}},
		{"receivers", nil},
	} {
		check(t, e.conn.run(t.Context(), run.name, func(engine.Row) error { return nil }, run.args))
		if n := stepsOf(e.conn.prepared[run.name]); n > lanes {
			t.Errorf("%s takes %d steps for %d lanes", run.name, n, lanes)
		}
	}
	const ahead = "SELECT count(*) FROM lane WHERE due > %d OR last_result > 0 AND last_try > %d"
	late, err := e.conn.queryValue(fmt.Sprintf(ahead, now, now))
	if err != nil || late != int64(0) {
		t.Errorf("%v lanes still lie in the future: %v", late, err)
	}
}

// A tenant may have very many webhooks that wait, or that were delivered. A list asks for each of its webhooks what
// the tenant had before it, and does not look at all of them each time.
func TestListReadsFewWebhooks(t *testing.T) {
	e := opened(t, t.TempDir())
	const webhooks = 5000
	for tenant, of := range map[string]struct{ seq, state string }{ // the first one's state differs from the others'
		"waits":     {"i", "CASE WHEN i = 1 THEN 3 ELSE 0 END"},
		"delivered": {"-i", "CASE WHEN i = 5000 THEN 0 ELSE 3 END"},
	} {
		err := e.conn.exec(fmt.Sprintf(`
			WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %[1]d)
			INSERT INTO webhook
				SELECT %[2]s, '', '%[4]s', '', '', '', 1, x'', 1, 0, %[3]s, i, i, '', '', '' FROM n;
			INSERT INTO content SELECT seq, x'', x'' FROM webhook WHERE tenant = '%[4]s'`,
			webhooks, of.seq, of.state, tenant))
		check(t, err)
		rows := 0
		args := []any{tenant, "", "", int64(webhooks + 1)}
		err = e.conn.run(t.Context(), "previous", func(engine.Row) error { rows++; return nil }, args)
		if err != nil || rows != 2 {
			t.Fatal(rows, err)
		}
		if n := stepsOf(e.conn.prepared["previous"]); n > webhooks {
			t.Errorf("%s: it takes %d steps for %d webhooks", tenant, n, webhooks)
		}
	}
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

// A negative limit is no limit for SQLite: it would read every row. The engine refuses it, and goes on.
func TestNegativeLimitIsRefused(t *testing.T) {
	e := opened(t, t.TempDir())
	actions := func(limit int64) error {
		return e.Write(func(tx engine.Tx) error {
			tx.Queue("actions", func(engine.Row) error { return nil }, clock.Never, limit)
			return tx.Send()
		})
	}
	var refused *engine.StatementError
	if err := actions(-1); !errors.As(err, &refused) {
		t.Errorf("a negative limit: %v", err)
	}
	if err := actions(0); err != nil {
		t.Error(err)
	}
}
