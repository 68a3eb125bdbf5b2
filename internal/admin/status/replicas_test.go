package status

import (
	"testing"

	"usher/internal/inbox"
)

// A trouble may concern a tenant unless it is about the other tenants that it names, another receiver, or calls.
func TestWhomATroubleConcerns(t *testing.T) {
	for name, tc := range map[string]struct {
		words inbox.TroubleWords
		want  bool
	}{
		"everybody":         {inbox.TroubleWords{Part: "gate"}, true},
		"its receiver":      {inbox.TroubleWords{Part: "gate", Receiver: "crm"}, true},
		"another receiver":  {inbox.TroubleWords{Part: "gate", Receiver: "docs"}, false},
		"itself":            {inbox.TroubleWords{Part: "gate", Named: []string{"crm/other", "crm/acme"}}, true},
		"another":           {inbox.TroubleWords{Part: "gate", Named: []string{"crm/other"}}, false},
		"another and more":  {inbox.TroubleWords{Part: "gate", Named: []string{"crm/other"}, Others: true}, true},
		"calls":             {inbox.TroubleWords{Part: "outbound"}, false},
		"messages":          {inbox.TroubleWords{Kind: NotifyFails}, false},
		"an ambiguous code": {inbox.TroubleWords{Part: "entitlements", Named: []string{"acme"}}, true},
	} {
		if got := Concerns(&inbox.Trouble{TroubleWords: tc.words}, "crm", "acme", "crm"); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
