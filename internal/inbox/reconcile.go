package inbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// Reconcile compares what the billing service says of each tenant with what usher knows, and takes in what differs: for webhooks that were
// never sent. Which of the two is newer is decided by numbers. A run begins with a mark, one of the numbers that webhooks get, and asks the
// service after the mark is committed. Whatever comes for a lane leaves its number there (lane.note). So a lane whose last number is below
// the mark has heard nothing since the service was asked, and what the service said is at least as new.

// FromReconcile is the source of a webhook that usher made from what the billing service said.
const FromReconcile = "reconcile"

// sourceHeader tells the receiver where a webhook comes from that no sender sent. The gate never forwards a sender's header of this name.
const sourceHeader = "Usher-Source"

// Result says how what the billing service says of a tenant stands to what usher knows.
type Result string

// The results. A twin is a missing tenant whose code usher knows on another platform: the caller decides that, because it knows whether
// that one was compared, too. Likewise for an absent tenant, which the billing service did not name.
const (
	Equal     Result = "equal"
	Differs   Result = "differs"
	NewTenant Result = "new" // usher does not know the tenant, or cannot read its features
	Twin      Result = "twin"
	Changed   Result = "changed" // something came for the tenant since the run began: nobody can say which is newer
	Unlisted  Result = "unlisted"
)

// Results are all results.
var Results = []Result{Equal, Differs, NewTenant, Twin, Changed, Unlisted}

// A Run is one 'usher reconcile'.
type Run struct {
	ID       string    `json:"id"`
	Began    time.Time `json:"began"`
	AsOf     time.Time `json:"as_of,omitzero"` // how old the billing service's list is; zero: as old as the run
	Ended    time.Time `json:"ended,omitzero"`
	Complete bool      `json:"complete"`         // all tenants that the command printed were compared
	Failed   string    `json:"failed,omitempty"` // why it failed
	Summary  Summary   `json:"summary"`

	mark   int64
	asOf   int64
	action int64
	stands bool // see weigh
}

// Summary says what a run has found: how many tenants of each result.
type Summary struct {
	Equal    int `json:"equal"`
	Differs  int `json:"differs"`
	New      int `json:"new"`
	Twin     int `json:"twin"`
	Changed  int `json:"changed"`
	Unlisted int `json:"unlisted"`

	Applied    int `json:"applied"`     // how many of these were taken in
	PassedOver int `json:"passed_over"` // tenants of platforms that no receiver takes

	// Left are those that were not taken in, by their result.
	Left Left `json:"left,omitzero"`
}

// Left has the tenants that a run has left as they were.
type Left struct {
	Differs int `json:"differs"`
	New     int `json:"new"`
	Twin    int `json:"twin"`
}

// Count is how many they are.
func (l Left) Count() int { return l.Differs + l.New + l.Twin }

// ByResult returns the numbers of tenants as the run has left them: what it took in is equal.
func (s *Summary) ByResult() map[Result]int {
	return map[Result]int{Equal: s.Equal + s.Applied, Differs: s.Left.Differs, NewTenant: s.Left.New, Twin: s.Left.Twin, Changed: s.Changed, Unlisted: s.Unlisted}
}

// judged is how many of the tenants that usher knows, also those that it knows by the run, were compared.
func (s *Summary) judged() int { return s.Equal + s.Applied + s.Left.Differs }

// weighFor is how long a run counts against smaller ones.
const weighFor = 7 * 24 * time.Hour

// weigh says whether a complete run has compared clearly less than all tenants, and whether what it found counts from now on. Nobody knows
// all tenants of the billing service, and a list may leave canceled ones out. But a list of few tenants must not clear what a complete one
// has found. So a run is small if another one of the last week has compared clearly more of the tenants that usher knows; if there was none,
// the last one before. (After a week there may just be fewer tenants.) A run is partial, too, if usher knows more tenants that it did not
// compare: however often such a list is compared, nobody knows what the others have missed. former are the complete runs of that week, the
// last one and the one that counts, in their order.
func (r *Run) weigh(former []*Run) (partial, stands bool) {
	var before *Run // the one that counts
	most, last := 0, 0
	for _, f := range former {
		if f.stands {
			before = f
		}
		last = f.Summary.judged()
		if !f.Ended.Before(r.Ended.Add(-weighFor)) && !f.Ended.After(r.Ended) {
			most = max(most, last)
		}
	}
	most = cmp.Or(most, last)
	judged := r.Summary.judged()
	few := judged < r.Summary.Unlisted+r.Summary.Changed
	small := judged*10 < most*9 || most == 0 && few
	switch {
	case before == nil:
		stands = true
	case r.KnowsUpTo().Before(before.KnowsUpTo()) && !before.Began.After(r.Ended): // an older list; else the clock was set back meanwhile
	default:
		stands = !small || r.Summary.Left.Count() >= before.Summary.Left.Count()
	}
	return small || few, stands
}

// unended is how long a run may take. One that has not ended by then was killed.
const unended = 24 * time.Hour

// Killed says whether a run has not ended, and never will.
func (r *Run) Killed(now time.Time) bool { return r.Ended.IsZero() && now.Sub(r.Began) > unended }

// KnowsUpTo is the time up to which the run knows what the billing service says.
func (r *Run) KnowsUpTo() time.Time { return moment(min(r.asOf, r.Began.UnixMicro())) }

// settlesBefore is the time before which whatever got a 5xx is settled if the run finds its tenant equal, or takes it in. It is a second
// less than what the run knows, because the clocks of replicas and database differ. See also lane.miss.
func (r *Run) settlesBefore() time.Time { return r.KnowsUpTo().Add(-maxJump) }

// ErrNoRun says that a run is not stored, or has ended.
const ErrNoRun Denied = "the database does not know this reconcile any more: it was restored, a failover has lost it, or an import or a later reconcile has ended it. Start it again"

// ErrOlderList says that a run may only compare, because a former one knows more.
const ErrOlderList Denied = "another reconcile has compared all tenants with a newer list: what this one says may be older, so nothing was taken in"

// ErrFuture says that a list claims to be from the future.
const ErrFuture Denied = "--as-of is a time in the future, by the inbox's clock: say when the list was made"

// ErrNoGate says that this usher cannot reconcile.
const ErrNoGate Denied = "this usher has no webhook gate, so it does not know which receiver takes which platform: reconcile through an usher that has one"

func scanRun(r engine.Row) (*Run, error) {
	run := new(Run)
	var began, ended, complete, stands int64
	var summary string
	err := r.Scan(&run.ID, &run.mark, &began, &run.asOf, &run.action, &ended, &complete, &stands, &run.Failed, &summary)
	run.Began, run.Complete, run.stands = moment(began), complete != 0, stands != 0
	if run.asOf < never {
		run.AsOf = moment(run.asOf)
	}
	if ended > 0 {
		run.Ended = moment(ended)
	}
	_ = json.Unmarshal([]byte(summary), &run.Summary) // empty while it runs; a damaged one counts as zeros
	return run, err
}

// BeginRun stores that a run begins, and returns it together with the number of known tenants. When BeginRun has returned, the billing
// service may be asked. asOf is zero, or how old the list will be. It ends all runs that have not ended: what they have read is older.
func (s *Inbox) BeginRun(asOf time.Time, by *Action) (r *Run, known int, err error) {
	if s.cfg.Receivers == nil {
		return nil, 0, ErrNoGate
	}
	id := make([]byte, 16)
	rand.Read(id)
	// Before the transaction, because others would wait until all lanes are read. A number that a lane gets meanwhile is below the mark: it comes
	// from the same sequence, and earlier.
	highest := int64(0)
	err = s.read(s.run, func(tx engine.Tx) error {
		tx.Queue("highest_last", func(row engine.Row) error { return row.Scan(&highest) })
		tx.Queue("tenant_count", func(row engine.Row) error { return row.Scan(&known, new(int)) })
		return tx.Send()
	})
	if err != nil {
		return nil, 0, err
	}
	r, err = act(s, work{numbers: 1}, func(t *sqlTurn) (*Run, int, error) {
		r := &Run{ID: hex.EncodeToString(id), AsOf: asOf, Began: t.time(), mark: t.number(), asOf: never}
		if !asOf.IsZero() {
			r.asOf = asOf.UnixMicro()
		}
		if asOf.After(t.time().Add(time.Minute)) {
			return nil, 0, ErrFuture
		}
		t.tx.Queue("action_add", func(row engine.Row) error { return row.Scan(&r.action) }, t.now, withoutZero(by.Who), by.What, withoutZero(by.About), int64(0))
		t.send()
		if r.mark <= highest { // as raiseNumbers: with a lower mark all lanes would have changed since
			t.tx.Queue("number_raise", nil, highest)
			t.tx.Queue("take_numbers", func(row engine.Row) error { return row.Scan(&r.mark, new(int64)) }, int64(1))
			t.send()
		}
		t.statements = append(t.statements, func(tx engine.Tx) {
			tx.Queue("runs_end", nil, t.now, "a later reconcile has begun")
			tx.Queue("run_add", nil, r.ID, r.mark, t.now, r.asOf, r.action)
		})
		return r, 0, nil
	})
	return r, known, err
}

// EndRun stores how a run has ended. partial: it has compared clearly less than all tenants, so it ends no outage, and what a larger one found
// still counts.
func (s *Inbox) EndRun(id string, complete bool, failed string, summary Summary) (partial bool, err error) {
	text, _ := json.Marshal(summary) // numbers
	return act(s, work{run: id}, func(t *sqlTurn) (partial bool, touched int, err error) {
		r := t.runs[id]
		if r == nil || !r.Ended.IsZero() {
			return false, 0, ErrNoRun
		}
		ended := *r
		ended.Ended, ended.Complete, ended.Summary = t.time(), complete, summary
		if complete {
			var former []*Run
			t.tx.Queue("runs_complete", func(row engine.Row) error {
				r, err := scanRun(row)
				former = append(former, r)
				return err
			}, t.now-micros(weighFor))
			t.send()
			partial, ended.stands = ended.weigh(former)
		}
		t.statements = append(t.statements, func(tx engine.Tx) {
			tx.Queue("run_end", nil, id, t.now, boolNumber(complete), withoutZero(failed), string(text), boolNumber(ended.stands))
			if complete && !partial && summary.Left.Count() == 0 {
				endOutages(tx, r.KnowsUpTo().UnixMicro())
			}
		})
		return partial, 0, nil
	})
}

// LastRuns returns the last run, and the one that counts: the last that was complete, unless it was partial. Nil: there is none.
func (s *Inbox) LastRuns(ctx context.Context) (last, complete *Run, err error) {
	err = s.read(ctx, func(tx engine.Tx) error { queueLastRuns(tx, &last, &complete); return tx.Send() })
	return last, complete, err
}

func queueLastRuns(tx engine.Tx, last, complete **Run) {
	tx.Queue("runs_last", func(row engine.Row) error {
		r, err := scanRun(row)
		if *last = r; r.stands {
			*complete = r
		}
		return err
	})
}

// Compared is what came of one line: what the billing service says of one tenant.
type Compared struct {
	Platform string   `json:"platform"`
	Tenant   string   `json:"tenant"`
	State    string   `json:"state,omitempty"`  // a digest of the features; two lines with the same one say the same
	Fault    string   `json:"fault,omitempty"`  // why it cannot be compared
	Result   Result   `json:"result,omitempty"` // empty with a fault, or if it is passed over
	Changes  []string `json:"changes,omitempty"`
	Applied  bool     `json:"applied,omitempty"`
	LeftOut  string   `json:"left_out,omitempty"` // why it may not be taken in
	Err      error    `json:"-"`                  // why it was not taken in

	PassedOver bool     `json:"passed_over,omitempty"` // no receiver takes its platform
	Elsewhere  []string `json:"elsewhere,omitempty"`   // of a missing tenant that usher does not know at all: the platforms on which it knows this code
	Settles    bool     `json:"settles,omitempty"`     // it is equal, and something that came for it before waits for somebody

	first bool // it was taken in as the first of its tenant
}

// An offer is a line: a webhook that usher makes from it, in case that it has to be taken in.
type offer struct {
	incoming
	says  snapshot.Snapshot
	fault string
}

// leave says what may be done with a line.
type leave int

const (
	toCompare leave = iota
	toApply
	toKeep
)

// readOffer reads a line: a webhook's payload, or a whole webhook.
func (s *Inbox) readOffer(line []byte) *offer {
	body := line
	var members map[string]json.RawMessage // exact names; if there is one twice, ReadSnapshot finds it
	if json.Unmarshal(line, &members) == nil {
		switch payload, whole := members["payload"]; {
		case !whole:
			body = fmt.Appendf(nil, `{"type":%q,"payload":%s}`, content.TenantProvisioningChange, line)
		case members["type"] == nil:
			if _, fault := content.Parse(line); fault != nil { // such as a second payload
				return &offer{fault: fault.String()}
			}
			body = fmt.Appendf(nil, `{"type":%q,"payload":%s}`, content.TenantProvisioningChange, payload)
		}
	}
	if max := s.cfg.MaxBody; max > 0 && int64(len(body)) > max {
		return &offer{fault: fmt.Sprintf("is larger than %d bytes (USHER_WEBHOOK_MAX_BODY)", max)}
	}
	header := http.Header{"Content-Type": {"application/json"}, sourceHeader: {FromReconcile}}
	w, faults := webhookgate.ReadSnapshot(s.cfg.Rules, header, body, s.cfg.Receivers)
	if len(faults) == 0 && w.State.Features == nil {
		faults = []content.Fault{{Path: "/payload/change/features", Message: "cannot be read"}}
	}
	if len(faults) > 0 {
		fault := content.Summary(faults)
		if rest, ok := strings.CutPrefix(fault, "the body "); ok {
			fault = "it " + rest
		}
		return &offer{fault: fault}
	}
	in := arriving(w)
	in.Source, in.unhurried = FromReconcile, true
	says, _ := snapshot.Decode(w.State.Features) // they have just been encoded
	return &offer{incoming: in, says: says}
}

// compared returns what is to be said of an offer before it is judged.
func (o *offer) compared() Compared {
	c := Compared{Platform: o.Platform, Tenant: o.Tenant}
	features := slices.SortedFunc(slices.Values(o.says.Features), func(a, b snapshot.Feature) int { return cmp.Compare(a.Code, b.Code) })
	hash := sha256.New()
	for _, f := range features {
		fmt.Fprintf(hash, "%q %d %q\n", f.Code, f.Limit, f.Value)
	}
	c.State = hex.EncodeToString(hash.Sum(nil)[:16])
	return c
}

// knowledge is what usher knows of a tenant.
type knowledge struct {
	last, lastAt int64
	snapshot     *snapshot.Stored // nil: none
}

// judge sets the result, and the changes in words.
func (c *Compared) judge(r *Run, says *snapshot.Snapshot, k knowledge) {
	var known snapshot.Snapshot
	if k.snapshot != nil {
		known, _ = snapshot.Decode(k.snapshot.Features) // what cannot be read is unknown
	}
	changes := snapshot.Diff(snapshot.Snapshot{Known: known.Known, Features: known.Features}, snapshot.Snapshot{Known: true, Features: says.Features})
	switch {
	case k.last > r.mark || k.lastAt > r.asOf:
		c.Result = Changed
	case !known.Known:
		c.Result, c.Changes = NewTenant, changes
	case len(changes) > 0:
		c.Result, c.Changes = Differs, changes
	default:
		c.Result = Equal
	}
}

// Compare compares lines with what usher knows, and changes nothing. With settle, what is invalid or is missed of tenants that are equal is settled.
func (s *Inbox) Compare(ctx context.Context, id string, lines [][]byte, settle bool) ([]Compared, error) {
	offers, all := s.readOffers(lines)
	tenants, platforms := []string{}, []string{}
	index := make(map[webhookgate.Lane][]int) // a tenant may be in several lines
	for n, o := range offers {
		if all[n].judgeable() {
			if index[o.lane] == nil {
				tenants, platforms = append(tenants, o.Tenant), append(platforms, o.Platform)
			}
			index[o.lane] = append(index[o.lane], n)
		}
	}
	var run *Run
	inMemory := make(map[webhookgate.Lane]webhookgate.MissedSet) // before the database is read, because it moves there
	for name := range index {
		inMemory[name] = s.cfg.Missed.Of(name)
	}
	known := make(map[webhookgate.Lane]*knowledge)
	err := s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("run", func(r engine.Row) (err error) { run, err = scanRun(r); return err }, id)
		tx.Queue("compare", func(r engine.Row) error {
			var name webhookgate.Lane
			var k knowledge
			var invalid, exists int64
			var platform, features string
			if err := r.Scan(&name.Tenant, &name.Platform, &k.last, &k.lastAt, &invalid, &exists, &platform, &features); err != nil {
				return err
			}
			if known[name] == nil {
				known[name] = &k
			}
			switch {
			case exists != 0 && platform == name.Platform:
				known[name].snapshot = &snapshot.Stored{Features: []byte(features)}
			case exists != 0:
				for _, n := range index[name] {
					all[n].Elsewhere = append(all[n].Elsewhere, platform)
				}
			}
			for _, n := range index[name] {
				all[n].Settles = invalid > 0
			}
			return nil
		}, tenants, platforms)
		return tx.Send()
	})
	if err != nil {
		return nil, err
	}
	if run == nil || !run.Ended.IsZero() {
		return nil, ErrNoRun
	}
	var settles [][]byte
	for name, lines2 := range index {
		for _, n := range lines2 {
			c := &all[n]
			c.judge(run, &offers[n].says, *known[name])
			c.Settles = (c.Settles || inMemory[name].Before(run.settlesBefore())) && c.Result == Equal
			if c.Result != NewTenant || known[name].snapshot != nil {
				c.Elsewhere = nil
			}
			if c.Settles && settle {
				settles = append(settles, lines[n])
			}
		}
	}
	if len(settles) > 0 {
		_, err = s.reconcile(run, settles, toCompare)
	}
	return all, err
}

// Apply takes in what differs from what usher knows, or is missing there. With keep it is not delivered. If one line cannot be taken in,
// for example because the inbox is full, those before it are in, and those after it are not; its Err says why.
func (s *Inbox) Apply(ctx context.Context, id string, lines [][]byte, keep bool) ([]Compared, error) {
	if full := s.engine.Full(); full != nil { // the last room is for outcomes
		return nil, full
	}
	var run *Run
	var known int64
	err := s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("run", func(r engine.Row) (err error) { run, err = scanRun(r); return err }, id)
		tx.Queue("runs_know", func(r engine.Row) error { return r.Scan(&known) }, id) // no other run ends before this one: its begin would end this one
		return tx.Send()
	})
	switch {
	case err != nil:
		return nil, err
	case run == nil:
		return nil, ErrNoRun
	case known > run.KnowsUpTo().UnixMicro():
		return nil, ErrOlderList
	case keep:
		return s.reconcile(run, lines, toKeep)
	}
	return s.reconcile(run, lines, toApply)
}

// reconcile has each line's lane decide about it, all in one transaction: that also finds out whether the run is still stored.
func (s *Inbox) reconcile(run *Run, lines [][]byte, leave leave) ([]Compared, error) {
	offers, all := s.readOffers(lines)
	w := work{run: run.ID, by: &Action{ID: run.action}}
	for n, o := range offers {
		if all[n].judgeable() {
			w.states, w.numbers, w.bytes = append(w.states, o.lane), w.numbers+1, w.bytes+o.size
		}
	}
	w.lanes = w.states
	if leave == toCompare {
		w.lanes, w.known, w.numbers, w.by = nil, w.states, 0, nil
	}
	done, err := act(s, w, func(t *sqlTurn) ([]Compared, int, error) {
		stored, applied := t.runs[run.ID], 0
		if stored == nil || !stored.Ended.IsZero() {
			return nil, 0, ErrNoRun
		}
		done := slices.Clone(all)
		for n, o := range offers {
			l := t.lanes[o.lane]
			if !all[n].judgeable() || l == nil {
				continue
			}
			offer := *o
			done[n] = l.reconcile(&offer, stored, leave)
			if done[n].Applied {
				applied++
			}
			if done[n].Err != nil {
				break
			}
		}
		return done, applied, nil
	})
	var first []TenantRef
	for _, c := range done {
		if c.Applied {
			s.cfg.Changed(c.Tenant)
		}
		if c.Applied || c.Result == Equal {
			s.cfg.Missed.SettleBefore(webhookgate.Lane{Platform: c.Platform, Tenant: c.Tenant}, run.settlesBefore())
		}
		if c.first {
			first = append(first, TenantRef{c.Platform, c.Tenant})
		}
	}
	if len(first) > 0 {
		s.background.Go(func() { s.warnIfAmbiguous(first...) })
	}
	return done, err
}

// readOffers reads lines, and returns what is to be said of them before they are judged.
func (s *Inbox) readOffers(lines [][]byte) (offers []*offer, all []Compared) {
	for _, line := range lines {
		o := s.readOffer(line)
		c := Compared{Fault: o.fault}
		if o.fault == "" {
			c = o.compared()
			c.PassedOver = o.receiver == nil && !s.cfg.StoreUnclaimed
		}
		offers, all = append(offers, o), append(all, c)
	}
	return offers, all
}

// judgeable says whether a line can be compared.
func (c *Compared) judgeable() bool { return c.Fault == "" && !c.PassedOver }

// A TenantRef names a tenant.
type TenantRef struct {
	Platform string `json:"platform"`
	Tenant   string `json:"tenant"`
}

// KnownBefore returns tenants whose last snapshot is older than a run, in the order of their codes. after is the last one of the former
// call.
func (s *Inbox) KnownBefore(ctx context.Context, id string, after TenantRef, most int) (all []TenantRef, err error) {
	var run *Run
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("run", func(r engine.Row) (err error) { run, err = scanRun(r); return err }, id)
		if err := tx.Send(); err != nil || run == nil {
			return err
		}
		tx.Queue("known_before", func(r engine.Row) error {
			var t TenantRef
			err := r.Scan(&t.Tenant, &t.Platform)
			all = append(all, t)
			return err
		}, run.mark, run.asOf, after.Tenant, after.Platform, int64(most))
		return tx.Send()
	})
	if err == nil && run == nil {
		err = ErrNoRun
	}
	return all, err
}
