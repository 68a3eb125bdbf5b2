package admin

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"usher/internal/testkit/inboxtest"
)

// FuzzRequest sends any method, path, query and body to the admin port. The answer is always one of the
// documented ones, valid if it is JSON, and only a POST acts.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/api/webhooks", "state=parked&tenant=acme&limit=5", "")
	f.Add("GET", "/api/webhooks/3", "", "")
	f.Add("POST", "/api/webhooks/3/redeliver", "force=true", "")
	f.Add("POST", "/api/webhooks/9223372036854775808/redeliver", "force=%zz", `{"force":1}`)
	f.Add("POST", "/api/erase", "", `{"tenant":"acme"}`)
	f.Add("POST", "/api/erase", "", `{"Tenant":"acme","tenant":null} {}`)
	f.Add("POST", "/api/redeliver", "state=waiting&tenant=a%2Fb", "")
	f.Add("GET", "/webhooks", "since=2026-01-31T08:00&ask=discard", "")
	f.Add("POST", "/discard", "", "id=3&force=true")
	f.Add("DELETE", "/api/webhooks/%33", "limit=-1", "")
	box := world(f)
	h := New(port(box))
	f.Fuzz(func(t *testing.T, method, path, query, body string) {
		r := httptest.NewRequest("GET", "/", strings.NewReader(body))
		r.Method, r.Host = method, "localhost"
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return // net/http would not have passed it on
		}
		u.RawQuery = query
		r.URL = u
		before := box.Stands()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		switch w.Code {
		case 200, 303, 400, 403, 404, 405, 409, 413, 500, 503:
		default:
			t.Errorf("%s %s?%s: %d", method, path, query, w.Code)
		}
		if w.Header().Get("Content-Type") == "application/json" && method != http.MethodHead && !json.Valid(w.Body.Bytes()) {
			t.Errorf("not JSON: %s", w.Body)
		}
		if did := inboxtest.Acted(before, box.Stands()); did != "" && method != http.MethodPost {
			t.Errorf("%s made it %s", method, did)
		}
	})
}
