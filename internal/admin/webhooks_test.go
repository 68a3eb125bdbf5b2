package admin

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"usher/internal/content"
	"usher/internal/inbox"
	"usher/internal/lane/state"
	"usher/internal/testkit/inboxtest"
	"usher/internal/view"
	"usher/webhookgate"
)

// busy returns an admin port with an inbox of n kept webhooks, one each minute from begin on.
func busy(t testing.TB, n int) (h *Handler, begin time.Time) {
	b := inboxtest.Open(t, "main-less")
	cfg := port(b)
	cfg.Gate, cfg.Receivers = gate, receiversOf(b)
	b.Pass(-4 * time.Hour)
	for i := 1; i <= n; i++ {
		b.Pass(time.Minute)
		tenant, body := fmt.Sprint("t", i%2), five
		if i%4 > 1 {
			body = ten
		}
		e := b.Entry(b.Take("crm", tenant, body))
		if i == 1 {
			begin = e.Received
		}
	}
	return New(cfg), begin
}

// numbered replaces the number N in "/webhooks/N" and "webhook N" by the id of the inbox's Nth webhook:
// ids need not begin at 1.
func numbered(t *testing.T, h *Handler, s string) string {
	all, err := h.cfg.Inbox.List(context.Background(), inbox.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`(/webhooks/|webhook )\d+`).ReplaceAllStringFunc(s, func(m string) string {
		at := strings.LastIndexAny(m, "/ ") + 1
		n, _ := strconv.Atoi(m[at:])
		return m[:at] + fmt.Sprint(all[len(all)-n].ID)
	})
}

// listOf reads the lines of an answer.
func listOf[T any](t *testing.T, body string) (all []T, end view.End) {
	t.Helper()
	for line := range strings.Lines(body) {
		var last struct{ End *view.End }
		var one T
		if err := errors.Join(json.Unmarshal([]byte(line), &last), json.Unmarshal([]byte(line), &one)); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		if last.End != nil {
			return all, *last.End
		}
		all = append(all, one)
	}
	t.Fatalf("it has no end: %s", body)
	return nil, end
}

// Page after page, each webhook comes once, the newest first.
func TestWebhooksPageByPage(t *testing.T) {
	h, begin := busy(t, 100) // a minute apart
	at := url.QueryEscape(begin.Add(18*time.Minute + 30*time.Second).Format(time.RFC3339Nano))
	for _, tc := range []struct {
		query string
		want  int
	}{{"", 100}, {"&tenant=crm/t1", 50}, {"&platform=docs", 0}, {"&state=stored", 100}, {"&state=parked", 0}, {"&since=" + at, 81}, {"&until=" + at, 19}} {
		seen := make(map[string]bool)
		next, last := "", time.Now().Add(time.Hour)
		for pages := 0; ; pages++ {
			target := "/api/webhooks?limit=7" + tc.query
			if next != "" {
				target = "/api/webhooks?limit=7&" + next
			}
			status, body := ask(h, "GET", target, "")
			list, end := listOf[view.Webhook](t, body)
			if status != 200 || pages > 30 {
				t.Fatalf("%d %s", status, body)
			}
			for _, w := range list {
				if seen[w.ID] || w.Received.After(last) {
					t.Fatalf("%s: %s is there twice, or too late", tc.query, w.ID)
				}
				seen[w.ID], last = true, w.Received
			}
			if next = end.Next; next == "" {
				break
			}
		}
		if len(seen) != tc.want {
			t.Errorf("%q: %d webhooks, want %d", tc.query, len(seen), tc.want)
		}
	}
}

func TestPages(t *testing.T) {
	h, _ := busy(t, 100)
	html := []string{"Accept", "text/html,*/*"}
	for _, tc := range []struct {
		name, target string
		status       int
		want         []string // in the page
	}{
		{"overview", "/", 200, []string{"Webhook gate", "http://receiver", "all webhooks", "users 5 → 10"}},
		{"list", "/webhooks", 200, []string{`href="/webhooks?before=`, "users 5 → 10", "data-live"}},
		{"further on", "/webhooks?before=50&tenant=t1", 200, []string{`href="/webhooks?tenant=t1">Newest`, `value="t1"`}},
		{"none", "/webhooks?state=parked", 200, []string{"No webhook matches"}},
		{"bad selection", "/webhooks?state=lost", 400, []string{"there is no state", "Go to the overview"}},
		{"bad cursor", "/webhooks?before=x", 400, []string{"before is"}},
		{"bad limit", "/webhooks?limit=x", 400, []string{"limit is"}},
		{"one", "/webhooks/7", 200, []string{`<li class="changed">users 5 → 10</li>`, "changes since 5", "Redeliver…", "&#34;quantity&#34;: 10"}},
		{"the first", "/webhooks/1", 200, []string{"has not accepted any earlier snapshot", `<li class="added">`}},
		{"no webhook", "/webhooks/x", 404, []string{"no such webhook"}},
		{"asked", "/webhooks/99?ask=redeliver", 200, []string{`method="post" action="/redeliver"><input type="hidden" name="id" value="99">`, "No, go back"}},
		{"asked for an old one", "/webhooks/7?ask=redeliver", 200, []string{"Webhook 9 of the same tenant is newer", `name="force" value="true"`}},
		{"asked to discard what is delivered", "/webhooks/7?ask=discard", 409, []string{"only waiting, parked or invalid webhooks can be discarded"}},
		{"asked for many", "/webhooks?tenant=crm/t1&ask=redeliver", 200, []string{"Redeliver 1 webhook?", "49 older ones are left out", "force=true", `action="/redeliver"><input type="hidden" name="before" value="101"><input type="hidden" name="tenant" value="crm/t1">`}},
		{"asked to force many", "/webhooks?tenant=crm/t1&force=true&ask=redeliver", 200, []string{"Redeliver 50 webhooks?", "may undo newer ones", `name="force" value="true"`}},
		{"asked for what can't be", "/webhooks?state=stored&ask=discard", 409, []string{"not possible here as things stand"}},
		{"asked to send again what can't be", "/webhooks?state=parked&ask=redeliver", 200, []string{"There is nothing to redeliver", "None of these webhooks waits or is its tenant&#39;s latest.", "Go back"}},
		{"asked for all", "/webhooks?ask=discard", 409, []string{"not possible here"}},
		{"asked for what nobody does", "/?ask=everything", 400, []string{"there is nothing to ask about"}},
		{"asked to pause", "/?ask=pause&receiver=main-less", 200, []string{"Pause receiver main-less?", `name="receiver" value="main-less"`}},
		{"asked for how long", "/?ask=pause&receiver=main-less", 200, []string{`<input name="for"`, `name="receiver" value="main-less"`}},
		{"asked to pause somebody unknown", "/?ask=pause&receiver=nobody", 404, []string{"unknown receiver nobody: the receivers are main-less"}},
		{"what a filter offers", "/webhooks?state=stored", 200, []string{`href="/webhooks?ask=redeliver&amp;state=stored"`}},
		{"tenant", "/tenant?platform=crm&code=t1", 200, []string{"What it may use now", "<td>users</td>"}},
		{"tenant elsewhere", "/tenant?platform=mars&code=t1", 404, []string{"unknown tenant mars/t1"}},
		{"no tenant", "/tenant?platform=mars&code=nobody", 404, []string{"unknown tenant mars/nobody"}},
		{"tenant without a code", "/tenant", 400, []string{"code is missing"}},
		{"style", "/static/usher.css", 200, []string{"--ground"}},
		{"no such file", "/static/nothing", 404, nil},
		{"nor the templates", "/static/..%2fhtml%2flayout.html", 400, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body := ask(h, "GET", numbered(t, h, tc.target), "", html...)
			if status != tc.status {
				t.Fatalf("%d %s", status, body)
			}
			for _, want := range tc.want {
				if want = numbered(t, h, want); !strings.Contains(body, want) {
					t.Errorf("no %q in\n%s", want, body)
				}
			}
		})
	}
	status, body := ask(New(port(world(t))), "GET", "/webhooks/8?ask=discard", "", html...)
	if status != 200 || !strings.Contains(body, `method="post" action="/discard"`) || !strings.Contains(body, "The receiver never gets this snapshot of eu/late") {
		t.Errorf("asked to discard what waits: %d %s", status, body)
	}
}

// Foreign text in a webhook never becomes HTML.
func TestPagesEscape(t *testing.T) {
	const evil = `<script>alert(1)</script>"'&`
	cfg := port(nil)
	cfg.Gate, cfg.Receivers = gate, receiversOf(nil)
	cfg.Decisions = NewDecisions()
	cfg.Decisions.Add(webhookgate.Outcome{
		Decision: "failed", Status: 502, Why: evil, Faults: []content.Fault{{Path: evil, Message: evil}},
		Webhook: &webhookgate.Webhook{ID: evil, Type: evil, Lane: webhookgate.LaneName{Platform: evil, Tenant: evil}},
	})
	h := New(cfg)
	for _, target := range []string{"/", "/webhooks", "/webhooks/d1", "/webhooks?tenant=%3Cscript%3E"} {
		status, page := ask(h, "GET", target, "", "Accept", "text/html")
		if status != 200 || strings.Contains(strings.ReplaceAll(page, `<script src="/static/usher.js`, ""), "<script") {
			t.Errorf("%s: %d\n%s", target, status, page)
		}
	}
}

// A connection may break while the database confirms an action. If the action was done, its entry is there, too.
func TestActionsInDoubtAreStored(t *testing.T) {
	for _, tc := range []struct{ target, body, statement, want string }{
		{"/api/webhooks/3/discard", "", "webhook_save", "discard 3"},
		{"/api/webhooks/3/redeliver", "", "webhook_save", "redeliver 3"},
		{"/api/erase", `{"tenant":"acme","platform":"eu"}`, "erase_webhooks", "erase eu/acme"},
		{"/api/pause", `{"receiver":"main"}`, "pause_add", "pause receiver main"},
		{"/api/resume", `{"receiver":"main"}`, "pause_remove", "resume receiver main"},
	} {
		t.Run(tc.target, func(t *testing.T) {
			b := world(t)
			b.Doubt(tc.statement)
			status, body := ask(New(port(b)), "POST", tc.target, tc.body)
			all, err := b.Actions(context.Background(), 0, 1)
			if err != nil || len(all) == 0 {
				t.Fatalf("%d %s; nothing is stored: %v", status, body, err)
			}
			if got := all[0].What + " " + all[0].About; status < 500 || got != tc.want {
				t.Errorf("%d %s; stored is %q, want %q", status, body, got, tc.want)
			}
		})
	}
}

// What a person asks for is one action with one entry, however many webhooks it is about.
func TestOneActionHasOneEntry(t *testing.T) {
	form := []string{"Content-Type", "application/x-www-form-urlencoded", "Accept", "text/html", "Sec-Fetch-Site", "same-origin"}
	entries := func(b *inboxtest.Box) (all string) {
		t.Helper()
		list, err := b.Actions(context.Background(), 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			all += fmt.Sprintf("%s %s: %d\n", a.What, a.About, a.Count)
		}
		return all
	}
	for _, tc := range []struct {
		name, target, body string
		header             []string
		status             int
		answer, entries    string
	}{
		{"a filter", "/api/discard?state=parked&tenant=eu/acme", "", nil, 200, "{\"id\":\"3\"}\n{\"end\"", "discard state parked, tenant eu/acme: 1\n"},
		{"a filter, many", "/api/discard?state=parked", "", nil, 200, "{\"id\":\"7\"}\n{\"id\":\"3\"}\n{\"id\":\"1\"}\n", "discard state parked: 3\n"},
		{"a filter, on the page", "/discard", "state=parked", form, 303, "", "discard state parked: 3\n"},
		{"ids", "/api/discard", `{"ids":["1","3"]}`, nil, 200, "{\"id\":\"1\"}\n{\"id\":\"3\"}\n{\"end\":{}}", "discard 1 and 3: 2\n"},
		{"ids twice", "/api/discard", `{"ids":["1","3","1"]}`, nil, 200, "{\"id\":\"1\"}\n{\"id\":\"3\"}\n{\"end\":{}}", "discard 1 and 3: 2\n"},
		{"ids of a filter", "/api/discard?state=parked", `{"ids":["1","3"]}`, nil, 200, "{\"id\":\"1\"}\n{\"id\":\"3\"}\n{\"end\":{}}", "discard state parked: 2\n"},
		{"some of them", "/api/redeliver", `{"ids":["1","2","99"]}`, nil, 200,
			"\"newer\":\"3\"}\n{\"id\":\"99\",\"failed\":\"no such webhook in the inbox: it may be too old, see 'usher inbox ls'\"}\n", "redeliver 1, 2 and 99: 1\n"},
		{"force", "/api/redeliver?force=true", `{"ids":["2"]}`, nil, 200, "{\"id\":\"2\"}\n", "redeliver 2: 1\n"},
		{"none of them", "/api/discard", `{"ids":["98","99"]}`, nil, 200, `{"id":"99","failed":"no such webhook in the inbox: it may be too old, see 'usher inbox ls'"}`, ""},
		{"no ids", "/api/discard", `{"ids":[]}`, nil, 200, `{"end":{}}`, ""},
		{"accept", "/api/accept", `{"ids":["3"]}`, nil, 200, `{"id":"3","failed":"somebody has dealt with it, its tenant has a newer snapshot, or it was not invalid: see 'usher inbox show ID'"}`, ""},
		{"accept all", "/api/accept", "", nil, 400, "say which", ""},
		{"a slip", "/api/discard?state=parked", `{"id":["1"]}`, nil, 400, "should be JSON", ""},
		{"no JSON", "/api/discard?state=parked", `1,2`, nil, 400, "should be JSON", ""},
		{"everything", "/api/discard", "", nil, 400, "say which", ""},
		{"too much", "/api/discard", strings.Repeat("x", maxIDs+1), nil, 413, "too large", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := world(t)
			status, body := ask(New(port(b)), "POST", tc.target, tc.body, tc.header...)
			if status != tc.status || !strings.Contains(body, tc.answer) {
				t.Errorf("%d %s, want %d %s", status, body, tc.status, tc.answer)
			}
			if got := entries(b); got != tc.entries {
				t.Errorf("the entries are\n%swant\n%s", got, tc.entries)
			}
		})
	}
	t.Run("accept two", func(t *testing.T) {
		b := world(t)
		for _, tenant := range []string{"new", "newer"} {
			body := []byte(strings.ReplaceAll(five, "acme", tenant))
			b.RecordInvalid(context.Background(), &webhookgate.Invalid{Status: 422, Webhook: webhookgate.Webhook{
				ID: tenant, Type: content.TenantProvisioningChange, Lane: webhookgate.LaneName{Tenant: tenant}, Body: body, Digest: sha256.Sum256(body),
			}})
		}
		status, body := ask(New(port(b)), "POST", "/api/accept", `{"ids":["9","10"]}`)
		if status != 200 || !strings.Contains(body, "{\"id\":\"9\",\"new\":\"11\"}\n{\"id\":\"10\",\"new\":\"12\"}\n") || entries(b) != "accept 9 and 10: 2\n" {
			t.Errorf("%d %s\n%s", status, body, entries(b))
		}
	})
	t.Run("it ends halfway", func(t *testing.T) {
		b := world(t)
		b.Doubt("action_count") // of the second one
		status, body := ask(New(port(b)), "POST", "/api/discard?state=parked", "")
		if status != 200 || !strings.Contains(body, "{\"id\":\"7\"}\n{\"id\":\"3\",\"failed\":\"") || !strings.Contains(body, `"left":1`) || entries(b) != "discard state parked: 2\n" {
			t.Errorf("%d %s\n%s", status, body, entries(b))
		}
	})
}

// Between the list of what waits and the yes to it, some of it may have been delivered: that is not sent once more.
func TestRedeliversWhatStillWaits(t *testing.T) {
	for target, want := range map[string]state.State{"/api/redeliver?force=true": state.Waiting, "/api/redeliver?force=true&state=waiting": state.Delivered} {
		b := world(t)
		if err := b.Pause(inbox.Pause{}); err != nil {
			t.Fatal(err)
		}
		status, body := ask(New(port(b)), "POST", target, `{"ids":["2"]}`)
		w, err := b.Show(context.Background(), 2)
		if err != nil || status != 200 || w.State != want {
			t.Errorf("%s: %d %s; it is %s, want %s (%v)", target, status, body, w.State, want, err)
		}
	}
}

// A page of actions says whether there are more.
func TestPagesOfActions(t *testing.T) {
	b := world(t)
	h := New(port(b))
	for n := range 5 {
		if err := b.Note(&inbox.Action{Who: "ana", What: "pause", About: fmt.Sprint(n)}, 0); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	next := ""
	for range 10 {
		_, body := ask(h, "GET", "/api/actions?limit=2&"+next, "")
		page, end := listOf[inbox.Action](t, body)
		for _, a := range page {
			got = append(got, a.About)
		}
		got = append(got, ";")
		if next = end.Next; next == "" {
			break
		}
	}
	if words := strings.Join(got, ""); words != "43;21;0;" {
		t.Error(words)
	}
	if _, body := ask(h, "GET", "/api/actions?limit=5", ""); strings.Contains(body, "next") {
		t.Errorf("there are no more: %s", body)
	}
}

func TestActions(t *testing.T) {
	form := []string{"Content-Type", "application/x-www-form-urlencoded", "Accept", "text/html", "Sec-Fetch-Site", "same-origin"}
	calm := world(t) // for all that does not act
	for _, tc := range []struct {
		name, target, body string
		status             int
		want, acted        string
	}{
		{"redeliver", "/redeliver", "id=3", 303, "", "3 waiting"},
		{"an old one", "/redeliver", "id=2", 409, "it would overwrite 3", ""},
		{"an old one all the same", "/redeliver", "id=2&force=true", 303, "", "2 waiting"},
		{"what is not there", "/redeliver", "id=9", 404, "no such webhook", ""},
		{"what is no id", "/redeliver", "id=x", 404, "no such webhook", ""},
		{"nothing is taken from the address", "/redeliver?force=true", "id=2", 400, "from the form", ""},
		{"discard", "/discard", "id=3", 303, "", "3 discarded"},
		{"discard what is finished", "/discard", "id=2", 409, "only waiting, parked or invalid", ""},
		{"send all again", "/redeliver", "state=parked", 303, "", "1 waiting; 3 waiting"},
		{"send all again, the older ones, too", "/redeliver", "state=parked&force=true", 303, "", "1 waiting; 3 waiting; 7 waiting"},
		{"send everything again", "/redeliver", "", 400, "say which", ""},
		{"accept by a filter", "/accept", "", 400, "say which", ""},
		{"discard all", "/discard", "tenant=eu/acme&until=2126-01-31T08:00:00.5Z", 303, "", "3 discarded"},
		{"discard with a slip", "/discard", "state=parked&tennant=eu/acme", 400, "tennant", ""},
		{"discard two states", "/discard", "state=parked&state=waiting", 400, "twice", ""},
		{"pause", "/pause", "", 303, "", "all deliveries paused"},
		{"pause a tenant", "/pause", "tenant=acme&platform=eu", 303, "", "tenant eu/acme paused"},
		{"pause a receiver", "/pause", "receiver=main", 303, "", "receiver main paused"},
		{"pause nobody", "/pause", "tenant=nobody&platform=eu", 404, "unknown tenant eu/nobody", ""},
		{"resume", "/resume", "tenant=acme&platform=eu", 303, "", ""},
		{"erase", "/erase", "tenant=acme&platform=eu", 303, "", "2 gone; 3 gone"},
		{"erase nobody", "/erase", "tenant=nobody&platform=eu", 404, "unknown tenant eu/nobody", ""},
		{"erase no name", "/erase", "", 400, "no tenant is named", ""},
		{"too much", "/erase", "tenant=" + strings.Repeat("x", maxRequest), 413, "too large", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := calm
			if tc.acted != "" {
				b = world(t)
			}
			before := b.Stands()
			status, body := ask(New(port(b)), "POST", tc.target, tc.body, form...)
			if did := inboxtest.Acted(before, b.Stands()); status != tc.status || !strings.Contains(body, tc.want) || did != tc.acted {
				t.Errorf("%d, did %q, want %q\n%s", status, did, tc.acted, body)
			}
		})
	}
	// A page of another origin cannot act, nor can any method but POST.
	h, before := New(port(calm)), calm.Stands()
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "http://evil.example"}, {"Origin", "null"}} {
		for _, target := range []string{"/redeliver", "/discard", "/accept", "/pause", "/resume", "/erase", "/api/redeliver?state=parked"} {
			if status, _ := ask(h, "POST", target, "tenant=acme", append(header, form[:4]...)...); status != 403 {
				t.Errorf("%s from %s: %d", target, header, status)
			}
		}
	}
	for _, method := range []string{"PUT", "DELETE", "PATCH"} {
		if status, _ := ask(h, method, "/redeliver", ""); status != 405 {
			t.Errorf("%s: %d", method, status)
		}
	}
	for _, target := range []string{"/webhooks/3?ask=redeliver&force=true", "/webhooks/3?ask=discard", "/webhooks?state=parked&ask=discard", "/redeliver?id=3", "/?ask=pause", "/tenant?code=acme&platform=eu&ask=erase"} {
		ask(h, "GET", target, "")
	}
	if did := inboxtest.Acted(before, calm.Stands()); did != "" {
		t.Errorf("did %q", did)
	}
}

// A page of another origin cannot embed anything from this port. A link to it works.
func TestEmbedded(t *testing.T) {
	h := New(port(nil))
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
		if status, body := ask(h, "GET", "/api/status", "", tc.header...); status != tc.status {
			t.Errorf("%q: %d %s", tc.header, status, body)
		}
	}
	if status, _ := ask(h, "GET", "/healthz", "", "Sec-Fetch-Site", "cross-site"); status != 200 {
		t.Errorf("a probe: %d", status)
	}
	// No link of another site downloads a payload, which has customers' contacts; a link of this port does.
	h = New(port(world(t)))
	for site, want := range map[string]int{"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200} {
		if status, body := ask(h, "GET", "/webhooks/2/payload", "", "Sec-Fetch-Site", site, "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"); status != want || want == 200 && body != five {
			t.Errorf("%s: %d %s", site, status, body)
		}
	}
}

// The page of a tenant with many snapshots says that there are older ones.
func TestTenantWithManySnapshots(t *testing.T) {
	h, _ := busy(t, 2*maxTimeline)
	for _, want := range []bool{false, true} {
		tenant, err := h.tenant(t.Context(), "crm", "t1") // every other webhook is its own
		if err != nil {
			t.Fatal(err)
		}
		if len(tenant.Snapshots) != maxTimeline || tenant.More != want {
			t.Errorf("%d are shown, more: %v, want %v", len(tenant.Snapshots), tenant.More, want)
		}
		_, err = h.cfg.Inbox.Store(context.Background(), &webhookgate.Webhook{ID: "one more", Type: "Other", Lane: webhookgate.LaneName{Platform: "crm", Tenant: "t1"}})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The receiver's answer to a webhook of USHER_WEBHOOK_SYNC_TYPES is shown, whatever its status.
func TestAnswerToAQuestion(t *testing.T) {
	cfg := port(nil)
	cfg.Decisions = NewDecisions()
	for _, status := range []int{200, 403} {
		cfg.Decisions.Add(webhookgate.Outcome{Decision: "forwarded", Status: status, Tries: 1, Webhook: &webhookgate.Webhook{Type: "Checkout"}})
	}
	list, _, err := New(cfg).webhooks(t.Context(), selection{Outcome: "forwarded", limit: 9})
	if err != nil || len(list) != 2 || list[0].Answer != "403 Forbidden" || list[1].Answer != "accepted" {
		t.Errorf("%v %+v", err, list)
	}
}

// A sender can use names of almost 1 MiB. Lists shorten them: a browser needs minutes to lay out such a line,
// each time the page updates itself.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("x", 300_000)
	b := inboxtest.Open(t)
	cfg := port(b)
	cfg.Gate, cfg.Receivers = gate, receiversOf(b)
	b.Answer(500, "")
	b.Tried(b.Queue(&webhookgate.Webhook{Type: long, Snapshot: true, Lane: webhookgate.LaneName{Tenant: long}, Body: []byte(strings.ReplaceAll(ten, "users", long))}))
	h := New(cfg)
	for _, target := range []string{"/", "/webhooks"} {
		_, page := ask(h, "GET", target, "", "Accept", "text/html")
		text := regexp.MustCompile(`href="[^"]*"`).ReplaceAllLiteralString(page, "")
		if !strings.Contains(text, "xxx") || strings.Contains(text, strings.Repeat("x", 1000)) {
			t.Errorf("%s: %d bytes of text", target, len(text))
		}
	}
}

// If the inbox is broken, the overview still loads, and says why.
func TestOverviewWithoutTheInbox(t *testing.T) {
	b := world(t)
	cfg := port(b)
	cfg.Gate, cfg.Receivers = gate, receiversOf(b)
	h := New(cfg)
	b.Break("no space left on device")
	for target, want := range map[string]int{"/": 200, "/webhooks": 503, "/api/webhooks": 503} {
		status, body := ask(h, "GET", target, "", "Accept", "text/html")
		if status != want || !strings.Contains(body, "no space left on device") {
			t.Errorf("%s: %d, want %d\n%s", target, status, want, body)
		}
	}
}

// Webhooks without a tenant wait for others of the same type. Their pages and the list say so.
func TestHeldUpWithoutATenant(t *testing.T) {
	b := inboxtest.Open(t)
	b.Answer(500, "")
	other := func(body string) *webhookgate.Webhook {
		return &webhookgate.Webhook{Type: "Other", Lane: webhookgate.LaneName{Type: "Other"}, Body: []byte(body)}
	}
	b.Tried(b.Queue(other(`{"n":1}`)))
	b.Queue(other(`{"n":2}`))
	h := New(port(b))
	for target, want := range map[string]string{
		"/api/webhooks":   `"held_by":"1"`,
		"/api/webhooks/2": `"held_by":"1"`,
		"/api/webhooks/1": `"behind":1`,
		"/webhooks/2":     `<dt>held up by</dt><dd><a href="/webhooks/1">webhook 1</a> (500 `,
	} {
		if _, body := ask(h, "GET", target, "", "Accept", "text/html"); !strings.Contains(body, want) {
			t.Errorf("%s: no %s in\n%s", target, want, body)
		}
	}
}
