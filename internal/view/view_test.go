package view

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"usher/internal/inbox"
	"usher/internal/lane/state"
	"usher/internal/receiver"
)

func TestWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			d         time.Duration
			span, age string
		}{
			{-time.Second, "0s", "0s"},
			{350 * time.Microsecond, "0.35ms", "0s"},
			{2500 * time.Microsecond, "2.5ms", "0s"},
			{9990 * time.Microsecond, "10ms", "0s"},
			{35 * time.Millisecond, "35ms", "0s"},
			{1500 * time.Millisecond, "1.5s", "1s"},
			{34 * time.Second, "34s", "34s"},
			{130 * time.Second, "2m 10s", "2m"},
			{26 * time.Minute, "26m", "26m"},
			{94 * time.Minute, "1h 34m", "1h"},
			{2 * time.Hour, "2h", "2h"},
			{76 * time.Hour, "3d 4h", "3d"},
		} {
			if s, a := Span(tc.d), Age(time.Now().Add(-tc.d)); s != tc.span || a != tc.age {
				t.Errorf("%v: %q, %q", tc.d, s, a)
			}
		}
	})
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := Count(n); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
	w := Webhook{Changes: []string{"+ a", "- b", "c", "d", "e", "f", "g"}, Source: "reconcile"}
	if got := w.Change(); got != "reconcile: + a, - b, c, d, e, and 2 more" {
		t.Error(got)
	}
	for want, names := range map[string][]string{"": nil, "a": {"a"}, "a and b": {"a", "b"}, "a, b and c": {"a", "b", "c"}, "a, b, c and 1 other": {"a", "b", "c", "d"}, "a, b, c and 2 others": {"a", "b", "c", "d", "e"}} {
		if got := FirstFew(names); got != want {
			t.Errorf("%q: %q, want %q", names, got, want)
		}
	}
}

// On a terminal each line is cut so that it fits, and what changed leaves room for the last answer. The page has the
// same columns, words and colours.
func TestList(t *testing.T) {
	var out strings.Builder
	now := time.Now()
	list := []Webhook{
		{ID: "12", Tenant: "a/c", Received: now.Add(-3 * time.Minute), State: state.Parked, Tries: 20, Answer: "500 Internal Server Error", Changes: []string{"users 5 → 10", "- sso"}},
		{ID: "7", Platform: "eu", Tenant: "acme", Received: now.Add(time.Second), State: state.Waiting, Next: now.Add(40 * time.Second), Answer: "599: unknown tenant: please create it", Behind: 26, Changes: []string{"+ sso"}},
		{ID: "8", Platform: "eu", Tenant: "acme", Received: now, State: state.Waiting, HeldBy: "7", Paused: true},
	}
	p := Printer[Webhook]{Columns: Webhooks, Width: 80}
	if err := p.Print(&out, list); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"ID  STATE    TENANT   WHAT CHANGED         TRIES  AGE  LAST ANSWER\n" +
		"12  parked   /a%2Fc   users 5 → 10, - sso  20     3m   500 Internal Server Error\n" +
		"7   waiting  eu/acme  + sso                0      0s   599: unknown tenant: ple…\n" +
		"8   waiting  eu/acme  -                    0      0s   paused; behind 7\n"
	if out.String() != want {
		t.Errorf("\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	long := Webhook{ID: "9223372036854775807", Tenant: strings.Repeat("é", 36), State: state.Superseded, Tries: 99999, Why: strings.Repeat("é", 200)}
	if err := p.Print(&out, []Webhook{long}); err != nil { // the next page has no headings
		t.Fatal(err)
	}
	if n := utf8.RuneCountInString(out.String()); strings.Contains(out.String(), "TENANT") || n > 80+len("\n") {
		t.Errorf("%d columns: %s", n, out.String())
	}
	table := NewTable(Webhooks, list, (*Webhook).ElementID)
	row := table.Rows[2]
	if row.ID != "w-8" || row.Cells[1].Tone != "warn" || row.Cells[2].Link != "/tenant?code=acme&platform=eu" || row.Cells[6].Notes[1] != (Note{"behind 7", "/webhooks/7"}) {
		t.Errorf("%+v", row)
	}
}

// The receiver that will be tried counts, not the one that was tried last.
func TestPausedBy(t *testing.T) {
	crm := &receiver.Receiver{Name: "crm", Platforms: []string{"crm", "docs"}}
	known := receiver.NewSet(&receiver.Receiver{Name: "main"}, crm)
	for _, tc := range []struct {
		known            *receiver.Set
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
		{receiver.NewSet(crm), inbox.Pause{Receiver: "main"}, "mars", "acme", "main", true},
		{known, inbox.Pause{Platform: "crm", Tenant: "acme"}, "crm", "acme", "", true},
		{known, inbox.Pause{Platform: "crm", Tenant: "acme"}, "", "acme", "", false},
	} {
		if got := PausedBy([]inbox.Pause{{Tenant: "other"}, tc.pause}, tc.known, tc.platform, tc.tenant, tc.tried); (got != nil) != tc.want || got != nil && *got != tc.pause {
			t.Errorf("%s/%s, tried at %q, with %s paused: %v", tc.platform, tc.tenant, tc.tried, tc.pause, got)
		}
	}
}
