package lane

import (
	"reflect"
	"testing"

	"usher/internal/snapshot"
	"usher/webhookgate"
)

// features are what a snapshot lists.
func features(codes ...string) snapshot.Snapshot {
	s := snapshot.Snapshot{Known: true}
	for _, code := range codes {
		s.Features = append(s.Features, snapshot.Feature{Code: code, Limit: snapshot.Unlimited})
	}
	return s
}

// How a line stands to what usher knows: by the numbers first, then by the features.
func TestReconcile(t *testing.T) {
	knows := func(codes ...string) *snapshot.Stored { return features(codes...).Stored("crm", "acme", "id") }
	for name, tc := range map[string]struct {
		last, erased int64
		known        *snapshot.Stored
		result       Result
		changes      []string
	}{
		"the same":                  {99, 0, knows("b", "a"), Equal, nil},
		"something else":            {99, 0, knows("a", "c"), Differs, []string{"+ b", "- c"}},
		"nothing":                   {99, 0, knows(), Differs, []string{"+ a", "+ b"}},
		"unknown":                   {0, 0, nil, NewTenant, []string{"+ a", "+ b"}},
		"cannot be read":            {99, 0, &snapshot.Stored{Seq: 7}, NewTenant, []string{"+ a", "+ b"}},
		"came since the mark":       {101, 0, knows("c"), Left, nil},
		"came for an unknown":       {101, 0, nil, Left, nil},
		"has the mark's own number": {100, 0, knows("a", "b"), Equal, nil},
		"was erased":                {50, 7, nil, Left, nil},
	} {
		turn := &Turn{Rules: &Rules{}, Lanes: map[webhookgate.LaneName]*Lane{}}
		l := turn.UnknownLane(webhookgate.LaneName{Platform: "crm", Tenant: "acme"})
		l.Last, l.Erased = tc.last, tc.erased
		line := &ListLine{Says: features("a", "b"), Draft: Compared{Platform: "crm", Tenant: "acme"}}
		want := Compared{Platform: "crm", Tenant: "acme", Result: tc.result, Changes: tc.changes}
		if c := l.Reconcile(line, tc.known, 100, ToCompare); !reflect.DeepEqual(c, want) {
			t.Errorf("%s: %+v, want %+v", name, c, want)
		}
	}
}
