// Package history keeps what was wrong, from when to when, and says it by itself. What is wrong, package
// status decides; here it is looked at every few seconds, also if nobody else looks. With an inbox the records
// are rows of it; while it cannot be written, or without one, they are in memory, and follow the same rules.
package history

import (
	"cmp"
	"context"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"usher/internal/admin/status"
	"usher/internal/inbox"
)

// Config says whose history it is. Fields are required unless they say what their zero value means.
type Config struct {
	Status   func(context.Context) *status.Status
	Stopping func() bool // usher shuts down: what is wrong then is no trouble

	Inbox    *inbox.Inbox // nil: there is none
	ReadOnly bool         // this usher needs not write the inbox: what it records stays in memory
	Host     string       // of this machine

	URL   func() string                    // where notifications go; nil: there are none
	Proxy func(*url.URL) (*url.URL, error) // nil: none
	Sent  func(result string)              // counts the tries of notifications, one of Results; nil: nobody does
	Log   *slog.Logger
}

const (
	// lookEvery is how often the recorder looks.
	lookEvery = 5 * time.Second
	// memorySize is how many records there may be in memory.
	memorySize = 1000
)

// A Recorder keeps the history.
type Recorder struct {
	cfg   Config
	began time.Time
	name  string    // of this replica; set by Run
	says  *notifier // nil: there are no notifications

	mu     sync.Mutex // guards what follows
	memory []record   // what the inbox does not have
	shared []inbox.Trouble
}

// record is a row that is in memory.
type record struct {
	inbox.Trouble
	claimed time.Time // when this process last began to say something of it
}

// New returns a recorder. Run does the work.
func New(cfg Config) *Recorder {
	r := &Recorder{cfg: cfg, began: time.Now()}
	if cfg.URL != nil {
		r.says = &notifier{url: cfg.URL, host: cfg.Host, sent: cfg.Sent, log: cfg.Log, roundTrip: transport(cfg.Proxy).RoundTrip}
	}
	return r
}

// Run looks and says until ctx ends. name is that of this replica.
func (r *Recorder) Run(ctx context.Context, name string) {
	r.name = name
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if !r.cfg.Stopping() {
				r.look(ctx)
			}
		}
	}
}

// look records what is wrong now, and says what is due.
func (r *Recorder) look(ctx context.Context) {
	now := time.Now().UTC()
	found := r.cfg.Status(ctx).Found(now, r.name)
	// After a start it takes some seconds until all is found that was wrong before.
	ends := now.Sub(r.began) >= inbox.TroubleSaid
	says := r.says.may(now)
	r.mu.Lock()
	memory := slices.Clone(r.memory)
	r.mu.Unlock()
	if box := r.cfg.Inbox; box != nil && !r.cfg.ReadOnly && box.Health().Err == nil {
		var before []inbox.Trouble
		for i := range memory {
			before = append(before, memory[i].Trouble)
		}
		if shared, due, err := box.Found(before, found, ends, says); err == nil {
			r.mu.Lock()
			r.memory, r.shared = nil, shared
			r.mu.Unlock()
			if r.says.say(ctx, due) {
				_ = box.Told(due) // else somebody says it again
			}
			return
		}
	}
	r.mu.Lock()
	due := r.remember(found, now, ends, says)
	r.mu.Unlock()
	if r.says.say(ctx, due) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for i := range due {
			if t := r.find(due[i].About, due[i].Noticed); t != nil {
				t.Told = max(t.Told, due[i].Says())
			}
		}
	}
}

func (r *Recorder) find(about string, noticed time.Time) *record {
	i := slices.IndexFunc(r.memory, func(t record) bool { return t.About == about && t.Noticed.Equal(noticed) })
	if i < 0 {
		return nil
	}
	return &r.memory[i]
}

// remember does in memory what inbox.Found does in the inbox. r.mu is held.
func (r *Recorder) remember(found []inbox.Trouble, now time.Time, ends, says bool) (say []inbox.Trouble) {
	recent := func(at time.Time) bool { return now.Sub(at) < inbox.TroubleSaid }
	for _, f := range found {
		goesOn := func(t *record) bool {
			return t.About == f.About && (t.Ended.IsZero() || recent(t.Ended) && t.Told < inbox.ToldOver)
		}
		i := len(r.memory) - 1
		for i >= 0 && !goesOn(&r.memory[i]) {
			i--
		}
		if i < 0 {
			f.Noticed = now
			for j := range r.shared { // the inbox has it, and cannot be written now
				if t := &r.shared[j]; t.About == f.About && t.Ended.IsZero() {
					f.Began, f.Noticed, f.Told = t.Began, t.Noticed, max(f.Told, t.Told)
				}
			}
			r.memory, i = append(r.memory, record{Trouble: f}), len(r.memory)
		}
		t := &r.memory[i]
		t.TroubleWords, t.Replica, t.Seen, t.Ended = f.TroubleWords, f.Replica, now, time.Time{}
	}
	for i := range r.memory {
		t := &r.memory[i]
		if ends && t.Ended.IsZero() && now.Sub(t.Seen) > inbox.TroubleEnds {
			t.Ended = t.Seen
		}
		begun := t.Ended.IsZero() && t.Told == inbox.Untold && !recent(t.Noticed)
		over := !t.Ended.IsZero() && t.Told == inbox.ToldBegin && !recent(t.Ended)
		if says && (begun || over) && !recent(t.claimed) {
			t.claimed = now
			say = append(say, t.Trouble)
		}
	}
	r.memory = slices.DeleteFunc(r.memory, func(t record) bool { return !t.Ended.IsZero() && now.Sub(t.Ended) > inbox.HistoryAge })
	r.memory = r.memory[max(0, len(r.memory)-memorySize):]
	return say
}

// Facts adds to a status what only the history knows: the troubles of other replicas, and how notifications fare.
func (r *Recorder) Facts(s *status.Status) {
	now := time.Now()
	s.Notifications = r.says.status(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.shared {
		if t.Ended.IsZero() && t.Replica != "" && t.Replica != r.name && now.Sub(t.Seen) <= inbox.TroubleEnds {
			s.Elsewhere = append(s.Elsewhere, t)
		}
	}
}

// Since returns what is over, and ended since a time; what ended last first. old: the inbox cannot be read,
// and this is what is in memory.
func (r *Recorder) Since(ctx context.Context, since time.Time) (over []inbox.Trouble, old bool) {
	if box := r.cfg.Inbox; box != nil {
		stored, err := box.Troubles(ctx, since)
		over, old = stored, err != nil
	}
	r.mu.Lock()
	for i := range r.memory {
		over = append(over, r.memory[i].Trouble)
	}
	r.mu.Unlock()
	over = slices.DeleteFunc(over, func(t inbox.Trouble) bool { return t.Ended.IsZero() || t.Ended.Before(since) })
	slices.SortStableFunc(over, func(a, b inbox.Trouble) int {
		return cmp.Or(b.Ended.Compare(a.Ended), strings.Compare(a.About, b.About))
	})
	return over[:min(len(over), memorySize)], old
}

// Erase deletes what names a tenant from memory.
func (r *Recorder) Erase(platform, tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memory = slices.DeleteFunc(r.memory, func(t record) bool { return t.Names(platform, tenant) })
}
