package status

import (
	"testing"
	"time"

	"usher/internal/inbox"
)

// A trouble may concern a tenant unless it is about the other tenants that it names, another receiver, or calls.
func TestWhomATroubleConcerns(t *testing.T) {
	for name, tc := range map[string]struct {
		words inbox.TroubleWords
		want  bool
	}{
		"everybody":        {inbox.TroubleWords{Part: "gate"}, true},
		"its receiver":     {inbox.TroubleWords{Part: "gate", Receiver: "crm"}, true},
		"another receiver": {inbox.TroubleWords{Part: "gate", Receiver: "docs"}, false},
		"itself":           {inbox.TroubleWords{Part: "gate", Named: []string{"crm/other", "crm/acme"}}, true},
		"another":          {inbox.TroubleWords{Part: "gate", Named: []string{"crm/other"}}, false},
		"another and more": {inbox.TroubleWords{Part: "gate", Named: []string{"crm/other"}, Others: true}, true},
		"calls":            {inbox.TroubleWords{Part: "outbound"}, false},
		"messages":         {inbox.TroubleWords{Kind: NotifyFails}, false},
	} {
		if got := Concerns(&inbox.Trouble{TroubleWords: tc.words}, "crm", "acme", "crm"); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A receiver that was down until a moment ago takes webhooks since that moment, however long those of
// some tenants have waited.
func TestWhenTenantsBeginToFail(t *testing.T) {
	night := time.Date(2026, 11, 17, 2, 10, 0, 0, time.UTC)
	now := night.Add(time.Hour)
	s := &Status{Gate: &Gate{}, Inbox: &Inbox{HeldUp: []HeldUp{{Receiver: "main", Tenant: "acme", Since: night}}}}
	for name, tc := range map[string]struct {
		last, want time.Time // when the receiver last took something; when the record begins
	}{
		"it takes others":              {now.Add(-time.Second), now},
		"it has taken no others since": {night.Add(-time.Second), night},
	} {
		trouble := s.failingTenants(&Receiver{Name: "main", failing: 1, last: tc.last})[0]
		if got := trouble.record(now, "gate-1").Began; !got.Equal(tc.want) || !trouble.Since.Equal(night) {
			t.Errorf("%s: it begins at %v, want %v; %s", name, got, tc.want, trouble.What)
		}
	}
}

// What is said when it is over holds then, too.
func TestWhatWasMissedHasCome(t *testing.T) {
	s := &Status{Inbox: &Inbox{}, Missed: inbox.Missed{Tenants: 1, First: acme}}
	if got := missedTroubles(s, time.Time{})[0].record(time.Time{}, "").What; got != "usher answered webhooks of crm/acme with a 5xx" {
		t.Error(got)
	}
}
