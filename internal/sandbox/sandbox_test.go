package sandbox

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/signature"
)

// opened returns a sandbox on free ports.
func opened(t *testing.T, receiver string) *Sandbox {
	t.Helper()
	s, err := Open(Config{Listen: "127.0.0.1:0", ReceiverListen: receiver})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestControl(t *testing.T) {
	s := opened(t, "127.0.0.1:0")
	for _, tt := range []struct {
		name, target, body string
		status             int
		want               string
	}{
		{"send", "/sandbox/send", `{"tenant":"acme","platform":"docs","features":{"users":25,"sso":null}}`, 200, `{"status":200,"decision":"",`},
		{"no features", "/sandbox/send", `{"tenant":"acme"}`, 200, `{"status":200,`},
		{"raw", "/sandbox/send?raw", "\xff", 200, `{"status":400,`},
		{"no tenant", "/sandbox/send", `{}`, 400, `tenant`},
		{"a typing error", "/sandbox/send", `{"tenant":"acme","feature":{}}`, 400, `feature`},
		{"a quantity that is none", "/sandbox/send", `{"tenant":"acme","features":{"users":"many"}}`, 400, `it has a JSON string in \"features`},
		{"a list of features", "/sandbox/send", `{"tenant":"acme","features":["sso"]}`, 400, `it has a JSON array in \"features\"`},
		{"revoke", "/sandbox/revoke", "", 200, `{"revoked":0}`},
		{"fail", "/sandbox/fail", `{"part":"receiver","status":500}`, 200, ``},
		{"send again", "/sandbox/send", `{"tenant":"acme"}`, 200, `{"status":500,`},
		{"fail off", "/sandbox/fail", `{"part":"off"}`, 200, ``},
		{"fail for longer than there are clocks", "/sandbox/fail", `{"part":"receiver","status":500,"seconds":1e12}`, 200, ``},
		{"send meanwhile", "/sandbox/send", `{"tenant":"acme"}`, 200, `{"status":500,`},
		{"fail off again", "/sandbox/fail", `{"part":"off"}`, 200, ``},
		{"and again", "/sandbox/send", `{"tenant":"acme"}`, 200, `{"status":200,`},
		{"the part is missing", "/sandbox/fail", `{"status":500}`, 400, `unknown part`},
		{"no part", "/sandbox/fail", `{"part":"tokens","status":500}`, 400, `unknown part`},
		{"no status", "/sandbox/fail", `{"part":"token","status":99}`, 400, `from 200 to 599`},
		{"elsewhere", "/sandbox/", ``, 404, ``},
	} {
		w := post(s, tt.target, "text/plain", tt.body) // whatever a test in any language calls it
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%s: %d %s, want %d %s", tt.name, w.Code, w.Body, tt.status, tt.want)
		}
	}
	if got := received(s.Receiver); !strings.HasPrefix(got, "200 acme (docs/acme): sso, users ≤ 25\n200 acme (crm/acme): nothing\n400 ") {
		t.Error(got)
	}
	if w := post(s, "/sandbox/revoke", "text/plain", "", "Origin", "https://evil.example"); w.Code != http.StatusForbidden {
		t.Errorf("from a web page: %d", w.Code)
	}
	r := httptest.NewRecorder()
	s.ServeHTTP(r, httptest.NewRequest("GET", "/sandbox/revoke", nil))
	if r.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", r.Code)
	}
}

// A failing part answers with the published body, if there is one, and fails no longer than it should.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Sandbox{Billing: NewBilling(testClient())}
		tok := getToken(t, s.Billing).AccessToken
		fail := func(f Failure) {
			t.Helper()
			if err := s.Fail(f); err != nil {
				t.Fatal(err)
			}
		}
		for status, code := range map[int]string{400: "invalid_scope", 401: "invalid_client", 403: "unauthorized_client"} {
			fail(Failure{"token", status, 10})
			w := post(s, "/oauth/token", formType, fields().Encode())
			if e := decode[oauthError](t, w); w.Code != status || e.Error != code {
				t.Errorf("%d %+v", w.Code, e)
			}
		}
		fail(Failure{"graphql", 401, 0})
		wantAccess(t, s.Billing, tok, "expired")
		fail(Failure{"graphql", 0, 0})
		wantAccess(t, s.Billing, tok, "")
		time.Sleep(9999 * time.Millisecond)
		if w := post(s, "/oauth/token", formType, fields().Encode()); w.Code/100 != 4 {
			t.Errorf("after 9.999 s: %d", w.Code)
		}
		time.Sleep(time.Millisecond)
		getToken(t, s.Billing)
	})
}

// A webhook is signed as the service signs, or as usher signs for a receiver, and carries the token. A forged one
// carries the signature of another body.
func TestSigns(t *testing.T) {
	body := []byte(`{"a":1}`)
	s := &Sender{Token: "tok", SigningKey: "s3cret"}
	if h := s.header(body); h.Get("X-Bunny-Signature") != "79999786a1bff10cd4d7dd0b0752574af76be0b5" || h.Get("Authorization") != "Bearer tok" {
		t.Errorf("%v", h)
	}
	s.forge = true
	if h := s.header(body); len(h.Get("X-Bunny-Signature")) != 40 || h.Get("X-Bunny-Signature")[0] == '7' {
		t.Errorf("%v", h)
	}
	s.SigningKey = "whsec_a2V5"
	if h := s.header(body); !strings.HasPrefix(h.Get("Webhook-Signature"), "v1,") || h.Get("X-Bunny-Signature") != "" {
		t.Errorf("%v", h)
	}
	if err := CheckSigningKey("whsec_s3cret!"); err == nil || strings.Contains(err.Error(), "s3cret!") || CheckSigningKey("s3cret!") != nil {
		t.Error(err)
	}
}

// rehearsed runs the rehearsal against a receiver, in a bubble, and returns the scenarios that failed.
func rehearsed(t *testing.T, h http.Handler) (failed string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := NewSender(1, "http://receiver.example/")
		s.Client.Transport = inProcess{h}
		s.SigningKey = "s3cret"
		n := 0
		err := Rehearse(t.Context(), s, "", func(h ScenarioResult) {
			if n++; !h.OK && !h.Skipped {
				failed += h.Scenario + ": " + h.Answer + "\n"
			}
			if (h.OK || h.Skipped) != (len(h.Mistakes) == 0) {
				t.Errorf("%+v", h)
			}
		})
		if n != 12 || err != nil {
			t.Errorf("%d plays", n)
		}
	})
	return failed
}

// A good receiver passes. A receiver with one mistake fails the scenario for that mistake.
func TestRehearse(t *testing.T) {
	if testing.Short() {
		t.Skip("a hundred plays")
	}
	sha1, _ := signature.ByName("sha1")
	checked := func(next func(w http.ResponseWriter, body string, t Tenant)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			tenant, err := readSnapshot(body)
			if err != nil || !sha1.Verify("s3cret", r.Header.Values("X-Bunny-Signature"), body) {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next(w, string(body), tenant)
		})
	}
	good := func(http.ResponseWriter, string, Tenant) {}
	if failed := rehearsed(t, checked(good)); failed != "" {
		t.Error(failed)
	}
	refuse := func(w http.ResponseWriter) { w.WriteHeader(500); _, _ = io.WriteString(w, "why\nnot") }
	var mu sync.Mutex // guards what follows
	seen, last, underway := map[string]bool{}, map[string]string{}, 0
	reset := func() { clear(seen); clear(last) }
	for _, tt := range []struct {
		want string // what does not hold
		bad  func(w http.ResponseWriter, body string, t Tenant)
	}{
		{"a tenant that it never saw: 500 why\n", func(w http.ResponseWriter, body string, t Tenant) {
			if t.Code != "" && !seen[t.Code] {
				refuse(w)
			}
			seen[t.Code] = true
		}},
		{"a copy of that webhook: 500", func(w http.ResponseWriter, body string, t Tenant) {
			if last[t.Code] == body {
				refuse(w)
			}
			last[t.Code] = body
		}},
		{"a change and back: A, B, A: 500", func(w http.ResponseWriter, body string, t Tenant) {
			if seen[body] && last[t.Code] != body {
				refuse(w)
			}
			seen[body], last[t.Code] = true, body
		}},
		{"ten tenants at once: 500", func(w http.ResponseWriter, body string, t Tenant) {
			underway++
			defer func() { underway-- }()
			if underway > 9 {
				refuse(w)
			}
			mu.Unlock()
			time.Sleep(time.Millisecond)
			mu.Lock()
		}},
		{"an empty list of features: 500", func(w http.ResponseWriter, body string, t Tenant) {
			if len(t.Features) == 0 && len(t.Subscriptions) > 0 && t.Subscriptions[0].State == "active" {
				refuse(w)
			}
		}},
		{"a canceled subscription: 200 after 2s, want at most 1s", func(w http.ResponseWriter, body string, t Tenant) {
			if len(t.Subscriptions) > 0 && t.Subscriptions[0].State == "canceled" {
				time.Sleep(2 * time.Second)
			}
		}},
		{"nulls: 500", func(w http.ResponseWriter, body string, t Tenant) {
			if strings.Contains(body, `"contacts":null`) {
				refuse(w)
			}
		}},
		{"nulls: 500", func(w http.ResponseWriter, body string, t Tenant) {
			if strings.Contains(body, `"platform":null`) {
				refuse(w)
			}
		}},
		{"a payload of 200 KB: 500", func(w http.ResponseWriter, body string, t Tenant) {
			if len(body) >= 200_000 && len(body) < 220_000 {
				refuse(w)
			}
		}},
		{"a checkout, to be allowed: 500", func(w http.ResponseWriter, body string, t Tenant) {
			if t.Code == "" {
				refuse(w)
			}
		}},
		{"a checkout, to be refused: 500 why\n", func(w http.ResponseWriter, body string, t Tenant) {
			if strings.Contains(body, RefusedTenant) {
				refuse(w)
			}
		}},
	} {
		reset()
		locked := func(w http.ResponseWriter, body string, t Tenant) { mu.Lock(); defer mu.Unlock(); tt.bad(w, body, t) }
		if failed := rehearsed(t, checked(locked)); !strings.Contains(failed, tt.want) {
			t.Errorf("want %q, got\n%s", tt.want, failed)
		}
	}
	if failed := rehearsed(t, NewReceiver()); failed != "a forged signature, to be rejected: 200, want 401\n" {
		t.Errorf("a receiver that verifies nothing: %s", failed)
	}
	hangs := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done(); panic(http.ErrAbortHandler) })
	if failed := rehearsed(t, hangs); strings.Count(failed, "no answer") != 12 {
		t.Errorf("a receiver that hangs: %s", failed)
	}
}

// docs/receivers.md has every scenario, with the same usual mistakes.
func TestScenariosInDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/receivers.md")
	if err != nil {
		t.Fatal(err)
	}
	r := &rehearsal{sender: &Sender{SigningKey: "k"}}
	for _, sc := range r.scenarios() {
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(sc.name) + `.*\|$`).FindString(strings.ReplaceAll(string(page), "`", ""))
		if !strings.HasSuffix(row, "| "+strings.Join(sc.mistakes, "; or ")+" |") {
			t.Errorf("%s, %q: the docs have %q", sc.name, sc.mistakes, row)
		}
	}
}
