package status

import (
	"testing"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/inbox"
	"usher/internal/lane"
)

func TestInboxWords(t *testing.T) {
	held := make([]inbox.HeldUp, shownHeldUp+2)
	for i := range held {
		held[i].Webhook = new(lane.Webhook)
		held[i].Tried = []lane.Try{{Status: 500, Answer: "in  use"}}
	}
	held[0].Platform, held[0].Tenant, held[0].Down = "crm", "acme", true
	stats := inbox.Stats{Paused: []inbox.Pause{{Tenant: "other"}}}
	box := NewInbox(stats, held, mainReceiver, nil)
	if h := &box.FirstHeldUp()[0]; len(box.FirstHeldUp()) != shownHeldUp || box.MoreHeldUp() != 2 || h.Name() != "crm/acme" || h.Answer != "500: in use" || h.Words() != "500: in use, 0 tries, next try when the receiver is back" || h.Paused {
		t.Errorf("%+v", box)
	}
	stats.Paused = []inbox.Pause{{}}
	s := &Status{Gate: &Gate{Set: mainReceiver}, Inbox: NewInbox(stats, held[:1], mainReceiver, nil), Health: &Health{Inbox: new(InboxHealth)}}
	s.Judge(time.Now())
	if h := &s.Inbox.HeldUp[0]; s.Inbox.MoreHeldUp() != 0 || !h.Paused || h.Words() != "500: in use, 0 tries, paused" || !s.Gate.Receivers[0].Paused {
		t.Errorf("%+v", s)
	}
}

// Before everything was asked nobody knows that all is well.
func TestStarting(t *testing.T) {
	for _, tc := range []struct {
		stats inbox.Stats
		want  bool
	}{{inbox.Stats{}, true}, {inbox.Stats{At: time.Now(), Starting: true}, true}, {inbox.Stats{At: time.Now()}, false}} {
		s := &Status{Inbox: NewInbox(tc.stats, nil, mainReceiver, nil), Health: &Health{Inbox: &InboxHealth{Opened: true}}}
		if s.Judge(time.Now()); s.Starting != tc.want || len(s.Troubles) > 0 {
			t.Errorf("%+v: starting %v, %v", tc.stats, s.Starting, s.Troubles)
		}
	}
}

// A chart of an usher that has just started shows minutes, not an empty hour.
func TestSinceFirst(t *testing.T) {
	for silent, want := range map[int]int{60: 10, 59: 10, 50: 10, 49: 20, 40: 20, 31: 30, 30: 30, 29: 60, 0: 60} {
		hour := make([]metrics.Minute, 60)
		for i := range hour[silent:] {
			hour[silent+i].Counts[0] = 1
		}
		if got := len(sinceFirst(hour)); got != want {
			t.Errorf("%d silent minutes: %d are shown, want %d", silent, got, want)
		}
	}
}
