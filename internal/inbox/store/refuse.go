package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"usher/webhookgate"
)

// Webhooks that the right sender sent, and that usher cannot take in as they are. Each may be a change that nobody will send
// again, so it is stored until somebody has dealt with it.

// maxFaults is how many faults of a refused webhook are stored.
const maxFaults = 100

// Refuse stores a webhook that was refused. A copy of one that nobody has dealt with is only counted.
func (s *Store) Refuse(ctx context.Context, r *webhookgate.Refusal) error {
	w := &r.Webhook
	row := &Webhook{
		Entry:  Entry{Webhook: w.ID, Type: w.Type, Platform: w.Lane.Platform, Tenant: w.Lane.Tenant},
		digest: w.Digest[:], Header: w.Header, Body: w.Body,
	}
	header := encodeHeader(w.Header)
	row.size = int64(len(w.Body)+len(header)) + overhead
	if w.Lane.Tenant != "" {
		row.lane = LaneOf(w.Lane)
	}
	one := act{s: s, wants: func(n *needs) {
		n.count++
		n.refused = append(n.refused, row.digest)
		if w.Lane.Tenant != "" {
			n.lanes[row.lane] = w.Lane
			n.rest[row.lane] = true
		}
	}, does: func(w *work) error {
		seq := w.number()
		if old := w.refused[string(row.digest)]; old != nil && old.State == Refused {
			old.Times++
			old.Last, old.Newer = w.time(), false
			w.change(old)
			return nil
		}
		l := w.lanes[row.lane]
		if l == nil {
			l = new(lane) // nobody knows whose it is
		}
		row.ID, row.Received = seq, w.time()
		row.Status = Status{Faults: r.Faults[:min(len(r.Faults), maxFaults)], Code: r.Status, From: r.From, Times: 1, Cut: r.Cut}
		s.makeRoom(w, l)
		l.enter(row, Refused, "", w.time())
		w.added = append(w.added, row)
		w.refused[string(row.digest)] = row
		s.overflow.Store(true)
		return nil
	}}
	done := make(chan error, 1)
	go func() { done <- s.perform(ctx, one) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done(): // it may be stored later; its sender does not wait for that
		return s.tooSlow()
	}
}

// makeRoom deletes the oldest refused webhooks of a tenant that has too many.
func (s *Store) makeRoom(w *work, l *lane) {
	for _, old := range w.rest[l.key] {
		if int(l.refused) < s.cfg.Limits.RefusedTenant {
			return
		}
		if old.State == Refused {
			l.leave(old)
			old.State = Discarded // for the rest of this batch
			w.gone = append(w.gone, old.ID)
			s.cfg.Log.Warn("a refused webhook is deleted: its tenant has too many", "id", old.ID, "tenant", old.Tenant)
		}
	}
}

// sweepRefused deletes refused webhooks that are too many, too old or too large together, the oldest first.
func (s *Store) sweepRefused(tx Tx, now int64) error {
	lim := s.cfg.Limits
	var count int
	var bytes int64
	var gone []int64
	var lanes [][]byte
	tx.Queue("refused_all", func(r Row) error { // the newest first
		var seq, size, received int64
		if err := r.Scan(&seq, &size, &received); err != nil {
			return err
		}
		count++
		bytes += size
		if count > lim.Refused || bytes > lim.RefusedBytes || received < now-int64(lim.RefusedAge/time.Microsecond) {
			gone = append(gone, seq)
		}
		return nil
	})
	if err := tx.Send(); err != nil || len(gone) == 0 {
		return err
	}
	s.cfg.Log.Warn("refused webhooks are deleted that nobody has dealt with: they are too many or too old", "count", len(gone))
	tx.Queue("refused_delete", func(r Row) error { // unless another replica has dealt with it meanwhile
		var lane []byte
		err := r.Scan(&lane)
		if len(lane) > 0 {
			lanes = append(lanes, lane)
		}
		return err
	}, gone)
	tx.Queue("content_tidy", nil, gone)
	if err := tx.Send(); err != nil {
		return err
	}
	if len(lanes) > 0 {
		tx.Queue("lane_unrefuse", nil, lanes)
	}
	return tx.Send()
}

// Accept takes in a webhook that was refused, as it is, behind what its lane has, and returns its new number. If its
// tenant has a newer snapshot it needs force.
func (s *Store) Accept(id int64, force, keep bool) (int64, error) {
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
	case LaneOf(hook.Lane) != found.lane: // it was imported so
		return 0, errors.New("its body names another tenant")
	case hook.Receiver == nil && !keep:
		return 0, fmt.Errorf("no receiver takes webhooks of its platform %q", hook.Lane.Platform)
	}
	i := s.newIntake(hook)
	i.keep, i.force = keep, true
	a := &accept{intake: i, id: id, override: force}
	ctx, cancel := context.WithTimeout(s.run, actionPatience)
	defer cancel()
	if err := i.submit(ctx, a).Err; err != nil { // then it is not taken in later either, when its tenant may have a newer one
		return 0, err
	}
	return a.seq, s.explain(a.refusal)
}

// ErrNotRefused says that only refused webhooks can be accepted.
var ErrNotRefused = errors.New("it was not refused, or somebody has dealt with it")

// accept is an intake that also deals with what was refused.
type accept struct {
	*intake
	id       int64
	override bool
	refusal  error
	seq      int64
}

func (a *accept) need(n *needs) bool {
	n.rows[a.id] = true
	return a.intake.need(n)
}

func (a *accept) decide(w *work) {
	a.refusal, a.answer = nil, Answer{}
	l, old := w.lanes[a.row.lane], w.rows[a.id]
	switch {
	case old == nil || old.State != Refused:
		a.refusal = ErrNotRefused
		return
	case (l.tail > a.id || old.Newer) && !a.override && a.row.snapshot:
		a.refusal = &OverwriteError{a.id, l.last()}
		return
	}
	a.from = old
	a.intake.decide(w)
	a.seq = a.row.ID
}
