package admin

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"usher/internal/admin/history"
	"usher/internal/admin/status"
	"usher/internal/guard"
	"usher/internal/testkit/inboxtest"
)

// Whoever asks for a test message gets one, or hears why not; the inbox notes who asked, and nobody hears the address.
func TestNotifyByHand(t *testing.T) {
	var mu sync.Mutex
	var got []string
	answer := http.StatusOK
	chat := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, string(body))
		w.WriteHeader(answer)
	}))
	defer chat.Close()
	for _, tc := range []struct {
		name, url    string
		chat, status int
		want, said   string
	}{
		{"accepted", chat.URL + "/t0psecret", 200, 200, `{"sent":true}`, `{"text":"usher on gate-1: this is a test, sent by `},
		{"refused", chat.URL + "/t0psecret", 404, 409, `"no test message was sent: the other side answered 404"`, `{"text":"usher on gate-1: this is a test`},
		{"no address", "", 200, 409, `USHER_NOTIFY_URL is not set`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mu.Lock()
			got, answer = nil, tc.chat
			mu.Unlock()
			b := inboxtest.Open(t)
			cfg := Config{
				Hosts: guard.NewHosts("127.0.0.1:9095", nil, false), Health: func() *status.Health { return new(status.Health) }, Metrics: http.NotFoundHandler(),
				Log: slog.New(slog.DiscardHandler), Inbox: b.Inbox, Platforms: b.Platforms, History: history.Config{Host: "gate-1"},
			}
			if tc.url != "" {
				cfg.History.URL = func() string { return tc.url }
			}
			h := New(cfg)
			w := post(h, "/api/notify", "")
			if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.want) || strings.Contains(w.Body.String(), "t0psecret") {
				t.Errorf("%d %s", w.Code, w.Body.String())
			}
			mu.Lock()
			said := strings.Join(got, "\n")
			mu.Unlock()
			if !strings.HasPrefix(said, tc.said) || (tc.said == "") != (said == "") {
				t.Errorf("said %q", said)
			}
			actions, err := b.Actions(t.Context(), 0, 10)
			if noted := len(actions) == 1 && actions[0].What == "notify"; err != nil || noted != (tc.status == 200) {
				t.Errorf("noted: %+v %v", actions, err)
			}
			if tc.status != 200 {
				return
			}
			if w := post(h, "/api/notify", ""); w.Code != 409 || !strings.Contains(w.Body.String(), "less than a minute ago") {
				t.Errorf("at once again: %d %s", w.Code, w.Body.String())
			}
		})
	}
}
