package lane

import (
	"bytes"
	"time"

	"usher/internal/clock"
	"usher/internal/snapshot"
)

// A Logged webhook is the newest of a tenant in the billing service's log.
type Logged struct {
	Incoming
	Made     int64 // when the service made it, by the database's clock
	Settled  bool  // so long ago that the service does not send it any more
	Accepted bool  // the service says that its webhook was answered 2xx
}

// A LogRun is one reading of the log.
type LogRun struct {
	Mark  int64     // the number with which it began, before the log was read
	Began time.Time // by the database's clock
	First bool      // none was complete before
}

// CatchUp takes a webhook of the log in, unless usher has that state, or something later that somebody knows. known is the
// tenant's last snapshot; nil: there is none. left says that only a later run can tell: something else of the tenant may be
// on its way, or there is no room.
func (l *Lane) CatchUp(in *Logged, known *snapshot.Stored, r *LogRun) (a Answer, left bool) {
	switch {
	case known != nil && bytes.Equal(known.Change, in.Brings.Change):
		return Answer{}, false
	case in.Made <= l.LastAt && l.Last > 0 && (known == nil || known.Source == SourceReconcile):
		// It was erased since, or somebody has asked the service itself.
		return Answer{}, false
	case !in.Settled || l.Last > r.Mark || l.LastAt > r.Began.UnixMicro()-clock.Micros(time.Minute):
		return Answer{}, true
	}
	receiverHasIt := r.First && known == nil && in.Accepted
	a, err := l.takeIn(&in.Incoming, receiverHasIt || l.t.StoreUnclaimed && in.To == nil)
	return a, err != nil
}

// The sources of webhooks that usher has made.
const (
	SourceReconcile = "reconcile"
	SourceCatchUp   = "catch-up"
)
