package inbox

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
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

// pauses has the pauses that were read last.
type pauses struct {
	*store
	reading chan struct{} // one reader at a time: an older result must not replace a newer one
	list    atomic.Pointer[[]Pause]
}

func newPauses(s *store) *pauses { return &pauses{store: s, reading: make(chan struct{}, 1)} }

// readPauses reads the pauses. After an error the ones that were read before stay in force.
func (s *pauses) readPauses(ctx context.Context) error {
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
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
		s.list.Store(&all)
	}
	return err
}

// over says whether the pause has ended by itself.
func (p Pause) over(now time.Time) bool { return !p.Until.IsZero() && !p.Until.After(now) }

// Paused returns the pauses that were read last, and have not ended; nil: none were read yet.
func (s *pauses) Paused() []Pause {
	all, now := s.allPauses(), s.Now()
	if !slices.ContainsFunc(all, func(p Pause) bool { return p.over(now) }) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(p Pause) bool { return p.over(now) })
}

func (s *pauses) allPauses() []Pause {
	if list := s.list.Load(); list != nil {
		return *list
	}
	return nil
}

// paused says whether a pause holds back everything for a receiver, and lanePaused whether one holds back a tenant.
func (s *pauses) paused(receiver string) bool {
	return slices.ContainsFunc(s.Paused(), func(p Pause) bool { return p.CoversReceiver(receiver) })
}

func (s *pauses) lanePaused(platform, tenant, receiver string) bool {
	return slices.ContainsFunc(s.Paused(), func(p Pause) bool { return p.Covers(platform, tenant, receiver) })
}
