package lane

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"time"

	"usher/internal/clock"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// A Turn is one transaction, as lanes see it. It may run twice, each time on fresh lanes: so a lane keeps nothing
// outside of the turn.
type Turn struct {
	*Rules
	Process
	Now     int64     // the database's time
	AskedAt time.Time // our time before the transaction began; leases count from here
	Lanes   map[webhookgate.LaneName]*Lane
	Inbox   Inbox

	MayTakeOver bool // a lease that has ended may be taken from its owner

	// What came of it, beside Changes.
	AddedBytes  map[string]int64 // by how much the bytes that wait or are parked change, for each receiver
	HasFinished bool             // a webhook is finished now: there may be something to sweep
	HasInvalid  bool             // an invalid webhook was stored: there may be too many
	AfterCommit []func()         // see Then
}

// Rules decide about a lane, beside its rows. Fields are required unless they say what their zero value means.
type Rules struct {
	Receivers *receiver.Set // nil: this usher delivers nothing
	Log       *slog.Logger

	// A webhook is parked after MaxTries failed tries that count, or after so many of any kind once its first try is
	// longer ago than MaxAge.
	MaxTries int
	MaxAge   time.Duration
	// StoreUnclaimed says what to do with a webhook that no receiver takes. True: it is stored, and never delivered.
	// False: it waits for a receiver.
	StoreUnclaimed bool
	// DedupWindow is how long usher assumes that the receiver still has the snapshot that it accepted last. Zero: no
	// webhook is a duplicate.
	DedupWindow time.Duration

	// Jitter shortens a backoff to between half and all of its length. Nil: by chance.
	Jitter func(time.Duration) time.Duration
}

// A Process is the usher process that runs the turn.
type Process struct {
	Owner     []byte // its name in leases
	LeaseTime time.Duration
	Alone     bool // no other process has this inbox: an owner that is not this process has ended
}

// An Inbox answers what lanes ask in a turn, and does what they cannot do in memory.
type Inbox interface {
	// FirstWaiting returns the first waiting webhook that is none of these; nil: there is none.
	FirstWaiting(l *Lane, except []int64) *Webhook
	InvalidWebhooks(l *Lane) []*Webhook // all; there are few
	ParkedSnapshots(l *Lane) []*Webhook // one at most
	EraseTenant(l *Lane) (webhooks int) // deletes its webhooks and its snapshot

	// LastSnapshot was read when the turn began, for the lanes whose work has asked for it. Nil: there is none.
	LastSnapshot(l *Lane) *snapshot.Stored
	// NextNumber returns one of the numbers that the works have asked for, and panics if there is none left: a work
	// that stamps a lane must have asked for one.
	NextNumber() int64

	CheckRoom(l *Lane, size int64) error            // an error if there is no room for one more webhook
	Reserve(rc *receiver.Receiver, size int64) bool // room at the courier, until the turn ends; false without a courier
	// IsDelivering says whether the courier has this lease, and its outcome is not written yet.
	IsDelivering(name webhookgate.LaneName, token int64) bool
}

// Time is the database's time.
func (t *Turn) Time() time.Time { return clock.Moment(t.Now) }

// LeaseEnd is when a lease that this turn gives ends. It counts from the begin of the transaction, which is before the
// database read its clock, and is a fifth earlier than in the lane's row.
func (t *Turn) LeaseEnd() time.Time { return t.AskedAt.Add(t.LeaseTime - t.LeaseTime/5) }

// Load gives the turn a lane that was read, and returns the turn's copy: the one that it has already, or else this one.
func (t *Turn) Load(l *Lane) *Lane {
	if known := t.Lanes[l.LaneName]; known != nil {
		return known
	}
	l.t, t.Lanes[l.LaneName] = t, l
	return l
}

// LaneOf returns the lane of a webhook that was read. Those whose tenant is not certain share one without a row; so
// does one whose lane this turn has not loaded.
func (t *Turn) LaneOf(w *Webhook) *Lane {
	if l := t.Lanes[w.LaneName]; l != nil {
		return l
	}
	return t.Load(New(webhookgate.LaneName{}))
}

// UnknownLane returns the lane of a tenant that the inbox does not know, to ask it something. The turn does not write
// it.
func (t *Turn) UnknownLane(name webhookgate.LaneName) *Lane {
	l := New(name)
	l.t = t
	return l
}

// Then says what to do once the transaction is committed.
func (t *Turn) Then(do func()) { t.AfterCommit = append(t.AfterCommit, do) }

// LogWarning logs something once the transaction is committed.
func (t *Turn) LogWarning(message string, args ...any) {
	t.Then(func() { t.Log.Warn(message, args...) })
}

// LogError is like LogWarning, for what somebody should look at.
func (t *Turn) LogError(message string, args ...any) {
	t.Then(func() { t.Log.Error(message, args...) })
}

// Changes are what a turn has to write, each table's rows in the order of the lanes' names.
type Changes struct {
	Lanes     []*Lane
	Stamped   []*Lane // of these only Last and LastAt
	Added     []*Webhook
	Changed   []*Webhook
	Snapshots []*snapshot.Stored
}

// Changes returns what the lanes of the turn have to write.
func (t *Turn) Changes() (c Changes) {
	for _, name := range SortedNames(t.Lanes) {
		l := t.Lanes[name]
		switch {
		case l.changed && name.IsLane():
			c.Lanes = append(c.Lanes, l)
		case l.stamped && name.IsLane():
			c.Stamped = append(c.Stamped, l)
		}
		for _, w := range l.webhooks {
			switch {
			case w.gone:
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

// CompareNames orders lanes as every process locks them, so that no two wait for each other.
func CompareNames(a, b webhookgate.LaneName) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Platform, b.Platform), cmp.Compare(a.Type, b.Type))
}

// SortedNames returns the names of lanes in that order.
func SortedNames[V any](lanes map[webhookgate.LaneName]V) []webhookgate.LaneName {
	return slices.SortedFunc(maps.Keys(lanes), CompareNames)
}
