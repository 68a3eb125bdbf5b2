package inbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"usher/internal/lane"
	"usher/internal/snapshot"
	"usher/internal/testkit/pgtest"
)

// backedUp returns a copy of the desk's inbox, as a new file.
func (d *desk) backedUp() (path string) {
	d.t.Helper()
	copied, size, err := d.Backup(d.t.Context())
	check(d.t, err)
	content := must(io.ReadAll(copied))(d.t)
	check(d.t, copied.Close())
	d.want("its size", fmt.Sprint(len(content)), fmt.Sprint(size))
	path = filepath.Join(d.t.TempDir(), "copy.db")
	check(d.t, os.WriteFile(path, content, 0o600))
	return path
}

// While webhooks come and are delivered, a copy is made that has all that was acknowledged before. It begins paused, and
// is an inbox of its own.
func TestBackup(t *testing.T) {
	path := newFile(t)
	d := newDesk(t, inFile(t, path))
	d.hears("known", "a")
	d.idle("known")
	changes := must(d.Changes(t.Context(), "", 10, 0))(t)
	check(t, d.Pause(Pause{Tenant: "held"}))
	d.take("held", "A", "B")
	var ends atomic.Bool
	var senders sync.WaitGroup
	for n := range 4 {
		senders.Go(func() {
			for k := 0; !ends.Load(); k++ {
				d.take(fmt.Sprint("t", n), fmt.Sprint(k))
			}
		})
	}
	var copies []string
	for range 3 {
		before := len(d.list(""))
		file := d.backedUp()
		copies = append(copies, file)
		c := newDesk(t, inFile(t, file))
		if n := len(c.list("")); n < before {
			t.Errorf("the copy has %d webhooks, and the inbox had %d before", n, before)
		}
		c.shut()
	}
	ends.Store(true)
	senders.Wait()

	c := newDesk(t, inFile(t, copies[2]))
	c.until("paused", func() bool { return len(c.Paused()) == 2 })
	if all := c.Paused(); all[1].Copied.IsZero() || all[1].String() != "all deliveries" || !all[0].Copied.IsZero() {
		t.Errorf("pauses: %+v", all)
	}
	if _, err := c.Changes(t.Context(), changes.Cursor, 10, 0); !errors.Is(err, snapshot.ErrCursorUnknown) {
		t.Errorf("a cursor of the original: %v", err)
	}
	c.want("nothing is delivered", fmt.Sprint(c.main.got("")), "[]")
	must(c.Resume(Pause{}))(t)
	must(c.Resume(Pause{Tenant: "held"}))(t)
	c.idle("")
	c.want("delivered", fmt.Sprint(c.main.got("held")), "[A B]")
	if _, err := d.Changes(t.Context(), changes.Cursor, 10, 0); err != nil {
		t.Errorf("a cursor of the original there: %v", err)
	}

	// A file that was removed can still be saved.
	for _, end := range []string{"", "-wal", "-shm"} {
		check(t, os.Remove(path+end))
	}
	d.until("noticed", func() bool { d.send("u", "A"); return d.Err() != nil })
	saved := newDesk(t, inFile(t, d.backedUp()))
	saved.want("saved", saved.states("held"), "waiting waiting")

	if left := must(filepath.Glob(path + ".backup*"))(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// What a backup has left whose usher was killed is removed at the next start.
func TestBackupKilled(t *testing.T) {
	path := newFile(t)
	check(t, os.WriteFile(path+".backup", []byte("half"), 0o600))
	d := newDesk(t, inFile(t, path))
	if _, err := os.Stat(path + ".backup"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	d.until("open", d.Ready)
	first, _, err := d.Backup(t.Context())
	check(t, err)
	if _, _, err := d.Backup(t.Context()); err == nil {
		t.Error("two at once")
	}
	check(t, first.Close())
}

func TestNoBackupOfADatabase(t *testing.T) {
	d := newDesk(t, inDatabase(t, pgtest.Schema(t)))
	d.until("open", d.Ready)
	_, _, err := d.Backup(t.Context())
	if _, denied := errors.AsType[lane.Denied](err); !denied || !strings.Contains(err.Error(), "pg_dump") {
		t.Errorf("%v", err)
	}
}
