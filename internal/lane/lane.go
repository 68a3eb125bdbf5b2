package lane

import (
	"cmp"
	"math"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// A Lane is the queue of one tenant on one platform. What is exported is its row in the table lane.
type Lane struct {
	webhookgate.LaneName
	ReceiverName string // the receiver that takes its webhooks; empty: none does

	// Dedup compares an arriving webhook with the tail, which arrived last, while webhooks wait. If none waits, it
	// compares with the snapshot that the receiver holds for sure; see originalOf.
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
	WaitingSince int64 // since when webhooks wait: about the first one's AgeFrom
	LastResult   int64 // how the last try of that webhook ended: LastOK, LastFailed or LastDown
	Failures     int64 // tries of that webhook that failed in a row
	FailingSince int64 // since when the tries of all its webhooks have failed; 0: the last one did not, or there was none
	LastTry      int64 // when it began
	// NotBefore is the time before which there is no try: the receiver asked for it (Retry-After), or an erasure
	// waits. One that is further ahead than MaxRetryAfter counts as written before the clock was set back, and is
	// removed.
	NotBefore int64
	Paused    bool
	Due       int64 // without an owner: when the lane may be tried; with one: when its lease ends

	// The lease.
	Owner    []byte // the process that has it; nil: none
	LeasedID int64  // the webhook that the owner delivers
	Token    int64  // counts leases, so that a late outcome of a former one is recognised

	// Whatever came last for it, be it a copy, an invalid webhook, or an erasure; see stamp.
	Last   int64 // its number
	LastAt int64

	Erased int64 // when somebody erased the tenant, of whom nothing was taken in since; 0: nobody has

	inMemory
}

// The values of LastResult.
const (
	LastOK     = 0 // it was not tried yet, or was given back without a failure
	LastFailed = 1
	LastDown   = 2 // its receiver was down, which says nothing about the webhook
)

// inMemory is the part of a lane that is no row: what is known of its webhooks, and what must be written.
type inMemory struct {
	t        *Turn
	webhooks []*Webhook // those that are in memory, new ones included
	frontier int64      // the waiting webhooks that are not in memory have numbers above this one

	knowsInvalid bool // all invalid webhooks are in memory

	changed  bool             // the row must be written
	stamped  bool             // of the row Last and LastAt must be written
	snapshot *snapshot.Stored // the new one
}

// New returns a lane to which nothing has come.
func New(name webhookgate.LaneName) *Lane {
	return &Lane{LaneName: name, Due: clock.Never, WaitingSince: clock.Never, inMemory: nothingInMemory}
}

var nothingInMemory = inMemory{frontier: math.MinInt64}

// Row returns a copy of the lane without what this turn remembers, for another turn. Only tests need it: an inbox reads
// its lanes from the database.
func (l *Lane) Row() *Lane {
	row := *l
	row.inMemory = nothingInMemory
	return &row
}

// RowChanged says whether the turn writes the lane's whole row.
func (l *Lane) RowChanged() bool { return l.changed }

// Load gives the lane one of its webhooks that was read, and returns the lane's copy: the one that is in memory
// already, or else this one.
func (l *Lane) Load(w *Webhook) *Webhook {
	known := l.Loaded(w.ID)
	switch {
	case known == nil:
		l.webhooks = append(l.webhooks, w)
		return w
	case !known.HasContent && w.HasContent:
		known.Header, known.Body, known.HasContent = w.Header, w.Body, true
	}
	return known
}

// Loaded returns a webhook that is in memory, or nil.
func (l *Lane) Loaded(id int64) *Webhook {
	for _, w := range l.webhooks {
		if w.ID == id && !w.gone {
			return w
		}
	}
	return nil
}

// LoadedIDs returns the webhooks that are in memory, also those that were deleted.
func (l *Lane) LoadedIDs() (ids []int64) {
	for _, w := range l.webhooks {
		ids = append(ids, w.ID)
	}
	return ids
}

// LoadFirst is like Load, for what the database found as the lane's first waiting webhook: so First need not ask for
// it. except is a webhook that the database left out, because an outcome is about it; zero: none. If somebody else
// delivers the lane meanwhile, it is ignored.
func (l *Lane) LoadFirst(w *Webhook, except int64) {
	// If another one is being delivered now, it was the outcome of a lease that was lost, and this says nothing.
	leaseUnchanged := l.LeasedID == except || !l.leased() && except == 0
	if leaseUnchanged {
		l.Load(w)
		l.frontier = max(l.frontier, w.ID)
	}
}

// NeedsFirst says whether a claim of the lane may have to ask for its first webhook.
func (l *Lane) NeedsFirst() bool { return !l.leased() && len(l.webhooks) == 0 }

// First returns the first waiting webhook, not counting the one that somebody delivers. It may ask the inbox.
func (l *Lane) First() (first *Webhook) {
	notInMemory := l.Waiting
	for _, w := range l.webhooks {
		if w.State != state.Waiting || w.gone {
			continue
		}
		notInMemory--
		if w.ID != l.LeasedID && (first == nil || w.ID < first.ID) {
			first = w
		}
	}
	if notInMemory <= 0 || first != nil && first.ID <= l.frontier {
		return first // those elsewhere come after it
	}
	except := l.LoadedIDs()
	if l.LeasedID != 0 {
		except = append(except, l.LeasedID)
	}
	if w := l.t.Inbox.FirstWaiting(l, except); w != nil {
		l.webhooks, l.frontier = append(l.webhooks, w), w.ID
		if first == nil || w.ID < first.ID {
			return w
		}
	}
	return first
}

// invalidOnes returns the lane's invalid webhooks, in the order in which their last copies came.
func (l *Lane) invalidOnes() (all []*Webhook) {
	if l.Invalid > 0 && !l.knowsInvalid {
		for _, w := range l.t.Inbox.InvalidWebhooks(l) {
			if !slices.Contains(l.LoadedIDs(), w.ID) {
				l.webhooks = append(l.webhooks, w)
			}
		}
		l.knowsInvalid = true
	}
	for _, w := range l.webhooks {
		if w.State == state.Invalid && !w.gone {
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b *Webhook) int { return cmp.Compare(a.Rank, b.Rank) })
	return all
}

// stamp leaves a number and the time in the lane, and returns the number. Whatever comes for the lane does so, also
// what is not taken in: it may say that a state which somebody has read meanwhile is older. So does an erasure. The
// work must have asked for the number; see Inbox.NextNumber.
func (l *Lane) stamp() int64 {
	l.Last, l.LastAt, l.stamped = l.t.Inbox.NextNumber(), l.t.Now, true
	return l.Last
}

// add puts a new webhook into the lane, with its number and the time at which it was received.
func (l *Lane) add(w *Webhook, to state.State) {
	w.ID, w.Received, w.isNew = l.stamp(), l.t.Time(), true
	w.Rank = w.ID
	l.enterState(w, to, "")
	l.webhooks = append(l.webhooks, w)
}

// move takes a webhook from its state into another one.
func (l *Lane) move(w *Webhook, to state.State, why string) {
	l.leaveState(w)
	l.enterState(w, to, why)
	w.changed = true
}

// leaveState subtracts a webhook from the lane's counts for the state that it is in. A tail that does not wait any more
// has no copies.
func (l *Lane) leaveState(w *Webhook) {
	l.changed = true
	switch w.State {
	case state.Waiting:
		l.addCounts(-1, 0, -w.Size)
		if l.Tail == w.ID {
			l.TailDigest = nil
		}
	case state.Parked:
		l.addCounts(0, -1, -w.Size)
	case state.Invalid:
		l.Invalid--
	}
}

// enterState puts a webhook into a state, and adds it to the lane's counts for that state.
func (l *Lane) enterState(w *Webhook, to state.State, why string) {
	w.State, w.Why = to, why
	w.Changed, w.Next = l.t.Time(), time.Time{}
	l.changed = true
	switch to {
	case state.Waiting:
		l.addCounts(1, 0, w.Size)
	case state.Parked:
		l.addCounts(0, 1, w.Size)
	case state.Invalid:
		l.Invalid++
	default:
		l.t.HasFinished = true
	}
}

// addCounts adds to how many webhooks wait and are parked, and to their bytes.
func (l *Lane) addCounts(waiting, parked, bytes int64) {
	l.Waiting += waiting
	l.Parked += parked
	l.Bytes += bytes
	l.t.AddedBytes[l.ReceiverName] += bytes
}

// idle says whether nothing waits, and nobody delivers anything.
func (l *Lane) idle() bool { return l.Waiting == 0 && !l.leased() }

// release leaves the lane without an owner, if it has one, and sets when it is due: from then on any process may lease
// it, if a webhook waits and the lane is not paused.
func (l *Lane) release(from int64) {
	l.Owner, l.LeasedID, l.changed = nil, 0, true
	switch {
	case l.Waiting == 0:
		l.Due, l.WaitingSince = clock.Never, clock.Never
		l.clearFailures()
	case l.Paused:
		l.Due = clock.Never
	default:
		l.Due = max(from, l.NotBefore)
	}
}

// reschedule computes the lane's due time anew, unless a process has leased it: then the outcome does that.
func (l *Lane) reschedule() {
	if !l.leased() {
		l.release(l.t.Now)
	}
}

// clearFailures forgets that the first webhook has failed: it is another one now, or is to be tried at once.
// FailingSince, which is about all webhooks, stays.
func (l *Lane) clearFailures() { l.LastResult, l.Failures, l.changed = LastOK, 0, true }

// clearBackoff forgets failures and a Retry-After: the release that follows lets the lane be tried at once.
func (l *Lane) clearBackoff() { l.clearFailures(); l.NotBefore = 0 }

// updateWaitingSince notes since when the lane's first webhook waits, if one does.
func (l *Lane) updateWaitingSince() {
	if first := l.First(); first != nil {
		l.WaitingSince, l.changed = first.AgeFrom().UnixMicro(), true
	}
}

// noteHeld notes what a receiver holds for sure now; "" is usher itself, for a webhook that is stored and not
// delivered.
func (l *Lane) noteHeld(w *Webhook, receiver string) {
	l.Held, l.HeldAt, l.HeldBy, l.HeldID = w.dedupDigest(), l.t.Now, receiver, w.UUID
}
