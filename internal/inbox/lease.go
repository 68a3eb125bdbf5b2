package inbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/receiver"
	"usher/webhookgate"
)

// A Claim asks for leases of one receiver's lanes that nobody delivers, in the order of its fields.
type Claim struct {
	Receiver *receiver.Receiver
	Room     int // how many leases at the most
	Failed   int // how many of them for lanes whose last try failed

	Fresh  int // lanes that are due and have not failed, those that wait longest
	Newest int // the same, those that came last
	// Early are lanes that have failed, due or not, and were last tried before TriedBefore: those that were tried
	// longest ago.
	Early       int
	TriedBefore int64 // zero: a second ago
	DownOnly    bool  // of these only lanes whose receiver was down, and after the retries
	Retries     int   // lanes that are due and have failed

	skip   map[webhookgate.LaneName]bool // not these
	leased []webhookgate.LaneName        // what the last run of the transaction has leased
	result Claimed
}

// Claimed is what came of a claim.
type Claimed struct {
	Leases      []*lane.Lease
	Fresh       int   // how many of the leases are for lanes that have not failed
	MoreFresh   bool  // there may be more lanes that have not failed
	MoreRetries bool  // there may be more lanes that have failed and are due
	MoreEarly   bool  // there may be more that were last tried before TriedBefore
	err         error // why there are no leases
}

// The kinds of lanes that the statement claim finds, in the order in which they get leases.
const (
	foundFresh, foundNewest, foundEarly, foundRetry = 0, 1, 2, 3
)

// found is a lane that a claim has found.
type found struct {
	kind int64
	lane *lane.Lane
}

// order sorts what a claim has found: by kind, and each kind by its turn. The statement's parts are in order, but
// nothing promises that.
func (c *Claim) order(all []found) {
	turn := func(f found) (kind, turn int64) {
		switch f.kind {
		case foundNewest:
			return f.kind, -f.lane.Due
		case foundEarly:
			if c.DownOnly {
				return foundRetry + 1, f.lane.LastTry
			}
			return f.kind, f.lane.LastTry
		}
		return f.kind, f.lane.Due
	}
	slices.SortStableFunc(all, func(a, b found) int {
		kindA, turnA := turn(a)
		kindB, turnB := turn(b)
		return cmp.Or(cmp.Compare(kindA, kindB), cmp.Compare(turnA, turnB))
	})
}

// take leases the lanes that a claim has found, as far as there is room.
func (c *Claim) take(all []found) (r Claimed) {
	c.order(all)
	c.leased = nil
	var seen [foundRetry + 1]int
	failed := 0
	for _, f := range all {
		if c.skip[f.lane.LaneName] {
			continue
		}
		seen[f.kind]++
		mayFail := f.kind == foundEarly || f.kind == foundRetry
		if len(r.Leases) >= c.Room || mayFail && failed >= c.Failed {
			r.MoreEarly = r.MoreEarly || f.kind == foundEarly
			continue
		}
		lease := f.lane.Claim(c.Receiver)
		if f.lane.RowChanged() {
			c.leased = append(c.leased, f.lane.LaneName)
		}
		if lease == nil {
			continue
		}
		r.Leases = append(r.Leases, lease)
		if mayFail {
			failed++
		} else {
			r.Fresh++
		}
	}
	r.MoreFresh = c.Fresh > 0 && seen[foundFresh] >= c.Fresh
	r.MoreEarly = r.MoreEarly || c.Early > 0 && seen[foundEarly] >= c.Early
	r.MoreRetries = c.Retries > 0 && seen[foundRetry] >= c.Retries
	return r
}

// Claim asks for leases. When it returns, the courier has got them. Each claim is a work of its own, so that what the
// database refuses to write for one receiver does not fail the others.
func (s *Inbox) Claim(ctx context.Context, claims []*Claim) {
	var waiting sync.WaitGroup
	for _, c := range claims {
		waiting.Go(func() {
			claimed, err := do(ctx, s, work{claim: c}, func(t *sqlTurn) Claimed {
				claimed := c.take(t.found[c])
				t.Then(func() {
					for _, lease := range claimed.Leases {
						s.courier.Deliver(lease)
					}
				})
				return claimed
			})
			c.result = claimed
			c.result.err = err
		})
	}
	waiting.Wait()
}

// MaxReadAhead is the size up to which a content is read together with its lease. A larger one is read when it is sent.
const MaxReadAhead = 64 << 10

// SaveOutcome writes an outcome, and calls saved when that is done or has failed.
func (s *Inbox) SaveOutcome(o *lane.Outcome, saved func(*lane.Outcome, error)) {
	key := o.Lease.LaneName
	s.submit(&work{
		known:  []webhookgate.LaneName{key},
		next:   o.Lease.Webhook.ID,
		bytes:  256,
		failed: func(err error) { saved(o, err) },
		decide: func(t *sqlTurn) {
			after := t.Lanes[key].EndTry(o)
			t.Then(func() { o.AfterTry = after; saved(o, nil) })
		},
	})
}

// Renew renews leases. Each is a work of its own, so that a lane that somebody else has locked does not fail the
// others. Leases that could not be renewed run out.
func (s *Inbox) Renew(ctx context.Context, leases []*lane.Lease) {
	var waiting sync.WaitGroup
	for _, lease := range leases {
		waiting.Go(func() {
			do(ctx, s, work{known: []webhookgate.LaneName{lease.LaneName}}, func(t *sqlTurn) nothing {
				if t.Lanes[lease.LaneName].Renew(lease) {
					t.Then(func() { lease.Extend(t.LeaseEnd()) })
				}
				return nothing{}
			})
		})
	}
	waiting.Wait()
}

// LoadContent reads the content of a webhook, unless it is in memory, and checks it.
func (s *Inbox) LoadContent(ctx context.Context, w *lane.Webhook) error {
	if !w.HasContent {
		err := s.engine.Read(ctx, func(tx engine.Tx) error {
			tx.Queue("content", func(r engine.Row) error {
				var header []byte
				unreadable, err := engine.Unreadable(r.Scan(&header, &w.Body))
				w.Header, w.HasContent = decodeHeader(header), true
				if unreadable != nil || w.Header == nil {
					w.Damaged = append(w.Damaged, "header")
				}
				return err
			}, w.ID)
			return tx.Send()
		})
		if err != nil {
			return fmt.Errorf("the stored webhook can't be read: %w", err)
		}
	}
	if !w.HasContent {
		return lane.ErrDamaged // the content's row is missing
	}
	return w.Check()
}
