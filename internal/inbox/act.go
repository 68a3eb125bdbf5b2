package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/webhookgate"
)

// What people do. Each action is a piece of work that locks the lane's row, on whichever replica the person asks.

// actionPatience is how long a person waits for an action, which may have to wait for a delivery.
const actionPatience = 20 * time.Second

// act runs an action of a person, or a part of it. does also returns how many webhooks it has touched. If its webhook
// is being delivered (ErrBusy), act waits for the outcome and tries again.
func act[T any](s *Inbox, w work, does func(*sqlTurn) (T, int, error)) (result T, denied error) {
	ctx, cancel := context.WithTimeout(s.run, actionPatience)
	defer cancel()
	type done struct {
		result T
		denied error
		noted  *Action
	}
	for busy, pause := false, 20*time.Millisecond; ; busy, pause = true, min(2*pause, 320*time.Millisecond) {
		d, err := do(ctx, s, w, func(t *sqlTurn) (d done) {
			var touched int
			if d.result, touched, d.denied = does(t); d.denied == nil {
				d.noted = w.by.queue(t.tx, t.Now, touched)
			}
			t.byPerson = true
			t.Then(s.wakeCourier)
			return d
		})
		switch {
		case busy && ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return result, lane.ErrBusy
		case err != nil:
			return result, err
		case !errors.Is(d.denied, lane.ErrBusy):
			w.by.become(d.noted)
			return d.result, d.denied
		}
		select {
		case <-ctx.Done():
			return result, lane.ErrBusy
		case <-time.After(pause):
		}
	}
}

// toWebhook does something to a webhook, on behalf of a person.
func (s *Inbox) toWebhook(found *lane.Webhook, by *Action, do func(*lane.Lane, *lane.Webhook) error) error {
	w := work{hooks: []int64{found.ID}, by: by}
	if found.LaneName.IsLane() {
		w.known = []webhookgate.LaneName{found.LaneName}
	}
	_, err := act(s, w, func(t *sqlTurn) (nothing, int, error) {
		l := t.LaneOf(found)
		if found.LaneName.IsLane() && t.Lanes[found.LaneName] == nil {
			return nothing{}, 0, errUnreadable
		}
		if l.Loaded(found.ID) == nil {
			return nothing{}, 0, ErrNotFound
		}
		return nothing{}, 1, do(l, l.Loaded(found.ID))
	})
	return err
}

// Redeliver sends a webhook again, ahead of the other webhooks that wait in its lane, and counts its tries anew. A
// webhook that waits is tried at once. If its tenant has a newer webhook, it would overwrite that one: this needs
// force. chosen is the state for which somebody has chosen it, maybe a while ago; empty: the one that it has now.
func (s *Inbox) Redeliver(id int64, chosen state.State, force bool, by *Action) error {
	found, err := s.find(s.run, id)
	if err != nil {
		return err
	}
	if found.Rejected() { // that never changes, and it may have no lane
		return s.invalidWhy(found)
	}
	chosen = cmp.Or(chosen, found.State)
	again := func(l *lane.Lane, h *lane.Webhook) error { return l.Redeliver(h, chosen, force) }
	return s.explain(s.toWebhook(found, by, again))
}

// invalidWhy says why an invalid webhook cannot be sent again, and what to do instead.
func (s *Inbox) invalidWhy(found *lane.Webhook) error {
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
func (s *Inbox) explain(err error) error {
	if older, ok := errors.AsType[*lane.OverwriteError](err); ok {
		if latest, missing := s.find(s.run, older.Latest.ID); missing == nil {
			older.Latest = latest
		}
	}
	return err
}

// Discard discards a webhook that waits, is parked or is invalid: nothing more is done with it, and it stays in the
// history.
func (s *Inbox) Discard(id int64, by *Action) error {
	found, err := s.find(s.run, id)
	if err != nil {
		return err
	}
	return s.toWebhook(found, by, (*lane.Lane).Discard)
}

// Backup returns a copy of an inbox in a file, as it is at one moment, and its size. Webhooks are taken in and delivered
// meanwhile. The copy is an inbox of its own, which begins paused.
func (s *Inbox) Backup(ctx context.Context) (copied io.ReadCloser, size int64, err error) {
	if !s.Ready() {
		return nil, 0, s.outage()
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
func (s *Inbox) Erase(platform, tenant string, by *Action) (count int, err error) {
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
	w := work{lanes: []webhookgate.LaneName{key}, numbers: 1, by: by}
	count, err = act(s, w, func(t *sqlTurn) (count, touched int, err error) {
		l := t.Lanes[key]
		if l == nil {
			return 0, 0, errUnreadable
		}
		if l.Last > seen {
			return 0, 0, lane.ErrMeanwhile
		}
		if count, err = l.Erase(); err == nil {
			t.eraseTroubles(platform, tenant)
		}
		return count, count, err
	})
	s.cfg.Changed(tenant)
	return count, err
}
