package lane

import (
	"cmp"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

const (
	// MinBackoff is the time until the second try. It doubles with each failed try, up to MaxBackoff.
	MinBackoff = time.Second
	MaxBackoff = 5 * time.Minute
	// MaxRetryAfter bounds a receiver's Retry-After.
	MaxRetryAfter = time.Hour
)

// A Lane is the queue of one tenant on one platform. What is exported is its row in the table lane.
type Lane struct {
	webhookgate.LaneName
	ReceiverName string // the receiver that takes its webhooks; empty: none does

	// Dedup compares an arriving snapshot with the tail, the webhook that was taken in last; see originalOf.
	Tail       int64
	TailID     string // its webhook-id
	TailDigest []byte // nil: no webhook counts as a copy of it
	HeldAt     int64  // when the receiver accepted it, and nothing was sent since; 0: it waits, or nobody knows

	// How many webhooks the lane has.
	Waiting int64
	Parked  int64
	Invalid int64
	Bytes   int64 // of the webhooks that wait or are parked

	// When the lane may be tried.
	WaitingSince int64 // since when webhooks wait: about the first one's AgeFrom
	Failures     int64 // tries of the first one that failed in a row
	FailingSince int64 // since when the tries of all its webhooks have failed; 0: the last one did not, or there was none
	NotBefore    int64 // there is no try before: the receiver asked for it (Retry-After), or an erasure waits
	Due          int64 // without an owner: when the lane may be tried; with one: when its lease ends

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

// inMemory is the part of a lane that is no row: what is known of its webhooks, and what must be written.
type inMemory struct {
	t        *Turn
	webhooks []*Webhook // those that are in memory, new ones included
	frontier int64      // the waiting webhooks that are not in memory have numbers above this one

	changed  bool             // the row must be written
	snapshot *snapshot.Stored // the tenant's new one
	erases   bool             // all that the database has of the tenant goes
}

// New returns a lane to which nothing has come.
func New(name webhookgate.LaneName) *Lane {
	return &Lane{LaneName: name, Due: clock.Never, WaitingSince: clock.Never, inMemory: inMemory{frontier: math.MinInt64}}
}

// Row returns a copy of the lane without what this turn remembers, for another turn. Only tests need it: an inbox reads
// its lanes from the database.
func (l *Lane) Row() *Lane {
	row := *l
	row.inMemory = New(l.LaneName).inMemory
	return &row
}

// Load gives the lane one of its webhooks that was read, and returns the lane's copy: the one that is in memory
// already, or else this one.
func (l *Lane) Load(w *Webhook) *Webhook {
	if known := l.Loaded(w.ID); known != nil {
		if !known.HasContent && w.HasContent {
			known.Header, known.Body, known.HasContent = w.Header, w.Body, true
		}
		return known
	}
	l.webhooks = append(l.webhooks, w)
	return w
}

// Loaded returns a webhook that is in memory, or nil.
func (l *Lane) Loaded(id int64) *Webhook {
	for _, w := range l.webhooks {
		if w.ID == id {
			return w
		}
	}
	return nil
}

// LoadFirst is like Load, for what the database found as the lane's first waiting webhook beside except.
func (l *Lane) LoadFirst(w *Webhook, except int64) {
	l.Load(w)
	if except == 0 || l.LeasedID == except {
		l.frontier = max(l.frontier, w.ID)
	}
}

// next returns the first waiting webhook that nobody delivers. Nil: there is none, or it is not in memory.
func (l *Lane) next() (first *Webhook) {
	elsewhere := l.Waiting
	for _, w := range l.webhooks {
		if w.State != state.Waiting {
			continue
		}
		if elsewhere--; w.ID != l.LeasedID && (first == nil || w.ID < first.ID) {
			first = w
		}
	}
	if l.LeasedID != 0 && l.Loaded(l.LeasedID) == nil {
		elsewhere--
	}
	if first != nil && elsewhere > 0 && first.ID > l.frontier {
		return nil
	}
	return first
}

// stamp leaves a number and the time in the lane, and returns the number. Whatever comes for the lane does so, also
// what is not taken in: it may say that a state which somebody has read meanwhile is older. So does an erasure.
func (l *Lane) stamp() int64 {
	l.Last, l.LastAt, l.changed = l.t.NewNumber(), l.t.Now, true
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
		l.count(-1, 0, -w.Size)
		if l.Tail == w.ID {
			l.TailDigest = nil
		}
	case state.Parked:
		l.count(0, -1, -w.Size)
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
		l.count(1, 0, w.Size)
	case state.Parked:
		l.count(0, 1, w.Size)
	case state.Invalid:
		l.Invalid++
	default:
		l.t.HasFinished = true
	}
}

// count adds to how many webhooks wait and are parked, and to their bytes.
func (l *Lane) count(waiting, parked, bytes int64) {
	l.Waiting += waiting
	l.Parked += parked
	l.Bytes += bytes
	l.t.AddedBytes[l.ReceiverName] += bytes
}

// release leaves the lane without an owner, and sets when it is due: from then on any process may lease it, if a
// webhook waits.
func (l *Lane) release(from int64) {
	l.Owner, l.LeasedID, l.changed = nil, 0, true
	if l.Waiting == 0 {
		l.Due, l.WaitingSince = clock.Never, clock.Never
		l.clearBackoff()
		return
	}
	l.Due = max(from, l.NotBefore)
}

// clearBackoff forgets that the first webhook has failed: it is another one now, or is to be tried at once. FailingSince,
// which is about all webhooks, stays.
func (l *Lane) clearBackoff() { l.Failures, l.NotBefore, l.changed = 0, 0, true }

// ReceiverName returns a receiver's name; empty: there is no receiver.
func ReceiverName(rc *receiver.Receiver) string {
	if rc == nil {
		return ""
	}
	return rc.Name
}

// A Turn is one transaction, as lanes see it. It may run twice, each time on fresh lanes: so a lane keeps nothing
// outside of the turn.
type Turn struct {
	*Rules
	Owner []byte // this process's name in leases

	Now         int64     // the database's time
	AskedAt     time.Time // our time before the transaction began; leases count from here
	MayTakeOver bool      // a lease that has ended may be taken from its owner
	Numbers     int64     // the last number that was given

	// What lanes must know beside their rows.
	Used       map[string]int64  // the bytes that wait or are parked, for each receiver
	Accepted   map[string]int64  // when each receiver last accepted something
	Delivering map[LeaseKey]bool // this process's leases whose outcomes are not written yet

	Lanes map[webhookgate.LaneName]*Lane

	// What came of it, beside Changes.
	AddedBytes  map[string]int64 // by how much Used changes
	HasFinished bool             // a webhook is finished now: there may be something to delete
	HasInvalid  bool             // an invalid webhook was stored: there may be too many
}

// Rules decide about a lane, beside its row. Fields are required unless they say what their zero value means.
type Rules struct {
	Receivers *receiver.Set // nil: this usher delivers nothing
	Log       *slog.Logger

	// ParkAfter is how long a webhook fails, while its receiver accepts others, before it is parked.
	ParkAfter time.Duration
	// MaxBytes bounds the webhooks that wait or are parked, for each receiver.
	MaxBytes int64
	// StoreUnclaimed says what to do with a webhook that no receiver takes. True: it is stored, and never delivered.
	// False: it waits for a receiver.
	StoreUnclaimed bool
	// DedupWindow is how long usher assumes that the receiver still has the snapshot that it accepted last. Zero: no
	// webhook is a duplicate.
	DedupWindow time.Duration
	// LeaseExtra is how much longer than the receiver's timeout a lease lasts. Zero: 10 s.
	LeaseExtra time.Duration

	// Jitter shortens a backoff to between half and all of its length. Nil: by chance.
	Jitter func(time.Duration) time.Duration
}

// A LeaseKey is which lease it is: the lane counts its leases.
type LeaseKey struct {
	LaneName webhookgate.LaneName
	Token    int64
}

// Time is the database's time.
func (t *Turn) Time() time.Time { return clock.Moment(t.Now) }

// NewNumber returns a new number.
func (t *Turn) NewNumber() int64 { t.Numbers++; return t.Numbers }

// Add gives the turn a lane that was read.
func (t *Turn) Add(l *Lane) { l.t, t.Lanes[l.LaneName] = t, l }

// UnknownLane returns the lane of a tenant that the inbox does not know, to ask it something. The turn does not write
// it.
func (t *Turn) UnknownLane(name webhookgate.LaneName) *Lane {
	l := New(name)
	l.t = t
	return l
}

// Changes are what a turn has to write, each table's rows in the order of the lanes' names.
type Changes struct {
	Lanes     []*Lane
	Added     []*Webhook
	Changed   []*Webhook
	Snapshots []*snapshot.Stored
	Erased    []*Lane // whose webhooks go before the others are written
}

// Changes returns what the lanes of the turn have to write.
func (t *Turn) Changes() (c Changes) {
	for _, name := range SortedNames(t.Lanes) {
		l := t.Lanes[name]
		if l.changed {
			c.Lanes = append(c.Lanes, l)
		}
		if l.erases {
			c.Erased = append(c.Erased, l)
		}
		for _, w := range l.webhooks {
			switch {
			case w.isNew:
				c.Added = append(c.Added, w)
			case w.changed:
				c.Changed = append(c.Changed, w)
			}
		}
		if l.snapshot != nil {
			c.Snapshots = append(c.Snapshots, l.snapshot)
		}
	}
	return c
}

// CompareNames orders lanes as every process locks them.
func CompareNames(a, b webhookgate.LaneName) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Platform, b.Platform), cmp.Compare(a.Type, b.Type))
}

// SortedNames returns the names of lanes in that order.
func SortedNames[V any](lanes map[webhookgate.LaneName]V) []webhookgate.LaneName {
	return slices.SortedFunc(maps.Keys(lanes), CompareNames)
}
