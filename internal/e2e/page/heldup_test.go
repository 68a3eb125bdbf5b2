package page

import (
	"net/http"
	"strings"
	"testing"

	"usher/internal/admin/status"
	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// A receiver that refuses two tenants and takes the others is not down: the page names the two, what holds
// them up and who waits behind it, however the last try went. When it is down, it is named.
func TestHeldUp(t *testing.T) {
	w := startWatched(t)
	for _, tenant := range []string{"harbour-ltd", "pier-ltd"} {
		w.receiver.BehaveTo(tenant, sandbox.Fault{Status: http.StatusInternalServerError})
	}
	for users := range 3 {
		post(t, w.gate, of("docs", "harbour-ltd", users+1))
	}
	post(t, w.gate, of("docs", "pier-ltd", 1))
	var s status.Status
	banner := func(severity, what string) func() bool {
		return func() bool {
			s = getJSON[status.Status](t, w.admin+"/api/status")
			return len(s.Wrong) == 1 && s.Wrong[0].Severity == severity && strings.HasPrefix(s.Wrong[0].What, what)
		}
	}
	refused := banner("warn", "The receiver does not take the webhooks of docs/harbour-ltd and docs/pier-ltd")
	testkit.Eventually(t, "told who is refused", refused)
	for users := range 20 { // whatever the last try was
		if post(t, w.gate, of("docs", "acme", users+1)); !refused() {
			t.Fatalf("another diagnosis: %+v", s.Wrong)
		}
	}
	if r := s.Gate.Receivers[0]; r.Tone != "warn" || r.State != "takes webhooks, but not those of 2 tenants" || r.Waiting < 4 {
		t.Errorf("%+v", r)
	}
	held := s.Inbox.HeldUp
	if len(held) != 2 || held[0].Tenant != "harbour-ltd" || held[0].Webhook != "1" || held[0].Behind != 2 || held[0].Answer != "500 Internal Server Error" || held[0].Tries == 0 || held[0].Next.IsZero() {
		t.Errorf("%+v", held)
	}
	_, page := get(t, w.admin+"/")
	for _, want := range []string{`>docs/harbour-ltd</a> is held up by <a href="/webhooks/1">webhook 1</a> (500 Internal Server Error, `, "; 2 wait behind it", "takes webhooks, but not those of 2 tenants"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for path, want := range map[string]string{
		"/webhooks/1":                            " failed, next ",
		"/webhooks/2":                            `held up by <a href="/webhooks/1">webhook 1</a> (500 `,
		"/tenant?platform=docs&code=harbour-ltd": `does not take webhook 1, which goes first: 500 `,
	} {
		testkit.Eventually(t, path+" says "+want, func() bool { _, page := get(t, w.admin+path); return strings.Contains(page, want) })
	}
	w.receiver.Behave(sandbox.Fault{Status: http.StatusServiceUnavailable})
	post(t, w.gate, of("docs", "acme", 100))
	testkit.Eventually(t, "told that the receiver is down", banner("bad", "The receiver answers with errors: "))
	// Then nobody knows when one of its webhooks is tried next: usher tries one after the other to see whether it is back.
	testkit.Eventually(t, "told what they wait for", func() bool {
		_, page := get(t, w.admin+"/webhooks?search=acme&state=waiting")
		return strings.Contains(page, "next try when the receiver is back")
	})
}
