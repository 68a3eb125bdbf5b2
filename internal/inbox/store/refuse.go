package store

import (
	"context"
	"errors"
	"fmt"

	"usher/webhookgate"
)

// Refused webhooks: the right sender sent them, but usher cannot take them in as they are. Each may be a change that nobody
// will send again, so it is stored until somebody has dealt with it.

// maxFaults is how many faults of a refused webhook are stored.
const maxFaults = 100

// Refuse stores a webhook that was refused. A copy of a refused webhook that nobody has dealt with is only counted.
func (s *Store) Refuse(ctx context.Context, r *webhookgate.Refusal) error {
	w := &r.Webhook
	row := newWebhook(w)
	if w.Lane.Tenant == "" {
		row.lane = Key{}
	}
	o := funcOp{s: s, needFn: func(n *needs) {
		n.newNumbers++
		n.refusedDigests = append(n.refusedDigests, row.digest)
		if w.Lane.Tenant != "" {
			n.lanes[row.lane] = w.Lane
			n.refused[row.lane] = true
		}
	}, decideFn: func(b *batch) error {
		seq := b.nextNumber()
		if old := b.refusedByDigest[string(row.digest)]; old != nil && old.State == Refused {
			old.Times++
			old.Last, old.Newer = b.time(), false
			b.markChanged(old)
			return nil
		}
		l := b.lanes[row.lane]
		if l == nil {
			l = new(lane) // its tenant is not certain: it has no lane, and this one is not saved
		}
		row.ID, row.Received = seq, b.time()
		row.Status = Status{Faults: r.Faults[:min(len(r.Faults), maxFaults)], Code: r.Status, From: r.From, Times: 1, Cut: r.Cut}
		s.deleteOldestRefused(b, l)
		l.countIn(row, Refused, "", b.time())
		b.added = append(b.added, row)
		b.refusedByDigest[string(row.digest)] = row
		s.sweepRefusedSoon.Store(true)
		return nil
	}}
	done := make(chan error, 1)
	go func() { done <- s.perform(ctx, o) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done(): // the writer may still store it, but its sender does not wait for that
		return s.timeoutErr()
	}
}

// deleteOldestRefused deletes the oldest refused webhooks of a tenant that has too many, so that there is room for one more.
func (s *Store) deleteOldestRefused(b *batch, l *lane) {
	for _, old := range b.supersedable[l.key] {
		if int(l.refused) < s.cfg.Limits.RefusedTenant {
			return
		}
		if old.State == Refused {
			l.countOut(old)
			old.State = Discarded // other ops of this batch must not see it as refused
			b.deleted = append(b.deleted, old.ID)
			s.cfg.Log.Warn("deleted a refused webhook: its tenant has too many", "id", old.ID, "tenant", old.Tenant)
		}
	}
}

// sweepRefused deletes the oldest refused webhooks, if they are too many, too old, or too large together.
func (s *Store) sweepRefused(tx Tx, now int64) error {
	lim := s.cfg.Limits
	var old []int64
	var lanes [][]byte // of the deleted webhooks; some have none
	tx.Queue("refused_delete", func(r Row) error {
		var seq int64
		var lane []byte
		err := r.Scan(&seq, &lane)
		old, lanes = append(old, seq), append(lanes, lane)
		return err
	}, int64(lim.Refused), lim.RefusedBytes, now-micros(lim.RefusedAge))
	if err := tx.Send(); err != nil || len(old) == 0 {
		return err
	}
	s.cfg.Log.Warn("deleted refused webhooks that nobody has dealt with: they are too many or too old", "count", len(old))
	tx.Queue("content_delete", nil, old)
	tx.Queue("lane_subtract_refused", nil, lanes)
	return tx.Send()
}

// Accept takes in a webhook that was refused, as it is, at the end of its lane, and returns its new id. If its tenant has a
// newer snapshot, that needs force.
func (s *Store) Accept(id int64, force bool) (int64, error) {
	found, err := s.find(id)
	switch {
	case err != nil:
		return 0, err
	case found.State != Refused:
		return 0, ErrNotRefused
	case found.Cut:
		return 0, errors.New("only the beginning of its body is stored")
	case found.check() != nil:
		return 0, ErrDamaged
	}
	hook, err := webhookgate.Accept(webhookgate.NewID(), found.Header, found.Body, s.cfg.Receivers)
	switch {
	case err != nil:
		return 0, err
	case LaneOf(hook.Lane) != found.lane: // only an import can bring such a webhook
		return 0, errors.New("its body names another tenant")
	case hook.Receiver == nil && !s.cfg.Keep:
		return 0, fmt.Errorf("no receiver takes webhooks of its platform %q", hook.Lane.Platform)
	}
	i := s.newIntake(hook)
	i.skipDedup = true
	a := &acceptOp{intake: i, id: id, force: force}
	ctx, cancel := context.WithTimeout(s.run, actionPatience)
	defer cancel()
	if err := i.submit(ctx, a).Err; err != nil { // it is not taken in later either, when its tenant may have a newer one
		return 0, err
	}
	return a.newID, s.explain(a.denied)
}

// ErrNotRefused says that only refused webhooks can be accepted.
var ErrNotRefused = errors.New("it was not refused, somebody has dealt with it, or its tenant has a newer snapshot")

// An acceptOp is an intake that also marks the refused webhook as accepted.
type acceptOp struct {
	*intake
	id    int64 // the refused webhook
	force bool

	denied error // why it was not accepted
	newID  int64
}

func (a *acceptOp) need(n *needs) bool {
	n.webhooks[a.id] = true
	return a.intake.need(n)
}

func (a *acceptOp) decide(b *batch) {
	a.denied, a.answer = nil, Answer{}
	l, old := b.lanes[a.row.lane], b.webhooks[a.id]
	switch {
	case old == nil || old.State != Refused:
		a.denied = ErrNotRefused
		return
	case (l.tail > a.id || old.Newer) && !a.force && a.row.snapshot:
		a.denied = &OverwriteError{a.id, l.tailEntry()}
		return
	}
	a.accepted = old
	a.intake.decide(b)
	a.newID = a.row.ID
}
