package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/guard"
	"usher/internal/sandbox"
	"usher/internal/wire"
	"usher/tokens"
)

// 500 callers, all with a token that has just been revoked: each gets its own
// right answer, and the token endpoint is asked once.
func TestRevocationUnderLoad(t *testing.T) {
	r := newRig(t, nil)
	seen := make(map[[32]byte]int)
	var mu sync.Mutex
	r.billing.OnCall = func(_ *http.Request, body []byte) {
		mu.Lock()
		defer mu.Unlock()
		seen[sha256.Sum256(body)]++
	}
	r.post(t, query)
	before := r.billing.TokenRequests()
	r.billing.Revoke()
	r.billing.FailTokens(sandbox.Fault{Delay: 100 * time.Millisecond})

	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 500}}
	var wg sync.WaitGroup
	bodies := make([][]byte, 500)
	for i := range bodies {
		pad := strings.Repeat("x", rand.IntN(20<<10))
		bodies[i] = fmt.Appendf(nil, `{"query":"query($p: Int){ accounts(limit: $p) { id } }","variables":{"p":%d,"call":%d,"pad":%q}}`, i%7, i, pad)
		wg.Go(func() {
			resp, err := client.Post(r.URL+"/graphql", "application/json", bytes.NewReader(bodies[i]))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			var answer struct{ Data struct{ Accounts []any } }
			if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != 200 || len(answer.Data.Accounts) != i%7 {
				t.Errorf("call %d: %d, %d accounts, %v", i, resp.StatusCode, len(answer.Data.Accounts), err)
			}
		})
	}
	wg.Wait()
	if n := r.billing.TokenRequests() - before; n != 1 {
		t.Errorf("%d token requests, want 1", n)
	}
	for i, body := range bodies {
		if n := seen[sha256.Sum256(body)]; n < 1 || n > 2 {
			t.Errorf("body %d reached the service %d times", i, n)
		}
	}
	if r.replayed.Load() == 0 {
		t.Error("no second try was counted")
	}
}

func TestReplay(t *testing.T) {
	// first401 answers the first call with 401 and shows it what it got.
	first401 := func(got *[]string) http.Handler {
		var mu sync.Mutex
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			*got = append(*got, fmt.Sprintf("%s %x %v", r.Header.Get("Authorization")[:7], sha256.Sum256(body), err))
			if len(*got) == 1 {
				http.Error(w, `[{"description":["token is expired"]}]`, http.StatusUnauthorized)
			}
		})
	}
	big := make([]byte, 8<<20)
	for i := range big {
		big[i] = byte(rand.Int())
	}
	for _, tc := range []struct {
		name       string
		body       []byte
		chunked    bool
		wantTries  int
		wantStatus int
	}{
		{"empty", nil, false, 2, 200},
		{"small", []byte(query), false, 2, 200},
		{"chunked", big[:replayLimit/2], true, 2, 200},
		{"at the limit", big[:replayLimit], false, 2, 200},
		{"at the limit, chunked", big[:replayLimit], true, 2, 200},
		{"beyond the limit", big[:replayLimit+1], false, 1, 401},
		{"beyond the limit, chunked", big[:replayLimit+1], true, 1, 401},
		{"8 MiB", big, false, 1, 401},
		{"8 MiB chunked", big, true, 1, 401},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			r := newRig(t, first401(&got))
			var body io.Reader = bytes.NewReader(tc.body)
			if tc.chunked {
				body = io.MultiReader(body) // hides the length
			}
			resp, err := http.Post(r.URL+"/graphql", "application/json", body)
			if err != nil {
				t.Fatal(err)
			}
			if status, _ := read(t, resp); status != tc.wantStatus {
				t.Errorf("status %d, want %d", status, tc.wantStatus)
			}
			want := fmt.Sprintf("Bearer  %x <nil>", sha256.Sum256(tc.body))
			if len(got) != tc.wantTries {
				t.Errorf("%d tries, want %d", len(got), tc.wantTries)
			}
			for i, g := range got {
				if g != want {
					t.Errorf("try %d was %s, want %s", i, g, want)
				}
			}
			// The token that failed is dropped in each case.
			if status, _ := r.post(t, query); status != 200 || r.billing.TokenRequests() != 2 {
				t.Errorf("next call: %d after %d token requests", status, r.billing.TokenRequests())
			}
		})
	}
}

// A 401 that comes while the body is still on its way: the second try must not be
// disturbed by the first, which may still be writing.
func TestEarly401(t *testing.T) {
	t.Parallel()
	body := make([]byte, 8<<20) // more than a connection holds
	for i := range body {
		body[i] = byte(rand.Int())
	}
	var calls atomic.Int64
	second := make(chan struct{})
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			w.WriteHeader(http.StatusUnauthorized)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-second:
			case <-r.Context().Done():
			}
			return
		}
		close(second)
		if got, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}), func(c *Config) { c.ReplayLimit = int64(len(body)) })
	if status, answer := r.post(t, string(body)); status != 200 || calls.Load() != 2 {
		t.Errorf("%d after %d calls: %s", status, calls.Load(), answer)
	}
}

// One 401 while the token endpoint is down is told to who got it, and no one else.
func TestOne401InAnOutage(t *testing.T) {
	var odd atomic.Bool
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if odd.Swap(false) {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	r.post(t, query)
	r.billing.FailTokens(sandbox.Fault{Status: http.StatusServiceUnavailable})
	odd.Store(true)
	if status, answer := r.post(t, query); status != 503 || code(t, answer) != "TOKEN_UNAVAILABLE" {
		t.Errorf("who got the 401: %d %s", status, answer)
	}
	for i := range 20 {
		if status, answer := r.post(t, query); status != 200 {
			t.Errorf("call %d after it: %d %s", i, status, answer)
		}
	}
}

func TestSecond401GoesToTheCaller(t *testing.T) {
	var calls atomic.Int64
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.Header().Set("X-Kept", "yes")
		w.WriteHeader(401)
		io.WriteString(w, `[{"description":["no"]}]`)
	}))
	for i := range 30 {
		resp, err := http.Post(r.URL+"/graphql", "application/json", strings.NewReader(query))
		if err != nil {
			t.Fatal(err)
		}
		if status, answer := read(t, resp); status != 401 || answer != `[{"description":["no"]}]` || resp.Header.Get("X-Kept") != "yes" {
			t.Fatalf("call %d: %d %s", i, status, answer)
		}
	}
	// One to begin with, a burst of five, and one a second.
	if n := r.billing.TokenRequests(); n < 6 || n > 8 {
		t.Errorf("%d token requests for 30 calls", n)
	}
	if n := calls.Load(); n > 38 {
		t.Errorf("%d calls upstream for 30", n)
	}
}

// hangUpServer accepts connections, answers the first request of each with 200 and
// closes the connection after it has read the second one, as a service does whose
// keep-alive ran out. It counts the requests that it read.
func hangUpServer(t *testing.T) (addr string, requests *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	requests = new(atomic.Int64)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				from := bufio.NewReader(conn)
				for i := range 2 {
					req, err := http.ReadRequest(from)
					if err != nil {
						return
					}
					io.Copy(io.Discard, req.Body)
					requests.Add(1)
					if i == 0 {
						io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					}
				}
			}()
		}
	}()
	return l.Addr().String(), requests
}

// http.Transport by itself sends a call again when a reused connection breaks and
// the call looks harmless to it. It may not be.
func TestNeverSentTwice(t *testing.T) {
	for _, tc := range []struct {
		name, method, body string
		header             http.Header
	}{
		{"GET", "GET", "", nil},
		{"HEAD", "HEAD", "", nil},
		{"OPTIONS", "OPTIONS", "", nil},
		{"POST", "POST", query, nil},
		{"POST with a key", "POST", query, http.Header{"Idempotency-Key": {"1"}}},
		{"POST with the other key", "POST", query, http.Header{"X-Idempotency-Key": {"1"}}},
		{"empty POST with a key", "POST", "", http.Header{"Idempotency-Key": {"1"}}},
		{"DELETE", "DELETE", "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr, requests := hangUpServer(t)
			r := newRig(t, nil, func(c *Config) { c.Target = &url.URL{Scheme: "http", Host: addr, Path: "/graphql"} })
			send := func() int {
				req, _ := http.NewRequest(tc.method, r.URL+"/graphql", strings.NewReader(tc.body))
				for k, v := range tc.header {
					req.Header[k] = v
				}
				resp, err := http.DefaultTransport.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				return resp.StatusCode
			}
			if status := send(); status != 200 {
				t.Fatalf("first: %d", status)
			}
			if status := send(); status != 502 || requests.Load() != 2 {
				t.Errorf("second: %d, and the service read %d requests, want 502 and 2", status, requests.Load())
			}
			if status := send(); status != 200 {
				t.Errorf("third, on a new connection: %d", status)
			}
		})
	}
}

// A token may expire while a connection is being made, or while a small body that is not kept
// arrives. Then the call leaves with the next one, or, if there is none, not at all. Nothing has left
// until then, so a body that is not kept makes no difference.
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
		{"a streamed body", endpoint{lives: 100}, 0, long, 0, 200, "", "Bearer t3"},
		{"a streamed body, and there is none", endpoint{lives: 1}, 0, long, 0, 503, "TOKEN_UNAVAILABLE", ""},
		{"a slow body", endpoint{lives: 100}, 1 << 20, 0, long, 200, "", "Bearer t3"},
		{"a slow streamed body", endpoint{lives: 100}, 0, 0, long, 200, "", "Bearer t3"},
		{"a slow streamed body, and there is none", endpoint{lives: 1}, 0, 0, long, 503, "TOKEN_UNAVAILABLE", ""},
	} {
		for _, size := range []int{40, 100_000} { // in one piece with the head, and behind it
			if size > 40 && tc.body > 0 && tc.replayLimit == 0 {
				continue // it leaves before it stands still
			}
			t.Run(fmt.Sprint(tc.name, " ", size), func(t *testing.T) {
				endpoint := tc.endpoint
				query := strings.Repeat("q", size)
				synctest.Test(t, func(t *testing.T) {
					var sent, body string
					upstream := newUpstream(wire.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
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
								got, _ := io.ReadAll(req.Body)
								body += string(got)
							}
						}()
						return near, nil
					}})
					defer upstream.CloseIdleConnections()
					log := slog.New(slog.DiscardHandler)
					source := tokens.NewSource(&tokens.Client{URL: "http://tokens/", Secret: func() string { return "" }, HTTP: &endpoint}, log)
					ctx, stop := context.WithCancel(t.Context())
					defer stop()
					go source.Run(ctx)
					synctest.Wait() // there is a token, for five seconds
					handler := New(Config{
						Name: "main", Target: &url.URL{Scheme: "http", Host: "billing", Path: path}, Source: source, Upstream: upstream,
						ReplayLimit: tc.replayLimit, ReplayMemory: NewMemory(0), Hosts: guard.NewHosts("", []string{"*"}, false), Log: log,
						Started: func() {}, Finished: func(int, time.Duration) {}, Replayed: func() {},
					})
					w := httptest.NewRecorder()
					r := httptest.NewRequestWithContext(ctx, "POST", path, strings.NewReader(query))
					r.Body = io.NopCloser(io.MultiReader(strings.NewReader(query[:1]), atEnd(func() { time.Sleep(tc.body) }), strings.NewReader(query[1:])))
					handler.ServeHTTP(w, r)
					if w.Code != tc.status || sent != tc.sent || (body == query) != (sent != "") {
						t.Errorf("%d, sent with %q and %d bytes; want %d, %q", w.Code, sent, len(body), tc.status, tc.sent)
					}
					if tc.code != "" && code(t, w.Body.String()) != tc.code {
						t.Error(w.Body)
					}
				})
			})
		}
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
