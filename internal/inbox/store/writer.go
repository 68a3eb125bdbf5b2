package store

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"usher/webhookgate"
)

// An op is something to write. The writer calls need, then decide in the transaction (several times, if the transaction
// must be run again), and done at the end, once.
type op interface {
	// need says what must be locked and read before a decision. False: nobody waits for this op any more.
	need(*needs) bool
	// decide changes the rows in w. It must not change anything else that outlives it.
	decide(w *work)
	// done gets nil if the transaction was committed, or why it was not.
	done(err error)
	// weight is how many bytes it writes.
	weight() int64
}

// A batch has at most this many ops, and bytes.
const (
	maxOps   = 256
	maxBatch = 8 << 20
)

// needs is what the ops of a batch must see.
type needs struct {
	lanes   map[Key]webhookgate.Lane // to be locked; made if they are new and named
	next    map[Key]int64            // the first that waits, but for that one
	rest    map[Key]bool             // what is parked, sent again or refused
	queue   map[Key]bool             // all that wait
	rows    map[int64]bool           // webhooks by number
	seen    []seenID
	refused [][]byte // digests of refused webhooks
	count   int64    // how many numbers for new webhooks
	claim   []claim
	body    int64 // contents up to that size are read with what comes next
}

func (n *needs) lane(k Key) {
	if _, named := n.lanes[k]; !named {
		n.lanes[k] = webhookgate.Lane{}
	}
}

// nobody says whether a lane has no name. Each has a tenant, or else a type.
func nobody(l webhookgate.Lane) bool { return l.Tenant == "" && l.Type == "" }

// work is what a batch has read, and changes.
type work struct {
	s       *Store
	now     int64
	asked   time.Time // before the transaction began
	lanes   map[Key]*lane
	next    map[Key]*Webhook
	rest    map[Key][]*Webhook
	queue   map[Key][]*Webhook
	rows    map[int64]*Webhook    // all that were read, by number
	seen    map[seenID][]*seenRow // one for each body that the id came with
	refused map[string]*Webhook   // those that nobody has dealt with, by digest
	numbers []int64
	claimed [][]Key // the lanes that each claim found

	added   []*Webhook // to be inserted
	changed map[int64]*Webhook
	taken   []*snapshotRow
	ids     []*seenRow
	gone    []int64 // webhooks to delete
	extra   []func(Tx)
	bytes   int64 // by how much this batch changes what waits or is parked
}

func newWork(s *Store) *work {
	return &work{
		s: s, asked: time.Now(), lanes: make(map[Key]*lane), next: make(map[Key]*Webhook), rest: make(map[Key][]*Webhook),
		queue: make(map[Key][]*Webhook), rows: make(map[int64]*Webhook), seen: make(map[seenID][]*seenRow),
		refused: make(map[string]*Webhook), changed: make(map[int64]*Webhook),
	}
}

func (w *work) time() time.Time { return moment(w.now) }

// row returns the one copy of a webhook that this batch works on.
func (w *work) row(h *Webhook) *Webhook {
	known := w.rows[h.ID]
	if known == nil {
		w.rows[h.ID] = h
		return h
	}
	if !known.whole && h.whole {
		known.Header, known.Body, known.whole = h.Header, h.Body, true
	}
	return known
}

// number is that of the next new webhook.
func (w *work) number() int64 {
	n := w.numbers[0]
	w.numbers = w.numbers[1:]
	return n
}

// change queues an update of a webhook's status.
func (w *work) change(h *Webhook) { w.changed[h.ID] = h }

// move takes a webhook from one state into another.
func (w *work) move(l *lane, h *Webhook, state State, why string) {
	before := l.bytes
	l.leave(h)
	l.enter(h, state, why, w.time())
	w.bytes += l.bytes - before
	w.change(h)
	if state.Finished() {
		w.s.backlog.Store(true)
	}
}

// submit hands an op to the writer. It waits while the writer has much to do.
func (s *Store) submit(o op) {
	select {
	case s.ops <- o:
	case <-s.run.Done():
		o.done(ErrClosed)
	}
}

// await submits an op before ctx ends, and waits for its reply. If it gives up waiting, the op may still be done.
func await[T any](ctx context.Context, giveUp <-chan struct{}, s *Store, o op, reply chan T) (answer T, err error) {
	select {
	case s.ops <- o:
	case <-ctx.Done():
		return answer, ctx.Err()
	case <-s.run.Done():
		return answer, ErrClosed
	}
	select {
	case answer = <-reply:
		return answer, nil
	case <-giveUp:
		return answer, ctx.Err()
	case <-s.closed:
	}
	select {
	case answer = <-reply:
		return answer, nil
	default:
		return answer, ErrClosed
	}
}

// await is for an op that must be done, or not be done, when it returns.
func (s *Store) await(ctx context.Context, o op, reply chan error) error {
	failure, err := await(ctx, nil, s, o, reply)
	if err != nil {
		return err
	}
	return failure
}

// Queued is how many operations wait for the writer.
func (s *Store) Queued() int { return len(s.ops) }

// ErrClosed says that the store takes nothing any more.
var ErrClosed = errors.New("the inbox is closed")

// write is the writer: one goroutine, one transaction at a time.
func (s *Store) write() {
	defer close(s.closed)
	s.look()
	close(s.opened)
	pause := time.Duration(0)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var batch []op
		select {
		case o := <-s.ops:
			if s.jumped {
				s.look()
			}
			batch = s.gather(o)
		case i := <-s.imports:
			i.reply <- i.run()
			continue
		case <-tick.C:
			if s.cfg.Courier == nil || s.health.get() != nil {
				s.look() // nobody else may write anything, and find out whether the database is there
			}
			if s.health.get() == nil {
				s.cfg.Engine.Tidy()
				s.sweep()
			}
			continue
		case <-s.run.Done():
			s.drain()
			return
		}
		err := s.commit(batch)
		if err == nil {
			pause = 0
			if (s.backlog.Load() || s.overflow.Load()) && time.Since(s.swept) > sweepEach {
				s.sweep()
			}
			continue
		}
		// An outage: not as fast as we can.
		pause = min(max(2*pause, 10*time.Millisecond), time.Second)
		select {
		case <-time.After(pause):
		case <-s.run.Done():
		}
	}
}

func (h *health) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.began = time.Now()
}

// look reads the platforms, and finds out whether the database can be written. After its clock has jumped, it corrects the times of
// lanes: those that were written before may be far ahead.
func (s *Store) look() {
	err := s.cfg.Engine.Write(func(tx Tx) error {
		var now int64
		tx.Queue("platforms", s.platforms.scan)
		tx.Now(&now)
		asked := time.Now()
		if err := tx.Send(); err != nil {
			return err
		}
		now = s.shift(now)
		s.see(now, asked)
		if s.jumped {
			after := func(d time.Duration) int64 { return now + int64(d/time.Microsecond) }
			// A leave that another replica gets at this moment may end a little later than it could by our reading of the clock.
			tx.Queue("lane_due_repair", nil, now, after(longestWish), after(2*lastPause), s.platforms.hashes(nil), after(2*s.lease))
		}
		tx.Queue("touch", nil)
		return nil
	})
	s.jumped = s.jumped && err != nil
	s.health.note(s.cfg.Log, err)
}

func (h *health) get() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// gather returns what waits to be written, beginning with o. An action is the last: it may delete rows, and that is done
// after everything else of its transaction.
func (s *Store) gather(o op) []op {
	batch, weight := []op{o}, o.weight()
	for len(batch) < maxOps && weight < maxBatch {
		if _, ok := o.(*act); ok {
			break
		}
		select {
		case o = <-s.ops:
			batch, weight = append(batch, o), weight+o.weight()
		default:
			return batch
		}
	}
	return batch
}

// drain writes what was submitted before the end, and refuses what comes later.
func (s *Store) drain() {
	for {
		select {
		case o := <-s.ops:
			if s.health.get() != nil {
				o.done(ErrClosed)
				continue
			}
			s.commit(s.gather(o))
		default:
			return
		}
	}
}

// commit writes a batch, tells each op what became of it, and returns why the database failed. An op that fails
// by its own fault does not fail the others: the batch is split until it is alone.
func (s *Store) commit(batch []op) error {
	err := s.transact(batch)
	var guilty *GuiltyError
	if errors.As(err, &guilty) && len(batch) > 1 {
		half := len(batch) / 2
		return errors.Join(s.commit(batch[:half]), s.commit(batch[half:]))
	}
	for _, o := range batch {
		o.done(err)
	}
	if errors.As(err, &guilty) {
		s.cfg.Log.Error("the database refuses what usher wants to write", "err", err)
		return nil // the database is well
	}
	return err
}

// transact runs one transaction: it locks and reads, decides, and writes.
func (s *Store) transact(batch []op) error {
	need, live := s.needsOf(batch)
	if len(live) == 0 {
		return nil
	}
	s.health.begin()
	err := s.run1(need, live)
	var guilty *GuiltyError
	if errors.As(err, &guilty) {
		s.health.note(s.cfg.Log, nil) // the database is well
	} else {
		s.health.note(s.cfg.Log, err)
	}
	return err
}

func (s *Store) needsOf(batch []op) (*needs, []op) {
	n := &needs{lanes: make(map[Key]webhookgate.Lane), next: make(map[Key]int64), rest: make(map[Key]bool), queue: make(map[Key]bool), rows: make(map[int64]bool)}
	var live []op
	for _, o := range batch {
		if o.need(n) {
			live = append(live, o)
		}
	}
	for _, lane := range n.lanes {
		s.platforms.learn(lane.Platform)
	}
	return n, live
}

func (s *Store) run1(n *needs, live []op) error {
	var w *work
	err := s.cfg.Engine.Write(func(tx Tx) error {
		w = newWork(s)
		if err := w.load(tx, n); err != nil {
			return err
		}
		s.see(w.now, w.asked)
		for _, o := range live {
			o.decide(w)
		}
		w.save(tx)
		return nil
	})
	if errors.Is(err, ErrDoubt) {
		// The senders get 503 and send again. If the transaction was committed, their next try is a duplicate: the server keeps its
		// lanes locked until then. Entitlements read these tenants again.
		for _, name := range n.lanes {
			s.cfg.Changed(name.Tenant)
		}
	}
	if err != nil {
		return err
	}
	s.settle(w)
	return nil
}

// see looks at the database's clock.
func (s *Store) see(now int64, asked time.Time) {
	if s.clock.see(now, asked) {
		s.cfg.Log.Warn("the database's clock has jumped; what others deliver is left to them for a while")
		s.jumped = true
	}
}

// settle makes what was committed visible in memory, before senders are answered.
func (s *Store) settle(w *work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cache.changes++
	s.cache.used += w.bytes
	s.cache.added += max(0, w.bytes)
}

// keys are those of the lanes that are locked, in the order in which all lock them.
func (w *work) keys() []Key {
	return slices.SortedFunc(maps.Keys(w.lanes), func(a, b Key) int { return bytes.Compare(a[:], b[:]) })
}

// load locks and reads what the ops need.
func (w *work) load(tx Tx, n *needs) error {
	s := w.s
	keys := slices.SortedFunc(maps.Keys(n.lanes), func(a, b Key) int { return bytes.Compare(a[:], b[:]) })
	w.lock(tx, keys)
	if !s.cfg.Engine.Shared() { // in a file this costs nothing, and then it is known which lanes have more
		if err := tx.Send(); err != nil {
			return err
		}
	}
	tx.Now(&w.now)
	for _, c := range n.claim {
		w.claimed = append(w.claimed, nil)
		c.queue(tx, w, len(w.claimed)-1)
	}
	w.draw(tx, n.count)
	next := maps.Clone(n.next)
	maps.DeleteFunc(next, func(k Key, _ int64) bool { return w.lanes[k] != nil && w.lanes[k].waiting <= 1 })
	w.queueNext(tx, next, n.body)
	if len(n.rows) > 0 {
		tx.Queue("webhooks_lock", func(r Row) error {
			h, err := s.scanWebhook(r, true)
			if err == nil {
				w.row(h)
			}
			return err
		}, slices.Sorted(maps.Keys(n.rows)))
	}
	w.look(tx, n)
	if err := tx.Send(); err != nil {
		return err
	}
	// What most batches do not need.
	if err := w.found(tx, n, keys); err != nil {
		return err
	}
	heads := make(map[Key]int64)
	for i := range w.claimed {
		w.claimed[i] = n.claim[i].first(w, w.claimed[i])
		for _, k := range w.claimed[i] {
			heads[k] = 0
		}
	}
	w.queueNext(tx, heads, n.body)
	rest := maps.Clone(n.rest)
	maps.DeleteFunc(rest, func(k Key, _ bool) bool { l := w.lanes[k]; return l == nil || l.parked+l.again+l.refused == 0 })
	w.collect(tx, "lane_rest", rest, w.rest)
	if len(heads)+len(rest) > 0 {
		if err := tx.Send(); err != nil {
			return err
		}
	}
	if s.cfg.Ahead != nil {
		w.now += int64(s.cfg.Ahead() / time.Microsecond)
	}
	return nil
}

// look queues a look at what waits, was refused or was seen before, as far as the ops need it.
func (w *work) look(tx Tx, n *needs) {
	clear(w.queue)
	clear(w.seen)
	w.collect(tx, "lane_queue", n.queue, w.queue)
	if len(n.refused) > 0 {
		tx.Queue("refused_find", func(r Row) error {
			h, err := w.s.scanWebhook(r, false)
			if err == nil {
				h = w.row(h)
				w.refused[string(h.digest)] = h
			}
			return err
		}, n.refused)
	}
	if len(n.seen) > 0 {
		var lanes, ids [][]byte
		for _, id := range n.seen {
			lanes, ids = append(lanes, id.lane[:]), append(ids, id.hash[:])
		}
		tx.Queue("seen_find", func(r Row) error {
			id, err := scanSeen(r)
			w.seen[id.seenID] = append(w.seen[id.seenID], id)
			return err
		}, lanes, ids)
	}
}

// collect queues a look at webhooks of lanes.
func (w *work) collect(tx Tx, name string, wanted map[Key]bool, into map[Key][]*Webhook) {
	var keys [][]byte
	for k := range wanted {
		keys = append(keys, bytes.Clone(k[:]))
	}
	if len(keys) == 0 {
		return
	}
	tx.Queue(name, func(r Row) error {
		h, err := w.s.scanWebhook(r, false)
		if err == nil {
			h = w.row(h)
			into[h.lane] = append(into[h.lane], h)
		}
		return err
	}, keys)
}

// lock queues the lock of lanes, in the order of their keys.
func (w *work) lock(tx Tx, keys []Key) {
	if len(keys) == 0 {
		return
	}
	var all [][]byte
	for _, k := range keys {
		all = append(all, k[:])
	}
	tx.Queue("lane_lock", func(r Row) error {
		l, err := w.s.scanLane(r)
		w.lanes[l.key] = l
		return err
	}, all)
}

// found makes the lanes that are new, and locks them.
func (w *work) found(tx Tx, n *needs, keys []Key) error {
	missing := slices.DeleteFunc(keys, func(k Key) bool { return w.lanes[k] != nil || nobody(n.lanes[k]) })
	if len(missing) == 0 {
		return nil
	}
	addLanes(tx, n, missing)
	w.lock(tx, missing)
	if w.s.cfg.Engine.Shared() {
		w.draw(tx, n.count) // after the locks: those of a lane are in its order
		w.look(tx, n)       // another replica may have made the lane meanwhile, and stored something
	}
	return tx.Send()
}

// addLanes queues what makes lanes, unless they are there.
func addLanes(tx Tx, n *needs, keys []Key) {
	queueRows(tx, "platform_add", keys, func(k Key) []any { return []any{k[16:], n.lanes[k].Platform} })
	queueRows(tx, "lane_add", keys, func(k Key) []any { return []any{k[:], n.lanes[k].Tenant, n.lanes[k].Type} })
}

// draw queues a look for numbers for new webhooks.
func (w *work) draw(tx Tx, count int64) {
	w.numbers = nil
	if count == 0 {
		return
	}
	tx.Queue("numbers", func(r Row) error {
		var first, many int64
		err := r.Scan(&first, &many)
		for n := range many {
			w.numbers = append(w.numbers, first+n)
		}
		return err
	}, count)
}

// queueNext queues a look at the first webhook that waits in each lane, but for one of them.
func (w *work) queueNext(tx Tx, of map[Key]int64, body int64) {
	if len(of) == 0 {
		return
	}
	var keys [][]byte
	var not []int64
	for k, seq := range of {
		keys, not = append(keys, bytes.Clone(k[:])), append(not, seq)
	}
	tx.Queue("next", func(r Row) error {
		h, err := w.s.scanWebhook(r, true)
		if err == nil {
			h = w.row(h)
			w.next[h.lane] = h
		}
		return err
	}, keys, not, body)
}

// save queues what the ops have changed.
func (w *work) save(tx Tx) {
	var lanes []*lane
	for _, k := range w.keys() {
		if l := w.lanes[k]; l.changed {
			lanes = append(lanes, l)
		}
	}
	queueRows(tx, "lane_save", lanes, (*lane).columns)
	insertWebhooks(tx, w.added)
	for _, h := range w.added {
		delete(w.changed, h.ID)
	}
	queueRows(tx, "webhook_save", slices.Sorted(maps.Keys(w.changed)), func(id int64) []any {
		h := w.changed[id]
		return []any{h.State.number(), h.order(), h.Changed.UnixMicro(), h.encodeStatus(), id}
	})
	// A batch may have several of a tenant or of an id: the last counts.
	queueRows(tx, "snapshot_save", last(w.taken, func(r *snapshotRow) Key { return r.lane }), (*snapshotRow).columns)
	queueRows(tx, "seen_save", last(w.ids, func(r *seenRow) string { return string(slices.Concat(r.lane[:], r.hash[:], r.digest)) }), (*seenRow).columns)
	if len(w.gone) > 0 {
		tx.Queue("webhook_delete", nil, w.gone)
		tx.Queue("content_delete", nil, w.gone)
	}
	for _, f := range w.extra {
		f(tx)
	}
	if idle := len(lanes)+len(w.added)+len(w.changed)+len(w.ids)+len(w.gone)+len(w.extra) == 0; idle && w.s.health.get() != nil {
		tx.Queue("touch", nil) // a transaction that writes nothing does not show that an outage has ended
	}
}

// insertWebhooks queues new rows.
func insertWebhooks(tx Tx, all []*Webhook) {
	queueRows(tx, "webhook_add", all, func(h *Webhook) []any {
		lane := h.lane[:]
		if h.lane == (Key{}) {
			lane = nil // it belongs to none
		}
		return []any{h.ID, h.Webhook, lane, h.Type, h.snapshot, h.digest, h.size, h.Received.UnixMicro(), h.State.number(), h.order(), h.Changed.UnixMicro(), h.encodeStatus()}
	})
	queueRows(tx, "content_add", all, func(h *Webhook) []any { return []any{h.ID, encodeHeader(h.Header), h.Body} })
}

// last returns of all that have the same key the last one.
func last[T any, K comparable](all []T, key func(T) K) []T {
	at := make(map[K]int, len(all))
	for i, one := range all {
		at[key(one)] = i
	}
	i := -1
	return slices.DeleteFunc(slices.Clone(all), func(one T) bool { i++; return at[key(one)] != i })
}
