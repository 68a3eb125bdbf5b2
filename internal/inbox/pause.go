package inbox

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/text"
)

// A Pause holds deliveries back: all of them, those to one receiver, or those of one tenant. Deliveries that have
// begun may finish.
type Pause struct {
	Receiver string    `json:"receiver,omitempty"`
	Platform string    `json:"platform,omitempty"`
	Tenant   string    `json:"tenant,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Until    time.Time `json:"until,omitzero"` // when it ends by itself, by the inbox's clock; zero: it does not
	// Copied is when a backup made this inbox, which begins paused; zero: a person has paused it.
	Copied time.Time `json:"copied,omitzero"`
}

// LongestPause bounds how long a pause with an end lasts.
const LongestPause = 366 * 24 * time.Hour

// Covers says whether p holds back the webhooks of a tenant for a receiver.
func (p Pause) Covers(platform, tenant, receiver string) bool {
	switch {
	case p.Tenant != "":
		return p.Tenant == tenant && p.Platform == platform
	case p.Receiver != "":
		return p.Receiver == receiver
	}
	return true
}

// CoversReceiver says whether the pause holds back everything for a receiver.
func (p Pause) CoversReceiver(name string) bool {
	return p.Tenant == "" && (p.Receiver == "" || p.Receiver == name)
}

// String returns what the pause holds back, for people.
func (p Pause) String() string {
	switch {
	case p.Tenant != "":
		return "tenant " + ShowTenant(p.Platform, p.Tenant)
	case p.Receiver != "":
		return "receiver " + p.Receiver
	}
	return "all deliveries"
}

// Words returns what the pause holds back, and until when.
func (p Pause) Words() string { return p.With(p.String()) }

// With returns words, such as "paused", and until when the pause lasts, if it ends by itself.
func (p Pause) With(words string) string {
	if p.Until.IsZero() {
		return words
	}
	return words + " until " + p.Until.UTC().Format("2006-01-02 15:04:05 UTC")
}

// Same says whether both hold back the same.
func (p Pause) Same(other Pause) bool {
	return p.Receiver == other.Receiver && p.Platform == other.Platform && p.Tenant == other.Tenant
}

// Flag returns the pause as an option of a command line that people copy into a shell.
func (p Pause) Flag() string {
	switch {
	case p.Tenant != "":
		return " --tenant " + text.Quote(ShowTenant(p.Platform, p.Tenant))
	case p.Receiver != "":
		return " --receiver " + text.Quote(p.Receiver)
	}
	return ""
}

// pauses has the pauses that were read last.
type pauses struct {
	reading chan struct{} // one reader at a time: an older result must not replace a newer one
	list    atomic.Pointer[[]Pause]
}

// Pause holds deliveries back; see type Pause. It ends by itself after lasts, by the database's clock, unless that is
// zero. The result has its end.
func (s *Inbox) Pause(p Pause, lasts time.Duration, by *Action) (Pause, error) {
	if lasts < 0 { // as of an end that is over
		return Pause{}, errPauseOver
	}
	return changePause(s, by, func(t *turn) (is Pause) {
		if p.Until = (time.Time{}); lasts > 0 {
			p.Until = clock.Moment(t.after(lasts))
		}
		t.ask("pause_add", func(r engine.Row) (err error) { is, err = scanPause(r); return err }, p.row(t.Now)...)
		return is
	})
}

const errPauseOver lane.Denied = "the pause would have ended already"

// Resume lifts a pause, and says whether there was one.
func (s *Inbox) Resume(p Pause, by *Action) (bool, error) { return s.endPause(p, clock.Never, by) }

// endPause lifts a pause that ends until then. Zero: now, by the database's clock.
func (s *Inbox) endPause(p Pause, until int64, by *Action) (bool, error) {
	return changePause(s, by, func(t *turn) (was bool) {
		t.ask("pause_remove", func(engine.Row) error { was = true; return nil }, p.Receiver, p.Platform, p.Tenant, cmp.Or(until, t.Now))
		return was
	})
}

// changePause writes a pause's row. Then it reads the pauses, so that the change is in force here when it returns.
func changePause[T any](s *Inbox, by *Action, change func(*turn) T) (result T, err error) {
	result, err = act(s, op{}, by, func(t *turn) (T, int, error) { return change(t), 0, nil })
	if err == nil {
		err = s.readPauses(s.run)
		s.courier.wake()
	}
	return result, err
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
	var since, until, copied int64
	err = r.Scan(&p.Receiver, &p.Platform, &p.Tenant, &since, &until, &copied)
	if p.Since = clock.Moment(since); until < clock.Never {
		p.Until = clock.Moment(until)
	}
	p.Copied = momentOrZero(copied)
	return p, err
}

// readPauses reads the pauses. After an error the ones that were read before stay in force.
func (s *Inbox) readPauses(ctx context.Context) error {
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
			read = s.readPauses(ctx) == nil || read // an error is not logged: the writer notices an outage
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

// addPause adds to a tenant whether it is paused, and when that ends.
func (s *Inbox) addPause(t *Tenant) {
	for _, p := range s.Paused() {
		if p.Tenant == t.Tenant && p.Platform == t.Platform {
			t.Paused, t.Until = true, p.Until
		}
	}
}
