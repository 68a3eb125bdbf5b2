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

// The writer is one goroutine of each process, and all that is written goes through it. Callers submit operations. The
// writer gathers those that have arrived, and runs one transaction for all of them:
//
//	collectNeeds   each op says what it must see (need)
//	load           locks the lanes in the order of their keys, and reads
//	               each op changes the rows in memory (decide)
//	save           queues the changed rows; the engine sends them together with the commit
//	               each op answers its caller (done)

// An op is an operation of the writer.
type op interface {
	// need says what must be locked and read before the decision. False: nobody waits for this op any more, skip it.
	need(*needs) bool
	// decide changes the rows in b. A transaction may run again after an error, so decide may be called several times, and
	// must not change anything else in a way that the next call cannot undo.
	decide(b *batch)
	// done is called once, at the end: with nil if the transaction was committed, else with the reason why it was not.
	done(err error)
	// weight is about how many bytes the op writes.
	weight() int64
}

// A batch has at most this many ops, and bytes.
const (
	maxBatchOps   = 256
	maxBatchBytes = 8 << 20
)

// needs says what the ops of a batch must see.
type needs struct {
	lanes        map[Key]webhookgate.Lane // lanes to lock; a new one is made if its name is given here
	nextExcept   map[Key]int64            // of these lanes the first waiting webhook, not counting this one
	supersedable map[Key]bool             // of these lanes the webhooks that are parked or were sent again: an accepted snapshot may supersede them
	refused      map[Key]bool             // of these lanes the refused webhooks; there are few, while a lane may have very many that are parked
	waiting      map[Key]bool             // of these lanes all waiting webhooks
	webhooks     map[int64]bool           // these webhooks, to lock and read
	maxBody      int64                    // up to this size the content is read together with a lane's first waiting webhook

	seenIDs        []seenID
	refusedDigests [][]byte // refused webhooks with these digests
	newNumbers     int64    // how many new webhooks need a number
	claims         []claimQuery
}

// lane asks for a lane. It is not made if it does not exist.
func (n *needs) lane(k Key) {
	if _, named := n.lanes[k]; !named {
		n.lanes[k] = webhookgate.Lane{}
	}
}

// unnamed says whether a lane's name is not given: each lane has a tenant, or else an event type.
func unnamed(l webhookgate.Lane) bool { return l.Tenant == "" && l.Type == "" }

// A batch has what one transaction of the writer has read, and what it changes.
type batch struct {
	s       *Store
	now     int64     // the database's time
	askedAt time.Time // our time before the transaction began; leases count from here

	// What was read; see needs. Each webhook is here once, whichever of the maps it is in.
	lanes           map[Key]*lane
	next            map[Key]*Webhook
	supersedable    map[Key][]*Webhook
	waiting         map[Key][]*Webhook
	webhooks        map[int64]*Webhook    // all webhooks that were read
	seen            map[seenID][]*seenRow // one row for each body that the id came with
	refusedByDigest map[string]*Webhook   // only those that nobody has dealt with
	numbers         []int64               // free numbers for new webhooks
	claimed         [][]Key               // the lanes that each claim found

	// What the ops change, beside the lanes that are dirty.
	added       []*Webhook
	changed     map[int64]*Webhook
	deleted     []int64
	snapshots   []*snapshotRow
	seenChanges []*seenRow
	statements  []func(Tx) // whatever else an action writes
	bytesAdded  int64      // by how much the bytes that wait or are parked change; negative: they become less
	recounts    int64      // figureCache.recounts at the batch's beginning
}

func newBatch(s *Store) *batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &batch{
		s: s, recounts: s.figures.recounts, askedAt: time.Now(), lanes: make(map[Key]*lane), next: make(map[Key]*Webhook), supersedable: make(map[Key][]*Webhook),
		waiting: make(map[Key][]*Webhook), webhooks: make(map[int64]*Webhook), seen: make(map[seenID][]*seenRow),
		refusedByDigest: make(map[string]*Webhook), changed: make(map[int64]*Webhook),
	}
}

func (b *batch) time() time.Time { return moment(b.now) }

// intern returns the one copy of a webhook that this batch works on. Two statements may have read the same webhook, and a
// change must not get lost in the other copy.
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

// nextNumber returns the number of the next new webhook.
func (b *batch) nextNumber() int64 {
	n := b.numbers[0]
	b.numbers = b.numbers[1:]
	return n
}

// markChanged has a webhook's status updated.
func (b *batch) markChanged(h *Webhook) { b.changed[h.ID] = h }

// move takes a webhook from its state into another one.
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

// submit hands an op to the writer. It blocks while the writer's queue is full.
func (s *Store) submit(o op) {
	select {
	case s.ops <- o:
	case <-s.run.Done():
		o.done(ErrClosed)
	}
}

// await submits an op, unless ctx ends before there is room in the writer's queue, and waits for its reply until giveUp is
// closed. After giving up the op may still be done. Without giveUp it is done when await returns, or will never be.
func (s *Store) await(ctx context.Context, giveUp <-chan struct{}, o op, reply chan error) error {
	select {
	case s.ops <- o:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.run.Done():
		return ErrClosed
	}
	select {
	case err := <-reply:
		return err
	case <-giveUp:
		return ctx.Err()
	case <-s.closed:
	}
	select {
	case err := <-reply:
		return err
	default:
		return ErrClosed
	}
}

// Queued is how many operations wait for the writer.
func (s *Store) Queued() int { return len(s.ops) }

// ErrClosed says that the store has been closed.
var ErrClosed = errors.New("the inbox is closed")

// runWriter runs one transaction after the other until the store is closed.
func (s *Store) runWriter() {
	defer close(s.closed)
	s.checkDatabase()
	close(s.opened)
	backoff := time.Duration(0)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var ops []op
		select {
		case o := <-s.ops:
			if s.clockJumped {
				s.checkDatabase()
			}
			ops = s.gather(o)
		case i := <-s.imports:
			i.reply <- i.run()
			continue
		case <-tick.C:
			if s.idle || s.health.lastErr() != nil {
				s.checkDatabase() // nothing else shows an outage, or its end
			}
			s.idle = true
			if s.health.lastErr() == nil {
				s.cfg.Engine.Maintain()
				s.sweep()
			}
			continue
		case <-s.run.Done():
			s.drain()
			return
		}
		err := s.commit(ops)
		if err == nil {
			backoff = 0
			if (s.sweepSoon.Load() || s.sweepRefusedSoon.Load()) && time.Since(s.lastSweep) > sweepInterval {
				s.sweep()
			}
			continue
		}
		// In an outage ops fail at once, and their callers submit them again: this must not spin.
		backoff = min(max(2*backoff, 10*time.Millisecond), time.Second)
		select {
		case <-time.After(backoff):
		case <-s.run.Done():
		}
	}
}

// checkDatabase finds out whether the database can be reached, and reads the platforms. To open it, or after an outage, it also
// writes. After the database's clock has jumped, it corrects the times that lanes have: those that were written by the old clock
// may be far ahead.
func (s *Store) checkDatabase() {
	err := s.write(func(tx Tx) error {
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
			// No time is further ahead than these. Leases get twice their time: another replica may get one at this moment, with
			// a later reading of the clock.
			tx.Queue("lane_due_repair", nil, now, now+micros(maxRetryAfter), now+micros(2*maxBackoff), s.platforms.hashes(nil), now+micros(2*s.leaseTime))
		}
		if s.health.unproven() {
			tx.Queue("touch", nil)
		}
		return nil
	})
	s.clockJumped = s.clockJumped && err != nil
}

// gather returns the ops for one transaction: o, and those that wait in the queue. A funcOp is the last one: it may delete
// rows, and save does that after everything else.
func (s *Store) gather(o op) []op {
	ops, weight := []op{o}, o.weight()
	for len(ops) < maxBatchOps && weight < maxBatchBytes {
		if _, ok := o.(*funcOp); ok {
			break
		}
		select {
		case o = <-s.ops:
			ops, weight = append(ops, o), weight+o.weight()
		default:
			return ops
		}
	}
	return ops
}

// drain writes the ops that were submitted before the store was closed.
func (s *Store) drain() {
	for {
		select {
		case o := <-s.ops:
			if s.health.lastErr() != nil {
				o.done(ErrClosed)
				continue
			}
			s.commit(s.gather(o))
		default:
			return
		}
	}
}

// commit runs a transaction for ops and calls their done. It returns an error if the database failed. If the database refuses
// a statement, one op is to blame: commit splits the ops in halves until that op is alone, and only that one fails.
func (s *Store) commit(ops []op) error {
	err := s.transact(ops)
	var refused *StatementError
	if errors.As(err, &refused) && len(ops) > 1 {
		half := len(ops) / 2
		return errors.Join(s.commit(ops[:half]), s.commit(ops[half:]))
	}
	for _, o := range ops {
		o.done(err)
	}
	if errors.As(err, &refused) {
		s.cfg.Log.Error("the database refuses what usher wants to write", "err", err)
		return nil
	}
	return err
}

// transact runs one transaction for ops: it locks and reads, decides, and writes.
func (s *Store) transact(ops []op) error {
	n, live := s.collectNeeds(ops)
	if len(live) == 0 {
		return nil
	}
	var b *batch
	err := s.write(func(tx Tx) error {
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
	// After ErrDoubt the senders get 503 and send again. If the transaction was committed after all, that is a duplicate: the server
	// keeps these lanes locked until it has ended the transaction. Entitlements go on as before: no sender has a 200 for it.
	if err == nil {
		s.countChange(b)
	}
	return err
}

// collectNeeds asks each op what it needs, and returns the ops that somebody still waits for.
func (s *Store) collectNeeds(ops []op) (*needs, []op) {
	n := &needs{lanes: make(map[Key]webhookgate.Lane), nextExcept: make(map[Key]int64), supersedable: make(map[Key]bool), refused: make(map[Key]bool), waiting: make(map[Key]bool), webhooks: make(map[int64]bool)}
	var live []op
	for _, o := range ops {
		if o.need(n) {
			live = append(live, o)
		}
	}
	for _, lane := range n.lanes {
		s.platforms.learn(lane.Platform)
	}
	return n, live
}

// countChange has a committed batch show in the figures, before callers get their answers.
func (s *Store) countChange(b *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := &s.figures.stats; f.Pending+f.Parked+f.Tenants <= s.cfg.Limits.AlwaysCounted {
		s.figures.changeCount++
	}
	s.figures.bytesEverAdded += max(0, b.bytesAdded)
	if s.figures.recounts == b.recounts || b.bytesAdded > 0 { // else a count may have seen already that there are less
		s.figures.used += b.bytesAdded
	}
}

// sortedKeys returns the keys of lanes in the order in which every process locks them. So no two wait for each other.
func sortedKeys[V any](lanes map[Key]V) []Key {
	return slices.SortedFunc(maps.Keys(lanes), func(a, b Key) int { return bytes.Compare(a[:], b[:]) })
}

// load locks and reads what the ops need. Usually that is one round trip.
func (b *batch) load(tx Tx, n *needs) error {
	s := b.s
	keys := sortedKeys(n.lanes)
	b.queueLocks(tx, keys)
	if !s.cfg.Engine.Shared() { // in a file a round trip costs nothing, and then b.lanes says which lanes have a next webhook
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
	// Most batches need nothing of what follows: lanes that are new, the first webhooks of claimed lanes, supersedable webhooks.
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
	supersedable := make(map[Key]bool)
	for k, l := range b.lanes {
		if n.supersedable[k] && l.parked+l.resent > 0 || n.refused[k] && l.refused > 0 {
			supersedable[k] = true
		}
	}
	b.queueWebhooks(tx, "lane_supersedable", supersedable, b.supersedable)
	if len(heads)+len(supersedable) > 0 {
		if err := tx.Send(); err != nil {
			return err
		}
	}
	b.now = s.applyOffset(b.now)
	return nil
}

// queueLocks queues the lock of lanes.
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

// createLanes makes the named lanes that do not exist yet, and locks them.
func (b *batch) createLanes(tx Tx, n *needs, keys []Key) error {
	missing := slices.DeleteFunc(keys, func(k Key) bool { return b.lanes[k] != nil || unnamed(n.lanes[k]) })
	if len(missing) == 0 {
		return nil
	}
	queueRows(tx, "platform_add", missing, func(k Key) []any { return []any{k[16:], n.lanes[k].Platform} })
	queueRows(tx, "lane_add", missing, func(k Key) []any { return []any{k[:], n.lanes[k].Tenant, n.lanes[k].Type} })
	b.queueLocks(tx, missing)
	if b.s.cfg.Engine.Shared() {
		// Another replica may have made such a lane meanwhile, and stored a webhook in it. Our numbers must be higher than that
		// webhook's, so they are taken once more, now that the lane is locked.
		b.queueNumbers(tx, n.newNumbers)
		b.queueLookups(tx, n)
	}
	return tx.Send()
}

// queueNumbers queues the reading of numbers for new webhooks. It comes after the locks, so that the numbers of a lane are in
// its order.
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

// queueNext queues the reading of the first waiting webhook of each lane, not counting one of them.
func (b *batch) queueNext(tx Tx, lanes map[Key]int64, maxBody int64) {
	if len(lanes) == 0 {
		return
	}
	var keys [][]byte
	var except []int64
	for k, seq := range lanes {
		keys, except = append(keys, bytes.Clone(k[:])), append(except, seq)
	}
	tx.Queue("next_waiting", func(r Row) error {
		h, err := b.s.scanWebhook(r, true)
		if err == nil {
			h = b.intern(h)
			b.next[h.lane] = h
		}
		return err
	}, keys, except, maxBody)
}

// queueLookups queues the reading of waiting webhooks, refused webhooks and signed ids.
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

// queueWebhooks queues a statement that returns webhooks of lanes.
func (b *batch) queueWebhooks(tx Tx, statement string, lanes map[Key]bool, into map[Key][]*Webhook) {
	var keys [][]byte
	for k := range lanes {
		keys = append(keys, bytes.Clone(k[:]))
	}
	if len(keys) == 0 {
		return
	}
	tx.Queue(statement, func(r Row) error {
		h, err := b.s.scanWebhook(r, false)
		if err == nil {
			h = b.intern(h)
			into[h.lane] = append(into[h.lane], h)
		}
		return err
	}, keys)
}

// save queues the statements that write what the ops have changed.
func (b *batch) save(tx Tx) {
	var lanes []*lane
	for _, k := range sortedKeys(b.lanes) {
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
	// A batch may have several rows for one tenant, or for one signed id: the last one counts.
	queueRows(tx, "snapshot_save", lastOfEach(b.snapshots, func(r *snapshotRow) Key { return r.lane }), (*snapshotRow).columns)
	queueRows(tx, "seen_save", lastOfEach(b.seenChanges, func(r *seenRow) string { return string(slices.Concat(r.lane[:], r.hash[:], r.digest)) }), (*seenRow).columns)
	if len(b.deleted) > 0 {
		tx.Queue("webhook_delete", nil, b.deleted)
		tx.Queue("content_delete", nil, b.deleted)
	}
	for _, queue := range b.statements {
		queue(tx)
	}
	if idle := len(lanes)+len(b.added)+len(b.changed)+len(b.seenChanges)+len(b.deleted)+len(b.statements) == 0; idle && b.s.health.unproven() {
		tx.Queue("touch", nil)
	}
}

// insertWebhooks queues new rows.
func insertWebhooks(tx Tx, all []*Webhook) {
	queueRows(tx, "webhook_add", all, func(h *Webhook) []any {
		lane := h.lane[:]
		if h.lane == (Key{}) {
			lane = nil // its tenant is not certain
		}
		return []any{h.ID, h.Webhook, lane, h.Type, h.snapshot, h.digest, h.size, h.Received.UnixMicro(), h.State.number(), h.position(), h.Changed.UnixMicro(), h.encodeStatus()}
	})
	queueRows(tx, "content_add", all, func(h *Webhook) []any { return []any{h.ID, encodeHeader(h.Header), h.Body} })
}

// lastOfEach returns the last element for each key, in their order.
func lastOfEach[T any, K comparable](all []T, key func(T) K) []T {
	last := make(map[K]int, len(all))
	for i, element := range all {
		last[key(element)] = i
	}
	i := -1
	return slices.DeleteFunc(slices.Clone(all), func(element T) bool { i++; return last[key(element)] != i })
}
