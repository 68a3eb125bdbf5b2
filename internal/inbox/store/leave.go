package store

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"usher/internal/receiver"
)

// A Leave is the permission to deliver one lane: its first webhook, and then, if the store says so, the next ones. While it
// lasts no other process delivers that lane.
type Leave struct {
	Webhook  *Webhook
	Receiver *receiver.Receiver
	Failed   bool // the last try of this lane failed
	Wave     bool // it goes before its time because its receiver is back
	lane     Key
	token    int64
	served   int
	until    atomic.Pointer[time.Time] // by our own clock, counted from when the leave was asked for
}

// Held says whether the leave still lasts. Right before a write to the receiver it must be asked once more: a process can
// be stopped at any moment, and continues without knowing.
func (l *Leave) Held() bool {
	now, until := time.Now(), *l.until.Load()
	return now.Before(until) && now.Round(0).Before(until.Round(0)) // one clock stands still while a machine sleeps, the other can be set back
}

// Until is when it ends, unless it is renewed.
func (l *Leave) Until() time.Time { return *l.until.Load() }

// lease gives this process the leave to deliver row, which is the first of its lane.
func (w *work) lease(l *lane, row *Webhook, rc *receiver.Receiver) *Leave {
	l.owner, l.head, l.due, l.changed = w.s.owner, row.ID, w.now+int64(w.s.lease/time.Microsecond), true
	l.token++
	leave := &Leave{Webhook: row, Receiver: rc, Failed: l.failing != fine, lane: l.key, token: l.token}
	leave.last(w)
	return leave
}

func (l *Leave) last(w *work) {
	until := w.asked.Add(w.s.Leased())
	l.until.Store(&until)
}

// holds says whether the leave is still that of its lane.
func (l *Leave) holds(w *work, row *lane) bool {
	return row != nil && bytes.Equal(row.owner, w.s.owner) && row.token == l.token && row.head == l.Webhook.ID
}

// owned says whether somebody delivers the lane at this moment, or is about to. A clock that has jumped says nothing about that.
func (w *work) owned(l *lane) bool {
	return l.owner != nil && (l.due > w.now || !w.s.clock.takeover(w.s.lease))
}

// reclaim gives back a lane whose owner has let its leave run out. Anybody who changes what that owner was delivering does
// this first: a late outcome must not count any more.
func (w *work) reclaim(l *lane) {
	if l.owner != nil && !w.owned(l) {
		l.rest(w.now)
	}
}

// ClaimKind is which lanes a claim is for.
type ClaimKind int

// The kinds of a claim.
const (
	Ready ClaimKind = iota // their time has come, and their last try did not fail
	Retry                  // their time has come, and their last try failed
	Probe                  // they wait because the receiver seemed to be down; the one tried longest ago
	Wave                   // the same, but the one that waits longest: the receiver is back
)

var claimNames = [...]string{"claim_ready", "claim_retry", "claim_probe", "claim_wave"}

// A Claim asks for leave to deliver some of a receiver's lanes.
type Claim struct {
	Receiver *receiver.Receiver
	Kind     ClaimKind
	Most     int
	Room     *int // how many more leaves all claims for this receiver may get
	// Of Wave: those that wait since after After, and were last tried before Before.
	After, Before int64

	Leaves []*Leave // what it got
	Found  int      // how many lanes there were, up to Most
	Last   int64    // of Wave: since when the last of them waits
}

// claim is a Claim in a batch.
type claim struct {
	*Claim
	platforms [][]byte
	now       int64
	takeover  bool
}

func (c *claim) queue(tx Tx, w *work, n int) {
	seen := func(r Row) error {
		l, err := w.s.scanLane(r)
		if err == nil {
			if known := w.lanes[l.key]; known == nil {
				w.lanes[l.key] = l
			}
			w.claimed[n] = append(w.claimed[n], l.key)
		}
		return err
	}
	args := []any{c.platforms, c.now, number(c.takeover), int64(c.Most)}
	if c.Kind == Wave {
		args = append(args, c.After, c.Before)
	}
	tx.Queue(claimNames[c.Kind], seen, args...)
}

// first returns those of the lanes that were found whose turn it is: they come by platform, as many as there may be of each, and the order
// is one of all platforms.
func (c *Claim) first(w *work, found []Key) []Key {
	slices.SortStableFunc(found, func(a, b Key) int { return cmp.Compare(c.turn(w.lanes[a]), c.turn(w.lanes[b])) })
	return found[:min(len(found), c.Most)]
}

// claiming is an op.
type claiming struct {
	s      *Store
	claims []*Claim
	first  int // index of its first claim in the batch
	reply  chan error
}

// Claim asks for leave to deliver. When it returns, each claim says what it got, and the courier has started on it.
func (s *Store) Claim(ctx context.Context, claims []*Claim) error {
	c := &claiming{s: s, claims: claims, reply: make(chan error, 1)}
	return s.await(ctx, c, c.reply)
}

func (c *claiming) weight() int64 { return 0 }

func (c *claiming) need(n *needs) bool {
	c.first = len(n.claim)
	now := c.s.now().UnixMicro()
	for _, one := range c.claims {
		one.Leaves, one.Found = nil, 0
		n.claim = append(n.claim, claim{one, c.s.platforms.hashes(func(code string) bool { return c.s.cfg.Receivers.For(code) == one.Receiver }), now, c.s.clock.takeover(c.s.lease)})
	}
	n.body = readAhead
	return true
}

// readAhead is up to which size a content is read before it is needed.
const readAhead = 64 << 10

func (c *claiming) decide(w *work) {
	for _, one := range c.claims {
		*one.Room += len(one.Leaves) // of a run before this one
		one.Leaves = nil
	}
	for i, one := range c.claims {
		found := w.claimed[c.first+i]
		one.Leaves, one.Found = nil, len(found)
		for _, key := range found {
			if len(one.Leaves) >= one.Most || *one.Room <= 0 {
				break
			}
			l := w.lanes[key]
			one.Last = max(one.Last, l.since)
			// The claim went by our idea of the database's time, and another op of this batch may have changed the lane.
			if w.owned(l) {
				continue
			}
			if l.paused || l.waiting == 0 {
				l.rest(w.now) // its owner could not do it any more
				continue
			}
			head := w.next[key]
			if head == nil || head.State != Waiting {
				continue // another op has taken it out
			}
			leave := w.lease(l, head, one.Receiver)
			leave.Wave = one.Kind == Wave
			one.Leaves = append(one.Leaves, leave)
			*one.Room--
		}
	}
}

// turn is what the lanes of a claim are ordered by.
func (c *Claim) turn(l *lane) int64 {
	switch c.Kind {
	case Probe:
		return l.tried
	case Wave:
		return l.since
	}
	return l.due
}

func (c *claiming) done(err error) {
	for _, one := range c.claims {
		if err != nil {
			one.Leaves = nil
		}
		for _, leave := range one.Leaves {
			c.s.cfg.Courier.Start(leave)
		}
	}
	c.reply <- err
}

// An Outcome is what came of a try.
type Outcome struct {
	Leave   *Leave
	Attempt receiver.Attempt
	Began   time.Time
	Took    time.Duration
	Cut     bool          // it was not tried, or usher itself cancelled it
	Later   time.Duration // then: how long not to try again
	Err     error         // its content could not be read
	GoOn    bool          // the courier would deliver the lane's next one

	// What became of it.
	Lost    bool // another process delivers the lane
	Entry   Entry
	Next    *Leave // the same leave, for the next webhook; nil: the lane was given back
	NextTry time.Time
	More    bool // the lane has more, and anybody may deliver it now

	s     *Store
	ready func(*Outcome, error)
}

// Settle writes an outcome. It calls ready when that is done.
func (s *Store) Settle(o *Outcome, ready func(*Outcome, error)) {
	o.s, o.ready = s, ready
	s.submit(o)
}

func (o *Outcome) weight() int64 { return 256 }

func (o *Outcome) need(n *needs) bool {
	key := o.Leave.lane
	n.lane(key)
	n.next[key] = o.Leave.Webhook.ID
	n.body = readAhead
	if o.Leave.Webhook.snapshot && o.Attempt.Accepted() {
		n.rest[key] = true
		if !o.Leave.Webhook.Again.IsZero() { // it went ahead of what waits, which may be older
			n.queue[key] = true
		}
	}
	return true
}

func (o *Outcome) decide(w *work) {
	o.Lost, o.Next = false, nil
	l := w.lanes[o.Leave.lane]
	if !o.Leave.holds(w, l) {
		o.Lost = true
		return
	}
	mine := *o.Leave.Webhook // a copy: the transaction may run again
	h := w.row(&mine)
	defer func() { o.More = l.waiting > 0 && l.owner == nil && l.due <= w.now }()
	if o.Cut {
		l.rest(w.now + int64(o.Later/time.Microsecond))
		o.Entry = h.Entry
		return
	}
	if o.Err == nil {
		h.noteAttempt(w.time().Add(-time.Since(o.Began)), o.Took, o.Attempt)
		h.Receiver = o.Leave.Receiver.Name
		l.tried = w.now
	}
	missedIt := o.Err == nil && isDown(o.Attempt)
	if o.Err == nil && !missedIt {
		h.Counted++
	}
	why := o.hopeless(h, w.time())
	switch {
	case o.Attempt.Accepted() && o.Err == nil:
		w.move(l, h, Delivered, "")
		l.held, l.heldAt, l.heldBy, l.heldID = digestOf(h), w.now, h.Receiver, h.Webhook
		o.overtake(w, l, h)
		l.well()
	case why != "":
		w.move(l, h, Parked, why)
		l.held = nil
		l.well()
	default:
		o.retry(w, l, h, missedIt)
		o.Entry = h.Entry
		return
	}
	o.Entry = h.Entry
	o.goOn(w, l)
}

// retry gives the lane back until the next try.
func (o *Outcome) retry(w *work, l *lane, h *Webhook, missedIt bool) {
	l.failing = failing
	if missedIt {
		l.failing = missed
	}
	pause := o.s.cfg.Jitter(min(firstPause<<min(l.failures, 20), lastPause))
	l.wish = 0
	if wish := min(o.Attempt.RetryAfter, longestWish); wish > 0 {
		l.wish = w.now + int64(wish/time.Microsecond)
	}
	l.failures++
	if next := w.next[l.key]; o.s.cfg.KeepLatest && h.snapshot && !h.Forced && next != nil && next.State == Waiting && next.snapshot && next.ID > h.ID {
		w.move(l, h, Superseded, newerCame)
		l.since = next.since().UnixMicro()
	}
	l.rest(w.now + int64(pause/time.Microsecond))
	o.NextTry = moment(l.due)
	if !l.paused && h.State == Waiting {
		h.Next = o.NextTry
	}
	w.change(h)
}

const (
	firstPause = time.Second
	lastPause  = 5 * time.Minute
	// longestWish bounds what a receiver's Retry-After can ask for.
	longestWish = time.Hour
	// inARow is how many webhooks of a lane are delivered before others get their turn.
	inARow = 16
)

// goOn continues with the lane's next webhook, in the same leave, or gives the lane back.
func (o *Outcome) goOn(w *work, l *lane) {
	next := w.next[l.key]
	if next != nil {
		l.since = next.since().UnixMicro()
	}
	if next == nil || next.State != Waiting || !o.GoOn || l.paused || l.wish > w.now || o.Leave.served >= inARow {
		l.rest(w.now)
		return
	}
	leave := &Leave{Webhook: next, Receiver: o.Leave.Receiver, lane: l.key, token: l.token, served: o.Leave.served + 1}
	leave.last(w)
	l.head, l.due = next.ID, w.now+int64(w.s.lease/time.Microsecond)
	o.Next = leave
}

// overtake supersedes what is older than what was accepted, and is parked, or waits and was not sent again with force.
func (o *Outcome) overtake(w *work, l *lane, h *Webhook) {
	if !h.snapshot {
		return
	}
	for _, old := range slices.Concat(w.rest[l.key], w.queue[l.key]) {
		if old.ID < h.ID && old.snapshot && (old.State == Parked || old.State == Waiting && !old.Forced) {
			w.move(l, old, Superseded, "a newer snapshot of the tenant was accepted")
		}
	}
}

// hopeless says why a webhook that was not accepted is not tried any more; empty: it is.
func (o *Outcome) hopeless(h *Webhook, now time.Time) string {
	switch {
	case o.Err != nil:
		return o.Err.Error()
	case isFinal(o.Attempt.Status):
		return "the receiver will not take it: " + http.StatusText(o.Attempt.Status)
	case h.Counted >= o.s.cfg.Attempts:
		return "every try failed"
	case now.Sub(h.since()) > o.s.cfg.MaxAge:
		return "too old"
	}
	return ""
}

// isDown: these say that the receiver is down, and nothing about the webhook.
func isDown(a receiver.Attempt) bool {
	switch a.Status {
	case 0, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// Missed says whether the try says that the receiver is down.
func (o *Outcome) Missed() bool { return o.Err == nil && !o.Cut && isDown(o.Attempt) }

// isFinal: these say that this webhook will never be taken.
func isFinal(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

func (o *Outcome) done(err error) { o.ready(o, err) }

// renewal prolongs a leave.
type renewal struct {
	s     *Store
	leave *Leave
	kept  bool
	asked time.Time
	reply chan error
}

// Renew prolongs leaves. Each is an op of its own: a lane that somebody has locked must not end the others. Those that it could not
// prolong run out.
func (s *Store) Renew(ctx context.Context, leaves []*Leave) (err error) {
	var waiting sync.WaitGroup
	for _, l := range leaves {
		r := &renewal{s: s, leave: l, reply: make(chan error, 1)}
		waiting.Go(func() { s.await(ctx, r, r.reply) })
	}
	waiting.Wait()
	return ctx.Err()
}

func (r *renewal) weight() int64 { return 0 }

func (r *renewal) need(n *needs) bool {
	n.lane(r.leave.lane)
	return true
}

func (r *renewal) decide(w *work) {
	l := w.lanes[r.leave.lane]
	if r.kept, r.asked = r.leave.holds(w, l), w.asked; r.kept {
		l.due, l.changed = w.now+int64(w.s.lease/time.Microsecond), true
	}
}

func (r *renewal) done(err error) {
	if err == nil && r.kept {
		until := r.asked.Add(r.s.Leased())
		r.leave.until.Store(&until)
	}
	r.reply <- err
}

// Content reads what a leave needs to deliver its webhook, unless it has it already.
func (s *Store) Content(ctx context.Context, w *Webhook) error {
	if !w.whole {
		err := s.cfg.Engine.Read(ctx, func(tx Tx) error {
			tx.Queue("content", func(r Row) error {
				var header []byte
				err := r.Scan(&header, &w.Body)
				w.Header, w.whole = decodeHeader(header), true
				return err
			}, w.ID)
			return tx.Send()
		})
		if err != nil {
			return fmt.Errorf("%w: %w", errUnread, err)
		}
	}
	if !w.whole {
		return ErrDamaged // there is no content
	}
	return w.check()
}

var errUnread = fmt.Errorf("the stored webhook can't be read")

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
