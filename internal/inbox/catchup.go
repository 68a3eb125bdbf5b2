package inbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"time"

	"usher/internal/clock"
	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
)

// Catch-up takes in what the billing service's webhook log has and what did not come. Package catchup reads the log. As
// with reconcile a mark, one of the numbers that webhooks get, says what came since it was read; and each decision is
// made in the transaction that takes the webhook in.

// A CatchUpRun is one reading of the log. Times of events are the service's.
type CatchUpRun struct {
	lane.LogRun
	Newest time.Time // the newest event of the last complete run; zero: none was complete
	Left   time.Time // the oldest event that it left; zero: it left none
	mark   mark
}

// catchUpTurn is how long a replica may be silent while it reads the log. Nothing depends on it: it saves the service
// from answering several replicas at once.
const catchUpTurn = 2 * time.Minute

// ErrCatchUpElsewhere says that another replica reads the log.
var ErrCatchUpElsewhere = errors.New("another replica reads the webhook log")

// BeginCatchUp begins a run. Read the log after that.
func (s *queue) BeginCatchUp(ctx context.Context) (*CatchUpRun, error) {
	r, err := do(ctx, s, op{numbered: true}, func(t *turn) (*CatchUpRun, error) {
		r := &CatchUpRun{LogRun: lane.LogRun{Mark: t.NewNumber(), Began: t.Time()}}
		err := error(ErrCatchUpElsewhere)
		t.tx.Queue("catch_up_begin", func(row engine.Row) error {
			var newest, left int64
			err = row.Scan(&newest, &left)
			r.Newest, r.Left, r.First = momentOrZero(newest), momentOrZero(left), newest == 0
			return err
		}, t.Now, t.after(catchUpTurn))
		var last mark
		queueLine(t.tx, &last)
		t.send()
		r.mark = mark{r.Mark, last.era}
		return r, err
	})
	return r, err
}

// A LoggedWebhook is the newest of its tenant in the log.
type LoggedWebhook struct {
	Body     []byte
	Age      time.Duration
	Settled  bool
	Accepted bool
}

// CaughtUp is what came of a webhook of the log. All zero: there was nothing to do.
type CaughtUp struct {
	Platform, Tenant string
	ID               int64 // of the webhook that was taken in
	Left             bool  // a later run decides
}

// CatchUp decides on webhooks of the log, in one transaction.
func (s *queue) CatchUp(ctx context.Context, r *CatchUpRun, all []LoggedWebhook) ([]CaughtUp, error) {
	done := make([]CaughtUp, len(all))
	if s.engine.Full() != nil { // the last room is for outcomes
		for n := range done {
			done[n].Left = true
		}
		return done, nil
	}
	logged := make([]*lane.Logged, len(all))
	o := op{makes: true, snapshots: true}
	for n, l := range all {
		header := http.Header{"Content-Type": {"application/json"}, sourceHeader: {lane.SourceCatchUp}}
		hook, faults := webhookgate.ReadSnapshot(s.cfg.Content, header, l.Body, s.cfg.Receivers)
		if len(faults) > 0 {
			if done[n].Left = !l.Settled; l.Settled {
				s.recordLogged(ctx, header, l.Body, faults)
			}
			continue
		}
		done[n].Platform, done[n].Tenant = hook.Lane.Platform, hook.Lane.Tenant
		if hook.Receiver == nil && !s.cfg.StoreUnclaimed {
			continue
		}
		in := &lane.Logged{Incoming: arriving(hook), Settled: l.Settled, Accepted: l.Accepted}
		in.Source = lane.SourceCatchUp
		logged[n] = in
		o.lanes, o.digests = append(o.lanes, hook.Lane), append(o.digests, in.Digest)
		o.size += in.Size
	}
	return do(ctx, s, o, func(t *turn) ([]CaughtUp, error) {
		if err := t.checkMark(r.mark); err != nil {
			return nil, err
		}
		done := append([]CaughtUp{}, done...) // a transaction may run again
		for n, in := range logged {
			if in == nil || t.copies[string(in.Digest)] != nil {
				continue
			}
			in := *in
			in.Made = t.Now - clock.Micros(all[n].Age)
			a, left := t.Lanes[in.LaneName].CatchUp(&in, t.known[in.LaneName], &r.LogRun)
			if done[n].Left = left; a.Taken != nil {
				t.Then(func() { done[n].ID = a.Taken.ID; s.cfg.Changed(in.Tenant) })
			}
		}
		t.tx.Queue("catch_up_go_on", nil, t.after(catchUpTurn))
		return done, nil
	})
}

// AbandonCatchUp says that a run has failed: another one may begin.
func (s *queue) AbandonCatchUp() {
	_, _ = do(s.run, s, op{}, func(t *turn) (struct{}, error) {
		t.tx.Queue("catch_up_go_on", nil, int64(0))
		return struct{}{}, nil
	})
}

// recordLogged stores a webhook of the log that usher cannot take in, unless it is stored as invalid.
func (s *queue) recordLogged(ctx context.Context, header http.Header, body []byte, faults []content.Fault) {
	w := webhookgate.Webhook{
		ID: webhookgate.NewID(), Type: content.TenantProvisioningChange, Snapshot: true,
		Header: header, Body: body, Digest: sha256.Sum256(body), Received: time.Now(),
	}
	if value, fault := content.Parse(body); fault == nil {
		if platform, tenant, certain := content.CertainTenant(value); certain {
			w.Lane = webhookgate.LaneName{Platform: platform, Tenant: tenant}
		}
	}
	invalid := &webhookgate.Invalid{Webhook: w, Status: http.StatusUnprocessableEntity, Faults: faults}
	if _, err := s.storeInvalid(ctx, invalid); err != nil {
		s.cfg.Log.Error("cannot store an invalid webhook of the service's log", "err", err)
	}
}

// EndCatchUp says that the log was read completely: its newest event, and the oldest one that was left; zero: none was.
// settled: nothing differs any more, so that nothing is missed that came before the run.
func (s *queue) EndCatchUp(ctx context.Context, r *CatchUpRun, newest, left time.Time, settled bool) error {
	if newest.Before(r.Newest) {
		newest = r.Newest
	}
	_, err := do(ctx, s, op{}, func(t *turn) (struct{}, error) {
		t.tx.Queue("catch_up_end", nil, max(1, microsOrZero(newest)), microsOrZero(left))
		if settled {
			t.endMissed(r.Began)
		}
		return struct{}{}, nil
	})
	return err
}
