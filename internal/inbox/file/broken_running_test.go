package file

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
)

// Pages are damaged while usher runs. It goes on, without a 200 to anybody, and says why. What it meets first may be
// a reader, the courier or the writer.
func TestPagesDamagedWhileRunning(t *testing.T) {
	zero := func(f *os.File, size int64) error {
		_, err := f.WriteAt(make([]byte, size-8192), 8192)
		return err
	}
	cut := func(f *os.File, _ int64) error { return f.Truncate(8192) }
	for _, test := range []struct {
		name   string
		damage func(*os.File, int64) error
		meet   func(*running) error
	}{
		{"zeroed, list", zero, func(i *running) error { _, err := i.List(record.Filter{}); return err }},
		{"cut, list", cut, func(i *running) error { _, err := i.List(record.Filter{}); return err }},
		{"cut, show", cut, func(i *running) error { _, err := i.Show(1); return err }},
		{"cut, snapshot", cut, func(i *running) error {
			_, _, err := i.Snapshot(context.Background(), inboxtest.Webhook("t0", "").Lane)
			return err
		}},
		{"cut, platforms", cut, func(i *running) error { _, err := i.Platforms("t0"); return err }},
		{"zeroed, append", zero, func(i *running) error { _, err := i.Append(inboxtest.Webhook("t0", "C"), false); return err }},
		{"cut, append", cut, func(i *running) error { _, err := i.Append(inboxtest.Webhook("t0", "C"), false); return err }},
		{"cut, erase", cut, func(i *running) error { _, err := i.Erase("p", "t0"); return err }},
		{"cut, deliver", cut, func(i *running) error { time.Sleep(time.Hour); return i.Err() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rc, log := new(inboxtest.Receiver), newErrorLog()
				rc.Set(inboxtest.Status(500))
				cfg := config(t.TempDir(), rc)
				cfg.logTo(slog.New(log))
				i := open(t, cfg)
				for n := range 100 {
					i.keep(fmt.Sprint("t", n), strings.Repeat("x", 1000))
				}
				time.Sleep(time.Second / 10) // tried, and not held in memory any more
				f, err := os.OpenFile(cfg.Path, os.O_RDWR, 0)
				i.must(err)
				info, err := f.Stat()
				i.must(err)
				i.must(test.damage(f, info.Size()))
				i.must(f.Close())
				if err := test.meet(i); err == nil || !strings.Contains(err.Error(), "damaged") {
					t.Errorf("who meets it is told: %v", err)
				}
				if said := log.all(); i.Err() == nil || !slices.Contains(said, "inbox broken") {
					t.Errorf("the inbox is ready (%v); reported: %q", i.Err(), said)
				}
				if _, err := i.Append(inboxtest.Webhook("u", "D"), false); err == nil {
					t.Error("a webhook is taken in")
				}
				time.Sleep(time.Hour)
			})
		})
	}
}
