package file

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// What waits is bounded: beyond that senders are told to come again, copies of what waits
// are still answered, and as soon as the receiver is back there is room again.
func TestFullInboxRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Refusing)
		cfg := config(dir, rc)
		cfg.MaxBytes = 10_000
		var log bytes.Buffer
		cfg.logTo(slog.New(slog.NewTextHandler(&log, nil)))
		i := open(t, cfg)
		taken, refused := 0, 0
		for n := range 20 {
			_, err := i.Append(inboxtest.Webhook(fmt.Sprint("t", n), strings.Repeat("x", 1000)), false)
			switch {
			case err == nil && refused == 0:
				taken++
			case errors.Is(err, record.ErrFull):
				refused++
			default:
				t.Errorf("webhook %d: %v, after %d were refused", n, err, refused)
			}
		}
		used, limit := i.Usage()
		if taken < 7 || taken > 9 || used > limit || limit != 10_000 {
			t.Errorf("%d were taken, %d of %d bytes used", taken, used, limit)
		}
		if i.Err() != nil {
			t.Errorf("broken: %v", i.Err())
		}
		if !i.keep("t0", strings.Repeat("x", 1000)) {
			t.Error("a copy of what waits was taken in")
		}
		i.stop()
		if n := strings.Count(log.String(), "inbox full"); n != 1 {
			t.Errorf("said %d times", n)
		}

		i = open(t, cfg)
		if again, _ := i.Usage(); again != used {
			t.Errorf("%d bytes used after a restart, %d before", again, used)
		}
		if _, err := i.Append(inboxtest.Webhook("u", strings.Repeat("x", 1000)), false); !errors.Is(err, record.ErrFull) {
			t.Errorf("after a restart: %v", err)
		}
		rc.Set(inboxtest.Status(422))
		time.Sleep(time.Minute)
		if used, _ := i.Usage(); used == 0 {
			t.Error("what is parked counts, too")
		}
		rc.Set(nil)
		for id := range uint64(taken) {
			if err := i.Redeliver(id+1, false); err != nil { // what is parked has its room already
				t.Error(err)
			}
		}
		time.Sleep(time.Minute)
		if used, _ := i.Usage(); len(rc.Accepted()) != taken || used != 0 {
			t.Errorf("%d were delivered, %d bytes used", len(rc.Accepted()), used)
		}
		i.keep("u", strings.Repeat("x", 1000))
	})
}

// A webhook that no receiver takes is kept: it is in the history at once, is never
// delivered, and a copy of it can be told; but not from what a receiver got, nor the
// other way round.
func TestKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		i := open(t, config(t.TempDir(), rc))
		kept := func(body string) bool {
			dup, err := i.Append(inboxtest.Webhook("t", body), true)
			if err != nil {
				t.Fatal(err)
			}
			return dup != ""
		}
		for _, step := range []struct {
			body string
			kept bool
			dup  bool
		}{
			{"A", true, false}, {"A", true, true}, {"B", true, false}, {"A", true, false},
			{"A", false, false}, {"A", false, true}, {"A", true, false}, {"A", true, true},
		} {
			dup := false
			if step.kept {
				dup = kept(step.body)
			} else {
				dup = i.keep("t", step.body)
				time.Sleep(time.Second)
			}
			if dup != step.dup {
				t.Errorf("%+v: %v", step, dup)
			}
		}
		i.want(record.Kept, record.Kept, record.Kept, record.Delivered, record.Kept)
		rc.Want(t, "t:A")
		if used, _ := i.Usage(); used != 0 {
			t.Errorf("%d bytes count as waiting", used)
		}
		time.Sleep(11 * time.Minute)
		if kept("A") {
			t.Error("a copy after the window was dropped")
		}
	})
}

// What was kept is not sent again while nobody takes it: it would wait for nobody.
func TestKeptIsSentToNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := ""
		cfg := config(t.TempDir(), new(inboxtest.Receiver))
		cfg.courier.Route = func(webhookgate.Lane) string { return receiver }
		i := open(t, cfg)
		if _, err := i.Append(inboxtest.Webhook("t", "A"), true); err != nil {
			t.Fatal(err)
		}
		if err := i.Redeliver(1, true); !errors.Is(err, record.ErrKept) {
			t.Errorf("%v, want %v", err, record.ErrKept)
		}
		i.want(record.Kept)
		receiver = "main"
		if err := i.Redeliver(1, false); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		i.want(record.Delivered)
	})
}

// For an hour all that came waits, then it is delivered and becomes history: the file is
// made smaller at the next start, and nothing in it is lost.
func TestCompaction(t *testing.T) {
	before := compactFrom
	t.Cleanup(func() { compactFrom = before })
	compactFrom = 1 << 20
	dir := t.TempDir()
	cfg := config(dir, new(inboxtest.Receiver))
	s := openStore(t, cfg)
	s.db.NoSync = true
	for n := range 100 {
		if _, err := s.Append(inboxtest.Webhook(fmt.Sprint("t", n%5), strings.Repeat(fmt.Sprint(n), 35_000)), false); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.db.Update(func(tx *bbolt.Tx) error {
		for id := uint64(1); id <= 95; id++ {
			if err := s.drop(tx, record.IDKey(id)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	was := size(t, cfg.Path)
	// A crash in the middle of it has left something behind.
	if err := os.WriteFile(cfg.Path+".compact", []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cfg.logTo(slog.New(slog.NewTextHandler(&log, nil)))
	file := cfg.Path
	cfg.Path = filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(file, cfg.Path); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, cfg)
	if now := size(t, cfg.Path); now > was/4 || !strings.Contains(log.String(), "inbox compacted") {
		t.Errorf("%d bytes were %d before; %s", now, was, log.String())
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) != 1 || files[0] != file {
		t.Errorf("there are %v", files)
	}
	if _, err := Open(cfg.Config, courier.New(cfg.courier)); !errors.Is(err, ErrInUse) {
		t.Errorf("a second usher: %v", err)
	}
	entries, err := s.List(record.Filter{})
	if err != nil || len(entries) != 5 {
		t.Errorf("%d entries are left, %v", len(entries), err)
	}
	w := inboxtest.Webhook("t4", strings.Repeat("99", 35_000))
	if dup, err := s.Append(w, false); dup == "" || err != nil {
		t.Errorf("what waits was forgotten: %v", err)
	}
	if _, err := s.Append(inboxtest.Webhook("t4", "other"), false); err != nil {
		t.Error(err)
	}
	if entries, _ := s.List(record.Filter{Limit: 1}); entries[0].ID != 101 {
		t.Errorf("the next id is %d", entries[0].ID)
	}
	if info, err := os.Stat(cfg.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// A file that most of is in use stays as it is.
func TestNoCompactionWithoutNeed(t *testing.T) {
	before := compactFrom
	t.Cleanup(func() { compactFrom = before })
	compactFrom = 1 << 20
	cfg := config(t.TempDir(), new(inboxtest.Receiver))
	s := openStore(t, cfg)
	s.db.NoSync = true
	for n := range 100 {
		if _, err := s.Append(inboxtest.Webhook(fmt.Sprint("t", n%5), strings.Repeat(fmt.Sprint(n), 35_000)), false); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	was, _ := os.Stat(cfg.Path)
	openStore(t, cfg)
	if now, _ := os.Stat(cfg.Path); !os.SameFile(was, now) {
		t.Error("it was made anew")
	}
}

// What another version has written is refused, with a line that says what to do.
func TestOtherFormat(t *testing.T) {
	for name, write := range map[string]func(*bbolt.Tx) error{
		"oldest": func(tx *bbolt.Tx) error { _, err := tx.CreateBucket(recordBucket); return err },
		"older": func(tx *bbolt.Tx) error {
			meta, err := tx.CreateBucket(metaBucket)
			return errors.Join(err, meta.Put(formatKey, []byte{format - 1}))
		},
		"newer": func(tx *bbolt.Tx) error {
			meta, err := tx.CreateBucket(metaBucket)
			return errors.Join(err, meta.Put(formatKey, []byte{format + 1}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t.TempDir(), new(inboxtest.Receiver))
			db, err := bbolt.Open(cfg.Path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(db.Update(write), db.Close()); err != nil {
				t.Fatal(err)
			}
			was, _ := os.ReadFile(cfg.Path)
			_, err = Open(cfg.Config, courier.New(cfg.courier))
			if !errors.Is(err, errFormat) || strings.Contains(err.Error(), "\n") {
				t.Errorf("opened: %v", err)
			}
			if _, err := Check(cfg.Path); !errors.Is(err, errFormat) {
				t.Errorf("checked: %v", err)
			}
			if now, _ := os.ReadFile(cfg.Path); !bytes.Equal(was, now) {
				t.Error("the file was changed")
			}
		})
	}
}
