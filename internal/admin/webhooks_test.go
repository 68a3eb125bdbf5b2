package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"usher/internal/admin/decisions"
	"usher/internal/admin/status"
	"usher/internal/inbox"
	"usher/webhookgate"
	"usher/webhookgate/content"
)

// busy is an admin port with an inbox of n webhooks, a second apart, and after every
// third of them a duplicate that the inbox never saw.
func busy(n int) *Handler {
	cfg := new(fakeInbox).config("")
	cfg.Decisions = decisions.New(false)
	cfg.Gate = func() *status.GateState {
		return &status.GateState{Address: "http://127.0.0.1:8090/webhooks", Receivers: []status.ReceiverState{{Name: "main", Address: "http://receiver"}}}
	}
	begin := time.Unix(1e9, 0)
	var entries []inbox.Entry
	for i := 1; i <= n; i++ {
		at := begin.Add(time.Duration(i) * time.Second)
		entries = append(entries, inbox.Entry{ID: uint64(i), Type: content.TenantProvisioningChange, Tenant: fmt.Sprint("t", i%2), Platform: "crm", Received: at, Status: inbox.Status{State: inbox.Delivered}})
		if i%3 == 0 {
			cfg.Decisions.Add(webhookgate.Outcome{
				At: at.Add(time.Millisecond), Decision: "duplicate", Status: 200, DuplicateOf: "x",
				Webhook: &webhookgate.Webhook{Lane: webhookgate.Lane{Platform: "docs", Tenant: fmt.Sprint("t", i%2)}},
			})
		}
	}
	slices.Reverse(entries)
	cfg.Inbox.List = func(f inbox.Filter) (out []inbox.Entry, _ error) {
		for _, e := range entries {
			if f.Match(&e, nil) && (f.Limit == 0 || len(out) < f.Limit) {
				out = append(out, e)
			}
		}
		return out, nil
	}
	cfg.Inbox.Show = func(id uint64) (*inbox.Item, error) {
		item := &inbox.Item{Entry: entries[n-int(id)], Body: []byte(ten)}
		if id > 1 {
			item.Previous = &inbox.Previous{ID: id - 1, Body: []byte(five)}
		}
		return item, nil
	}
	return New(cfg)
}

// Page after page, each webhook comes once, the newest first, from both sources.
func TestWebhooksPageByPage(t *testing.T) {
	h := busy(100)
	for _, tc := range []struct {
		query string
		want  int
	}{{"", 133}, {"&tenant=crm/t1", 50}, {"&outcome=duplicate", 33}, {"&inbox=true", 100}, {"&outcome=delivered", 100}, {"&outcome=rejected", 0}} {
		seen := make(map[string]bool)
		before, last := "", time.Now()
		for pages := 0; ; pages++ {
			target := "/api/webhooks?limit=7" + tc.query
			if before != "" {
				target += "&before=" + before
			}
			status, body := ask(h, "GET", target, "")
			var list WebhookList
			if err := json.Unmarshal([]byte(body), &list); err != nil || status != 200 || pages > 30 {
				t.Fatalf("%d %s", status, body)
			}
			for _, w := range list.Webhooks {
				if seen[w.ID] || w.Received.After(last) {
					t.Fatalf("%s: %s is there twice, or too late", tc.query, w.ID)
				}
				seen[w.ID], last = true, w.Received
			}
			if before = list.Next; before == "" {
				break
			}
		}
		if len(seen) != tc.want {
			t.Errorf("%q: %d webhooks, want %d", tc.query, len(seen), tc.want)
		}
	}
}

func TestPages(t *testing.T) {
	h := busy(100)
	html := []string{"Accept", "text/html,*/*"}
	for _, tc := range []struct {
		name, target string
		status       int
		want         []string // in the page
	}{
		{"overview", "/", 200, []string{"Webhook gate", "http://receiver", "all webhooks", "users 5 → 10"}},
		{"list", "/webhooks", 200, []string{`href="/webhooks?before=`, "users 5 → 10", "nothing: the same as before", "data-live"}},
		{"further on", "/webhooks?before=50.20&tenant=t1", 200, []string{`href="/webhooks?tenant=t1">Newest`, `value="t1"`}},
		{"none", "/webhooks?outcome=failed", 200, []string{"No webhook matches"}},
		{"bad selection", "/webhooks?outcome=lost", 400, []string{"there is no outcome", "To the overview"}},
		{"bad cursor", "/webhooks?before=x", 400, []string{"before is"}},
		{"bad limit", "/webhooks?limit=x", 400, []string{"limit is"}},
		{"one", "/webhooks/7", 200, []string{`<li class="changed">users 5 → 10</li>`, "webhook 6", "Send again…", "&#34;quantity&#34;: 10"}},
		{"the first", "/webhooks/1", 200, []string{"all of it is new", `<li class="added">`}},
		{"a decision", "/webhooks/d3", 200, []string{"duplicate", "/webhooks?search=x"}},
		{"no decision", "/webhooks/d999", 404, []string{"not remembered"}},
		{"no webhook", "/webhooks/x", 404, []string{"no such webhook"}},
		{"asked", "/webhooks/7/redeliver", 200, []string{`method="post" action="/webhooks/7/redeliver"`, "No, go back"}},
		{"asked to discard", "/webhooks/7/discard", 200, []string{`method="post" action="/webhooks/7/discard"`, "The receiver never gets this snapshot of crm/t1"}},
		{"asked for many", "/redeliver?tenant=crm/t1", 200, []string{"Send 1 webhook again?", "49 older ones are left out", "force=true", `action="/redeliver?tenant=crm%2Ft1&amp;until=20`}},
		{"asked to force many", "/redeliver?tenant=crm/t1&force=true", 200, []string{"Send 50 webhooks again?", "may undo newer ones", `name="force" value="true"`}},
		{"asked for what can't be", "/discard?outcome=delivered", 200, []string{"There is nothing to discard", "Go back"}},
		{"asked for all", "/discard", 400, []string{"say which"}},
		{"asked to pause", "/pause?receiver=main", 200, []string{"Pause receiver main?", `name="receiver" value="main"`}},
		{"asked to pause a name that is empty", "/pause?tenant=", 400, []string{"neither a tenant nor a receiver"}},
		{"asked to pause a name that can't be read", "/pause?tenant=50%off", 400, []string{"the query can&#39;t be read"}},
		{"asked to pause somebody unknown", "/pause?receiver=nobody", 404, []string{"no receiver nobody: there is main"}},
		{"what a filter offers", "/webhooks?outcome=delivered", 200, []string{`href="/redeliver?outcome=delivered"`}},
		{"tenant", "/tenant?platform=crm&code=t1", 200, []string{"What it should have now", "<code>users</code>", "also on docs", "Forget tenant…"}},
		{"tenant elsewhere", "/tenant?platform=mars&code=t1", 404, []string{"on another"}},
		{"no tenant", "/tenant?platform=mars&code=nobody", 404, []string{"knows nothing"}},
		{"tenant without a code", "/tenant", 400, []string{"code is missing"}},
		{"style", "/static/usher.css", 200, []string{"--ground"}},
		{"no such file", "/static/nothing", 404, nil},
		{"nor the templates", "/static/..%2fhtml%2flayout.html", 404, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body := ask(h, "GET", tc.target, "", html...)
			if status != tc.status {
				t.Fatalf("%d %s", status, body)
			}
			for _, want := range tc.want {
				if !strings.Contains(body, want) {
					t.Errorf("no %q in\n%s", want, body)
				}
			}
		})
	}
}

// What others wrote stays text.
func TestPagesEscape(t *testing.T) {
	const evil = `<script>alert(1)</script>"'&`
	cfg := new(fakeInbox).config("")
	cfg.Inbox = nil
	cfg.Gate = func() *status.GateState { return &status.GateState{} }
	cfg.Decisions = decisions.New(true)
	body, err := json.Marshal(map[string]any{"payload": map[string]any{"tenant": map[string]any{"name": evil}, "change": map[string]any{"features": []any{map[string]any{"code": evil, "name": evil}}}}})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Decisions.Add(webhookgate.Outcome{
		Decision: "failed", Status: 502, Why: evil, Faults: []content.Fault{{Path: evil, Message: evil}},
		Webhook: &webhookgate.Webhook{ID: evil, Type: evil, Lane: webhookgate.Lane{Platform: evil, Tenant: evil}, Snapshot: true, Body: body, Header: http.Header{"X-" + evil: {evil}}},
	})
	h := New(cfg)
	for _, target := range []string{"/", "/webhooks", "/webhooks/d1", "/webhooks?tenant=%3Cscript%3E", "/tenant?code=" + "%3Cscript%3Ealert(1)%3C%2Fscript%3E%22%27%26&platform=%3Cscript%3Ealert(1)%3C%2Fscript%3E%22%27%26", "/tenant/forget?code=%3Cscript%3E"} {
		status, page := ask(h, "GET", target, "", "Accept", "text/html")
		if status != 200 || strings.Contains(strings.ReplaceAll(page, `<script src="/static/usher.js`, ""), "<script") {
			t.Errorf("%s: %d\n%s", target, status, page)
		}
	}
}

func TestActions(t *testing.T) {
	form := []string{"Content-Type", "application/x-www-form-urlencoded", "Accept", "text/html", "Sec-Fetch-Site", "same-origin"}
	for _, tc := range []struct {
		name, target, body string
		status             int
		want, asked        string
	}{
		{"redeliver", "/webhooks/3/redeliver", "", 303, "", "redeliver 3 false"},
		{"an old one", "/webhooks/2/redeliver", "", 409, `name="force" value="true"`, "redeliver 2 false"},
		{"an old one all the same", "/webhooks/2/redeliver", "force=true", 303, "", "redeliver 2 true"},
		{"what is not there", "/webhooks/9/redeliver", "", 404, "no such webhook", "redeliver 9 false"},
		{"force is not taken from the address", "/webhooks/2/redeliver?force=true", "", 409, "", "redeliver 2 false"},
		{"discard", "/webhooks/3/discard", "", 303, "", "discard 3"},
		{"discard what is finished", "/webhooks/2/discard", "", 409, "neither waits", "discard 2"},
		{"send all again", "/redeliver?outcome=parked", "", 303, "", `list "parked" "" 0; list "" "" 0; redeliver 3 false`},
		{"send all again, the older ones, too", "/redeliver?outcome=parked", "force=true", 303, "", `list "parked" "" 0; redeliver 2 true; redeliver 3 true`},
		{"nothing is forced by the address", "/redeliver?outcome=parked&force=true", "", 303, "", `list "parked" "" 0; list "" "" 0; redeliver 3 false`},
		{"send everything again", "/redeliver", "", 400, "say which", ""},
		{"discard all", "/discard?tenant=eu/acme&until=2026-01-31T08:00:00.5Z", "", 303, "", `list "" "acme" 0; discard 3`},
		{"discard with a slip", "/discard?outcome=parked&tennant=eu/acme", "", 400, "tennant", ""},
		{"pause", "/pause", "", 303, "", "pause all deliveries"},
		{"pause a tenant", "/pause", "tenant=acme&platform=eu", 303, "", "pause tenant eu/acme"},
		{"pause a receiver", "/pause", "receiver=main", 303, "", "pause receiver main"},
		{"pause nobody", "/pause", "tenant=nobody&platform=eu", 404, "no tenant eu/nobody", ""},
		{"resume", "/resume", "tenant=acme&platform=eu", 303, "", "resume tenant eu/acme"},
		{"erase", "/tenant/erase", "code=acme&platform=eu", 303, "", "erase eu|acme"},
		{"erase nobody", "/tenant/erase", "code=nobody&platform=eu", 404, "no tenant eu/nobody", ""},
		{"forget", "/tenant/forget", "code=acme&platform=eu", 303, "", "forget eu|acme"},
		{"forget nobody", "/tenant/forget", "", 400, "code is missing", ""},
		{"too much", "/tenant/forget", "code=" + strings.Repeat("x", maxRequest), 413, "too large", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := new(fakeInbox)
			status, body := ask(New(f.config("")), "POST", tc.target, tc.body, form...)
			if status != tc.status || !strings.Contains(body, tc.want) || strings.Join(f.asked, "; ") != tc.asked {
				t.Errorf("%d, asked for %q\n%s", status, f.asked, body)
			}
		})
	}
	// Neither a foreign page, nor anything but a POST.
	f := new(fakeInbox)
	h := New(f.config(""))
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "http://evil.example"}, {"Origin", "null"}} {
		for _, target := range []string{"/webhooks/3/redeliver", "/webhooks/3/discard", "/redeliver?outcome=parked", "/discard?outcome=parked", "/pause", "/resume", "/tenant/erase", "/tenant/forget"} {
			if status, _ := ask(h, "POST", target, "code=acme", append(header, form[:4]...)...); status != 403 {
				t.Errorf("%s from %s: %d", target, header, status)
			}
		}
	}
	for _, method := range []string{"PUT", "DELETE", "PATCH"} {
		if status, _ := ask(h, method, "/webhooks/3/redeliver", ""); status != 405 {
			t.Errorf("%s: %d", method, status)
		}
	}
	for _, target := range []string{"/webhooks/3/redeliver?force=true", "/webhooks/3/discard", "/redeliver?outcome=parked", "/discard?outcome=parked", "/pause", "/resume", "/tenant/erase?code=acme&platform=eu"} {
		ask(h, "GET", target, "")
	}
	for _, asked := range f.asked {
		if !strings.HasPrefix(asked, "list ") {
			t.Errorf("asked for %q", asked)
		}
	}
}

// What a foreign page embeds is refused; a link that somebody follows is not.
func TestEmbedded(t *testing.T) {
	h := New(new(fakeInbox).config(""))
	for _, tc := range []struct {
		status int
		header []string
	}{
		{200, nil},
		{200, []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"}},
		{200, []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors"}},
		{200, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}},
		{403, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}},
		{403, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}},
		{403, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"}},
		{403, []string{"Origin", "http://evil.example"}},
		{403, []string{"Origin", "null"}},
		{200, []string{"Origin", "http://127.0.0.1:9095"}},
	} {
		if status, body := ask(h, "GET", "/api/webhooks", "", tc.header...); status != tc.status {
			t.Errorf("%q: %d %s", tc.header, status, body)
		}
	}
	if status, _ := ask(h, "GET", "/healthz", "", "Sec-Fetch-Site", "cross-site"); status != 200 {
		t.Errorf("a probe: %d", status)
	}
}

// Of a tenant with more snapshots than are shown it is said that there are older ones.
func TestTenantWithManySnapshots(t *testing.T) {
	for n, want := range map[int]bool{2 * maxTimeline: false, 2*maxTimeline + 2: true, 5 * maxTimeline: true} {
		for _, duplicates := range []bool{false, true} {
			h := busy(n)
			if !duplicates {
				h.cfg.Decisions = nil
			}
			tenant, err := h.tenant(t.Context(), "crm", "t1") // every other webhook is its own
			if err != nil {
				t.Fatal(err)
			}
			if len(tenant.Snapshots) != maxTimeline || tenant.More != want {
				t.Errorf("of %d, duplicates %v: %d are shown, more: %v, want %v", n/2, duplicates, len(tenant.Snapshots), tenant.More, want)
			}
		}
	}
}

// What the receiver answered to a question is shown as it is, whatever it was.
func TestAnswerToAQuestion(t *testing.T) {
	cfg := new(fakeInbox).config("")
	cfg.Decisions = decisions.New(false)
	for _, status := range []int{200, 403} {
		cfg.Decisions.Add(webhookgate.Outcome{Decision: "forwarded", Status: status, Tries: 1, Webhook: &webhookgate.Webhook{Type: "Checkout"}})
	}
	_, body := ask(New(cfg), "GET", "/api/webhooks?outcome=forwarded", "")
	var list WebhookList
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Webhooks) != 2 || list.Webhooks[0].Answer != "403 Forbidden" || list.Webhooks[1].Answer != "accepted" {
		t.Errorf("%v %s", err, body)
	}
}

// A sender may write names of almost a mebibyte. In a list they are cut: a browser takes minutes to lay out such a
// line, and a page that follows what happens does so again and again.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("x", 300_000)
	cfg := new(fakeInbox).config("")
	cfg.Gate = func() *status.GateState { return &status.GateState{} }
	cfg.Decisions = decisions.New(false)
	item := &inbox.Item{
		Entry: inbox.Entry{ID: 1, Tenant: long, Type: long, Received: time.Now(), Status: inbox.Status{State: inbox.Waiting}},
		Body:  []byte(strings.ReplaceAll(ten, "users", long)),
	}
	cfg.Inbox.List = func(inbox.Filter) ([]inbox.Entry, error) { return []inbox.Entry{item.Entry}, nil }
	cfg.Inbox.Show = func(uint64) (*inbox.Item, error) { return item, nil }
	cfg.Inbox.HeldUp = func() []inbox.HeldUp { return []inbox.HeldUp{{Lane: webhookgate.Lane{Tenant: long}, Tries: 9}} }
	h := New(cfg)
	for _, target := range []string{"/", "/webhooks"} {
		_, page := ask(h, "GET", target, "", "Accept", "text/html")
		text := regexp.MustCompile(`href="[^"]*"`).ReplaceAllLiteralString(page, "")
		if !strings.Contains(text, "xxx") || strings.Contains(text, strings.Repeat("x", 1000)) {
			t.Errorf("%s: %d bytes of text", target, len(text))
		}
	}
}

// When the inbox's servers are away somebody looks at the overview to learn why: it must not be an error page itself.
func TestOverviewWithoutTheInbox(t *testing.T) {
	cfg := new(fakeInbox).config("")
	cfg.Gate = func() *status.GateState {
		return &status.GateState{Address: "http://127.0.0.1:8090/webhooks", Receivers: []status.ReceiverState{{Name: "main"}}}
	}
	cfg.Decisions = decisions.New(false)
	cfg.Inbox.List = func(inbox.Filter) ([]inbox.Entry, error) { return nil, errors.New("outbound buffer limit exceeded") }
	cfg.Inbox.Err = func() error { return errors.New("no connection to nats://n1") }
	cfg.Inbox.Stats = func() inbox.Stats { return inbox.Stats{Unknown: true} }
	cfg.Inbox.Shared = true
	h := New(cfg)
	if _, body := ask(h, "GET", "/", "", "Accept", "text/html"); strings.Contains(body, "another replica delivers") || strings.Contains(body, `data-label="waiting">0`) {
		t.Errorf("nobody knows that:\n%s", body)
	}
	for target, want := range map[string]int{"/": 200, "/webhooks": 503, "/api/webhooks": 503} {
		status, body := ask(h, "GET", target, "", "Accept", "text/html")
		if status != want || !strings.Contains(body, "no connection to nats://n1") || strings.Contains(body, "buffer") {
			t.Errorf("%s: %d, want %d\n%s", target, status, want, body)
		}
	}
}

// What was sent again by hand is not being sent while somebody has paused its deliveries, or while the receiver is down.
func TestSentAgainInVain(t *testing.T) {
	for want, prepare := range map[string]func(*Inbox){
		"It is being sent again.":                           func(*Inbox) {},
		"It is sent again once its deliveries are resumed.": func(box *Inbox) { box.Stats = func() inbox.Stats { return inbox.Stats{Paused: []inbox.Pause{{}}} } },
		"It is sent again when the receiver is back.": func(box *Inbox) {
			box.HeldUp = func() []inbox.HeldUp {
				return []inbox.HeldUp{{Lane: webhookgate.Lane{Tenant: "acme"}, ID: 6, Tries: 1, Down: true}}
			}
		},
	} {
		cfg := new(fakeInbox).config("")
		prepare(cfg.Inbox)
		if _, body := ask(New(cfg), "GET", "/webhooks/6?did=redeliver", "", "Accept", "text/html"); !strings.Contains(body, want) {
			t.Errorf("not %q:\n%s", want, body)
		}
	}
}
