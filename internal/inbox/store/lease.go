package store

import (
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

// start sets the lease's end. It counts from the begin of the transaction, which is before the database read its clock.
func (lease *Lease) start(t *turn) {
	until := t.askedAt.Add(t.leaseTime - t.leaseTime/5)
	lease.validUntil.Store(&until)
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

// find returns the lanes that claims are for, each with its first webhook.
func (t *sqlTurn) find(claims []*Claim) [][]*lane {
	found := make([][]*lane, len(claims))
	for n, c := range claims {
		platforms := t.s.platforms.hashes(func(code string) bool { return t.Receivers.For(code) == c.Receiver })
		args := []any{platforms, t.now, boolNumber(t.mayTakeOver), int64(c.Max)}
		if c.Kind == Wave {
			args = append(args, c.WaitingFrom, c.TriedBefore)
		}
		t.tx.Queue(claimStatements[c.Kind], func(r Row) error {
			l, err := t.s.scanLane(r)
			found[n] = append(found[n], t.adopt(l))
			return err
		}, args...)
	}
	t.send()
	heads := make(map[Key]int64)
	for n, c := range claims {
		// The statement returns up to Max lanes of each platform, and their order must go by all platforms together.
		slices.SortStableFunc(found[n], func(x, y *lane) int { return cmp.Compare(c.turn(x), c.turn(y)) })
		found[n] = found[n][:min(len(found[n]), c.Max)]
		for _, l := range found[n] {
			if !l.leased() {
				heads[l.key] = 0
			}
		}
	}
	t.readHeads(heads, MaxReadAhead)
	return found
}

// Claim asks for leases. When it returns, each claim has its result, and the courier has got the leases.
func (s *Store) Claim(ctx context.Context, claims []*Claim) error {
	reply := make(chan error, 1)
	return s.await(ctx, nil, &work{failed: func(err error) { reply <- err }, decide: func(t *sqlTurn) func() {
		type result struct {
			leases    []*Lease
			found     int
			waitingTo int64
		}
		left := make(map[*int]int) // of the budgets
		for _, c := range claims {
			for _, b := range c.Budgets {
				left[b] = *b
			}
		}
		results := make([]result, len(claims))
		for n, found := range t.find(claims) {
			c, r := claims[n], &results[n]
			r.found = len(found)
			for _, l := range found {
				if len(r.leases) >= c.Max || slices.ContainsFunc(c.Budgets, func(b *int) bool { return left[b] <= 0 }) {
					break
				}
				r.waitingTo = max(r.waitingTo, l.waitingSince)
				lease := l.claim(c.Receiver)
				if lease == nil {
					continue
				}
				lease.InWave = c.Kind == Wave
				r.leases = append(r.leases, lease)
				for _, b := range c.Budgets {
					left[b]--
				}
			}
		}
		return func() {
			for n, c := range claims {
				c.Leases, c.Found, c.WaitingTo = results[n].leases, results[n].found, results[n].waitingTo
				for _, lease := range c.Leases {
					s.cfg.Courier.Deliver(lease)
				}
			}
			for b, n := range left {
				*b = n
			}
			reply <- nil
		}
	}}, reply)
}

// MaxReadAhead is the size up to which a content is read together with its lease. A larger one is read when it is sent.
const MaxReadAhead = 64 << 10

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

	settlement // the result
}

// SaveOutcome writes an outcome, and calls saved when that is done or has failed.
func (s *Store) SaveOutcome(o *Outcome, saved func(*Outcome, error)) {
	key := o.Lease.lane
	s.submit(&work{
		keys: []Key{key}, next: o.Lease.Webhook.ID, bytes: 256, failed: func(err error) { saved(o, err) },
		decide: func(t *sqlTurn) func() {
			result := t.lanes[key].settle(o)
			return func() { o.settlement = result; saved(o, nil) }
		},
	})
}

const (
	minBackoff = time.Second
	maxBackoff = 5 * time.Minute
	// maxRetryAfter bounds a receiver's Retry-After.
	maxRetryAfter = time.Hour
	// maxInARow is how many webhooks of a lane are delivered in a row before other lanes get their turn.
	maxInARow = 16
)

// parkReason says why a webhook that was not accepted is parked. Empty: it is tried again.
func (o *Outcome) parkReason(cfg *Config, h *Webhook, now time.Time) string {
	switch {
	case o.ContentErr != nil:
		return o.ContentErr.Error()
	case isPermanent(o.Attempt.Status):
		return "the receiver will not take it: " + http.StatusText(o.Attempt.Status)
	case h.Counted >= cfg.MaxAttempts:
		return "too many failed tries (USHER_WEBHOOK_INBOX_ATTEMPTS)"
	case now.Sub(h.AgeFrom()) > cfg.MaxAge:
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

// Renew renews leases. Each is a work of its own, so that a lane that somebody else has locked does not fail the others. Leases
// that could not be renewed run out.
func (s *Store) Renew(ctx context.Context, leases []*Lease) {
	var waiting sync.WaitGroup
	for _, lease := range leases {
		reply := make(chan error, 1)
		w := &work{keys: []Key{lease.lane}, failed: func(err error) { reply <- err }, decide: func(t *sqlTurn) func() {
			renewed := t.lanes[lease.lane].renew(lease)
			return func() {
				if renewed {
					lease.start(&t.turn)
				}
				reply <- nil
			}
		}}
		waiting.Go(func() { s.await(ctx, nil, w, reply) })
	}
	waiting.Wait()
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
