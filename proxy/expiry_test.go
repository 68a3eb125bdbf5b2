package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/guard"
	"usher/internal/wire"
	"usher/tokens"
)

// A token may expire while a connection is being made, or while a small body that is not kept
// arrives. Then the call leaves with the next one, or, if there is none or the body can't be sent
// twice, not at all.
func TestTokenExpiresBeforeTheCallLeaves(t *testing.T) {
	const long = 9 * time.Second
	for _, tc := range []struct {
		name        string
		endpoint    endpoint
		replayLimit int64
		dial, body  time.Duration
		status      int
		code        string
		sent        string
	}{
		{"the next one", endpoint{lives: 100}, 1 << 20, long, 0, 200, "", "Bearer t3"},
		{"there is none", endpoint{lives: 1}, 1 << 20, long, 0, 503, "TOKEN_UNAVAILABLE", ""},
		{"a streamed body", endpoint{lives: 100}, 0, long, 0, 503, "TOKEN_UNAVAILABLE", ""},
		{"a slow body", endpoint{lives: 100}, 1 << 20, 0, long, 200, "", "Bearer t3"},
		{"a slow streamed body", endpoint{lives: 100}, 0, 0, long, 503, "TOKEN_UNAVAILABLE", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent string
				upstream := NewUpstream(wire.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
					time.Sleep(tc.dial)
					near, far := net.Pipe()
					go func() {
						for from := bufio.NewReader(far); ; io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") {
							req, err := http.ReadRequest(from)
							if err != nil {
								far.Close()
								return
							}
							sent += req.Header.Get("Authorization")
							io.Copy(io.Discard, req.Body)
						}
					}()
					return near, nil
				}})
				defer upstream.CloseIdleConnections()
				log := slog.New(slog.DiscardHandler)
				source := tokens.NewSource(&tokens.Client{URL: "http://tokens/", Secret: func() string { return "" }, HTTP: &tc.endpoint}, log)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				go source.Run(ctx)
				synctest.Wait() // there is a token, for five seconds
				handler := New(Config{
					Name: "main", Target: &url.URL{Scheme: "http", Host: "billing", Path: path}, Source: source, Upstream: upstream,
					ReplayLimit: tc.replayLimit, ReplayMemory: NewMemory(0), Hosts: guard.NewHosts("", []string{"*"}, false), Log: log,
				})
				w := httptest.NewRecorder()
				r := httptest.NewRequestWithContext(ctx, "POST", path, strings.NewReader(query))
				r.Body = io.NopCloser(io.MultiReader(strings.NewReader(query[:1]), atEnd(func() { time.Sleep(tc.body) }), strings.NewReader(query[1:])))
				handler.ServeHTTP(w, r)
				if w.Code != tc.status || sent != tc.sent {
					t.Errorf("%d, sent with %q; want %d, %q", w.Code, sent, tc.status, tc.sent)
				}
				if tc.code != "" && code(t, w.Body.String()) != tc.code {
					t.Error(w.Body)
				}
			})
		})
	}
}

// endpoint is a token endpoint that issues so many tokens, t1, t2, …, of five seconds each.
type endpoint struct{ lives, issued int }

func (e *endpoint) RoundTrip(*http.Request) (*http.Response, error) {
	if e.issued++; e.issued > e.lives {
		return nil, errors.New("down")
	}
	body := fmt.Sprintf(`{"access_token":"t%d","token_type":"Bearer","expires_in":5}`, e.issued)
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(body))}, nil
}
