// Package catchup finds webhooks that the billing service has made and that usher never got: the service tries a
// webhook twice and drops it, but its webhook log keeps it.
//
// A run takes a mark, the inbox's last number, and then reads the log, the newest event first. The first event of a
// tenant is its newest: it has the state that the tenant should be in. In one transaction the inbox compares that
// with what usher knows, and takes the event in if it differs. If something of the tenant came after the mark, or right
// before it, nobody knows which is newer: the event is left to the next run. So an older state never comes after a newer
// one, whichever replica reads the log, and no lock between replicas is needed.
package catchup

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/outbound"
)

// Scope is what the API client needs to read the log.
const Scope = "workflow:read"

const (
	every    = 10 * time.Minute    // between runs
	settle   = 30 * time.Second    // an event that is younger may still be on its way
	again    = time.Minute         // after a run that failed
	overlap  = 10 * time.Minute    // of what the last run has read: a webhook may be logged late
	longest  = 30 * 24 * time.Hour // how far back a run reads
	pageSize = 100                 // the service advises no more
)

// Config is what a CatchUp needs.
type Config struct {
	Call      func(ctx context.Context, query string, variables map[string]any, data any) (time.Time, error)
	Inbox     *inbox.Inbox
	Addresses []*url.URL         // to which the service sends the webhooks that are usher's
	CaughtUp  func(webhooks int) // is told how many were taken in
	Log       *slog.Logger
}

// A CatchUp reads the service's webhook log, and hands the inbox what may be missing. Make it with New.
type CatchUp struct {
	cfg     Config
	began   time.Time // when the gate of this process did
	wake    chan struct{}
	calling chan struct{} // holds a value while the service is asked: Config.Call is for one at a time
	failing atomic.Bool   // usher answers 5xx to the service

	mu      sync.Mutex
	state   State
	tenants map[[16]byte]bool // those that state.Tenants counts, by subject
}

// State is how usher stands to the service's webhook log.
type State struct {
	Failed  string    // why the log cannot be read, in foreign words; empty: it can
	Refused bool      // it stays so until somebody changes something in the service
	Since   time.Time // of Failed

	Elsewhere bool // the log has provisioning webhooks, and all of them went to other addresses
	Shorter   bool // the log ends before the newest event that usher has read

	Alone      int       // webhooks that usher's gate could have got, and that came through the log alone, since the last that the gate got
	AloneSince time.Time // when the first of them was made
	Answer     string    // what the service got for the last of them; empty: no answer

	// What usher has last caught up by itself, in runs not more than an hour apart.
	CaughtAt          time.Time // the last of it; zero: nothing was caught up
	Webhooks, Tenants int
	From, To          time.Time // when the service made them, by our clock
	Down              bool      // all of them before this usher was up
}

// New returns a CatchUp.
func New(cfg Config) *CatchUp {
	return &CatchUp{cfg: cfg, began: time.Now(), wake: make(chan struct{}, 1), calling: make(chan struct{}, 1)}
}

// State returns how usher stands to the log now.
func (c *CatchUp) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// GateAnswered says that the gate has answered a webhook whose sender passed the checks. Once usher takes webhooks again after
// it answered 5xx, it catches up.
func (c *CatchUp) GateAnswered(status int) {
	if status >= 500 {
		c.failing.Store(true)
		return
	}
	c.mu.Lock()
	c.state.Alone = 0
	c.mu.Unlock()
	if c.failing.CompareAndSwap(true, false) {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// Run runs until ctx ends.
func (c *CatchUp) Run(ctx context.Context) {
	for {
		left, err := c.once(ctx)
		if ctx.Err() != nil {
			return
		}
		c.note(err)
		wait := every
		switch {
		case err != nil:
			wait = again
		case left:
			wait = settle
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-c.wake:
			select {
			case <-ctx.Done():
				return
			case <-time.After(settle):
			}
		}
	}
}

// note keeps and logs why a run has failed: one line when that begins, one when it ends.
func (c *CatchUp) note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.state
	if err == nil {
		if s.Failed != "" {
			c.cfg.Log.Info("the billing service's webhook log can be read again")
		}
		s.Failed = ""
		return
	}
	if s.Failed == "" {
		s.Since = time.Now()
		c.cfg.Log.Warn("cannot read the billing service's webhook log, will retry", "err", err, "next_try", again)
	}
	s.Failed = err.Error()
	_, s.Refused = errors.AsType[outbound.CallRefusedError](err)
}

// once is one run. left says that it left events to a later run.
func (c *CatchUp) once(ctx context.Context) (left bool, err error) {
	run, err := c.cfg.Inbox.BeginCatchUp(ctx) // before anything is read
	if errors.Is(err, inbox.ErrCatchUpElsewhere) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("the inbox cannot be written: %w", err)
	}
	defer func() {
		if err != nil {
			c.cfg.Inbox.AbandonCatchUp()
		}
	}()
	r := c.reading(run, run.Newest.Add(-overlap), lane.ToApply)
	if !run.Left.IsZero() && run.Left.Before(r.from) {
		r.from = run.Left
	}
	if err := r.read(ctx); err != nil {
		return false, err
	}
	c.mu.Lock()
	if run.First || r.ours > 0 {
		c.state.Elsewhere = r.allElsewhere()
	}
	c.state.Shorter = !run.First && r.newest.Before(run.Newest)
	settled := r.left.IsZero() && !c.state.Elsewhere && !c.state.Shorter
	c.mu.Unlock()
	return !r.left.IsZero(), c.cfg.Inbox.EndCatchUp(ctx, run, r.newest, r.left, settled)
}

// Reconcile is the run over the log that somebody has begun in the inbox. since is how far back it reads; zero: as far as
// any. tell gets what came of each tenant that usher does not know as the log does, and how many tenants were read so far.
func (c *CatchUp) Reconcile(
	ctx context.Context, id string, since time.Time, mode lane.ReconcileMode, tell func(some []lane.Compared, seen int) error,
) (*inbox.Run, error) {
	run, err := c.cfg.Inbox.JoinRun(ctx, id)
	if err != nil {
		return nil, err
	}
	r := c.reading(run, since, mode)
	r.tell, r.found = tell, make(lane.Counts)
	if err := r.read(ctx); err != nil {
		return nil, err
	}
	if r.allElsewhere() {
		r.failed = errors.New("the webhook log has no webhook that was sent to this gate: is USHER_WEBHOOK_CATCH_UP_URL right?")
	}
	result := &inbox.Run{ID: id, Found: r.found}
	if r.failed != nil {
		result.Failed = r.failed.Error()
	} else if since.IsZero() { // else it says nothing of what was before
		err = c.cfg.Inbox.EndJoined(run, r.left.IsZero() && r.found.Open() == 0)
	}
	return result, err
}

// reading is a run on its way through the log. Its times of events are the service's.
type reading struct {
	*CatchUp
	run  *inbox.CatchUpRun
	mode lane.ReconcileMode
	from time.Time // older events are not read

	// Of a run that somebody has asked for:
	tell   func(some []lane.Compared, seen int) error
	found  lane.Counts
	failed error // why a webhook was not taken in, or none can be: the others are only compared

	seen            map[[16]byte]bool // the subjects whose newest event was met, by digest: 100,000 take 5 MB
	ours, elsewhere int               // provisioning events that were sent to usher, and to others
	newest, left    time.Time         // the newest event, and the oldest one that was left
}

func (c *CatchUp) reading(run *inbox.CatchUpRun, from time.Time, mode lane.ReconcileMode) *reading {
	return &reading{CatchUp: c, run: run, from: from, mode: mode, seen: make(map[[16]byte]bool)}
}

// allElsewhere says that the log has provisioning webhooks, and that all of them went to other addresses.
func (r *reading) allElsewhere() bool { return r.elsewhere > 0 && r.ours == 0 }

// read reads the log, page by page.
func (r *reading) read(ctx context.Context) error {
	for cursor, more := any(nil), true; more; {
		var p page
		select {
		case r.calling <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		asked := time.Now()
		now, err := r.cfg.Call(ctx, query, map[string]any{"first": pageSize, "after": cursor}, &p)
		<-r.calling
		if err != nil && r.tell != nil {
			err = fmt.Errorf("cannot read the billing service's webhook log: %w", err)
		}
		if err != nil {
			return err
		}
		if oldest := now.Add(-longest); r.from.Before(oldest) {
			r.from = oldest
		}
		info := p.WebhookEvents.PageInfo
		more, cursor = info.HasNextPage && info.EndCursor != "", info.EndCursor
		reached, err := r.page(ctx, p.WebhookEvents.Nodes, now, asked)
		if err != nil {
			return err
		}
		more = more && !reached
	}
	return nil
}

// page has the inbox decide on the events of a page that are the newest of their tenants. now is the service's time, asked is ours. reached
// says that the run has read far enough.
func (r *reading) page(ctx context.Context, events []*event, now, asked time.Time) (reached bool, err error) {
	var deciding []*event
	var logged []inbox.LoggedWebhook
	for _, e := range events {
		if e == nil {
			continue
		}
		if e.CreatedAt.Before(r.from) {
			reached = true
			break
		}
		if e.CreatedAt.After(r.newest) {
			r.newest = e.CreatedAt
		}
		body := e.body()
		name := subject(body)
		if name == "" {
			continue
		}
		if !IsBelow(e.URL, r.cfg.Addresses) {
			r.elsewhere++
			continue
		}
		r.ours++
		if r.seen[key(name)] {
			continue
		}
		r.seen[key(name)] = true
		deciding = append(deciding, e)
		logged = append(logged, inbox.LoggedWebhook{
			Body: compact(body), Age: now.Sub(e.CreatedAt), Settled: now.Sub(e.CreatedAt) >= settle, Accepted: e.answered2xx(),
		})
	}
	if r.tell != nil && r.failed == nil && r.run.Newest.After(r.from) && r.newest.Before(r.run.Newest) {
		r.failed = errors.New("the webhook log ends before the newest webhook that usher has read there: is it that of the same account?")
	}
	if len(logged) == 0 {
		return reached, nil
	}
	mode := r.mode
	if r.failed != nil {
		mode = lane.ToCompare
	}
	done, err := r.cfg.Inbox.CatchUp(ctx, r.run, logged, mode)
	if err != nil {
		return false, err
	}
	taken := 0
	for n := range done {
		d, e := &done[n], deciding[n]
		if d.Later {
			r.left = e.CreatedAt // the newest come first
		}
		if d.Applied {
			taken++
			r.took(e, asked.Add(e.CreatedAt.Sub(now)))
			r.cfg.Log.Info("caught up a webhook", "id", d.Taken(), "platform", d.Platform, "tenant", d.Tenant,
				"made", e.CreatedAt, "service_got", e.answer())
		}
	}
	if taken > 0 {
		r.cfg.CaughtUp(taken)
	}
	return reached, r.report(done)
}

// report counts what came of a page, and tells the person who has asked for the run.
func (r *reading) report(done []lane.LogDecision) error {
	if r.tell == nil {
		return nil
	}
	var some []lane.Compared
	for _, d := range done {
		r.found[d.Result]++
		if d.Applied {
			r.found[lane.Applied]++
		}
		if d.Err != nil {
			r.failed = fmt.Errorf("not all were taken in: %w", d.Err)
		}
		if d.Result != lane.Equal && d.Result != lane.PassedOver {
			some = append(some, d.Compared)
		}
	}
	return r.tell(some, len(r.seen))
}

// took counts an event that was taken in. at is when it was made, by our clock.
func (r *reading) took(e *event, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, down := &r.state, at.Before(r.began)
	if !down && !e.answered2xx() {
		if s.Alone == 0 {
			s.Answer, s.AloneSince = e.answer(), at
		}
		s.Alone++
		if at.Before(s.AloneSince) {
			s.AloneSince = at
		}
	}
	if r.tell != nil || r.run.First { // somebody was told; or usher is new, and has missed nothing
		return
	}
	if time.Since(s.CaughtAt) > time.Hour {
		s.Webhooks, s.From, s.To, s.Down, r.tenants = 0, at, at, true, make(map[[16]byte]bool)
	}
	r.tenants[key(subject(e.body()))] = true
	s.CaughtAt, s.Webhooks, s.Tenants, s.Down = time.Now(), s.Webhooks+1, len(r.tenants), s.Down && down
	if at.Before(s.From) {
		s.From = at
	}
	if at.After(s.To) {
		s.To = at
	}
}

// key is a short name of a subject.
func key(subject string) [16]byte {
	digest := sha256.Sum256([]byte(subject))
	return [16]byte(digest[:])
}
