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
type Turn struct {
	*Rules
	Process
	Now     int64     // the database's time
	AskedAt time.Time // our time before the transaction began; leases count from here
	Lanes   map[webhookgate.LaneName]*Lane
	Inbox   Inbox_

	MayTakeOver bool // a lease that has ended may be taken from its owner

	AddedBytes  map[string]int64 // by how much the bytes that wait or are parked change, for each receiver
	HasFinished bool             // a webhook is finished now: there may be something to sweep
	HasInvalid  bool             // the same, of invalid webhooks
	AfterCommit []func()         // what to do once the transaction is committed; it may run again before
}

// warn logs something once the transaction is committed.
func (t *Turn) Warn(message string, args ...any) {
	t.AfterCommit = append(t.AfterCommit, func() { t.Log.Warn(message, args...) })
}

// logError is like warn, for what somebody should look at.
func (t *Turn) LogError(message string, args ...any) {
	t.AfterCommit = append(t.AfterCommit, func() { t.Log.Error(message, args...) })
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
type Process struct {
	Owner     []byte // its name in leases
	LeaseTime time.Duration
	Alone     bool // no other process has this inbox: an owner that is not this process has ended
}

// An inbox is what a turn asks of the inbox around it: what of a lane is not in memory, and what lanes share. In a test it
// is slices.
type Inbox_ interface {
	// FirstWaiting returns the first waiting webhook that is none of these; nil: there is none.
	FirstWaiting(l *Lane, except []int64) *Webhook
	InvalidWebhooks(l *Lane) []*Webhook    // all; there are few
	ParkedSnapshots(l *Lane) []*Webhook    // one at most, but after an import
	LastSnapshot(l *Lane) *snapshot.Stored // when the turn began; nil: there is none
	LastSnapshotDigest(l *Lane) []byte     // nil: there is none, or its webhook was deleted
	MissedWebhooks(l *Lane) []webhookgate.MissedWebhook
	// CameAfterAll says of a webhook that got a 5xx whether its COMMIT, which was in doubt, has stored it; or whether the
	// same bytes have come since, be it that they are recorded as invalid.
	CameAfterAll(l *Lane, m *webhookgate.MissedWebhook) bool
	CountWebhooks(l *Lane) Counts
	EraseWebhooks(l *Lane) (count int)
	ForgetIDs(l *Lane)

	NextNumber() int64                                    // of the next new webhook
	HasRoom(l *Lane, size int64) error                    // for one more webhook
	Reserve(rc *receiver.Receiver, size int64) bool       // room at the courier, until the turn ends; false without a courier
	Delivers(lane webhookgate.LaneName, token int64) bool // the courier has this lease, and its outcome is not written yet
}

// laneCounts are what a lane's row says of its webhooks, counted anew.
type Counts struct{ Waiting, Parked, Invalid, Bytes, WaitingSince, Tail, MissedSince int64 }

func (t *Turn) Time() time.Time { return clock.Moment(t.Now) }

// adopt returns the turn's copy of a lane: the one that it has, or else this one.
func (t *Turn) Load(l *Lane) *Lane {
	if known := t.Lanes[l.LaneName]; known != nil {
		return known
	}
	l.t, t.Lanes[l.LaneName] = t, l
	return l
}

// laneOf returns the lane of a webhook that was read. One whose tenant is not certain has a lane without a row.
func (t *Turn) LaneOf(h *Webhook) *Lane {
	if l := t.Lanes[h.Lane]; l != nil {
		return l
	}
	return t.Load(NewLane(webhookgate.LaneName{}))
}

// empty returns a lane in which nothing has come, to ask it something. The turn does not write it.
func (t *Turn) Empty(name webhookgate.LaneName) *Lane {
	l := NewLane(name)
	l.t = t
	return l
}

// changes are what a turn has to write, each table's rows in the order of the lanes' names.
type Changes struct {
	Lanes     []*Lane
	Stamped   []*Lane // of these only last, lastAt and stateAt
	Missed    []*Lane // of these what they are missed
	Added     []*Webhook
	Changed   []*Webhook
	Deleted   []int64 // webhooks
	Snapshots []*snapshot.Stored
	Seen      []*SeenID
}

// changes returns what its lanes have to write.
func (t *Turn) Changes() (c Changes) {
	for _, name := range SortedNames(t.Lanes) {
		l := t.Lanes[name]
		if l.changed && name != (webhookgate.LaneName{}) {
			c.Lanes = append(c.Lanes, l)
		} else if l.stamped && name != (webhookgate.LaneName{}) {
			c.Stamped = append(c.Stamped, l)
		}
		if l.savesMissed {
			c.Missed = append(c.Missed, l)
		}
		for _, h := range l.hooks {
			switch {
			case h.gone:
			case h.isNew:
				c.Added = append(c.Added, h)
			case h.changed:
				c.Changed = append(c.Changed, h)
			}
		}
		if l.snapshot != nil {
			c.Snapshots = append(c.Snapshots, l.snapshot)
		}
		c.Seen, c.Deleted = append(c.Seen, l.newSeen...), append(c.Deleted, l.deleted...)
	}
	return c
}

// byName orders lanes as every process locks them, so that no two wait for each other.
func CompareNames(a, b webhookgate.LaneName) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Platform, b.Platform), cmp.Compare(a.Type, b.Type))
}

func SortedNames[V any](lanes map[webhookgate.LaneName]V) []webhookgate.LaneName {
	return slices.SortedFunc(maps.Keys(lanes), CompareNames)
}

// memory is the part of a lane that is no row: what is known of its webhooks, and what must be written.
type inMemory struct {
	t          *Turn
	hooks      []*Webhook             // those of its webhooks that are in memory, new ones included
	frontier   int64                  // every waiting webhook that is not in memory has a position above this one
	seen       map[[32]byte][]*SeenID // signed ids; one row for each body that the id came with
	hasInvalid bool                   // its invalid webhooks are in memory

	missed                 webhookgate.MissedSet // see lane.missing
	hasMissed, savesMissed bool

	changed  bool
	stamped  bool // last has changed; so has nothing else of the row, unless it is dirty, too
	snapshot *snapshot.Stored
	deleted  []int64
	newSeen  []*SeenID
}

// newLane returns a lane in which nothing has come.
func NewLane(name webhookgate.LaneName) *Lane {
	return &Lane{LaneName: name, Due: clock.Never, WaitingSince: clock.Never, inMemory: inMemory{frontier: math.MinInt64}}
}

// row returns a copy of the lane's row, for another turn.
func (l *Lane) Row() *Lane {
	row := *l
	row.inMemory = inMemory{frontier: math.MinInt64}
	return &row
}

// counts returns what the lane's row says.
func (l *Lane) Counts() Counts {
	return Counts{l.Waiting, l.Parked, l.Invalid, l.Bytes, l.WaitingSince, l.Tail, l.MissedSince}
}

// hasChanged says whether the turn writes the lane's row.
func (l *Lane) HasChanged() bool { return l.changed }

// isAhead says whether the turn has changed webhooks of the lane: the database does not have that yet.
func (l *Lane) HasUnsaved() bool {
	return len(l.deleted) > 0 || l.savesMissed || slices.ContainsFunc(l.hooks, func(h *Webhook) bool { return h.isNew || h.changed || h.gone })
}

// recount makes a lane whole whose row is damaged, or says something else than its webhooks. These are counted, and what nobody can know is as in a
// new lane: what waits is tried at once, and nothing counts as a copy.
func (l *Lane) Recount() {
	now, c := l.t.Now, l.t.Inbox.CountWebhooks(l)
	if l.Damaged != nil || c.Waiting != l.Waiting || c.Bytes != l.Bytes {
		l.t.LogError("a tenant's row in the inbox was damaged: usher has counted its webhooks anew", "tenant", l.Tenant, "platform", l.Platform, "columns", l.Damaged, "waiting", c.Waiting)
	}
	l.t.AddedBytes[l.ReceiverName] += c.Bytes - max(0, l.Bytes)
	l.Waiting, l.Parked, l.Invalid, l.Bytes, l.WaitingSince = c.Waiting, c.Parked, c.Invalid, c.Bytes, c.WaitingSince
	if l.Tail != c.Tail && c.Tail != 0 {
		l.Tail, l.TailID = c.Tail, ""
	}
	l.TailDigest, l.Held, l.Damaged, l.changed = nil, nil, nil, true
	l.Last, l.LastAt = max(l.Last, l.Tail), min(max(0, l.LastAt), now)
	l.MissedSince, l.StateAt = c.MissedSince, min(max(0, l.StateAt), now)
	l.FailingSince, l.LastTry, l.Token = min(max(0, l.FailingSince), now), min(max(0, l.LastTry), now), max(0, l.Token)
	if !l.leased() {
		l.Owner = nil
		l.clearBackoff()
		l.release(now)
	}
}

// know returns the lane's copy of a webhook: the one that is in memory already, or else this one.
func (l *Lane) Load(h *Webhook) *Webhook {
	known := l.Loaded(h.ID)
	if known == nil {
		if slices.Contains(h.Damaged, "state") { // nobody knows whether it was accepted: somebody has to say what becomes of it
			h.changed, l.changed = true, true
			l.count(0, 1, h.Size)
			l.t.LogError("a webhook's row in the inbox was damaged: usher has parked it", "id", h.ID, "tenant", h.Tenant, "platform", h.Platform, "columns", h.Damaged)
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
func (l *Lane) Loaded(id int64) *Webhook {
	for _, h := range l.hooks {
		if h.ID == id && !h.gone {
			return h
		}
	}
	return nil
}

// knowFirst is for the lane's first waiting webhook but one: that was read ahead, so that the lane need not ask for it. except is the one that was
// not counted, which an outcome is about; zero: none.
func (l *Lane) LoadFirst(h *Webhook, except int64) {
	// If another one is being delivered now, it was the outcome of a lease that was lost, and this says nothing.
	if l.LeasedID == except || !l.leased() && except == 0 {
		l.Load(h)
		l.frontier = max(l.frontier, h.ID)
	}
}

// mayNeedFirst says whether a claim of the lane would ask for its first webhook.
func (l *Lane) NeedsFirst() bool { return !l.leased() && len(l.hooks) == 0 }

func (l *Lane) LoadedIDs() (ids []int64) {
	for _, h := range l.hooks {
		ids = append(ids, h.ID)
	}
	return ids
}

// first returns the first waiting webhook, not counting the one that somebody delivers.
func (l *Lane) First() (first *Webhook) {
	elsewhere := l.Waiting // how many are not in memory
	for _, h := range l.hooks {
		if h.State != Waiting || h.gone {
			continue
		}
		elsewhere--
		if h.ID != l.LeasedID && (first == nil || h.ID < first.ID) {
			first = h
		}
	}
	if elsewhere <= 0 || first != nil && first.ID <= l.frontier {
		return first
	}
	except := l.LoadedIDs()
	if l.LeasedID != 0 {
		except = append(except, l.LeasedID)
	}
	if h := l.t.Inbox.FirstWaiting(l, except); h != nil {
		l.hooks, l.frontier = append(l.hooks, h), h.ID
		if first == nil || h.ID < first.ID {
			return h
		}
	}
	return first
}

// invalidOnes returns the lane's invalid webhooks, in the order in which their last copies came.
func (l *Lane) invalidOnes() (all []*Webhook) {
	if l.Invalid > 0 && !l.hasInvalid {
		for _, h := range l.t.Inbox.InvalidWebhooks(l) {
			if !slices.Contains(l.LoadedIDs(), h.ID) {
				l.hooks = append(l.hooks, h)
			}
		}
		l.hasInvalid = true
	}
	for _, h := range l.hooks {
		if h.State == Invalid && !h.gone {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b *Webhook) int { return cmp.Compare(a.Rank, b.Rank) })
	return all
}

// note leaves a number and the time in the lane, and returns the number. Whatever comes for the lane does so, also what is not taken in: it
// may say that a state which somebody has read meanwhile is older. So does an erasure.
func (l *Lane) stamp() int64 {
	l.Last, l.LastAt, l.stamped = l.t.Inbox.NextNumber(), l.t.Now, true
	return l.Last
}

// add puts a new webhook into the lane.
func (l *Lane) add(row *Webhook, state State) {
	row.ID, row.Received, row.isNew = l.stamp(), l.t.Time(), true
	row.Rank = row.ID
	l.enterState(row, state, "")
	l.hooks = append(l.hooks, row)
}

// move takes a webhook from its state into another one.
func (l *Lane) move(h *Webhook, state State, why string) {
	l.leaveState(h)
	l.enterState(h, state, why)
	h.changed = true
}

// leave subtracts a webhook from the lane's counts for the state that it is in.
func (l *Lane) leaveState(h *Webhook) {
	l.changed = true
	switch h.State {
	case Waiting:
		l.count(-1, 0, -h.Size)
		if l.Tail == h.ID {
			l.TailDigest = nil
		}
	case Parked:
		l.count(0, -1, -h.Size)
	case Invalid:
		l.Invalid--
	}
}

// enter puts a webhook into a state, and adds it to the lane's counts for that state.
func (l *Lane) enterState(h *Webhook, state State, why string) {
	h.State, h.Why, h.Changed, h.Next = state, why, l.t.Time(), time.Time{}
	l.changed = true
	switch state {
	case Waiting:
		l.count(1, 0, h.Size)
	case Parked:
		l.count(0, 1, h.Size)
	case Invalid:
		l.Invalid++
	default:
		l.t.HasFinished = true
	}
}

func (l *Lane) count(waiting, parked, bytes int64) {
	l.Waiting += waiting
	l.Parked += parked
	l.Bytes += bytes
	l.t.AddedBytes[l.ReceiverName] += bytes
}

// drop deletes a webhook.
func (l *Lane) remove(h *Webhook) {
	l.leaveState(h)
	h.gone = true
	if !h.isNew {
		l.deleted = append(l.deleted, h.ID)
	}
}

// supersedeParked is for a snapshot that has just been accepted or parked. It supersedes the parked snapshot that is older. If one that is
// newer is parked already, because somebody redelivered this one with force, that one stays. So a lane has one parked snapshot at most.
func (l *Lane) supersedeParked(h *Webhook) {
	others := l.Parked
	if h.State == Parked {
		others--
	}
	if !h.Snapshot || others == 0 {
		return
	}
	for _, p := range l.t.Inbox.ParkedSnapshots(l) {
		switch p = l.Load(p); {
		case p == h || p.State != Parked: // this transaction has moved it
		case p.ID < h.ID:
			l.move(p, Superseded, supersededWhy)
		case h.State == Parked:
			l.move(h, Superseded, supersededWhy)
		}
	}
}

// idle says whether nothing waits, and nobody delivers anything.
func (l *Lane) idle() bool { return l.Waiting == 0 && !l.leased() }

// An incoming webhook is one that shall be taken in.
type Incoming struct {
	*Webhook  // as the row that it becomes; take copies it
	Name      webhookgate.LaneName
	IDHash    [32]byte
	Signed    bool
	To        *receiver.Receiver
	Brings    *snapshot.Stored // nil: the webhook is no snapshot
	Later     bool             // it may be delivered when the courier comes by
	Accepting *Webhook         // the invalid webhook that somebody accepts: so it is no duplicate
	Arrived   int64            // when it came, by the database's clock; zero: it did not come from the sender
	Came      time.Time        // the same, by our clock
}

// take answers with the webhook-id of the original if the webhook is a duplicate, and else puts it at the end of the lane. If the lane
// was idle, and there is room at the courier, that also gives the lease.
func (l *Lane) Receive(in *Incoming) (a Answer) {
	t := l.t
	if original, again := l.originalOf(in); original != "" && in.Accepting == nil {
		l.stamp()
		l.noteReceived(in, again)
		seq := int64(0)
		if original == l.TailID {
			seq = l.Tail
		}
		l.rememberID(in, seq, original) // the same id must be a duplicate later, too, whatever has come meanwhile
		if in.Snapshot && !again {
			for _, old := range l.invalidOnes() {
				old.setNewer(true)
			}
		}
		return Answer{DuplicateOf: original, Again: again}
	}
	return l.takeIn(in, t.StoreUnclaimed && in.To == nil)
}

// takeIn puts a webhook at the end of the lane. With store it is stored, unless it must queue behind another one.
func (l *Lane) takeIn(in *Incoming, store bool) (a Answer) {
	t := l.t
	l.setReceiver(in.To)
	stored := store && l.Parked == 0 && l.idle()
	if !stored {
		if err := t.Inbox.HasRoom(l, in.Size); err != nil {
			return Answer{Err: err}
		}
	}
	row := *in.Webhook
	if stored {
		l.store(&row, in.Brings)
	} else {
		a = l.enqueue(&row, in)
	}
	a.ID = row.ID
	l.noteReceived(in, false)
	l.rememberID(in, row.ID, row.UUID)
	if in.Snapshot {
		l.supersedeInvalid(in)
	}
	if in.Accepting != nil {
		l.move(in.Accepting, Replaced, fmt.Sprint("taken in as ", row.ID))
	}
	return a
}

// becomeTail makes a new webhook the lane's tail.
func (l *Lane) becomeTail(row *Webhook, state *snapshot.Stored) {
	l.Tail, l.TailID, l.changed = row.ID, row.UUID, true
	if state != nil {
		s := *state
		s.Seq, s.Received = row.ID, row.Received
		l.inMemory.snapshot = &s
	}
}

// store takes a webhook in as stored: it is not delivered, and dedup goes by usher itself as its receiver.
func (l *Lane) store(row *Webhook, state *snapshot.Stored) {
	l.add(row, Stored)
	l.becomeTail(row, state)
	l.TailDigest = nil
	l.Held, l.HeldAt, l.HeldBy, l.HeldID = dedupDigest(row), l.t.Now, "", row.UUID
}

// enqueue puts a webhook at the end of the lane.
func (l *Lane) enqueue(row *Webhook, in *Incoming) (a Answer) {
	t := l.t
	idle := l.idle()
	l.endExpiredLease()
	former := l.Loaded(l.Tail)
	l.add(row, Waiting)
	l.becomeTail(row, in.Brings)
	l.TailDigest = dedupDigest(row)
	if !idle {
		// Its backoff, its pause and its turn stay, also if nothing older waits any more.
		if former != nil && former.ID != l.LeasedID && l.replaces(row, former) {
			l.move(former, Superseded, supersededWhy)
			if l.Waiting == 1 {
				l.WaitingSince = t.Now
			}
		}
		return a
	}
	// From here on the receiver may hold this webhook or the one before: a try may succeed without our knowing. Only a 2xx says
	// which.
	l.Held, l.WaitingSince = nil, t.Now
	l.clearBackoff()
	l.release(t.Now)
	if in.To == nil || l.Paused || in.Later {
		return a
	}
	if t.Inbox.Reserve(in.To, row.Size) {
		a.Lease = l.newLease(row, in.To)
	} else {
		a.Unleased = true
	}
	return a
}

// replaces says whether the settings want a webhook to supersede the one that waits right before it in the lane.
func (l *Lane) replaces(next, h *Webhook) bool {
	return l.t.Latest && next.ID > h.ID && next.Snapshot && h.Snapshot && h.State == Waiting && h.Again.IsZero()
}

// noteSince notes since when the lane's first webhook waits.
func (l *Lane) updateWaitingSince() {
	if next := l.First(); next != nil {
		l.WaitingSince, l.changed = next.AgeFrom().UnixMicro(), true
	}
}

// supersedeInvalid supersedes the tenant's invalid webhooks: this snapshot is newer and complete. It leaves alone events of
// other types, whose content no snapshot has. If this webhook is an invalid one that somebody has accepted, it only supersedes
// those that were last received before it: the others are newer.
func (l *Lane) supersedeInvalid(in *Incoming) {
	for _, old := range l.invalidOnes() {
		sameType := old.Type == in.Type || old.Type == ""
		isOlder := in.Accepting == nil || old.Rank < in.Accepting.Rank
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
func (l *Lane) Reconcile(in *Offer, r *Run, leave ReconcileMode) (c Compared) {
	c = in.Judge(r, l.Last, l.LastAt, l.t.Inbox.LastSnapshot(l))
	switch {
	case leave == ToSee:
	case c.Result == Equal:
		l.supersedeEqual()
		l.clearMissed()
	case leave == ToCompare || c.Result != Differs && c.Result != NewTenant:
	case leave == ToStore && (l.Parked > 0 || !l.idle()): // it would be known, and something older be delivered after it
		c.LeftOut = "its webhooks wait or are parked"
	default:
		before, first := l.LastAt, l.Tail == 0
		a := l.takeIn(&in.Incoming, leave == ToStore || l.t.StoreUnclaimed && in.To == nil)
		if c.Applied, c.Err = a.Err == nil, a.Err; c.Applied {
			c.First = first
			l.LastAt = max(before, r.KnowsUpTo().UnixMicro()) // what it says is as old as the list
			l.clearMissed()
			l.noteState(r.KnowsUpTo().UnixMicro())
		}
	}
	return c
}

// supersedeEqual supersedes the tenant's invalid snapshots, because the billing service says the same as usher since.
func (l *Lane) supersedeEqual() {
	for _, old := range l.invalidOnes() {
		if old.Type == content.TenantProvisioningChange || old.Type == "" {
			l.move(old, Superseded, "the billing service said later that the tenant is as usher knows it")
		}
	}
}

// rememberID stores the webhook's signed id, if it has one, together with the original: the webhook itself, or the one that it
// is a duplicate of. seq is the original's number; zero: the original counts as delivered.
func (l *Lane) rememberID(in *Incoming, seq int64, uuid string) {
	if !in.Signed {
		return
	}
	id := &SeenID{SignedID: SignedID{l.LaneName, in.IDHash}, Digest: in.Digest, Seq: seq, At: l.t.Now, State: Waiting, UUID: uuid}
	same := func(known *SeenID) bool { return bytes.Equal(known.Digest, id.Digest) }
	if uuid != in.Webhook.UUID && slices.ContainsFunc(l.seen[id.Hash], func(known *SeenID) bool { return same(known) && l.makesCopy(known) }) {
		return // the 15 minutes count from the first time
	}
	if l.seen != nil {
		l.seen[id.Hash] = slices.DeleteFunc(l.seen[id.Hash], same)
	}
	l.LoadID(id)
	l.newSeen = append(slices.DeleteFunc(l.newSeen, func(r *SeenID) bool { return r.Hash == id.Hash && same(r) }), id)
}

// knowID is for a signed id that was read.
func (l *Lane) LoadID(r *SeenID) {
	if l.seen == nil {
		l.seen = make(map[[32]byte][]*SeenID)
	}
	l.seen[r.Hash] = append(l.seen[r.Hash], r)
}

// makesCopy says whether a webhook with this id and body is a duplicate: not if the original was parked or discarded, or came
// too long ago.
func (l *Lane) makesCopy(r *SeenID) bool {
	state := r.State
	if original := l.Loaded(r.Seq); original != nil { // it may have changed in this transaction
		state = original.State
	}
	return l.recent(r) && (state == Waiting || state.Taken() || state == Superseded)
}

func (l *Lane) recent(r *SeenID) bool { return l.t.Now-r.At < clock.Micros(SeenIDsFor) }

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
func (l *Lane) originalOf(in *Incoming) (original string, again bool) {
	reused := false
	if in.Signed {
		for _, seen := range l.seen[in.IDHash] {
			same := bytes.Equal(seen.Digest, in.Digest)
			if same && l.makesCopy(seen) {
				return seen.UUID, true
			}
			reused = reused || !same && l.recent(seen)
		}
	}
	if reused {
		l.t.Warn("webhook-id was used before, for another body: usher accepts the webhook", "webhook", in.Webhook.UUID, "tenant", in.Tenant)
	}
	if in.Snapshot && l.receiverHas(in.Digest, NameOf(in.To)) {
		return l.TailID, false
	}
	return "", false
}

// hasSnapshot says whether a receiver holds exactly this snapshot, or will, when all waiting webhooks are delivered.
func (l *Lane) receiverHas(digest []byte, receiver string) bool {
	if l.t.DedupWindow == 0 {
		return false
	}
	if l.Waiting > 0 {
		return l.TailDigest != nil && bytes.Equal(l.TailDigest, digest)
	}
	// After a forced redelivery the receiver holds an older snapshot than the tail. Then a copy of that older one is a change,
	// which the sender made after the tail.
	holdsTail := l.Held != nil && l.HeldID == l.TailID && l.HeldBy == receiver
	age := time.Duration(l.t.Now-l.HeldAt) * time.Microsecond
	return holdsTail && bytes.Equal(l.Held, digest) && age.Abs() < l.t.DedupWindow
}

// reject stores a webhook that cannot be taken in. A copy of one that nobody has dealt with is only counted.
func (l *Lane) RecordInvalid(in *Webhook, known *Webhook) *Webhook {
	if known != nil && known.State == Invalid && !known.gone {
		known.Times++
		known.Changed, known.Rank, known.Newer, known.changed = l.t.Time(), l.stamp(), false, true
		return known
	}
	if l.LaneName != (webhookgate.LaneName{}) {
		for all := l.invalidOnes(); len(all) > 0 && len(all) >= l.t.MaxInvalid; all = all[1:] {
			l.t.Warn("deleted an invalid webhook: its tenant has too many", "id", all[0].ID, "tenant", all[0].Tenant)
			l.remove(all[0])
		}
	}
	row := *in
	l.add(&row, Invalid)
	row.Rank = row.ID
	l.t.HasInvalid = true
	return &row
}

// leased says whether a process has a valid lease for the lane, and may be delivering it. After the clock has jumped every lease
// counts as valid for a while. One of this process does until its outcome is written: after an outage of the database that may be later
// than its end, and what was accepted meanwhile must not be delivered again.
func (l *Lane) leased() bool {
	ours := bytes.Equal(l.Owner, l.t.Owner)
	if l.t.Alone {
		return ours
	}
	return l.Owner != nil && (l.Due > l.t.Now || !l.t.MayTakeOver || ours && l.t.Inbox.Delivers(l.LaneName, l.Token))
}

// endExpiredLease takes the lane from an owner whose lease has ended. What changes the webhook which that owner was
// delivering must call it first, so that a late outcome no longer matches the row.
func (l *Lane) endExpiredLease() {
	if l.Owner != nil && !l.leased() {
		l.release(l.t.Now)
		l.frontier = math.MinInt64 // what it delivered may not be in memory
	}
}

// lease gives this process a lease for the lane, to deliver h, which is its first webhook.
func (l *Lane) newLease(h *Webhook, rc *receiver.Receiver) *Lease {
	l.Owner, l.LeasedID, l.Due, l.changed = l.t.Owner, h.ID, l.t.Now+clock.Micros(l.t.LeaseTime), true
	l.Token++
	lease := &Lease{Webhook: h, Receiver: rc, LastTryFailed: l.LastResult != LastOK, FailedBefore: l.FailingSince != 0, Lane: l.LaneName, LastTry: l.LastTry, Token: l.Token}
	lease.Extend(l.t.LeaseEnd())
	return lease
}

// claim gives this process a lease for the lane, if nobody has one and a webhook waits. If the settings say now that another receiver
// takes the lane, it notes that instead.
func (l *Lane) Claim(rc *receiver.Receiver) *Lease {
	if l.leased() {
		return nil
	}
	l.endExpiredLease()
	if l.UpdateReceiver(); l.ReceiverName != rc.Name {
		return nil
	}
	h := l.First()
	if h == nil && !l.Paused { // its row says something else than its webhooks, and it would be claimed for ever
		l.Recount()
		h = l.First()
	}
	if l.Paused || h == nil {
		l.release(l.t.Now)
		return nil
	}
	return l.newLease(h, rc)
}

// route notes which receiver takes the lane's webhooks, by the settings of now.
func (l *Lane) UpdateReceiver() {
	if l.t.Receivers != nil { // else this process delivers nothing, and does not know
		l.setReceiver(l.t.Receivers.For(l.Platform))
	}
}

// goTo notes the lane's receiver. What another one has failed to do, or asked for, does not count any more.
func (l *Lane) setReceiver(rc *receiver.Receiver) {
	if NameOf(rc) == l.ReceiverName || l.leased() {
		return
	}
	l.endExpiredLease()
	l.t.AddedBytes[l.ReceiverName] -= l.Bytes
	l.ReceiverName, l.FailingSince, l.changed = NameOf(rc), 0, true
	l.t.AddedBytes[l.ReceiverName] += l.Bytes
	l.clearBackoff()
	l.release(l.t.Now)
}

// holds says whether this process still has this lease. If not, the lease has ended, and another process may have the lane.
func (l *Lane) holds(lease *Lease) bool {
	return l != nil && bytes.Equal(l.Owner, l.t.Owner) && l.Token == lease.Token && l.LeasedID == lease.Webhook.ID
}

// renew lets a lease last longer.
func (l *Lane) Renew(lease *Lease) bool {
	if !l.holds(lease) {
		return false
	}
	l.Due, l.changed = l.t.Now+clock.Micros(l.t.LeaseTime), true
	return true
}

// A settlement is what came of a try.
type TryResult struct {
	LeaseLost bool      // the lease had ended, and nothing was written
	Tried     Webhook   // the webhook as it is now
	NextLease *Lease    // the same lease, for the lane's next webhook; nil: the lease has ended
	NextTry   time.Time // when a webhook that was not accepted is tried again
	LaneReady bool      // webhooks wait in the lane, and any process may lease it now
}

// settle moves the webhook that was tried into its next state, and then continues the lease with the lane's next webhook, or ends it.
func (l *Lane) AfterTry(o *Outcome) (s TryResult) {
	if !l.holds(o.Lease) {
		return TryResult{LeaseLost: true}
	}
	t := l.t
	h := l.Load(o.Lease.Webhook.Row())
	defer func() { s.Tried, s.LaneReady = *h, l.Waiting > 0 && l.Owner == nil && l.Due <= t.Now }()
	if o.Aborted {
		at := t.Now + clock.Micros(o.RetryIn)
		if o.Lease.GivenBack {
			at = min(t.Now, l.WaitingSince) // it keeps its turn
		}
		l.release(at)
		return s
	}
	if o.ContentErr == nil {
		began := t.Time().Add(-time.Since(o.Began))
		h.noteTry(began, o.Took, o.Try)
		h.Receiver, h.changed = o.Lease.Receiver.Name, true
		l.LastTry = began.UnixMicro()
		if o.Counts {
			h.Counted++
		}
		switch {
		case o.Try.Accepted():
			l.FailingSince = 0
		case l.FailingSince == 0 || l.FailingSince > t.Now: // a time in the future is from before the clock was set back
			l.FailingSince = t.Now
		}
	}
	why := o.parkReason(t.Rules, h, t.Time())
	switch {
	case o.Try.Accepted() && o.ContentErr == nil:
		l.move(h, Delivered, "")
		l.Held, l.HeldAt, l.HeldBy, l.HeldID = dedupDigest(h), t.Now, h.Receiver, h.UUID
		l.supersedeParked(h)
	case why != "":
		if o.ContentErr != nil || !l.supersedeTried(h) {
			l.move(h, Parked, why)
			l.supersedeParked(h)
		}
		l.Held = nil // the receiver may have accepted it in a try whose answer got lost
	default:
		s.NextTry = l.retry(o, h)
		return s
	}
	l.clearFailures()
	s.NextLease = l.continueLease(o)
	return s
}

// supersedeTried supersedes a webhook whose try failed, if one that replaces it came meanwhile.
func (l *Lane) supersedeTried(h *Webhook) bool {
	if !l.t.Latest {
		return false
	}
	if next := l.First(); next == nil || !l.replaces(next, h) {
		return false
	}
	l.move(h, Superseded, supersededWhy)
	return true
}

// retry ends the lease after a failed try, and says when the lane is due again.
func (l *Lane) retry(o *Outcome, h *Webhook) time.Time {
	t := l.t
	l.LastResult = LastFailed
	if o.IsMiss() {
		l.LastResult = LastMiss
	}
	backoff := t.Jitter(min(MinBackoff<<min(l.Failures, 20), MaxBackoff))
	l.NotBefore = 0
	if after := min(o.Try.RetryAfter, MaxRetryAfter); after > 0 {
		l.NotBefore = t.Now + clock.Micros(after)
	}
	l.Failures++
	if l.supersedeTried(h) {
		l.Held = nil
		l.updateWaitingSince()
	}
	l.release(t.Now + clock.Micros(backoff))
	if !l.Paused && h.State == Waiting {
		h.Next = clock.Moment(l.Due)
	}
	h.changed = true
	return clock.Moment(l.Due)
}

// proceed continues the lease with the lane's next webhook, or ends it.
func (l *Lane) continueLease(o *Outcome) *Lease {
	t := l.t
	next := l.First()
	l.updateWaitingSince()
	if next == nil || !o.WantsNext || l.Paused || l.NotBefore > t.Now || o.Lease.inARow >= maxInARow {
		l.release(t.Now)
		return nil
	}
	lease := &Lease{Webhook: next, Receiver: o.Lease.Receiver, FailedBefore: l.FailingSince != 0, Lane: l.LaneName, LastTry: l.LastTry, Token: l.Token, inARow: o.Lease.inARow + 1}
	lease.Extend(t.LeaseEnd())
	l.LeasedID, l.Due = next.ID, t.Now+clock.Micros(t.LeaseTime)
	return lease
}

// redeliver puts a webhook back into the lane, in the place of its number: ahead of all that came after it. asked is its state when somebody asked for
// it, or chose it.
func (l *Lane) Redeliver(h *Webhook, asked State, force bool) error {
	t := l.t
	l.endExpiredLease()
	switch {
	case l.leased() && l.LeasedID == h.ID:
		return ErrBusy
	case h.State == Waiting:
		l.clearBackoff()
		l.reschedule()
		return nil
	case asked == Waiting && h.State == Superseded, asked.Open() && h.State == Delivered:
		return nil // it was to be delivered when it was asked for, and was meanwhile; once more could overwrite a newer one
	case h.State == Stored && t.Receivers.For(h.Platform) == nil:
		return ErrStored
	case l.Tenant != "" && l.Tail > h.ID && !force:
		return &OverwriteError{h.ID, l.tailWebhook()}
	case h.State != Parked:
		if err := t.Inbox.HasRoom(l, h.Size); err != nil {
			return err
		}
	}
	idle := l.Waiting == 0
	l.leaveState(h)
	h.Record = Record{Tried: h.Tried, Again: t.Time(), Forced: force && l.Tail > h.ID}
	l.enterState(h, Waiting, "")
	h.changed = true
	l.Held = nil
	switch {
	case l.Tail == h.ID:
		l.TailDigest = dedupDigest(h)
	case l.Owner != nil && l.LeasedID == l.Tail:
		// The tail is being delivered, and this one comes after it. So a copy of the tail is a change again.
		l.TailDigest = nil
	}
	if idle {
		l.WaitingSince = t.Now
	}
	if !l.leased() {
		l.UpdateReceiver() // it may have been stored, and have a receiver now
		l.clearBackoff()
		l.release(t.Now)
	}
	return nil
}

// reschedule computes the lane's due time anew, unless a process has leased it: then the outcome does that.
func (l *Lane) reschedule() {
	if !l.leased() {
		l.release(l.t.Now)
	}
}

// discard does nothing more with a webhook.
func (l *Lane) Discard(h *Webhook) error {
	l.endExpiredLease()
	switch {
	case h.State.Finished():
		return ErrFinished
	case h.State == Invalid:
		l.move(h, Discarded, byHand)
		return nil
	case l.leased() && l.LeasedID == h.ID:
		return ErrBusy
	}
	wasFirst := h.State == Waiting && l.First() == h
	l.move(h, Discarded, byHand)
	l.Held = nil // the receiver may have accepted it in a try whose answer got lost
	if wasFirst && !l.leased() {
		l.updateWaitingSince()
		l.clearBackoff()
		l.release(l.t.Now)
	}
	return nil
}

const byHand = "discarded by hand"

// pause holds the lane back, or not.
func (l *Lane) Pause(yes bool) {
	if l.Paused != yes {
		l.Paused, l.changed = yes, true
		l.reschedule()
	}
}

// forget drops what dedup compares with, and says whether there was anything.
func (l *Lane) Forget() bool {
	l.t.Inbox.ForgetIDs(l)
	l.seen, l.newSeen = nil, nil
	missed := l.MissedSince > 0
	l.clearMissed()
	return l.forgetCopies() || missed
}

// erase deletes everything.
func (l *Lane) Erase() (count int, err error) {
	t := l.t
	if l.leased() {
		// The action is tried again until the lease has ended. Meanwhile its holder must not continue with the lane's next webhook.
		if until := t.Now + clock.Micros(eraseHold); l.NotBefore < until-clock.Micros(eraseHold/2) {
			l.NotBefore, l.changed = until, true
		}
		return 0, ErrBusy
	}
	l.Forget()
	for _, h := range l.hooks {
		if h.isNew && !h.gone {
			count++
		}
		h.gone = true // the turn may know it elsewhere, too
	}
	count += t.Inbox.EraseWebhooks(l)
	t.AddedBytes[l.ReceiverName] -= l.Bytes
	l.hooks, l.deleted, l.inMemory.snapshot, l.frontier, l.hasInvalid = nil, nil, nil, math.MinInt64, false
	l.Waiting, l.Parked, l.Invalid, l.Bytes = 0, 0, 0, 0
	l.Tail, l.TailID, l.FailingSince = 0, "", 0
	l.noteState(t.Now) // what came before it counts as older than what comes
	l.stamp()
	l.clearBackoff()
	l.release(t.Now)
	return count, nil
}
