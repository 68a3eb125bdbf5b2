package record

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"usher/webhookgate"
)

func TestFilter(t *testing.T) {
	for _, tc := range []struct {
		filter Filter
		want   string
	}{
		{Filter{}, "1 2 3 4"},
		{Filter{Before: 3}, "1 2"},
		{Filter{Before: 1}, ""},
		{Filter{Tenant: "t1"}, "1 3"},
		{Filter{Tenant: "t1", Before: 3}, "1"},
		{Filter{Search: "MÜLLER 3"}, "3"},
		{Filter{Search: "ID-4"}, "4"},
		{Filter{Search: "crm", Tenant: "t0"}, "2 4"},
		{Filter{Search: "nobody"}, ""},
		{Filter{State: Waiting}, "1 2 3"},
		{Filter{State: Parked}, "4"},
	} {
		var got []string
		for n := uint64(1); n <= 4; n++ {
			e := Entry{
				ID: n, Webhook: fmt.Sprint("id-", n), Type: "T", Platform: "crm", Tenant: fmt.Sprint("t", n%2),
				Status: Status{State: Waiting},
			}
			if n == 4 {
				e.State = Parked
			}
			if tc.filter.Match(&e, fmt.Appendf(nil, `{"name":"Müller %d"}`, n)) {
				got = append(got, fmt.Sprint(n))
			}
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%+v: %q, want %s", tc.filter, got, tc.want)
		}
	}
}

// Of many attempts the last are kept, and the receiver's words of few; those noted
// before are left as they were.
func TestAttempts(t *testing.T) {
	r := &Record{ID: 1, Webhook: webhook("t", "A"), Status: Status{State: Waiting}}
	now := time.Now()
	for n := 1; n <= 50; n++ {
		before := r.Status.Attempts
		words := fmt.Sprint(before)
		r.NoteAttempt(now, now.Add(time.Second), webhookgate.Attempt{Status: 500 + n, Excerpt: fmt.Sprint("words ", n)})
		if fmt.Sprint(before) != words {
			t.Fatalf("attempt %d changed those before it", n)
		}
	}
	a := r.Status.Attempts
	if len(a) != KeptAttempts || a[0].Status != 531 || a[19].Status != 550 || r.Status.Tries != 50 || a[19].Took != time.Second {
		t.Errorf("%d kept: %+v", len(a), r.Status)
	}
	for n, attempt := range a {
		want := ""
		if n >= 17 {
			want = fmt.Sprint("words ", 31+n)
		}
		if attempt.Answer != want {
			t.Errorf("attempt %d has %q, want %q", n, attempt.Answer, want)
		}
	}
	r.NoteAttempt(now, now, webhookgate.Attempt{Err: errors.New("refused")})
	r.NoteAttempt(now, now, webhookgate.Attempt{Status: 200, Excerpt: "thanks"})
	if a := r.Status.Attempts; a[18].Error != "refused" || a[19].Answer != "" {
		t.Errorf("%+v", a[18:])
	}
}

func TestReadable(t *testing.T) {
	for in, want := range map[string]string{
		"unknown tenant: please create it first": "unknown tenant: please create it first",
		" a\r\n\tb\n":                            "a   b",
		"\x1b[31mred\x1b[0m\x07":                 "[31mred[0m",
		"Grüße \xff":                             "Grüße \uFFFD",
		"\u202egnp.exe\u2066":                    "gnp.exe",
		"":                                       "",
		strings.Repeat("ü", 600):                 strings.Repeat("ü", 512),
		"x" + strings.Repeat("ü", 600):           "x" + strings.Repeat("ü", 511),
	} {
		if got := readable(in, maxAnswer); got != want || !utf8.ValidString(got) {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestHeld(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		state State
		since time.Time
		want  bool
	}{
		{Waiting, now.Add(-time.Hour), true},
		{Delivered, now, true},
		{Delivered, now.Add(-time.Hour), false},
		{Kept, now, true},
		{Kept, now.Add(-time.Hour), false},
		{Parked, now, false},
		{Discarded, now, false},
		{Superseded, now, false},
		{"", now, false},
	} {
		if got := Held(tc.state, tc.since, time.Minute); got != tc.want {
			t.Errorf("%s since %v: %v", tc.state, now.Sub(tc.since), got)
		}
	}
}

func TestAttemptWords(t *testing.T) {
	for _, tc := range []struct {
		try  Attempt
		want string
	}{
		{Attempt{}, "no answer"},
		{Attempt{Error: "connection refused"}, "connection refused"},
		{Attempt{Status: 200}, "200 OK"},
		{Attempt{Status: 599}, "599"},
		{Attempt{Status: 500, Answer: " 8 users\n are in use ", Error: "x"}, "500: 8 users are in use"},
		{Attempt{Status: 200, Error: "the answer broke off"}, "200 OK: the answer broke off"},
	} {
		if got := tc.try.Words(); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.try, got, tc.want)
		}
	}
}
