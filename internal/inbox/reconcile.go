package inbox

import (
	"crypto/rand"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
)

// Reconcile compares what the billing service says of each tenant with what usher knows, and takes in what
// differs: for webhooks that were never sent. Which of the two is newer is decided by numbers. A run begins
// with a mark, one of the numbers that webhooks get, and asks the service after the mark is committed.
// Whatever comes for a lane leaves its number there (Lane.Last). So a lane whose last number is below the
// mark has heard nothing since the service was asked, and what the service said is at least as new.
//
// A pass over the list goes in batches. Each is one transaction, in which the tenants' lanes are locked and
// judge their lines (Lane.Reconcile). Taking in is the same in another mode. The database has the last run
// alone: after a restore or a failover that has lost its mark, numbers would say nothing.

// FromReconcile is the source of a webhook that usher made from what the billing service said.
const FromReconcile = "reconcile"

// sourceHeader tells the receiver where a webhook comes from that no sender sent. The gate never forwards a
// sender's header of this name.
const sourceHeader = "Usher-Source"

const (
	// ErrNoRun says that a run is not the last one.
	ErrNoRun lane.Denied = "the database does not know this reconcile any more: it was restored, a failover has lost " +
		"it, or a later reconcile has begun. Start it again"
	// ErrNoGate says that this usher cannot reconcile.
	ErrNoGate lane.Denied = "this usher has no webhook gate, so it does not know which receiver takes which platform: " +
		"reconcile through an usher that has one"
)

// A Run is one 'usher reconcile'.
type Run struct {
	ID     string      `json:"id"`
	Began  time.Time   `json:"began"`
	Found  lane.Counts `json:"found,omitempty"`
	Failed string      `json:"failed,omitempty"` // why it failed

	mark   int64 // the number with which it began
	action int64 // the entry of the person that began it
}

// BeginRun stores that a run begins, and returns it together with the number of known tenants. When BeginRun
// has returned, the billing service may be asked. A run before it ends: what that one has read is older.
func (s *Inbox) BeginRun(by *Action) (r *Run, known int, err error) {
	if s.cfg.Receivers == nil {
		return nil, 0, ErrNoGate
	}
	// Before the transaction, because others would wait until all lanes are read. A number that a lane gets
	// meanwhile is below the mark: it comes from the same sequence, and earlier.
	highest := int64(0)
	err = s.read(s.run, func(tx engine.Tx) error {
		tx.Queue("highest_last", func(row engine.Row) error { return row.Scan(&highest) })
		tx.Queue("tenant_count", func(row engine.Row) error { return row.Scan(&known, new(int)) })
		return tx.Send()
	})
	if err != nil {
		return nil, 0, err
	}
	r, err = act(s, work{numbers: 1, above: highest}, func(t *sqlTurn) (*Run, int, error) {
		noted := by.queue(t.tx, t.Now, 0)
		t.send()
		r := &Run{ID: rand.Text(), Began: t.Time(), mark: t.NextNumber(), action: noted.ID}
		t.tx.Queue("run_begin", nil, r.ID, r.mark, t.Now, r.action)
		return r, 0, nil
	})
	return r, known, err
}

// lastRun returns the last run, and when the last list was compared as a whole.
func lastRun(tx engine.Tx, statement string) (r *Run, completed int64, err error) {
	r = new(Run)
	tx.Queue(statement, func(row engine.Row) error {
		var began int64
		err := row.Scan(&r.ID, &r.mark, &began, &r.action, &completed)
		r.Began = clock.Moment(began)
		return err
	})
	err = tx.Send()
	return r, completed, err
}

// runOf returns the run that a work is part of. Nobody begins another one meanwhile.
func (t *sqlTurn) runOf(id string) (*Run, error) {
	r, _, err := lastRun(t.tx, "run_lock")
	if t.err = err; err == nil && r.ID != id {
		err = ErrNoRun
	}
	return r, err
}

// endRun notes that a run has compared a whole list. settled: and that nothing differs any more, so that nothing is
// missed that came before it.
func (s *Inbox) endRun(id string, settled bool) error {
	_, err := act(s, work{}, func(t *sqlTurn) (nothing, int, error) {
		r, err := t.runOf(id)
		if err != nil {
			return nothing{}, 0, err
		}
		t.tx.Queue("run_complete", nil, t.Now)
		if settled {
			t.tx.Queue("missed_end", nil, r.Began.UnixMicro(), t.Now)
			t.Then(func() { s.endMissed(s.ours(r.Began)) })
		}
		return nothing{}, 0, nil
	})
	if settled && err == nil {
		s.changed()
	}
	return err
}

// decideBatch has the lane of each line of a batch decide about it, all in one transaction, which also finds
// out whether the run is still the last one. A tenant that is only compared gets no lane.
func (s *Inbox) decideBatch(id string, batch []*lane.ListLine, mode lane.ReconcileMode) ([]lane.Compared, error) {
	var w work
	for _, o := range batch {
		if o.Draft.Result == "" {
			w.snapshots, w.bytes = append(w.snapshots, o.LaneName), w.bytes+o.Size
		}
	}
	w.known = w.snapshots
	if mode.Applies() {
		if full := s.engine.Full(); full != nil { // the last room is for outcomes
			return nil, full
		}
		w.lanes, w.known, w.numbers = w.snapshots, nil, int64(len(w.snapshots))
	}
	done, err := act(s, w, func(t *sqlTurn) (done []lane.Compared, touched int, err error) {
		run, err := t.runOf(id)
		if err != nil {
			return nil, 0, err
		}
		return t.decideLines(run, batch, w.snapshots, mode), 0, nil
	})
	var first []TenantRef
	for _, c := range done {
		if c.Applied {
			s.cfg.Changed(c.Tenant)
		}
		if c.Applied && c.Result == lane.NewTenant {
			first = append(first, TenantRef{c.Platform, c.Tenant})
		}
	}
	if len(first) > 0 {
		s.background.Go(func() { s.warnIfAmbiguous(first...) })
	}
	return done, err
}

// decideLines returns what came of each line. names are the lanes that it has locked.
func (t *sqlTurn) decideLines(
	run *Run, batch []*lane.ListLine, names []webhookgate.LaneName, mode lane.ReconcileMode,
) (done []lane.Compared) {
	elsewhere, applied := t.readElsewhere(names), 0
	for _, o := range batch {
		c := o.Draft
		if c.Result == "" {
			may := mode
			if o.Contradicts { // nobody knows which line is right
				may = lane.ToCompare
			}
			l := t.Lanes[o.LaneName]
			if l == nil { // usher does not know the tenant, or cannot read its row
				l, may = t.UnknownLane(o.LaneName), lane.ToCompare
			}
			if c = l.Reconcile(o, run.mark, may); c.Result == lane.NewTenant && t.snapshots[o.LaneName] == nil {
				c.Elsewhere = elsewhere[o.LaneName]
			}
		}
		if c.Applied {
			applied++
		}
		if c.Err != nil {
			mode = lane.ToCompare
		}
		done = append(done, c)
	}
	if applied > 0 {
		(&Action{ID: run.action}).queue(t.tx, t.Now, applied)
	}
	return done
}

// readElsewhere returns the other platforms on which the tenants' codes are known.
func (t *sqlTurn) readElsewhere(names []webhookgate.LaneName) map[webhookgate.LaneName][]string {
	known := make(map[webhookgate.LaneName][]string)
	tenants, platforms, _ := laneColumns(names)
	if len(names) == 0 {
		return known
	}
	t.tx.Queue("elsewhere", func(r engine.Row) error {
		var name webhookgate.LaneName
		var other string
		err := r.Scan(&name.Tenant, &name.Platform, &other)
		known[name] = append(known[name], other)
		return err
	}, tenants, platforms)
	t.send()
	return known
}
