package inbox

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// An op is something that the writer does. A transaction may run again, on fresh lanes, so it keeps nothing of a run.
type op struct {
	lanes     []webhookgate.LaneName // to lock
	makes     bool                   // those that are new are made
	optional  bool                   // some may not exist
	lease     *lane.Lease            // it ends this one: what waits behind its webhook is read, too
	snapshots bool                   // the last snapshots of the lanes are read
	hooks     []int64                // webhooks to read, with their contents
	digests   [][]byte               // of bodies: invalid webhooks that have them are read
	numbered  bool                   // it must know its new numbers when it decides, and not only when that is written
	size      int64                  // about how many bytes it writes

	wanted func() bool       // false: nobody waits for it any more; nil: always
	run    func(*turn) error // decides. If it returns an error it has changed nothing
	done   func(error)       // is called once, when that is committed or has failed
	began  time.Time
	waited bool // somebody else had locked one of its lanes
}

var errUnreadable = errors.New("the tenant's row in the inbox is damaged: restore a backup")

// A turn is one run of a transaction: see writer.go.
type turn struct {
	lane.Turn
	dealt
	s      *figures
	places *places
	tx     engine.Tx
	err    error // why a statement failed in the midst of a decision

	// What was read, beside the lanes.
	known     map[webhookgate.LaneName]*snapshot.Stored // last snapshots
	hooks     map[int64]*lane.Webhook                   // those that operations have named
	copies    map[string]*lane.Webhook                  // invalid ones, by their digests
	there     map[webhookgate.LaneName]bool             // lanes that exist, though somebody else may have locked them
	damaged   map[webhookgate.LaneName]bool             // lanes that cannot be read
	moved     int64                                     // 1: the last numbers were taken elsewhere
	firstUsed map[string]int64                          // the room that is used, if this is the first transaction that counts it

	// What is to be written, beside the lanes.
	added    []*lane.Webhook
	base     int64            // the last number before the new ones, once they are taken
	taken    bool             // they are
	accepted map[string]bool  // receivers that have accepted something
	revive   map[string]int64 // receivers that are back: what began to fail after that time is due

	later  []*op         // somebody else has locked their lanes
	failed map[*op]error // why operations were not done
	then   []func()      // after the commit
	counts int64         // room.counts at the beginning
	person bool          // a person has changed something, who looks at the figures next
}

func newTurn(s *figures, p *places, owner []byte, tx engine.Tx) *turn {
	t := &turn{
		s: s, places: p, tx: tx, dealt: dealt{waits: make(map[*receiver.Receiver]bool)},
		known: make(map[webhookgate.LaneName]*snapshot.Stored), hooks: make(map[int64]*lane.Webhook),
		copies: make(map[string]*lane.Webhook), damaged: make(map[webhookgate.LaneName]bool),
		accepted: make(map[string]bool), revive: make(map[string]int64), failed: make(map[*op]error),
		there: make(map[webhookgate.LaneName]bool),
	}
	t.Turn = lane.Turn{
		Rules: &s.cfg.Rules, Owner: owner,
		AskedAt: time.Now(), Numbers: engine.Provisional,
		Accepted: make(map[string]int64), Delivering: p.delivering(),
		Lanes: make(map[webhookgate.LaneName]*lane.Lane), AddedBytes: make(map[string]int64),
	}
	t.Used, t.counts = s.roomUsed()
	return t
}

// Then says what to do once the transaction is committed.
func (t *turn) Then(do func()) { t.then = append(t.then, do) }

// ask asks the database something in the midst of a decision, and send sends what was queued.
func (t *turn) ask(name string, each func(engine.Row) error, args ...any) {
	t.tx.Queue(name, each, args...)
	t.send()
}

func (t *turn) send() {
	if t.err == nil {
		t.err = t.tx.Send()
	}
}

// load locks the lanes of operations, and reads what these name. That is one round trip, and one more if it claims.
func (t *turn) load(ops []*op, claims []*claim) error {
	all := make(map[webhookgate.LaneName]int64)
	made, optional := make(map[webhookgate.LaneName]bool), make(map[webhookgate.LaneName]bool)
	first, snapshots := make(map[webhookgate.LaneName]bool), make(map[webhookgate.LaneName]bool)
	var hooks []int64
	var digests [][]byte
	outcomes, numbers := false, int64(0)
	for _, o := range ops {
		for _, name := range o.lanes {
			if all[name] = max(all[name], 0); o.lease != nil {
				all[name], outcomes = o.lease.Webhook.ID, true
			}
			first[name] = first[name] || o.lease != nil || len(o.hooks) > 0
			made[name] = made[name] || o.makes
			optional[name] = optional[name] || o.optional
			snapshots[name] = snapshots[name] || o.snapshots
		}
		hooks, digests = append(hooks, o.hooks...), append(digests, o.digests...)
		if numbers += int64(max(1, len(o.lanes))); o.numbered {
			t.taken = true
		}
	}
	t.tx.Now(&t.Now)
	t.tx.Queue("moved", func(r engine.Row) error { return r.Scan(&t.moved) })
	t.queueLanes("lane_add", nil, lanesOf(made))
	names := lane.SortedNames(all)
	t.queueLanes("lane_lock", t.addLane, names)
	t.queueLanes("lanes_there", func(r engine.Row) error {
		var name webhookgate.LaneName
		err := r.Scan(&name.Tenant, &name.Platform, &name.Type)
		t.there[name] = true
		return err
	}, lanesOf(optional))
	t.queueFirst(lanesOf(first), func(name webhookgate.LaneName) (except int64) { return all[name] })
	t.queueLanes("lane_open", t.addOpen, names)
	t.queueSnapshots(lanesOf(snapshots))
	if len(hooks) > 0 {
		slices.Sort(hooks)
		t.tx.Queue("webhooks", t.addHook, slices.Compact(hooks))
	}
	if len(digests) > 0 {
		t.tx.Queue("invalid_copies", func(r engine.Row) error {
			w, err := scanBare(r)
			if err == nil {
				t.copies[string(w.Digest)] = w
			}
			return err
		}, digests)
	}
	if outcomes {
		queueNumbers(t.tx, "receivers", func(name string, at int64) { t.Accepted[name] = at })
	}
	if t.Used == nil {
		t.firstUsed = make(map[string]int64)
		t.Used = t.firstUsed
		queueNumbers(t.tx, "bytes_used", func(name string, bytes int64) { t.Used[name] = bytes })
	}
	t.queueClaims(claims)
	if err := t.tx.Send(); err != nil {
		return err
	}
	t.Now = t.s.applyOffset(t.Now)
	t.s.observeClock(t.Now, t.AskedAt) // before anything is decided: this very reading may show that the clock has jumped
	t.MayTakeOver = t.s.clock.mayTakeOver(t.LongestLease())
	t.handOver()
	if t.taken {
		t.takeNumbers(numbers)
		if err := t.tx.Send(); err != nil {
			return err
		}
		t.Numbers = t.base
	}
	return t.readClaimed()
}

// lanesOf returns the names of those that are true.
func lanesOf(all map[webhookgate.LaneName]bool) []webhookgate.LaneName {
	return slices.DeleteFunc(lane.SortedNames(all), func(name webhookgate.LaneName) bool { return !all[name] })
}

// queueLanes queues a statement for lanes.
func (t *turn) queueLanes(statement string, each func(engine.Row) error, names []webhookgate.LaneName) {
	if len(names) > 0 {
		tenants, platforms, types := laneColumns(names)
		t.tx.Queue(statement, each, tenants, platforms, types)
	}
}

func (t *turn) addLane(r engine.Row) error {
	l, err := scanLane(r)
	if err == nil {
		if t.Lanes[l.LaneName] == nil {
			t.Add(l)
		}
	} else {
		t.damaged[l.LaneName] = true
		t.s.noteUnreadable(l.LaneName)
	}
	return err
}

// maxReadAhead is the size up to which a content is read together with its lease. A larger one is read when it is sent.
const maxReadAhead = 64 << 10

// queueFirst reads the first waiting webhooks of lanes, so that the next ones can be leased at once.
func (t *turn) queueFirst(names []webhookgate.LaneName, except func(webhookgate.LaneName) int64) {
	queueFirst(t.tx, names, except, maxReadAhead, func(w *lane.Webhook, err error) {
		switch l := t.Lanes[w.LaneName]; {
		case err != nil:
			t.s.noteUnreadable(w.LaneName)
		case l != nil:
			l.LoadFirst(w, except(w.LaneName))
		}
	})
}

func (t *turn) addOpen(r engine.Row) error {
	w, err := scanBare(r)
	if l := t.Lanes[w.LaneName]; err == nil && l != nil {
		l.Load(w)
	}
	return err
}

func (t *turn) addHook(r engine.Row) error {
	w, err := scanWhole(r)
	if err == nil {
		t.hooks[w.ID] = w
	}
	return err
}

// queueSnapshots queues the reading of tenants' last snapshots.
func (t *turn) queueSnapshots(names []webhookgate.LaneName) {
	if len(names) == 0 {
		return
	}
	tenants, platforms, _ := laneColumns(names)
	t.tx.Queue("snapshots_of", func(r engine.Row) error {
		s, err := scanSnapshot(r)
		t.known[webhookgate.LaneName{Platform: s.Platform, Tenant: s.Tenant}] = &s
		return err
	}, tenants, platforms)
}

// handOver gives the lanes the webhooks that were read besides.
func (t *turn) handOver() {
	for id, w := range t.hooks {
		if l := t.Lanes[w.LaneName]; l != nil {
			t.hooks[id] = l.Load(w)
		}
	}
	for digest, w := range t.copies {
		if l := t.Lanes[w.LaneName]; l != nil {
			t.copies[digest] = l.Load(w)
		}
	}
}

// decide runs the operations whose lanes are here.
func (t *turn) decide(ops []*op) error {
	for _, o := range ops {
		missing := func(name webhookgate.LaneName) bool { return t.Lanes[name] == nil && (!o.optional || t.there[name]) }
		if n := slices.IndexFunc(o.lanes, missing); n >= 0 && t.damaged[o.lanes[n]] {
			t.failed[o] = errUnreadable
			continue
		} else if n >= 0 {
			t.later = append(t.later, o)
			continue
		}
		if err := o.run(t); err != nil {
			t.failed[o] = err
		}
		if t.err != nil {
			return t.err
		}
	}
	return nil
}

// queueClaims queues the search for lanes. It goes by our estimate of the database's time; Lane.Ready looks again.
func (t *turn) queueClaims(claims []*claim) {
	now, mayTakeOver := t.s.Now().UnixMicro(), t.s.clock.mayTakeOver(t.LongestLease())
	t.claims = claims
	for _, c := range claims {
		c.found, c.seen, c.given = nil, [2]int{}, 0
		t.tx.Queue("claim", func(r engine.Row) error {
			l, err := scanLane(r)
			c.seen[boolNumber(l.Failures > 0)]++
			if err != nil {
				t.s.noteUnreadable(l.LaneName)
			} else if known := t.Lanes[l.LaneName]; known == nil {
				t.Add(l)
				c.found = append(c.found, l)
			}
			return err
		}, c.Name, now, boolNumber(mayTakeOver), int64(c.fresh+t.s.unreadable.count()), int64(c.failed+t.s.unreadable.count()))
	}
}

// readClaimed reads the first webhooks of the lanes that were claimed.
func (t *turn) readClaimed() error {
	found := make(map[webhookgate.LaneName]bool)
	for _, c := range t.claims {
		for _, l := range c.found {
			found[l.LaneName] = true
		}
	}
	if len(found) == 0 {
		return nil
	}
	t.queueFirst(lane.SortedNames(found), func(webhookgate.LaneName) int64 { return 0 })
	return t.tx.Send()
}

// lease gives the free places leases: first to the lanes that were claimed, which wait for longer, and then to those of this
// transaction's operations.
func (t *turn) lease() {
	free := t.places.free(t.ended)
	for _, c := range t.claims {
		for _, l := range c.found {
			if rc, waits := l.Ready(); rc != nil && waits {
				t.s.noteUnreadable(l.LaneName)
				l.Postpone()
			} else if rc != nil && t.give(free, l, rc) {
				c.given++
			}
		}
	}
	for _, c := range t.claims {
		if of := free[c.Receiver]; of != nil {
			of.others = c.seen[0] >= c.fresh
		}
	}
	for _, name := range lane.SortedNames(t.Lanes) {
		l := t.Lanes[name]
		switch rc, waits := l.Ready(); {
		case rc == nil:
		case waits || free[rc] == nil || free[rc].others:
			t.waits[rc] = true
		default:
			t.give(free, l, rc)
		}
	}
}

// give gives a lane a lease, if there is a place for it, and says whether it did.
func (t *turn) give(free freePlaces, l *lane.Lane, rc *receiver.Receiver) bool {
	of, failed := free[rc], l.Failures > 0
	switch {
	case t.s.lanePaused(l.Platform, l.Tenant, rc.Name):
		return false
	case of == nil || of.all <= 0 || failed && of.failed <= 0:
		t.waits[rc] = true
		return false
	case failed:
		of.failed--
	}
	of.all--
	t.leases = append(t.leases, l.Lease(rc))
	return true
}

// takeNumbers takes so many numbers. If the database is another one than where the last were taken, an era begins.
func (t *turn) takeNumbers(count int64) {
	t.taken = true
	t.tx.Queue("numbers", func(r engine.Row) error { return r.Scan(&t.base) }, count)
	if t.moved == 1 {
		t.tx.Queue("era_add", nil, rand.Int64())
		t.tx.Queue("era_home", nil)
	}
}

// number returns a number of this turn as it is once that is written.
func (t *turn) number(n int64) int64 {
	if n > engine.Provisional {
		n += t.base - engine.Provisional
	}
	return n
}

// save queues the statements that write what the lanes remember.
func (t *turn) save() {
	c := t.Changes()
	if count := t.Numbers - engine.Provisional; count > 0 && !t.taken {
		t.takeNumbers(count)
	}
	for _, l := range c.Erased {
		t.tx.Scrub()
		t.tx.Queue("erase_content", nil, l.Tenant, l.Platform)
		t.tx.Queue("erase_webhooks", nil, l.Tenant, l.Platform)
	}
	queueRows(t.tx, "webhook_add", c.Added, webhookColumns)
	queueRows(t.tx, "content_add", c.Added, func(w *lane.Webhook) []any { return []any{w.ID, encodeHeader(w.Header), w.Body} })
	queueRows(t.tx, "webhook_save", c.Changed, webhookChanges)
	queueRows(t.tx, "snapshot_save", c.Snapshots, snapshotColumns)
	queueRows(t.tx, "lane_save", c.Lanes, laneRow)
	for _, rc := range t.s.cfg.Receivers.All() {
		if t.accepted[rc.Name] {
			t.tx.Queue("receiver_save", nil, []string{rc.Name}, []int64{t.Now})
		}
		if since, back := t.revive[rc.Name]; back {
			t.tx.Queue("lane_revive", nil, rc.Name, since, t.Now)
		}
	}
	if t.s.health.unproven() && !t.s.cfg.ReadOnly { // the operations may write nothing
		t.tx.Queue("touch", nil)
	}
	t.added = c.Added
}

// noteAccepted notes that a receiver has accepted something. If it is the first after a while, lanes that have failed
// since are due.
func (t *turn) noteAccepted(receiver string) {
	before := t.Accepted[receiver]
	since := time.Duration(t.Now-before) * time.Microsecond
	if since < acceptedEvery && since >= 0 {
		return
	}
	if since >= backAfter || since < 0 {
		t.revive[receiver] = before
	}
	t.accepted[receiver], t.Accepted[receiver] = true, t.Now
}

// acceptedEvery is how often an acceptance is stored at most.
const acceptedEvery = time.Second / 10

// backAfter is after how long without one the first success makes due what has failed.
const backAfter = 5 * time.Second

// after is a time of the database so long after the turn's.
func (t *turn) after(d time.Duration) int64 { return t.Now + clock.Micros(d) }

// noteRoom notes an error that says that a receiver has no room.
func (t *turn) noteRoom(err error) {
	if full, ok := errors.AsType[*lane.NoRoom](err); ok {
		t.s.noteRefused(full)
	}
}
