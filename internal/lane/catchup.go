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

// A LogDecision is what came of a webhook of the log. It is passed over if somebody knows something later.
type LogDecision struct {
	Compared
	Later bool // only a later run can tell: something else of the tenant may be on its way, or there is no room

	taken *Webhook
}

// Taken is the number of the webhook that was taken in; zero: none was.
func (d *LogDecision) Taken() int64 {
	if d.taken == nil {
		return 0
	}
	return d.taken.ID
}

// CatchUp says how a webhook of the log stands to what usher knows and, if the mode allows it, takes it in if it differs.
// known is the tenant's last snapshot; nil: there is none.
func (l *Lane) CatchUp(in *Logged, known *snapshot.Stored, r *LogRun, mode ReconcileMode) (d LogDecision) {
	d.Platform, d.Tenant = in.Platform, in.Tenant
	switch {
	case known != nil && bytes.Equal(known.Change, in.Brings.Change):
		d.Result = Equal
		return d
	case in.Made <= l.LastAt && l.Last > 0 && (known == nil || known.Source == SourceReconcile):
		// It was erased since, or somebody has asked the service itself.
		d.Result = PassedOver
		return d
	case !in.Settled || l.Last > r.Mark || l.LastAt > r.Began.UnixMicro()-clock.Micros(time.Minute):
		d.Result, d.Later = Left, true
		return d
	}
	says, _ := snapshot.Decode(in.Brings.Features) // what cannot be read is unknown
	d.Result = Differs
	knows := saidBy(known)
	if !knows.Known {
		d.Result = NewTenant
	}
	d.Changes = snapshot.Diff(knows, says)
	if mode.Applies() {
		receiverHasIt := r.First && known == nil && in.Accepted
		a, err := l.takeIn(&in.Incoming, receiverHasIt || l.t.StoreUnclaimed && in.To == nil)
		d.taken, d.Err = a.Taken, err
		d.Applied, d.Later = err == nil, err != nil
	}
	return d
}

// The sources of webhooks that usher has made.
const (
	SourceReconcile = "reconcile"
	SourceCatchUp   = "catch-up"
)
