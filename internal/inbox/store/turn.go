package store

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"usher/internal/receiver"
	"usher/webhookgate"
)

// A sqlTurn loads and saves lanes.
type sqlTurn struct {
	turn
	s     *Store
	tx    Tx
	err   error // why a statement failed in the midst of a decision
	lanes map[Key]*lane

	numbers    []int64
	copies     map[string]*Webhook // refused webhooks by their digests
	statements []func(Tx)          // whatever else a work writes
	reserved   []func()
	byPerson   bool
	recounts   int64 // figureCache.recounts at the beginning
}

func (s *Store) newTurn(tx Tx) *sqlTurn {
	t := &sqlTurn{s: s, tx: tx, lanes: make(map[Key]*lane), copies: make(map[string]*Webhook)}
	t.turn = turn{rules: rules{&s.cfg, s.owner, s.leaseTime}, askedAt: time.Now(), rows: sqlRows{t}}
	t.hasRoom = func(more int64) bool { return !s.wouldOverflow(more) }
	t.number = func() int64 {
		n := t.numbers[0]
		t.numbers = t.numbers[1:]
		return n
	}
	if c := s.cfg.Courier; c != nil {
		t.reserve = func(rc *receiver.Receiver, size int64) bool {
			ok := c.Reserve(rc, size)
			if ok {
				t.reserved = append(t.reserved, func() { c.Release(rc, size) })
			}
			return ok
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.recounts = s.figures.recounts
	return t
}

// end gives back what the turn has reserved.
func (t *sqlTurn) end() {
	for _, release := range t.reserved {
		release()
	}
	t.reserved = nil
}

// adopt returns the turn's copy of a lane: the one that it has, or else this one.
func (t *sqlTurn) adopt(l *lane) *lane {
	if known := t.lanes[l.key]; known != nil {
		return known
	}
	l.t, t.lanes[l.key] = &t.turn, l
	return l
}

// nowhere is the lane of webhooks whose tenant is not certain. It has no row.
func (t *sqlTurn) nowhere() *lane { return t.adopt(new(lane)) }

func (t *sqlTurn) send() {
	if t.err == nil {
		t.err = t.tx.Send()
	}
}

// sortedKeys returns the keys of lanes in the order in which every process locks them. So no two wait for each other.
func sortedKeys[V any](lanes map[Key]V) []Key {
	return slices.SortedFunc(maps.Keys(lanes), func(a, b Key) int { return bytes.Compare(a[:], b[:]) })
}

// load locks the lanes of works, and reads what these name. Usually that is one round trip.
func (t *sqlTurn) load(works []*work) error {
	names := make(map[Key]webhookgate.Lane)
	next := make(map[Key]int64)
	var hooks []int64
	var all work
	for _, w := range works {
		for _, name := range w.lanes {
			names[LaneOf(name)] = name
			t.s.platforms.learn(name.Platform)
		}
		for _, k := range w.keys {
			if _, named := names[k]; !named {
				names[k] = webhookgate.Lane{}
			}
			if w.next != 0 {
				next[k] = w.next
			}
		}
		hooks = append(hooks, w.hooks...)
		all.ids, all.digests, all.numbers = append(all.ids, w.ids...), append(all.digests, w.digests...), all.numbers+w.numbers
	}
	keys := sortedKeys(names)
	t.lock(keys)
	if !t.Engine.Shared() { // in a file a round trip costs nothing, and then the lanes say which have a next webhook
		if err := t.tx.Send(); err != nil {
			return err
		}
		maps.DeleteFunc(next, func(k Key, _ int64) bool { return t.lanes[k] != nil && t.lanes[k].waiting <= 1 })
	}
	t.tx.Now(&t.now)
	t.takeNumbers(all.numbers)
	t.queueHeads(next, MaxReadAhead)
	if t.KeepLatest {
		var busy [][]byte
		for k, name := range names {
			if !unnamed(name) && (t.lanes[k] == nil || t.lanes[k].waiting > 0) {
				busy = append(busy, bytes.Clone(k[:]))
			}
		}
		if len(busy) > 0 {
			t.tx.Queue("first_two", func(r Row) error {
				h, err := t.s.scanWebhook(r, false)
				if l := t.lanes[h.lane]; err == nil && l != nil {
					l.know(h)
					l.frontier = max(l.frontier, h.position())
				}
				return err
			}, busy)
		}
	}
	var named []*Webhook
	if len(hooks) > 0 {
		slices.Sort(hooks)
		t.tx.Queue("webhooks_lock", func(r Row) error {
			h, err := t.s.scanWebhook(r, true)
			named = append(named, h)
			return err
		}, slices.Compact(hooks))
	}
	seen := t.queueSeen(&all)
	if err := t.tx.Send(); err != nil {
		return err
	}
	if missing := slices.DeleteFunc(keys, func(k Key) bool { return t.lanes[k] != nil || unnamed(names[k]) }); len(missing) > 0 {
		queueRows(t.tx, "platform_add", missing, func(k Key) []any { return []any{k[16:], names[k].Platform} })
		queueRows(t.tx, "lane_add", missing, func(k Key) []any { return []any{k[:], names[k].Tenant, names[k].Type} })
		t.lock(missing)
		if t.Engine.Shared() {
			// Another replica may have made such a lane meanwhile, and stored a webhook in it. Our numbers must be higher than that
			// webhook's, so they are taken once more, now that the lane is locked.
			t.takeNumbers(all.numbers)
			seen = t.queueSeen(&all)
		}
		if err := t.tx.Send(); err != nil {
			return err
		}
	}
	for _, h := range named {
		if l := t.lanes[h.lane]; l != nil {
			l.know(h)
		} else {
			t.nowhere().know(h)
		}
	}
	for _, r := range *seen {
		if l := t.lanes[r.lane]; l != nil {
			if l.seen == nil {
				l.seen = make(map[[32]byte][]*seenRow)
			}
			l.seen[r.hash] = append(l.seen[r.hash], r)
		}
	}
	for digest, h := range t.copies {
		if l := t.lanes[h.lane]; l != nil {
			t.copies[digest] = l.know(h)
		} else {
			t.copies[digest] = t.nowhere().know(h)
		}
	}
	t.now = t.s.applyOffset(t.now)
	t.mayTakeOver = t.s.clock.mayTakeOver(t.leaseTime)
	return nil
}

// lock queues the lock of lanes.
func (t *sqlTurn) lock(keys []Key) {
	if len(keys) == 0 {
		return
	}
	var all [][]byte
	for _, k := range keys {
		all = append(all, k[:])
	}
	t.tx.Queue("lane_lock", func(r Row) error {
		l, err := t.s.scanLane(r)
		t.adopt(l)
		return err
	}, all)
}

// takeNumbers queues the reading of numbers for new webhooks. It comes after the locks, so that the numbers of a lane are in
// its order.
func (t *sqlTurn) takeNumbers(count int64) {
	t.numbers = nil
	if count == 0 {
		return
	}
	t.tx.Queue("take_numbers", func(r Row) error {
		var first, many int64
		err := r.Scan(&first, &many)
		for n := range many {
			t.numbers = append(t.numbers, first+n)
		}
		return err
	}, count)
}

// queueSeen queues the reading of signed ids, and of refused webhooks by their digests.
func (t *sqlTurn) queueSeen(all *work) *[]*seenRow {
	seen := new([]*seenRow)
	if len(all.digests) > 0 {
		t.tx.Queue("refused_copies", func(r Row) error {
			h, err := t.s.scanWebhook(r, false)
			if err == nil {
				t.copies[string(h.digest)] = h
			}
			return err
		}, all.digests)
	}
	if len(all.ids) > 0 {
		known := make(map[seenID]bool)
		var lanes, ids [][]byte
		for _, id := range all.ids {
			if !known[id] {
				lanes, ids = append(lanes, bytes.Clone(id.lane[:])), append(ids, bytes.Clone(id.hash[:]))
			}
			known[id] = true
		}
		t.tx.Queue("seen_find", func(r Row) error {
			id, err := scanSeen(r)
			*seen = append(*seen, id)
			return err
		}, lanes, ids)
	}
	return seen
}

// queueNext queues the reading of the first waiting webhook of each lane, not counting one of them.
func (s *Store) queueNext(tx Tx, lanes map[Key]int64, maxBody int64, each func(*Webhook)) {
	if len(lanes) == 0 {
		return
	}
	var keys [][]byte
	var except []int64
	for k, seq := range lanes {
		keys, except = append(keys, bytes.Clone(k[:])), append(except, seq)
	}
	tx.Queue("next_waiting", func(r Row) error {
		h, err := s.scanWebhook(r, true)
		if err == nil {
			each(h)
		}
		return err
	}, keys, except, maxBody)
}

// queueHeads reads webhooks ahead, so that lanes need not ask for them one by one.
func (t *sqlTurn) queueHeads(lanes map[Key]int64, maxBody int64) {
	t.s.queueNext(t.tx, lanes, maxBody, func(h *Webhook) {
		l := t.lanes[h.lane]
		if except := lanes[h.lane]; l.leasedID == except { // else it is the outcome of a lease that was lost, and says nothing
			l.know(h)
			l.frontier = max(l.frontier, h.position())
		}
	})
}

func (t *sqlTurn) readHeads(lanes map[Key]int64, maxBody int64) {
	maps.DeleteFunc(lanes, func(k Key, _ int64) bool { return len(t.lanes[k].hooks) > 0 })
	if len(lanes) > 0 {
		t.s.queueNext(t.tx, lanes, maxBody, func(h *Webhook) {
			l := t.lanes[h.lane]
			l.know(h)
			l.frontier = max(l.frontier, h.position())
		})
		t.send()
	}
}

// sqlRows implements rows.
type sqlRows struct{ t *sqlTurn }

func (r sqlRows) firstWaiting(l *lane, except []int64) (first *Webhook) {
	r.t.tx.Queue("first_waiting", func(row Row) (err error) {
		first, err = r.t.s.scanWebhook(row, true)
		return err
	}, notNil(except), l.key[:], int64(MaxReadAhead))
	r.t.send()
	return first
}

func (r sqlRows) refused(l *lane) (all []*Webhook) {
	r.t.tx.Queue("lane_refused", func(row Row) error {
		h, err := r.t.s.scanWebhook(row, false)
		all = append(all, h)
		return err
	}, l.key[:])
	r.t.send()
	return all
}

func (r sqlRows) supersede(l *lane, state State, before int64, except []int64, why string, most int) (c counts) {
	r.t.tx.Queue("supersede_"+string(state), func(row Row) error {
		var size, order int64
		err := row.Scan(&size, &order)
		c.number, c.bytes = c.number+1, c.bytes+size
		if order < 0 {
			c.resent++
		}
		return err
	}, notNil(except), l.key[:], before, r.t.now, []byte(why), []byte(r.t.time().Format(time.RFC3339Nano)), int64(most))
	r.t.send()
	return c
}

func (r sqlRows) erase(l *lane) (count int) {
	r.t.tx.Queue("erase_content", nil, l.key[:])
	r.t.tx.Queue("erase_webhooks", func(row Row) error { count++; var seq int64; return row.Scan(&seq) }, l.key[:])
	r.t.tx.Queue("erase_snapshot", nil, l.key[:])
	r.t.send()
	return count
}

func (r sqlRows) forgetIDs(l *lane) { r.t.tx.Queue("seen_delete_lane", nil, l.key[:]); r.t.send() }

func notNil(ids []int64) []int64 {
	if ids == nil {
		return []int64{}
	}
	return ids
}

// save queues the statements that write what the lanes remember.
func (t *sqlTurn) save() {
	var lanes []*lane
	var added, changed []*Webhook
	var snapshots []*snapshotRow
	var seen []*seenRow
	var deleted []int64
	for _, k := range sortedKeys(t.lanes) {
		l := t.lanes[k]
		if l.dirty && k != (Key{}) {
			lanes = append(lanes, l)
		}
		for _, h := range l.hooks {
			switch {
			case h.gone:
			case h.isNew:
				added = append(added, h)
			case h.changed:
				changed = append(changed, h)
			}
		}
		if l.snapshot != nil {
			snapshots = append(snapshots, l.snapshot)
		}
		seen, deleted = append(seen, l.newSeen...), append(deleted, l.deleted...)
	}
	queueRows(t.tx, "lane_save", lanes, (*lane).columns)
	insertWebhooks(t.tx, added)
	queueRows(t.tx, "webhook_save", changed, func(h *Webhook) []any {
		return []any{h.State.number(), h.position(), h.Changed.UnixMicro(), h.encodeStatus(), h.ID}
	})
	queueRows(t.tx, "snapshot_save", snapshots, (*snapshotRow).columns)
	queueRows(t.tx, "seen_save", seen, (*seenRow).columns)
	if len(deleted) > 0 {
		t.tx.Queue("webhook_delete", nil, deleted)
		t.tx.Queue("content_delete", nil, deleted)
	}
	for _, queue := range t.statements {
		queue(t.tx)
	}
	if idle := len(lanes)+len(added)+len(changed)+len(seen)+len(deleted)+len(t.statements) == 0; idle && t.s.health.unproven() {
		t.tx.Queue("touch", nil)
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
