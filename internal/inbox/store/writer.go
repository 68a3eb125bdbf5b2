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
	decide(b *batch)
	// done gets nil if the transaction was committed, or why it was not.
	done(err error)
	// weight is how many bytes it writes.
	weight() int64
}

// A batch has at most this many ops, and bytes.
const (
	maxBatchOps   = 256
	maxBatchBytes = 8 << 20
)

// needs is what the ops of a batch must see.
type needs struct {
	lanes          map[Key]webhookgate.Lane // to be locked; made if they are new and named
	nextExcept     map[Key]int64            // the first that waits, but for that one
	supersedable   map[Key]bool             // what is parked, sent again or refused
	waiting        map[Key]bool             // all that wait
	webhooks       map[int64]bool           // webhooks by number
	seenIDs        []seenID
	refusedDigests [][]byte // digests of refused webhooks
	newNumbers     int64    // how many numbers for new webhooks
	claims         []claimQuery
	maxBody        int64 // contents up to that size are read with what comes next
}

func (n *needs) lane(k Key) {
	if _, named := n.lanes[k]; !named {
		n.lanes[k] = webhookgate.Lane{}
	}
}

// nobody says whether a lane has no name. Each has a tenant, or else a type.
func unnamed(l webhookgate.Lane) bool { return l.Tenant == "" && l.Type == "" }

// work is what a batch has read, and changes.
type batch struct {
	s               *Store
	now             int64
	askedAt         time.Time // before the transaction began
	lanes           map[Key]*lane
	next            map[Key]*Webhook
	supersedable    map[Key][]*Webhook
	waiting         map[Key][]*Webhook
	webhooks        map[int64]*Webhook    // all that were read, by number
	seen            map[seenID][]*seenRow // one for each body that the id came with
	refusedByDigest map[string]*Webhook   // those that nobody has dealt with, by digest
	numbers         []int64
	claimed         [][]Key // the lanes that each claim found

	added       []*Webhook // to be inserted
	changed     map[int64]*Webhook
	snapshots   []*snapshotRow
	seenChanges []*seenRow
	deleted     []int64 // webhooks to delete
	statements  []func(Tx)
	bytesAdded  int64 // by how much this batch changes what waits or is parked
}

func newBatch(s *Store) *batch {
	return &batch{
		s: s, askedAt: time.Now(), lanes: make(map[Key]*lane), next: make(map[Key]*Webhook), supersedable: make(map[Key][]*Webhook),
		waiting: make(map[Key][]*Webhook), webhooks: make(map[int64]*Webhook), seen: make(map[seenID][]*seenRow),
		refusedByDigest: make(map[string]*Webhook), changed: make(map[int64]*Webhook),
	}
}

func (b *batch) time() time.Time { return moment(b.now) }

// row returns the one copy of a webhook that this batch works on.
func (b *batch) intern(h *Webhook) *Webhook {
	known := b.webhooks[h.ID]
	if known == nil {
		b.webhooks[h.ID] = h
		return h
	}
	if !known.hasContent && h.hasContent {
		known.Header, known.Body, known.hasContent = h.Header, h.Body, true
	}
	return known
}

// number is that of the next new webhook.
func (b *batch) nextNumber() int64 {
	n := b.numbers[0]
	b.numbers = b.numbers[1:]
	return n
}

// change queues an update of a webhook's status.
func (b *batch) markChanged(h *Webhook) { b.changed[h.ID] = h }

// move takes a webhook from one state into another.
func (b *batch) move(l *lane, h *Webhook, state State, why string) {
	before := l.bytes
	l.countOut(h)
	l.countIn(h, state, why, b.time())
	b.bytesAdded += l.bytes - before
	b.markChanged(h)
	if state.Finished() {
		b.s.sweepSoon.Store(true)
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
func (s *Store) runWriter() {
	defer close(s.closed)
	s.checkDatabase()
	close(s.opened)
	pause := time.Duration(0)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var batch []op
		select {
		case o := <-s.ops:
			if s.clockJumped {
				s.checkDatabase()
			}
			batch = s.gather(o)
		case i := <-s.imports:
			i.reply <- i.run()
			continue
		case <-tick.C:
			if s.cfg.Courier == nil || s.health.lastErr() != nil {
				s.checkDatabase() // nobody else may write anything, and find out whether the database is there
			}
			if s.health.lastErr() == nil {
				s.cfg.Engine.Maintain()
				s.sweep()
			}
			continue
		case <-s.run.Done():
			s.drain()
			return
		}
		err := s.commitBatch(batch)
		if err == nil {
			pause = 0
			if (s.sweepSoon.Load() || s.sweepRefusedSoon.Load()) && time.Since(s.lastSweep) > sweepInterval {
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

func (h *health) beginTx() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.txBegan = time.Now()
}

// look reads the platforms, and finds out whether the database can be written. After its clock has jumped, it corrects the times of
// lanes: those that were written before may be far ahead.
func (s *Store) checkDatabase() {
	err := s.cfg.Engine.Write(func(tx Tx) error {
		var now int64
		tx.Queue("platforms", s.platforms.learnRow)
		tx.Now(&now)
		asked := time.Now()
		if err := tx.Send(); err != nil {
			return err
		}
		now = s.applyOffset(now)
		s.observeClock(now, asked)
		if s.clockJumped {
			after := func(d time.Duration) int64 { return now + int64(d/time.Microsecond) }
			// A leave that another replica gets at this moment may end a little later than it could by our reading of the clock.
			tx.Queue("lane_due_repair", nil, now, after(maxRetryAfter), after(2*maxBackoff), s.platforms.hashes(nil), after(2*s.leaseTime))
		}
		tx.Queue("touch", nil)
		return nil
	})
	s.clockJumped = s.clockJumped && err != nil
	s.health.record(s.cfg.Log, err)
}

func (h *health) lastErr() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// gather returns what waits to be written, beginning with o. An action is the last: it may delete rows, and that is done
// after everything else of its transaction.
func (s *Store) gather(o op) []op {
	batch, weight := []op{o}, o.weight()
	for len(batch) < maxBatchOps && weight < maxBatchBytes {
		if _, ok := o.(*funcOp); ok {
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
			if s.health.lastErr() != nil {
				o.done(ErrClosed)
				continue
			}
			s.commitBatch(s.gather(o))
		default:
			return
		}
	}
}

// commit writes a batch, tells each op what became of it, and returns why the database failed. An op that fails
// by its own fault does not fail the others: the batch is split until it is alone.
func (s *Store) commitBatch(batch []op) error {
	err := s.transact(batch)
	var guilty *StatementError
	if errors.As(err, &guilty) && len(batch) > 1 {
		half := len(batch) / 2
		return errors.Join(s.commitBatch(batch[:half]), s.commitBatch(batch[half:]))
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
	need, live := s.collectNeeds(batch)
	if len(live) == 0 {
		return nil
	}
	s.health.beginTx()
	err := s.decideAndWrite(need, live)
	var guilty *StatementError
	if errors.As(err, &guilty) {
		s.health.record(s.cfg.Log, nil) // the database is well
	} else {
		s.health.record(s.cfg.Log, err)
	}
	return err
}

func (s *Store) collectNeeds(batch []op) (*needs, []op) {
	n := &needs{lanes: make(map[Key]webhookgate.Lane), nextExcept: make(map[Key]int64), supersedable: make(map[Key]bool), waiting: make(map[Key]bool), webhooks: make(map[int64]bool)}
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

func (s *Store) decideAndWrite(n *needs, live []op) error {
	var b *batch
	err := s.cfg.Engine.Write(func(tx Tx) error {
		b = newBatch(s)
		if err := b.load(tx, n); err != nil {
			return err
		}
		s.observeClock(b.now, b.askedAt)
		for _, o := range live {
			o.decide(b)
		}
		b.save(tx)
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
	s.countChange(b)
	return nil
}

// see looks at the database's clock.
func (s *Store) observeClock(now int64, asked time.Time) {
	if s.clock.observe(now, asked) {
		s.cfg.Log.Warn("the database's clock has jumped; what others deliver is left to them for a while")
		s.clockJumped = true
	}
}

// settle makes what was committed visible in memory, before senders are answered.
func (s *Store) countChange(b *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.figures.changeCount++
	s.figures.used += b.bytesAdded
	s.figures.bytesEverAdded += max(0, b.bytesAdded)
}

// keys are those of the lanes that are locked, in the order in which all lock them.
func (b *batch) laneKeys() []Key {
	return slices.SortedFunc(maps.Keys(b.lanes), func(a, b Key) int { return bytes.Compare(a[:], b[:]) })
}

// load locks and reads what the ops need.
func (b *batch) load(tx Tx, n *needs) error {
	s := b.s
	keys := slices.SortedFunc(maps.Keys(n.lanes), func(a, b Key) int { return bytes.Compare(a[:], b[:]) })
	b.queueLocks(tx, keys)
	if !s.cfg.Engine.Shared() { // in a file this costs nothing, and then it is known which lanes have more
		if err := tx.Send(); err != nil {
			return err
		}
	}
	tx.Now(&b.now)
	for _, c := range n.claims {
		b.claimed = append(b.claimed, nil)
		c.queue(tx, b, len(b.claimed)-1)
	}
	b.queueNumbers(tx, n.newNumbers)
	next := maps.Clone(n.nextExcept)
	maps.DeleteFunc(next, func(k Key, _ int64) bool { return b.lanes[k] != nil && b.lanes[k].waiting <= 1 })
	b.queueNext(tx, next, n.maxBody)
	if len(n.webhooks) > 0 {
		tx.Queue("webhooks_lock", func(r Row) error {
			h, err := s.scanWebhook(r, true)
			if err == nil {
				b.intern(h)
			}
			return err
		}, slices.Sorted(maps.Keys(n.webhooks)))
	}
	b.queueLookups(tx, n)
	if err := tx.Send(); err != nil {
		return err
	}
	// What most batches do not need.
	if err := b.createLanes(tx, n, keys); err != nil {
		return err
	}
	heads := make(map[Key]int64)
	for i := range b.claimed {
		b.claimed[i] = n.claims[i].inTurn(b, b.claimed[i])
		for _, k := range b.claimed[i] {
			heads[k] = 0
		}
	}
	b.queueNext(tx, heads, n.maxBody)
	rest := maps.Clone(n.supersedable)
	maps.DeleteFunc(rest, func(k Key, _ bool) bool { l := b.lanes[k]; return l == nil || l.parked+l.resent+l.refused == 0 })
	b.queueWebhooks(tx, "lane_supersedable", rest, b.supersedable)
	if len(heads)+len(rest) > 0 {
		if err := tx.Send(); err != nil {
			return err
		}
	}
	if s.cfg.ClockOffset != nil {
		b.now += int64(s.cfg.ClockOffset() / time.Microsecond)
	}
	return nil
}

// look queues a look at what waits, was refused or was seen before, as far as the ops need it.
func (b *batch) queueLookups(tx Tx, n *needs) {
	clear(b.waiting)
	clear(b.seen)
	b.queueWebhooks(tx, "lane_waiting", n.waiting, b.waiting)
	if len(n.refusedDigests) > 0 {
		tx.Queue("refused_copies", func(r Row) error {
			h, err := b.s.scanWebhook(r, false)
			if err == nil {
				h = b.intern(h)
				b.refusedByDigest[string(h.digest)] = h
			}
			return err
		}, n.refusedDigests)
	}
	if len(n.seenIDs) > 0 {
		var lanes, ids [][]byte
		for _, id := range n.seenIDs {
			lanes, ids = append(lanes, id.lane[:]), append(ids, id.hash[:])
		}
		tx.Queue("seen_find", func(r Row) error {
			id, err := scanSeen(r)
			b.seen[id.seenID] = append(b.seen[id.seenID], id)
			return err
		}, lanes, ids)
	}
}

// collect queues a look at webhooks of lanes.
func (b *batch) queueWebhooks(tx Tx, name string, wanted map[Key]bool, into map[Key][]*Webhook) {
	var keys [][]byte
	for k := range wanted {
		keys = append(keys, bytes.Clone(k[:]))
	}
	if len(keys) == 0 {
		return
	}
	tx.Queue(name, func(r Row) error {
		h, err := b.s.scanWebhook(r, false)
		if err == nil {
			h = b.intern(h)
			into[h.lane] = append(into[h.lane], h)
		}
		return err
	}, keys)
}

// lock queues the lock of lanes, in the order of their keys.
func (b *batch) queueLocks(tx Tx, keys []Key) {
	if len(keys) == 0 {
		return
	}
	var all [][]byte
	for _, k := range keys {
		all = append(all, k[:])
	}
	tx.Queue("lane_lock", func(r Row) error {
		l, err := b.s.scanLane(r)
		b.lanes[l.key] = l
		return err
	}, all)
}

// found makes the lanes that are new, and locks them.
func (b *batch) createLanes(tx Tx, n *needs, keys []Key) error {
	missing := slices.DeleteFunc(keys, func(k Key) bool { return b.lanes[k] != nil || unnamed(n.lanes[k]) })
	if len(missing) == 0 {
		return nil
	}
	addLanes(tx, n, missing)
	b.queueLocks(tx, missing)
	if b.s.cfg.Engine.Shared() {
		b.queueNumbers(tx, n.newNumbers) // after the locks: those of a lane are in its order
		b.queueLookups(tx, n)            // another replica may have made the lane meanwhile, and stored something
	}
	return tx.Send()
}

// addLanes queues what makes lanes, unless they are there.
func addLanes(tx Tx, n *needs, keys []Key) {
	queueRows(tx, "platform_add", keys, func(k Key) []any { return []any{k[16:], n.lanes[k].Platform} })
	queueRows(tx, "lane_add", keys, func(k Key) []any { return []any{k[:], n.lanes[k].Tenant, n.lanes[k].Type} })
}

// draw queues a look for numbers for new webhooks.
func (b *batch) queueNumbers(tx Tx, count int64) {
	b.numbers = nil
	if count == 0 {
		return
	}
	tx.Queue("take_numbers", func(r Row) error {
		var first, many int64
		err := r.Scan(&first, &many)
		for n := range many {
			b.numbers = append(b.numbers, first+n)
		}
		return err
	}, count)
}

// queueNext queues a look at the first webhook that waits in each lane, but for one of them.
func (b *batch) queueNext(tx Tx, of map[Key]int64, body int64) {
	if len(of) == 0 {
		return
	}
	var keys [][]byte
	var not []int64
	for k, seq := range of {
		keys, not = append(keys, bytes.Clone(k[:])), append(not, seq)
	}
	tx.Queue("next_waiting", func(r Row) error {
		h, err := b.s.scanWebhook(r, true)
		if err == nil {
			h = b.intern(h)
			b.next[h.lane] = h
		}
		return err
	}, keys, not, body)
}

// save queues what the ops have changed.
func (b *batch) save(tx Tx) {
	var lanes []*lane
	for _, k := range b.laneKeys() {
		if l := b.lanes[k]; l.dirty {
			lanes = append(lanes, l)
		}
	}
	queueRows(tx, "lane_save", lanes, (*lane).columns)
	insertWebhooks(tx, b.added)
	for _, h := range b.added {
		delete(b.changed, h.ID)
	}
	queueRows(tx, "webhook_save", slices.Sorted(maps.Keys(b.changed)), func(id int64) []any {
		h := b.changed[id]
		return []any{h.State.number(), h.position(), h.Changed.UnixMicro(), h.encodeStatus(), id}
	})
	// A batch may have several of a tenant or of an id: the last counts.
	queueRows(tx, "snapshot_save", lastOfEach(b.snapshots, func(r *snapshotRow) Key { return r.lane }), (*snapshotRow).columns)
	queueRows(tx, "seen_save", lastOfEach(b.seenChanges, func(r *seenRow) string { return string(slices.Concat(r.lane[:], r.hash[:], r.digest)) }), (*seenRow).columns)
	if len(b.deleted) > 0 {
		tx.Queue("webhook_delete", nil, b.deleted)
		tx.Queue("content_delete", nil, b.deleted)
	}
	for _, f := range b.statements {
		f(tx)
	}
	if idle := len(lanes)+len(b.added)+len(b.changed)+len(b.seenChanges)+len(b.deleted)+len(b.statements) == 0; idle && b.s.health.lastErr() != nil {
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
		return []any{h.ID, h.Webhook, lane, h.Type, h.snapshot, h.digest, h.size, h.Received.UnixMicro(), h.State.number(), h.position(), h.Changed.UnixMicro(), h.encodeStatus()}
	})
	queueRows(tx, "content_add", all, func(h *Webhook) []any { return []any{h.ID, encodeHeader(h.Header), h.Body} })
}

// last returns of all that have the same key the last one.
func lastOfEach[T any, K comparable](all []T, key func(T) K) []T {
	at := make(map[K]int, len(all))
	for i, one := range all {
		at[key(one)] = i
	}
	i := -1
	return slices.DeleteFunc(slices.Clone(all), func(one T) bool { i++; return at[key(one)] != i })
}
