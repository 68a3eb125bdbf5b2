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
type Lease struct {
	Webhook       *Webhook
	Receiver      *receiver.Receiver
	LastTryFailed bool // the last try of this lane failed
	InWave        bool // it goes before its time because its receiver is back
	lane          Key
	token         int64
	inARow        int
	validUntil    atomic.Pointer[time.Time] // by our own clock, counted from when the leave was asked for
}

// Held says whether the leave still lasts. Right before a write to the receiver it must be asked once more: a process can
// be stopped at any moment, and continues without knowing.
func (lease *Lease) Valid() bool {
	now, until := time.Now(), *lease.validUntil.Load()
	return now.Before(until) && now.Round(0).Before(until.Round(0)) // one clock stands still while a machine sleeps, the other can be set back
}

// Until is when it ends, unless it is renewed.
func (lease *Lease) ValidUntil() time.Time { return *lease.validUntil.Load() }

// lease gives this process the leave to deliver row, which is the first of its lane.
func (b *batch) grantLease(l *lane, row *Webhook, rc *receiver.Receiver) *Lease {
	l.owner, l.leasedID, l.due, l.dirty = b.s.owner, row.ID, b.now+int64(b.s.leaseTime/time.Microsecond), true
	l.token++
	lease := &Lease{Webhook: row, Receiver: rc, LastTryFailed: l.lastResult != lastOK, lane: l.key, token: l.token}
	lease.start(b)
	return lease
}

func (lease *Lease) start(b *batch) {
	until := b.askedAt.Add(b.s.UsableLeaseTime())
	lease.validUntil.Store(&until)
}

// holds says whether the leave is still that of its lane.
func (lease *Lease) matches(b *batch, row *lane) bool {
	return row != nil && bytes.Equal(row.owner, b.s.owner) && row.token == lease.token && row.leasedID == lease.Webhook.ID
}

// owned says whether somebody delivers the lane at this moment, or is about to. A clock that has jumped says nothing about that.
func (b *batch) leased(l *lane) bool {
	return l.owner != nil && (l.due > b.now || !b.s.clock.mayTakeOver(b.s.leaseTime))
}

// reclaim gives back a lane whose owner has let its leave run out. Anybody who changes what that owner was delivering does
// this first: a late outcome must not count any more.
func (b *batch) endExpiredLease(l *lane) {
	if l.owner != nil && !b.leased(l) {
		l.release(b.now)
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

var claimStatements = [...]string{"claim_ready", "claim_retry", "claim_probe", "claim_wave"}

// A Claim asks for leave to deliver some of a receiver's lanes.
type Claim struct {
	Receiver *receiver.Receiver
	Kind     ClaimKind
	Max      int
	Budget   *int // how many more leaves all claims for this receiver may get
	// Of Wave: those that wait since after After, and were last tried before Before.
	WaitingFrom, TriedBefore int64

	Leases    []*Lease // what it got
	Found     int      // how many lanes there were, up to Most
	WaitingTo int64    // of Wave: since when the last of them waits
}

// claim is a Claim in a batch.
type claimQuery struct {
	*Claim
	platforms   [][]byte
	now         int64
	mayTakeOver bool
}

func (c *claimQuery) queue(tx Tx, b *batch, n int) {
	seen := func(r Row) error {
		l, err := b.s.scanLane(r)
		if err == nil {
			if known := b.lanes[l.key]; known == nil {
				b.lanes[l.key] = l
			}
			b.claimed[n] = append(b.claimed[n], l.key)
		}
		return err
	}
	args := []any{c.platforms, c.now, boolNumber(c.mayTakeOver), int64(c.Max)}
	if c.Kind == Wave {
		args = append(args, c.WaitingFrom, c.TriedBefore)
	}
	tx.Queue(claimStatements[c.Kind], seen, args...)
}

// first returns those of the lanes that were found whose turn it is: they come by platform, as many as there may be of each, and the order
// is one of all platforms.
func (c *Claim) inTurn(b *batch, found []Key) []Key {
	slices.SortStableFunc(found, func(x, y Key) int { return cmp.Compare(c.turn(b.lanes[x]), c.turn(b.lanes[y])) })
	return found[:min(len(found), c.Max)]
}

// claiming is an op.
type claimOp struct {
	s          *Store
	claims     []*Claim
	firstQuery int // index of its first claim in the batch
	reply      chan error
}

// Claim asks for leave to deliver. When it returns, each claim says what it got, and the courier has started on it.
func (s *Store) Claim(ctx context.Context, claims []*Claim) error {
	c := &claimOp{s: s, claims: claims, reply: make(chan error, 1)}
	return s.await(ctx, c, c.reply)
}

func (c *claimOp) weight() int64 { return 0 }

func (c *claimOp) need(n *needs) bool {
	c.firstQuery = len(n.claims)
	now := c.s.now().UnixMicro()
	for _, one := range c.claims {
		one.Leases, one.Found = nil, 0
		n.claims = append(n.claims, claimQuery{one, c.s.platforms.hashes(func(code string) bool { return c.s.cfg.Receivers.For(code) == one.Receiver }), now, c.s.clock.mayTakeOver(c.s.leaseTime)})
	}
	n.maxBody = maxReadAhead
	return true
}

// readAhead is up to which size a content is read before it is needed.
const maxReadAhead = 64 << 10

func (c *claimOp) decide(b *batch) {
	for _, one := range c.claims {
		*one.Budget += len(one.Leases) // of a run before this one
		one.Leases = nil
	}
	for i, one := range c.claims {
		found := b.claimed[c.firstQuery+i]
		one.Leases, one.Found = nil, len(found)
		for _, key := range found {
			if len(one.Leases) >= one.Max || *one.Budget <= 0 {
				break
			}
			l := b.lanes[key]
			one.WaitingTo = max(one.WaitingTo, l.waitingSince)
			// The claim went by our idea of the database's time, and another op of this batch may have changed the lane.
			if b.leased(l) {
				continue
			}
			if l.paused || l.waiting == 0 {
				l.release(b.now) // its owner could not do it any more
				continue
			}
			head := b.next[key]
			if head == nil || head.State != Waiting {
				continue // another op has taken it out
			}
			lease := b.grantLease(l, head, one.Receiver)
			lease.InWave = one.Kind == Wave
			one.Leases = append(one.Leases, lease)
			*one.Budget--
		}
	}
}

// turn is what the lanes of a claim are ordered by.
func (c *Claim) turn(l *lane) int64 {
	switch c.Kind {
	case Probe:
		return l.lastTry
	case Wave:
		return l.waitingSince
	}
	return l.due
}

func (c *claimOp) done(err error) {
	for _, one := range c.claims {
		if err != nil {
			one.Leases = nil
		}
		for _, lease := range one.Leases {
			c.s.cfg.Courier.Deliver(lease)
		}
	}
	c.reply <- err
}

// An Outcome is what came of a try.
type Outcome struct {
	Lease      *Lease
	Attempt    receiver.Attempt
	Began      time.Time
	Took       time.Duration
	Aborted    bool          // it was not tried, or usher itself cancelled it
	RetryIn    time.Duration // then: how long not to try again
	ContentErr error         // its content could not be read
	WantsNext  bool          // the courier would deliver the lane's next one

	// What became of it.
	LeaseLost bool // another process delivers the lane
	Entry     Entry
	NextLease *Lease // the same leave, for the next webhook; nil: the lane was given back
	NextTry   time.Time
	LaneReady bool // the lane has more, and anybody may deliver it now

	s     *Store
	saved func(*Outcome, error)
}

// Settle writes an outcome. It calls ready when that is done.
func (s *Store) SaveOutcome(o *Outcome, ready func(*Outcome, error)) {
	o.s, o.saved = s, ready
	s.submit(o)
}

func (o *Outcome) weight() int64 { return 256 }

func (o *Outcome) need(n *needs) bool {
	key := o.Lease.lane
	n.lane(key)
	n.nextExcept[key] = o.Lease.Webhook.ID
	n.maxBody = maxReadAhead
	if o.Lease.Webhook.snapshot && o.Attempt.Accepted() {
		n.supersedable[key] = true
		if !o.Lease.Webhook.Again.IsZero() { // it went ahead of what waits, which may be older
			n.waiting[key] = true
		}
	}
	return true
}

func (o *Outcome) decide(b *batch) {
	o.LeaseLost, o.NextLease = false, nil
	l := b.lanes[o.Lease.lane]
	if !o.Lease.matches(b, l) {
		o.LeaseLost = true
		return
	}
	mine := *o.Lease.Webhook // a copy: the transaction may run again
	h := b.intern(&mine)
	defer func() { o.LaneReady = l.waiting > 0 && l.owner == nil && l.due <= b.now }()
	if o.Aborted {
		l.release(b.now + int64(o.RetryIn/time.Microsecond))
		o.Entry = h.Entry
		return
	}
	if o.ContentErr == nil {
		h.noteAttempt(b.time().Add(-time.Since(o.Began)), o.Took, o.Attempt)
		h.Receiver = o.Lease.Receiver.Name
		l.lastTry = b.now
	}
	missedIt := o.ContentErr == nil && isMiss(o.Attempt)
	if o.ContentErr == nil && !missedIt {
		h.Counted++
	}
	why := o.parkReason(h, b.time())
	switch {
	case o.Attempt.Accepted() && o.ContentErr == nil:
		b.move(l, h, Delivered, "")
		l.held, l.heldAt, l.heldBy, l.heldID = dedupDigest(h), b.now, h.Receiver, h.Webhook
		o.supersedeOlder(b, l, h)
		l.clearFailures()
	case why != "":
		b.move(l, h, Parked, why)
		l.held = nil
		l.clearFailures()
	default:
		o.retry(b, l, h, missedIt)
		o.Entry = h.Entry
		return
	}
	o.Entry = h.Entry
	o.continueLane(b, l)
}

// retry gives the lane back until the next try.
func (o *Outcome) retry(b *batch, l *lane, h *Webhook, missedIt bool) {
	l.lastResult = lastFailed
	if missedIt {
		l.lastResult = lastMissed
	}
	pause := o.s.cfg.Jitter(min(minBackoff<<min(l.failures, 20), maxBackoff))
	l.notBefore = 0
	if wish := min(o.Attempt.RetryAfter, maxRetryAfter); wish > 0 {
		l.notBefore = b.now + int64(wish/time.Microsecond)
	}
	l.failures++
	if next := b.next[l.key]; o.s.cfg.KeepLatest && h.snapshot && !h.Forced && next != nil && next.State == Waiting && next.snapshot && next.ID > h.ID {
		b.move(l, h, Superseded, newerCame)
		l.waitingSince = next.ageFrom().UnixMicro()
	}
	l.release(b.now + int64(pause/time.Microsecond))
	o.NextTry = moment(l.due)
	if !l.paused && h.State == Waiting {
		h.Next = o.NextTry
	}
	b.markChanged(h)
}

const (
	minBackoff = time.Second
	maxBackoff = 5 * time.Minute
	// longestWish bounds what a receiver's Retry-After can ask for.
	maxRetryAfter = time.Hour
	// inARow is how many webhooks of a lane are delivered before others get their turn.
	maxInARow = 16
)

// goOn continues with the lane's next webhook, in the same leave, or gives the lane back.
func (o *Outcome) continueLane(b *batch, l *lane) {
	next := b.next[l.key]
	if next != nil {
		l.waitingSince = next.ageFrom().UnixMicro()
	}
	if next == nil || next.State != Waiting || !o.WantsNext || l.paused || l.notBefore > b.now || o.Lease.inARow >= maxInARow {
		l.release(b.now)
		return
	}
	lease := &Lease{Webhook: next, Receiver: o.Lease.Receiver, lane: l.key, token: l.token, inARow: o.Lease.inARow + 1}
	lease.start(b)
	l.leasedID, l.due = next.ID, b.now+int64(b.s.leaseTime/time.Microsecond)
	o.NextLease = lease
}

// overtake supersedes what is older than what was accepted, and is parked, or waits and was not sent again with force.
func (o *Outcome) supersedeOlder(b *batch, l *lane, h *Webhook) {
	if !h.snapshot {
		return
	}
	for _, old := range slices.Concat(b.supersedable[l.key], b.waiting[l.key]) {
		if old.ID < h.ID && old.snapshot && (old.State == Parked || old.State == Waiting && !old.Forced) {
			b.move(l, old, Superseded, "a newer snapshot of the tenant was accepted")
		}
	}
}

// hopeless says why a webhook that was not accepted is not tried any more; empty: it is.
func (o *Outcome) parkReason(h *Webhook, now time.Time) string {
	switch {
	case o.ContentErr != nil:
		return o.ContentErr.Error()
	case isPermanent(o.Attempt.Status):
		return "the receiver will not take it: " + http.StatusText(o.Attempt.Status)
	case h.Counted >= o.s.cfg.MaxAttempts:
		return "every try failed"
	case now.Sub(h.ageFrom()) > o.s.cfg.MaxAge:
		return "too old"
	}
	return ""
}

// isDown: these say that the receiver is down, and nothing about the webhook.
func isMiss(a receiver.Attempt) bool {
	switch a.Status {
	case 0, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// Missed says whether the try says that the receiver is down.
func (o *Outcome) Missed() bool { return o.ContentErr == nil && !o.Aborted && isMiss(o.Attempt) }

// isFinal: these say that this webhook will never be taken.
func isPermanent(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

func (o *Outcome) done(err error) { o.saved(o, err) }

// renewal prolongs a leave.
type renewOp struct {
	s       *Store
	leave   *Lease
	renewed bool
	askedAt time.Time
	reply   chan error
}

// Renew prolongs leaves. Each is an op of its own: a lane that somebody has locked must not end the others. Those that it could not
// prolong run out.
func (s *Store) Renew(ctx context.Context, leases []*Lease) (err error) {
	var waiting sync.WaitGroup
	for _, lease := range leases {
		r := &renewOp{s: s, leave: lease, reply: make(chan error, 1)}
		waiting.Go(func() { s.await(ctx, r, r.reply) })
	}
	waiting.Wait()
	return ctx.Err()
}

func (r *renewOp) weight() int64 { return 0 }

func (r *renewOp) need(n *needs) bool {
	n.lane(r.leave.lane)
	return true
}

func (r *renewOp) decide(b *batch) {
	l := b.lanes[r.leave.lane]
	if r.renewed, r.askedAt = r.leave.matches(b, l), b.askedAt; r.renewed {
		l.due, l.dirty = b.now+int64(b.s.leaseTime/time.Microsecond), true
	}
}

func (r *renewOp) done(err error) {
	if err == nil && r.renewed {
		until := r.askedAt.Add(r.s.UsableLeaseTime())
		r.leave.validUntil.Store(&until)
	}
	r.reply <- err
}

// Content reads what a leave needs to deliver its webhook, unless it has it already.
func (s *Store) LoadContent(ctx context.Context, w *Webhook) error {
	if !w.hasContent {
		err := s.cfg.Engine.Read(ctx, func(tx Tx) error {
			tx.Queue("content", func(r Row) error {
				var header []byte
				err := r.Scan(&header, &w.Body)
				w.Header, w.hasContent = decodeHeader(header), true
				return err
			}, w.ID)
			return tx.Send()
		})
		if err != nil {
			return fmt.Errorf("%w: %w", errUnread, err)
		}
	}
	if !w.hasContent {
		return ErrDamaged // there is no content
	}
	return w.check()
}

var errUnread = fmt.Errorf("the stored webhook can't be read")

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
