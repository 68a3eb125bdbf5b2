package admin

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"usher/internal/testkit/inboxtest"
)

// With a read token every action is 403, and no page offers one. The names of tokens say who did something.
func TestVisitors(t *testing.T) {
	b := world(t)
	cfg, before := port(b), b.Stands()
	var log strings.Builder
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	cfg.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	cfg.Token = func() string { return "ana:ana-t0ken, plain-t0ken" }
	cfg.ReadToken = func() string { return "prometheus:scrape-t0ken,look-t0ken" }
	h := New(cfg)
	var who []string
	h.routes = append(h.routes, route{path: "/api/everything", act: func(_ http.ResponseWriter, r *http.Request) { who = append(who, nameOf(r)) }})

	ask := func(method, path, token string) (int, string) {
		r := httptest.NewRequest(method, "http://127.0.0.1:9095"+path, nil)
		r.Header.Set("Accept", "text/html")
		r.SetBasicAuth("nobody looks at this", token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for token, status := range map[string]int{
		"ana-t0ken": 200, "plain-t0ken": 200, "scrape-t0ken": 200, "look-t0ken": 200,
		"ana": 401, "ana:ana-t0ken": 401, "prometheus": 401, "": 401, "ana-t0ken, plain-t0ken": 401,
	} {
		if got, _ := ask("GET", "/metrics", token); got != status {
			t.Errorf("metrics with %q: %d, want %d", token, got, status)
		}
	}
	for _, to := range h.routes {
		path := strings.NewReplacer("/static/{id}", "/static/usher.css", "{id}", "3").Replace(to.path)
		if to.act != nil {
			if status, body := ask("POST", path, "look-t0ken"); status != 403 || !strings.Contains(body, "read-only") {
				t.Errorf("POST %s: %d %s", path, status, body)
			}
		}
		if to.read == nil {
			continue
		}
		status, body := ask("GET", path+"?tenant=acme&code=acme", "look-t0ken")
		if status == 403 {
			t.Errorf("GET %s: %d", path, status)
		}
		if status == 200 && !strings.HasPrefix(path, "/api/") {
			for _, act := range []string{`method="post"`, "ask="} {
				if strings.Contains(body, act) {
					t.Errorf("%s offers %s", path, act)
				}
			}
		}
	}
	if did := inboxtest.Acted(before, b.Stands()); did != "" {
		t.Errorf("did %q", did)
	}
	if status, body := ask("GET", "/webhooks/3?ask=discard", "look-t0ken"); status != 403 || !strings.Contains(body, "read-only") {
		t.Errorf("asked: %d %s", status, body)
	}
	if status, body := ask("GET", "/webhooks/3", "plain-t0ken"); status != 200 || !strings.Contains(body, "/webhooks/3?ask=redeliver") {
		t.Errorf("who may act: %d %s", status, body)
	}

	log.Reset()
	if status, body := ask("POST", "/api/webhooks/3/redeliver?force=true", "ana-t0ken"); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if !strings.Contains(log.String(), "who=ana ") {
		t.Errorf("the log does not say who: %s", log.String())
	}
	_, _ = ask("POST", "/api/everything", "ana-t0ken")
	_, _ = ask("POST", "/api/everything", "plain-t0ken")
	if strings.Join(who, " ") != "ana 192.0.2.1" {
		t.Errorf("who: %q", who)
	}
	if strings.Contains(log.String(), "t0ken") {
		t.Errorf("a token shows: %s", log.String())
	}
}
