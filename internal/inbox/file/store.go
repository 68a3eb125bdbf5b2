// Package file is the inbox's embedded store: one bbolt file, for one process.
//
// All writing is done by one goroutine: whatever has come while a transaction was being
// synced shares the next one, so that many senders share a sync and a lone one does not
// wait. What it decides (is this a copy of the lane's last? may that be sent again?) and
// what it writes are one step.
package file

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// Config is what a store needs to know.
type Config struct {
	Path string
	// DedupWindow is how long a delivered snapshot counts as held by the receiver; zero
	// turns dedup off.
	DedupWindow time.Duration
	// MaxBytes bounds what waits or is parked. Zero: it is not bounded.
	MaxBytes int64
	// OnSnapshot is told, of each lane, the id of the last snapshot that was taken in
	// for it: of those that are there by Open; of each that comes before its sender is
	// answered. What it says is read by Snapshot; the webhook is always nil. It must be
	// quick. Nil: nobody wants to know.
	OnSnapshot func(webhookgate.Lane, uint64, *webhookgate.Webhook)
	// Essence is what stays of a snapshot's body when its record is gone from the history. Nil: all.
	Essence func(body []byte) []byte
	// OnErase is told that a lane was erased: what came before the id upTo is gone. Nil: as
	// OnSnapshot.
	OnErase func(lane webhookgate.Lane, upTo uint64)
	// Log is told of what is damaged or broken. Required.
	Log *slog.Logger
	// Update makes a transaction. Nil: the database's own. A test can have it be slow.
	Update func(*bbolt.DB, func(*bbolt.Tx) error) error
}

// Store keeps webhooks in a file. Its methods may be called concurrently.
type Store struct {
	cfg     Config
	db      *bbolt.DB
	courier *courier.Courier
	term    *term

	// update is transact; a test can have it fail.
	update func(func(*bbolt.Tx) error) error

	signal chan struct{} // there is work for the writer
	closed chan struct{} // the writer has ended
	broken atomic.Pointer[error]
	syncs  atomic.Int64                   // transactions so far, for tests
	paused atomic.Pointer[[]record.Pause] // the writer changes it
	used   atomic.Int64                   // bytes of what waits or is parked; the writer changes it

	mu        sync.Mutex // guards what follows
	queue     []*op
	urgent    bool           // somebody waits for one of them
	unwritten map[uint64]*op // the last note of each record that is not in the file yet

	// The writer's own.
	batch   []*op // being written
	history history
	full    bool      // the last one was refused for want of room
	company bool      // more than one waited for the last transaction
	began   time.Time // when that was
}

// op is one piece of work for the writer.
type op struct {
	webhook *webhookgate.Webhook // to append
	kept    bool                 // never to be delivered
	note    *record.Record       // how it stands now; nil: done, or overtaken
	act     func(*bbolt.Tx, *op) error
	stop    bool

	result result
	done   chan struct{} // nil: nobody waits
}

type result struct {
	duplicateOf string
	deliver     *record.Record // that is to be delivered now
	again       bool           // by hand
	snapshot    uint64         // the id of what came, if it is its lane's snapshot
	erased      webhookgate.Lane
	upTo        uint64 // all of that lane is gone up to this id; zero: nothing was erased
	count       int
	err         error
}

// Append makes w durable, unless it is a copy of its lane's last: then it returns that
// one's webhook-id, and that one is durable. One that is kept is never delivered. After an
// error w is not there, and will not be after a restart as far as the store can tell.
func (s *Store) Append(w *webhookgate.Webhook, kept bool) (duplicateOf string, err error) {
	r := s.do(&op{webhook: w, kept: kept})
	return r.duplicateOf, r.err
}

// term is the courier's leave to deliver, which never ends.
type term struct{ *Store }

// Held is always so.
func (t *term) Held() bool { return true }

// Note does not wait for the disk: what of it is lost in a crash is a delivery that will be
// made again. Notes are written in the order in which they come.
func (t *term) Note(r record.Record, _ *webhookgate.Webhook, noted func()) {
	t.push(&op{note: &r})
	noted()
}

// Run delivers until ctx ends, and returns when the deliveries in progress have ended. When hard
// ends they are cancelled, and wait for the next start.
func (s *Store) Run(ctx, hard context.Context) { s.courier.Run(ctx, hard) }

// Delivers says that this replica delivers: there is no other.
func (s *Store) Delivers() bool { return true }

// Usage says how many bytes wait or are parked, and how many may; 0: any number.
func (s *Store) Usage() (used, limit int64) { return s.used.Load(), s.cfg.MaxBytes }

// do has the writer do something, and waits for it.
func (s *Store) do(o *op) result {
	if err := s.Err(); err != nil && !o.stop {
		return result{err: err}
	}
	o.done = make(chan struct{})
	s.push(o)
	select {
	case <-o.done:
	case <-s.closed:
		select {
		case <-o.done: // the writer's last
		default:
			return result{err: errClosed}
		}
	}
	return o.result
}

var errClosed = errors.New("the inbox is closed")

// push never blocks: the writer itself may come here, through the courier.
func (s *Store) push(o *op) {
	s.mu.Lock()
	s.queue = append(s.queue, o)
	s.urgent = s.urgent || o.done != nil
	if o.note != nil {
		s.unwritten[o.note.ID] = o
	}
	s.mu.Unlock()
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

// Err says why the store takes nothing in any more; nil while it does.
func (s *Store) Err() error {
	if err := s.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// Close writes what was noted and closes the file. Run must have ended.
func (s *Store) Close() error {
	s.do(&op{stop: true})
	<-s.closed
	return s.db.Close()
}
