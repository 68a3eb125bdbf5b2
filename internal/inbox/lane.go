package inbox

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/content"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// A lane in memory, and every transition of it. Nothing here knows SQL, the writer or the courier. What of a lane is not
// in memory is asked of rows.

// A turn is one transaction, as lanes see it.
type turn struct {
	*Rules
	process
	now     int64     // the database's time
	askedAt time.Time // our time before the transaction began; leases count from here
	lanes   map[webhookgate.LaneName]*lane
	inbox   rows

	mayTakeOver bool // a lease that has ended may be taken from its owner

	added       map[string]int64 // by how much the bytes that wait or are parked change, for each receiver
	hasFinished bool             // a webhook is finished now: there may be something to sweep
	hasInvalid  bool             // the same, of invalid webhooks
	committed   []func()         // what to do once the transaction is committed; it may run again before
}

// warn logs something once the transaction is committed.
func (t *turn) warn(message string, args ...any) {
	t.committed = append(t.committed, func() { t.Log.Warn(message, args...) })
}

// logError is like warn, for what somebody should look at.
func (t *turn) logError(message string, args ...any) {
	t.committed = append(t.committed, func() { t.Log.Error(message, args...) })
}

// Rules decide about a lane, beside its rows. Fields are required unless they say what their zero value means.
type Rules struct {
	Receivers *receiver.Set // nil: this usher delivers nothing
	Log       *slog.Logger

	// A webhook is parked after MaxTries failed tries that count, or after so many of any kind once its first try is longer ago than MaxAge.
	MaxTries int
	MaxAge   time.Duration
	// StoreUnclaimed says what to do with a webhook that no receiver takes. True: it is stored, and never delivered. False: it waits for
	// a receiver.
	StoreUnclaimed bool
	// Latest supersedes a waiting snapshot when a newer one of its tenant arrives right behind it.
	Latest bool
	// DedupWindow is how long usher assumes that the receiver still has the snapshot that it accepted last. Zero: no
	// webhook is a duplicate.
	DedupWindow time.Duration
	MaxInvalid  int // how many invalid webhooks of a tenant are stored; zero: DefaultMaxInvalid

	// Jitter shortens a backoff to between half and all of its length. Nil: by chance.
	Jitter func(time.Duration) time.Duration
}

// DefaultMaxInvalid is the documented limit.
const DefaultMaxInvalid = 10

// A process is who decides.
type process struct {
	owner     []byte // its name in leases
	leaseTime time.Duration
	alone     bool // no other process has this inbox: an owner that is not this process has ended
}

// An inbox is what a turn asks of the inbox around it: what of a lane is not in memory, and what lanes share. In a test it
// is slices.
type rows interface {
	// FirstWaiting returns the first waiting webhook that is none of these; nil: there is none.
	FirstWaiting(l *lane, except []int64) *Webhook
	InvalidWebhooks(l *lane) []*Webhook    // all; there are few
	ParkedSnapshots(l *lane) []*Webhook    // one at most, but after an import
	LastSnapshot(l *lane) *snapshot.Stored // when the turn began; nil: there is none
	LastSnapshotDigest(l *lane) []byte     // nil: there is none, or its webhook was deleted
	MissedWebhooks(l *lane) []webhookgate.MissedWebhook
	// CameAfterAll says of a webhook that got a 5xx whether its COMMIT, which was in doubt, has stored it; or whether the
	// same bytes have come since, be it that they are recorded as invalid.
	CameAfterAll(l *lane, m *webhookgate.MissedWebhook) bool
	CountWebhooks(l *lane) laneCounts
	EraseWebhooks(l *lane) (count int)
	ForgetIDs(l *lane)

	NextNumber() int64                                    // of the next new webhook
	HasRoom(l *lane, size int64) error                    // for one more webhook
	Reserve(rc *receiver.Receiver, size int64) bool       // room at the courier, until the turn ends; false without a courier
	Delivers(lane webhookgate.LaneName, token int64) bool // the courier has this lease, and its outcome is not written yet
}

// laneCounts are what a lane's row says of its webhooks, counted anew.
type laneCounts struct{ waiting, parked, invalid, bytes, waitingSince, tail, missedSince int64 }

func (t *turn) time() time.Time { return clock.Moment(t.now) }

// adopt returns the turn's copy of a lane: the one that it has, or else this one.
func (t *turn) adopt(l *lane) *lane {
	if known := t.lanes[l.LaneName]; known != nil {
		return known
	}
	l.t, t.lanes[l.LaneName] = t, l
	return l
}

// laneOf returns the lane of a webhook that was read. One whose tenant is not certain has a lane without a row.
func (t *turn) laneOf(h *Webhook) *lane {
	if l := t.lanes[h.lane]; l != nil {
		return l
	}
	return t.adopt(newLane(webhookgate.LaneName{}))
}

// empty returns a lane in which nothing has come, to ask it something. The turn does not write it.
func (t *turn) empty(name webhookgate.LaneName) *lane {
	l := newLane(name)
	l.t = t
	return l
}

// changes are what a turn has to write, each table's rows in the order of the lanes' names.
type changes struct {
	lanes     []*lane
	noted     []*lane // of these only last, lastAt and stateAt
	missed    []*lane // of these what they are missed
	added     []*Webhook
	changed   []*Webhook
	deleted   []int64 // webhooks
	snapshots []*snapshot.Stored
	seen      []*seenRow
}

// changes returns what its lanes have to write.
func (t *turn) changes() (c changes) {
	for _, name := range sorted(t.lanes) {
		l := t.lanes[name]
		if l.dirty && name != (webhookgate.LaneName{}) {
			c.lanes = append(c.lanes, l)
		} else if l.noted && name != (webhookgate.LaneName{}) {
			c.noted = append(c.noted, l)
		}
		if l.savesMissed {
			c.missed = append(c.missed, l)
		}
		for _, h := range l.hooks {
			switch {
			case h.gone:
			case h.isNew:
				c.added = append(c.added, h)
			case h.changed:
				c.changed = append(c.changed, h)
			}
		}
		if l.snapshot != nil {
			c.snapshots = append(c.snapshots, l.snapshot)
		}
		c.seen, c.deleted = append(c.seen, l.newSeen...), append(c.deleted, l.deleted...)
	}
	return c
}

// byName orders lanes as every process locks them, so that no two wait for each other.
func byName(a, b webhookgate.LaneName) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Platform, b.Platform), cmp.Compare(a.Type, b.Type))
}

func sorted[V any](lanes map[webhookgate.LaneName]V) []webhookgate.LaneName {
	return slices.SortedFunc(maps.Keys(lanes), byName)
}

// memory is the part of a lane that is no row: what is known of its webhooks, and what must be written.
type memory struct {
	t        *turn
	hooks    []*Webhook              // those of its webhooks that are in memory, new ones included
	frontier int64                   // every waiting webhook that is not in memory has a position above this one
	seen     map[[32]byte][]*seenRow // signed ids; one row for each body that the id came with
	reads    bool                    // its invalid webhooks are in memory

	missed                   webhookgate.MissedSet // see lane.missing
	readsMissed, savesMissed bool

	dirty    bool
	noted    bool // last has changed; so has nothing else of the row, unless it is dirty, too
	snapshot *snapshot.Stored
	deleted  []int64
	newSeen  []*seenRow
}

// newLane returns a lane in which nothing has come.
func newLane(name webhookgate.LaneName) *lane {
	return &lane{LaneName: name, due: clock.Never, waitingSince: clock.Never, memory: memory{frontier: math.MinInt64}}
}

// row returns a copy of the lane's row, for another turn.
func (l *lane) row() *lane {
	row := *l
	row.memory = memory{frontier: math.MinInt64}
	return &row
}

// counts returns what the lane's row says.
func (l *lane) counts() laneCounts {
	return laneCounts{l.waiting, l.parked, l.invalid, l.bytes, l.waitingSince, l.tail, l.missedSince}
}

// hasChanged says whether the turn writes the lane's row.
func (l *lane) hasChanged() bool { return l.dirty }

// isAhead says whether the turn has changed webhooks of the lane: the database does not have that yet.
func (l *lane) isAhead() bool {
	return len(l.deleted) > 0 || l.savesMissed || slices.ContainsFunc(l.hooks, func(h *Webhook) bool { return h.isNew || h.changed || h.gone })
}

// recount makes a lane whole whose row is damaged, or says something else than its webhooks. These are counted, and what nobody can know is as in a
// new lane: what waits is tried at once, and nothing counts as a copy.
func (l *lane) recount() {
	now, c := l.t.now, l.t.inbox.CountWebhooks(l)
	if l.damaged != nil || c.waiting != l.waiting || c.bytes != l.bytes {
		l.t.logError("a tenant's row in the inbox was damaged: usher has counted its webhooks anew", "tenant", l.Tenant, "platform", l.Platform, "columns", l.damaged, "waiting", c.waiting)
	}
	l.t.added[l.receiver] += c.bytes - max(0, l.bytes)
	l.waiting, l.parked, l.invalid, l.bytes, l.waitingSince = c.waiting, c.parked, c.invalid, c.bytes, c.waitingSince
	if l.tail != c.tail && c.tail != 0 {
		l.tail, l.tailID = c.tail, ""
	}
	l.tailDigest, l.held, l.damaged, l.dirty = nil, nil, nil, true
	l.last, l.lastAt = max(l.last, l.tail), min(max(0, l.lastAt), now)
	l.missedSince, l.stateAt = c.missedSince, min(max(0, l.stateAt), now)
	l.failingSince, l.lastTry, l.token = min(max(0, l.failingSince), now), min(max(0, l.lastTry), now), max(0, l.token)
	if !l.leased() {
		l.owner = nil
		l.clearBackoff()
		l.release(now)
	}
}

// know returns the lane's copy of a webhook: the one that is in memory already, or else this one.
func (l *lane) know(h *Webhook) *Webhook {
	known := l.hook(h.ID)
	if known == nil {
		if slices.Contains(h.damaged, "state") { // nobody knows whether it was accepted: somebody has to say what becomes of it
			h.changed, l.dirty = true, true
			l.count(0, 1, h.Size)
			l.t.logError("a webhook's row in the inbox was damaged: usher has parked it", "id", h.ID, "tenant", h.Tenant, "platform", h.Platform, "columns", h.damaged)
		}
		l.hooks = append(l.hooks, h)
		return h
	}
	if !known.HasContent && h.HasContent {
		known.Header, known.Body, known.HasContent = h.Header, h.Body, true
	}
	return known
}

// hook returns a webhook that is in memory, or nil.
func (l *lane) hook(id int64) *Webhook {
	for _, h := range l.hooks {
		if h.ID == id && !h.gone {
			return h
		}
	}
	return nil
}

// knowFirst is for the lane's first waiting webhook but one: that was read ahead, so that the lane need not ask for it. except is the one that was
// not counted, which an outcome is about; zero: none.
func (l *lane) knowFirst(h *Webhook, except int64) {
	// If another one is being delivered now, it was the outcome of a lease that was lost, and this says nothing.
	if l.leasedID == except || !l.leased() && except == 0 {
		l.know(h)
		l.frontier = max(l.frontier, h.ID)
	}
}

// mayNeedFirst says whether a claim of the lane would ask for its first webhook.
func (l *lane) mayNeedFirst() bool { return !l.leased() && len(l.hooks) == 0 }

func (l *lane) inMemory() (ids []int64) {
	for _, h := range l.hooks {
		ids = append(ids, h.ID)
	}
	return ids
}

// first returns the first waiting webhook, not counting the one that somebody delivers.
func (l *lane) first() (first *Webhook) {
	elsewhere := l.waiting // how many are not in memory
	for _, h := range l.hooks {
		if h.State != Waiting || h.gone {
			continue
		}
		elsewhere--
		if h.ID != l.leasedID && (first == nil || h.ID < first.ID) {
			first = h
		}
	}
	if elsewhere <= 0 || first != nil && first.ID <= l.frontier {
		return first
	}
	except := l.inMemory()
	if l.leasedID != 0 {
		except = append(except, l.leasedID)
	}
	if h := l.t.inbox.FirstWaiting(l, except); h != nil {
		l.hooks, l.frontier = append(l.hooks, h), h.ID
		if first == nil || h.ID < first.ID {
			return h
		}
	}
	return first
}

// invalidOnes returns the lane's invalid webhooks, in the order in which their last copies came.
func (l *lane) invalidOnes() (all []*Webhook) {
	if l.invalid > 0 && !l.reads {
		for _, h := range l.t.inbox.InvalidWebhooks(l) {
			if !slices.Contains(l.inMemory(), h.ID) {
				l.hooks = append(l.hooks, h)
			}
		}
		l.reads = true
	}
	for _, h := range l.hooks {
		if h.State == Invalid && !h.gone {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b *Webhook) int { return cmp.Compare(a.rank, b.rank) })
	return all
}

// note leaves a number and the time in the lane, and returns the number. Whatever comes for the lane does so, also what is not taken in: it
// may say that a state which somebody has read meanwhile is older. So does an erasure.
func (l *lane) note() int64 {
	l.last, l.lastAt, l.noted = l.t.inbox.NextNumber(), l.t.now, true
	return l.last
}

// add puts a new webhook into the lane.
func (l *lane) add(row *Webhook, state State) {
	row.ID, row.Received, row.isNew = l.note(), l.t.time(), true
	row.rank = row.ID
	l.enter(row, state, "")
	l.hooks = append(l.hooks, row)
}

// move takes a webhook from its state into another one.
func (l *lane) move(h *Webhook, state State, why string) {
	l.leave(h)
	l.enter(h, state, why)
	h.changed = true
}

// leave subtracts a webhook from the lane's counts for the state that it is in.
func (l *lane) leave(h *Webhook) {
	l.dirty = true
	switch h.State {
	case Waiting:
		l.count(-1, 0, -h.Size)
		if l.tail == h.ID {
			l.tailDigest = nil
		}
	case Parked:
		l.count(0, -1, -h.Size)
	case Invalid:
		l.invalid--
	}
}

// enter puts a webhook into a state, and adds it to the lane's counts for that state.
func (l *lane) enter(h *Webhook, state State, why string) {
	h.State, h.Why, h.Changed, h.Next = state, why, l.t.time(), time.Time{}
	l.dirty = true
	switch state {
	case Waiting:
		l.count(1, 0, h.Size)
	case Parked:
		l.count(0, 1, h.Size)
	case Invalid:
		l.invalid++
	default:
		l.t.hasFinished = true
	}
}

func (l *lane) count(waiting, parked, bytes int64) {
	l.waiting += waiting
	l.parked += parked
	l.bytes += bytes
	l.t.added[l.receiver] += bytes
}

// drop deletes a webhook.
func (l *lane) drop(h *Webhook) {
	l.leave(h)
	h.gone = true
	if !h.isNew {
		l.deleted = append(l.deleted, h.ID)
	}
}

// supersedeParked is for a snapshot that has just been accepted or parked. It supersedes the parked snapshot that is older. If one that is
// newer is parked already, because somebody redelivered this one with force, that one stays. So a lane has one parked snapshot at most.
func (l *lane) supersedeParked(h *Webhook) {
	others := l.parked
	if h.State == Parked {
		others--
	}
	if !h.snapshot || others == 0 {
		return
	}
	for _, p := range l.t.inbox.ParkedSnapshots(l) {
		switch p = l.know(p); {
		case p == h || p.State != Parked: // this transaction has moved it
		case p.ID < h.ID:
			l.move(p, Superseded, supersededWhy)
		case h.State == Parked:
			l.move(h, Superseded, supersededWhy)
		}
	}
}

// idle says whether nothing waits, and nobody delivers anything.
func (l *lane) idle() bool { return l.waiting == 0 && !l.leased() }

// An incoming webhook is one that shall be taken in.
type incoming struct {
	*Webhook  // as the row that it becomes; take copies it
	name      webhookgate.LaneName
	signedID  [32]byte
	signed    bool
	receiver  *receiver.Receiver
	state     *snapshot.Stored // nil: the webhook is no snapshot
	unhurried bool             // it may be delivered when the courier comes by
	accepting *Webhook         // the invalid webhook that somebody accepts: so it is no duplicate
	arrived   int64            // when it came, by the database's clock; zero: it did not come from the sender
	came      time.Time        // the same, by our clock
}

// take answers with the webhook-id of the original if the webhook is a duplicate, and else puts it at the end of the lane. If the lane
// was idle, and there is room at the courier, that also gives the lease.
func (l *lane) take(in *incoming) (a Answer) {
	t := l.t
	if original, again := l.duplicate(in); original != "" && in.accepting == nil {
		l.note()
		l.noteTaken(in, again)
		seq := int64(0)
		if original == l.tailID {
			seq = l.tail
		}
		l.rememberID(in, seq, original) // the same id must be a duplicate later, too, whatever has come meanwhile
		if in.snapshot && !again {
			for _, old := range l.invalidOnes() {
				old.setNewer(true)
			}
		}
		return Answer{DuplicateOf: original, again: again}
	}
	return l.takeIn(in, t.StoreUnclaimed && in.receiver == nil)
}

// takeIn puts a webhook at the end of the lane. With store it is stored, unless it must queue behind another one.
func (l *lane) takeIn(in *incoming, store bool) (a Answer) {
	t := l.t
	l.goTo(in.receiver)
	stored := store && l.parked == 0 && l.idle()
	if !stored {
		if err := t.inbox.HasRoom(l, in.Size); err != nil {
			return Answer{Err: err}
		}
	}
	row := *in.Webhook
	if stored {
		l.store(&row, in.state)
	} else {
		a = l.enqueue(&row, in)
	}
	a.id = row.ID
	l.noteTaken(in, false)
	l.rememberID(in, row.ID, row.UUID)
	if in.snapshot {
		l.supersedeInvalid(in)
	}
	if in.accepting != nil {
		l.move(in.accepting, Replaced, fmt.Sprint("taken in as ", row.ID))
	}
	return a
}

// becomeTail makes a new webhook the lane's tail.
func (l *lane) becomeTail(row *Webhook, state *snapshot.Stored) {
	l.tail, l.tailID, l.dirty = row.ID, row.UUID, true
	if state != nil {
		s := *state
		s.Seq, s.Received = row.ID, row.Received
		l.memory.snapshot = &s
	}
}

// store takes a webhook in as stored: it is not delivered, and dedup goes by usher itself as its receiver.
func (l *lane) store(row *Webhook, state *snapshot.Stored) {
	l.add(row, Stored)
	l.becomeTail(row, state)
	l.tailDigest = nil
	l.held, l.heldAt, l.heldBy, l.heldID = dedupDigest(row), l.t.now, "", row.UUID
}

// enqueue puts a webhook at the end of the lane.
func (l *lane) enqueue(row *Webhook, in *incoming) (a Answer) {
	t := l.t
	idle := l.idle()
	l.endExpiredLease()
	former := l.hook(l.tail)
	l.add(row, Waiting)
	l.becomeTail(row, in.state)
	l.tailDigest = dedupDigest(row)
	if !idle {
		// Its backoff, its pause and its turn stay, also if nothing older waits any more.
		if former != nil && former.ID != l.leasedID && l.replaces(row, former) {
			l.move(former, Superseded, supersededWhy)
			if l.waiting == 1 {
				l.waitingSince = t.now
			}
		}
		return a
	}
	// From here on the receiver may hold this webhook or the one before: a try may succeed without our knowing. Only a 2xx says
	// which.
	l.held, l.waitingSince = nil, t.now
	l.clearBackoff()
	l.release(t.now)
	if in.receiver == nil || l.paused || in.unhurried {
		return a
	}
	if t.inbox.Reserve(in.receiver, row.Size) {
		a.lease = l.lease(row, in.receiver)
	} else {
		a.unleased = true
	}
	return a
}

// replaces says whether the settings want a webhook to supersede the one that waits right before it in the lane.
func (l *lane) replaces(next, h *Webhook) bool {
	return l.t.Latest && next.ID > h.ID && next.snapshot && h.snapshot && h.State == Waiting && h.Again.IsZero()
}

// noteSince notes since when the lane's first webhook waits.
func (l *lane) noteSince() {
	if next := l.first(); next != nil {
		l.waitingSince, l.dirty = next.AgeFrom().UnixMicro(), true
	}
}

// supersedeInvalid supersedes the tenant's invalid webhooks: this snapshot is newer and complete. It leaves alone events of
// other types, whose content no snapshot has. If this webhook is an invalid one that somebody has accepted, it only supersedes
// those that were last received before it: the others are newer.
func (l *lane) supersedeInvalid(in *incoming) {
	for _, old := range l.invalidOnes() {
		sameType := old.Type == in.Type || old.Type == ""
		isOlder := in.accepting == nil || old.rank < in.accepting.rank
		if sameType && isOlder {
			l.move(old, Superseded, "a newer snapshot of the tenant was taken in")
		} else if sameType {
			old.setNewer(false)
		}
	}
}

// reconcile compares what the billing service says of the tenant with what usher knows. If that is not the same it
// takes it in, at the end of the lane and never as a duplicate, if it has leave to. What came for the tenant before the
// run began and was not taken in needs nobody any more, unless the tenant still differs.
func (l *lane) reconcile(in *offer, r *Run, leave leave) (c Compared) {
	c = in.judge(r, l.last, l.lastAt, l.t.inbox.LastSnapshot(l))
	switch {
	case leave == toSee:
	case c.Result == Equal:
		l.supersedeEqual()
		l.settleMissed()
	case leave == toCompare || c.Result != Differs && c.Result != NewTenant:
	case leave == toStore && (l.parked > 0 || !l.idle()): // it would be known, and something older be delivered after it
		c.LeftOut = "its webhooks wait or are parked"
	default:
		before, first := l.lastAt, l.tail == 0
		a := l.takeIn(&in.incoming, leave == toStore || l.t.StoreUnclaimed && in.receiver == nil)
		if c.Applied, c.Err = a.Err == nil, a.Err; c.Applied {
			c.first = first
			l.lastAt = max(before, r.KnowsUpTo().UnixMicro()) // what it says is as old as the list
			l.settleMissed()
			l.noteState(r.KnowsUpTo().UnixMicro())
		}
	}
	return c
}

// supersedeEqual supersedes the tenant's invalid snapshots, because the billing service says the same as usher since.
func (l *lane) supersedeEqual() {
	for _, old := range l.invalidOnes() {
		if old.Type == content.TenantProvisioningChange || old.Type == "" {
			l.move(old, Superseded, "the billing service said later that the tenant is as usher knows it")
		}
	}
}

// rememberID stores the webhook's signed id, if it has one, together with the original: the webhook itself, or the one that it
// is a duplicate of. seq is the original's number; zero: the original counts as delivered.
func (l *lane) rememberID(in *incoming, seq int64, uuid string) {
	if !in.signed {
		return
	}
	id := &seenRow{seenID: seenID{l.LaneName, in.signedID}, digest: in.digest, seq: seq, at: l.t.now, state: Waiting, uuid: uuid}
	same := func(known *seenRow) bool { return bytes.Equal(known.digest, id.digest) }
	if uuid != in.Webhook.UUID && slices.ContainsFunc(l.seen[id.hash], func(known *seenRow) bool { return same(known) && l.makesCopy(known) }) {
		return // the 15 minutes count from the first time
	}
	if l.seen != nil {
		l.seen[id.hash] = slices.DeleteFunc(l.seen[id.hash], same)
	}
	l.knowID(id)
	l.newSeen = append(slices.DeleteFunc(l.newSeen, func(r *seenRow) bool { return r.hash == id.hash && same(r) }), id)
}

// knowID is for a signed id that was read.
func (l *lane) knowID(r *seenRow) {
	if l.seen == nil {
		l.seen = make(map[[32]byte][]*seenRow)
	}
	l.seen[r.hash] = append(l.seen[r.hash], r)
}

// makesCopy says whether a webhook with this id and body is a duplicate: not if the original was parked or discarded, or came
// too long ago.
func (l *lane) makesCopy(r *seenRow) bool {
	state := r.state
	if original := l.hook(r.seq); original != nil { // it may have changed in this transaction
		state = original.State
	}
	return l.recent(r) && (state == Waiting || state.Taken() || state == Superseded)
}

func (l *lane) recent(r *seenRow) bool { return l.t.now-r.at < clock.Micros(seenIDsFor) }

// duplicate returns the webhook-id of the original if the webhook is a duplicate, and else an empty string. This is the whole
// rule:
//
//   - A signed id that was seen within 15 minutes, with the same body, is a duplicate whatever has come since.
//   - While webhooks wait in the lane, a copy of the tail is a duplicate, if the tail still waits.
//   - If none waits, a copy of the snapshot that the receiver holds for sure is a duplicate, if the same receiver accepted
//     it within the window.
//
// Anything else may be a change. In A, B, A the second A is not a duplicate.
//
// again: it is one that came before, by its signed id, and says nothing about what has come since.
func (l *lane) duplicate(in *incoming) (original string, again bool) {
	reused := false
	if in.signed {
		for _, seen := range l.seen[in.signedID] {
			same := bytes.Equal(seen.digest, in.digest)
			if same && l.makesCopy(seen) {
				return seen.uuid, true
			}
			reused = reused || !same && l.recent(seen)
		}
	}
	if reused {
		l.t.warn("webhook-id was used before, for another body: usher accepts the webhook", "webhook", in.Webhook.UUID, "tenant", in.Tenant)
	}
	if in.snapshot && l.hasSnapshot(in.digest, nameOf(in.receiver)) {
		return l.tailID, false
	}
	return "", false
}

// hasSnapshot says whether a receiver holds exactly this snapshot, or will, when all waiting webhooks are delivered.
func (l *lane) hasSnapshot(digest []byte, receiver string) bool {
	if l.t.DedupWindow == 0 {
		return false
	}
	if l.waiting > 0 {
		return l.tailDigest != nil && bytes.Equal(l.tailDigest, digest)
	}
	// After a forced redelivery the receiver holds an older snapshot than the tail. Then a copy of that older one is a change,
	// which the sender made after the tail.
	holdsTail := l.held != nil && l.heldID == l.tailID && l.heldBy == receiver
	age := time.Duration(l.t.now-l.heldAt) * time.Microsecond
	return holdsTail && bytes.Equal(l.held, digest) && age.Abs() < l.t.DedupWindow
}

// reject stores a webhook that cannot be taken in. A copy of one that nobody has dealt with is only counted.
func (l *lane) recordInvalid(in *Webhook, known *Webhook) *Webhook {
	if known != nil && known.State == Invalid && !known.gone {
		known.Times++
		known.Changed, known.rank, known.Newer, known.changed = l.t.time(), l.note(), false, true
		return known
	}
	if l.LaneName != (webhookgate.LaneName{}) {
		for all := l.invalidOnes(); len(all) > 0 && len(all) >= l.t.MaxInvalid; all = all[1:] {
			l.t.warn("deleted an invalid webhook: its tenant has too many", "id", all[0].ID, "tenant", all[0].Tenant)
			l.drop(all[0])
		}
	}
	row := *in
	l.add(&row, Invalid)
	row.rank = row.ID
	l.t.hasInvalid = true
	return &row
}

// leased says whether a process has a valid lease for the lane, and may be delivering it. After the clock has jumped every lease
// counts as valid for a while. One of this process does until its outcome is written: after an outage of the database that may be later
// than its end, and what was accepted meanwhile must not be delivered again.
func (l *lane) leased() bool {
	ours := bytes.Equal(l.owner, l.t.owner)
	if l.t.alone {
		return ours
	}
	return l.owner != nil && (l.due > l.t.now || !l.t.mayTakeOver || ours && l.t.inbox.Delivers(l.LaneName, l.token))
}

// endExpiredLease takes the lane from an owner whose lease has ended. What changes the webhook which that owner was
// delivering must call it first, so that a late outcome no longer matches the row.
func (l *lane) endExpiredLease() {
	if l.owner != nil && !l.leased() {
		l.release(l.t.now)
		l.frontier = math.MinInt64 // what it delivered may not be in memory
	}
}

// lease gives this process a lease for the lane, to deliver h, which is its first webhook.
func (l *lane) lease(h *Webhook, rc *receiver.Receiver) *Lease {
	l.owner, l.leasedID, l.due, l.dirty = l.t.owner, h.ID, l.t.now+clock.Micros(l.t.leaseTime), true
	l.token++
	lease := &Lease{Webhook: h, Receiver: rc, LastTryFailed: l.lastResult != lastOK, FailedBefore: l.failingSince != 0, Lane: l.LaneName, lastTry: l.lastTry, token: l.token}
	lease.extend(l.t.leaseEnd())
	return lease
}

// claim gives this process a lease for the lane, if nobody has one and a webhook waits. If the settings say now that another receiver
// takes the lane, it notes that instead.
func (l *lane) claim(rc *receiver.Receiver) *Lease {
	if l.leased() {
		return nil
	}
	l.endExpiredLease()
	if l.route(); l.receiver != rc.Name {
		return nil
	}
	h := l.first()
	if h == nil && !l.paused { // its row says something else than its webhooks, and it would be claimed for ever
		l.recount()
		h = l.first()
	}
	if l.paused || h == nil {
		l.release(l.t.now)
		return nil
	}
	return l.lease(h, rc)
}

// route notes which receiver takes the lane's webhooks, by the settings of now.
func (l *lane) route() {
	if l.t.Receivers != nil { // else this process delivers nothing, and does not know
		l.goTo(l.t.Receivers.For(l.Platform))
	}
}

// goTo notes the lane's receiver. What another one has failed to do, or asked for, does not count any more.
func (l *lane) goTo(rc *receiver.Receiver) {
	if nameOf(rc) == l.receiver || l.leased() {
		return
	}
	l.endExpiredLease()
	l.t.added[l.receiver] -= l.bytes
	l.receiver, l.failingSince, l.dirty = nameOf(rc), 0, true
	l.t.added[l.receiver] += l.bytes
	l.clearBackoff()
	l.release(l.t.now)
}

// holds says whether this process still has this lease. If not, the lease has ended, and another process may have the lane.
func (l *lane) holds(lease *Lease) bool {
	return l != nil && bytes.Equal(l.owner, l.t.owner) && l.token == lease.token && l.leasedID == lease.Webhook.ID
}

// renew lets a lease last longer.
func (l *lane) renew(lease *Lease) bool {
	if !l.holds(lease) {
		return false
	}
	l.due, l.dirty = l.t.now+clock.Micros(l.t.leaseTime), true
	return true
}

// A settlement is what came of a try.
type settlement struct {
	LeaseLost bool      // the lease had ended, and nothing was written
	Tried     Webhook   // the webhook as it is now
	NextLease *Lease    // the same lease, for the lane's next webhook; nil: the lease has ended
	NextTry   time.Time // when a webhook that was not accepted is tried again
	LaneReady bool      // webhooks wait in the lane, and any process may lease it now
}

// settle moves the webhook that was tried into its next state, and then continues the lease with the lane's next webhook, or ends it.
func (l *lane) settle(o *Outcome) (s settlement) {
	if !l.holds(o.Lease) {
		return settlement{LeaseLost: true}
	}
	t := l.t
	h := l.know(o.Lease.Webhook.stored())
	defer func() { s.Tried, s.LaneReady = *h, l.waiting > 0 && l.owner == nil && l.due <= t.now }()
	if o.Aborted {
		at := t.now + clock.Micros(o.RetryIn)
		if o.Lease.givenBack {
			at = min(t.now, l.waitingSince) // it keeps its turn
		}
		l.release(at)
		return s
	}
	if o.ContentErr == nil {
		began := t.time().Add(-time.Since(o.Began))
		h.noteTry(began, o.Took, o.Try)
		h.Receiver, h.changed = o.Lease.Receiver.Name, true
		l.lastTry = began.UnixMicro()
		if o.Counts {
			h.Counted++
		}
		switch {
		case o.Try.Accepted():
			l.failingSince = 0
		case l.failingSince == 0 || l.failingSince > t.now: // a time in the future is from before the clock was set back
			l.failingSince = t.now
		}
	}
	why := o.parkReason(t.Rules, h, t.time())
	switch {
	case o.Try.Accepted() && o.ContentErr == nil:
		l.move(h, Delivered, "")
		l.held, l.heldAt, l.heldBy, l.heldID = dedupDigest(h), t.now, h.Receiver, h.UUID
		l.supersedeParked(h)
	case why != "":
		if o.ContentErr != nil || !l.supersedeTried(h) {
			l.move(h, Parked, why)
			l.supersedeParked(h)
		}
		l.held = nil // the receiver may have accepted it in a try whose answer got lost
	default:
		s.NextTry = l.retry(o, h)
		return s
	}
	l.clearFailures()
	s.NextLease = l.proceed(o)
	return s
}

// supersedeTried supersedes a webhook whose try failed, if one that replaces it came meanwhile.
func (l *lane) supersedeTried(h *Webhook) bool {
	if !l.t.Latest {
		return false
	}
	if next := l.first(); next == nil || !l.replaces(next, h) {
		return false
	}
	l.move(h, Superseded, supersededWhy)
	return true
}

// retry ends the lease after a failed try, and says when the lane is due again.
func (l *lane) retry(o *Outcome, h *Webhook) time.Time {
	t := l.t
	l.lastResult = lastFailed
	if o.IsMiss() {
		l.lastResult = lastMiss
	}
	backoff := t.Jitter(min(minBackoff<<min(l.failures, 20), maxBackoff))
	l.notBefore = 0
	if after := min(o.Try.RetryAfter, maxRetryAfter); after > 0 {
		l.notBefore = t.now + clock.Micros(after)
	}
	l.failures++
	if l.supersedeTried(h) {
		l.held = nil
		l.noteSince()
	}
	l.release(t.now + clock.Micros(backoff))
	if !l.paused && h.State == Waiting {
		h.Next = clock.Moment(l.due)
	}
	h.changed = true
	return clock.Moment(l.due)
}

// proceed continues the lease with the lane's next webhook, or ends it.
func (l *lane) proceed(o *Outcome) *Lease {
	t := l.t
	next := l.first()
	l.noteSince()
	if next == nil || !o.WantsNext || l.paused || l.notBefore > t.now || o.Lease.inARow >= maxInARow {
		l.release(t.now)
		return nil
	}
	lease := &Lease{Webhook: next, Receiver: o.Lease.Receiver, FailedBefore: l.failingSince != 0, Lane: l.LaneName, lastTry: l.lastTry, token: l.token, inARow: o.Lease.inARow + 1}
	lease.extend(t.leaseEnd())
	l.leasedID, l.due = next.ID, t.now+clock.Micros(t.leaseTime)
	return lease
}

// redeliver puts a webhook back into the lane, in the place of its number: ahead of all that came after it. asked is its state when somebody asked for
// it, or chose it.
func (l *lane) redeliver(h *Webhook, asked State, force bool) error {
	t := l.t
	l.endExpiredLease()
	switch {
	case l.leased() && l.leasedID == h.ID:
		return ErrBusy
	case h.State == Waiting:
		l.clearBackoff()
		l.reschedule()
		return nil
	case asked == Waiting && h.State == Superseded, asked.Open() && h.State == Delivered:
		return nil // it was to be delivered when it was asked for, and was meanwhile; once more could overwrite a newer one
	case h.State == Stored && t.Receivers.For(h.Platform) == nil:
		return ErrStored
	case l.Tenant != "" && l.tail > h.ID && !force:
		return &OverwriteError{h.ID, l.tailWebhook()}
	case h.State != Parked:
		if err := t.inbox.HasRoom(l, h.Size); err != nil {
			return err
		}
	}
	idle := l.waiting == 0
	l.leave(h)
	h.Record = Record{Tried: h.Tried, Again: t.time(), Forced: force && l.tail > h.ID}
	l.enter(h, Waiting, "")
	h.changed = true
	l.held = nil
	switch {
	case l.tail == h.ID:
		l.tailDigest = dedupDigest(h)
	case l.owner != nil && l.leasedID == l.tail:
		// The tail is being delivered, and this one comes after it. So a copy of the tail is a change again.
		l.tailDigest = nil
	}
	if idle {
		l.waitingSince = t.now
	}
	if !l.leased() {
		l.route() // it may have been stored, and have a receiver now
		l.clearBackoff()
		l.release(t.now)
	}
	return nil
}

// reschedule computes the lane's due time anew, unless a process has leased it: then the outcome does that.
func (l *lane) reschedule() {
	if !l.leased() {
		l.release(l.t.now)
	}
}

// discard does nothing more with a webhook.
func (l *lane) discard(h *Webhook) error {
	l.endExpiredLease()
	switch {
	case h.State.Finished():
		return ErrFinished
	case h.State == Invalid:
		l.move(h, Discarded, byHand)
		return nil
	case l.leased() && l.leasedID == h.ID:
		return ErrBusy
	}
	wasFirst := h.State == Waiting && l.first() == h
	l.move(h, Discarded, byHand)
	l.held = nil // the receiver may have accepted it in a try whose answer got lost
	if wasFirst && !l.leased() {
		l.noteSince()
		l.clearBackoff()
		l.release(l.t.now)
	}
	return nil
}

const byHand = "discarded by hand"

// pause holds the lane back, or not.
func (l *lane) pause(yes bool) {
	if l.paused != yes {
		l.paused, l.dirty = yes, true
		l.reschedule()
	}
}

// forget drops what dedup compares with, and says whether there was anything.
func (l *lane) forget() bool {
	l.t.inbox.ForgetIDs(l)
	l.seen, l.newSeen = nil, nil
	missed := l.missedSince > 0
	l.settleMissed()
	return l.forgetCopies() || missed
}

// erase deletes everything.
func (l *lane) erase() (count int, err error) {
	t := l.t
	if l.leased() {
		// The action is tried again until the lease has ended. Meanwhile its holder must not continue with the lane's next webhook.
		if until := t.now + clock.Micros(eraseHold); l.notBefore < until-clock.Micros(eraseHold/2) {
			l.notBefore, l.dirty = until, true
		}
		return 0, ErrBusy
	}
	l.forget()
	for _, h := range l.hooks {
		if h.isNew && !h.gone {
			count++
		}
		h.gone = true // the turn may know it elsewhere, too
	}
	count += t.inbox.EraseWebhooks(l)
	t.added[l.receiver] -= l.bytes
	l.hooks, l.deleted, l.memory.snapshot, l.frontier, l.reads = nil, nil, nil, math.MinInt64, false
	l.waiting, l.parked, l.invalid, l.bytes = 0, 0, 0, 0
	l.tail, l.tailID, l.failingSince = 0, "", 0
	l.noteState(t.now) // what came before it counts as older than what comes
	l.note()
	l.clearBackoff()
	l.release(t.now)
	return count, nil
}
