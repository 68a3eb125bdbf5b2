package inbox

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"go.etcd.io/bbolt"

	"usher/webhookgate"
)

// What the file holds. A record that has no status waits and was never tried.
var (
	recordBucket = []byte("records") // id → record
	statusBucket = []byte("status")  // id → status
	laneBucket   = []byte("lanes")   // lane → tail
)

// settleDelay is how long updates may wait for company. A webhook that comes in does
// not wait, and takes them along.
const settleDelay = 20 * time.Millisecond

// boltStore is the embedded store. All writing is done by one goroutine: whatever
// has come while a transaction was being synced shares the next one.
type boltStore struct {
	db      *bbolt.DB
	log     *slog.Logger
	window  time.Duration
	deliver func(r *record, again bool)

	// update is db.Update; a test can have it fail.
	update func(func(*bbolt.Tx) error) error

	signal chan struct{} // there is work for the writer
	closed chan struct{} // the writer has ended
	broken atomic.Pointer[error]
	syncs  atomic.Int64 // transactions so far, for tests

	mu     sync.Mutex // guards what follows
	queue  []*op
	urgent bool // somebody waits for one of them

	// The writer's own.
	tails   *lru.Cache[webhookgate.Lane, *laneTail]
	history history
	pacer   pacer
}

// op is one piece of work for the writer.
type op struct {
	webhook *webhookgate.Webhook // to append
	record  *record              // to update
	again   bool                 // the record is to be delivered once more
	force   bool                 // also over a newer one of its lane
	forget  string               // a tenant
	stop    bool

	result result
	done   chan struct{} // nil: nobody waits
}

type result struct {
	duplicateOf string
	deliver     *record // that is to be delivered now
	forgotten   int
	err         error
}

func (s *boltStore) Append(w *webhookgate.Webhook) (string, error) {
	if err := s.Err(); err != nil {
		return "", err
	}
	r := s.do(&op{webhook: w})
	return r.duplicateOf, r.err
}

func (s *boltStore) Update(r *record) {
	c := *r // as it stands now
	s.push(&op{record: &c})
}

func (s *boltStore) Again(r *record, force bool) error {
	if err := s.Err(); err != nil {
		return err
	}
	return s.do(&op{record: r, again: true, force: force}).err
}

func (s *boltStore) Forget(tenant string) (int, error) {
	if err := s.Err(); err != nil {
		return 0, err
	}
	r := s.do(&op{forget: tenant})
	return r.forgotten, r.err
}

func (s *boltStore) do(o *op) result {
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

// push never blocks: the writer itself may come here, through deliver.
func (s *boltStore) push(o *op) {
	s.mu.Lock()
	s.queue = append(s.queue, o)
	s.urgent = s.urgent || o.done != nil
	s.mu.Unlock()
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

func (s *boltStore) Err() error {
	if err := s.broken.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *boltStore) Close() error {
	s.do(&op{stop: true})
	<-s.closed
	return s.db.Close()
}

// write is the writer: it gathers what there is, commits it, and tells those who
// wait.
func (s *boltStore) write() {
	defer close(s.closed)
	for stop := false; !stop; {
		batch := s.gather()
		err := s.Err()
		if err == nil {
			err = s.commit(batch)
		}
		for _, o := range batch {
			stop = stop || o.stop
			switch {
			case err != nil:
				o.result = result{err: err}
			case o.result.deliver != nil:
				s.deliver(o.result.deliver, o.again)
			}
			if o.done != nil {
				close(o.done)
			}
		}
	}
}

// gather returns the next batch: what is there, and if nobody waits for that, what
// comes within the delay.
func (s *boltStore) gather() []*op {
	var delay <-chan time.Time
	for {
		s.mu.Lock()
		if s.urgent {
			s.mu.Unlock()
			s.pacer.wait()
			return s.take()
		}
		if len(s.queue) > 0 && delay == nil {
			delay = time.After(settleDelay)
		}
		s.mu.Unlock()
		select {
		case <-s.signal:
		case <-delay:
			return s.take()
		}
	}
}

// take empties the queue.
func (s *boltStore) take() []*op {
	s.mu.Lock()
	batch := s.queue
	s.queue, s.urgent = nil, false
	s.mu.Unlock()
	s.pacer.begin(batch)
	return batch
}

// commit writes a batch in one transaction. After a failure nothing is written any
// more: a sync that failed may have lost pages that a later one reports as safe.
func (s *boltStore) commit(batch []*op) error {
	if s.decided(batch) {
		return nil
	}
	err := s.update(func(tx *bbolt.Tx) error {
		for _, o := range batch {
			if err := s.apply(tx, o); err != nil {
				return err
			}
		}
		return s.history.trim(tx, time.Now())
	})
	s.syncs.Add(1)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("the inbox can't be written, and takes nothing in until usher is restarted: %w", err)
	s.broken.Store(&err)
	s.tails.Purge()
	s.log.Error("inbox broken", "err", err)
	return err
}

// decided answers a batch of nothing but copies of tails that are durable and in
// memory, and says whether it was one.
func (s *boltStore) decided(batch []*op) bool {
	for _, o := range batch {
		if o.stop {
			continue
		}
		if o.webhook == nil {
			return false
		}
		t, ok := s.tails.Get(o.webhook.Lane)
		if !ok || !s.holds(t, o.webhook) {
			return false
		}
		o.result.duplicateOf = t.Webhook
	}
	return true
}
