package lane

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"usher/internal/content"
	"usher/internal/lane/state"
	"usher/internal/snapshot"
)

// Result says how what the billing service says of a tenant stands to what usher knows, or why that is not compared.
type Result string

// The results.
const (
	Equal     Result = "equal"
	Differs   Result = "differs"
	NewTenant Result = "new"      // usher does not know the tenant, or cannot read its features
	Twin      Result = "twin"     // as new, but usher knows this code on a platform on which the list does not have it
	Changed   Result = "changed"  // something came since the run began: nobody can say which is newer
	Unlisted  Result = "unlisted" // usher says that the tenant may use something, and the list does not have it

	PassedOver Result = "passed_over" // no receiver takes the tenant's platform
	Faulty     Result = "faulty"      // the line cannot be read, or contradicts another one

	Applied Result = "applied" // besides, in Counts: how many of the others were taken in
)

// Results are what Counts say of tenants, in the order in which people read them.
var Results = []Result{Equal, Differs, NewTenant, Twin, Changed, Unlisted, Applied, PassedOver}

// IsFinding says whether a result is stored with its tenant.
func (r Result) IsFinding() bool {
	return r == Differs || r == NewTenant || r == Twin || r == Unlisted
}

// Counts say how many tenants have each result.
type Counts map[Result]int

// Findings is how many have one that is a finding.
func (c Counts) Findings() (n int) {
	for result, count := range c {
		if result.IsFinding() {
			n += count
		}
	}
	return n
}

func (c Counts) String() string {
	var parts []string
	for _, result := range Results {
		if n := c[result]; n > 0 {
			words := strings.ReplaceAll(string(result), "_", " ")
			if result == Applied {
				words = "taken in"
			}
			parts = append(parts, fmt.Sprint(n, " ", words))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "nothing")
}

// A Run is one 'usher reconcile'.
type Run struct {
	ID       string    `json:"id"`
	Began    time.Time `json:"began"`
	AsOf     time.Time `json:"as_of,omitzero"` // how old the billing service's list is; zero: as old as the run
	Ended    time.Time `json:"ended,omitzero"`
	Complete bool      `json:"complete"`         // the whole list was compared
	Failed   string    `json:"failed,omitempty"` // why it failed
	Found    Counts    `json:"found"`
	Left     int       `json:"left"` // how many findings were still so at the end, and not dismissed
	Alive    time.Time `json:"-"`    // when the request that began it was last there

	Mark   int64 `json:"-"` // the number with which it began
	Action int64 `json:"-"` // the entry of the person that began it
}

const (
	// RunBeat is how often the request that began a run says that it is still there.
	RunBeat = 10 * time.Second
	// runSilence is how long it may say nothing.
	runSilence = time.Minute
)

// Abandoned says whether the request of a run has said nothing for so long that the run will never end.
func (r *Run) Abandoned(now time.Time) bool { return r.Ended.IsZero() && now.Sub(r.Alive) > runSilence }

// KnowsUpTo is the time up to which the run knows what the billing service says.
func (r *Run) KnowsUpTo() time.Time {
	if !r.AsOf.IsZero() && r.AsOf.Before(r.Began) {
		return r.AsOf
	}
	return r.Began
}

// Compared is what came of one line: what the billing service says of one tenant.
type Compared struct {
	Line      int       `json:"line,omitempty"` // its number; zero: the tenant is unlisted
	Result    Result    `json:"result"`
	Platform  string    `json:"platform"`
	Tenant    string    `json:"tenant"`
	Changes   []string  `json:"changes"`
	Applied   bool      `json:"applied"`
	LeftOut   string    `json:"left_out,omitempty"`  // why it may not be taken in
	Elsewhere []string  `json:"elsewhere,omitempty"` // of an unknown tenant: the other platforms that have its code
	Erased    time.Time `json:"erased,omitzero"`     // of a new tenant: when somebody erased it
	Dismissed bool      `json:"dismissed,omitempty"` // somebody has dismissed this very finding
	Fault     string    `json:"fault,omitempty"`     // why it is faulty

	Err   error  `json:"-"` // why it was not taken in
	Basis string `json:"-"` // another one if the service says something else, or usher knows something else
}

// Fingerprint is that of a finding, to recognise it.
func (c *Compared) Fingerprint() []byte { return fmt.Appendf(nil, "%s %s", c.Result, c.Basis) }

// MayBeTwin says whether only the whole list says what a tenant is.
func (c *Compared) MayBeTwin() bool {
	return c.Result == NewTenant && len(c.Elsewhere) > 0 && !c.Applied
}

// A ListLine is a line of the service's list, with the webhook that usher makes from it if it must be taken in.
type ListLine struct {
	Incoming
	Says        snapshot.Snapshot // what the billing service says of the tenant
	Contradicts bool              // a line before it says something else of the tenant
	Draft       Compared          // what is to be said of the line; without a result it has to be judged
}

// A ReconcileMode says what is done with the lines of a list.
type ReconcileMode string

// The modes.
const (
	ToSee     ReconcileMode = "see"     // nothing: it is only said what came of them
	ToCompare ReconcileMode = "compare" // what is equal settles what came before, and what was found is stored
	ToApply   ReconcileMode = "deliver" // what differs or is new is taken in
	ToStore   ReconcileMode = "store"   // the same, but not delivered
)

// Applies says whether something may be taken in.
func (m ReconcileMode) Applies() bool { return m == ToApply || m == ToStore }

// Judge compares a line with what usher knows: the last number that the tenant's lane got, when that was, and its
// last snapshot; nil: there is none.
func (o *ListLine) Judge(r *Run, last, lastAt int64, known *snapshot.Stored) Compared {
	c, number := o.Draft, int64(0)
	var knows snapshot.Snapshot
	if known != nil {
		number = known.Seq
		knows, _ = snapshot.Decode(known.Features) // what cannot be read is unknown
	}
	changes := snapshot.Diff(knows, o.Says)
	switch {
	case last > r.Mark || !r.AsOf.IsZero() && lastAt > r.AsOf.UnixMicro():
		c.Result = Changed
	case !knows.Known:
		c.Result, c.Changes = NewTenant, changes
	case len(changes) > 0:
		c.Result, c.Changes = Differs, changes
	default:
		c.Result = Equal
	}
	c.Basis = fmt.Sprintf("%x %d", FeaturesDigest(o.Says), number)
	return c
}

// FeaturesDigest returns a digest of features.
func FeaturesDigest(s snapshot.Snapshot) [16]byte {
	features := slices.SortedFunc(slices.Values(s.Features), func(a, b snapshot.Feature) int {
		return cmp.Compare(a.Code, b.Code)
	})
	hash := sha256.New()
	for _, f := range features {
		fmt.Fprintf(hash, "%q %d %q\n", f.Code, f.Limit, f.Value)
	}
	return [16]byte(hash.Sum(nil))
}

// Reconcile compares what the billing service says of the tenant with what usher knows. If that is not the same it
// takes it in, at the end of the lane and never as a duplicate, if the mode allows it: then the lane has heard
// something that is as old as the list. Once both say the same, what was missed and what was invalid is settled.
func (l *Lane) Reconcile(in *ListLine, r *Run, mode ReconcileMode) (c Compared) {
	c = in.Judge(r, l.Last, l.LastAt, l.t.Inbox.LastSnapshot(l))
	switch {
	case mode == ToSee || c.Result == Changed:
	case c.Result == Equal:
		l.settleInvalid()
		l.setMissed(nil)
	case !mode.Applies():
	case mode == ToStore && (l.Parked > 0 || !l.idle()):
		// It would be known, and something older be delivered after it.
		c.LeftOut = "its webhooks wait or are parked"
	default:
		before := l.LastAt
		a := l.takeIn(&in.Incoming, mode == ToStore || l.t.StoreUnclaimed && in.To == nil)
		if c.Applied, c.Err = a.Err == nil, a.Err; c.Applied {
			l.LastAt = max(before, r.KnowsUpTo().UnixMicro()) // what it says is as old as the list
			l.setMissed(nil)
			l.noteSnapshotAt(r.KnowsUpTo().UnixMicro())
		}
	}
	return c
}

// settleInvalid supersedes the tenant's invalid snapshots, because the billing service says the same as usher since.
func (l *Lane) settleInvalid() {
	for _, old := range l.invalidOnes() {
		if old.Type == content.TenantProvisioningChange || old.Type == "" {
			l.move(old, state.Superseded, "the billing service said later that the tenant is as usher knows it")
		}
	}
}
