package status

import (
	"strings"
	"testing"
	"time"

	"usher/internal/inbox"
	"usher/internal/lane"
)

func TestReconcileOnTheOverview(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	done := &lane.Run{Began: now.Add(-4 * time.Hour), Ended: now.Add(-3 * time.Hour), Complete: true, Found: lane.Counts{lane.Equal: 1204, lane.Differs: 2, lane.Applied: 2}}
	left := &lane.Run{Began: now.Add(-4 * time.Hour), Ended: now.Add(-3 * time.Hour), Complete: true, Found: lane.Counts{lane.Equal: 1, lane.Differs: 2, lane.Changed: 1, lane.Unlisted: 3, lane.PassedOver: 4}}
	for name, c := range map[string]struct {
		last, complete *lane.Run
		found          lane.Counts
		line           string
		troubles       string
	}{
		"never":          {},
		"all is well":    {done, done, nil, "Last complete reconcile 3\u00a0h ago: 1204 equal, 2 differs, 2 taken in", ""},
		"something left": {left, left, lane.Counts{lane.Differs: 1, lane.NewTenant: 1, lane.Unlisted: 3}, "Last complete reconcile 3\u00a0h ago: 1 equal, 2 differs, 1 changed, 3 unlisted, 4 passed over", "usher and the billing service disagree about 2 tenants; 3 tenants may use something here, and the billing service did not list them"},
		"failed since":   {&lane.Run{Ended: now, Failed: "the command failed"}, done, nil, "Last complete reconcile 3", "The last reconcile failed: the command failed"},
		"it runs":        {&lane.Run{Began: now.Add(-time.Hour), Alive: now.Add(-20 * time.Second)}, done, nil, "Last complete reconcile 3", ""},
		"killed":         {&lane.Run{Began: now.Add(-time.Hour), Alive: now.Add(-2 * time.Minute)}, done, nil, "Last complete reconcile 3", "The last reconcile did not end"},
	} {
		s := &Status{Health: new(Health), Inbox: NewInbox(inbox.Stats{At: now, LastRun: c.last, CompleteRun: c.complete, Findings: c.found}, nil, nil, nil)}
		s.Judge(now)
		var whats []string
		for _, trouble := range reconcileTroubles(s, now) {
			whats = append(whats, trouble.What)
		}
		if got := strings.Join(whats, "; "); got != c.troubles || !strings.HasPrefix(s.Inbox.Compared, c.line) || c.line == "" && s.Inbox.Compared != "" {
			t.Errorf("%s: %q, %q", name, s.Inbox.Compared, got)
		}
	}
}
