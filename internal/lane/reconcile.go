package lane

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"usher/internal/snapshot"
)

// Result says how what the billing service says of a tenant stands to what usher knows, or why that is not compared.
type Result string

// The results.
const (
	Equal     Result = "equal"
	Differs   Result = "differs"
	NewTenant Result = "new"      // usher does not know the tenant, or cannot read its features
	Left      Result = "left"     // something came after the mark, or it was erased: nobody can say which is newer
	Unlisted  Result = "unlisted" // usher says that the tenant may use something, and the list does not have it

	PassedOver Result = "passed_over" // no receiver takes the tenant's platform; of the log: see Lane.CatchUp
	Faulty     Result = "faulty"      // the line cannot be read, or contradicts another one

	Applied Result = "applied" // besides, in Counts: how many of the others were taken in
)

// Results are what Counts say of tenants, in the order in which people read them.
var Results = []Result{Equal, Differs, NewTenant, Left, Unlisted, Applied, PassedOver}

// Counts say how many tenants have each result.
type Counts map[Result]int

// Open is how many differ, and were not taken in.
func (c Counts) Open() int { return c[Differs] + c[NewTenant] + c[Unlisted] - c[Applied] }

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

// Compared is what came of one line: what the billing service says of one tenant.
type Compared struct {
	Line      int      `json:"line,omitempty"` // its number; zero: the tenant is unlisted
	Result    Result   `json:"result"`
	Platform  string   `json:"platform"`
	Tenant    string   `json:"tenant"`
	Changes   []string `json:"changes"`
	Applied   bool     `json:"applied"`
	Elsewhere []string `json:"elsewhere,omitempty"` // of a new tenant: the other platforms that have its code
	Fault     string   `json:"fault,omitempty"`     // why it is faulty

	Err error `json:"-"` // why it was not taken in
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
	ToCompare ReconcileMode = "compare" // nothing: it is only said what came of them
	ToApply   ReconcileMode = "deliver" // what differs or is new is taken in
	ToStore   ReconcileMode = "store"   // the same, but not delivered
)

// Applies says whether something may be taken in.
func (m ReconcileMode) Applies() bool { return m == ToApply || m == ToStore }

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

// saidBy is what a tenant's last snapshot said; nil: there is none.
func saidBy(known *snapshot.Stored) (s snapshot.Snapshot) {
	if known != nil {
		s, _ = snapshot.Decode(known.Features) // what cannot be read is unknown
	}
	return s
}

// Reconcile compares what the billing service says of the tenant with what usher knows. If that is not the same it
// takes it in, at the end of the lane and never as a duplicate, if the mode allows it. known is the tenant's last snapshot;
// nil: there is none. mark is one of the numbers that webhooks get: whatever came for the lane since the service was asked
// has a higher one.
func (l *Lane) Reconcile(in *ListLine, known *snapshot.Stored, mark int64, mode ReconcileMode) (c Compared) {
	c = in.Draft
	knows := saidBy(known)
	changes := snapshot.Diff(knows, in.Says)
	switch {
	case l.Last > mark || l.Erased != 0:
		c.Result = Left
	case !knows.Known:
		c.Result, c.Changes = NewTenant, changes
	case len(changes) > 0:
		c.Result, c.Changes = Differs, changes
	default:
		c.Result = Equal
	}
	if mode.Applies() && (c.Result == NewTenant || c.Result == Differs) {
		_, c.Err = l.takeIn(&in.Incoming, mode == ToStore || l.t.StoreUnclaimed && in.To == nil)
		c.Applied = c.Err == nil
	}
	return c
}
