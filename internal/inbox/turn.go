package inbox

import (
	"cmp"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// A sqlTurn loads and saves lanes.
type sqlTurn struct {
	lane.Turn
	s     *Inbox
	tx    engine.Tx
	err   error // why a statement failed in the midst of a decision
	found map[*claim][]found

	numbers   []int64
	copies    map[string]*lane.Webhook // invalid webhooks by their digests
	snapshots map[webhookgate.LaneName]*snapshot.Stored
	named     []*lane.Webhook // that works have named
	reserved  []func()
	byPerson  bool
	counts    int64 // room.counts at the beginning
}

func (s *Inbox) newTurn(tx engine.Tx) *sqlTurn {
	t := &sqlTurn{
		s:         s,
		tx:        tx,
		found:     make(map[*claim][]found),
		copies:    make(map[string]*lane.Webhook),
		snapshots: make(map[webhookgate.LaneName]*snapshot.Stored),
	}
	t.Turn = lane.Turn{
		Rules:      &s.cfg.Rules,
		Process:    lane.Process{Owner: s.owner, LeaseTime: s.leaseTime, Alone: !s.engine.Shared()},
		AskedAt:    time.Now(),
		Lanes:      make(map[webhookgate.LaneName]*lane.Lane),
		Inbox:      t,
		AddedBytes: make(map[string]int64),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.counts = s.room.counts
	return t
}

// end gives back what the turn has reserved.
func (t *sqlTurn) end() {
	for _, release := range t.reserved {
		release()
	}
	t.reserved = nil
}

func (t *sqlTurn) send() {
	if t.err == nil {
		t.err = t.tx.Send()
	}
}

// needs are what works name together.
type needs struct {
	lanes     []webhookgate.LaneName         // to lock, sorted
	taking    []webhookgate.LaneName         // of these: those that are made if they are new
	next      map[webhookgate.LaneName]int64 // of these: those of outcomes, with the webhook that each is about
	hooks     engine.Among
	digests   [][]byte
	snapshots []webhookgate.LaneName
	claims    []*claim
	numbers   int64
	above     int64
}

func needsOf(works []*work) *needs {
	n := &needs{next: make(map[webhookgate.LaneName]int64)}
	lanes := make(map[webhookgate.LaneName]bool) // whether to make the lane if it is new
	for _, w := range works {
		for _, name := range w.known {
			if _, named := lanes[name]; !named {
				lanes[name] = false
			}
			if w.next != 0 {
				n.next[name] = w.next
			}
		}
		for _, name := range w.lanes {
			lanes[name] = true
		}
		n.hooks, n.snapshots = append(n.hooks, w.hooks...), append(n.snapshots, w.snapshots...)
		n.digests = append(n.digests, w.digests...)
		n.numbers, n.above = n.numbers+w.numbers, max(n.above, w.above)
		if w.claim != nil {
			n.claims = append(n.claims, w.claim)
		}
	}
	n.lanes = lane.SortedNames(lanes)
	for _, name := range n.lanes {
		if lanes[name] {
			n.taking = append(n.taking, name)
		}
	}
	return n
}

// load locks the lanes of works, and reads what these name. Usually that is one round trip.
func (t *sqlTurn) load(works []*work) error {
	n := needsOf(works)
	t.lock(n.lanes)
	t.tx.Now(&t.Now)
	t.queueClaims(n.claims)
	t.queueHeads(n.next)
	t.queueWebhooks(n.hooks)
	t.queueBehindLocks(n)
	if err := t.tx.Send(); err != nil {
		return err
	}
	if err := t.addLanes(n); err != nil {
		return err
	}
	if err := t.raiseNumbers(n.numbers, n.above); err != nil {
		return err
	}
	t.Now = t.s.applyOffset(t.Now)
	t.s.observeClock(t.Now, t.AskedAt) // before anything is decided: this very reading may show that the clock has jumped
	t.MayTakeOver = t.s.clock.mayTakeOver(t.LeaseTime)
	t.handToLanes()
	t.readHeads()
	return t.err
}

// queueBehindLocks queues the reading of what others may change until the lanes are locked.
func (t *sqlTurn) queueBehindLocks(n *needs) {
	t.takeNumbers(n.numbers)
	t.queueCopies(n.digests)
	t.queueSnapshots(n.snapshots)
}

// addLanes makes the lanes that are new, and locks them.
func (t *sqlTurn) addLanes(n *needs) error {
	var missing []webhookgate.LaneName
	for _, name := range n.taking {
		if t.Lanes[name] == nil {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	tenants, platforms, types := laneColumns(missing)
	made := 0
	t.tx.Queue("lane_add", func(r engine.Row) error { made++; return r.Scan(new(string)) }, tenants, platforms, types)
	t.lock(missing)
	if err := t.tx.Send(); err != nil {
		return err
	}
	if made == len(missing) {
		return nil
	}
	// Another replica has made such a lane meanwhile, and may have stored a webhook in it. Our numbers must be higher than
	// that webhook's, so they are taken once more, now that the lane is locked.
	t.queueBehindLocks(n)
	return t.tx.Send()
}

// handToLanes gives the lanes what was read of them.
func (t *sqlTurn) handToLanes() {
	for _, w := range t.named {
		t.LaneOf(w).Load(w)
	}
	for digest, w := range t.copies {
		t.copies[digest] = t.LaneOf(w).Load(w)
	}
}

// queueWebhooks queues the reading of webhooks, with their content.
func (t *sqlTurn) queueWebhooks(ids engine.Among) {
	if len(ids) == 0 {
		return
	}
	slices.Sort(ids)
	t.tx.Queue("webhooks_lock", into(&t.named, scanWhole), slices.Compact(ids))
}

// lock queues the lock of lanes.
func (t *sqlTurn) lock(names []webhookgate.LaneName) {
	if len(names) == 0 {
		return
	}
	tenants, platforms, types := laneColumns(names)
	t.tx.Queue("lane_lock", func(r engine.Row) error {
		l, err := scanLane(r)
		if err == nil {
			t.Load(l)
		} else {
			t.s.noteUnreadable(l.LaneName)
		}
		return err
	}, tenants, platforms, types)
}

// queueClaims queues the search for lanes. It goes by our estimate of the database's time; Lane.Claim looks again.
func (t *sqlTurn) queueClaims(claims []*claim) {
	now, mayTakeOver := t.s.Now().UnixMicro(), t.s.clock.mayTakeOver(t.LeaseTime)
	for _, c := range claims {
		before, skipped := cmp.Or(c.TriedBefore, now-clock.Micros(time.Second)), len(c.skip)+t.s.hidden
		hidden := 0
		atMost := func(n int) int64 {
			if n > 0 {
				n += skipped // which it may find, too
			}
			return int64(n)
		}
		each := func(r engine.Row) error {
			var kind int64
			l, err := scanLane(r, &kind)
			if err == nil {
				t.found[c] = append(t.found[c], found{kind, t.Load(l)})
				return nil
			}
			t.s.noteUnreadable(l.LaneName)
			hidden++
			t.s.hidden = max(t.s.hidden, hidden)
			return err
		}
		t.tx.Queue("claim", each,
			c.Receiver.Name, now, boolNumber(mayTakeOver),
			atMost(c.Fresh), atMost(c.Newest),
			atMost(c.Early), before, 1+boolNumber(c.DownOnly),
			atMost(c.Retries))
	}
}

// readHeads reads the first webhooks of the lanes that claims may lease.
func (t *sqlTurn) readHeads() {
	heads := make(map[webhookgate.LaneName]int64)
	for c, all := range t.found {
		c.order(all)
		for _, f := range all[:min(len(all), c.Room+len(c.skip))] {
			if f.lane.NeedsFirst() {
				heads[f.lane.LaneName] = 0
			}
		}
	}
	if len(heads) > 0 {
		t.queueHeads(heads)
		t.send()
	}
}

// takeNumbers queues the reading of numbers for new webhooks. It comes after the locks, so that the numbers of a lane
// are in its order.
func (t *sqlTurn) takeNumbers(count int64) {
	t.numbers = nil
	if count == 0 {
		return
	}
	t.tx.Queue("take_numbers", func(r engine.Row) error {
		var first, many int64
		err := r.Scan(&first, &many)
		for n := range many {
			t.numbers = append(t.numbers, first+n)
		}
		return err
	}, count)
}

// raiseNumbers takes other numbers if these are not above the highest, and all that the lanes have. A logical replica,
// for one, gets rows and no sequences: after a switch to it new webhooks would count as older than those before.
func (t *sqlTurn) raiseNumbers(count, highest int64) error {
	for _, l := range t.Lanes {
		highest = max(highest, l.Last, l.Tail)
	}
	if len(t.numbers) == 0 || t.numbers[0] > highest {
		return nil
	}
	t.LogWarning(numbersRaised, "number", t.numbers[0], "highest", highest)
	t.tx.Queue("number_raise", nil, highest)
	t.takeNumbers(count)
	return t.tx.Send()
}

// queueCopies queues the reading of invalid webhooks by their digests.
func (t *sqlTurn) queueCopies(digests [][]byte) {
	if len(digests) == 0 {
		return
	}
	t.tx.Queue("invalid_lock", nil, digests)
	t.tx.Queue("invalid_copies", func(r engine.Row) error {
		w, err := scanWebhook(r, false)
		if err == nil {
			t.copies[string(w.Digest)] = w
		}
		return err
	}, digests)
}

// queueSnapshots queues the reading of tenants' last snapshots.
func (t *sqlTurn) queueSnapshots(names []webhookgate.LaneName) {
	if len(names) == 0 {
		return
	}
	clear(t.snapshots)
	tenants, platforms, _ := laneColumns(names)
	t.tx.Queue("snapshots_of", func(r engine.Row) error {
		s, err := scanSnapshot(r)
		t.snapshots[webhookgate.LaneName{Platform: s.Platform, Tenant: s.Tenant}] = &s
		return err
	}, tenants, platforms)
}

// queueNext queues the reading of the first waiting webhook of each lane, not counting one of them.
func (s *Inbox) queueNext(tx engine.Tx, lanes map[webhookgate.LaneName]int64, maxBody int64, each func(*lane.Webhook)) {
	if len(lanes) == 0 {
		return
	}
	names := lane.SortedNames(lanes)
	except := make([]int64, len(names))
	for i, name := range names {
		except[i] = lanes[name]
	}
	tenants, platforms, types := laneColumns(names)
	tx.Queue("next_waiting", func(r engine.Row) error {
		h, err := scanWebhook(r, true)
		if err == nil {
			each(h)
		} else {
			s.noteUnreadable(h.LaneName)
		}
		return err
	}, tenants, platforms, types, except, maxBody)
}

// queueHeads reads webhooks ahead, so that lanes need not ask for them one by one.
func (t *sqlTurn) queueHeads(lanes map[webhookgate.LaneName]int64) {
	t.s.queueNext(t.tx, lanes, maxReadAhead, func(h *lane.Webhook) {
		if l := t.Lanes[h.LaneName]; l != nil { // else the file is damaged
			l.LoadFirst(h, lanes[h.LaneName])
		}
	})
}

// What lanes ask; see lane.Inbox.

func (t *sqlTurn) FirstWaiting(l *lane.Lane, except []int64) (first *lane.Webhook) {
	t.tx.Queue("first_waiting", func(row engine.Row) error {
		w, err := scanWebhook(row, true)
		if err == nil {
			first = w
		} else {
			t.s.noteUnreadable(l.LaneName)
		}
		return err
	}, among(except), l.Tenant, l.Platform, l.Type, int64(maxReadAhead))
	t.send()
	return first
}

func (t *sqlTurn) InvalidWebhooks(l *lane.Lane) (all []*lane.Webhook) {
	t.tx.Queue("lane_invalid", into(&all, scanBare), l.Tenant, l.Platform, l.Type)
	t.send()
	return all
}

func (t *sqlTurn) ParkedSnapshots(l *lane.Lane) (all []*lane.Webhook) {
	t.tx.Queue("parked_snapshots", into(&all, scanBare), l.Tenant, l.Platform, l.Type)
	t.send()
	return all
}

func (t *sqlTurn) LastSnapshot(l *lane.Lane) *snapshot.Stored { return t.snapshots[l.LaneName] }

func (t *sqlTurn) EraseTenant(l *lane.Lane) (count int) {
	t.tx.Scrub()
	t.tx.Queue("erase_content", nil, l.Tenant, l.Platform, l.Type)
	each := func(row engine.Row) error { count++; return row.Scan(new(int64)) }
	t.tx.Queue("erase_webhooks", each, l.Tenant, l.Platform, l.Type)
	t.tx.Queue("erase_snapshot", nil, l.Tenant, l.Platform)
	t.send()
	return count
}

func (t *sqlTurn) NextNumber() int64 {
	n := t.numbers[0]
	t.numbers = t.numbers[1:]
	return n
}

func (t *sqlTurn) Reserve(rc *receiver.Receiver, size int64) bool {
	c := t.s.courier
	ok := c != nil && c.Reserve(rc, size)
	if ok {
		t.reserved = append(t.reserved, func() { c.Release(rc, size) })
	}
	return ok
}

func (t *sqlTurn) IsDelivering(name webhookgate.LaneName, token int64) bool {
	return t.s.courier != nil && t.s.courier.IsDelivering(name, token)
}

// among never returns nil, which a database would take for NULL.
func among(ids []int64) engine.Among { return append(engine.Among{}, ids...) }

// save queues the statements that write what the lanes remember.
func (t *sqlTurn) save() {
	c := t.Changes()
	queueRows(t.tx, "lane_save", c.Lanes, laneRow)
	queueRows(t.tx, "lane_note", c.Stamped, func(l *lane.Lane) []any {
		return []any{l.Tenant, l.Platform, l.Type, l.Last, l.LastAt}
	})
	insertWebhooks(t.tx, c.Added)
	queueRows(t.tx, "webhook_save", c.Changed, webhookChanges)
	queueRows(t.tx, "put_snapshot", c.Snapshots, snapshotColumns)
	if t.s.health.unproven() && !t.s.cfg.ReadOnly { // the works may write nothing
		t.tx.Queue("touch", nil)
	}
}

// insertWebhooks queues new rows.
func insertWebhooks(tx engine.Tx, all []*lane.Webhook) {
	queueRows(tx, "add_webhook", all, webhookColumns)
	queueRows(tx, "add_content", all, func(h *lane.Webhook) []any { return []any{h.ID, encodeHeader(h.Header), h.Body} })
}

const numbersRaised = "the sequence of the webhooks' numbers was behind the tables, and usher has corrected it"
