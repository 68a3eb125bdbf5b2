package lane

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"usher/internal/content"
	"usher/internal/snapshot"
)

// Result says how what the billing service says of a tenant stands to what usher knows.
type Result string

// The results.
const (
	Equal     Result = "equal"
	Differs   Result = "differs"
	NewTenant Result = "new"      // usher does not know the tenant, or cannot read its features
	Twin      Result = "twin"     // as new, but usher knows this code on a platform on which the list does not have it
	Changed   Result = "changed"  // something came since the run began: nobody can say which is newer
	Unlisted  Result = "unlisted" // usher says that the tenant may use something, and the list does not have it
)

// Findings count tenants by what was found of them.
type Findings struct {
	Differs  int `json:"differs"`
	New      int `json:"new"`
	Twin     int `json:"twin"`
	Unlisted int `json:"unlisted"`
}

// Count is how many they are.
func (f Findings) Count() int { return f.Differs + f.New + f.Twin + f.Unlisted }

// Add counts tenants of a result, if that is a finding.
func (f *Findings) Add(result Result, n int) {
	switch result {
	case Differs:
		f.Differs += n
	case NewTenant:
		f.New += n
	case Twin:
		f.Twin += n
	case Unlisted:
		f.Unlisted += n
	}
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

// Add counts a tenant of a result.
func (s *Summary) Add(result Result) {
	switch result {
	case Equal:
		s.Equal++
	case Differs:
		s.Differs++
	case NewTenant:
		s.New++
	case Twin:
		s.Twin++
	case Changed:
		s.Changed++
	case Unlisted:
		s.Unlisted++
	}
}

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
	Line       int       `json:"line,omitempty"` // its number; zero: the tenant is unlisted
	Platform   string    `json:"platform"`
	Tenant     string    `json:"tenant"`
	Fault      string    `json:"fault,omitempty"`  // why it cannot be compared
	Result     Result    `json:"result,omitempty"` // empty with a fault, or if it is passed over
	Changes    []string  `json:"changes,omitempty"`
	Elsewhere  []string  `json:"elsewhere,omitempty"`   // of an unknown tenant: the platforms with its code
	Erased     time.Time `json:"erased,omitzero"`       // of a new tenant: when somebody erased it
	Dismissed  bool      `json:"dismissed,omitempty"`   // somebody has dismissed this very finding
	PassedOver bool      `json:"passed_over,omitempty"` // no receiver takes its platform
	Applied    bool      `json:"applied,omitempty"`
	LeftOut    string    `json:"left_out,omitempty"` // why it may not be taken in
	Err        error     `json:"-"`                  // why it was not taken in

	Says        [16]byte `json:"-"` // a digest of the features; two lines with the same one say the same
	Contradicts bool     `json:"-"` // a line before it says something else of the tenant
	Digest      [32]byte `json:"-"` // of what was found, to recognise it
	First       bool     `json:"-"` // it was taken in as the first of its tenant
	Beside      Beside   `json:"-"`
}

// Beside is what usher knows of a tenant beside its lane and its snapshot.
type Beside struct {
	Found     []byte    // the digest of the finding that is stored; empty: none is
	Dismissed bool      // somebody has dismissed that one
	Erased    time.Time // when somebody has erased the tenant
	Platforms []string  // the other platforms on which this code is known
}

// CanBeJudged says whether a line can be compared.
func (c *Compared) CanBeJudged() bool { return c.Fault == "" && !c.PassedOver }

// IsFinding says whether a result is stored with its tenant.
func (c *Compared) IsFinding() bool {
	return c.Result == Differs || c.Result == NewTenant || c.Result == Twin || c.Result == Unlisted
}

// A ListLine is a line of the service's list, with the webhook that usher makes from it if it must be taken in.
type ListLine struct {
	Incoming
	Says  snapshot.Snapshot // what the billing service says of the tenant
	Draft Compared          // what is to be said of the line before it is judged
}

// A ReconcileMode says what may be done with a line.
type ReconcileMode int

const (
	ToSee     ReconcileMode = iota // nothing: it is only said what came of it
	ToCompare                      // what is equal settles what came before, and what was found is stored
	ToApply                        // what differs or is new is taken in
	ToStore                        // the same, but not delivered
)

// Judge compares a line with what usher knows: the last number that the tenant's lane got, when that was, and its
// last snapshot; nil: there is none.
func (o *ListLine) Judge(r *Run, last, lastAt int64, known *snapshot.Stored) Compared {
	c := o.Draft
	number := int64(0)
	var knows snapshot.Snapshot
	if known != nil {
		number = known.Seq
		knows, _ = snapshot.Decode(known.Features) // what cannot be read is unknown
	}
	changes := snapshot.Diff(
		snapshot.Snapshot{Known: knows.Known, Features: knows.Features},
		snapshot.Snapshot{Known: true, Features: o.Says.Features})
	switch {
	case last > r.Mark || !r.AsOf.IsZero() && lastAt > r.AsOf.UnixMicro():
		c.Result = Changed
	case !knows.Known:
		c.Result, c.Changes, c.Erased = NewTenant, changes, c.Beside.Erased
		if known == nil {
			c.Elsewhere = c.Beside.Platforms
		}
	case len(changes) > 0:
		c.Result, c.Changes = Differs, changes
	default:
		c.Result = Equal
	}
	c.Identify(number)
	return c
}

// Identify sets the digest by which a finding is recognised, and whether it was dismissed. It is another digest when
// the service says something else, or usher knows something else: a snapshot with another number.
func (c *Compared) Identify(number int64) {
	c.Digest = sha256.Sum256(fmt.Appendf(nil, "%s %x %d", c.Result, c.Says, number))
	c.Dismissed = c.Beside.Dismissed && bytes.Equal(c.Beside.Found, c.Digest[:])
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
	case mode == ToSee:
	case c.Result == Equal:
		l.settleInvalid()
		l.clearMissed()
	case mode == ToCompare || c.Result != Differs && c.Result != NewTenant:
	case mode == ToStore && (l.Parked > 0 || !l.idle()):
		// It would be known, and something older be delivered after it.
		c.LeftOut = "its webhooks wait or are parked"
	default:
		before, first := l.LastAt, l.Tail == 0
		a := l.takeIn(&in.Incoming, mode == ToStore || l.t.StoreUnclaimed && in.To == nil)
		if c.Applied, c.Err = a.Err == nil, a.Err; c.Applied {
			c.First = first
			l.LastAt = max(before, r.KnowsUpTo().UnixMicro()) // what it says is as old as the list
			l.clearMissed()
			l.noteSnapshotAt(r.KnowsUpTo().UnixMicro())
		}
	}
	return c
}

// settleInvalid supersedes the tenant's invalid snapshots, because the billing service says the same as usher since.
func (l *Lane) settleInvalid() {
	for _, old := range l.invalidOnes() {
		if old.Type == content.TenantProvisioningChange || old.Type == "" {
			l.move(old, Superseded, "the billing service said later that the tenant is as usher knows it")
		}
	}
}
