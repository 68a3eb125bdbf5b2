package store

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"usher/internal/receiver"
)

// A Lease is the permission to deliver the first webhook of one lane. While it is valid no other process delivers that lane.
// The outcome of the delivery ends the lease, or continues it with the lane's next webhook.
//
// In the database a lease is the lane's owner, its token, and its due time, at which the lease ends by itself.
type Lease struct {
	Webhook       *Webhook
	Receiver      *receiver.Receiver
	LastTryFailed bool // the last try of this lane failed
	InWave        bool // it was claimed before its time because its receiver is back; see Wave

	lane       Key
	token      int64
	inARow     int                       // how many webhooks of the lane were delivered right before this one
	validUntil atomic.Pointer[time.Time] // by our own clock
}

// Valid says whether the lease still lasts. It must be asked right before each write to the receiver: the process may have been
// stopped for any time since it was last asked, without noticing.
func (lease *Lease) Valid() bool {
	now, until := time.Now(), *lease.validUntil.Load()
	// Both clocks must agree: the monotonic one stands still while a machine sleeps, and the wall clock can be set back.
	return now.Before(until) && now.Round(0).Before(until.Round(0))
}

// ValidUntil is when the lease ends, unless it is renewed.
func (lease *Lease) ValidUntil() time.Time { return *lease.validUntil.Load() }

// grantLease gives this process a lease for the lane, to deliver row, which is its first webhook.
func (b *batch) grantLease(l *lane, row *Webhook, rc *receiver.Receiver) *Lease {
	l.owner, l.leasedID, l.due, l.dirty = b.s.owner, row.ID, b.now+micros(b.s.leaseTime), true
	l.token++
	lease := &Lease{Webhook: row, Receiver: rc, LastTryFailed: l.lastResult != lastOK, lane: l.key, token: l.token}
	lease.start(b)
	return lease
}

// start sets the lease's end. It counts from the begin of the transaction, which is before the database read its clock.
func (lease *Lease) start(b *batch) {
	until := b.askedAt.Add(b.s.UsableLeaseTime())
	lease.validUntil.Store(&until)
}

// matches says whether the lane's row still has this lease. If not, the lease has ended, and another process may have the lane.
func (lease *Lease) matches(b *batch, row *lane) bool {
	return row != nil && bytes.Equal(row.owner, b.s.owner) && row.token == lease.token && row.leasedID == lease.Webhook.ID
}

// leased says whether a process has a valid lease for the lane, and may be delivering it. After the clock has jumped every lease
// counts as valid for a while.
func (b *batch) leased(l *lane) bool {
	return l.owner != nil && (l.due > b.now || !b.s.clock.mayTakeOver(b.s.leaseTime))
}

// endExpiredLease takes the lane from an owner whose lease has ended. An op that changes the webhook which that owner was
// delivering must call it first, so that a late outcome no longer matches the row.
func (b *batch) endExpiredLease(l *lane) {
	if l.owner != nil && !b.leased(l) {
		l.release(b.now)
	}
}

// reschedule computes the lane's due time anew, unless a process has leased it: then the outcome does that.
func (b *batch) reschedule(l *lane) {
	if !b.leased(l) {
		l.release(b.now)
	}
}

// A ClaimKind says which lanes a claim is for.
type ClaimKind int

// The kinds of claims.
const (
	Ready ClaimKind = iota // lanes that are due, and whose last try did not fail
	Retry                  // lanes that are due, and whose last try failed
	Probe                  // lanes whose last try was a miss, due or not, those first that were tried longest ago
	Wave                   // lanes whose last try was a miss, due or not, those first that wait longest: the receiver is back
)

var claimStatements = [...]string{"claim_ready", "claim_retry", "claim_probe", "claim_wave"}

// A Claim asks for leases of a receiver's lanes that nobody delivers.
type Claim struct {
	Receiver *receiver.Receiver
	Kind     ClaimKind
	Max      int
	Budgets  []*int // each says how many more leases the claims that share it may get together
	// Only for a Wave: lanes that wait since WaitingFrom or later, and were last tried before TriedBefore.
	WaitingFrom, TriedBefore int64

	// The result.
	Leases    []*Lease
	Found     int   // how many lanes there were, up to Max; maybe more than Leases
	WaitingTo int64 // only for a Wave: the latest time since which one of these lanes waits
}

// A claimQuery is a Claim in a batch.
type claimQuery struct {
	*Claim
	platforms   [][]byte
	now         int64
	mayTakeOver bool
}

// queue queues the search for lanes. The keys that it finds go into b.claimed[n].
func (c *claimQuery) queue(tx Tx, b *batch, n int) {
	found := func(r Row) error {
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
	tx.Queue(claimStatements[c.Kind], found, args...)
}

// inTurn returns the first lanes of all that were found. The statement returns up to Max lanes of each platform, and their order
// must go by all platforms together.
func (c *Claim) inTurn(b *batch, found []Key) []Key {
	slices.SortStableFunc(found, func(x, y Key) int { return cmp.Compare(c.turn(b.lanes[x]), c.turn(b.lanes[y])) })
	return found[:min(len(found), c.Max)]
}

// turn is the value by which the lanes of a claim are ordered.
func (c *Claim) turn(l *lane) int64 {
	switch c.Kind {
	case Probe:
		return l.lastTry
	case Wave:
		return l.waitingSince
	}
	return l.due
}

// A claimOp is the op that claims lanes.
type claimOp struct {
	s          *Store
	claims     []*Claim
	firstQuery int // the index of its first claim in batch.claimed
	reply      chan error
}

// Claim asks for leases. When it returns, each claim has its result, and the courier has got the leases.
func (s *Store) Claim(ctx context.Context, claims []*Claim) error {
	c := &claimOp{s: s, claims: claims, reply: make(chan error, 1)}
	return s.await(ctx, nil, c, c.reply)
}

func (c *claimOp) weight() int64 { return 0 }

func (c *claimOp) need(n *needs) bool {
	c.firstQuery = len(n.claims)
	now := c.s.Now().UnixMicro()
	for _, claim := range c.claims {
		claim.Leases, claim.Found = nil, 0
		platforms := c.s.platforms.hashes(func(code string) bool { return c.s.cfg.Receivers.For(code) == claim.Receiver })
		n.claims = append(n.claims, claimQuery{claim, platforms, now, c.s.clock.mayTakeOver(c.s.leaseTime)})
	}
	n.maxBody = MaxReadAhead
	return true
}

// MaxReadAhead is the size up to which a content is read together with its lease. A larger one is read when it is sent.
const MaxReadAhead = 64 << 10

func (c *claimOp) decide(b *batch) {
	for _, claim := range c.claims {
		claim.spend(-len(claim.Leases)) // what a former run of this transaction has taken
		claim.Leases = nil
	}
	for i, claim := range c.claims {
		found := b.claimed[c.firstQuery+i]
		claim.Found = len(found)
		for _, key := range found {
			if len(claim.Leases) >= claim.Max || slices.ContainsFunc(claim.Budgets, func(left *int) bool { return *left <= 0 }) {
				break
			}
			l := b.lanes[key]
			claim.WaitingTo = max(claim.WaitingTo, l.waitingSince)
			// The search went by our estimate of the database's time, and another op of this batch may have changed the lane.
			// So everything is checked once more.
			if b.leased(l) {
				continue
			}
			if l.paused || l.waiting == 0 {
				l.release(b.now) // its owner has died, or it would have done this
				continue
			}
			head := b.next[key]
			if head == nil || head.State != Waiting {
				continue // another op of this batch has delivered or discarded it
			}
			lease := b.grantLease(l, head, claim.Receiver)
			lease.InWave = claim.Kind == Wave
			claim.Leases = append(claim.Leases, lease)
			claim.spend(1)
		}
	}
}

func (c *Claim) spend(leases int) {
	for _, left := range c.Budgets {
		*left -= leases
	}
}

func (c *claimOp) done(err error) {
	for _, claim := range c.claims {
		if err != nil {
			claim.Leases = nil
		}
		for _, lease := range claim.Leases {
			c.s.cfg.Courier.Deliver(lease)
		}
	}
	c.reply <- err
}

// An Outcome is what came of a lease: usually one try.
type Outcome struct {
	Lease      *Lease
	Attempt    receiver.Attempt
	Began      time.Time
	Took       time.Duration
	Aborted    bool          // there was no try, or usher itself cancelled it
	RetryIn    time.Duration // if Aborted: how long to wait before the next try
	ContentErr error         // there was no try because the content is damaged
	WantsNext  bool          // the courier wants to deliver the lane's next webhook, too

	// The result.
	LeaseLost bool      // the lease had ended, and nothing was written
	Entry     Entry     // the webhook as it is now
	NextLease *Lease    // the same lease, for the lane's next webhook; nil: the lease has ended
	NextTry   time.Time // when a webhook that was not accepted is tried again
	LaneReady bool      // webhooks wait in the lane, and any process may lease it now

	s     *Store
	saved func(*Outcome, error)
}

// SaveOutcome writes an outcome, and calls saved when that is done or has failed.
func (s *Store) SaveOutcome(o *Outcome, saved func(*Outcome, error)) {
	o.s, o.saved = s, saved
	s.submit(o)
}

func (o *Outcome) weight() int64 { return 256 }

func (o *Outcome) need(n *needs) bool {
	key := o.Lease.lane
	n.lane(key)
	n.nextExcept[key] = o.Lease.Webhook.ID
	n.maxBody = MaxReadAhead
	if o.Lease.Webhook.snapshot && o.Attempt.Accepted() {
		n.supersedable[key] = true
		if !o.Lease.Webhook.Again.IsZero() { // somebody sent it again, ahead of waiting webhooks that may be older
			n.waiting[key] = true
		}
	}
	return true
}

// decide moves the webhook into its next state, and then continues the lease with the lane's next webhook, or ends it.
func (o *Outcome) decide(b *batch) {
	o.LeaseLost, o.NextLease = false, nil
	l := b.lanes[o.Lease.lane]
	if !o.Lease.matches(b, l) {
		o.LeaseLost = true
		return
	}
	webhook := *o.Lease.Webhook // a copy: if the transaction runs again, it must begin with the webhook as it was
	h := b.intern(&webhook)
	defer func() { o.LaneReady = l.waiting > 0 && l.owner == nil && l.due <= b.now }()
	if o.Aborted {
		l.release(b.now + micros(o.RetryIn))
		o.Entry = h.Entry
		return
	}
	if o.ContentErr == nil {
		h.noteAttempt(b.time().Add(-time.Since(o.Began)), o.Took, o.Attempt)
		h.Receiver = o.Lease.Receiver.Name
		l.lastTry = b.now
		if !o.Missed() {
			h.Counted++
		}
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
		l.held = nil // the receiver may have accepted it in a try whose answer got lost
		l.clearFailures()
	default:
		o.retry(b, l, h)
		o.Entry = h.Entry
		return
	}
	o.Entry = h.Entry
	o.continueLane(b, l)
}

// retry ends the lease after a failed try, and says when the lane is due again.
func (o *Outcome) retry(b *batch, l *lane, h *Webhook) {
	l.lastResult = lastFailed
	if o.Missed() {
		l.lastResult = lastMissed
	}
	backoff := o.s.cfg.Jitter(min(minBackoff<<min(l.failures, 20), maxBackoff))
	l.notBefore = 0
	if after := min(o.Attempt.RetryAfter, maxRetryAfter); after > 0 {
		l.notBefore = b.now + micros(after)
	}
	l.failures++
	next := b.next[l.key]
	newerWaits := next != nil && next.State == Waiting && next.snapshot && next.ID > h.ID
	if o.s.cfg.KeepLatest && h.snapshot && !h.Forced && newerWaits {
		b.move(l, h, Superseded, newerCame)
		l.waitingSince = next.AgeFrom().UnixMicro()
	}
	l.release(b.now + micros(backoff))
	o.NextTry = moment(l.due)
	if !l.paused && h.State == Waiting {
		h.Next = o.NextTry
	}
	b.markChanged(h)
}

const (
	minBackoff = time.Second
	maxBackoff = 5 * time.Minute
	// maxRetryAfter bounds a receiver's Retry-After.
	maxRetryAfter = time.Hour
	// maxInARow is how many webhooks of a lane are delivered in a row before other lanes get their turn.
	maxInARow = 16
)

// continueLane continues the lease with the lane's next webhook, or ends it.
func (o *Outcome) continueLane(b *batch, l *lane) {
	next := b.next[l.key]
	if next != nil {
		l.waitingSince = next.AgeFrom().UnixMicro()
	}
	if next == nil || next.State != Waiting || !o.WantsNext || l.paused || l.notBefore > b.now || o.Lease.inARow >= maxInARow {
		l.release(b.now)
		return
	}
	lease := &Lease{Webhook: next, Receiver: o.Lease.Receiver, lane: l.key, token: l.token, inARow: o.Lease.inARow + 1}
	lease.start(b)
	l.leasedID, l.due = next.ID, b.now+micros(b.s.leaseTime)
	o.NextLease = lease
}

// supersedeOlder supersedes the lane's snapshots that are older than h, which was accepted, and that are parked or wait. One
// that somebody has sent again with force is delivered nevertheless.
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

// parkReason says why a webhook that was not accepted is parked. Empty: it is tried again.
func (o *Outcome) parkReason(h *Webhook, now time.Time) string {
	switch {
	case o.ContentErr != nil:
		return o.ContentErr.Error()
	case isPermanent(o.Attempt.Status):
		return "the receiver will not take it: " + http.StatusText(o.Attempt.Status)
	case h.Counted >= o.s.cfg.MaxAttempts:
		return "too many failed tries (USHER_WEBHOOK_INBOX_ATTEMPTS)"
	case now.Sub(h.AgeFrom()) > o.s.cfg.MaxAge:
		return "older than USHER_WEBHOOK_INBOX_MAX_AGE"
	}
	return ""
}

// isMiss says whether a try was a miss: it says that the receiver is down, and nothing about the webhook.
func isMiss(a receiver.Attempt) bool {
	switch a.Status {
	case 0, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// Missed says whether the try was a miss; see isMiss.
func (o *Outcome) Missed() bool { return o.ContentErr == nil && !o.Aborted && isMiss(o.Attempt) }

// isPermanent says whether the receiver will never take this webhook.
func isPermanent(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

func (o *Outcome) done(err error) { o.saved(o, err) }

// A renewOp is the op that renews a lease.
type renewOp struct {
	s       *Store
	lease   *Lease
	renewed bool
	askedAt time.Time
	reply   chan error
}

// Renew renews leases. Each is an op of its own, so that a lane that somebody else has locked does not fail the others. Leases
// that could not be renewed run out.
func (s *Store) Renew(ctx context.Context, leases []*Lease) {
	var waiting sync.WaitGroup
	for _, lease := range leases {
		r := &renewOp{s: s, lease: lease, reply: make(chan error, 1)}
		waiting.Go(func() { s.await(ctx, nil, r, r.reply) })
	}
	waiting.Wait()
}

func (r *renewOp) weight() int64 { return 0 }

func (r *renewOp) need(n *needs) bool {
	n.lane(r.lease.lane)
	return true
}

func (r *renewOp) decide(b *batch) {
	l := b.lanes[r.lease.lane]
	if r.renewed, r.askedAt = r.lease.matches(b, l), b.askedAt; r.renewed {
		l.due, l.dirty = b.now+micros(b.s.leaseTime), true
	}
}

func (r *renewOp) done(err error) {
	if err == nil && r.renewed {
		until := r.askedAt.Add(r.s.UsableLeaseTime())
		r.lease.validUntil.Store(&until)
	}
	r.reply <- err
}

// LoadContent reads the content of a webhook, unless it is in memory, and checks it.
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
			return fmt.Errorf("the stored webhook can't be read: %w", err)
		}
	}
	if !w.hasContent {
		return ErrDamaged // the content's row is missing
	}
	return w.check()
}
