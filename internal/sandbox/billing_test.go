package sandbox

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A secret with all characters that form encoding has to escape.
const oddSecret = "a+b%20c&d=e f;ü€\x7f"

func testClient() Client {
	return Client{ID: "app", Secret: oddSecret, Scopes: []string{"standard:read", "standard:write"}}
}

func fields(pairs ...string) url.Values {
	v := url.Values{
		"grant_type":    {"client_credentials"},
		"scope":         {"standard:read"},
		"client_id":     {"app"},
		"client_secret": {oddSecret},
	}
	for i := 0; i < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return v
}

const formType = "application/x-www-form-urlencoded"

func post(h http.Handler, target, contentType, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", target, strings.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func decode[T any](t *testing.T, w *httptest.ResponseRecorder) T {
	t.Helper()
	var v T
	d := json.NewDecoder(w.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("answer %d is not the JSON expected: %v", w.Code, err)
	}
	return v
}

func getToken(t *testing.T, b *Billing, pairs ...string) tokenResponse {
	t.Helper()
	w := post(b, "/oauth/token", formType, fields(pairs...).Encode())
	if w.Code != http.StatusOK {
		t.Fatalf("token request: %d %s", w.Code, w.Body)
	}
	return decode[tokenResponse](t, w)
}

func ask(b *Billing, token, body string) *httptest.ResponseRecorder {
	return post(b, "/graphql", "application/json", body, "Authorization", "Bearer "+token)
}

const typename = `{"query":"{__typename}"}`

// wantAccess makes a call with a token. If fault is empty, the call must succeed. Otherwise it must be refused with
// the documented body, with the fault in its description.
func wantAccess(t *testing.T, b *Billing, token, fault string) {
	t.Helper()
	w := ask(b, token, typename)
	if fault == "" {
		if w.Code != http.StatusOK {
			t.Fatalf("call: %d %s, want 200", w.Code, w.Body)
		}
		return
	}
	if w.Code != http.StatusUnauthorized {
		t.Fatalf("call: %d %s, want 401", w.Code, w.Body)
	}
	items := decode[[]struct{ Description []string }](t, w)
	if len(items) != 1 || len(items[0].Description) != 1 || !strings.Contains(items[0].Description[0], fault) {
		t.Fatalf("401 body %+v does not say %q", items, fault)
	}
}

func TestTokenEndpoint(t *testing.T) {
	twice := fields()
	twice.Add("client_id", "app")
	asJSON, _ := json.Marshal(map[string]string{"grant_type": "client_credentials", "scope": "standard:read", "client_id": "app", "client_secret": oddSecret})
	tests := []struct {
		name, target, contentType, body string
		status                          int
		code                            string
	}{
		{"good", "", formType, fields().Encode(), 200, ""},
		{"charset parameter", "", formType + "; charset=utf-8", fields().Encode(), 200, ""},
		{"two scopes", "", formType, fields("scope", "standard:read standard:write").Encode(), 200, ""},
		{"percent-encoded spaces", "", formType, strings.ReplaceAll(fields().Encode(), "+", "%20"), 200, ""},
		{"secret not encoded", "", formType, "grant_type=client_credentials&scope=standard:read&client_id=app&client_secret=a+b%20c&d=e f", 401, "invalid_client"},
		{"JSON", "", "application/json", string(asJSON), 400, "unsupported_grant_type"},
		{"form called JSON", "", "application/json", fields().Encode(), 400, "unsupported_grant_type"},
		{"no content type", "", "", fields().Encode(), 400, "unsupported_grant_type"},
		{"query parameters", "?" + fields().Encode(), formType, "", 400, "unsupported_grant_type"},
		{"secret in the query", "?client_secret=" + url.QueryEscape(oddSecret), formType, fields("client_secret", "").Encode(), 401, "invalid_client"},
		{"bad encoding", "", formType, fields().Encode() + "&x=%zz", 400, "unsupported_grant_type"},
		{"other grant", "", formType, fields("grant_type", "password").Encode(), 400, "unsupported_grant_type"},
		{"no grant", "", formType, fields("grant_type", "").Encode(), 400, "unsupported_grant_type"},
		{"unknown client", "", formType, fields("client_id", "other").Encode(), 401, "invalid_client"},
		{"no client", "", formType, fields("client_id", "").Encode(), 401, "invalid_client"},
		{"client twice", "", formType, twice.Encode(), 401, "invalid_client"},
		{"wrong secret", "", formType, fields("client_secret", "wrong").Encode(), 401, "invalid_client"},
		{"no secret", "", formType, fields("client_secret", "").Encode(), 401, "invalid_client"},
		{"empty secret of a client without one", "", formType, fields("client_id", "bare", "client_secret", "").Encode(), 401, "invalid_client"},
		{"grant flows without client credentials", "", formType, fields("client_id", "flows", "client_secret", "s").Encode(), 403, "unauthorized_client"},
		{"no scope", "", formType, fields("scope", "").Encode(), 400, "invalid_scope"},
		{"foreign scope", "", formType, fields("scope", "standard:read admin").Encode(), 400, "invalid_scope"},
		{"scope separated by a tab", "", formType, fields("scope", "standard:read\tstandard:write").Encode(), 400, "invalid_scope"},
	}
	b := NewBilling(testClient(), Client{ID: "bare", Scopes: []string{"standard:read"}}, Client{ID: "flows", Secret: "s", NoGrant: true})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := post(b, "/oauth/token"+tt.target, tt.contentType, tt.body)
			if w.Code != tt.status {
				t.Fatalf("status %d %s, want %d", w.Code, w.Body, tt.status)
			}
			if tt.code == "" {
				decode[tokenResponse](t, w)
				return
			}
			if e := decode[oauthError](t, w); e.Error != tt.code || e.Description == "" {
				t.Fatalf("error %+v, want %s with a description", e, tt.code)
			}
		})
	}
	if got := b.TokenRequests(); got != len(tests) {
		t.Errorf("TokenRequests %d, want %d", got, len(tests))
	}
}

func TestNothingElse(t *testing.T) {
	b := NewBilling(testClient())
	for target, want := range map[string]int{"/": 404, "/graphql/": 404, "/oauth": 404, "/x/graphql": 404, "/graphq%6c": 404} {
		if w := post(b, target, "application/json", typename); w.Code != want {
			t.Errorf("POST %s: %d, want %d", target, w.Code, want)
		}
	}
	for _, target := range []string{"/graphql", "/oauth/token"} {
		w := httptest.NewRecorder()
		b.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
		if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "POST" {
			t.Errorf("GET %s: %d, want 405", target, w.Code)
		}
	}
}

func TestTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBilling(testClient())
		if got := getToken(t, b).ExpiresIn; got != 7200 {
			t.Errorf("default life %d", got)
		}
		b.EditClient("app", func(c *Client) { c.TokenLife = 2 * time.Second })
		time.Sleep(900 * time.Millisecond)
		tok := getToken(t, b).AccessToken
		time.Sleep(2*time.Second - time.Nanosecond)
		wantAccess(t, b, tok, "")
		time.Sleep(time.Nanosecond)
		wantAccess(t, b, tok, "expired")
		getToken(t, b) // forgets what has expired
		wantAccess(t, b, tok, "expired")
	})
}

func TestRevocation(t *testing.T) {
	b := NewBilling(testClient(), Client{ID: "other", Secret: "s", Scopes: []string{"standard:read"}})
	first := getToken(t, b).AccessToken
	b.Revoke()
	wantAccess(t, b, first, "revoked")

	first = getToken(t, b).AccessToken
	second := getToken(t, b).AccessToken
	wantAccess(t, b, first, "")
	other := getToken(t, b, "client_id", "other", "client_secret", "s").AccessToken
	b.EditClient("app", func(c *Client) { c.OneToken = true })
	third := getToken(t, b, "scope", "standard:write").AccessToken
	wantAccess(t, b, first, "revoked")
	wantAccess(t, b, second, "revoked")
	wantAccess(t, b, third, "")
	wantAccess(t, b, other, "")

	if ok, unauthorized := b.Calls(); ok != 3 || unauthorized != 3 {
		t.Errorf("Calls %d %d", ok, unauthorized)
	}
}
