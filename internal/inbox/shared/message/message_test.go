package message

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

// The servers take headers up to 64 KiB. The longest names, errors and answers fit, of the letters that take most bytes in
// JSON.
func TestLongestOutcomeFits(t *testing.T) {
	w := inboxtest.Webhook(strings.Repeat("\"", LongestHead/4*3-256), "A")
	r := &record.Record{ID: 1 << 60, Webhook: w}
	for _, letter := range []string{`"`, `\`, "<", "&", "\x00", "\xff", "\u2028", "\u202e", "ü"} {
		long := strings.Repeat(letter, 8<<10)
		r.Status = record.Status{State: record.Waiting, Why: "the receiver will not take it", Receiver: "billing"}
		for range 2 * record.KeptAttempts {
			now := time.Now()
			r.NoteAttempt(now, now.Add(time.Hour), webhookgate.Attempt{Status: 502, Err: errors.New(long), Excerpt: long})
		}
		m := New("subject", r, Content{})
		servers.Rollup(m)
		servers.ExpectOn(m, "subject", 1<<60)
		if size := len(m.Header.Get(HeadHeader)); size > LongestHead || size < LongestHead-512 {
			t.Fatalf("the head takes %d bytes", size)
		}
		if size := len(m.Header.Get(StatusHeader)); size > Outcome {
			t.Errorf("%q: the outcome takes %d bytes", letter, size)
		}
		if size := m.Size(); size > 64<<10-1<<10 {
			t.Errorf("%q: the headers take %d bytes", letter, size)
		}
	}
}

// A subject says what it is of; one that usher does not write says nothing.
func TestSplit(t *testing.T) {
	s := Subjects{Prefix: "usher.", Parts: Parts}
	place := PlaceOf(webhookgate.Lane{Platform: "p", Tenant: "acme"})
	part := fmt.Sprintf("%x", s.PartOf(place))
	for subject, want := range map[string]string{
		s.Lane(place):                          "in " + place + " 0",
		s.State(place, 17):                     "state " + place + " 17",
		s.Part(3, "lease"):                     "lease  0",
		s.Part(3, "claim"):                     "claim  0",
		"usher.paused":                         "  0",
		s.State(place, 17) + ".18":             "  0",
		s.Lane(place) + ".17":                  "  0",
		"usher." + part + ".other." + place:    "  0",
		"usher." + part + ".state." + place:    "  0",
		"usher.z.in." + place:                  "  0",
		s.Part(s.PartOf(place), "state.x.y.z"): "  0",
	} {
		kind, place, id := s.Split(subject)
		if got := fmt.Sprint(kind, " ", place, " ", id); got != want {
			t.Errorf("%s is %q, want %q", subject, got, want)
		}
	}
}
