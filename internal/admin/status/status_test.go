package status

import (
	"slices"
	"testing"
	"time"

	"usher/internal/admin/decisions"
	"usher/internal/inbox"
	"usher/webhookgate"
)

// A decision is noted when it is made, but bears the time at which its webhook came: one that was tried for long must not
// hide those that came after it.
func TestFailedTenants(t *testing.T) {
	now := time.Unix(1e9, 0)
	entry := func(tenant, decision string, ago time.Duration) *decisions.Entry {
		return &decisions.Entry{Platform: "crm", Tenant: tenant, Decision: decision, At: now.Add(-ago)}
	}
	got := failedTenants([]*decisions.Entry{ // the newest first
		entry("well-again", "forwarded", time.Second),
		entry("well-again", "failed", 2*time.Second),
		entry("long", "forwarded", lately*time.Minute+20*time.Second),
		entry("", "failed", time.Minute), // nobody's
		entry("still", "rejected", time.Minute),
		entry("still", "failed", time.Minute),
		entry("still", "failed", 2*time.Minute),
		entry("copied", "duplicate", 2*time.Minute),
		entry("copied", "failed", 2*time.Minute),
		entry("late", "failed", 3*time.Minute),
		entry("over", "failed", time.Hour),
	}, now)
	if want := []string{"crm/still", "crm/late"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What counts is the receiver that will be tried, not the one that was.
func TestPausedBy(t *testing.T) {
	known := Receivers{{Name: "main"}, {Name: "crm", Platforms: []string{"crm", "docs"}}}
	for _, tc := range []struct {
		known            Receivers
		pause            inbox.Pause
		platform, tenant string
		tried            string
		want             bool
	}{
		{known, inbox.Pause{}, "crm", "acme", "", true},
		{known, inbox.Pause{Receiver: "crm"}, "docs", "acme", "main", true},
		{known, inbox.Pause{Receiver: "main"}, "docs", "acme", "main", false},
		{known, inbox.Pause{Receiver: "main"}, "", "acme", "", true},
		{nil, inbox.Pause{Receiver: "main"}, "docs", "acme", "main", true}, // others know who takes it
		{known[1:], inbox.Pause{Receiver: "main"}, "mars", "acme", "main", true},
		{known, inbox.Pause{Platform: "crm", Tenant: "acme"}, "crm", "acme", "", true},
		{known, inbox.Pause{Platform: "crm", Tenant: "acme"}, "", "acme", "", false},
	} {
		if got := tc.known.PausedBy([]inbox.Pause{{Tenant: "other"}, tc.pause}, tc.platform, tc.tenant, tc.tried); (got != nil) != tc.want || got != nil && *got != tc.pause {
			t.Errorf("%s/%s, tried at %q, with %s paused: %v", tc.platform, tc.tenant, tc.tried, tc.pause, got)
		}
	}
}

func TestInboxWords(t *testing.T) {
	for _, tc := range []struct {
		used, limit int64
		want        string
	}{{0, 0, "0\u00a0%"}, {0, 100, "0\u00a0%"}, {1, 1000, "<\u00a01\u00a0%"}, {250, 1000, "25\u00a0%"}, {1000, 1000, "100\u00a0%"}} {
		if got := (&Inbox{Used: tc.used, Limit: tc.limit}).Full(); got != tc.want {
			t.Errorf("%d of %d: %s", tc.used, tc.limit, got)
		}
	}
	held := make([]inbox.HeldUp, shownHeldUp+2)
	held[0] = inbox.HeldUp{Lane: webhookgate.Lane{Platform: "crm", Tenant: "acme"}, ID: 7, Tries: 2, Last: inbox.Attempt{Status: 500, Answer: "in  use"}, Down: true}
	s := &State{Gate: &GateState{Receivers: Receivers{{Name: "main"}}}, Inbox: &InboxState{HeldUp: held, Stats: inbox.Stats{Paused: []inbox.Pause{{Tenant: "other"}}}}}
	box := Of(s, time.Now()).Inbox
	if h := &box.FirstHeldUp()[0]; len(box.FirstHeldUp()) != shownHeldUp || box.MoreHeldUp() != 2 || h.Name() != "crm/acme" || h.Answer != "500: in use" || h.NextTry() != "next try when the receiver is back" || h.Paused || box.AllPaused() {
		t.Errorf("%+v", box)
	}
	s.Inbox.Stats.Paused = []inbox.Pause{{}}
	s.Inbox.HeldUp = held[:1]
	now := Of(s, time.Now())
	if h := &now.Inbox.HeldUp[0]; now.Inbox.MoreHeldUp() != 0 || !h.Paused || h.NextTry() != "paused" || !now.Inbox.AllPaused() || !now.Gate.Receivers[0].Paused {
		t.Errorf("%+v", now)
	}
}
