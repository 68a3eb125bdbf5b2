package lane

import (
	"cmp"
	"math"
	"slices"
	"time"
	"usher/internal/clock"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

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
func New(name webhookgate.LaneName) *Lane {
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

// noteSince notes since when the lane's first webhook waits.
func (l *Lane) updateWaitingSince() {
	if next := l.First(); next != nil {
		l.WaitingSince, l.changed = next.AgeFrom().UnixMicro(), true
	}
}

// The values of lane.lastResult: how the last try of the lane's first webhook ended.
const (
	LastOK     = 0 // it was not tried yet, or was given back without a failure
	LastFailed = 1
	LastMiss   = 2 // a miss: the receiver is to blame, and not the webhook
)

// A lane is a row of the table lane.
type Lane struct {
	webhookgate.LaneName
	ReceiverName string // the name of the receiver that takes its webhooks; empty: none does

	// Dedup compares an arriving webhook with the tail, which arrived last, while webhooks wait. If none waits, it compares
	// with the snapshot that the receiver holds for sure; see intake.duplicate.
	Tail       int64
	TailID     string // its webhook-id
	TailDigest []byte // nil: no webhook counts as a copy of the tail, e.g. because the tail does not wait any more
	Held       []byte // the digest of what the receiver holds; nil: nobody knows
	HeldAt     int64  // when the receiver accepted it
	HeldBy     string // the receiver's name; empty: usher itself
	HeldID     string // its webhook-id

	// How many webhooks the lane has.
	Waiting int64
	Parked  int64
	Invalid int64
	Bytes   int64 // of the webhooks that wait or are parked

	// When the lane may be tried.
	WaitingSince int64 // when the first of the waiting webhooks came
	LastResult   int64 // lastOK or lastFailed
	Failures     int64 // tries of that webhook that failed in a row
	FailingSince int64 // since when the tries of all its webhooks have failed; 0: the last one was accepted, or there was none
	LastTry      int64 // when it began
	NotBefore    int64 // no try before this time: the receiver has asked for it (Retry-After), or an erasure waits
	Paused       bool
	Due          int64 // without an owner: when the lane may be tried; with one: when its lease ends

	// The lease.
	Owner    []byte // the process that has it; nil: none
	LeasedID int64  // the webhook that the owner delivers
	Token    int64  // counts leases, so that a late outcome of a former one is recognised

	Last   int64 // the number of whatever came last for it; see lane.note
	LastAt int64

	StateAt     int64 // when the last state of the tenant arrived that usher took in
	MissedSince int64 // since when it is missed webhooks; 0: none. See lane.missing

	Damaged []string // the columns of its row that cannot be right
	inMemory
}

// release ends the lease, if there is one. From the time at on any process may lease the lane, if a webhook waits and the
// lane is not paused.
func (l *Lane) release(at int64) {
	l.Owner, l.LeasedID, l.changed = nil, 0, true
	switch {
	case l.Waiting == 0:
		l.Due, l.WaitingSince, l.LastResult, l.Failures = clock.Never, clock.Never, LastOK, 0
	case l.Paused:
		l.Due = clock.Never
	default:
		l.Due = max(at, l.NotBefore)
	}
}

// clearFailures is for a lane whose first webhook is a new one: it has not failed yet.
func (l *Lane) clearFailures() { l.LastResult, l.Failures, l.changed = LastOK, 0, true }

// clearBackoff lets the lane be tried at once: it also ignores a Retry-After.
func (l *Lane) clearBackoff() { l.clearFailures(); l.NotBefore = 0 }

// forgetCopies drops the digests that dedup compares with, and says whether there were any.
func (l *Lane) forgetCopies() bool {
	known := l.TailDigest != nil || l.Held != nil
	l.TailDigest, l.Held, l.changed = nil, nil, true
	return known
}
