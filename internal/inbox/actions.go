package inbox

import (
	"context"
	"errors"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
)

// An Action is something that a person asked for. It has one entry, however many webhooks it touches. The transaction
// that does it also writes the entry, or counts there what it did: so the entry says what was done, even if the
// action ended halfway.
type Action struct {
	ID    int64     `json:"id"` // of the entry; zero: there is none yet
	At    time.Time `json:"at"`
	Who   string    `json:"who"`             // the token's name, or the address; for commands also the user's name
	What  string    `json:"what"`            // the command of 'usher inbox', or reconcile
	About string    `json:"about,omitempty"` // ids, a filter or a tenant; never a payload
	Count int       `json:"count"`           // how many webhooks it touched
}

// note writes the entry, or counts there how many webhooks it has touched. Nil is an action that nobody asked for: it has
// no entry.
func (a *Action) note(t *turn, touched int) {
	if a == nil {
		return
	}
	n := *a
	if n.Count += touched; n.ID == 0 {
		id := func(r engine.Row) error { return r.Scan(&n.ID) }
		t.tx.Queue("action_add", id, t.Now, withoutZero(a.Who), a.What, withoutZero(a.About), int64(touched))
	} else {
		t.tx.Queue("action_count", nil, int64(touched), n.ID)
	}
	t.Then(func() { *a = n })
}

// actionPatience is how long a person waits for an action, which may have to wait for a delivery.
const actionPatience = 20 * time.Second

// act runs an action of a person. does also returns how many webhooks it has touched. If its webhook is being delivered
// (ErrBusy), act waits for the outcome and tries again.
func act[T any](q *queue, o op, by *Action, does func(*turn) (T, int, error)) (result T, err error) {
	ctx, cancel := context.WithTimeout(q.run, actionPatience)
	defer cancel()
	for busy, pause := false, 20*time.Millisecond; ; busy, pause = true, min(2*pause, 320*time.Millisecond) {
		result, err = do(ctx, q, o, func(t *turn) (T, error) {
			result, touched, err := does(t)
			if errors.Is(err, lane.ErrBusy) {
				return result, err // the lane may have noted that somebody waits
			}
			if err == nil {
				by.note(t, touched)
				t.person = true
			}
			return result, err
		})
		switch {
		case busy && ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return result, lane.ErrBusy
		case !errors.Is(err, lane.ErrBusy):
			return result, err
		}
		select {
		case <-ctx.Done():
			return result, lane.ErrBusy
		case <-time.After(pause):
		}
	}
}

// Note writes the entry of an action that is no transaction, or counts there how many webhooks it has touched.
func (s *queue) Note(a *Action, touched int) error {
	_, err := act(s, op{}, a, func(t *turn) (struct{}, int, error) { return struct{}{}, touched, nil })
	return err
}

// Actions returns the last actions with an id below before, newest first. Zero: there is no such bound.
func (s *store) Actions(ctx context.Context, before int64, most int) ([]Action, error) {
	if before == 0 {
		before = clock.Never
	}
	scan := func(r engine.Row) (a Action, err error) {
		var at int64
		err = r.Scan(&a.ID, &at, &a.Who, &a.What, &a.About, &a.Count)
		a.At = clock.Moment(at)
		return a, err
	}
	return listOf(ctx, s.read, scan, "actions", before, int64(most))
}
