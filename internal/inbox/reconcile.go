package inbox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
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
//
// What a run finds of a tenant is stored as a finding of that tenant: see finding.go.

// FromReconcile is the source of a webhook that usher made from what the billing service said.
const FromReconcile = "reconcile"

// sourceHeader tells the receiver where a webhook comes from that no sender sent. The gate never forwards a sender's header of this name.
const sourceHeader = "Usher-Source"

// Result says how what the billing service says of a tenant stands to what usher knows.
type Result string

// The results.
const (
	Equal     Result = "equal"
	Differs   Result = "differs"
	NewTenant Result = "new"      // usher does not know the tenant, or cannot read its features
	Twin      Result = "twin"     // the same, but usher knows this code on another platform, and the list does not have that one
	Changed   Result = "changed"  // something came for the tenant since the run began: nobody can say which is newer
	Unlisted  Result = "unlisted" // usher says that the tenant may use something, and the list does not have it
)

// A Run is one 'usher reconcile'.
type Run struct {
	ID       string    `json:"id"`
	Began    time.Time `json:"began"`
	AsOf     time.Time `json:"as_of,omitzero"` // how old the billing service's list is; zero: as old as the run
	Ended    time.Time `json:"ended,omitzero"`
	Complete bool      `json:"complete"`         // the whole list was compared
	Failed   string    `json:"failed,omitempty"` // why it failed
	Summary  Summary   `json:"summary"`
	Alive    time.Time `json:"-"` // when the request that began it was last there

	mark   int64
	asOf   int64
	action int64
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

	// Left are the findings that were still so at the end, and that nobody had dismissed.
	Left Findings `json:"left,omitzero"`
}

// count counts tenants of a result.
func (s *Summary) count(result Result, n int) {
	*map[Result]*int{Equal: &s.Equal, Differs: &s.Differs, NewTenant: &s.New, Twin: &s.Twin, Changed: &s.Changed, Unlisted: &s.Unlisted}[result] += n
}

// compared is how many tenants of the list could be judged.
func (s *Summary) compared() int { return s.Equal + s.Differs + s.New + s.Twin }

const (
	// RunBeat is how often the request that began a run says that it is still there.
	RunBeat = 10 * time.Second
	// runSilence is how long it may say nothing. Then the run has ended.
	runSilence = time.Minute
)

// Killed says whether a run has not ended, and never will.
func (r *Run) Killed(now time.Time) bool { return r.Ended.IsZero() && now.Sub(r.Alive) > runSilence }

// KnowsUpTo is the time up to which the run knows what the billing service says.
func (r *Run) KnowsUpTo() time.Time { return moment(min(r.asOf, r.Began.UnixMicro())) }

// settlesBefore is the time before which whatever got a 5xx is settled if the run finds its tenant equal, or takes it in. It is a second
// less than what the run knows, because the clocks of replicas and database differ. See also lane.miss.
func (r *Run) settlesBefore() time.Time { return r.KnowsUpTo().Add(-maxJump) }

const (
	// ErrNoRun says that a run is not stored, or has ended.
	ErrNoRun Denied = "the database does not know this reconcile any more: it was restored, a failover has lost it, or an import or a later reconcile has ended it. Start it again"
	// ErrOlderList says that a run may only compare, because a former one knows more.
	ErrOlderList Denied = "another reconcile has compared a newer list: what this one says may be older, so nothing was taken in"
	// ErrFuture says that a list claims to be from the future.
	ErrFuture Denied = "--as-of is a time in the future, by the inbox's clock: say when the list was made"
	// ErrNoGate says that this usher cannot reconcile.
	ErrNoGate Denied = "this usher has no webhook gate, so it does not know which receiver takes which platform: reconcile through an usher that has one"
)

func scanRun(r engine.Row) (*Run, error) {
	run := new(Run)
	var began, alive, ended, complete int64
	var summary string
	err := r.Scan(&run.ID, &run.mark, &began, &run.asOf, &run.action, &alive, &ended, &complete, &run.Failed, &summary)
	run.Began, run.Alive, run.Complete = moment(began), moment(alive), complete != 0
	if run.asOf < never {
		run.AsOf = moment(run.asOf)
	}
	if ended > 0 {
		run.Ended = moment(ended)
	}
	_ = json.Unmarshal([]byte(summary), &run.Summary) // empty before it has compared; a damaged one counts as zeros
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
		r := &Run{ID: hex.EncodeToString(id), AsOf: asOf, Began: t.time(), mark: t.number(), asOf: never, Alive: t.time()}
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

// KeepRun says that the request that began a run is still there.
func (s *Inbox) KeepRun(id string) error {
	_, err := s.saveRun(id, false, func(*Run) {})
	return err
}

// AbortRun ends a run that has failed. What it has found and taken in stays.
func (s *Inbox) AbortRun(id, why string) error {
	_, err := s.saveRun(id, true, func(r *Run) { r.Failed = why })
	return err
}

// saveRun stores a change of a run, and returns the run. With end the run ends: then it is known what it leaves.
func (s *Inbox) saveRun(id string, end bool, change func(*Run)) (*Run, error) {
	return act(s, work{run: id}, func(t *sqlTurn) (*Run, int, error) {
		stored := t.runs[id]
		if stored == nil || !stored.Ended.IsZero() {
			return nil, 0, ErrNoRun
		}
		r, ended := *stored, int64(0)
		change(&r)
		if end {
			t.byPerson = true // the figures show it at once
			sum := &r.Summary
			r.Ended, ended, sum.Left = t.time(), t.now, Findings{Differs: sum.Differs, New: sum.New, Twin: sum.Twin, Unlisted: sum.Unlisted}
			t.tx.Queue("findings_over", func(row engine.Row) error {
				var result string
				var n int
				err := row.Scan(&result, &n)
				sum.Left.count(Result(result), -n)
				return err
			}, r.mark)
			t.send()
		}
		summary, _ := json.Marshal(r.Summary) // numbers
		t.statements = append(t.statements, func(tx engine.Tx) {
			tx.Queue("run_save", nil, id, t.now, ended, boolNumber(r.Complete), withoutZero(r.Failed), string(summary))
			if end && r.Complete && r.Summary.Left.Count() == 0 {
				endOutages(tx, r.KnowsUpTo().UnixMicro())
			}
		})
		return &r, 0, nil
	})
}

// LastRuns returns the last run, and the last one that has compared a whole list. Nil: there is none.
func (s *Inbox) LastRuns(ctx context.Context) (last, complete *Run, err error) {
	err = s.read(ctx, func(tx engine.Tx) error { queueLastRuns(tx, &last, &complete); return tx.Send() })
	return last, complete, err
}

func queueLastRuns(tx engine.Tx, last, complete **Run) {
	tx.Queue("runs_last", func(row engine.Row) error {
		r, err := scanRun(row)
		if *last = r; r.Complete && !r.Ended.IsZero() {
			*complete = r
		}
		return err
	})
}

// Compared is what came of one line: what the billing service says of one tenant.
type Compared struct {
	Line       int       `json:"line,omitempty"` // its number; zero: the tenant is unlisted
	Platform   string    `json:"platform"`
	Tenant     string    `json:"tenant"`
	Fault      string    `json:"fault,omitempty"`  // why it cannot be compared
	Result     Result    `json:"result,omitempty"` // empty with a fault, or if it is passed over
	Changes    []string  `json:"changes,omitempty"`
	Elsewhere  []string  `json:"elsewhere,omitempty"`   // of a new tenant that usher does not know at all: the platforms on which it knows this code
	Erased     time.Time `json:"erased,omitzero"`       // of a new tenant: when somebody erased it
	Dismissed  bool      `json:"dismissed,omitempty"`   // somebody has dismissed this very finding
	PassedOver bool      `json:"passed_over,omitempty"` // no receiver takes its platform
	Applied    bool      `json:"applied,omitempty"`
	LeftOut    string    `json:"left_out,omitempty"` // why it may not be taken in
	Err        error     `json:"-"`                  // why it was not taken in

	settles   bool     // it is equal, and something that came for it before waits for somebody
	says      [16]byte // a digest of the features; two lines with the same one say the same
	digest    [32]byte // of what was found, to recognise it
	found     []byte   // the digest of the finding that is stored; nil: none is
	dismissed bool     // somebody has dismissed that one
	first     bool     // it was taken in as the first of its tenant
}

// isFinding says whether a result is stored with its tenant.
func (c *Compared) isFinding() bool {
	return c.Result == Differs || c.Result == NewTenant || c.Result == Twin || c.Result == Unlisted
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
	toStore
)

// MaxLine is the length of the longest line.
func (s *Inbox) MaxLine() int { return int(cmp.Or(s.cfg.MaxBody, 16<<20)) }

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
	if max := s.MaxLine(); len(body) > max {
		return &offer{fault: fmt.Sprintf("is larger than %d bytes (USHER_WEBHOOK_MAX_BODY)", max)}
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
	c.says = [16]byte(hash.Sum(nil))
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
	c.identify(k.snapshot)
}

// identify sets the digest by which a finding is recognised: it is another one when the service says something else, or usher knows
// something else.
func (c *Compared) identify(known *snapshot.Stored) {
	seq := int64(0)
	if known != nil {
		seq = known.Seq
	}
	c.digest = sha256.Sum256(fmt.Appendf(nil, "%s %x %d", c.Result, c.says, seq))
	c.Dismissed = c.dismissed && bytes.Equal(c.found, c.digest[:])
}

// compare compares lines with what usher knows, and changes nothing. Whether a new tenant is a twin only the whole list says.
func (s *Inbox) compare(ctx context.Context, id string, lines [][]byte) (*Run, []Compared, error) {
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
			var waits, exists, seq, dismissed, erased int64
			var platform, features string
			var found []byte
			if err := r.Scan(&name.Tenant, &name.Platform, &k.last, &k.lastAt, &waits, &found, &dismissed, &erased, &exists, &platform, &seq, &features); err != nil {
				return err
			}
			if known[name] == nil {
				known[name] = &k
			}
			switch {
			case exists != 0 && platform == name.Platform:
				known[name].snapshot = &snapshot.Stored{Seq: seq, Features: []byte(features)}
			case exists != 0:
				for _, n := range index[name] {
					all[n].Elsewhere = append(all[n].Elsewhere, platform)
				}
			}
			for _, n := range index[name] {
				c := &all[n]
				if c.settles, c.found, c.dismissed = waits > 0, found, dismissed > 0; erased > 0 {
					c.Erased = moment(erased)
				}
			}
			return nil
		}, tenants, platforms)
		return tx.Send()
	})
	if err != nil {
		return nil, nil, err
	}
	if run == nil || !run.Ended.IsZero() {
		return nil, nil, ErrNoRun
	}
	for name, of := range index {
		for _, n := range of {
			c := &all[n]
			c.judge(run, &offers[n].says, *known[name])
			c.settles = (c.settles || inMemory[name].Before(run.settlesBefore())) && c.Result == Equal
			if c.Result != NewTenant {
				c.Erased = time.Time{}
			}
			if c.Result != NewTenant || known[name].snapshot != nil {
				c.Elsewhere = nil
			}
		}
	}
	return run, all, nil
}

// Apply takes in what differs from what usher knows, or is new there. With store it is not delivered. If one line cannot be taken in,
// for example because the inbox is full, those before it are in, and those after it are not; its Err says why.
func (s *Inbox) Apply(ctx context.Context, id string, lines [][]byte, store bool) ([]Compared, error) {
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
	case run == nil || !run.Ended.IsZero():
		return nil, ErrNoRun
	case run.Failed != "":
		return nil, Denied(run.Failed)
	case known > run.KnowsUpTo().UnixMicro():
		return nil, ErrOlderList
	case store:
		return s.reconcile(run, lines, toStore)
	}
	return s.reconcile(run, lines, toApply)
}

// reconcile has each line's lane decide about it, all in one transaction: that also finds out whether the run is still stored.
func (s *Inbox) reconcile(run *Run, lines [][]byte, leave leave) ([]Compared, error) {
	offers, all := s.readOffers(lines)
	w := work{run: run.ID, by: &Action{ID: run.action}}
	for n, o := range offers {
		if all[n].judgeable() {
			w.states, w.numbers, w.bytes = append(w.states, o.lane), w.numbers+1, w.bytes+o.Size
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

const (
	// A list is compared, and taken in, by so many lines at once, or by about so many bytes.
	batchLines = 200
	batchBytes = 1 << 20
	// maxUntaken is how many platforms that no receiver takes are named.
	maxUntaken = 5
)

// inBatches calls do with the lines, some at once. first is the number of the first of them.
func inBatches(lines iter.Seq2[[]byte, error], do func(first int, batch [][]byte) error) error {
	var batch [][]byte
	first, size := 1, 0
	for line, err := range lines {
		if err != nil {
			return err
		}
		batch, size = append(batch, line), size+len(line)
		if len(batch) < batchLines && size < batchBytes {
			continue
		}
		if err := do(first, batch); err != nil {
			return err
		}
		first, batch, size = first+len(batch), nil, 0
	}
	if len(batch) == 0 {
		return nil
	}
	return do(first, batch)
}

// ListOptions say how a list is compared.
type ListOptions struct {
	Failed  string                // why the list cannot be trusted: then nothing is stored, and the run fails; empty: it can be
	Partial bool                  // the list is not meant to be whole
	Last    bool                  // nothing will be applied: the run ends with the comparison
	Tell    func(*Compared) error // gets what is not equal
	Batch   func(tenants int)     // is called from time to time
}

// A comparison is that of a list. What it has seen lives as long as it does.
type comparison struct {
	*Inbox
	ListOptions
	id      string
	run     *Run
	seen    map[[16]byte]seenTenant // every tenant of the list
	perhaps []Compared              // new tenants that are twins, unless the list has the tenant on the other platform, too
	sum     Summary
	faults  int
	untaken []string
}

type seenTenant struct {
	says  [8]byte // a part of Compared.says
	equal bool
}

func keyOf(platform, tenant string) [16]byte {
	sum := sha256.Sum256([]byte(platform + "\x00" + tenant))
	return [16]byte(sum[:16])
}

// CompareList compares a list, line by line, and returns the run with what it found.
func (s *Inbox) CompareList(ctx context.Context, id string, o ListOptions, lines iter.Seq2[[]byte, error]) (*Run, error) {
	c := &comparison{Inbox: s, ListOptions: o, id: id, seen: make(map[[16]byte]seenTenant)}
	err := inBatches(lines, func(first int, batch [][]byte) error { return c.compareBatch(ctx, first, batch) })
	if err == nil {
		err = c.findTwins()
	}
	if err == nil && c.failure() == "" && !o.Partial {
		err = c.findUnlisted(ctx)
	}
	if err != nil {
		return nil, err
	}
	failed := c.failure()
	return s.saveRun(id, o.Last || o.Failed != "", func(r *Run) {
		r.Summary, r.Failed, r.Complete = c.sum, failed, failed == "" && !o.Partial
	})
}

// failure says why the run fails; empty: it does not.
func (c *comparison) failure() string {
	switch {
	case c.Failed != "":
		return c.Failed
	case c.faults > 0:
		return lineCount(c.faults) + " cannot be compared"
	case len(c.seen) == 0:
		return "the command printed nothing"
	case c.sum.compared() == 0 && c.sum.Changed == 0: // a list of another platform is more likely than one that says nothing
		return fmt.Sprintf("nothing was compared: no receiver takes these platforms: %s. Are they right?", strings.Join(c.untaken, ", "))
	case c.sum.compared() == 0:
		return "nothing was compared: something came for each of these tenants meanwhile. Run it again"
	}
	return ""
}

func (c *comparison) compareBatch(ctx context.Context, first int, batch [][]byte) error {
	run, all, err := c.compare(ctx, c.id, batch)
	if err != nil {
		return err
	}
	c.run = run
	var settles [][]byte
	var found []Compared
	for n := range all {
		one := &all[n]
		one.Line = first + n
		show, store := c.add(one)
		if show {
			if err := c.Tell(one); err != nil {
				return err
			}
		}
		if store {
			found = append(found, *one)
		}
		if store && one.settles {
			settles = append(settles, batch[n])
		}
	}
	c.Batch(len(c.seen))
	return c.conclude(settles, found)
}

// add adds a line to the list, and says whether to show it, and whether what it says is stored.
func (c *comparison) add(one *Compared) (show, store bool) {
	if one.Fault != "" {
		c.faults++
		return true, false
	}
	key, now := keyOf(one.Platform, one.Tenant), seenTenant{[8]byte(one.says[:8]), one.Result == Equal}
	switch before, twice := c.seen[key]; {
	case twice && (before == now || before.says == now.says || one.PassedOver):
		return false, false
	case twice && one.Result == Changed: // since the other line was compared
		if before.equal {
			c.sum.count(Equal, -1)
			c.sum.count(Changed, 1)
			c.seen[key] = seenTenant{says: before.says}
		}
		return before.equal, false
	case twice:
		c.faults++
		one.Fault = fmt.Sprintf("the tenant %s was printed before, with other features", ShowTenant(one.Platform, one.Tenant))
		return true, one.isFinding() // nobody knows which line is right, and one of them says that something differs
	}
	c.seen[key] = now
	switch platform := cmp.Or(one.Platform, `""`); {
	case one.PassedOver:
		if c.sum.PassedOver++; len(c.untaken) < maxUntaken && !slices.Contains(c.untaken, platform) {
			c.untaken = append(c.untaken, platform)
		}
		return false, false
	case len(one.Elsewhere) > 0:
		c.perhaps = append(c.perhaps, *one)
		return false, false
	}
	c.sum.count(one.Result, 1)
	return one.Result != Equal, true
}

// conclude stores what was found, and settles what waits of tenants that are equal, if the list can be trusted.
func (c *comparison) conclude(settles [][]byte, found []Compared) error {
	if c.Failed != "" {
		return nil
	}
	if len(settles) > 0 {
		if _, err := c.reconcile(c.run, settles, toCompare); err != nil {
			return err
		}
	}
	return c.saveFindings(c.id, found)
}

// findTwins decides which of the new tenants are twins: the whole list is known now.
func (c *comparison) findTwins() error {
	for part := range slices.Chunk(c.perhaps, batchLines) {
		for n := range part {
			one := &part[n]
			if slices.ContainsFunc(one.Elsewhere, func(platform string) bool { _, listed := c.seen[keyOf(platform, one.Tenant)]; return !listed }) {
				one.Result = Twin
				one.identify(nil)
			} else {
				one.Elsewhere = nil
			}
			c.sum.count(one.Result, 1)
			if err := c.Tell(one); err != nil {
				return err
			}
		}
		if err := c.conclude(nil, part); err != nil {
			return err
		}
	}
	return nil
}

// findUnlisted finds the tenants that may use something, and that the list does not have.
func (c *comparison) findUnlisted(ctx context.Context) error {
	for after := new(Compared); after != nil; {
		page, err := c.knownBefore(ctx, c.run, after, unlistedPage)
		if err != nil {
			return err
		}
		if after = nil; len(page) == unlistedPage {
			after = &page[len(page)-1]
		}
		var found []Compared
		for n := range page {
			if _, listed := c.seen[keyOf(page[n].Platform, page[n].Tenant)]; listed || page[n].Result != Unlisted {
				continue
			}
			found = append(found, page[n])
			c.sum.count(Unlisted, 1)
			if err := c.Tell(&page[n]); err != nil {
				return err
			}
		}
		if err := c.conclude(nil, found); err != nil {
			return err
		}
	}
	return nil
}

// unlistedPage is how many tenants are read at once.
const unlistedPage = 500

// knownBefore returns tenants whose last snapshot is older than a run, in the order of their codes. Those that may use something are unlisted,
// if the list does not have them. after is the last one of the former call.
func (s *Inbox) knownBefore(ctx context.Context, run *Run, after *Compared, most int) (all []Compared, err error) {
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("known_before", func(r engine.Row) error {
			var c Compared
			var known snapshot.Stored
			var features string
			var dismissed int64
			err := r.Scan(&c.Tenant, &c.Platform, &known.Seq, &features, &c.found, &dismissed)
			if may, _ := snapshot.Decode([]byte(features)); len(may.Features) > 0 {
				c.Result, c.dismissed = Unlisted, dismissed > 0
				c.identify(&known)
			}
			all = append(all, c)
			return err
		}, run.mark, run.asOf, after.Tenant, after.Platform, int64(most))
		return tx.Send()
	})
	return all, err
}

// ApplyOptions say what is done with the lines of a list that differ or are new.
type ApplyOptions struct {
	None   bool                  // they stay as they are
	Store  bool                  // usher knows them, and delivers nothing
	Failed string                // why the run fails; empty: it does not, unless not all can be taken in
	Tell   func(*Compared) error // gets each line
}

// ApplyList takes in lines that were compared before, and ends the run. After one that cannot be taken in, it leaves the others as they are.
func (s *Inbox) ApplyList(ctx context.Context, id string, o ApplyOptions, lines iter.Seq2[[]byte, error]) (*Run, error) {
	applied, faults, none := 0, 0, o.None
	err := inBatches(lines, func(first int, batch [][]byte) error {
		var all []Compared
		if !none {
			var err error
			if all, err = s.Apply(ctx, id, batch, o.Store); err != nil {
				return err
			}
			if n := slices.IndexFunc(all, func(c Compared) bool { return c.Err != nil }); n >= 0 {
				none, o.Failed, all = true, "not all were taken in: "+all[n].Err.Error(), all[:n+1]
			}
		}
		if len(all) < len(batch) {
			_, rest, err := s.compare(ctx, id, batch[len(all):])
			if err != nil {
				return err
			}
			all = append(all, rest...)
		}
		for n := range all {
			c := &all[n]
			c.Line = first + n
			applied += int(boolNumber(c.Applied))
			faults += int(boolNumber(c.Fault != "")) // the settings have changed meanwhile
			if err := o.Tell(c); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if faults > 0 {
		o.Failed = cmp.Or(o.Failed, lineCount(faults)+" cannot be taken in")
	}
	return s.saveRun(id, true, func(r *Run) { r.Summary.Applied, r.Failed = applied, cmp.Or(o.Failed, r.Failed) })
}

func lineCount(n int) string {
	if n == 1 {
		return "1 line"
	}
	return fmt.Sprint(n, " lines")
}
