package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
)

// What people do. Each action is a piece of work that locks the lane's row, on whichever replica the person asks.

// actionPatience is how long a person waits for an action, which may have to wait for a delivery.
const actionPatience = 20 * time.Second

// act runs an action of a person, or a part of it. does also returns how many webhooks it has touched. If its webhook
// is being delivered (ErrBusy), act waits for the outcome and tries again.
func act[T any](s *Inbox, names work, does func(*sqlTurn) (T, int, error)) (result T, denied error) {
	ctx, cancel := context.WithTimeout(s.run, actionPatience)
	defer cancel()
	type done struct {
		result T
		denied error
		noted  *Action
	}
	for busy, pause := false, 20*time.Millisecond; ; busy, pause = true, min(2*pause, 320*time.Millisecond) {
		d, err := do(ctx, s, names, func(t *sqlTurn) (d done) {
			var touched int
			if d.result, touched, d.denied = does(t); d.denied == nil {
				d.noted = names.by.queue(t.tx, t.Now, touched)
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
			names.by.become(d.noted)
			return d.result, d.denied
		}
		select {
		case <-ctx.Done():
			return result, lane.ErrBusy
		case <-time.After(pause):
		}
	}
}

type nothing = struct{}

// find reads a webhook with its content. Of the result only the lane and the content never change.
func (s *Inbox) find(ctx context.Context, id int64) (w *lane.Webhook, err error) {
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("webhooks", func(r engine.Row) (err error) { w, err = scanWebhook(r, true); return err }, engine.Among{id})
		return tx.Send()
	})
	if err == nil && w == nil {
		err = ErrNotFound
	}
	return w, err
}

// toWebhook does something to a webhook, on behalf of a person.
func (s *Inbox) toWebhook(found *lane.Webhook, by *Action, do func(*lane.Lane, *lane.Webhook) error) error {
	names := work{hooks: []int64{found.ID}, by: by}
	if !unnamed(found.LaneName) {
		names.lanes = []webhookgate.LaneName{found.LaneName} // it is made anew if its row is damaged
	}
	_, err := act(s, names, func(t *sqlTurn) (nothing, int, error) {
		l := t.LaneOf(found)
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
func (s *Inbox) Redeliver(id int64, chosen lane.State, force bool, by *Action) error {
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
	if found.State != lane.Invalid {
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

// lanesOf returns the lanes of a tenant, on one platform or on all.
func (s *Inbox) lanesOf(ctx context.Context, platform *string, tenant string) (all []*lane.Lane, err error) {
	if !storable(tenant) {
		return nil, nil
	}
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("lanes_of_tenant", func(r engine.Row) error {
			l, err := scanLane(r)
			if err == nil && (platform == nil || l.Platform == *platform) {
				all = append(all, l)
			}
			return err
		}, tenant)
		return tx.Send()
	})
	return all, err
}

// Forget drops what dedup compares with, of a tenant on one platform or on all: the tenant's next snapshot is
// delivered, even if it is a copy. It returns the number of platforms on which there was anything to forget.
func (s *Inbox) Forget(platform *string, tenant string, by *Action) (count int, err error) {
	lanes, err := s.lanesOf(s.run, platform, tenant)
	if err != nil {
		return 0, err
	}
	names := work{by: by}
	for _, l := range lanes {
		names.known = append(names.known, l.LaneName)
	}
	forgotten, err := act(s, names, func(t *sqlTurn) (forgotten map[webhookgate.LaneName]bool, touched int, err error) {
		forgotten = make(map[webhookgate.LaneName]bool)
		for _, k := range names.known {
			if l := t.Lanes[k]; l != nil && l.Forget() {
				forgotten[k] = true
			}
		}
		return forgotten, 0, nil
	})
	if err != nil {
		return 0, err
	}
	for _, k := range s.forgetMissed(platform, tenant) {
		forgotten[k] = true
	}
	return len(forgotten), nil
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
	names := work{lanes: []webhookgate.LaneName{key}, numbers: 1, by: by}
	count, err = act(s, names, func(t *sqlTurn) (count, touched int, err error) {
		l := t.Lanes[key]
		if l.Last > seen {
			return 0, 0, lane.ErrMeanwhile
		}
		if count, err = l.Erase(); err == nil {
			t.eraseTroubles(platform, tenant)
		}
		return count, count, err
	})
	s.cfg.Changed(tenant)
	if err == nil {
		s.forgetMissed(&platform, tenant)
	}
	return count, err
}

// pauses has the pauses that were read last.
type pauses struct {
	reading chan struct{} // one reader at a time: an older result must not replace a newer one
	list    atomic.Pointer[[]Pause]
}

// Pause holds deliveries back; see type Pause. It ends by itself after lasts, by the database's clock, unless that is
// zero. The result has its end.
func (s *Inbox) Pause(p Pause, lasts time.Duration, by *Action) (Pause, error) {
	return changePause(s, p, by, func(t *sqlTurn) (is Pause, err error) {
		if p.Until = (time.Time{}); lasts > 0 {
			p.Until = clock.Moment(t.Now + clock.Micros(lasts))
		}
		t.tx.Queue("pause_add", func(r engine.Row) (err error) { is, err = scanPause(r); return err }, p.row(t.Now)...)
		t.send()
		t.pauseLane(p, true)
		return is, nil
	})
}

// Resume lifts a pause, and says whether there was one.
func (s *Inbox) Resume(p Pause, by *Action) (bool, error) { return s.endPause(p, clock.Never, by) }

// endPause lifts a pause that ends until then. Zero: now, by the database's clock.
func (s *Inbox) endPause(p Pause, until int64, by *Action) (bool, error) {
	return changePause(s, p, by, func(t *sqlTurn) (was bool, err error) {
		found := func(engine.Row) error { was = true; return nil }
		t.tx.Queue("pause_remove", found, p.Receiver, p.Platform, p.Tenant, cmp.Or(until, t.Now))
		t.send()
		if was {
			t.pauseLane(p, false)
		}
		return was, nil
	})
}

// changePause writes a pause's row with its tenant's lane locked, if it has a tenant. Then it reads the pauses, so
// that the change is in force here when it returns.
func changePause[T any](s *Inbox, p Pause, by *Action, change func(*sqlTurn) (T, error)) (result T, err error) {
	names := work{by: by}
	if p.Tenant != "" {
		names.lanes = []webhookgate.LaneName{p.lane()}
	}
	result, err = act(s, names, func(t *sqlTurn) (result T, touched int, err error) {
		result, err = change(t)
		return result, 0, err
	})
	if err != nil {
		return result, err
	}
	return result, s.ReadPauses(s.run)
}

func (t *sqlTurn) pauseLane(p Pause, yes bool) {
	if p.Tenant != "" {
		t.Lanes[p.lane()].Pause(yes)
	}
}

func (p Pause) lane() webhookgate.LaneName {
	return webhookgate.LaneName{Platform: p.Platform, Tenant: p.Tenant}
}

// row is the pause's row.
func (p Pause) row(since int64) []any {
	until := clock.Never
	if !p.Until.IsZero() {
		until = p.Until.UnixMicro()
	}
	return []any{p.Receiver, p.Platform, p.Tenant, since, until}
}

func scanPause(r engine.Row) (p Pause, err error) {
	var since, until int64
	unreadable, err := engine.Unreadable(r.Scan(&p.Receiver, &p.Platform, &p.Tenant, &since, &until))
	switch {
	case len(unreadable) > 0 && unreadable[0] < 3: // nobody knows what it holds back: it must not be everything
		return p, &engine.ValueError{Values: unreadable}
	case slices.Contains(unreadable, 4): // it is damaged, and still a pause
		until = clock.Never
	}
	if p.Since = clock.Moment(since); until < clock.Never {
		p.Until = clock.Moment(until)
	}
	return p, err
}

// ReadPauses reads the pauses. After an error the ones that were read before stay in force.
func (s *Inbox) ReadPauses(ctx context.Context) error {
	select {
	case s.pauses.reading <- struct{}{}:
		defer func() { <-s.pauses.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	all := []Pause{}
	err := s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("pauses", func(r engine.Row) error {
			p, err := scanPause(r)
			if err == nil {
				all = append(all, p)
			}
			return err
		})
		return tx.Send()
	})
	if err == nil {
		s.pauses.list.Store(&all)
	}
	return err
}

// refreshPauses reads the pauses again and again, so that a pause of another replica is in force here within a
// second, and lifts those that have ended. In a file, which no other process changes, it reads them once.
func (s *Inbox) refreshPauses() {
	tick := time.NewTicker(time.Second / 2)
	defer tick.Stop()
	for read := false; s.run.Err() == nil; {
		if !read || s.engine.Shared() {
			ctx, cancel := context.WithTimeout(s.run, 5*time.Second)
			read = s.ReadPauses(ctx) == nil || read // an error is not logged: the writer notices an outage
			cancel()
		}
		for _, p := range s.allPauses() {
			if !p.over(s.Now()) {
				continue
			}
			if was, err := s.endPause(p, 0, nil); err == nil && was { // else another replica did, or it has a new end
				s.cfg.Log.Info("a pause has ended", "what", p.String())
			}
		}
		select {
		case <-tick.C:
		case <-s.run.Done():
		}
	}
}

// over says whether the pause has ended by itself.
func (p Pause) over(now time.Time) bool { return !p.Until.IsZero() && !p.Until.After(now) }

// Paused returns the pauses that were read last, and have not ended; nil: none were read yet.
func (s *Inbox) Paused() []Pause {
	all, now := s.allPauses(), s.Now()
	if !slices.ContainsFunc(all, func(p Pause) bool { return p.over(now) }) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(p Pause) bool { return p.over(now) })
}

func (s *Inbox) allPauses() []Pause {
	if list := s.pauses.list.Load(); list != nil {
		return *list
	}
	return nil
}

// addPauseEnd adds to a tenant when its pause ends.
func (s *Inbox) addPauseEnd(t *Tenant) {
	for _, p := range s.Paused() {
		if t.Paused && p.Tenant == t.Tenant && p.Platform == t.Platform {
			t.Until = p.Until
		}
	}
}
