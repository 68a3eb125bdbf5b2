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

// How a line stands to what usher knows: by the numbers first, then by the features. What was found is another finding
// if the service says something else, or usher knows something else.
func TestJudge(t *testing.T) {
	r := &Run{Mark: 100, AsOf: clock.Moment(5000)}
	unreadable := &snapshot.Stored{Seq: 7}
	line := func(codes ...string) *ListLine {
		return &ListLine{Says: features(codes...), Draft: Compared{Platform: "crm", Tenant: "acme"}}
	}
	for name, tc := range map[string]struct {
		last, lastAt int64
		known        *snapshot.Stored
		result       Result
		changes      []string
	}{
		"the same":                  {99, 5000, knows(7, "b", "a"), Equal, nil},
		"something else":            {99, 5000, knows(7, "a", "c"), Differs, []string{"+ b", "- c"}},
		"nothing":                   {99, 5000, knows(7), Differs, []string{"+ a", "+ b"}},
		"unknown":                   {0, 0, nil, NewTenant, []string{"+ a", "+ b"}},
		"cannot be read":            {99, 5000, unreadable, NewTenant, []string{"+ a", "+ b"}},
		"came since the mark":       {101, 4000, knows(7, "a", "b"), Changed, nil},
		"came since the list":       {99, 5001, knows(7, "c"), Changed, nil},
		"came for an unknown":       {101, 4000, nil, Changed, nil},
		"has the mark's own number": {100, 4000, knows(7, "a", "b"), Equal, nil},
	} {
		c := line("a", "b").Judge(r, tc.last, tc.lastAt, tc.known)
		want := Compared{Platform: "crm", Tenant: "acme", Result: tc.result, Changes: tc.changes, Basis: c.Basis}
		if !reflect.DeepEqual(c, want) {
			t.Errorf("%s: %+v, want %+v", name, c, want)
		}
	}
	found := func(known *snapshot.Stored, codes ...string) string {
		c := line(codes...).Judge(r, 0, 0, known)
		return string(c.Fingerprint())
	}
	first := found(knows(7, "b"), "a")
	if first != found(knows(7, "b"), "a") {
		t.Error("the same is another finding")
	}
	if first == found(knows(7, "b"), "a", "c") || first == found(knows(8, "b"), "a") || first == found(nil, "a") {
		t.Error("something else is the same finding")
	}
}

// A run whose request says nothing for a while has been killed.
func TestRunIsKilled(t *testing.T) {
	r := &Run{Began: time.Now(), Alive: time.Now()}
	if r.Abandoned(r.Began.Add(2*RunBeat)) || !r.Abandoned(r.Began.Add(2*time.Minute)) {
		t.Error("when a run counts as killed")
	}
}
