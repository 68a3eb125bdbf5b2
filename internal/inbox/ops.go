package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
	"usher/internal/text"
	"usher/webhookgate"
)

// What the gate hands in, and what people do. Each is an operation that locks the lane's row, on whichever replica.

// Store stores a webhook for its receiver; see webhookgate.Config.Store.
func (s *queue) Store(ctx context.Context, w *webhookgate.Webhook) (duplicateOf string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	a, err := s.takeIn(ctx, arriving(w), op{}, nil, func(*turn, *lane.Lane, *lane.Incoming) error {
		if w.Gone != nil && w.Gone() {
			return webhookgate.ErrGone
		}
		return nil
	})
	return a.DuplicateOf, err
}

// takeIn hands a webhook to its lane, unless check says why not. Once that is committed, others are told first, and then
// the sender.
func (s *queue) takeIn(
	ctx context.Context, in lane.Incoming, o op, by *Action, check func(*turn, *lane.Lane, *lane.Incoming) error,
) (lane.Answer, error) {
	if full := s.engine.Full(); full != nil { // the last room is for outcomes
		return lane.Answer{}, full
	}
	o.lanes, o.makes, o.size = []webhookgate.LaneName{in.LaneName}, true, in.Size
	a, err := do(ctx, s, o, func(t *turn) (lane.Answer, error) {
		in, l := in, t.Lanes[in.LaneName]
		if err := check(t, l, &in); err != nil {
			return lane.Answer{}, err
		}
		first := l.Tail == 0
		a, err := l.Receive(&in)
		if t.noteRoom(err); err != nil {
			return a, err
		}
		by.note(t, 1)
		t.Then(func() {
			if in.Snapshot { // also for a duplicate: the original may have come through another replica
				s.cfg.Changed(in.Tenant)
			}
			if in.Snapshot && first {
				s.background.Go(func() { s.warnIfAmbiguous(TenantRef{in.Platform, in.Tenant}) })
			}
		})
		return a, nil
	})
	return a, s.orOutage(ctx, err)
}

// orOutage returns the error of an operation. If ctx ended before it was confirmed, that is the outage, if there is one.
func (s *queue) orOutage(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	return cmp.Or(s.health.lastErr(), errNotInTime)
}

// warnIfAmbiguous logs that new tenants' codes exist on several platforms from now on: who asks what they may use
// must name the platform. Often it is a webhook whose platform was null by mistake.
func (s *store) warnIfAmbiguous(tenants ...TenantRef) {
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

// RecordInvalid stores a webhook that is invalid, and returns its id; zero: that was not possible. See
// webhookgate.Config.Invalid. Each may be a change that nobody will send again, so it is stored until somebody has dealt
// with it.
func (s *queue) RecordInvalid(ctx context.Context, r *webhookgate.Invalid) int64 {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	id, err := s.storeInvalid(ctx, r)
	if err != nil {
		s.cfg.Log.Error("cannot store an invalid webhook", "webhook", r.ID, "err", err)
		return 0
	}
	return id
}

// storeInvalid stores a webhook that is invalid, and returns its id. A copy of one that nobody has dealt with is not stored
// again.
func (s *queue) storeInvalid(ctx context.Context, r *webhookgate.Invalid) (id int64, err error) {
	if full := s.engine.Full(); full != nil { // the last room is for outcomes
		return 0, full
	}
	row := newWebhook(&r.Webhook)
	if r.Lane.Tenant == "" {
		row.LaneName = webhookgate.LaneName{}
	}
	row.Type = text.Clip(withoutZero(row.Type), 255)
	row.Record = lane.Record{Faults: r.Faults, Code: r.Status, From: r.From, Cut: r.Cut}
	o := op{lanes: []webhookgate.LaneName{row.LaneName}, makes: true, size: row.Size, digests: [][]byte{row.Digest}}
	stored, err := do(ctx, s, o, func(t *turn) (*lane.Webhook, error) {
		known := t.copies[string(row.Digest)]
		if known != nil && known.LaneName != row.LaneName {
			known = nil
		}
		stored := t.Lanes[row.LaneName].RecordInvalid(row, known)
		t.copies[string(row.Digest)] = stored
		return stored, nil
	})
	if err != nil {
		return 0, s.orOutage(ctx, err)
	}
	return stored.ID, nil
}

// Accept takes in a webhook that is invalid, as it is, at the end of its lane, and returns its new id. If its tenant
// has a newer snapshot, that needs force.
func (s *queue) Accept(id int64, force bool, by *Action) (int64, error) {
	found, err := s.find(s.run, id)
	if err != nil {
		return 0, err
	}
	hook, err := s.readInvalid(found)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(s.run, actionPatience)
	defer cancel()
	o := op{hooks: []int64{id}, snapshots: true, numbered: true}
	a, err := s.takeIn(ctx, arriving(hook), o, by, func(t *turn, l *lane.Lane, in *lane.Incoming) error {
		in.Accepting = l.Loaded(id)
		t.person = true
		return l.CheckAccept(in, t.known[l.LaneName], force)
	})
	if err != nil {
		return 0, s.explain(err)
	}
	return a.Taken.ID, nil
}

// Acceptable says why a webhook, with its content, can't be accepted, whatever else may be wrong by then; nil: it can.
func (s *queue) Acceptable(found *lane.Webhook) error {
	_, err := s.readInvalid(found)
	return err
}

const correctIt = ". Correct it in the billing service, and send it again from there"

// readInvalid reads an invalid webhook anew, or says why that is not possible.
func (s *queue) readInvalid(found *lane.Webhook) (*webhookgate.Webhook, error) {
	switch {
	case found.State != state.Invalid && !(found.State == state.Superseded && found.Rejected()):
		return nil, lane.ErrNotInvalid
	case found.Cut:
		return nil, lane.Denied("only the beginning of its body is stored. Raise USHER_WEBHOOK_MAX_BODY, " +
			"and send it again from the billing service")
	case found.Check() != nil:
		return nil, lane.ErrDamaged
	}
	hook, err := webhookgate.Accept(webhookgate.NewID(), found.Header, found.Body, s.cfg.Receivers)
	switch {
	case err != nil:
		return nil, lane.Denied(err.Error() + correctIt)
	case hook.Lane != found.LaneName: // only somebody who wrote to the database can have made such a row
		return nil, lane.Denied("its body names another tenant" + correctIt)
	case hook.Receiver == nil && !s.cfg.StoreUnclaimed:
		unclaimed := fmt.Sprintf("no receiver takes webhooks of its platform %q. ", hook.Lane.Platform)
		return nil, lane.Denied(unclaimed + lane.GiveToReceiver)
	}
	return hook, nil
}

// toWebhook does something to a webhook, on behalf of a person.
func (s *queue) toWebhook(found *lane.Webhook, by *Action, does func(*turn, *lane.Lane, *lane.Webhook) error) error {
	o := op{hooks: []int64{found.ID}, lanes: []webhookgate.LaneName{found.LaneName}}
	_, err := act(s, o, by, func(t *turn) (struct{}, int, error) {
		l := t.Lanes[found.LaneName]
		w := l.Loaded(found.ID)
		if w == nil {
			return struct{}{}, 0, ErrNotFound
		}
		err := does(t, l, w)
		t.noteRoom(err)
		return struct{}{}, 1, err
	})
	return err
}

// Redeliver sends a webhook again, ahead of the other webhooks that wait in its lane, and counts its tries anew. A
// webhook that waits is tried at once. If its tenant has a newer webhook, it would overwrite that one: this needs
// force. chosen is the state for which somebody has chosen it, maybe a while ago; empty: the one that it has now.
func (s *queue) Redeliver(id int64, chosen state.State, force bool, by *Action) error {
	found, err := s.find(s.run, id)
	if err != nil {
		return err
	}
	if found.Rejected() { // that never changes, and it may have no lane
		return s.invalidWhy(found)
	}
	chosen = cmp.Or(chosen, found.State)
	return s.explain(s.toWebhook(found, by, func(_ *turn, l *lane.Lane, w *lane.Webhook) error {
		return l.Redeliver(w, chosen, force)
	}))
}

// invalidWhy says why an invalid webhook cannot be sent again, and what to do instead.
func (s *queue) invalidWhy(found *lane.Webhook) error {
	if found.State != state.Invalid {
		return lane.Denied("it is invalid, and somebody has dealt with it, or its tenant has a newer snapshot: " +
			"see 'usher inbox show ID'")
	}
	if _, err := s.readInvalid(found); err != nil {
		return lane.Denied(fmt.Sprintf("it is invalid, and cannot be accepted either: %v", err))
	}
	return lane.ErrInvalid
}

// explain completes an OverwriteError with the newer webhook, if that one is still stored.
func (s *queue) explain(err error) error {
	if older, ok := errors.AsType[*lane.OverwriteError](err); ok {
		if latest, missing := s.find(s.run, older.Latest.ID); missing == nil {
			older.Latest = latest
		}
	}
	return err
}

// Discard discards a webhook that waits, is parked or is invalid: nothing more is done with it, and it stays in the
// history.
func (s *queue) Discard(id int64, by *Action) error {
	found, err := s.find(s.run, id)
	if err != nil {
		return err
	}
	return s.toWebhook(found, by, func(_ *turn, l *lane.Lane, w *lane.Webhook) error { return l.Discard(w) })
}

// Backup returns a copy of an inbox in a file, as it is at one moment, and its size. Webhooks are taken in and delivered
// meanwhile. The copy is an inbox of its own, which begins paused.
func (s *store) Backup(ctx context.Context) (copied io.ReadCloser, size int64, err error) {
	if !s.Ready() {
		return nil, 0, cmp.Or(s.health.lastErr(), errNotInTime)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.run, cancel)()
	copied, size, err = s.engine.Backup(ctx)
	if errors.Is(err, errors.ErrUnsupported) {
		err = lane.Denied("this inbox is in PostgreSQL: back it up with pg_dump")
	}
	return copied, size, err
}

// Erase deletes everything about a tenant: all its webhooks, its last snapshot, and what dedup remembers. It returns
// the number of webhooks. It may wait for a delivery: if something comes for the tenant meanwhile, nothing is
// deleted.
func (s *queue) Erase(platform, tenant string, by *Action) (count int, err error) {
	lanes, err := s.lanesOf(s.run, &platform, tenant)
	if err != nil {
		return 0, err
	}
	seen := int64(0) // the number of what came last, when somebody asked
	for _, l := range lanes {
		seen = max(seen, l.Last)
	}
	key := webhookgate.LaneName{Platform: platform, Tenant: tenant}
	// A tenant that usher does not know gets a lane: a list that is older than the erasure must not bring it.
	o := op{lanes: []webhookgate.LaneName{key}, makes: true}
	count, err = act(s, o, by, func(t *turn) (count, touched int, err error) {
		l := t.Lanes[key]
		if l.Last > seen {
			return 0, 0, lane.ErrMeanwhile
		}
		if err := l.Erase(); err != nil {
			return 0, 0, err
		}
		t.ask("lane_count", func(r engine.Row) error { return r.Scan(&count) }, tenant, platform)
		t.tx.Queue("troubles_erase", nil, withoutZero("\n"+ShowTenant(platform, tenant)+"\n"))
		return count, count, nil
	})
	s.cfg.Changed(tenant)
	return count, err
}
