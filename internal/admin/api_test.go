package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/webhookgate/content"
)

const (
	five = `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme"},"change":{"features":[{"code":"users","quantity":5}]}}}`
	ten  = `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme"},"change":{"features":[{"code":"users","quantity":10,"name":"R&D"}]}}}`
)

// fakeInbox writes down what it is asked for.
type fakeInbox struct{ asked []string }

func (f *fakeInbox) note(format string, args ...any) {
	f.asked = append(f.asked, fmt.Sprintf(format, args...))
}

func (f *fakeInbox) config(token string) Config {
	entry := func(id uint64, state inbox.State) inbox.Entry {
		return inbox.Entry{ID: id, Webhook: fmt.Sprint("msg_", id), Type: content.TenantProvisioningChange, Tenant: "acme", Received: time.Unix(1e9, 0).UTC(), Status: inbox.Status{State: state}}
	}
	items := map[uint64]*inbox.Item{
		3: {
			Entry: entry(3, inbox.Parked), Body: []byte(ten), Previous: &inbox.Previous{ID: 2, Body: []byte(five)},
			Header: http.Header{
				"Content-Type": {"application/json"}, "X-Forwarded-For": {"192.0.2.1"}, "Authorization": {"Basic s3cret"}, "Cookie": {"s3cret"},
				"Webhook-Signature": {"s3cret"}, "X-Api-Key": {"s3cret"}, "X_webhook_TOKEN": {"s3cret"}, "X-Signature": {"s3cret"},
				"X-Customer-Key": {"s3cret"}, "X-Jwt": {"s3cret"}, "X-Session": {"s3cret"}, "X-Credential": {"s3cret"}, "X-Passphrase": {"s3cret"},
				"Idempotency-Key": {"shown"},
			},
		},
		2: {Entry: entry(2, inbox.Delivered), Body: []byte(five)},
		1: {Entry: entry(1, inbox.Parked), Body: []byte("{\xff")},
		6: {Entry: entry(6, inbox.Waiting), Body: []byte(ten), Previous: &inbox.Previous{ID: 2, Body: []byte(five)}, Before: 3},
	}
	items[3].Before = 2
	items[3].Attempts = []inbox.Attempt{{At: time.Unix(1e9+1, 0), Status: 500}, {At: time.Unix(1e9+2, 0), Status: 422, Answer: "unknown tenant"}}
	cfg := Config{
		Hosts:   guard.NewHosts("127.0.0.1:9095", nil, false),
		Unready: func() []string { return nil },
		Metrics: http.NotFoundHandler(),
		Log:     slog.New(slog.DiscardHandler),
		Inbox: &Inbox{
			List: func(filter inbox.Filter) ([]inbox.Entry, error) {
				f.note("list %q %q %d", filter.State, filter.Tenant, filter.Limit)
				switch filter.Tenant {
				case "nobody":
					return nil, nil
				case "broken":
					return nil, errors.New("input/output error")
				}
				return []inbox.Entry{items[3].Entry, items[2].Entry}, nil
			},
			Show: func(id uint64) (*inbox.Item, error) {
				if items[id] == nil {
					return nil, inbox.ErrNotFound
				}
				return items[id], nil
			},
			Redeliver: func(id uint64, force bool) error {
				f.note("redeliver %d %t", id, force)
				switch {
				case items[id] == nil:
					return fmt.Errorf("webhook %d: %w", id, inbox.ErrNotFound)
				case id == 2 && !force:
					return &inbox.OverwriteError{ID: 2, Latest: items[3].Entry}
				}
				return nil
			},
			Discard: func(id uint64) error {
				f.note("discard %d", id)
				return map[uint64]error{1: inbox.ErrBusy, 2: inbox.ErrFinished, 4: inbox.ErrNotFound, 5: inbox.ErrNobody}[id]
			},
			Pause:  func(p inbox.Pause) error { f.note("pause %s", p); return nil },
			Resume: func(p inbox.Pause) (bool, error) { f.note("resume %s", p); return true, nil },
			Erase:  func(platform, tenant string) (int, error) { f.note("erase %s|%s", platform, tenant); return 3, nil },
			Stats:  func() inbox.Stats { return inbox.Stats{} },
			HeldUp: func() []inbox.HeldUp { return nil },
			Err:    func() error { return nil },
		},
		Platforms: func(tenant string) ([]string, error) {
			return map[string][]string{"acme": {"eu"}, "twice": {"us", ""}}[tenant], nil
		},
		Forget: func(platform, tenant string) (int, error) {
			f.note("forget %s|%s", platform, tenant)
			return 1, nil
		},
	}
	if token != "" {
		cfg.Token = func() string { return token }
	}
	return cfg
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

func TestAPI(t *testing.T) {
	const browser = "Sec-Fetch-Site"
	for _, tc := range []struct {
		name, method, target, body string
		header                     []string
		status                     int
		want                       string // in the answer
		asked                      string // of the inbox
	}{
		{"list", "GET", "/api/webhooks?inbox=true", "", nil, 200, `{"webhooks":[{"id":"3",`, `list "" "" 51`},
		{"list some", "GET", "/api/webhooks?outcome=parked&tenant=ac%26me&limit=5", "", nil, 200, `"state":"parked"`, `list "parked" "ac&me" 6`},
		{"list all", "GET", "/api/webhooks?limit=0", "", nil, 200, "", `list "" "" 0`},
		{"what it changed", "GET", "/api/webhooks?limit=500", "", nil, 200, `"changes":["users 5 → 10"]`, `list "" "" 501`},
		{"list none", "GET", "/api/webhooks?tenant=nobody", "", nil, 200, `{"webhooks":[]}`, `list "" "nobody" 51`},
		{"list what can't be in the inbox", "GET", "/api/webhooks?outcome=rejected", "", nil, 200, `{"webhooks":[]}`, ""},
		{"list of no outcome", "GET", "/api/webhooks?outcome=lost", "", nil, 400, "waiting, delivered, parked, superseded, discarded, kept", ""},
		{"list with a bad limit", "GET", "/api/webhooks?limit=-1", "", nil, 400, "limit", ""},
		{"list with a bad query", "GET", "/api/webhooks?outcome=%zz", "", nil, 400, "query", ""},
		{"list a tenant", "GET", "/api/webhooks?tenant=us/acme&since=2026-01-31T08:00:00Z&until=2026-02-01T08:00:00%2B01:00", "", nil, 200, "", `list "" "acme" 51`},
		{"list one of two tenants", "GET", "/api/webhooks?tenant=twice", "", nil, 409, "/twice or us/twice", ""},
		{"list from no time", "GET", "/api/webhooks?since=soon", "", nil, 400, "since is", ""},
		{"list fails", "GET", "/api/webhooks?tenant=broken", "", nil, 500, "input/output error", `list "" "broken" 51`},

		{"show", "GET", "/api/webhooks/3", "", nil, 200, `"changes":["users 5 → 10"],"previous":"2"`, ""},
		{"show the payload as it came", "GET", "/api/webhooks/3", "", nil, 200, `"payload":` + ten, ""},
		{"show the header", "GET", "/api/webhooks/3", "", nil, 200, `"header":{"Content-Type":["application/json"],"Idempotency-Key":["shown"],"Webhook-Id":["msg_3"],"Webhook-Timestamp":["1000000002"],"X-Forwarded-For":["192.0.2.1"]}`, ""},
		{"show a first one", "GET", "/api/webhooks/2", "", nil, 200, `"changes":["+ users (5)"],"first":true`, ""},
		{"show one before which another was not taken", "GET", "/api/webhooks/6", "", nil, 200, `"previous":"2","untaken":"3"`, `list "waiting" "acme" 500`},
		{"show what is no JSON", "GET", "/api/webhooks/1", "", nil, 200, "\"payload\":\"{\ufffd\"", ""},
		{"show nothing", "GET", "/api/webhooks/4", "", nil, 404, "no such webhook", ""},
		{"show no number", "GET", "/api/webhooks/x", "", nil, 404, "no such webhook", ""},
		{"show a number too large", "GET", "/api/webhooks/18446744073709551616", "", nil, 404, "no such webhook", ""},

		{"redeliver", "POST", "/api/webhooks/3/redeliver", "", nil, 200, `{"id":"3"}`, "redeliver 3 false"},
		{"redeliver an old one", "POST", "/api/webhooks/2/redeliver", "", nil, 409, `it would overwrite 3, received`, "redeliver 2 false"},
		{"what it would overwrite", "POST", "/api/webhooks/2/redeliver", "", nil, 409, `"latest":{"id":"3",`, "redeliver 2 false"},
		{"by force", "POST", "/api/webhooks/2/redeliver?force=true", "", nil, 200, `{"id":"2"}`, "redeliver 2 true"},
		{"not by force", "POST", "/api/webhooks/2/redeliver?force=false", "", nil, 409, "", "redeliver 2 false"},
		{"by what", "POST", "/api/webhooks/2/redeliver?force=yes", "", nil, 400, "true or false", ""},
		{"redeliver nothing", "POST", "/api/webhooks/4/redeliver", "", nil, 404, "no such webhook", "redeliver 4 false"},
		{"redeliver a decision", "POST", "/api/webhooks/d3/redeliver", "", nil, 404, "no such webhook", ""},

		{"which would be sent again", "GET", "/api/redeliver?outcome=parked", "", nil, 200, `{"webhooks":["3"],"older":1}`, `list "parked" "" 0; list "" "" 0`},
		{"send them again", "POST", "/api/redeliver?outcome=parked", "", nil, 200, `{"done":["3"]}`, `list "parked" "" 0; list "" "" 0; redeliver 3 false`},
		{"send all of them again", "POST", "/api/redeliver?outcome=parked&force=true", "", nil, 200, `{"done":["2","3"]}`, `list "parked" "" 0; redeliver 2 true; redeliver 3 true`},
		{"send which again", "POST", "/api/redeliver", "", nil, 400, "say which", ""},
		{"send one of two tenants' again", "POST", "/api/redeliver?tenant=twice", "", nil, 409, "/twice or us/twice", ""},
		{"send again what was turned away", "GET", "/api/redeliver?outcome=rejected", "", nil, 200, `{"webhooks":[],"older":0}`, ""},
		{"which would be discarded", "GET", "/api/discard?tenant=eu/acme&until=2026-01-31", "", nil, 400, "until is", ""},
		{"discard them", "POST", "/api/discard?tenant=eu/acme", "", nil, 200, `{"done":["3"]}`, `list "" "acme" 0; discard 3`},
		{"discard with a slip", "POST", "/api/discard?outcome=parked&tennant=eu/acme", "", nil, 400, "tennant", ""},
		{"discard some", "POST", "/api/discard?outcome=parked&limit=1", "", nil, 400, "limit", ""},
		{"send again with a slip", "POST", "/api/redeliver?outcome=parked&Tenant=eu/acme", "", nil, 400, "Tenant", ""},
		{"which, with a slip", "GET", "/api/discard?outcome=parked&tennant=eu/acme", "", nil, 400, "tennant", ""},

		{"discard", "POST", "/api/webhooks/3/discard", "", nil, 200, `{"id":"3"}`, "discard 3"},
		{"discard what is being delivered", "POST", "/api/webhooks/1/discard", "", nil, 409, "being delivered", "discard 1"},
		{"discard what is finished", "POST", "/api/webhooks/2/discard", "", nil, 409, "neither waits", "discard 2"},
		{"discard nothing", "POST", "/api/webhooks/4/discard", "", nil, 404, "no such webhook", "discard 4"},
		{"discard what nobody delivers", "POST", "/api/webhooks/5/discard", "", nil, 503, "no replica", "discard 5"},

		{"pause all", "POST", "/api/pause", "", nil, 200, `{}`, "pause all deliveries"},
		{"pause a tenant", "POST", "/api/pause", `{"tenant":"acme"}`, nil, 200, `{"platform":"eu","tenant":"acme"}`, "pause tenant eu/acme"},
		{"pause a receiver", "POST", "/api/pause", `{"receiver":"crm"}`, nil, 200, `{"receiver":"crm"}`, "pause receiver crm"},
		{"pause somebody unknown", "POST", "/api/pause", `{"tenant":"acne"}`, nil, 404, "no tenant acne", ""},
		{"pause with a slip", "POST", "/api/pause", `{"tenants":"acme"}`, nil, 400, `unknown field \"tenants\"`, ""},
		{"resume with a slip", "POST", "/api/resume", `{"reciever":"crm"}`, nil, 400, `unknown field \"reciever\"`, ""},
		{"pause nobody in particular", "POST", "/api/pause", `null`, nil, 400, "should be", ""},
		{"pause two things", "POST", "/api/pause", `{"tenant":"acme"}}`, nil, 400, "should be JSON", ""},
		{"pause both", "POST", "/api/pause", `{"tenant":"acme","receiver":"crm"}`, nil, 400, "not both", ""},
		{"pause a platform", "POST", "/api/pause", `{"platform":"eu"}`, nil, 400, "needs a tenant", ""},
		{"resume", "POST", "/api/resume", `{"receiver":"crm"}`, nil, 200, `{"receiver":"crm","was_paused":true}`, "resume receiver crm"},
		{"erase", "POST", "/api/erase", `{"tenant":"acme","platform":"eu"}`, nil, 200, `{"platform":"eu","tenant":"acme","webhooks":3}`, "erase eu|acme"},
		{"erase one of two", "POST", "/api/erase", `{"tenant":"twice"}`, nil, 409, "/twice or us/twice", ""},
		{"erase without a platform", "POST", "/api/erase", `{"tenant":"twice","platform":""}`, nil, 200, "", "erase |twice"},
		{"erase nobody", "POST", "/api/erase", `{}`, nil, 400, "no tenant is named", ""},
		{"pause by reading", "GET", "/api/pause", "", nil, 405, "POST", ""},

		{"forget", "POST", "/api/forget", `{"tenant":"acme"}`, nil, 200, `{"platform":"eu","tenant":"acme","forgotten":1}`, "forget eu|acme"},
		{"forget somebody unknown", "POST", "/api/forget", `{"tenant":"acme","platform":"us"}`, nil, 404, "no tenant us/acme", ""},
		{"forget nobody", "POST", "/api/forget", `{}`, nil, 400, "no tenant is named", ""},
		{"forget nothing at all", "POST", "/api/forget", "", nil, 400, "no tenant is named", ""},
		{"forget a number", "POST", "/api/forget", `{"tenant":5}`, nil, 400, "should be JSON", ""},
		{"forget too much", "POST", "/api/forget", strings.Repeat(" ", maxRequest+1), nil, 413, "too large", ""},

		{"act by reading", "GET", "/api/webhooks/3/redeliver", "", nil, 405, "POST", ""},
		{"forget by reading", "GET", "/api/forget", "", nil, 405, "POST", ""},
		{"write what is read", "POST", "/api/webhooks", "", nil, 405, "read", ""},
		{"no cleaning", "GET", "/api//webhooks", "", nil, 404, "no such page", ""},
		{"no cleaning of dots", "POST", "/x/../api/forget", `{"tenant":"acme"}`, nil, 404, "no such page", ""},
		{"no slash at the end", "GET", "/api/webhooks/", "", nil, 404, "no such page", ""},
		{"nothing further down", "GET", "/api/webhooks/3/x", "", nil, 404, "no such page", ""},
		{"no unescaping", "GET", "/api/webhooks%2f3", "", nil, 404, "no such page", ""},

		{"from a page elsewhere", "POST", "/api/forget", `{"tenant":"acme"}`, []string{browser, "cross-site"}, 403, "origin", ""},
		{"from a neighbour's page", "POST", "/api/webhooks/3/redeliver", "", []string{browser, "same-site"}, 403, "origin", ""},
		{"from a page in an old browser", "POST", "/api/webhooks/3/redeliver", "", []string{"Origin", "http://evil.example"}, 403, "origin", ""},
		{"from a page without an origin", "POST", "/api/webhooks/3/redeliver", "", []string{"Origin", "null"}, 403, "origin", ""},
		{"from our own page", "POST", "/api/webhooks/3/redeliver", "", []string{browser, "same-origin", "Origin", "http://127.0.0.1:9095"}, 200, "", "redeliver 3 false"},
		{"by another name", "GET", "/api/webhooks", "", []string{"Host", "evil.example"}, 421, "Host", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := new(fakeInbox)
			status, body := ask(New(f.config("")), tc.method, tc.target, tc.body, tc.header...)
			if status != tc.status || !strings.Contains(body, tc.want) {
				t.Errorf("%d %s\nwant %d with %s", status, body, tc.status, tc.want)
			}
			if !json.Valid([]byte(body)) || strings.Contains(body, "s3cret") {
				t.Errorf("not to be shown: %s", body)
			}
			if asked := strings.Join(f.asked, "; "); asked != tc.asked {
				t.Errorf("asked for %q, want %q", asked, tc.asked)
			}
		})
	}
}

func TestAPINeedsTheToken(t *testing.T) {
	f := new(fakeInbox)
	h := New(f.config("adm1n"))
	for _, call := range []struct{ method, target, body string }{
		{"GET", "/api/webhooks", ""}, {"GET", "/api/webhooks/3", ""}, {"POST", "/api/webhooks/3/redeliver", ""}, {"POST", "/api/forget", `{"tenant":"acme"}`},
	} {
		if status, body := ask(h, call.method, call.target, call.body); status != 401 {
			t.Errorf("%s %s without the token: %d %s", call.method, call.target, status, body)
		}
		if len(f.asked) > 0 {
			t.Errorf("asked for %q", f.asked)
		}
		if status, body := ask(h, call.method, call.target, call.body, "Authorization", "Bearer adm1n"); status != 200 {
			t.Errorf("%s %s: %d %s", call.method, call.target, status, body)
		}
		f.asked = nil
	}
}

// Without an inbox dedup can be told to forget all the same.
func TestAPIWithoutAnInbox(t *testing.T) {
	f := new(fakeInbox)
	cfg := f.config("")
	cfg.Inbox = nil
	h := New(cfg)
	for _, call := range [][2]string{{"GET", "/api/webhooks?inbox=true"}, {"GET", "/api/redeliver?outcome=parked"}, {"POST", "/api/webhooks/3/redeliver"}, {"POST", "/api/pause"}} {
		if status, body := ask(h, call[0], call[1], ""); status != 404 || !strings.Contains(body, "this usher has no inbox") {
			t.Errorf("%s: %d %s", call[1], status, body)
		}
	}
	if status, body := ask(h, "POST", "/api/forget", `{"tenant":"acme"}`); status != 200 || !slices.Equal(f.asked, []string{"forget eu|acme"}) {
		t.Errorf("%d %s %q", status, body, f.asked)
	}
	cfg.Forget = nil
	if status, body := ask(New(cfg), "POST", "/api/forget", `{"tenant":"acme"}`); status != 404 || !strings.Contains(body, "no webhook gate") {
		t.Errorf("%d %s", status, body)
	}
}

// post sends a form of our own page.
func post(h http.Handler, target, form string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", target, strings.NewReader(form))
	r.Host = "127.0.0.1:9095"
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}
