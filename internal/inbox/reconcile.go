package inbox

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
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
// A pass over the list goes in batches. Each is one transaction, in which the tenants' lanes are locked: they
// judge their lines (Lane.Reconcile), what is equal settles what came before, and what was found is stored
// with the tenant, see finding.go. Taking in is the same in another mode.

// FromReconcile is the source of a webhook that usher made from what the billing service said.
const FromReconcile = "reconcile"

// sourceHeader tells the receiver where a webhook comes from that no sender sent. The gate never forwards a
// sender's header of this name.
const sourceHeader = "Usher-Source"

const (
	// ErrNoRun says that a run is not stored, or has ended.
	ErrNoRun lane.Denied = "the database does not know this reconcile any more: it was restored, a failover has lost " +
		"it, or an import or a later reconcile has ended it. Start it again"
	// ErrNoGate says that this usher cannot reconcile.
	ErrNoGate lane.Denied = "this usher has no webhook gate, so it does not know which receiver takes which platform: " +
		"reconcile through an usher that has one"
	// olderList is why a run may only compare.
	olderList = "another reconcile has compared a newer list: " +
		"what this one says may be older, so nothing was taken in"
)

// runOf returns the run that a work is part of.
func (t *sqlTurn) runOf(id string) (*lane.Run, error) {
	r := t.runs[id]
	if r == nil || !r.Ended.IsZero() {
		return nil, ErrNoRun
	}
	return r, nil
}

// BeginRun stores that a run begins, and returns it together with the number of known tenants. When BeginRun
// has returned, the billing service may be asked. asOf is zero, or how old the list will be. It ends all runs
// that have not ended: what they have read is older.
func (s *Inbox) BeginRun(asOf time.Time, by *Action) (r *lane.Run, known int, err error) {
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
	r, err = act(s, work{numbers: 1, above: highest}, func(t *sqlTurn) (*lane.Run, int, error) {
		noted := by.queue(t.tx, t.Now, 0)
		t.send()
		r := &lane.Run{ID: rand.Text(), Began: t.Time(), AsOf: asOf, Mark: t.NextNumber(), Action: noted.ID}
		asOfMicros := clock.Never
		if !asOf.IsZero() {
			asOfMicros = asOf.UnixMicro()
		}
		t.tx.Queue("runs_end", nil, t.Now, "a later reconcile has begun")
		t.tx.Queue("run_add", nil, r.ID, r.Mark, t.Now, asOfMicros, r.Action)
		return r, 0, nil
	})
	return r, known, err
}

// KeepRun says that the request that began a run is still there.
func (s *Inbox) KeepRun(id string) error {
	_, err := s.saveRun(id, false, func(*sqlTurn, *lane.Run) {})
	return err
}

// AbortRun ends a run that has failed. What it has found and taken in stays.
func (s *Inbox) AbortRun(id, why string) error {
	_, err := s.saveRun(id, true, func(_ *sqlTurn, r *lane.Run) { r.Failed = why })
	return err
}

// saveRun stores a change of a run, and returns the run. With end the run ends: then it is known what it
// leaves.
func (s *Inbox) saveRun(id string, end bool, change func(*sqlTurn, *lane.Run)) (*lane.Run, error) {
	return act(s, work{run: id}, func(t *sqlTurn) (*lane.Run, int, error) {
		r, err := t.runOf(id)
		if err != nil {
			return nil, 0, err
		}
		change(t, r)
		ended := int64(0)
		if end {
			r.Ended, ended = t.Time(), t.Now
			over := 0
			t.tx.Queue("findings_over", func(row engine.Row) error { return row.Scan(&over) }, r.Mark)
			t.send()
			r.Left = r.Found.Findings() - over
		}
		found, _ := json.Marshal(r.Found) // numbers
		t.tx.Queue("run_save", nil, id, t.Now, ended, boolNumber(r.Complete), withoutZero(r.Failed), string(found))
		if end && r.Complete && r.Left == 0 { // somebody has asked the service itself since these outages
			t.tx.Queue("outage_end", func(engine.Row) error { return nil }, r.KnowsUpTo().UnixMicro(), t.Now)
		}
		return r, 0, nil
	})
}

// queueLastRuns queues the reading of the last run, and of the last one that has compared a whole list.
func queueLastRuns(tx engine.Tx, last, complete **lane.Run) {
	tx.Queue("runs_last", func(row engine.Row) error {
		r, err := scanRun(row)
		if *last = r; r.Complete && !r.Ended.IsZero() {
			*complete = r
		}
		return err
	})
}

// decideBatch has the lane of each line of a batch decide about it, all in one transaction, which also finds
// out whether the run is still under way. A tenant that is only compared gets no lane.
func (s *Inbox) decideBatch(id string, batch []*lane.ListLine, mode lane.ReconcileMode) ([]lane.Compared, error) {
	w := work{run: id}
	for _, o := range batch {
		if r := o.Draft.Result; r == "" || r.IsFinding() {
			w.snapshots = append(w.snapshots, nameOf(&o.Draft))
		}
		if o.Draft.Result == "" {
			w.bytes += o.Size
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
		if err == nil && mode.Applies() && run.Failed != "" {
			err = lane.Denied(run.Failed)
		}
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

func nameOf(c *lane.Compared) webhookgate.LaneName {
	return webhookgate.LaneName{Platform: c.Platform, Tenant: c.Tenant}
}

// decideLines returns what came of each line. names are the lanes that it has locked.
func (t *sqlTurn) decideLines(
	run *lane.Run, batch []*lane.ListLine, names []webhookgate.LaneName, mode lane.ReconcileMode,
) (done []lane.Compared) {
	known, applied := t.readBeside(names), 0
	for _, o := range batch {
		c := o.Draft
		beside := known[nameOf(&c)]
		if c.Result == "" {
			may := mode
			if o.Contradicts { // nobody knows which line is right
				may = lane.ToSee
			}
			if c = t.decideLine(o, run, may); c.Result == lane.NewTenant {
				c.Erased = beside.erased
				if t.snapshots[o.LaneName] == nil {
					c.Elsewhere = beside.platforms
				}
			}
		}
		if c.Applied {
			applied++
		}
		if c.Err != nil {
			mode = lane.ToSee
		}
		c.Dismissed = beside.dismissed && bytes.Equal(beside.found, c.Fingerprint())
		done = append(done, c)
		switch {
		case mode != lane.ToCompare || c.MayBeTwin(): // which is stored once that is certain
		case c.Result.IsFinding():
			t.saveFinding(run, &c)
		case c.Result == lane.Equal && len(beside.found) > 0 && !o.Contradicts: // all lines say so
			t.tx.Queue("finding_clear", nil, c.Tenant, c.Platform, run.KnowsUpTo().UnixMicro(), t.Now)
		}
	}
	if applied > 0 {
		(&Action{ID: run.Action}).queue(t.tx, t.Now, applied)
	}
	return done
}

// decideLine has the lane of a tenant decide about its line.
func (t *sqlTurn) decideLine(o *lane.ListLine, run *lane.Run, mode lane.ReconcileMode) lane.Compared {
	l := t.Lanes[o.LaneName]
	if l == nil { // usher does not know the tenant
		l = t.UnknownLane(o.LaneName)
	}
	c := l.Reconcile(o, run, mode)
	if c.Applied || c.Result == lane.Equal && mode != lane.ToSee {
		// Before the next transaction, which moves what was missed from memory into lanes.
		t.Then(func() { t.s.settleInMemory(o.LaneName, run) })
	}
	return c
}

// isOlderList says whether a former run has compared a newer list.
func (t *sqlTurn) isOlderList(r *lane.Run) bool {
	var known int64 // up to when a former run knows what the billing service says
	t.tx.Queue("runs_know", func(row engine.Row) error { return row.Scan(&known) }, r.ID)
	t.send()
	return known > r.KnowsUpTo().UnixMicro()
}

// beside is what is known of a tenant beside its lane and its snapshot.
type beside struct {
	found     []byte    // the fingerprint of the finding that is stored; empty: there is none
	dismissed bool      // somebody has dismissed that one
	erased    time.Time // when somebody has erased it
	platforms []string  // the other platforms on which its code is known
}

func (t *sqlTurn) readBeside(names []webhookgate.LaneName) map[webhookgate.LaneName]beside {
	known := make(map[webhookgate.LaneName]beside)
	tenants, platforms, _ := laneColumns(names)
	t.tx.Queue("beside", func(r engine.Row) error {
		var name webhookgate.LaneName
		var b beside
		var dismissed, erased, others int64
		var other string
		err := r.Scan(&name.Tenant, &name.Platform, &b.found, &dismissed, &erased, &others, &other)
		b.dismissed, b.erased, b.platforms = dismissed > 0, momentOrZero(erased), known[name].platforms
		if others > 0 {
			b.platforms = append(b.platforms, other)
		}
		known[name] = b
		return err
	}, tenants, platforms)
	t.send()
	return known
}
