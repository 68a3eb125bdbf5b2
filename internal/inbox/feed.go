package inbox

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/snapshot"
)

// Changes, for programs that keep a copy of what usher knows. Numbers are in the order of commits, and each tenant's last
// snapshot has its number: so what has changed after a number are the snapshots with higher ones, and there is nothing else
// to keep.

const (
	// watchEvery is how often usher looks for what other replicas have committed, while somebody waits for it.
	watchEvery = time.Second / 4
	// maxWaiting is how many callers may wait.
	maxWaiting = 1000
	// changesBytes is about how much a page has at most; one tenant may be larger.
	changesBytes = 1 << 20
)

// A mark is a number, and the token of the era in which it was the last one: see the table era.
type mark struct{ at, era int64 }

// A cursor says how far its reader is.
type cursor struct {
	mark
	all int64 // while it passes over all tenants: the last number when it began; else 0
}

var cursorPattern = regexp.MustCompile(`^[0-9a-z]{1,13}(-[0-9a-z]{1,13}){1,2}$`)

func parseCursor(text string) (c cursor, err error) {
	if !cursorPattern.MatchString(text) {
		return c, snapshot.ErrNoCursor
	}
	for i, part := range strings.Split(text, "-") {
		into := [...]*int64{&c.at, &c.era, &c.all}[i]
		if *into, err = strconv.ParseInt(part, 36, 64); err != nil {
			return c, snapshot.ErrNoCursor
		}
	}
	return c, nil
}

func (c cursor) String() string {
	numbers := []int64{c.at, c.era}
	if c.at < c.all {
		numbers = append(numbers, c.all)
	}
	parts := make([]string, len(numbers))
	for i, n := range numbers {
		parts[i] = strconv.FormatInt(n, 36)
	}
	return strings.Join(parts, "-")
}

// queueKnown queues the question whether this inbox has all that a mark has seen.
func (m mark) queueKnown(tx engine.Tx, known *bool) {
	*known = false
	tx.Queue("era_end", func(r engine.Row) error {
		var end int64
		err := r.Scan(&end)
		*known = err == nil && m.at <= end
		return err
	}, m.era)
}

// queueLine queues the reading of the last number, and of the era that it is in.
func queueLine(tx engine.Tx, last *mark) {
	tx.Queue("line", func(r engine.Row) error { return r.Scan(&last.at, &last.era) })
}

// A feed is who waits for changes.
type feed struct {
	*queue
	ended chan struct{} // closed when nobody should wait any more
	end   sync.Once

	mu      sync.Mutex
	wake    chan struct{} // closed when something may have been committed
	commits int64         // how often
	last    mark          // that watch has seen
	waiting int
	reads   map[pageKey]*sharedRead // those that others may join

	reading chan struct{} // has an element for each read that is under way
}

func newFeed(q *queue) *feed {
	return &feed{
		queue:   q,
		ended:   make(chan struct{}),
		wake:    make(chan struct{}),
		reads:   make(map[pageKey]*sharedRead),
		reading: make(chan struct{}, 2),
	}
}

// committed wakes those who wait, after each commit of this process.
func (f *feed) committed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.wake)
	f.wake, f.commits = make(chan struct{}), f.commits+1
	maps.DeleteFunc(f.reads, func(key pageKey, _ *sharedRead) bool { return key.commits > 0 })
}

// join counts a caller that waits, or leaves (-1).
func (f *feed) join(n int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting+n > maxWaiting {
		return snapshot.ErrTooManyWait
	}
	f.waiting += n
	return nil
}

// now returns what is closed when there may be something new, after how many commits that is, and how many wait.
func (f *feed) now() (wake <-chan struct{}, commits int64, waiting int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wake, f.commits, f.waiting
}

type pageKey struct {
	cursor
	begins  bool
	limit   int
	commits int64 // the last one that has woken the caller; 0: it has not waited yet
}

// A sharedRead is one read for callers that all came before it began, or that the same commit has woken: a thousand that
// wait for the same ask at once.
type sharedRead struct {
	done chan struct{}
	page *snapshot.Changes
	err  error
}

// readShared reads together with those who ask for the same page.
func (f *feed) readShared(ctx context.Context, key pageKey, read func(context.Context) (*snapshot.Changes, error)) (*snapshot.Changes, error) {
	f.mu.Lock()
	r := f.reads[key]
	if r == nil {
		r = &sharedRead{done: make(chan struct{})}
		f.reads[key] = r
		go func() {
			defer close(r.done)
			f.reading <- struct{}{}
			defer func() { <-f.reading }()
			if key.commits == 0 { // for those who come from here on it is too old
				f.mu.Lock()
				delete(f.reads, key)
				f.mu.Unlock()
			}
			r.page, r.err = read(context.WithoutCancel(ctx)) // if this caller hangs up, the others still want it
		}()
	}
	f.mu.Unlock()
	select {
	case <-r.done:
		return r.page, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ChangesWaiting is how many callers wait for changes.
func (f *feed) ChangesWaiting() int { _, _, n := f.now(); return n }

// EndWaiting answers all who wait for changes, and lets nobody wait any more: usher ends.
func (f *feed) EndWaiting() { f.end.Do(func() { close(f.ended) }) }

// Changes returns what has changed after a cursor or, if that is empty, all tenants. While there is nothing, it waits so
// long.
func (f *feed) Changes(ctx context.Context, after string, limit int, wait time.Duration) (*snapshot.Changes, error) {
	key := pageKey{begins: after == "", limit: limit}
	if !key.begins {
		var err error
		if key.cursor, err = parseCursor(after); err != nil {
			return nil, err
		}
	}
	until := time.After(wait)
	for waits := false; ; {
		wake, commits, _ := f.now()
		if waits {
			key.commits = commits
		}
		p, err := f.readShared(ctx, key, func(ctx context.Context) (*snapshot.Changes, error) { return f.readChanges(ctx, key) })
		if err != nil || len(p.All) > 0 || wait <= 0 {
			return p, err
		}
		if !waits {
			if err := f.join(1); err != nil {
				return nil, err
			}
			defer f.join(-1)
			waits = true
		}
		select {
		case <-wake:
		case <-until:
			return p, nil
		case <-f.ended:
			return p, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// readChanges reads one page. If the inbox does not know the cursor, it makes sure that this is the inbox: a primary
// that has been replaced, and that nobody has stopped, does not have the newest eras either, but its transactions
// cannot be committed any more.
func (f *feed) readChanges(ctx context.Context, key pageKey) (*snapshot.Changes, error) {
	p, err := f.changesPage(ctx, key)
	if errors.Is(err, snapshot.ErrCursorUnknown) && f.engine.Shared() {
		if err = f.tryWrite(ctx); err == nil {
			p, err = f.changesPage(ctx, key)
		}
	}
	return p, err
}

func (f *feed) changesPage(ctx context.Context, key pageKey) (*snapshot.Changes, error) {
	p, next := &snapshot.Changes{All: []snapshot.Change{}}, key.cursor
	var last mark
	known, found := key.begins, 0
	err := f.browse(ctx, func(tx engine.Tx) error {
		queueLine(tx, &last)
		if !key.begins {
			key.queueKnown(tx, &known)
		}
		if err := tx.Send(); err != nil || !known {
			return err
		}
		if key.begins {
			next.all = last.at
		}
		next.era = last.era
		tx.Queue("changes", func(r engine.Row) error {
			var c snapshot.Change
			var received, erased int64
			var features string
			err := r.Scan(&c.Seq, &erased, &found, &c.Platform, &c.Tenant, &c.Webhook, &received, &c.Name, &features)
			if err != nil || len(p.All) == key.limit {
				return err
			}
			c.Received, c.Features, c.Erased = clock.Moment(received), orNil([]byte(features)), erased == 1
			p.All, next.at = append(p.All, c), c.Seq
			return nil
		}, next.at, int64(key.limit+1), next.all, int64(changesBytes))
		return tx.Send()
	})
	if err == nil && !known {
		err = snapshot.ErrCursorUnknown
	}
	if p.More = found > len(p.All); !p.More {
		next.at = last.at
	}
	p.Cursor = next.String()
	return p, err
}

// tryWrite commits a transaction that standbys have to confirm.
func (f *feed) tryWrite(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := do(ctx, f.queue, op{}, func(t *turn) (struct{}, error) {
		t.tx.Queue("confirm", nil)
		return struct{}{}, nil
	})
	return err
}

// watch notices what other replicas have committed, while somebody waits.
func (f *feed) watch() {
	for f.run.Err() == nil {
		if _, _, waiting := f.now(); waiting > 0 {
			var last mark
			err := f.read(f.run, func(tx engine.Tx) error {
				queueLine(tx, &last)
				return tx.Send()
			})
			if err == nil && last != f.last {
				f.last = last
				f.committed()
			}
		}
		select {
		case <-time.After(watchEvery):
		case <-f.run.Done():
		}
	}
}
