package entitlements

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"usher/internal/snapshot"
)

func TestChanges(t *testing.T) {
	asked, told := "", 0
	cfg := config(t)
	cfg.Told = func(n int) { told += n }
	cfg.Answered = func(time.Duration, bool) { t.Error("a wait is not an answer's time") }
	cfg.Changes = func(_ context.Context, after string, limit int, wait time.Duration) (*snapshot.Changes, error) {
		asked = fmt.Sprint(after, " ", limit, " ", wait)
		switch after {
		case "unknown":
			return nil, snapshot.ErrCursorUnknown
		case "none":
			return nil, snapshot.ErrNoCursor
		case "crowd":
			return nil, snapshot.ErrTooManyWait
		case "away":
			return nil, errors.New("dial 10.0.0.7: refused")
		case "empty":
			return &snapshot.Changes{Cursor: "2-2-2"}, nil
		}
		stored := func(tenant string, features []byte) snapshot.Change {
			return snapshot.Change{Stored: snapshot.Stored{Platform: "eu", Tenant: tenant, Name: "A <b> & c", Webhook: "w-" + tenant, Received: taken, Features: features}}
		}
		gone := stored("gone", nil)
		gone.Erased = true
		return &snapshot.Changes{Cursor: "1-1-1", More: true, All: []snapshot.Change{
			stored("acme", listing(t, `{"code":"users","name":"Users","quantity":25}`, `{"code":"sso","value":"saml"}`).Encode()), stored("bare", []byte("[]")), stored("silent", nil), stored("damaged", []byte("{")), gone}}, nil
	}
	h := New(cfg)
	const at, full = `"as_of":"2026-05-01T10:00:00.123456789Z"`, `,{"tenant":"bare","platform":"eu","name":"A <b> & c","features":[],"as_of":"2026-05-01T10:00:00.123456789Z","webhook":"w-bare"}`
	for _, tc := range []struct {
		query, asked string
		status       int
		body         string
	}{
		{"", " 100 0s", 200, `{"changes":[{"tenant":"acme","platform":"eu","name":"A <b> & c","features":[{"feature":"users","name":"Users","enabled":true,"limit":25,"value":""},` +
			`{"feature":"sso","name":"","enabled":true,"limit":null,"value":"saml"}],` + at + `,"webhook":"w-acme"}` + full +
			`,{"tenant":"silent","platform":"eu","name":"A <b> & c","features":null,` + at + `,"webhook":"w-silent"},{"tenant":"damaged","platform":"eu","name":"A <b> & c","features":null,` + at + `,"webhook":"w-damaged"}` +
			`,{"tenant":"gone","platform":"eu","erased":true}],"cursor":"1-1-1","more":true}`},
		{"?after=empty&limit=1000&wait=55", "empty 1000 55s", 200, `{"changes":[],"cursor":"2-2-2","more":false}`},
		{"?after=x&limit=1&wait=0", "x 1 0s", 200, `{"changes":[`},
		{"?after=unknown", "unknown 100 0s", 410, `{"error":{"code":"CURSOR_UNKNOWN"`},
		{"?after=none", "none 100 0s", 400, `{"error":{"code":"BAD_REQUEST"`},
		{"?after=crowd", "crowd 100 0s", 503, `{"error":{"code":"NOT_READY","message":"Too many callers wait`},
		{"?after=away", "away 100 0s", 503, `{"error":{"code":"NOT_READY","message":"Not ready: the inbox cannot be read."`},
		{"?after=", "", 400, "BAD_REQUEST"}, {"?limit=0", "", 400, "limit must be a whole number from 1 to 1000"}, {"?limit=1001", "", 400, "limit"}, {"?limit=%2B5", "", 400, "limit"},
		{"?limit=x", "", 400, "limit"}, {"?wait=56", "", 400, "wait must be a whole number from 0 to 55"}, {"?wait=-1", "", 400, "wait"}, {"?since=1", "", 400, "Unknown query parameter"}, {"?limit=1&limit=2", "", 400, "twice"},
	} {
		asked = ""
		r := httptest.NewRequest("GET", "http://127.0.0.1:8070/v1/changes"+tc.query, nil)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tc.status || asked != tc.asked || !strings.HasPrefix(w.Body.String(), tc.body) && !strings.Contains(w.Body.String(), tc.body) {
			t.Errorf("%s: %d, asked %q: %s\nwant %d, %q: %s", tc.query, w.Code, asked, w.Body, tc.status, tc.asked, tc.body)
		}
		if retry := w.Header().Get("Retry-After"); (retry != "") != (tc.status == 503) || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: headers %v", tc.query, w.Header())
		}
	}
	if told != 10 {
		t.Errorf("told %d changes, want 10", told)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "http://127.0.0.1:8070/v1/changes", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}
