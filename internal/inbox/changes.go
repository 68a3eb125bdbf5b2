package inbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/snapshot"
)

// Changes, for programs that keep a copy of what usher knows.
//
// A number that a transaction takes is no cursor: transactions commit in any order. So a trigger only notes in the
// table changed which snapshot has changed, and later, when that is visible, one process after the other numbers it:
// that is a telling. A tenant has one row in change, with its last number, so the table does not grow with the
// changes. In a file transactions commit one after the other, and the trigger numbers at once.
//
// Each telling leaves a row with a random token in told, and a cursor names the last telling at the time of its page.
// An inbox goes on from a cursor only if it has that row. Whatever takes tellings back (a restored backup, a failover
// that loses something) takes their rows back, too, and what is told afterwards has other tokens. This only works if
// a page never says more than what was told: see changePage.cut.

const (
	// tellEvery is the time between two tellings while somebody waits for one; tellIdle is that time otherwise.
	tellEvery = time.Second / 4
	tellIdle  = time.Second
	// tellAtOnce is how many changes one telling takes. The writer does nothing else meanwhile.
	tellAtOnce = 5000
	// tellPatience is how long a caller waits for changes that are stored to be told.
	tellPatience = 5 * time.Second
	// maxWaiting is how many callers may wait.
	maxWaiting = 1000
	// cursorAge is how long a cursor can be used after the next telling.
	cursorAge = 7 * 24 * time.Hour
	// changesBytes is about how much a page has at most; one tenant may be larger.
	changesBytes = 1 << 20
)

// A toldRow is a row of the table told: a telling.
type toldRow struct{ number, token int64 }

// A cursor says how far its reader is.
type cursor struct {
	at   int64 // the number of the last change that it has
	told toldRow
	all  int64 // while the reader passes over all tenants: the number of the last change before it began; else 0
}

var cursorPattern = regexp.MustCompile(`^[0-9a-z]{1,13}(-[0-9a-z]{1,13}){2,3}$`)

func parseCursor(text string) (c cursor, err error) {
	if !cursorPattern.MatchString(text) {
		return c, snapshot.ErrNoCursor
	}
	for i, part := range strings.Split(text, "-") {
		into := [...]*int64{&c.at, &c.told.number, &c.told.token, &c.all}[i]
		if *into, err = strconv.ParseInt(part, 36, 64); err != nil {
			return c, snapshot.ErrNoCursor
		}
	}
	return c, nil
}

func (c cursor) String() string {
	numbers := []int64{c.at, c.told.number, c.told.token}
	if c.at < c.all {
		numbers = append(numbers, c.all)
	}
	parts := make([]string, len(numbers))
	for i, n := range numbers {
		parts[i] = strconv.FormatInt(n, 36)
	}
	return strings.Join(parts, "-")
}

// A feed is what this process knows of the tellings, and who waits for one.
type feed struct {
	look  chan struct{} // has an element if the teller should look now
	ended chan struct{} // closed when nobody should wait any more
	end   sync.Once

	mu      sync.Mutex
	wake    chan struct{} // closed when last changes
	last    toldRow       // the last one that is known
	waiting int
	queues  map[queueKey]*queue
	next    map[queueKey]*sharedRead // those that have not begun

	reading chan struct{} // has an element for each shared read that is under way
}

func newFeed() feed {
	return feed{
		look:    make(chan struct{}, 1),
		ended:   make(chan struct{}),
		wake:    make(chan struct{}),
		queues:  make(map[queueKey]*queue),
		next:    make(map[queueKey]*sharedRead),
		reading: make(chan struct{}, 2),
	}
}

// lookNow makes the teller look whether there is something to tell.
func (f *feed) lookNow() {
	select {
	case f.look <- struct{}{}:
	default:
	}
}

// committed is called after each commit of this process.
func (f *feed) committed() {
	if _, waiting := f.known(); waiting > 0 {
		f.lookNow()
	}
}

func (f *feed) known() (last toldRow, waiting int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last, f.waiting
}

// noticed wakes those who wait, if there is another last telling. After a failover that loses something its number
// may be lower.
func (f *feed) noticed(last toldRow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if last != f.last {
		close(f.wake)
		f.wake, f.last = make(chan struct{}), last
	}
}

// A queue are callers that wait behind the same cursor. They share one read.
type queue struct {
	members int         // guarded by feed.mu
	failed  atomic.Bool // a read has failed: nobody joins any more

	mu   sync.Mutex // held while somebody reads
	of   toldRow    // the last one before page was read
	page *changePage
	err  error
}

type queueKey struct {
	cursor
	limit int
}

// join counts a caller that waits, until it calls leave. If it does not share, it is alone in its queue: what others
// have read may be older than its call.
func (f *feed) join(key queueKey, share bool) (*queue, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting == maxWaiting {
		return nil, snapshot.ErrTooManyWait
	}
	if f.waiting++; f.waiting == 1 {
		f.lookNow()
	}
	q := f.queues[key]
	if q == nil || !share || q.failed.Load() {
		q = new(queue)
	}
	if q.members++; share {
		f.queues[key] = q
	}
	return q, nil
}

// leave is called by a caller that has joined a queue, and no longer waits.
func (f *feed) leave(key queueKey, q *queue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting--
	if q.members--; f.queues[key] == q && (q.members == 0 || q.failed.Load()) {
		delete(f.queues, key)
	}
}

// A pageReader reads one page, for all who have asked for it.
type pageReader func(context.Context) (*changePage, error)

// A sharedRead is the first read of callers that all came before it began: a thousand that have just got the same
// page ask again at once.
type sharedRead struct {
	done chan struct{}
	page *changePage
	err  error
}

// share reads together with those who ask for the same page, and whose read has not begun.
func (f *feed) share(ctx context.Context, key queueKey, read pageReader) (*changePage, error) {
	f.mu.Lock()
	r := f.next[key]
	if r == nil {
		r = &sharedRead{done: make(chan struct{})}
		f.next[key] = r
		go func() {
			defer close(r.done)
			f.reading <- struct{}{}
			defer func() { <-f.reading }()
			f.mu.Lock()
			delete(f.next, key) // for those who come from here on it is too old
			f.mu.Unlock()
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

// read reads the page behind the queue's cursor, once for each last telling.
func (q *queue) read(ctx context.Context, last toldRow, read pageReader) (*changePage, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil && (q.page == nil || q.of != last) {
		q.of = last
		q.page, q.err = read(context.WithoutCancel(ctx)) // if this caller hangs up, the others still want it
	}
	q.failed.Store(q.err != nil)
	return q.page, q.err
}

// ChangesWaiting is how many callers wait for changes.
func (s *Inbox) ChangesWaiting() int { _, n := s.feed.known(); return n }

// EndWaiting answers all who wait for changes, and lets nobody wait any more: usher ends.
func (s *Inbox) EndWaiting() { s.feed.end.Do(func() { close(s.feed.ended) }) }

// state returns the last telling that is known, and what is closed when there is another.
func (f *feed) state() (wake <-chan struct{}, last toldRow) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wake, f.last
}

// errUntold says that a reader cannot begin, because tenants are stored of which nothing was told.
var errUntold = errors.New("the inbox has changes that could not be told yet")

// Changes returns what was told after a cursor or, if that is empty, all tenants. While there is nothing, it waits so
// long.
func (s *Inbox) Changes(ctx context.Context, after string, limit int, wait time.Duration) (*snapshot.Changes, error) {
	var from cursor
	begins := after == ""
	if !begins {
		var err error
		if from, err = parseCursor(after); err != nil {
			return nil, err
		}
	}
	until := time.Now().Add(wait)
	soon := time.Now().Add(tellPatience)
	var q *queue
	var stored int64 // when the reader began: the last change that was not told
	for {
		wake, last := s.feed.state()
		read := func(ctx context.Context) (*changePage, error) { return s.readChanges(ctx, from, begins, limit) }
		var p *changePage
		var err error
		switch {
		case q != nil:
			p, err = q.read(ctx, last, read)
		case begins:
			p, err = read(ctx)
		default:
			p, err = s.feed.share(ctx, queueKey{from, limit}, read)
		}
		if err != nil {
			return nil, err
		}
		if q == nil {
			stored = p.lastUntold
		}
		// A reader that begins gets every tenant that is stored: it deletes from its copy who is not in its pages.
		missing := begins && p.firstUntold > 0 && p.firstUntold <= stored
		if len(p.All) > 0 && !missing {
			return p.Changes, nil
		}
		if p.firstUntold > 0 || p.cut { // it is told in a moment
			s.feed.lookNow()
			until = later(until, soon)
		}
		left := time.Until(until)
		if q == nil && left > 0 {
			if !begins {
				from = p.next
			}
			key := queueKey{from, limit}
			if q, err = s.feed.join(key, !begins); err != nil {
				return nil, err
			}
			defer s.feed.leave(key, q)
		}
		select {
		case <-wake:
			continue
		case <-time.After(left):
		case <-s.feed.ended:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if missing {
			return nil, errUntold
		}
		return p.Changes, nil
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// A changePage is a page of changes, and what its reader must know.
type changePage struct {
	*snapshot.Changes
	next cursor
	// cut says that the page ends before a tenant that has changed since it was told. That one is told again soon, by
	// a higher number. A page that said its new state already would not be noticed if a failover lost it.
	cut                     bool
	firstUntold, lastUntold int64 // what is stored and not told; 0: nothing
}

// readChanges reads one page. If the inbox does not know the cursor, it makes sure that this is the inbox: a primary
// that has been replaced, and that nobody has stopped, does not have the newest tellings either, but its transactions
// cannot be committed any more.
func (s *Inbox) readChanges(ctx context.Context, from cursor, begins bool, limit int) (*changePage, error) {
	p, err := s.changesPage(ctx, from, begins, limit)
	if errors.Is(err, snapshot.ErrCursorUnknown) && s.engine.Shared() {
		if err = s.tryWrite(ctx); err == nil {
			p, err = s.changesPage(ctx, from, begins, limit)
		}
	}
	return p, err
}

func (s *Inbox) changesPage(ctx context.Context, from cursor, begins bool, limit int) (*changePage, error) {
	p := &changePage{Changes: &snapshot.Changes{All: []snapshot.Change{}}, next: from}
	known, found := begins, 0
	err := s.browse(ctx, func(tx engine.Tx) error {
		if !begins {
			isKnown := func(r engine.Row) error { known = true; return r.Scan(new(int64)) }
			tx.Queue("telling", isKnown, from.told.number, from.told.token)
		}
		tx.Queue("last_telling", func(r engine.Row) error { return r.Scan(&p.next.told.number, &p.next.told.token) })
		tx.Queue("untold", func(r engine.Row) error { return r.Scan(&p.firstUntold, &p.lastUntold, new(int64)) })
		if err := tx.Send(); err != nil || !known {
			return err
		}
		if begins {
			p.next.all = p.next.told.number
		}
		tx.Queue("changes", func(r engine.Row) error {
			var c snapshot.Change
			var number, told, received, rows int64
			var features string
			err := r.Scan(&number, &told, &rows, &c.Platform, &c.Tenant, &c.Seq, &c.Webhook, &received, &c.Name, &features)
			if p.cut = p.cut || c.Seq != told; err != nil || p.cut || len(p.All) == limit {
				return err
			}
			found = int(rows)
			c.Received, c.Features, c.Erased = clock.Moment(received), orNil([]byte(features)), told == 0
			p.All, p.next.at = append(p.All, c), number
			return nil
		}, from.at, int64(limit+1), p.next.all, int64(changesBytes))
		return tx.Send()
	})
	if err == nil && !known {
		err = snapshot.ErrCursorUnknown
	}
	if p.More = p.cut || found > len(p.All); !p.More {
		p.next.at = p.next.told.number
	}
	p.Cursor = p.next.String()
	return p, err
}

// tryWrite commits a transaction that standbys have to confirm.
func (s *Inbox) tryWrite(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := attempt(ctx, s, work{}, func(t *sqlTurn) nothing {
		t.tx.Queue("confirm", nil)
		return nothing{}
	})
	return err
}

// runTeller tells what was committed, here or by other processes, and wakes those who wait.
func (s *Inbox) runTeller() {
	var told time.Time // when it last noticed something new
	for s.run.Err() == nil {
		last, _ := s.feed.known()
		if s.tell() {
			continue
		}
		if now, _ := s.feed.known(); now != last {
			told = time.Now()
		}
		pause := tellIdle
		if _, waiting := s.feed.known(); waiting > 0 {
			pause = tellEvery
		}
		select {
		case <-time.After(pause):
			continue
		case <-s.feed.look:
		case <-s.run.Done():
		}
		select {
		case <-time.After(tellEvery - time.Since(told)):
		case <-s.run.Done():
		}
	}
}

// tell tells what was committed, and notices what others have told. more says that there is more to tell.
func (s *Inbox) tell() (more bool) {
	_, waiting := s.feed.known()
	if !s.engine.Shared() && waiting == 0 { // triggers tell, and nobody wants to know
		return false
	}
	var last toldRow
	var first, may int64
	err := s.read(s.run, func(tx engine.Tx) error {
		tx.Queue("untold", func(r engine.Row) error { return r.Scan(&first, new(int64), &may) })
		tx.Queue("last_telling", func(r engine.Row) error { return r.Scan(&last.number, &last.token) })
		return tx.Send()
	})
	if err != nil {
		return false
	}
	if first > 0 && may > 0 && s.engine.Full() == nil {
		type telling struct{ upTo, count int64 }
		token := rand.Int64()
		var told *telling
		told, err = attempt(s.run, s, work{}, func(t *sqlTurn) *telling {
			told := new(telling)
			result := func(r engine.Row) error { return r.Scan(&told.upTo, &told.count) }
			t.tx.Queue("tell_lock", nil)
			t.tx.Queue("tell", result, int64(tellAtOnce), token, t.Now)
			return told
		})
		if err == nil {
			more = told.count == tellAtOnce
			if told.upTo > 0 { // else another process tells, and what it has told can be read
				last = toldRow{told.upTo, token}
			}
		}
	}
	s.feed.noticed(last)
	return more
}
