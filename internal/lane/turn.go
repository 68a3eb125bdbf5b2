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

// A turn is one transaction, as lanes see it.
type Turn struct {
	*Rules
	Process
	Now     int64     // the database's time
	AskedAt time.Time // our time before the transaction began; leases count from here
	Lanes   map[webhookgate.LaneName]*Lane
	Inbox   Inbox

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
type Inbox interface {
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
	return t.Load(New(webhookgate.LaneName{}))
}

// empty returns a lane in which nothing has come, to ask it something. The turn does not write it.
func (t *Turn) Empty(name webhookgate.LaneName) *Lane {
	l := New(name)
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

// leaseEnd is when a lease of this turn ends. It counts from the begin of the transaction, which is before the database read its clock.
func (t *Turn) LeaseEnd() time.Time { return t.AskedAt.Add(t.LeaseTime - t.LeaseTime/5) }

// LaneOf returns the name of a lane as its row has it: with an event type only if there is no tenant.
func NameInRow(l webhookgate.LaneName) webhookgate.LaneName {
	if l.Tenant != "" {
		l.Type = ""
	}
	return l
}
