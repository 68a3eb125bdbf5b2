// Package history keeps what was wrong, from when to when, and says it by itself. What is wrong, package
// status decides; here it is looked at every few seconds, also if nobody else looks.
//
//	history.go   the record: what began, what is over, of which replica
//	diff.go      what has changed since the last look
//	message.go   what is to be said, and how
//	notify.go    says it, as soon as it can
//
// With an inbox the records are rows of it, so that they survive a restart, and each replica shows those of
// all. While the inbox cannot be written, or without one, they are in memory.
package history

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
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
	Name     string       // of this replica, which Run sets; empty unless replicas share the inbox
	Host     string       // of this machine

	URL   func() string                    // where notifications go; nil: there are none
	Proxy func(*url.URL) (*url.URL, error) // nil: none
	Sent  func(result string)              // counts the tries of notifications, one of Results
	Log   *slog.Logger
}

// lookEvery is how often the recorder looks, signEvery how often a replica says that it is there, and
// claimFor how long after a sign it may count on speaking for all.
const (
	lookEvery = 5 * time.Second
	signEvery = 15 * time.Second
	claimFor  = inbox.SpeakerLease - signEvery
	settled   = 30 * time.Second // the inbox has been read for so long: who has signed since is known
	lastWords = time.Second      // a message that is under way when usher ends has so long for its answer
)

// A Recorder keeps the history.
type Recorder struct {
	cfg       Config
	started   time.Time
	roundTrip func(*http.Request) (*http.Response, error) // a test may have another one

	mu       sync.Mutex // guards what follows
	records  []inbox.Trouble
	unsaved  map[string]bool // ids of records that the inbox does not have as they are
	said     map[string]bool // ids of others' records that were said, which the inbox does not know
	replicas []inbox.Replica
	readable time.Time // since when the inbox can be read, and written; zero: it cannot
	speaks   bool      // it speaks for all
	claimed  time.Time // when that was last asked for
	signed   time.Time
	lastSaid time.Time // when the last notification went out, as the inbox has it
	speech   speech
}

// New returns a recorder. Run does the work.
func New(cfg Config) *Recorder {
	if cfg.Sent == nil {
		cfg.Sent = func(string) {}
	}
	r := &Recorder{cfg: cfg, started: time.Now(), unsaved: make(map[string]bool), said: make(map[string]bool)}
	r.speaks = !r.shared()
	r.roundTrip = r.transport().RoundTrip
	return r
}

// shared says whether other replicas write to the same history.
func (r *Recorder) shared() bool { return r.cfg.Inbox != nil && r.cfg.Inbox.Shared() }

func (r *Recorder) writes() bool { return r.cfg.Inbox != nil && !r.cfg.ReadOnly }

// now is the time of the history: the database's, if there is one, so that replicas agree.
func (r *Recorder) now() time.Time {
	if r.cfg.Inbox != nil {
		return r.cfg.Inbox.Now().UTC()
	}
	return time.Now().UTC()
}

// Run looks and says until ctx ends. Then it says that this replica ends. name is that of this
// replica, if it shares an inbox.
func (r *Recorder) Run(ctx context.Context, name string) {
	r.mu.Lock()
	if r.shared() {
		r.cfg.Name = name
	}
	r.mu.Unlock()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	toPost, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	var posting sync.WaitGroup
	for n := 1; ; n++ {
		select {
		case <-ctx.Done(): // what the other side has taken should be stored as said
			defer time.AfterFunc(lastWords, cut).Stop()
			posting.Wait()
			r.end()
			return
		case <-tick.C:
		}
		if r.cfg.Stopping() {
			continue
		}
		if n%int(lookEvery/time.Second) == 0 || r.hasSaid() {
			r.Look(ctx)
		}
		if m := r.dueNow(); m != nil {
			posting.Go(func() { r.post(toPost, m) })
		}
	}
}

// hasSaid says whether something was said that the inbox does not know: after a crash it would be said again.
func (r *Recorder) hasSaid() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.said) > 0 && r.cfg.Inbox.Health().Err == nil
}

// end says that this replica ends: others need not miss it.
func (r *Recorder) end() {
	if r.writes() && r.cfg.Inbox.Health().Err == nil {
		_, _ = r.cfg.Inbox.Sign(r.sign(true)) // after an error it looks as if it were gone
	}
}

// Look records what has changed.
func (r *Recorder) Look(ctx context.Context) {
	s := r.cfg.Status(ctx)
	var night *inbox.Night
	if r.cfg.Inbox != nil {
		night, _ = r.cfg.Inbox.Tonight(ctx) // after an error: what is in memory
	}
	if r.cfg.Stopping() || ctx.Err() != nil { // meanwhile
		return
	}
	now := r.now()
	r.mu.Lock()
	r.take(night, now)
	r.record(s, now)
	due := len(r.unsaved)+len(r.said) > 0 || r.signed.IsZero() || time.Since(r.signed) >= r.signEvery()
	r.mu.Unlock()
	if due && night != nil && r.writes() && r.cfg.Inbox.Health().Err == nil {
		r.save()
	}
}

// signEvery is how often it signs without a change.
func (r *Recorder) signEvery() time.Duration {
	if r.shared() {
		return signEvery
	}
	return time.Hour // then old rows are deleted
}

// take brings what is in memory up to date with what the inbox has. Nil: it cannot be read. If this
// replica has not signed for a while, it may be that nobody can write: then what can be read says neither
// who is gone nor who speaks.
func (r *Recorder) take(night *inbox.Night, now time.Time) {
	switch {
	case night == nil, r.shared() && !r.cfg.ReadOnly && time.Since(latest(r.claimed, r.started)) > claimFor:
		r.readable = time.Time{}
		r.records = slices.DeleteFunc(r.records, func(t inbox.Trouble) bool {
			return !t.Ended.IsZero() && now.Sub(t.Ended) > inbox.HistoryAge
		})
		r.records = r.records[max(0, len(r.records)-inbox.HistorySize):]
		return
	case r.readable.IsZero():
		r.readable = time.Now()
	}
	r.records, r.replicas = r.merged(night.Troubles), night.Replicas
	if night.Said.After(r.lastSaid) {
		r.lastSaid = night.Said
	}
	if r.shared() && !r.cfg.ReadOnly && time.Since(r.claimed) > claimFor {
		r.speaks = false // until it has asked again
	}
}

// merged returns what the inbox has, with what it does not know yet. r.mu is held.
func (r *Recorder) merged(stored []inbox.Trouble) []inbox.Trouble {
	for _, t := range r.records {
		if !r.unsaved[t.ID] && !r.said[t.ID] {
			continue
		}
		i := slices.IndexFunc(stored, func(o inbox.Trouble) bool { return o.ID == t.ID })
		if i < 0 { // it began while the inbox could not be read: perhaps it had begun before, in a former run
			i = slices.IndexFunc(stored, func(o inbox.Trouble) bool {
				return o.About == t.About && o.Replica == t.Replica && o.Ended.IsZero() && t.Then == ""
			})
		}
		if i < 0 {
			if r.unsaved[t.ID] {
				stored = append(stored, t)
			}
			continue
		}
		is := &stored[i]
		if is.ID != t.ID {
			delete(r.unsaved, t.ID)
			r.unsaved[is.ID] = true
			t.ID, t.Began, t.Noticed, t.Erased = is.ID, is.Began, is.Noticed, is.Erased
		}
		if is.Erased != t.Erased { // its words are older than an erasure
			t.TroubleWords, t.Erased = is.TroubleWords, is.Erased
		}
		t.Said, t.SaidOver = latest(t.Said, is.Said), latest(t.SaidOver, is.SaidOver)
		*is = t
	}
	return stored
}

// record compares what is found with the records for which this process is responsible: its own, and, if it
// speaks for all, those of the inbox, and of replicas that are gone.
func (r *Recorder) record(s *status.Status, now time.Time) {
	var mine []inbox.Trouble
	endsOthers := r.speaks && !r.readable.IsZero() && time.Since(r.readable) > settled
	for _, t := range r.records {
		switch {
		case t.Replica == r.cfg.Name && t.Replica != "", t.Replica == "" && r.speaks:
			mine = append(mine, t)
		case t.Replica != "" && t.Ended.IsZero() && endsOthers:
			if t.Ended = ended(r.replicas, t.Replica, now); !t.Ended.IsZero() {
				t.Ended = latest(t.Ended, t.Began)
				r.put(t)
			}
		}
	}
	for _, t := range next(mine, s.Found(now, r.cfg.Name, r.speaks), now) {
		r.put(t)
	}
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// put changes a record, or adds one. r.mu is held.
func (r *Recorder) put(t inbox.Trouble) {
	if i := slices.IndexFunc(r.records, func(o inbox.Trouble) bool { return o.ID == t.ID }); i >= 0 {
		r.records[i] = t
	} else {
		r.records = append(r.records, t)
	}
	if r.writes() {
		r.unsaved[t.ID] = true
	}
}

// sign is what this replica writes now. r.mu is not held.
func (r *Recorder) sign(ends bool) *inbox.Sign {
	r.mu.Lock()
	defer r.mu.Unlock()
	sign := &inbox.Sign{Replica: r.cfg.Name, Since: r.now().Add(-time.Since(r.started)), Ends: ends}
	for _, t := range r.records {
		switch ours := t.Replica == r.cfg.Name && t.Replica != "" || r.speaks; {
		case r.unsaved[t.ID] && ours:
			sign.Troubles = append(sign.Troubles, t)
		case r.said[t.ID]:
			sign.Said = append(sign.Said, t)
		}
	}
	if r.speaks && !r.readable.IsZero() && time.Since(r.readable) > settled {
		_, sign.Gone = missing(r.replicas, r.now())
	}
	return sign
}

// save writes what has changed.
func (r *Recorder) save() {
	sign, asked := r.sign(false), time.Now()
	speaks, err := r.cfg.Inbox.Sign(sign)
	if err != nil {
		r.cfg.Log.Debug("cannot store the history, will retry", "err", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.signed, r.claimed = asked, asked
	for _, t := range sign.Troubles {
		if slices.ContainsFunc(r.records, func(o inbox.Trouble) bool {
			return o.ID == t.ID && o.Said.Equal(t.Said) && o.SaidOver.Equal(t.SaidOver)
		}) { // else it was said meanwhile
			delete(r.unsaved, t.ID)
		}
	}
	for _, t := range sign.Said {
		delete(r.said, t.ID)
	}
	if r.shared() {
		r.speaks = speaks
	}
	if !r.speaks { // what somebody else keeps now
		for _, t := range r.records {
			if t.Replica == "" {
				delete(r.unsaved, t.ID)
			}
		}
	}
}

// Facts adds to a status what only the history knows: the troubles of other replicas, and how notifications fare.
func (r *Recorder) Facts(s *status.Status) {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Notifications = r.notifications()
	if !r.shared() || r.readable.IsZero() || time.Since(r.readable) < settled {
		return
	}
	others := slices.DeleteFunc(slices.Clone(r.replicas), func(one inbox.Replica) bool {
		return one.Name == r.cfg.Name
	})
	s.Gone, _ = missing(others, now)
	for _, t := range r.records {
		ofOther := t.Replica != "" && t.Replica != r.cfg.Name
		if ofOther && t.Ended.IsZero() && ended(r.replicas, t.Replica, now).IsZero() {
			s.Elsewhere = append(s.Elsewhere, t)
		}
	}
}

// Since returns what is over, and ended since a time; what ended last first. old: the inbox cannot be read,
// and this is what is in memory.
func (r *Recorder) Since(ctx context.Context, since time.Time) (over []inbox.Trouble, old bool) {
	var all []inbox.Trouble
	if box := r.cfg.Inbox; box != nil {
		stored, err := box.Troubles(ctx, since, 2*inbox.HistorySize)
		all, old = stored, err != nil
	}
	r.mu.Lock()
	for _, t := range r.records {
		i := slices.IndexFunc(all, func(o inbox.Trouble) bool { return o.ID == t.ID })
		switch {
		case i < 0:
			all = append(all, t)
		case r.unsaved[t.ID]:
			all[i] = t
		}
	}
	r.mu.Unlock()
	all = slices.DeleteFunc(all, func(t inbox.Trouble) bool { return t.Ended.IsZero() || t.Ended.Before(since) })
	slices.SortStableFunc(all, func(a, b inbox.Trouble) int { return b.Ended.Compare(a.Ended) })
	return all[:min(len(all), inbox.HistorySize)], old
}

// Erase takes a tenant out of what is in memory.
func (r *Recorder) Erase(platform, tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.records {
		if r.records[i].TroubleWords.Erase(platform, tenant) {
			r.records[i].Erased++
		}
	}
}
