package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"usher/internal/admin/status"
	"usher/internal/content"
	"usher/internal/entitlements"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/receiver"
	"usher/internal/testkit"
	"usher/internal/testkit/inboxtest"
	"usher/webhookgate"
)

const (
	five = `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme"},"change":{"features":[{"code":"users","quantity":5}]}}}`
	ten  = `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme"},"change":{"features":[{"code":"users","quantity":10,"name":"R&D"}]}}}`
)

// port returns the Config of an admin port, with the inbox of box unless that is nil.
func port(box *inboxtest.Box) Config {
	cfg := Config{
		Hosts:   guard.NewHosts("127.0.0.1:9095", nil, false),
		Health:  func() *status.Health { return new(status.Health) },
		Metrics: http.NotFoundHandler(),
		Log:     slog.New(slog.DiscardHandler),
	}
	if box != nil {
		cfg.Inbox, cfg.Platforms = box.Inbox, box.Platforms
		cfg.Entitlements = entitlements.NewBook(box.Snapshots, false).Lookup
		cfg.Health = func() *status.Health { return &status.Health{Inbox: status.HealthOf(box.Inbox)} }
	}
	return cfg
}

func gate() *status.Gate { return &status.Gate{Address: "http://127.0.0.1:8090/webhooks"} }

// receiversOf returns the receivers of box, or nil if there is no box.
func receiversOf(box *inboxtest.Box) *receiver.Set {
	if box == nil {
		return nil
	}
	return box.Receivers
}

// world returns an inbox with webhooks in several states, whose receiver answers 500 from now on.
func world(t testing.TB) *inboxtest.Box {
	b := inboxtest.Open(t)
	answer := func(status int, words string) *inboxtest.Box { b.Answer(status, words); return b }
	snapshot := func(tenant, body string, header http.Header) *webhookgate.Webhook {
		return &webhookgate.Webhook{Type: content.TenantProvisioningChange, Snapshot: true, Lane: webhookgate.LaneName{Platform: "eu", Tenant: tenant}, Body: []byte(body), Header: header}
	}
	answer(422, "").Take("eu", "odd", "{\xff")   // 1
	answer(200, "").Take("eu", "acme", five)     // 2
	b.Tried(answer(422, "unknown tenant").Queue( // 3
		snapshot("acme", ten, http.Header{
			"Content-Type": {"application/json"}, "Authorization": {"Basic s3cret"}, "X-Signature": {"s3cret"},
		})))
	answer(200, "").Take("us", "twice", five) // 4
	b.Take("", "twice", five)                 // 5
	b.Take("eu", "late", five)                // 6
	answer(422, "").Take("eu", "late", ten)   // 7
	answer(500, "").Take("eu", "late", five)  // 8
	return b
}

func ask(h http.Handler, method, target, body string, header ...string) (int, string) {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Host = "127.0.0.1:9095"
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// look loads a page until it has all wanted texts, if they come: on a slow machine the counts on a page lag behind
// the inbox.
func look(h http.Handler, target string, want ...string) (status int, text string) {
	testkit.Comes(func() bool {
		status, text = ask(h, "GET", target, "", "Accept", "text/html")
		return !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(text, w) })
	})
	return status, text
}

func TestAPI(t *testing.T) {
	const browser = "Sec-Fetch-Site"
	calm := world(t) // for all that does not act
	for _, tc := range []struct {
		name, method, target, body string
		header                     []string
		status                     int
		want                       string // in the answer
		acted                      string // what has changed in the inbox
	}{
		{"list", "GET", "/api/webhooks", "", nil, 200, `{"id":"8",`, ""},
		{"list some", "GET", "/api/webhooks?state=parked&tenant=eu/acme&limit=5", "", nil, 200, `{"id":"3",`, ""},
		{"what it changed", "GET", "/api/webhooks?limit=500", "", nil, 200, `"changes":["users 5 → 10"]`, ""},
		{"list of nobody", "GET", "/api/webhooks?tenant=nobody", "", nil, 200, `{"end":{}}`, ""},
		{"list what can't be in the inbox", "GET", "/api/webhooks?state=rejected", "", nil, 400, "there is no state", ""},
		{"list with a bad limit", "GET", "/api/webhooks?limit=0", "", nil, 400, "from 1 to 500", ""},
		{"list by an outcome", "GET", "/api/webhooks?outcome=parked", "", nil, 400, `no parameter \"outcome\"; it has: state, tenant`, ""},
		{"two states", "POST", "/api/discard?state=waiting&state=parked", "", nil, 400, `state is given twice`, ""},
		{"status of something", "GET", "/api/status?tenant=acme", "", nil, 400, `/api/status has no parameter \"tenant\"; it has: since`, ""},
		{"one webhook of a tenant", "GET", "/api/webhooks/3?tenant=acme", "", nil, 400, "tenant", ""},
		{"send one again with a slip", "POST", "/api/webhooks/3/redeliver?forced=true", "", nil, 400, "forced", ""},
		{"pause what the address names", "POST", "/api/pause?tenant=acme", "", nil, 400, "tenant", ""},
		{"pause on the page what the address names", "POST", "/pause?tenant=acme", "", nil, 400, "from the form", ""},
		{"pause on the page what JSON names", "POST", "/pause", `{"tenant":"acme"}`, []string{"Content-Type", "application/json"}, 400, "must be a form", ""},
		{"erase what the address names", "POST", "/api/erase?tenant=acme", "", nil, 400, "tenant", ""},
		{"a tenant with a slip", "GET", "/api/tenant?code=acme&plattform=eu", "", nil, 400, "plattform", ""},
		{"a query that can't be read", "GET", "/api/status?%zz", "", nil, 400, "query", ""},
		{"list a tenant", "GET", "/api/webhooks?tenant=us/acme&since=2026-01-31T08:00:00Z&until=2026-02-01T08:00:00%2B01:00", "", nil, 200, "", ""},
		{"list one of two tenants", "GET", "/api/webhooks?tenant=twice", "", nil, 409, "/twice or us/twice", ""},
		{"list from no time", "GET", "/api/webhooks?since=soon", "", nil, 400, "since is", ""},

		{"show", "GET", "/api/webhooks/3", "", nil, 200, `"changes":["users 5 → 10"],"previous":"2"`, ""},
		{"show the payload as it came", "GET", "/api/webhooks/3", "", nil, 200, `"payload":` + ten, ""},
		{"show a first one", "GET", "/api/webhooks/2", "", nil, 200, `"changes":["+ users (5)"],"first":true`, ""},
		{"show one before which another was not taken", "GET", "/api/webhooks/8", "", nil, 200, `"previous":"6","untaken":"7"`, ""},
		{"show what is no JSON", "GET", "/api/webhooks/1", "", nil, 200, "\"payload\":\"{\ufffd\"", ""},
		{"show nothing", "GET", "/api/webhooks/9", "", nil, 404, "no such webhook", ""},
		{"show a number too large", "GET", "/api/webhooks/18446744073709551616", "", nil, 404, "no such webhook", ""},

		{"redeliver", "POST", "/api/webhooks/3/redeliver", "", nil, 200, `{"id":"3"}`, "3 waiting"},
		{"redeliver an old one", "POST", "/api/webhooks/2/redeliver", "", nil, 409, `it would overwrite 3, received`, ""},
		{"by force", "POST", "/api/webhooks/2/redeliver?force=true", "", nil, 200, `{"id":"2"}`, "2 waiting"},
		{"not by force", "POST", "/api/webhooks/2/redeliver?force=false", "", nil, 409, "", ""},
		{"by what", "POST", "/api/webhooks/2/redeliver?force=yes", "", nil, 400, "true or false", ""},
		{"redeliver nothing", "POST", "/api/webhooks/9/redeliver", "", nil, 404, "no such webhook", ""},
		{"redeliver a decision", "POST", "/api/webhooks/d3/redeliver", "", nil, 404, "no such webhook", ""},

		{"which would be sent again", "GET", "/api/redeliver?state=parked", "", nil, 200, `{"count":2,"first":["1","3"],"older":1,"before":"9"}`, ""},
		{"send them again", "POST", "/api/redeliver?state=parked", "", nil, 200, "{\"id\":\"1\"}\n{\"id\":\"3\"}\n{\"end\":{}}\n", "1 waiting; 3 waiting"},
		{"send all of them again", "POST", "/api/redeliver?state=parked&force=true", "", nil, 200, `{"id":"7"}`, "1 waiting; 3 waiting; 7 waiting"},
		{"send which again", "POST", "/api/redeliver", "", nil, 400, "say which", ""},
		{"send again what was turned away", "GET", "/api/redeliver?state=invalid", "", nil, 200, `{"count":0,"first":[],"older":0,"before":"9"}`, ""},
		{"which would be discarded", "GET", "/api/discard?tenant=eu/acme&until=2026-01-31", "", nil, 400, "until is", ""},
		{"discard them", "POST", "/api/discard?tenant=eu/acme", "", nil, 200, "{\"id\":\"3\"}\n", "3 discarded"},
		{"discard with a slip", "POST", "/api/discard?state=parked&tennant=eu/acme", "", nil, 400, "tennant", ""},

		{"discard", "POST", "/api/webhooks/3/discard", "", nil, 200, `{"id":"3"}`, "3 discarded"},
		{"discard what is finished", "POST", "/api/webhooks/2/discard", "", nil, 409, "only waiting, parked or invalid", ""},
		{"ask about what is finished", "GET", "/webhooks/2?ask=discard", "", nil, 409, "only waiting, parked or invalid", ""},
		{"ask to accept what was taken in", "GET", "/webhooks/2?ask=accept", "", nil, 409, "was not invalid", ""},
		{"discard nothing", "POST", "/api/webhooks/9/discard", "", nil, 404, "no such webhook", ""},

		{"pause all", "POST", "/api/pause", "", nil, 200, `{"said":"paused: all deliveries","undo":"usher inbox resume"}`, "all deliveries paused"},
		{"pause a tenant", "POST", "/api/pause", `{"tenant":"acme"}`, nil, 200, `{"said":"paused: tenant eu/acme","undo":"usher inbox resume --tenant eu/acme"}`, "tenant eu/acme paused"},
		{"pause a receiver", "POST", "/api/pause", `{"receiver":"main"}`, nil, 200, `{"said":"paused: receiver main"`, "receiver main paused"},
		{"pause for nothing", "POST", "/api/pause", `{"for":""}`, nil, 400, "for is \\\"\\\", but should be a time span of at most 8784h", ""},
		{"pause for very long", "POST", "/api/pause", `{"for":"8785h"}`, nil, 400, "at most 8784h", ""},
		{"pause somebody unknown", "POST", "/api/pause", `{"tenant":"acne"}`, nil, 404, "unknown tenant acne", ""},
		{"pause with a slip", "POST", "/api/pause", `{"tenants":"acme"}`, nil, 400, `unknown field \"tenants\"`, ""},
		{"pause of a number", "POST", "/api/pause", `{"tenant":7}`, nil, 400, "should be JSON with texts", ""},
		{"resume with a slip", "POST", "/api/resume", `{"reciever":"crm"}`, nil, 400, `unknown field \"reciever\"`, ""},
		{"pause nobody in particular", "POST", "/api/pause", `null`, nil, 400, "should be", ""},
		{"pause two things", "POST", "/api/pause", `{"tenant":"acme"}}`, nil, 400, "should be JSON", ""},
		{"pause both", "POST", "/api/pause", `{"tenant":"acme","receiver":"crm"}`, nil, 400, "not both", ""},
		{"pause a platform", "POST", "/api/pause", `{"platform":"eu"}`, nil, 400, "needs a tenant", ""},
		{"resume", "POST", "/api/resume", `{"receiver":"crm"}`, nil, 200, `"failed":"receiver crm: not paused"`, ""},
		{"erase", "POST", "/api/erase", `{"tenant":"acme","platform":"eu"}`, nil, 200, `{"said":"eu/acme erased: 2 webhooks"}`, "2 gone; 3 gone"},
		{"erase without a platform", "POST", "/api/erase", `{"tenant":"twice","platform":""}`, nil, 200, `{"said":"/twice erased: 1 webhook"}`, "5 gone"},
		{"erase nobody", "POST", "/api/erase", `{}`, nil, 400, "no tenant is named", ""},
		{"pause by reading", "GET", "/api/pause", "", nil, 405, "POST", ""},

		{"erase somebody unknown", "POST", "/api/erase", `{"tenant":"acme","platform":"us"}`, nil, 404, "unknown tenant us/acme", ""},
		{"erase a number", "POST", "/api/erase", `{"tenant":5}`, nil, 400, "should be JSON", ""},
		{"erase too much", "POST", "/api/erase", strings.Repeat(" ", maxRequest+1), nil, 413, "too large", ""},

		{"act by reading", "GET", "/api/webhooks/3/redeliver", "", nil, 405, "POST", ""},
		{"write what is read", "POST", "/api/webhooks", "", nil, 405, "read", ""},
		{"no cleaning", "GET", "/api//webhooks", "", nil, 404, "no such page", ""},
		{"no unescaping", "GET", "/api/webhooks%2f3", "", nil, 404, "no such page", ""},

		{"from a page elsewhere", "POST", "/api/erase", `{"tenant":"acme"}`, []string{browser, "cross-site"}, 403, "origin", ""},
		{"from a page in an old browser", "POST", "/api/webhooks/3/redeliver", "", []string{"Origin", "http://evil.example"}, 403, "origin", ""},
		{"from our own page", "POST", "/api/webhooks/3/redeliver", "", []string{browser, "same-origin", "Origin", "http://127.0.0.1:9095"}, 200, "", "3 waiting"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := calm
			if tc.acted != "" {
				b = world(t)
			}
			before := b.Stands()
			status, body := ask(New(port(b)), tc.method, tc.target, tc.body, tc.header...)
			if status != tc.status || !strings.Contains(body, tc.want) {
				t.Errorf("%d %s\nwant %d with %s", status, body, tc.status, tc.want)
			}
			if valid := json.Valid([]byte("[" + strings.ReplaceAll(strings.TrimSpace(body), "\n{", ",{") + "]")); !valid || strings.Contains(body, "s3cret") {
				t.Errorf("not to be shown: %s", body)
			}
			if got := inboxtest.Acted(before, b.Stands()); got != tc.acted {
				t.Errorf("did %q, want %q", got, tc.acted)
			}
		})
	}
}

func TestAPINeedsTheToken(t *testing.T) {
	b := world(t)
	cfg := port(b)
	cfg.Token = func() string { return "adm1n" }
	h, before := New(cfg), b.Stands()
	calls := []struct{ method, target, body string }{
		{"GET", "/api/webhooks", ""}, {"GET", "/api/webhooks/3", ""}, {"POST", "/api/webhooks/3/redeliver", ""}, {"POST", "/api/erase", `{"tenant":"acme"}`},
	}
	for _, call := range calls {
		if status, body := ask(h, call.method, call.target, call.body); status != 401 {
			t.Errorf("%s %s without the token: %d %s", call.method, call.target, status, body)
		}
	}
	if did := inboxtest.Acted(before, b.Stands()); did != "" {
		t.Errorf("did %q", did)
	}
	for _, call := range calls {
		if status, body := ask(h, call.method, call.target, call.body, "Authorization", "Bearer adm1n"); status != 200 {
			t.Errorf("%s %s: %d %s", call.method, call.target, status, body)
		}
	}
}

func TestAPIWithoutAnInbox(t *testing.T) {
	cfg := port(nil)
	cfg.Platforms = func(context.Context, string) ([]string, error) { return []string{"eu"}, nil }
	h := New(cfg)
	for _, call := range [][2]string{{"GET", "/api/webhooks"}, {"GET", "/api/redeliver?state=parked"}, {"POST", "/api/webhooks/3/redeliver"}, {"POST", "/api/pause"}} {
		if status, body := ask(h, call[0], call[1], ""); status != 404 || !strings.Contains(body, "this usher has no inbox") {
			t.Errorf("%s: %d %s", call[1], status, body)
		}
	}
	cfg.Platforms = func(context.Context, string) ([]string, error) { return nil, nil }
	if status, body := ask(New(cfg), "GET", "/api/tenant?code=acme", ""); status != 404 || !strings.Contains(body, "this usher has no inbox") {
		t.Errorf("asked the usher that knows no tenants: %d %s", status, body)
	}
}

// Every route answers without an inbox and without a gate.
func TestEveryRouteWithoutAnInbox(t *testing.T) {
	h := New(port(nil))
	for _, to := range h.routes {
		for _, method := range []string{"GET", "POST"} {
			status, body := ask(h, method, strings.ReplaceAll(to.path, "{id}", "3"), "")
			if status >= 500 || status == 200 && to.inbox {
				t.Errorf("%s %s: %d %s", method, to.path, status, body)
			}
		}
	}
}

// post sends a form as our own pages do.
func post(h http.Handler, target, form string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", target, strings.NewReader(form))
	r.Host = "127.0.0.1:9095"
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// A row of Acts has all that its routes, pages, command and docs show.
func TestActsAreComplete(t *testing.T) {
	names := make(map[string]bool)
	for _, a := range Acts {
		words := map[string]string{"message": a.logged}
		if a.On == OnWebhooks {
			maps.Copy(words, map[string]string{"effect": a.effect, "notice": a.did, "done": a.Done, "not done": a.NotDone, "help": a.Help})
		}
		if a.ByFilter {
			maps.Copy(words, map[string]string{"none": a.none, "notice of all": a.didAll})
		}
		if a.On == OnTenant {
			maps.Copy(words, map[string]string{"notice": a.did, "what it means": a.Means, "question": a.Question})
		}
		for what, words := range words {
			if words == "" {
				t.Errorf("%s has no words for: %s", a.Name, what)
			}
		}
		kinds := []bool{a.one != nil, a.do != nil, a.serve != nil}
		if first := slices.Index(kinds, true); names[a.Name] || first < 0 || slices.Contains(kinds[first+1:], true) || (a.On == OnWebhooks) != kinds[0] {
			t.Errorf("%s: named twice, or how is it done? %v", a.Name, kinds)
		}
		names[a.Name] = true
	}
}

// What can be done has its buttons from Acts: no template has the address of an act, and each button of a
// page is there because its act can be done.
func TestButtonsComeFromTheTable(t *testing.T) {
	files, err := filepath.Glob("page/html/*.html")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		html, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range Acts {
			if found := regexp.MustCompile(`(href|action)="[^"]*[/=]` + a.Name + `\b[^"]*"`).Find(html); found != nil {
				t.Errorf("%s has %s", file, found)
			}
		}
	}
	b := world(t)
	h := entitled(b)
	buttons := func(target string) string {
		t.Helper()
		status, page := ask(h, "GET", target, "", "Accept", "text/html")
		_, main, found := strings.Cut(page, `<main id="main">`)
		if status != 200 || !found {
			t.Fatalf("%s: %d\n%s", target, status, page)
		}
		var all []string
		for _, m := range regexp.MustCompile(`(?s)<(?:a class="button[^>]*|button[^>]*)>([^<]*)</`).FindAllStringSubmatch(main, -1) {
			if !strings.Contains(m[0], "data-copy") && m[1] != "Filter" {
				all = append(all, m[1])
			}
		}
		return strings.Join(all, "; ")
	}
	pause := func(p inbox.Pause) {
		t.Helper()
		if err := b.Pause(p); err != nil {
			t.Fatal(err)
		}
	}
	late, acme := "/tenant?platform=eu&code=late", "/tenant?platform=eu&code=acme"
	want := func(target, want string) {
		t.Helper()
		var got string
		if !testkit.Comes(func() bool { got = buttons(target); return got == want }) { // counts lag behind the inbox
			t.Errorf("%s offers %s, want %s", target, got, want)
		}
	}
	want("/", "Try all of these now…; Pause…; Pause all deliveries…")
	want("/webhooks/8", "Try now; Discard…; The tenant: pause, erase…; Download")
	want("/webhooks/3", "Redeliver…; Discard…; The tenant: pause, erase…; Download")
	want("/webhooks/2", "Redeliver…; The tenant: pause, erase…; Download")
	want("/webhooks?state=waiting", "Try all of these now…; Discard all of these…")
	want("/webhooks?state=delivered", "Redeliver all of these…")
	want(acme, "Redeliver…; Redeliver…; Pause…; Erase tenant…")
	want(late, "Try now; Try now; Pause…; Erase tenant…")
	pause(inbox.Pause{Platform: "eu", Tenant: "late"})
	want(late, "Resume; Resume; Erase tenant…")
	want(acme, "Resume; Redeliver…; Redeliver…; Pause…; Erase tenant…")
	pause(inbox.Pause{Receiver: "main"})
	want("/", "Resume; Resume; Try all of these now…; Resume; Pause all deliveries…")
	pause(inbox.Pause{})
	want("/", "Resume; Resume; Resume all deliveries; Resume; Resume all deliveries")
}
