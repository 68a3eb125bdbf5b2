package inbox

import (
	"fmt"
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
// judge their lines (Lane.Reconcile). Taking in is the same in another mode.

// FromReconcile is the source of a webhook that usher made from what the billing service said.
const FromReconcile = "reconcile"

// sourceHeader tells the receiver where a webhook comes from that no sender sent. The gate never forwards a
// sender's header of this name.
const sourceHeader = "Usher-Source"

const (
	// ErrNoRun says that a run is not the last one.
	ErrNoRun lane.Denied = "the database does not know this reconcile any more: it was restored, or a failover has lost " +
		"it. Start it again"
	// ErrNoGate says that this usher cannot reconcile.
	ErrNoGate lane.Denied = "this usher has no webhook gate, so it does not know which receiver takes which platform: " +
		"reconcile through an usher that has one"
)

// A Run is one 'usher reconcile'. Its ID is its mark, the entry of the person that began it, and when that was.
type Run struct {
	ID     string      `json:"id"`
	Began  time.Time   `json:"began,omitzero"`
	Found  lane.Counts `json:"found,omitempty"`
	Failed string      `json:"failed,omitempty"` // why it failed
}

// runID is what the ID of a run says.
type runID struct {
	mark
	action, began int64
}

func (id runID) String() string {
	return fmt.Sprintf("%d-%d-%d-%d", id.at, id.era, id.action, id.began)
}

func parseRun(text string) (id runID, err error) {
	if _, err = fmt.Sscanf(text, "%d-%d-%d-%d", &id.at, &id.era, &id.action, &id.began); err != nil || id.String() != text {
		err = ErrNoRun
	}
	return id, err
}

// BeginRun notes that a run begins, and returns it together with the number of known tenants. When BeginRun has returned,
// the billing service may be asked.
func (s *queue) BeginRun(by *Action) (r *Run, known int, err error) {
	if s.cfg.Receivers == nil {
		return nil, 0, ErrNoGate
	}
	id, err := act(s, op{numbered: true}, by, func(t *turn) (id runID, touched int, err error) {
		t.tx.Queue("tenant_count", func(row engine.Row) error { return row.Scan(&known, new(int)) })
		id.at, id.began = t.NewNumber(), t.Now
		var last mark
		queueLine(t.tx, &last)
		t.send()
		id.era = last.era
		return id, 0, nil
	})
	if by != nil {
		id.action = by.ID
	}
	return &Run{ID: id.String(), Began: clock.Moment(id.began)}, known, err
}

// checkMark returns an error if this inbox is not the one, or not as far, as when a mark was taken: then numbers say nothing.
func (t *turn) checkMark(m mark) error {
	known := false
	m.queueKnown(t.tx, &known)
	if t.send(); t.err == nil && !known {
		return ErrNoRun
	}
	return t.err
}

// endRun notes that a run has compared a whole list. settled: and that nothing differs any more, so that nothing is
// missed that came before it.
func (s *queue) endRun(run runID, settled bool) error {
	_, err := act(s, op{}, nil, func(t *turn) (struct{}, int, error) {
		if err := t.checkMark(run.mark); err != nil {
			return struct{}{}, 0, err
		}
		t.tx.Queue("reconciled", nil, t.Now)
		if settled {
			t.endMissed(clock.Moment(run.began))
		}
		return struct{}{}, 0, nil
	})
	return err
}

// decideBatch has the lane of each line of a batch decide about it, all in one transaction. A tenant that is only compared
// gets no lane.
func (s *queue) decideBatch(run runID, batch []*lane.ListLine, mode lane.ReconcileMode) ([]lane.Compared, error) {
	o := op{snapshots: true, makes: mode.Applies(), optional: !mode.Applies()}
	for _, line := range batch {
		if line.Draft.Result == "" {
			o.lanes, o.size = append(o.lanes, line.LaneName), o.size+line.Size
		}
	}
	if full := s.engine.Full(); full != nil && mode.Applies() { // the last room is for outcomes
		return nil, full
	}
	return act(s, o, nil, func(t *turn) (done []lane.Compared, touched int, err error) {
		if err := t.checkMark(run.mark); err != nil {
			return nil, 0, err
		}
		return t.decideLines(run, batch, o.lanes, mode), 0, nil
	})
}

// decideLines returns what came of each line. names are the lanes that it has locked.
func (t *turn) decideLines(run runID, batch []*lane.ListLine, names []webhookgate.LaneName, mode lane.ReconcileMode) (done []lane.Compared) {
	elsewhere := t.readElsewhere(names)
	var first []TenantRef
	applied := 0
	for _, line := range batch {
		c := line.Draft
		if c.Result == "" {
			may := mode
			if line.Contradicts { // nobody knows which line is right
				may = lane.ToCompare
			}
			l := t.Lanes[line.LaneName]
			if l == nil {
				l = t.UnknownLane(line.LaneName)
			}
			c = l.Reconcile(line, t.known[line.LaneName], run.at, may)
			if c.Result == lane.NewTenant && t.known[line.LaneName] == nil {
				c.Elsewhere = elsewhere[line.LaneName]
			}
		}
		if c.Applied {
			applied++
			t.Then(func() { t.s.cfg.Changed(c.Tenant) })
			if c.Result == lane.NewTenant {
				first = append(first, TenantRef{c.Platform, c.Tenant})
			}
		}
		if c.Err != nil {
			t.noteRoom(c.Err)
			mode = lane.ToCompare
		}
		done = append(done, c)
	}
	if applied > 0 {
		(&Action{ID: run.action}).note(t, applied)
	}
	if len(first) > 0 {
		t.Then(func() { t.s.background.Go(func() { t.s.warnIfAmbiguous(first...) }) })
	}
	return done
}

// readElsewhere returns the other platforms on which the tenants' codes are known.
func (t *turn) readElsewhere(names []webhookgate.LaneName) map[webhookgate.LaneName][]string {
	known := make(map[webhookgate.LaneName][]string)
	if len(names) == 0 {
		return known
	}
	tenants, platforms, _ := laneColumns(names)
	t.ask("elsewhere", func(r engine.Row) error {
		var name webhookgate.LaneName
		var other string
		err := r.Scan(&name.Tenant, &name.Platform, &other)
		known[name] = append(known[name], other)
		return err
	}, tenants, platforms)
	return known
}
