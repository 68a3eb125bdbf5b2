package inbox

import (
	"context"
	"fmt"
	"sync"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
)

// claim asks for leases. When it returns, the courier has got them. Each claim is a work of its own, so that what the
// database refuses to write for one receiver does not fail the others.
func (s *Inbox) claim(ctx context.Context, claims []*claim) {
	var waiting sync.WaitGroup
	for _, c := range claims {
		waiting.Go(func() {
			claimed, err := do(ctx, s, work{claim: c}, func(t *sqlTurn) claimed {
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

// saveOutcome writes an outcome, and calls saved when that is done or has failed.
func (s *Inbox) saveOutcome(o *lane.Outcome, saved func(*lane.Outcome, error)) {
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

// renew renews leases. Each is a work of its own, so that a lane that somebody else has locked does not fail the
// others. Leases that could not be renewed run out.
func (s *Inbox) renew(ctx context.Context, leases []*lane.Lease) {
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

// loadContent reads the content of a webhook, unless it is in memory, and checks it.
func (s *Inbox) loadContent(ctx context.Context, w *lane.Webhook) error {
	if !w.HasContent {
		err := s.engine.Read(ctx, func(tx engine.Tx) error {
			tx.Queue("content", func(r engine.Row) error {
				var header []byte
				err := r.Scan(&header, &w.Body)
				w.Header, w.HasContent = decodeHeader(header), true
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
