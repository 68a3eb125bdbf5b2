package status

import (
	"strings"
	"testing"
	"time"
)

func TestCatchUpTroubles(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		c    CatchUp
		want string // empty: all is well
		do   string
	}{
		{CatchUp{}, "", ""},
		{CatchUp{Failed: "no scope", Refused: true, Since: now}, "log-unread", "workflow:read"},
		{CatchUp{Failed: "502", Since: now.Add(-time.Minute)}, "", ""},
		{CatchUp{Failed: "502", Since: now.Add(-unreadFor)}, "log-unread", ""},
		{CatchUp{Elsewhere: true}, "log-unread", "USHER_WEBHOOK_CATCH_UP_URL"},
		{CatchUp{Shorter: true}, "log-unread", "reconcile"},
		{CatchUp{Alone: manyAlone - 1, AloneSince: now.Add(-time.Hour), Answer: "404"}, "", ""},
		{CatchUp{Alone: manyAlone, AloneSince: now, Answer: "404"}, "gate-unreached: the service got 404", "usher check"},
		{CatchUp{Alone: 1, AloneSince: now.Add(-longAlone)}, "gate-unreached: the service got no answer", ""},
	} {
		s := &Status{Gate: &Gate{Set: mainReceiver, CatchUp: &tc.c}, Health: &Health{}}
		s.Judge(now)
		got := ""
		for _, trouble := range s.Troubles {
			got += trouble.Kind + ": " + trouble.What
			if !strings.Contains(trouble.Do, tc.do) {
				t.Errorf("%+v: %s", tc.c, trouble.Do)
			}
		}
		kind, words, _ := strings.Cut(tc.want, ": ")
		if !strings.HasPrefix(got, kind) || !strings.Contains(got, words) || tc.want == "" && got != "" {
			t.Errorf("%+v: %q, want %q", tc.c, got, tc.want)
		}
	}
}

// What usher has caught up is said for a day.
func TestCaughtUp(t *testing.T) {
	at := time.Date(2026, 11, 17, 2, 10, 0, 0, time.UTC)
	c := &CatchUp{CaughtAt: at.Add(5 * time.Minute), Webhooks: 12, Tenants: 10, From: at, To: at.Add(4 * time.Minute), Down: true}
	want := "caught up 12 webhooks of 10 tenants, sent while usher was down (2026-11-17 02:10:00 to 02:14:00 UTC)"
	if got := c.caughtUp(at.Add(24 * time.Hour)); got != want {
		t.Error(got)
	}
	if got := c.caughtUp(at.Add(25 * time.Hour)); got != "" {
		t.Error(got)
	}
	c = &CatchUp{CaughtAt: at, Webhooks: 1, Tenants: 1, From: at, To: at}
	want = "caught up 1 webhook of 1 tenant, which had not reached usher (2026-11-17 02:10:00 UTC)"
	if got := c.caughtUp(at); got != want {
		t.Error(got)
	}
	if got := (*CatchUp)(nil).caughtUp(at); got != "" {
		t.Error(got)
	}
}
