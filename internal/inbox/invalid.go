package inbox

import (
	"context"
	"fmt"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/text"
	"usher/webhookgate"
)

// Invalid webhooks: the right sender sent them, but usher cannot take them in as they are. Each may be a change that
// nobody will send again, so it is stored until somebody has dealt with it.

// storeInvalid stores a webhook that is invalid, and returns its id. A copy of an invalid webhook that nobody has
// dealt with is not stored again. When ctx ends first, it returns an error. Then the webhook may have been stored or not,
// but it is not stored later. After an error it is missed.
func (s *Inbox) storeInvalid(ctx context.Context, r *webhookgate.Invalid) (id int64, err error) {
	w := &r.Webhook
	row := newWebhook(w)
	if w.Lane.Tenant == "" {
		row.LaneName = webhookgate.LaneName{}
	}
	row.Type = text.Clip(withoutZero(row.Type), 255)
	row.Record = lane.Record{Faults: r.Faults, Code: r.Status, From: r.From, Cut: r.Cut}
	o := work{numbers: 1, bytes: row.Size, digests: [][]byte{row.Digest}}
	if w.Lane.Tenant != "" {
		o.lanes = []webhookgate.LaneName{w.Lane}
	}
	if full := s.engine.Full(); full != nil { // the last room is for outcomes
		err = full
	} else {
		id, err = attempt(ctx, s, o, func(t *sqlTurn) int64 {
			stored := t.LaneOf(row).RecordInvalid(row, t.copies[string(row.Digest)])
			t.copies[string(row.Digest)] = stored
			return stored.ID
		})
	}
	return id, s.orOutage(ctx, err)
}

// sweepInvalid deletes the oldest invalid webhooks, if they are too many, too old, or too large together, and says
// how many.
func (s *Inbox) sweepInvalid(tx engine.Tx, now int64) (int, error) {
	lim := s.cfg.Limits
	var old engine.Among
	var lanes []webhookgate.LaneName // of the deleted webhooks; some have none
	tx.Queue("invalid_delete", func(r engine.Row) error {
		var seq int64
		var name webhookgate.LaneName
		err := r.Scan(&seq, &name.Tenant, &name.Platform, &name.Type)
		old, lanes = append(old, seq), append(lanes, name)
		return err
	}, int64(lim.Invalid), lim.InvalidBytes, now-clock.Micros(lim.InvalidAge))
	if err := tx.Send(); err != nil || len(old) == 0 {
		return 0, err
	}
	tx.Queue("content_delete", nil, old)
	tenants, platforms, types := laneColumns(lanes)
	tx.Queue("lane_subtract_invalid", nil, tenants, platforms, types)
	return len(old), tx.Send()
}

// Accept takes in a webhook that is invalid, as it is, at the end of its lane, and returns its new id. If its tenant
// has a newer snapshot, that needs force.
func (s *Inbox) Accept(id int64, force bool, by *Action) (int64, error) {
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
	// After ctx's end it is not taken in later either, when its tenant may have a newer one.
	w := work{hooks: []int64{id}, snapshots: []webhookgate.LaneName{found.LaneName}, by: by}
	a := s.handIn(ctx, arriving(hook), w, func(t *sqlTurn, l *lane.Lane, in *lane.Incoming) error {
		in.Accepting = l.Loaded(id)
		return l.CheckAccept(in, force)
	})
	return a.ID, s.explain(a.Err)
}

// Acceptable says why a webhook, with its content, can't be accepted, whatever else may be wrong by then; nil: it can.
func (s *Inbox) Acceptable(found *lane.Webhook) error {
	_, err := s.readInvalid(found)
	return err
}

const correctIt = ". Correct it in the billing service, and send it again from there"

// readInvalid reads an invalid webhook anew, or says why that is not possible.
func (s *Inbox) readInvalid(found *lane.Webhook) (*webhookgate.Webhook, error) {
	switch {
	case found.State != state.Invalid:
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
