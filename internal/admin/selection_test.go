package admin

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"usher/internal/lane/state"
	"usher/internal/testkit/inboxtest"
)

func TestReadSelection(t *testing.T) {
	h := New(port(inboxtest.Open(t)))
	for _, tc := range []struct{ query, want string }{
		{"", ""},
		{"state=parked", "state=parked"},
		{"state=forwarded", `! there is no state "forwarded"`},
		{"state=", ""},
		{"state=lost", `! there is no state "lost"`},
		{"tenant=crm%2Facme", "tenant=crm%2Facme"},
		{"tenant=+acme+", "tenant=acme"},
		{"tenant=a%2Fb%2Fc", `! invalid tenant "a/b/c"`},
		{"tenant=100%25", `! invalid tenant "100%"`},
		{"since=2026-01-31T08:00&until=2026-01-31T09:00:00Z", "since=2026-01-31T08%3A00&until=2026-01-31T09%3A00"},
		// The confirmation and the action must select the same webhooks, so times keep their fractions of a second.
		{"since=2026-01-31T08:00:37.5Z&until=2026-01-31T09:00:01Z", "since=2026-01-31T08%3A00%3A37.5Z&until=2026-01-31T09%3A00%3A01Z"},
		{"since=yesterday", `! since is "yesterday"`},
		{"limit=-1", "! limit is"},
		{"before=1.0", "! before is"},
	} {
		query, _ := url.ParseQuery(tc.query)
		s, err := h.readSelection(query)
		if problem, bad := strings.CutPrefix(tc.want, "! "); bad {
			if err == nil || !slices.ContainsFunc(strings.Split(problem, "|"), func(p string) bool { return strings.Contains(err.Error(), p) }) {
				t.Errorf("%s: %v, want %s", tc.query, err, problem)
			}
		} else if err != nil || s.Query().Encode() != tc.want {
			t.Errorf("%s: %v %s, want %s", tc.query, err, s.Query().Encode(), tc.want)
		}
	}
	s, _ := h.readSelection(url.Values{"tenant": {"a%2Fb/c%25"}})
	if s.tenant.Platform == nil || *s.tenant.Platform != "a/b" || s.tenant.Tenant != "c%" {
		t.Errorf("%+v", s)
	}
}

// What arrives after the question is not acted on, whatever the clocks say.
func TestAskedByNumber(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"the same": 0, "the inbox's is behind": -time.Hour, "the inbox's is ahead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			b := inboxtest.Open(t)
			h := New(port(b))
			b.Answer(422, "no")
			b.Take("", "before", ten)
			b.Pass(ahead)
			b.Take("", "acme", ten)
			before := b.Stands()
			_, text := ask(h, "GET", "/webhooks?state=parked&ask=discard", "")
			form := regexp.MustCompile(`name="before" value="(\d+)"`).FindStringSubmatch(text)
			if form == nil || !strings.Contains(text, "Discard 2 webhooks?") {
				t.Fatal(text)
			}
			late := b.Take("", "late", ten)
			r := post(h, "/discard", "state=parked&before="+form[1])
			did := inboxtest.Acted(before, b.Stands())
			if is := b.Entry(late).State; r.Code != 303 || is != state.Parked || !strings.HasPrefix(did, "1 discarded; 2 discarded") {
				t.Errorf("%d, did %q, and what came later is %s", r.Code, did, is)
			}
		})
	}
}
