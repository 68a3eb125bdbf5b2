package inbox

import (
	"context"
	"slices"
	"strings"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/snapshot"
	"usher/internal/text"
	"usher/webhookgate"
)

// answerWithin is the longest time that a sender waits for the inbox.
const answerWithin = 10 * time.Second

// Store stores a webhook for its receiver; see webhookgate.Config.Store.
func (s *Inbox) Store(ctx context.Context, w *webhookgate.Webhook) (duplicateOf string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	a := s.add(ctx, w)
	return a.DuplicateOf, a.Err
}

// RecordInvalid stores a webhook that is invalid, and returns its id; zero: that was not possible. See
// webhookgate.Config.Invalid.
func (s *Inbox) RecordInvalid(ctx context.Context, r *webhookgate.Invalid) int64 {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	id, err := s.storeInvalid(ctx, r)
	if err != nil {
		s.cfg.Log.Error("cannot store an invalid webhook", "webhook", r.ID, "err", err)
		return 0
	}
	return id
}

// add takes a webhook in and returns when it is stored durably. When ctx ends first, add returns an error. Then the
// webhook may have been taken in or not, but it is not taken in later: the sender may have sent a newer one through
// another replica meanwhile.
func (s *Inbox) add(ctx context.Context, w *webhookgate.Webhook) lane.Answer {
	return s.handIn(ctx, arriving(w), work{}, func(*sqlTurn, *lane.Lane, *lane.Incoming) error {
		if w.Gone != nil && w.Gone() {
			return webhookgate.ErrGone
		}
		return nil
	})
}

// handIn hands a webhook to its lane, unless check says why not. Once that is committed, others are told first, and then
// the sender.
func (s *Inbox) handIn(ctx context.Context, in lane.Incoming, w work, check checkIncoming) lane.Answer {
	if full := s.engine.Full(); full != nil { // the last room is for outcomes
		return lane.Answer{Err: full}
	}
	w.lanes = []webhookgate.LaneName{in.LaneName}
	w.numbers, w.bytes = 1, in.Size
	type done struct {
		answer lane.Answer
		noted  *Action
	}
	d, err := attempt(ctx, s, w, func(t *sqlTurn) (d done) {
		in, l := in, t.Lanes[in.LaneName]
		if l == nil {
			d.answer.Err = errUnreadable
			return d
		}
		first := l.Tail == 0
		if d.answer.Err = check(t, l, &in); d.answer.Err == nil {
			d.answer = l.Receive(&in)
		}
		if d.answer.Err == nil {
			d.noted = w.by.queue(t.tx, t.Now, 1)
			t.Then(func() { s.tellTaken(&in, d.answer, first) })
		}
		return d
	})
	if err != nil {
		return lane.Answer{Err: s.orOutage(ctx, err)}
	}
	w.by.become(d.noted)
	return d.answer
}

// checkIncoming completes what is known of a webhook, in the transaction, or says why it is not taken in.
type checkIncoming func(*sqlTurn, *lane.Lane, *lane.Incoming) error

// tellTaken tells all who have to know, before its sender does, that a webhook was taken in, or is a duplicate. first
// says that it is the first of its tenant.
func (s *Inbox) tellTaken(in *lane.Incoming, a lane.Answer, first bool) {
	if in.Snapshot { // also for a duplicate: the original may have come through another replica
		s.cfg.Changed(in.Tenant)
	}
	if in.Snapshot && first {
		s.background.Go(func() { s.warnIfAmbiguous(TenantRef{in.Platform, in.Tenant}) })
	}
	switch {
	case a.Lease != nil:
		s.courier.Deliver(a.Lease)
	case a.Unleased && s.courier != nil:
		s.courier.Wake(in.To)
	}
}

// warnIfAmbiguous logs that new tenants' codes exist on several platforms from now on: who asks what they may use
// must name the platform. Often it is a webhook whose platform was null by mistake.
func (s *Inbox) warnIfAmbiguous(tenants ...TenantRef) {
	names := make([][]string, len(tenants))
	err := s.read(s.run, func(tx engine.Tx) error {
		for n, t := range tenants {
			names[n] = []string{ShowTenant(t.Platform, t.Tenant)}
			tx.Queue("namesakes", func(r engine.Row) error {
				var other string
				err := r.Scan(&other)
				names[n] = append(names[n], ShowTenant(other, t.Tenant))
				return err
			}, t.Tenant, t.Platform)
		}
		return tx.Send()
	})
	if err != nil {
		return
	}
	for _, all := range names {
		if len(all) > 1 {
			sorted := strings.Join(slices.Sorted(slices.Values(all)), ", ")
			s.cfg.Log.Warn("a tenant's code exists on several platforms now: "+
				"questions about what it may use that name no platform are answered 409 AMBIGUOUS",
				"new", text.Clip(all[0], 200), "tenants", text.Clip(sorted, 500))
		}
	}
}

// arriving reads what the inbox must know of a webhook.
func arriving(w *webhookgate.Webhook) lane.Incoming {
	in := lane.Incoming{Webhook: newWebhook(w), To: w.Receiver}
	if w.Snapshot {
		if in.Brings = w.State; in.Brings == nil { // it does not come from the gate
			in.Brings = snapshot.Read(w.Body).Stored(w.Lane.Platform, w.Lane.Tenant, w.ID)
		}
	}
	return in
}

// overhead is about how many bytes a webhook takes beside its content.
const overhead = 512

func newWebhook(w *webhookgate.Webhook) *lane.Webhook {
	row := &lane.Webhook{
		UUID: w.ID, Type: w.Type, Platform: w.Lane.Platform, Tenant: w.Lane.Tenant,
		LaneName: w.Lane, Snapshot: w.Snapshot, Digest: w.Digest[:],
		Header: w.Header, Body: w.Body, HasContent: true, Verified: true,
	}
	row.Size = int64(len(w.Body)+len(encodeHeader(w.Header))) + overhead
	return row
}
