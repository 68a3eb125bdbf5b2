package admin

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/lane/state"
	"usher/internal/testkit/inboxtest"
	"usher/webhookgate"
)

func TestReadSelection(t *testing.T) {
	for _, tc := range []struct{ query, want string }{
		{"", ""},
		{"state=parked", "state=parked"},
		{"state=rejected", "state=rejected"},
		{"state=forwarded", "state=forwarded"},
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
		{"before=1", "! before is"},
	} {
		s, err := readSelection(httptest.NewRequest("GET", "/webhooks?"+tc.query, nil))
		if problem, bad := strings.CutPrefix(tc.want, "! "); bad {
			if err == nil || !slices.ContainsFunc(strings.Split(problem, "|"), func(p string) bool { return strings.Contains(err.Error(), p) }) {
				t.Errorf("%s: %v, want %s", tc.query, err, problem)
			}
		} else if err != nil || s.Query().Encode() != tc.want {
			t.Errorf("%s: %v %s, want %s", tc.query, err, s.Query().Encode(), tc.want)
		}
	}
	s, _ := readSelection(httptest.NewRequest("GET", "/webhooks?tenant=a%252Fb%2Fc%2525", nil))
	if s.tenant.Platform == nil || *s.tenant.Platform != "a/b" || s.tenant.Tenant != "c%" {
		t.Errorf("%+v", s)
	}
}

// The filters by time and platform apply to the inbox and to the decisions.
func TestSelectionByTimeAndPlatform(t *testing.T) {
	h, begin := busy(t, 100) // a minute apart; the duplicates are of platform docs
	at := url.QueryEscape(begin.Add(18*time.Minute + 30*time.Second).Format(time.RFC3339Nano))
	for query, want := range map[string]int{"since=" + at: 81 + 27, "until=" + at: 19 + 6, "tenant=docs/t1&state=duplicate": 17} {
		_, body := ask(h, "GET", "/api/webhooks?limit=500&"+query, "")
		var list WebhookList
		if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Webhooks) != want {
			t.Errorf("%s: %d, want %d", query, len(list.Webhooks), want)
		}
	}
}

// A shell does not interpret anything in a payload or a header.
func TestCurlLine(t *testing.T) {
	body := "{\"name\":\"it's $(touch /tmp/never) `x`\"}"
	d := &WebhookDetail{Webhook: Webhook{ID: "7", UUID: "msg_1"}, raw: []byte(body), Header: map[string][]string{"Webhook-Id": {"msg_1"}, "Webhook-Timestamp": {"1"}, "Webhook-Signature": {"[redacted]"}, "X-Note": {`'; exit 1; '`}}}
	out, err := exec.Command("sh", "-c", `curl() { for word; do printf '%s\n' "$word"; done; }; RECEIVER_URL=http://r; `+d.Curl()).Output()
	want := "-X\nPOST\nhttp://r\n-H\nWebhook-Id: msg_1\n-H\nX-Note: '; exit 1; '\n--data-binary\n" + body + "\n"
	if err != nil || string(out) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
}

// A payload that nobody can paste, or that curl would take for the name of a file, is in a file. A header
// that nobody can paste is left out.
func TestCurlLineHasOnlyWhatCanBePasted(t *testing.T) {
	for body, want := range map[string]string{
		"{\"a\":\n 1}":       "{\"a\":\n 1}",
		"@/etc/passwd":       "@webhook-7.json",
		"not JSON; id":       "@webhook-7.json",
		"{\"a\":\"\u009b\"}": "@webhook-7.json",
		"{\"a\":\r1}":        "@webhook-7.json",
		"\"\xff\"":           "@webhook-7.json",
		`"` + strings.Repeat("x", maxCurlPayload) + `"`: "@webhook-7.json",
	} {
		d := &WebhookDetail{Webhook: Webhook{ID: "7"}, raw: []byte(body), Header: map[string][]string{"X-Tab": {"a\tb"}, "X-Latin": {"\xe9"}, "X-Plain": {"é"}}}
		out, err := exec.Command("sh", "-c", `curl() { for word; do printf '%s\n' "$word"; done; }; RECEIVER_URL=http://r; `+d.Curl()).Output()
		if got := string(out); err != nil || got != "-X\nPOST\nhttp://r\n-H\nX-Plain: é\n--data-binary\n"+want+"\n" {
			t.Errorf("%.20q: %v %q", body, err, got)
		}
	}
}

// A payload is downloaded as a file, byte for byte as it came.
func TestDownload(t *testing.T) {
	h, _ := busy(t, 3)
	if status, body := ask(h, "GET", numbered(t, h, "/webhooks/2/payload"), ""); status != 200 || body != ten {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := ask(h, "GET", "/webhooks/d1/payload", ""); status != 404 { // a duplicate's is not kept
		t.Errorf("%d", status)
	}
}

// queueMany takes in webhooks of so many tenants.
func queueMany(t *testing.T, b *inboxtest.Box, webhooks int) {
	var wg sync.WaitGroup
	for first := range 50 {
		wg.Go(func() {
			for n := first; n < webhooks; n += 50 {
				_, err := b.Store(&webhookgate.Webhook{
					ID: fmt.Sprint("id-", n), Type: "TenantProvisioningChange", Snapshot: true,
					Lane: webhookgate.LaneName{Tenant: fmt.Sprint("t", n)}, Receiver: b.Receivers.For(""),
					Header: http.Header{}, Body: []byte(five), Digest: sha256.Sum256([]byte(five)),
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// An action may be about very many webhooks, and each may have many tries. What is kept of them meanwhile is little.
func TestActionsOnManyNeedLittleMemory(t *testing.T) {
	const webhooks = 600 // more than are read at once
	b := inboxtest.Open(t)
	h := New(port(b))
	b.Answer(422, strings.Repeat("x", 400))
	queueMany(t, b, webhooks)
	for list := (WebhookList{}); len(list.Webhooks) < webhooks; {
		_, body := ask(h, "GET", "/api/webhooks?limit=0&state=parked", "")
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
	}
	inUse := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := inUse()
	chosen, err := h.chooseToRedeliver(context.Background(), selection{Outcome: "parked"}, false)
	took := (inUse() - before) / webhooks
	runtime.KeepAlive(chosen) // or it is gone before it is measured
	if err != nil || len(chosen.ids) != webhooks || took > 200 {
		t.Errorf("%d webhooks, %d bytes each: %v", len(chosen.ids), took, err)
	}
}

// A long list is written page by page, and has each webhook once. One with a limit says where it goes on.
func TestLongList(t *testing.T) {
	const webhooks = 1203
	b := inboxtest.Open(t, "main-less")
	h := New(port(b))
	queueMany(t, b, webhooks)
	for query, want := range map[string]struct {
		count int
		next  string
	}{"limit=0": {webhooks, ""}, "limit=501": {501, "703.0"}, "limit=1000": {1000, "204.0"}, "limit=1203": {webhooks, ""}, "limit=0&before=704.0": {703, ""}} {
		status, body := ask(h, "GET", "/api/webhooks?"+query, "")
		var list WebhookList
		err := json.Unmarshal([]byte(body), &list)
		if status != 200 || err != nil || len(list.Webhooks) != want.count || list.Next != want.next {
			t.Fatalf("%s: %d, %v, %d webhooks, next %q", query, status, err, len(list.Webhooks), list.Next)
		}
		for i := range list.Webhooks[1:] {
			if one, next := list.Webhooks[i].ID, list.Webhooks[i+1].ID; len(one) < len(next) || len(one) == len(next) && one <= next {
				t.Fatalf("%s: %s before %s", query, one, next)
			}
		}
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
			_, text := ask(h, "GET", "/discard?state=parked", "")
			form := regexp.MustCompile(`action="(/discard[^"]*)"`).FindStringSubmatch(text)
			if form == nil || !strings.Contains(text, "Discard 2 webhooks?") {
				t.Fatal(text)
			}
			late := b.Take("", "late", ten)
			r := post(h, html.UnescapeString(form[1]), "")
			did := inboxtest.Acted(before, b.Stands())
			if is := b.Entry(late).State; r.Code != 303 || is != state.Parked || !strings.HasPrefix(did, "1 discarded; 2 discarded") {
				t.Errorf("%d, did %q, and what came later is %s", r.Code, did, is)
			}
		})
	}
}
