package inbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"

	"usher/internal/clock"
	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/snapshot"
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
	// ErrOlderList says that a run may only compare, because a former one knows more.
	ErrOlderList lane.Denied = "another reconcile has compared a newer list: " +
		"what this one says may be older, so nothing was taken in"
	// ErrFuture says that a list claims to be from the future.
	ErrFuture lane.Denied = "--as-of is a time in the future, by the inbox's clock: say when the list was made"
	// ErrNoGate says that this usher cannot reconcile.
	ErrNoGate lane.Denied = "this usher has no webhook gate, so it does not know which receiver takes which platform: " +
		"reconcile through an usher that has one"
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
	id := make([]byte, 16)
	rand.Read(id)
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
	r, err = act(s, work{numbers: 1}, func(t *sqlTurn) (*lane.Run, int, error) {
		now := t.Time()
		r := &lane.Run{ID: hex.EncodeToString(id), Began: now, Alive: now, Mark: t.NextNumber()}
		asOfMicros := clock.Never
		if !asOf.IsZero() {
			asOfMicros = asOf.UnixMicro()
			r.AsOf = clock.Moment(asOfMicros)
		}
		if asOf.After(now.Add(time.Minute)) {
			return nil, 0, ErrFuture
		}
		action := func(row engine.Row) error { return row.Scan(&r.Action) }
		t.tx.Queue("action_add", action, t.Now, withoutZero(by.Who), by.What, withoutZero(by.About), int64(0))
		t.send()
		if r.Mark <= highest { // as raiseNumbers: with a lower mark all lanes would have changed since
			t.tx.Queue("number_raise", nil, highest)
			t.tx.Queue("take_numbers", func(row engine.Row) error { return row.Scan(&r.Mark, new(int64)) }, int64(1))
			t.send()
		}
		t.statements = append(t.statements, func(tx engine.Tx) {
			tx.Queue("runs_end", nil, t.Now, "a later reconcile has begun")
			tx.Queue("run_add", nil, r.ID, r.Mark, t.Now, asOfMicros, r.Action)
		})
		return r, 0, nil
	})
	return r, known, err
}

// KeepRun says that the request that began a run is still there.
func (s *Inbox) KeepRun(id string) error {
	_, err := s.saveRun(id, false, func(*lane.Run) {})
	return err
}

// AbortRun ends a run that has failed. What it has found and taken in stays.
func (s *Inbox) AbortRun(id, why string) error {
	_, err := s.saveRun(id, true, func(r *lane.Run) { r.Failed = why })
	return err
}

// saveRun stores a change of a run, and returns the run. With end the run ends: then it is known what it
// leaves.
func (s *Inbox) saveRun(id string, end bool, change func(*lane.Run)) (*lane.Run, error) {
	return act(s, work{run: id}, func(t *sqlTurn) (*lane.Run, int, error) {
		stored, err := t.runOf(id)
		if err != nil {
			return nil, 0, err
		}
		r, ended := *stored, int64(0)
		change(&r)
		if end {
			t.byPerson = true // the figures show it at once
			r.Ended, ended = t.Time(), t.Now
			sum := &r.Summary
			left := lane.Findings{Differs: sum.Differs, New: sum.New, Twin: sum.Twin, Unlisted: sum.Unlisted}
			t.tx.Queue("findings_over", func(row engine.Row) error {
				var result string
				var n int
				err := row.Scan(&result, &n)
				left.Add(lane.Result(result), -n)
				return err
			}, r.Mark)
			t.send()
			sum.Left = left
		}
		summary, _ := json.Marshal(r.Summary) // numbers
		t.statements = append(t.statements, func(tx engine.Tx) {
			tx.Queue("run_save", nil, id, t.Now, ended, boolNumber(r.Complete), withoutZero(r.Failed), string(summary))
			if end && r.Complete && r.Summary.Left.Count() == 0 {
				endOutages(tx, r.KnowsUpTo().UnixMicro())
			}
		})
		return &r, 0, nil
	})
}

// LastRuns returns the last run, and the last one that has compared a whole list. Nil: there is none.
func (s *Inbox) LastRuns(ctx context.Context) (last, complete *lane.Run, err error) {
	err = s.read(ctx, func(tx engine.Tx) error { queueLastRuns(tx, &last, &complete); return tx.Send() })
	return last, complete, err
}

func queueLastRuns(tx engine.Tx, last, complete **lane.Run) {
	tx.Queue("runs_last", func(row engine.Row) error {
		r, err := scanRun(row)
		if *last = r; r.Complete && !r.Ended.IsZero() {
			*complete = r
		}
		return err
	})
}

// A Pass is one over the lines of a list. The first one of a run compares them. A second one takes in those
// lines that the person has chosen, and ends the run.
type Pass struct {
	Run     string
	Apply   string // what the second one does with the lines: "deliver", "store" or "none"; empty: it is the first one
	Failed  string // why the list cannot be trusted: then nothing is changed, and the run fails; empty: it can be
	Partial bool   // the list is not meant to be whole
	Last    bool   // there will be no second one: the run ends with the comparison
}

func (p *Pass) mode() lane.ReconcileMode {
	switch {
	case p.Failed != "":
		return lane.ToSee
	case p.Apply == "deliver":
		return lane.ToApply
	case p.Apply == "store":
		return lane.ToStore
	case p.Apply == "":
		return lane.ToCompare
	}
	return lane.ToSee
}

// Tell gets what came of some lines, and how many tenants the pass has seen so far. The comparison tells only
// of what is not equal, the second pass of all.
type Tell func(some []lane.Compared, seen int) error

const (
	// This many lines, or about so many bytes, go into one transaction: webhooks wait that long.
	batchLines = 50
	batchBytes = 1 << 20
	// unlistedPage is how many tenants are read at once.
	unlistedPage = 500
)

// A passing is a pass that is under way.
type passing struct {
	s *Inbox
	Pass
	list
	tell  Tell
	batch []*lane.ListLine
	size  int
}

// Reconcile makes one pass over a list, line by line, and returns the run as it is then. Empty lines only
// count.
func (s *Inbox) Reconcile(
	ctx context.Context, pass Pass, lines iter.Seq2[[]byte, error], tell Tell,
) (*lane.Run, error) {
	p := &passing{s: s, Pass: pass, list: list{seen: make(map[[16]byte][8]byte)}, tell: tell}
	number := 0
	for line, err := range lines {
		if number++; err == nil {
			err = p.add(number, line)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := p.flush(); err != nil {
		return nil, err
	}
	if pass.Apply != "" {
		return p.endApplying()
	}
	return p.endComparing(ctx)
}

// add adds a line to the batch, which has each tenant once.
func (p *passing) add(number int, line []byte) error {
	if len(line) == 0 {
		return nil
	}
	o := p.s.readLine(line)
	if o.Draft.Line = number; p.enter(&o.Draft) {
		return nil
	}
	if full := len(p.batch) >= batchLines || p.size >= batchBytes; full || o.Draft.Contradicts {
		if err := p.flush(); err != nil {
			return err
		}
	}
	p.batch, p.size = append(p.batch, o), p.size+len(line)
	return nil
}

// flush has the batch decided about, counts, and tells.
func (p *passing) flush() error {
	all, err := p.s.reconcile(p.Run, p.batch, p.mode())
	if err != nil {
		return err
	}
	p.batch, p.size = nil, 0
	var some []lane.Compared
	for n := range all {
		if c := &all[n]; p.Apply != "" || p.count(c) {
			some = append(some, *c)
		}
	}
	if p.Apply != "" && p.countApplied(all) {
		p.Apply = "none" // the others stay as they are
	}
	return p.tell(some, len(p.seen))
}

// endComparing finds what only the whole list says, and stores what the run has found. A list that failed
// says nothing of the tenants that it does not have.
func (p *passing) endComparing(ctx context.Context) (*lane.Run, error) {
	for some := range slices.Chunk(p.twins(), batchLines) {
		if err := p.found(some); err != nil {
			return nil, err
		}
	}
	failed := cmp.Or(p.Failed, p.failure())
	if failed == "" && !p.Partial {
		if err := p.findUnlisted(ctx); err != nil {
			return nil, err
		}
	}
	return p.s.saveRun(p.Run, p.Last || p.Failed != "", func(r *lane.Run) {
		r.Summary, r.Failed, r.Complete = p.sum, failed, failed == "" && !p.Partial
	})
}

// endApplying ends the run.
func (p *passing) endApplying() (*lane.Run, error) {
	failed := p.Failed
	switch {
	case failed != "":
	case p.unstored != "":
		failed = "not all were taken in: " + p.unstored
	case p.faults > 0:
		failed = lineCount(p.faults) + " cannot be taken in"
	}
	return p.s.saveRun(p.Run, true, func(r *lane.Run) {
		r.Summary.Applied, r.Failed = p.sum.Applied, cmp.Or(failed, r.Failed)
	})
}

// found stores findings, and tells of them.
func (p *passing) found(some []lane.Compared) error {
	if p.Failed == "" {
		_, err := act(p.s, work{run: p.Run}, func(t *sqlTurn) (nothing, int, error) {
			r, err := t.runOf(p.Run)
			if err == nil {
				t.saveFindings(r, some)
			}
			return nothing{}, 0, err
		})
		if err != nil {
			return err
		}
	}
	return p.tell(some, len(p.seen))
}

// findUnlisted finds the tenants that may use something, and that the list does not have.
func (p *passing) findUnlisted(ctx context.Context) error {
	for after := new(lane.Compared); after != nil; {
		page, err := p.s.knownBefore(ctx, p.Run, after, unlistedPage)
		if err != nil {
			return err
		}
		if after = nil; len(page) == unlistedPage {
			after = &page[len(page)-1]
		}
		var some []lane.Compared
		for _, c := range page {
			if c.Result == lane.Unlisted && !p.has(c.Platform, c.Tenant) {
				p.sum.Add(lane.Unlisted)
				some = append(some, c)
			}
		}
		if len(some) > 0 {
			if err := p.found(some); err != nil {
				return err
			}
		}
	}
	return nil
}

// knownBefore returns tenants whose last snapshot is older than a run, in the order of their codes. Those
// that may use something are unlisted, if the list does not have them. after is the last one of the former
// call.
func (s *Inbox) knownBefore(
	ctx context.Context, run string, after *lane.Compared, most int,
) (all []lane.Compared, err error) {
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("known_before", func(r engine.Row) error {
			var c lane.Compared
			var features string
			var number, dismissed int64
			err := r.Scan(&c.Tenant, &c.Platform, &number, &features, &c.Beside.Found, &dismissed)
			if may, _ := snapshot.Decode([]byte(features)); len(may.Features) > 0 {
				c.Result, c.Beside.Dismissed = lane.Unlisted, dismissed > 0
				c.Identify(number)
			}
			all = append(all, c)
			return err
		}, run, after.Tenant, after.Platform, int64(most))
		return tx.Send()
	})
	return all, err
}

// reconcile has the lane of each line of a batch decide about it, all in one transaction, which also finds
// out whether the run is still under way. A tenant that is only compared gets no lane.
func (s *Inbox) reconcile(id string, batch []*lane.ListLine, mode lane.ReconcileMode) ([]lane.Compared, error) {
	w := work{run: id}
	for _, o := range batch {
		if o.Draft.CanBeJudged() {
			w.snapshots, w.bytes = append(w.snapshots, o.LaneName), w.bytes+o.Size
		}
	}
	w.known = w.snapshots
	applies := mode == lane.ToApply || mode == lane.ToStore
	if applies {
		if full := s.engine.Full(); full != nil { // the last room is for outcomes
			return nil, full
		}
		w.lanes, w.known, w.numbers = w.snapshots, nil, int64(len(w.snapshots))
	}
	done, err := act(s, w, func(t *sqlTurn) (done []lane.Compared, touched int, err error) {
		run, err := t.runOf(id)
		if err == nil && applies {
			err = t.mayApply(run)
		}
		if err != nil {
			return nil, 0, err
		}
		done, applied := t.reconcile(run, batch, w.snapshots, mode)
		if applies {
			(&Action{ID: run.Action}).queue(t.tx, t.Now, applied)
		}
		if mode == lane.ToCompare {
			mayBeTwin := func(c lane.Compared) bool { return len(c.Elsewhere) > 0 }
			t.saveFindings(run, slices.DeleteFunc(slices.Clone(done), mayBeTwin))
		}
		return done, 0, nil
	})
	var first []TenantRef
	for _, c := range done {
		if c.Applied {
			s.cfg.Changed(c.Tenant)
		}
		if c.First {
			first = append(first, TenantRef{c.Platform, c.Tenant})
		}
	}
	if len(first) > 0 {
		s.background.Go(func() { s.warnIfAmbiguous(first...) })
	}
	return done, err
}

// reconcile returns what came of each line, and how many were taken in. After one that cannot be taken in,
// for example because the inbox is full, the others stay as they are.
func (t *sqlTurn) reconcile(
	run *lane.Run, batch []*lane.ListLine, tenants []webhookgate.LaneName, mode lane.ReconcileMode,
) (done []lane.Compared, applied int) {
	known := t.readBeside(tenants)
	for _, o := range batch {
		if !o.Draft.CanBeJudged() {
			done = append(done, o.Draft)
			continue
		}
		line := *o
		line.Draft.Beside = known[o.LaneName]
		l := t.Lanes[o.LaneName]
		if l == nil { // usher does not know the tenant
			l = t.UnknownLane(o.LaneName)
		}
		may := mode
		if o.Draft.Contradicts { // nobody knows which line is right
			may = lane.ToSee
		}
		c := l.Reconcile(&line, run, may)
		if done = append(done, c); c.Err != nil {
			mode = lane.ToSee
		}
		if c.Applied {
			applied++
		}
		if c.Applied || c.Result == lane.Equal && may != lane.ToSee {
			// Before the next transaction, which moves what was missed from memory into lanes.
			t.Then(func() { t.s.settleInMemory(o.LaneName, run) })
		}
	}
	return done, applied
}

// mayApply says why nothing may be taken in by a run.
func (t *sqlTurn) mayApply(r *lane.Run) error {
	var known int64 // up to when a former run knows what the billing service says
	t.tx.Queue("runs_know", func(row engine.Row) error { return row.Scan(&known) }, r.ID)
	t.send()
	switch {
	case r.Failed != "":
		return lane.Denied(r.Failed)
	case known > r.KnowsUpTo().UnixMicro():
		return ErrOlderList
	}
	return nil
}

// readBeside reads what is known of tenants beside their lanes and snapshots.
func (t *sqlTurn) readBeside(names []webhookgate.LaneName) map[webhookgate.LaneName]lane.Beside {
	known := make(map[webhookgate.LaneName]lane.Beside)
	tenants, platforms, _ := laneColumns(names)
	t.tx.Queue("beside", func(r engine.Row) error {
		var name webhookgate.LaneName
		var dismissed, erased, others int64
		var b lane.Beside
		var other string
		err := r.Scan(&name.Tenant, &name.Platform, &b.Found, &dismissed, &erased, &others, &other)
		b.Dismissed, b.Platforms = dismissed > 0, known[name].Platforms
		if b.Erased = momentOrZero(erased); others > 0 {
			b.Platforms = append(b.Platforms, other)
		}
		known[name] = b
		return err
	}, tenants, platforms)
	t.send()
	return known
}

// MaxLine is the length of the longest line.
func (s *Inbox) MaxLine() int { return int(cmp.Or(s.cfg.MaxBody, 16<<20)) }

// readLine reads a line: a webhook's payload, or a whole webhook.
func (s *Inbox) readLine(line []byte) *lane.ListLine {
	faulty := func(fault string) *lane.ListLine { return &lane.ListLine{Draft: lane.Compared{Fault: fault}} }
	body, fault := webhookOf(line)
	if fault != "" {
		return faulty(fault)
	}
	if longest := s.MaxLine(); len(body) > longest {
		return faulty(fmt.Sprintf("is larger than %d bytes (USHER_WEBHOOK_MAX_BODY)", longest))
	}
	header := http.Header{"Content-Type": {"application/json"}, sourceHeader: {FromReconcile}}
	w, faults := webhookgate.ReadSnapshot(s.cfg.Content, header, body, s.cfg.Receivers)
	if len(faults) == 0 && w.State.Features == nil {
		faults = []content.Fault{{Path: "/payload/change/features", Message: "cannot be read"}}
	}
	if len(faults) > 0 {
		fault := content.Summary(faults)
		if rest, ok := strings.CutPrefix(fault, "the body "); ok {
			fault = "it " + rest
		}
		return faulty(fault)
	}
	o := &lane.ListLine{Incoming: arriving(w)}
	o.Source, o.Later = FromReconcile, true
	o.Says, _ = snapshot.Decode(w.State.Features) // they have just been encoded
	passedOver := o.To == nil && !s.cfg.StoreUnclaimed
	o.Draft = lane.Compared{
		Platform:   o.Platform,
		Tenant:     o.Tenant,
		PassedOver: passedOver,
		Says:       lane.FeaturesDigest(o.Says),
	}
	return o
}

// webhookOf returns the webhook that a line is, or is the payload of.
func webhookOf(line []byte) (body []byte, fault string) {
	var members map[string]json.RawMessage // exact names; if there is one twice, ReadSnapshot finds it
	if json.Unmarshal(line, &members) != nil {
		return line, ""
	}
	payload, whole := members["payload"]
	switch {
	case !whole:
		payload = line
	case members["type"] != nil:
		return line, ""
	default:
		if _, fault := content.Parse(line); fault != nil { // such as a second payload
			return nil, fault.String()
		}
	}
	return fmt.Appendf(nil, `{"type":%q,"payload":%s}`, content.TenantProvisioningChange, payload), ""
}
