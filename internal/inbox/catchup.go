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
	asked  *runID // of a run that somebody asked for; nil: usher reads the log by itself
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

// JoinRun returns the run that somebody has begun (BeginRun), as one that reads the log. It waits for no other run, and the
// next one begins where it would have begun without it.
func (s *queue) JoinRun(ctx context.Context, id string) (*CatchUpRun, error) {
	run, err := parseRun(id)
	if err != nil {
		return nil, err
	}
	r := &CatchUpRun{LogRun: lane.LogRun{Mark: run.at, Began: clock.Moment(run.began)}, mark: run.mark, asked: &run}
	return r, s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("compared", func(row engine.Row) error {
			var newest int64
			err := row.Scan(&newest, new(int64), new(int64))
			r.Newest, r.First = momentOrZero(newest), newest == 0
			return err
		})
		return tx.Send()
	})
}

// A LoggedWebhook is the newest of its tenant in the log.
type LoggedWebhook struct {
	Body     []byte
	Age      time.Duration
	Settled  bool
	Accepted bool
}

// CatchUp decides on webhooks of the log, in one transaction. If the mode only compares, it changes nothing.
func (s *queue) CatchUp(ctx context.Context, r *CatchUpRun, all []LoggedWebhook, mode lane.ReconcileMode) ([]lane.LogDecision, error) {
	done := make([]lane.LogDecision, len(all))
	if full := s.engine.Full(); full != nil && mode.Applies() { // the last room is for outcomes
		if r.asked != nil {
			return nil, full
		}
		for n := range done {
			done[n].Later = true
		}
		return done, nil
	}
	logged := make([]*lane.Logged, len(all))
	o := op{snapshots: true, makes: mode.Applies(), optional: !mode.Applies()}
	for n, l := range all {
		header := http.Header{"Content-Type": {"application/json"}, sourceHeader: {lane.SourceCatchUp}}
		hook, faults := webhookgate.ReadSnapshot(s.cfg.Content, header, l.Body, s.cfg.Receivers)
		done[n].Result = lane.PassedOver
		if len(faults) > 0 {
			if done[n].Later = !l.Settled; l.Settled && mode.Applies() {
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
	return do(ctx, s, o, func(t *turn) ([]lane.LogDecision, error) {
		if err := t.checkMark(r.mark); err != nil {
			return nil, err
		}
		done := append([]lane.LogDecision{}, done...) // a transaction may run again
		applied := 0
		for n, in := range logged {
			if in == nil || t.copies[string(in.Digest)] != nil {
				continue
			}
			in := *in
			in.Made = t.Now - clock.Micros(all[n].Age)
			l := t.Lanes[in.LaneName]
			if l == nil { // to compare needs none
				l = t.UnknownLane(in.LaneName)
			}
			done[n] = l.CatchUp(&in, t.known[in.LaneName], &r.LogRun, mode)
			if done[n].Applied {
				applied++
				t.Then(func() { s.cfg.Changed(in.Tenant) })
			}
		}
		switch {
		case r.asked == nil:
			t.tx.Queue("catch_up_go_on", nil, t.after(catchUpTurn))
		case applied > 0:
			(&Action{ID: r.asked.action}).note(t, applied)
		}
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

// EndJoined says that a run that somebody asked for has read the log. settled: completely, and nothing differs any more.
func (s *queue) EndJoined(r *CatchUpRun, settled bool) error { return s.endRun(*r.asked, settled) }
