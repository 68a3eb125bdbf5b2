package lane

import (
	"reflect"
	"testing"
	"time"

	"usher/internal/clock"
	"usher/internal/snapshot"
)

// features are what a snapshot lists.
func features(codes ...string) snapshot.Snapshot {
	s := snapshot.Snapshot{Known: true}
	for _, code := range codes {
		s.Features = append(s.Features, snapshot.Feature{Code: code, Limit: snapshot.Unlimited})
	}
	return s
}

// knows is a tenant's last snapshot.
func knows(number int64, codes ...string) *snapshot.Stored {
	stored := features(codes...).Stored("crm", "acme", "id")
	stored.Seq = number
	return stored
}

// offering is a line that says this of the same tenant.
func offering(beside Beside, codes ...string) *ListLine {
	s := features(codes...)
	draft := Compared{Platform: "crm", Tenant: "acme", Says: FeaturesDigest(s), Beside: beside}
	return &ListLine{Says: s, Draft: draft}
}

// How a line stands to what usher knows: by the numbers first, then by the features.
func TestJudge(t *testing.T) {
	r := &Run{Mark: 100, AsOf: clock.Moment(5000)}
	unreadable := &snapshot.Stored{Seq: 7}
	b := Beside{Erased: time.Unix(1, 0), Platforms: []string{"erp"}}
	for name, tc := range map[string]struct {
		last, lastAt int64
		known        *snapshot.Stored
		result       Result
		changes      []string
		elsewhere    []string
		erased       bool
	}{
		"the same":                  {99, 5000, knows(7, "b", "a"), Equal, nil, nil, false},
		"something else":            {99, 5000, knows(7, "a", "c"), Differs, []string{"+ b", "- c"}, nil, false},
		"nothing":                   {99, 5000, knows(7), Differs, []string{"+ a", "+ b"}, nil, false},
		"unknown":                   {0, 0, nil, NewTenant, []string{"+ a", "+ b"}, []string{"erp"}, true},
		"cannot be read":            {99, 5000, unreadable, NewTenant, []string{"+ a", "+ b"}, nil, true},
		"came since the mark":       {101, 4000, knows(7, "a", "b"), Changed, nil, nil, false},
		"came since the list":       {99, 5001, knows(7, "c"), Changed, nil, nil, false},
		"came for an unknown":       {101, 4000, nil, Changed, nil, nil, false},
		"has the mark's own number": {100, 4000, knows(7, "a", "b"), Equal, nil, nil, false},
	} {
		c := offering(b, "a", "b").Judge(r, tc.last, tc.lastAt, tc.known)
		want := Compared{
			Platform:  "crm",
			Tenant:    "acme",
			Result:    tc.result,
			Changes:   tc.changes,
			Elsewhere: tc.elsewhere,
			Says:      c.Says,
			Digest:    c.Digest,
			Beside:    b,
		}
		if tc.erased {
			want.Erased = b.Erased
		}
		if !reflect.DeepEqual(c, want) {
			t.Errorf("%s: %+v, want %+v", name, c, want)
		}
	}
}

// What somebody has dismissed is dismissed until the service says something else, or usher knows something else.
func TestJudgeDismissed(t *testing.T) {
	r := &Run{Mark: 100, AsOf: clock.Moment(5000)}
	found := offering(Beside{}, "a").Judge(r, 0, 0, knows(7, "b")).Digest
	judge := func(known *snapshot.Stored, codes ...string) bool {
		return offering(Beside{Found: found[:], Dismissed: true}, codes...).Judge(r, 0, 0, known).Dismissed
	}
	if !judge(knows(7, "b"), "a") {
		t.Error("the same is not dismissed")
	}
	if judge(knows(7, "b"), "a", "c") || judge(knows(8, "b"), "a") || judge(nil, "a") {
		t.Error("something else is dismissed")
	}
}

// A run whose request says nothing for a while has been killed.
func TestRunIsKilled(t *testing.T) {
	r := &Run{Began: time.Now(), Alive: time.Now()}
	if r.Abandoned(r.Began.Add(2*RunBeat)) || !r.Abandoned(r.Began.Add(2*time.Minute)) {
		t.Error("when a run counts as killed")
	}
}
