package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// errorLog counts what is reported.
type errorLog struct {
	slog.Handler
	mu    *sync.Mutex
	lines *[]string
}

func newErrorLog() errorLog { return errorLog{slog.DiscardHandler, new(sync.Mutex), new([]string)} }

func (l errorLog) Enabled(context.Context, slog.Level) bool { return true }
func (l errorLog) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Level >= slog.LevelError {
		*l.lines = append(*l.lines, r.Message)
	}
	return nil
}

// all is what was reported so far.
func (l errorLog) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(*l.lines)
}

// flip turns a bit of what is found in a closed file, wherever it is: bbolt leaves
// copies on free pages.
func flip(t *testing.T, path string, find []byte, at int, bit byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for i := 0; ; n++ {
		j := bytes.Index(b[i:], find)
		if j < 0 {
			break
		}
		b[i+j+at] ^= bit
		i += j + len(find)
	}
	if n == 0 {
		t.Fatalf("%q is not in the file", find)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// damage turns a bit of a value.
func damage(tx *bbolt.Tx, bucket, key []byte) error {
	value := bytes.Clone(tx.Bucket(bucket).Get(key))
	value[len(value)-1] ^= 1
	return tx.Bucket(bucket).Put(key, value)
}

// One record of five is damaged while usher is off: it is reported and parked, the
// others are delivered, and a copy of it that comes then is not taken for something
// that will be delivered.
func TestDamagedRecord(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"body": func(t *testing.T, path string) { flip(t, path, []byte("body of three"), 3, 1) },
		"envelope": func(t *testing.T, path string) {
			flip(t, path, []byte("type of three"), 3, 1)
		},
		"status": func(t *testing.T, path string) { flip(t, path, []byte("answer to three"), 3, 1) },
		"state": func(t *testing.T, path string) {
			// One bit makes an s, as of superseded, of the w, as of waiting.
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for end := 0; ; {
				i := bytes.Index(b[end:], []byte("answer to three"))
				if i < 0 {
					break
				}
				end += i + 1
				begin := bytes.LastIndex(b[:end], []byte(`{"state":"waiting"`))
				b[begin-1] = 's' // it may be one already: a status has several answers
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				rc := new(inboxtest.Receiver)
				rc.Set(func(w *webhookgate.Webhook, _ int) webhookgate.Attempt {
					return webhookgate.Attempt{Err: errors.New("answer to " + w.Lane.Tenant)}
				})
				i := open(t, config(dir, rc))
				tenants := []string{"one", "two", "three", "four", "five"}
				for _, tenant := range tenants {
					w := inboxtest.Webhook(tenant, "body of "+tenant)
					w.Type = "type of " + tenant
					if _, err := i.Append(w, false); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Second)
				i.stop()

				damage(t, filepath.Join(dir, "inbox.db"))
				log := newErrorLog()
				rc = new(inboxtest.Receiver)
				cfg := config(dir, rc)
				cfg.logTo(slog.New(log))
				i = open(t, cfg)
				i.want(record.Delivered, record.Delivered, record.Parked, record.Delivered, record.Delivered)
				if got := rc.Accepted(); len(got) != 4 || slices.Contains(got, "three:body of three") {
					t.Errorf("the receiver got %v", got)
				}
				if len(*log.lines) != 1 || !strings.Contains((*log.lines)[0], "damaged") {
					t.Errorf("reported: %q", *log.lines)
				}
				if s := i.courier.Stats(); s.Parked != 1 || s.Pending != 0 {
					t.Errorf("%+v", s)
				}
				if i.keep("three", "body of three") {
					t.Error("a copy was dropped, though what it copies will not be delivered")
				}
				time.Sleep(time.Second)
				if got := rc.Accepted(); len(got) != 5 {
					t.Errorf("the receiver got %v", got)
				}
			})
		})
	}
}

// A file that is cut short, as a copy that was broken off is, is an error that says so. Whoever
// reads beyond its end would crash.
func TestCutShort(t *testing.T) {
	cfg := config(t.TempDir(), new(inboxtest.Receiver))
	s := openStore(t, cfg)
	if _, err := s.Append(inboxtest.Webhook("t", strings.Repeat("x", 100_000)), false); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{64 << 10, 16 << 10, 8 << 10} {
		if err := os.Truncate(cfg.Path, size); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(cfg.Config, courier.New(cfg.courier)); err == nil || !strings.Contains(err.Error(), "cut short") {
			t.Errorf("%d bytes: %v", size, err)
		}
		if _, err := Check(cfg.Path); err == nil || !strings.Contains(err.Error(), "cut short") {
			t.Errorf("%d bytes: usher check: %v", size, err)
		}
	}
}

// What is damaged while usher runs does not tell any more whose it is. It can be discarded
// nevertheless, and is erased with its tenant.
func TestDamagedWhileRunning(t *testing.T) {
	for name, act := range map[string]func(*Store) error{
		"discard": func(s *Store) error { return s.Discard(1) },
		"erase": func(s *Store) error {
			n, err := s.Erase("p", "t")
			if err == nil && n != 1 {
				err = fmt.Errorf("%d webhooks erased", n)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rc := new(inboxtest.Receiver)
				rc.Set(inboxtest.Status(500))
				i := open(t, config(t.TempDir(), rc))
				i.keep("t", "A")
				time.Sleep(10 * time.Millisecond) // tried, and not held in memory any more
				i.must(i.db.Update(func(tx *bbolt.Tx) error { return damage(tx, recordBucket, record.IDKey(1)) }))
				time.Sleep(time.Hour)
				i.want(record.Parked)
				if err := act(i.Store); err != nil {
					t.Error(err)
				}
				if used, _ := i.Usage(); used != 0 {
					t.Errorf("%d bytes still count as waiting or parked", used)
				}
			})
		})
	}
}

// A tenant whose memory is damaged is known as before: who is not known can't be erased, nor paused.
func TestKnownThoughDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := open(t, config(t.TempDir(), new(inboxtest.Receiver)))
		i.keep("t", "A")
		time.Sleep(time.Second)
		lane := inboxtest.Webhook("t", "").Lane
		i.must(i.db.Update(func(tx *bbolt.Tx) error { return damage(tx, laneBucket, record.LaneKey(lane)) }))
		if got, err := i.Platforms("t"); err != nil || !slices.Equal(got, []string{"p"}) {
			t.Errorf("known on %q, %v", got, err)
		}
	})
}
