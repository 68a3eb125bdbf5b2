package admin

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/admin/status"
	"usher/internal/guard"
	"usher/internal/testkit"
	"usher/tokens"
)

func TestMain(m *testing.M) { testkit.MainInMemory(m) }

func TestAdmin(t *testing.T) {
	health := &status.Health{Parts: []status.Part{{Name: "outbound", On: true}}, Tokens: []status.TokenHealth{{Port: "main"}}}
	m := metrics.New("v1", "abc")
	port := m.Port("main")
	port.Started()
	port.Finished(200, time.Millisecond)
	port.Started()
	port.Finished(99999, time.Millisecond)
	port.Replayed()
	id := m.Identity("main")
	id.Fetched(nil, errors.New("down"))
	id.Fetched(nil, &tokens.RejectedError{Code: "invalid_client"})
	id.EarlyRevoked()
	cfg := Config{
		Hosts:   guard.NewHosts("127.0.0.1:9095", nil, false),
		Health:  func() *status.Health { return health },
		Metrics: m.Handler(),
		Log:     slog.New(slog.DiscardHandler),
	}
	open := New(cfg)
	cfg.Token = func() string { return "adm1n" }
	cfg.Hosts = guard.NewHosts("0.0.0.0:9095", nil, true)
	keyed := New(cfg)

	get := func(h http.Handler, method, path, host string, header http.Header) (int, string) {
		r := httptest.NewRequest(method, path, nil)
		r.Host = host
		for k, v := range header {
			r.Header[k] = v
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		body, _ := io.ReadAll(w.Body)
		return w.Code, string(body)
	}
	basic := func(user, password string) http.Header {
		r := httptest.NewRequest("GET", "/", nil)
		r.SetBasicAuth(user, password)
		return r.Header
	}
	for _, tc := range []struct {
		name, method, path, host string
		handler                  http.Handler
		header                   http.Header
		status                   int
		want                     string
	}{
		{"alive", "GET", "/healthz", "localhost", open, nil, 200, `"alive":true`},
		{"alive by any host", "GET", "/healthz", "10.0.0.7:9095", open, nil, 200, ""},
		{"alive without the token", "GET", "/healthz", "x", keyed, nil, 200, ""},
		{"unready", "GET", "/readyz", "10.0.0.7", keyed, nil, 503, "no token yet"},
		{"metrics", "GET", "/metrics", "127.0.0.1:9095", open, nil, 200, `usher_proxy_requests_total{code="200",port="main"} 1`},
		{"metrics, in flight", "GET", "/metrics", "127.0.0.1:9095", open, nil, 200, `usher_proxy_in_flight{port="main"} 0`},
		{"metrics of tokens", "GET", "/metrics", "127.0.0.1:9095", open, nil, 200, `usher_token_requests_total{port="main",result="unavailable"} 1`},
		{"metrics of Go", "GET", "/metrics", "127.0.0.1:9095", open, nil, 200, "go_goroutines"},
		{"build", "GET", "/metrics", "127.0.0.1:9095", open, nil, 200, `usher_build_info{commit="abc",goversion="`},
		{"rebound", "GET", "/metrics", "evil.example", open, nil, 421, "Host"},
		{"no token", "GET", "/metrics", "10.0.0.7", keyed, nil, 401, "admin token"},
		{"wrong token", "GET", "/metrics", "10.0.0.7", keyed, http.Header{"Authorization": {"Bearer adm"}}, 401, ""},
		{"token", "GET", "/metrics", "10.0.0.7", keyed, http.Header{"Authorization": {"Bearer adm1n"}}, 200, ""},
		{"password", "GET", "/", "10.0.0.7", keyed, basic("anyone", "adm1n"), 200, "/readyz"},
		{"wrong password", "GET", "/", "10.0.0.7", keyed, basic("adm1n", ""), 401, ""},
		{"no such page", "GET", "/admin", "localhost", open, nil, 404, ""},
		{"no cleaning", "GET", "/x/../healthz", "localhost", open, nil, 404, ""},
		{"not to be written", "POST", "/healthz", "localhost", open, nil, 405, ""},
		{"trace", "TRACE", "/healthz", "localhost", open, nil, 405, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body := get(tc.handler, tc.method, tc.path, tc.host, tc.header)
			if status != tc.status || !strings.Contains(body, tc.want) {
				t.Errorf("%d %s", status, body)
			}
			if strings.Contains(body, "adm1n") {
				t.Errorf("the token shows: %s", body)
			}
		})
	}
	health.Tokens[0].Had = true
	if status, body := get(open, "GET", "/readyz", "x", nil); status != 200 || strings.TrimSpace(body) != `{"problems":[],"ready":true}` {
		t.Errorf("ready: %d %s", status, body)
	}
}
