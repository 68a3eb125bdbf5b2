package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// A mirror is a program that keeps a copy of what usher tells.
type mirror struct {
	cursor string
	all    bool                // it passes over all tenants
	passed map[string]bool     // those that it was told of since
	copy   map[string]string   // the copy: a version for each tenant
	newest map[string]string   // the newest version that it was ever told
	back   []string            // where it was told an older one
	begins int                 // how often it had to begin
	pages  []*snapshot.Changes // all of them
}

func newMirror() *mirror {
	return &mirror{
		all:    true,
		passed: make(map[string]bool),
		copy:   make(map[string]string),
		newest: make(map[string]string),
	}
}

func (m *mirror) take(page *snapshot.Changes) {
	for i := range page.All {
		c := &page.All[i]
		name := c.Platform + "/" + c.Tenant
		m.passed[name] = true
		if c.Erased {
			delete(m.copy, name)
			continue
		}
		if c.Name < m.newest[name] {
			m.back = append(m.back, fmt.Sprintf("%s: %s after %s", name, c.Name, m.newest[name]))
		}
		m.copy[name], m.newest[name] = c.Name, max(c.Name, m.newest[name])
	}
	if m.all && !page.More {
		maps.DeleteFunc(m.copy, func(name, _ string) bool { return !m.passed[name] })
		m.all = false
	}
	m.cursor, m.pages = page.Cursor, append(m.pages, page)
}

// unknown is what it does after a 410.
func (m *mirror) unknown() {
	m.begins++
	m.cursor, m.all = "", true
	clear(m.passed)
	clear(m.newest) // the inbox may have gone back in time
}

// follow reads from an inbox until there is nothing more.
func (m *mirror) follow(t testing.TB, s *Inbox, limit int) {
	t.Helper()
	for tries := 0; ; {
		page, err := s.Changes(t.Context(), m.cursor, limit, 0)
		switch {
		case errors.Is(err, snapshot.ErrCursorUnknown):
			m.unknown()
		case err != nil && tries < 1000: // the database is away
			tries++
			time.Sleep(20 * time.Millisecond)
		case err != nil:
			t.Fatal(err)
		default:
			if m.take(page); len(page.All) == 0 && !page.More {
				return
			}
		}
	}
}

// versionOf makes a webhook whose tenant's name is a version.
func versionOf(version int64) snapshot.Snapshot {
	users := snapshot.Feature{Code: "users", Limit: snapshot.Limit(version)}
	return snapshot.Snapshot{Name: fmt.Sprintf("%09d", version), Known: true, Features: []snapshot.Feature{users}}
}

func storeVersion(s *Inbox, tenant string, version int64) error {
	w := aHook(receiver.NewSet(), "p/"+tenant, fmt.Sprint(tenant, version))
	w.State = versionOf(version).Stored(w.Lane.Platform, w.Lane.Tenant, w.ID)
	_, err := s.Store(context.Background(), w)
	return err
}

// right fails the test unless the copy is what the inbox knows, and never went back.
func (m *mirror) right(t testing.TB, s *Inbox) {
	t.Helper()
	want := make(map[string]string)
	check(t, s.read(t.Context(), func(tx engine.Tx) error {
		tx.Queue("changes", func(r engine.Row) error {
			var tenant, platform, name string
			err := r.Scan(new(int64), new(int64), new(int64), &platform, &tenant, new(string), new(int64), &name, new(string))
			want[platform+"/"+tenant] = name
			return err
		}, int64(0), int64(1_000_000), int64(clock.Never), int64(1<<40))
		return tx.Send()
	}))
	if !maps.Equal(m.copy, want) {
		t.Errorf("the copy is %v\nwant %v", m.copy, want)
	}
	if len(m.back) > 0 {
		t.Errorf("it went back %d times: %s", len(m.back), m.back[0])
	}
}

// Each page has so many tenants, each tenant is told once, an erased one only to those who knew it.
func TestChangesPages(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		s := opened(t, open(), storing)
		early := newMirror()
		early.follow(t, s, 10)
		for n := range int64(60) {
			check(t, storeVersion(s, fmt.Sprintf("t%02d", n%25), n))
		}
		known := newMirror()
		known.follow(t, s, 7)
		for _, tenant := range []string{"t03", "t24", "none"} {
			_, err := s.Erase("p", tenant, nil)
			if tenant != "none" {
				check(t, err)
			}
		}
		late := newMirror()
		late.follow(t, s, 7)
		known.follow(t, s, 7)
		early.follow(t, s, 1000)
		for _, m := range []*mirror{early, known, late} {
			m.right(t, s)
		}
		told := 0
		for _, page := range late.pages {
			told += len(page.All)
			if len(page.All) > 7 || slices.ContainsFunc(page.All, func(c snapshot.Change) bool { return c.Erased }) {
				t.Errorf("a page of a pass over all tenants: %+v", page.All)
			}
		}
		if told != 23 || late.begins > 0 {
			t.Errorf("told %d tenants, want 23", told)
		}
		if len(late.cursor) > 100 || !cursorPattern.MatchString(late.cursor) {
			t.Errorf("cursor %q", late.cursor)
		}
		for _, bad := range []string{
			"x", "12", "1-2-", "-1-2-3", "1-2-3-4-5", "zzzzzzzzzzzzz-1-1", "A-1-1", strings.Repeat("1", 300),
		} {
			if _, err := s.Changes(t.Context(), bad, 7, 0); !errors.Is(err, snapshot.ErrNoCursor) {
				t.Errorf("cursor %q: %v", bad, err)
			}
		}
		for _, unknown := range []string{"5-3-1", "5-3", "zzz-zzz-zzz"} {
			if _, err := s.Changes(t.Context(), unknown, 7, 0); !errors.Is(err, snapshot.ErrCursorUnknown) {
				t.Errorf("cursor %q: %v", unknown, err)
			}
		}
	})
}

// A page has so many bytes, but one tenant at least.
func TestChangesBytes(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		s := opened(t, open(), storing)
		for n := range int64(12) {
			w := aHook(receiver.NewSet(), fmt.Sprintf("p/t%02d", n), fmt.Sprint(n))
			state := versionOf(n)
			size := []int{1 << 20, changesBytes + 1, 10}[n%3]
			state.Features[0].Value = strings.Repeat("v", size) // it would compress well
			w.State = state.Stored(w.Lane.Platform, w.Lane.Tenant, w.ID)
			_, err := s.Store(context.Background(), w)
			check(t, err)
		}
		m := newMirror()
		m.follow(t, s, 1000)
		m.right(t, s)
		for i, page := range m.pages {
			size := 0
			for _, c := range page.All {
				size += len(c.Features)
			}
			if largest := 2*changesBytes + 1<<10; size > largest || len(page.All) == 0 && i+1 < len(m.pages) {
				t.Errorf("page %d has %d tenants, %d bytes, want %d at most", i, len(page.All), size, largest)
			}
		}
		if len(m.pages) < 4 || len(m.pages) > 12 {
			t.Errorf("%d pages", len(m.pages))
		}
	})
}

// Those who wait are answered by a change, by their time, or by the end.
func TestChangesWait(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		s := opened(t, open(), storing)
		other := s
		if s.engine.Shared() {
			other = opened(t, open(), storing)
		}
		check(t, storeVersion(s, "a", 1))
		m := newMirror()
		m.follow(t, other, 10)
		page, err := other.Changes(t.Context(), m.cursor, 10, 20*time.Millisecond)
		check(t, err)
		if len(page.All) > 0 || page.More || page.Cursor == "" {
			t.Errorf("nothing has changed: %+v", page)
		}
		m.take(page)
		for n, change := range []func() error{
			func() error { return storeVersion(s, "a", 2) },
			func() error { return second(s.Erase("p", "a", nil)) },
		} {
			changed := make(chan struct{})
			go func() {
				for other.ChangesWaiting() == 0 {
					time.Sleep(time.Millisecond)
				}
				check(t, change())
				close(changed)
			}()
			page, err := other.Changes(t.Context(), m.cursor, 10, 50*time.Second)
			check(t, err)
			<-changed
			if len(page.All) != 1 || page.All[0].Erased != (n == 1) {
				t.Errorf("change %d: %+v", n, page)
			}
			m.take(page)
		}
		m.right(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, err := s.Changes(ctx, m.cursor, 10, 50*time.Second)
			gone <- err
		}()
		for s.ChangesWaiting() == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("it hung up: %v", err)
		}
		ended := make(chan *snapshot.Changes)
		go func() {
			page, err := s.Changes(context.Background(), m.cursor, 10, 50*time.Second)
			if err != nil {
				t.Error(err)
			}
			ended <- page
		}()
		for s.ChangesWaiting() == 0 {
			time.Sleep(time.Millisecond)
		}
		s.EndWaiting()
		if page := <-ended; len(page.All) > 0 || page.Cursor != m.cursor {
			t.Errorf("at the end: %+v", page)
		}
		if s.ChangesWaiting() > 0 {
			t.Error("somebody still waits")
		}
	})
}

// However many wait behind the same cursor, a change is read once. There is a limit.
func TestChangesThousandWait(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		reads := newTally()
		s := opened(t, reads.counts().on(open()), storing)
		check(t, storeVersion(s, "a", 1))
		m := newMirror()
		m.follow(t, s, 10)
		pages := make(chan *snapshot.Changes, maxWaiting)
		for range maxWaiting {
			go func() {
				// On a slow machine it takes a while until all wait.
				page, err := s.Changes(t.Context(), m.cursor, 10, time.Hour)
				if err != nil {
					t.Error(err)
				}
				pages <- page
			}()
		}
		for s.ChangesWaiting() < maxWaiting {
			time.Sleep(time.Millisecond)
		}
		if _, err := s.Changes(t.Context(), m.cursor, 10, time.Second); !errors.Is(err, snapshot.ErrTooManyWait) {
			t.Errorf("one too many: %v", err)
		}
		if _, err := s.Changes(t.Context(), m.cursor, 10, 0); err != nil {
			t.Errorf("who does not wait: %v", err)
		}
		reads.reset()
		check(t, storeVersion(s, "a", 2))
		for range maxWaiting {
			if page := <-pages; page == nil || len(page.All) != 1 || page.All[0].Name != "000000002" {
				t.Fatalf("page: %+v", page)
			}
		}
		reads.mu.Lock()
		defer reads.mu.Unlock()
		if n := reads.calls["changes"]; n > 3 { // it may have been told by two tellings
			t.Errorf("%d reads for %d that wait", n, maxWaiting)
		}
	})
}

// Those who ask for the same page at the same time share a read that begins after they have asked.
func TestChangesReadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, reads := newFeed(nil), int64(0)
		read := func(context.Context) (*snapshot.Changes, error) {
			n := atomic.AddInt64(&reads, 1)
			time.Sleep(time.Second)
			return &snapshot.Changes{Cursor: fmt.Sprint(n)}, nil
		}
		ask := func(after string) {
			page, err := f.readShared(t.Context(), pageKey{limit: 10}, read)
			if check(t, err); page.Cursor <= after {
				t.Errorf("read %s began before it asked", page.Cursor)
			}
		}
		var all sync.WaitGroup
		all.Go(func() { ask("0") })
		synctest.Wait() // the first read is under way
		for range 1000 {
			all.Go(func() { ask("1") })
		}
		all.Wait()
		if reads > 3 {
			t.Errorf("%d reads for a thousand", reads)
		}
	})
}

// Copies of an inbox in a file: its cursors go on, those that are newer than the copy begin again.
func TestChangesOlderFile(t *testing.T) {
	path := newFile(t)
	s := opened(t, inFile(t, path)(), storing)
	for n := range int64(20) {
		check(t, storeVersion(s, fmt.Sprint("t", n%7), n))
	}
	early, late := newMirror(), newMirror()
	early.follow(t, s, 3)
	shut(t, s)
	copied := killed(t, path)
	s = opened(t, inFile(t, path)(), storing)
	early.follow(t, s, 3)
	if early.begins > 0 {
		t.Error("a restart made its cursor unknown")
	}
	for n := range int64(20) {
		check(t, storeVersion(s, fmt.Sprint("t", n%9), 100+n))
	}
	late.follow(t, s, 3)
	shut(t, s)
	s = opened(t, inFile(t, copied)(), storing)
	for n := range int64(40) { // the same numbers, and more, are told again
		check(t, storeVersion(s, fmt.Sprint("t", n%5), 200+n))
	}
	early.follow(t, s, 3)
	early.right(t, s)
	late.follow(t, s, 3)
	late.right(t, s)
	if early.begins != 0 || late.begins != 1 {
		t.Errorf("began %d and %d times, want 0 and 1", early.begins, late.begins)
	}
}

// Whatever overlaps, a copy is right in the end, and never goes back: two replicas, transactions that take their
// numbers early and commit late, erasures, connections that break, readers that change replicas and lose pages. On a
// pooler, too.
func TestChangesCopies(t *testing.T) {
	t.Parallel()
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		s := opened(t, inFile(t, newFile(t))(), storing)
		copies(t, "", s, s)
	})
	t.Run("database", func(t *testing.T) {
		t.Parallel()
		server := pgtest.New(t)
		dsn := server.DSN() + "&schema=usher"
		copies(t, server.DSN(), opened(t, inDatabase(t, dsn)(), storing), opened(t, inDatabase(t, dsn)(), storing))
	})
	t.Run("pooler", func(t *testing.T) {
		costly(t)
		t.Parallel()
		server := pgtest.New(t)
		dsn := server.Pooler(t) + "&schema=usher&default_query_exec_mode=exec"
		copies(t, server.DSN(), opened(t, inDatabase(t, dsn)(), storing), opened(t, inDatabase(t, dsn)(), storing))
	})
}

// copies does it; server is the address of the server, if there is one.
func copies(t *testing.T, server string, boxes ...*Inbox) {
	count := int64(1500)
	if !thorough() {
		count = 300
	}
	var version, killed atomic.Int64
	var writers sync.WaitGroup
	var names [30]sync.Mutex // one writer of a tenant at a time, so that versions say the order
	for n := range 8 {
		writers.Go(func() {
			for version.Load() < count {
				i := rand.IntN(len(names))
				names[i].Lock()
				tenant, to := fmt.Sprintf("t%02d", i), boxes[(n+rand.IntN(8)/7)%2]
				if rand.IntN(20) == 0 {
					_, _ = to.Erase("p", tenant, nil)
				} else {
					_ = storeVersion(to, tenant, version.Add(1)) // it may fail, and may be stored nevertheless
				}
				names[i].Unlock()
			}
		})
	}
	if server != "" {
		writers.Go(func() {
			conn, err := pgx.Connect(t.Context(), server)
			check(t, err)
			defer conn.Close(t.Context())
			for at := version.Load(); at < count; at = version.Load() {
				for version.Load() < min(count, at+30) {
					time.Sleep(time.Millisecond)
				}
				n := int64(0)
				check(t, conn.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM (
					SELECT pid FROM pg_stat_activity WHERE application_name = 'usher'
					ORDER BY random() LIMIT 1) a`).Scan(&n))
				killed.Add(n)
			}
		})
	}
	var mirrors []*mirror
	var readers sync.WaitGroup
	for n := range 4 {
		m := newMirror()
		mirrors = append(mirrors, m)
		readers.Go(func() {
			for version.Load() < count {
				wait := time.Duration(n%2) * 100 * time.Millisecond
				page, err := boxes[rand.IntN(2)].Changes(t.Context(), m.cursor, 1+rand.IntN(20), wait)
				switch {
				case errors.Is(err, snapshot.ErrCursorUnknown):
					t.Errorf("the cursor %s is unknown", m.cursor)
					return
				case err != nil: // a connection was broken
				case rand.IntN(10) == 0: // it is killed before it has stored the page
				default:
					m.take(page)
				}
			}
		})
	}
	writers.Wait()
	readers.Wait()
	pages := 0
	for _, m := range mirrors {
		m.follow(t, boxes[rand.IntN(2)], 10)
		m.right(t, boxes[0])
		pages += len(m.pages)
	}
	t.Logf("%d webhooks, %d connections broken, %d pages", version.Load(), killed.Load(), pages)
}

// A process whose role may only read follows what others commit, and says nothing in the log.
func TestChangesReadOnly(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	writes := opened(t, inDatabase(t, server.DSN()+"&schema=usher")(), storing)
	check(t, storeVersion(writes, "a", 1))
	server.Exec(t, `
		CREATE ROLE reads LOGIN;
		GRANT USAGE ON SCHEMA usher TO reads;
		GRANT SELECT ON ALL TABLES IN SCHEMA usher TO reads`)
	var log testkit.Output
	cfg := storing
	cfg.ReadOnly, cfg.StoreUnclaimed, cfg.Log = true, false, slog.New(slog.NewTextHandler(&log, nil))
	dsn := strings.Replace(server.DSN(), "usher@", "reads@", 1) + "&schema=usher"
	reads := opened(t, inDatabase(t, dsn)(), cfg)
	m := newMirror()
	m.follow(t, reads, 10)
	told := make(chan *snapshot.Changes, 1)
	go func() { told <- must(reads.Changes(context.Background(), m.cursor, 10, time.Minute))(t) }()
	testkit.Eventually(t, "it waits", func() bool { return reads.ChangesWaiting() == 1 })
	check(t, storeVersion(writes, "a", 2))
	if page := <-told; len(page.All) != 1 {
		t.Errorf("told %d changes", len(page.All))
	}
	m.follow(t, reads, 10)
	if _, err := reads.Changes(t.Context(), "5-3-1", 10, 0); !errors.Is(err, snapshot.ErrCursorUnknown) {
		t.Errorf("a cursor of another inbox: %v", err)
	}
	if m.right(t, reads); m.begins > 0 || log.Len() > 0 {
		t.Errorf("began %d times. The log:\n%s", m.begins, log.String())
	}
}

// A primary that was replaced, and that nobody has stopped, does not say that newer cursors are unknown: who would
// begin anew there goes back. While the standby does not answer, what is known is told, and nobody who asks is kept.
func TestChangesOldPrimary(t *testing.T) {
	t.Parallel()
	primary := pgtest.New(t)
	standby := primary.Standby(t)
	old := opened(t, inDatabase(t, primary.DSN()+"&schema=usher")(), storing)
	for n := range int64(10) {
		check(t, storeVersion(old, fmt.Sprint("t", n%4), n))
	}
	known, newer := newMirror(), newMirror()
	known.follow(t, old, 3)
	replayed(t, primary, standby)
	standby.Promote(t)
	now := opened(t, inDatabase(t, standby.DSN()+"&schema=usher")(), storing)
	for n := range int64(10) {
		check(t, storeVersion(now, fmt.Sprint("t", n%4), 100+n))
	}
	newer.follow(t, now, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if page, err := old.Changes(ctx, newer.cursor, 3, 0); err == nil || errors.Is(err, snapshot.ErrCursorUnknown) {
		t.Errorf("a newer cursor: %+v, %v", page, err)
	}
	before := len(known.pages)
	known.follow(t, old, 3) // and what only waits for a COMMIT is not told
	known.right(t, old)
	if begun := newMirror(); known.begins > 0 || len(known.pages) == before {
		t.Error("a cursor that it knows")
	} else {
		begun.follow(t, old, 3)
		begun.right(t, old)
	}
	primary.Exec(t, "ALTER SYSTEM SET synchronous_standby_names = ''") // what hangs there ends
	primary.Exec(t, "SELECT pg_reload_conf()")
	known.follow(t, now, 3)
	known.right(t, now)
	if known.begins > 0 {
		t.Error("a cursor from before the failover is unknown after it")
	}
}
