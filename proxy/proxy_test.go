package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
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
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/guard"
	"usher/internal/sandbox"
	"usher/tokens"
)

const (
	replayLimit = 64 << 10
	query       = `{"query":"{ accounts(limit: 1) { id name } }"}`
)

// rig is a local port in front of a billing service.
type rig struct {
	*httptest.Server
	billing  *sandbox.Billing
	log      *logBuffer
	replayed atomic.Int64
	statuses sync.Map // of what Finished was told, status → *atomic.Int64
}

// newRig runs a port in front of a sandbox; graphql, if not nil, answers the calls
// in its stead.
func newRig(t *testing.T, graphql http.Handler, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{log: new(logBuffer)}
	r.billing = sandbox.NewBilling(sandbox.Client{ID: "app", Secret: "s3cret", Scopes: []string{"standard:read"}})
	mux := http.NewServeMux()
	mux.Handle("/oauth/token", r.billing)
	if graphql == nil {
		graphql = r.billing
	}
	mux.Handle("/", graphql)
	service := httptest.NewServer(mux)
	t.Cleanup(service.Close)

	log := slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	forTokens, upstream := NewUpstream(UpstreamConfig{Timeout: 5 * time.Second}), NewUpstream(UpstreamConfig{Timeout: 5 * time.Second})
	t.Cleanup(forTokens.CloseIdleConnections)
	t.Cleanup(upstream.CloseIdleConnections)
	source := tokens.NewSource(&tokens.Client{
		URL: service.URL + "/oauth/token", ID: "app", Secret: func() string { return "s3cret" },
		Scope: "standard:read", HTTP: forTokens,
	}, log)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { source.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })

	target, err := url.Parse(service.URL + "/graphql")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Name: "main", Target: target, Source: source, Upstream: upstream, ReplayLimit: replayLimit,
		Hosts: guard.NewHosts("127.0.0.1:0", nil, false), Log: log,
		Replayed: func() { r.replayed.Add(1) },
		Finished: func(status int, _ time.Duration) {
			n, _ := r.statuses.LoadOrStore(status, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	r.Server = httptest.NewServer(New(cfg))
	t.Cleanup(r.Close)
	return r
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *logBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func (r *rig) post(t *testing.T, body string) (status int, answer string) {
	t.Helper()
	resp, err := http.Post(r.URL+"/graphql", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return read(t, resp)
}

func read(t *testing.T, resp *http.Response) (int, string) {
	t.Helper()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// code is extensions.code of an answer of usher's own.
func code(t *testing.T, answer string) string {
	t.Helper()
	var r response
	if err := json.Unmarshal([]byte(answer), &r); err != nil || len(r.Errors) != 1 || r.Errors[0].Message == "" {
		t.Fatalf("not an answer of usher's: %s", answer)
	}
	return r.Errors[0].Extensions.Code
}

func TestCallGetsToken(t *testing.T) {
	r := newRig(t, nil)
	for range 3 {
		if status, answer := r.post(t, query); status != 200 || !strings.Contains(answer, `"accounts"`) {
			t.Fatalf("%d %s", status, answer)
		}
	}
	if n := r.billing.TokenRequests(); n != 1 {
		t.Errorf("%d token requests", n)
	}
}

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

func TestOwnAnswers(t *testing.T) {
	for _, tc := range []struct {
		name    string
		tokens  sandbox.Fault
		graphql http.Handler
		change  func(*Config)
		status  int
		code    string
		header  string
	}{
		{"rejected", sandbox.Fault{Status: 401, Body: `{"error":"invalid_client","error_description":"unknown client"}`}, nil, nil, 502, "TOKEN_REJECTED", "Retry-After"},
		{"nonsense", sandbox.Fault{Status: 200, Body: `nonsense`}, nil, nil, 503, "TOKEN_UNAVAILABLE", "Retry-After"},
		{"token endpoint hangs up", sandbox.Fault{HangUp: true}, nil, nil, 503, "TOKEN_UNAVAILABLE", "Retry-After"},
		{"service hangs up", sandbox.Fault{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), nil, 502, "UPSTREAM_UNREACHABLE", ""},
		{"service is silent", sandbox.Fault{}, http.HandlerFunc(silent),
			func(c *Config) { c.Upstream.(*http.Transport).ResponseHeaderTimeout = 50 * time.Millisecond }, 504, "UPSTREAM_TIMEOUT", ""},
		{"service switches protocols", sandbox.Fault{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "websocket")
			w.WriteHeader(101)
		}), nil, 502, "UPSTREAM_UNREACHABLE", ""},
		{"service answers with a status that is none", sandbox.Fault{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 099 What\r\nContent-Length: 0\r\n\r\n")
		}), nil, 502, "UPSTREAM_UNREACHABLE", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.graphql, func(c *Config) {
				if tc.change != nil {
					tc.change(c)
				}
			})
			if tc.tokens.Status != 0 || tc.tokens.HangUp {
				r.billing.FailTokens(tc.tokens)
				r.billing.Revoke()
			}
			// The first token may have been fetched before the fault was in place.
			resp, err := http.Post(r.URL+"/graphql", "application/json", strings.NewReader(query))
			if err != nil {
				t.Fatal(err)
			}
			status, answer := read(t, resp)
			if status != tc.status || code(t, answer) != tc.code || resp.Header.Get("Content-Type") != "application/json" {
				t.Fatalf("%d %s", status, answer)
			}
			if tc.header != "" && resp.Header.Get(tc.header) == "" {
				t.Errorf("no %s", tc.header)
			}
			if tc.code == "TOKEN_REJECTED" && (!strings.Contains(answer, `"reason":"invalid_client"`) || !strings.Contains(answer, "unknown client")) {
				t.Errorf("the reason is missing: %s", answer)
			}
			if log := r.log.String(); !strings.Contains(log, "call failed") || !strings.Contains(log, tc.code) {
				t.Errorf("the log does not say why: %s", log)
			}
		})
	}
}

// silent takes a call and never answers. It reads the body first: before that
// net/http does not notice that a caller hung up.
func silent(_ http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func TestUnreachable(t *testing.T) {
	r := newRig(t, nil, func(c *Config) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c.Target = &url.URL{Scheme: "http", Host: l.Addr().String(), Path: "/graphql"}
		l.Close()
	})
	if status, answer := r.post(t, query); status != 502 || code(t, answer) != "UPSTREAM_UNREACHABLE" {
		t.Errorf("%d %s", status, answer)
	}
}

// What passes and what does not, seen from the service.
func TestWhatLeaves(t *testing.T) {
	var seen *http.Request
	r := newRig(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r }),
		func(c *Config) { c.Key = func() string { return "the-key" } })
	req, _ := http.NewRequest("POST", r.URL+"/graphql?a=1;b=%zz&c=%&&d", strings.NewReader(query))
	req.Header = http.Header{
		"Authorization":       {"Bearer the-key"},
		"X-Usher-Key":         {"the-key"},
		"x_usher_key":         {"the-key"},
		"Connection":          {"authorization, X-Drop-Me, Upgrade, HTTP2-Settings"},
		"X-Drop-Me":           {"1"},
		"Upgrade":             {"h2c"},
		"Http2-Settings":      {"AAMAAABkAAQAAP__"},
		"Keep-Alive":          {"5"},
		"Proxy-Authorization": {"Basic x"},
		"Proxy_Authorization": {"Basic x"},
		"Te":                  {"trailers"},
		"Forwarded":           {"for=1.2.3.4"},
		"X-Forwarded-For":     {"1.2.3.4"},
		"X-Forwarded-Port":    {"1"},
		"Via":                 {"1.1 proxy"},
		"X_forwarded_host":    {"evil"},
		"X-Real-Ip":           {"1.2.3.4"},
		"Content_Length":      {"7"},
		"Cookie":              {"a=b"},
		"X-Custom":            {"one", "two"},
		"X_custom":            {"three"},
		"Content-Type":        {"application/graphql+json"},
	}
	resp, err := (&http.Transport{DisableCompression: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	read(t, resp)
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	if got := seen.URL.RawQuery; got != "a=1;b=%zz&c=%&&d" {
		t.Errorf("query %q", got)
	}
	auth := seen.Header.Get("Authorization")
	if !strings.HasPrefix(auth, "Bearer ") || strings.Contains(auth, "the-key") || len(seen.Header["Authorization"]) != 1 {
		t.Errorf("Authorization %q", seen.Header["Authorization"])
	}
	if seen.Header.Get("User-Agent") != "Go-http-client/1.1" { // the test's client sent it
		t.Errorf("User-Agent %q", seen.Header.Get("User-Agent"))
	}
	if strings.HasPrefix(r.URL, "http://"+seen.Host) {
		t.Errorf("Host is the port's: %q", seen.Host)
	}
	want := map[string]int{"Authorization": 1, "User-Agent": 1, "Cookie": 1, "X-Custom": 2, "X_custom": 1, "Content-Type": 1, "Content-Length": 1}
	for name, values := range seen.Header {
		if len(values) != want[name] {
			t.Errorf("%s: %q reached the service", name, values)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("did not reach the service: %v", want)
	}
}

// A call without a body leaves framed as it came: there are services that refuse
// chunks, and others that insist on a length.
func TestEmptyBody(t *testing.T) {
	type framing struct {
		Length  []string
		Chunked bool
	}
	var seen framing
	r := newRig(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = framing{r.Header["Content-Length"], len(r.TransferEncoding) > 0}
		if body, err := io.ReadAll(r.Body); len(body) > 0 || err != nil {
			t.Errorf("body %q, %v", body, err)
		}
	}))
	conn, err := net.Dial("tcp", r.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	from := bufio.NewReader(conn)
	for _, method := range []string{"POST", "PUT", "GET", "DELETE", "QUERY"} {
		for header, want := range map[string]framing{
			"":                               {nil, false},
			"Content-Length: 0\r\n":          {[]string{"0"}, false},
			"Transfer-Encoding: chunked\r\n": {nil, true},
		} {
			end := ""
			if want.Chunked {
				end = "0\r\n\r\n"
			}
			fmt.Fprintf(conn, "%s /graphql HTTP/1.1\r\nHost: localhost\r\n%s\r\n%s", method, header, end)
			resp, err := http.ReadResponse(from, nil)
			if err != nil {
				t.Fatal(err)
			}
			if status, _ := read(t, resp); status != 200 || !reflect.DeepEqual(seen, want) {
				t.Errorf("%s with %q: %d, %+v", method, header, status, seen)
			}
		}
	}
}

func TestGuard(t *testing.T) {
	var calls atomic.Int64
	graphql := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) })
	open := newRig(t, graphql)
	keyed := newRig(t, graphql, func(c *Config) { c.Key = func() string { return "sesame" } })
	for _, tc := range []struct {
		name   string
		rig    *rig
		method string
		path   string
		host   string
		header http.Header
		status int
		code   string
	}{
		{"plain", open, "POST", "/graphql", "", nil, 200, ""},
		{"any method", open, "PATCH", "/graphql", "", nil, 200, ""},
		{"authorization of the caller's own", open, "POST", "/graphql", "", http.Header{"Authorization": {"Basic abc"}}, 200, ""},
		{"other path", open, "POST", "/", "", nil, 404, "NOT_FOUND"},
		{"token endpoint", open, "POST", "/oauth/token", "", nil, 404, "NOT_FOUND"},
		{"below", open, "POST", "/graphql/x", "", nil, 404, "NOT_FOUND"},
		{"trailing slash", open, "POST", "/graphql/", "", nil, 404, "NOT_FOUND"},
		{"escaped", open, "POST", "/%67raphql", "", nil, 404, "NOT_FOUND"},
		{"dots", open, "POST", "/x/../graphql", "", nil, 404, "NOT_FOUND"},
		{"other case", open, "POST", "/GraphQL", "", nil, 404, "NOT_FOUND"},
		{"trace", open, "TRACE", "/graphql", "", nil, 405, "METHOD_REFUSED"},
		{"rebound", open, "POST", "/graphql", "evil.example", nil, 421, "HOST_REFUSED"},
		{"page", open, "POST", "/graphql", "", http.Header{"Origin": {"https://evil.example"}}, 403, "BROWSER_REFUSED"},
		{"opaque origin", open, "POST", "/graphql", "", http.Header{"Origin": {"null"}}, 403, "BROWSER_REFUSED"},
		{"preflight", open, "OPTIONS", "/graphql", "", http.Header{"Origin": {"https://evil.example"}}, 403, "BROWSER_REFUSED"},
		{"image of a page", open, "GET", "/graphql?query={x}", "", http.Header{"Sec-Fetch-Site": {"cross-site"}}, 403, "BROWSER_REFUSED"},
		{"page of the same origin", open, "POST", "/graphql", "", http.Header{"Sec-Fetch-Site": {"same-origin"}}, 403, "BROWSER_REFUSED"},
		{"address bar", open, "GET", "/graphql", "", http.Header{"Sec-Fetch-Site": {"none"}}, 200, ""},
		{"no key", keyed, "POST", "/graphql", "", nil, 401, "KEY_REQUIRED"},
		{"no key, other path", keyed, "POST", "/", "", nil, 401, "KEY_REQUIRED"},
		{"wrong key", keyed, "POST", "/graphql", "", http.Header{"X-Usher-Key": {"sesam"}}, 401, "KEY_REQUIRED"},
		{"empty key", keyed, "POST", "/graphql", "", http.Header{"X-Usher-Key": {""}}, 401, "KEY_REQUIRED"},
		{"key as basic", keyed, "POST", "/graphql", "", http.Header{"Authorization": {"Basic sesame"}}, 401, "KEY_REQUIRED"},
		{"key in its header", keyed, "POST", "/graphql", "", http.Header{"X-Usher-Key": {"sesame"}}, 200, ""},
		{"key as bearer", keyed, "POST", "/graphql", "", http.Header{"Authorization": {"bearer sesame"}}, 200, ""},
		{"page that knows the key", keyed, "POST", "/graphql", "", http.Header{"X-Usher-Key": {"sesame"}, "Origin": {"x"}}, 403, "BROWSER_REFUSED"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := calls.Load()
			req, err := http.NewRequest(tc.method, tc.rig.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.URL.Opaque = tc.path // as it is, on the request line
			req.Host = tc.host
			for k, v := range tc.header {
				req.Header[k] = v
			}
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			status, answer := read(t, resp)
			if status != tc.status {
				t.Fatalf("%d, want %d: %s", status, tc.status, answer)
			}
			if tc.code != "" && code(t, answer) != tc.code {
				t.Errorf("got %s", answer)
			}
			if passed := calls.Load() > before; passed != (tc.status == 200) {
				t.Errorf("reached the service: %v", passed)
			}
		})
	}
	if strings.Contains(keyed.log.String(), "sesame") {
		t.Error("the key is in the log")
	}
}

func TestConnectIsRefusedAndClosed(t *testing.T) {
	r := newRig(t, nil)
	conn, err := net.Dial("tcp", r.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\nGET /graphql HTTP/1.1\r\nHost: localhost\r\n\r\n")
	answers, _ := io.ReadAll(conn)
	if !strings.HasPrefix(string(answers), "HTTP/1.1 405 ") || strings.Count(string(answers), "HTTP/1.1 ") != 1 {
		t.Errorf("got %s", answers)
	}
}

func TestBrokenRequestBody(t *testing.T) {
	r := newRig(t, nil)
	for name, raw := range map[string]string{
		"breaks off":         "Content-Length: 100\r\n\r\n{",
		"bad chunk":          "Transfer-Encoding: chunked\r\n\r\nzz\r\n{",
		"chunks break off":   "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
		"large, breaks off":  fmt.Sprintf("Content-Length: %d\r\n\r\n{", replayLimit*2),
		"large chunk, ditto": fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s", replayLimit*2, strings.Repeat("x", replayLimit+10)),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", r.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, "POST /graphql HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+raw)
			conn.(*net.TCPConn).CloseWrite()
			answer, _ := io.ReadAll(conn)
			if !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") || !strings.Contains(string(answer), "BAD_REQUEST") {
				t.Errorf("got %s", answer)
			}
		})
	}
	if ok, unauthorized := r.billing.Calls(); ok+unauthorized != 0 {
		t.Errorf("%d broken calls were taken by the service", ok+unauthorized)
	}
}

// The patience with a caller's body ends with the body: an answer may take longer,
// also to a body that streams.
func TestAnswerSlowerThanBodyPatience(t *testing.T) {
	const patience = 50 * time.Millisecond
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		time.Sleep(5 * patience)
		io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		time.Sleep(5 * patience)
		io.WriteString(w, " last")
	}))
	r.Config.Handler.(*Handler).patience = patience
	for _, size := range []int{10, replayLimit + 10} {
		for _, chunked := range []bool{false, true} {
			var body io.Reader = strings.NewReader(strings.Repeat("x", size))
			if chunked {
				body = io.MultiReader(body)
			}
			resp, err := http.Post(r.URL+"/graphql", "application/json", body)
			if err != nil {
				t.Fatal(err)
			}
			if status, answer := read(t, resp); status != 200 || answer != "first last" {
				t.Errorf("%d bytes, chunked %v: %d %q", size, chunked, status, answer)
			}
		}
	}
}

// A body that stands still is given up.
func TestStalledBody(t *testing.T) {
	r := newRig(t, nil)
	r.Config.Handler.(*Handler).patience = 50 * time.Millisecond
	conn, err := net.Dial("tcp", r.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "POST /graphql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	answer, _ := io.ReadAll(conn)
	if !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Errorf("got %q", answer)
	}
}

// Whatever is sent, the Transport has no means to send it a second time by itself,
// on HTTP/2 neither.
func TestNothingForTheTransportToResend(t *testing.T) {
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "QUERY"} {
		for _, p := range []payload{{}, {bytes: []byte(query), length: 1}, {stream: strings.NewReader(query), length: -1}} {
			req := &http.Request{Method: method, Header: http.Header{}, GetBody: func() (io.ReadCloser, error) { return nil, nil }}
			p.attach(req)
			if req.GetBody != nil || req.Body == nil || req.Body == http.NoBody {
				t.Errorf("%s: body %v, GetBody set: %v", method, req.Body, req.GetBody != nil)
			}
		}
	}
}

// An answer without a type stays without one, and HTTP/1.0 is spared 1xx.
func TestNothingAddedToAnswers(t *testing.T) {
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.Header()["Content-Type"] = nil
		io.WriteString(w, "<html>")
	}))
	for _, proto := range []string{"HTTP/1.0", "HTTP/1.1"} {
		conn, err := net.Dial("tcp", r.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET /graphql %s\r\nHost: localhost\r\nConnection: close\r\n\r\n", proto)
		answer, _ := io.ReadAll(conn)
		if strings.Contains(string(answer), "Content-Type") || strings.Contains(string(answer), " 103 ") != (proto == "HTTP/1.1") {
			t.Errorf("%s: %q", proto, answer)
		}
	}
}

// Bytes, compression, status, trailers and redirects come back as they are.
func TestAnswersUntouched(t *testing.T) {
	packed := []byte("\x1f\x8b not really gzip \x00\xff")
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ae, ok := r.Header["Accept-Encoding"]; ok {
			t.Errorf("Accept-Encoding %q, which the caller did not send", ae)
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Location", "/elsewhere")
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2")
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(307)
		w.Write(packed)
		w.Header().Set("X-Sum", "42")
	}))
	req, _ := http.NewRequest("POST", r.URL+"/graphql", strings.NewReader(query))
	resp, err := (&http.Transport{DisableCompression: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	status, answer := read(t, resp)
	if status != 307 || answer != string(packed) || resp.Header.Get("Content-Encoding") != "gzip" ||
		resp.Header.Get("Location") != "/elsewhere" || len(resp.Header["Set-Cookie"]) != 2 || resp.Trailer.Get("X-Sum") != "42" {
		t.Errorf("%d %q %v %v", status, answer, resp.Header, resp.Trailer)
	}
}

// HTTP/2 has trailers after a body of known length, HTTP/1.1 after chunks only. Where
// there are none to be had (HEAD, HTTP/1.0) the length stays.
func TestTrailersOfHTTP2(t *testing.T) {
	service := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "2")
		w.Header().Set("Trailer", "X-Sum")
		io.WriteString(w, "hi")
		w.Header().Set("X-Sum", strconv.Itoa(r.ProtoMajor))
	}))
	service.EnableHTTP2 = true
	service.StartTLS()
	t.Cleanup(service.Close)
	r := newRig(t, nil, func(c *Config) {
		roots := x509.NewCertPool()
		roots.AddCert(service.Certificate())
		upstream := NewUpstream(UpstreamConfig{Timeout: 5 * time.Second, TLS: &tls.Config{RootCAs: roots}})
		t.Cleanup(upstream.CloseIdleConnections)
		c.Upstream = upstream
		c.Target, _ = url.Parse(service.URL + path)
	})
	for _, tc := range []struct{ method, proto, length, body, trailer string }{
		{"GET", "HTTP/1.1", "", "hi", "2"},
		{"HEAD", "HTTP/1.1", "2", "", ""},
		{"GET", "HTTP/1.0", "2", "hi", ""},
	} {
		conn, err := net.Dial("tcp", r.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "%s /graphql %s\r\nHost: localhost\r\n\r\n", tc.method, tc.proto)
		resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: tc.method})
		if err != nil {
			t.Fatal(err)
		}
		status, body := read(t, resp)
		if status != 200 || resp.Header.Get("Content-Length") != tc.length || body != tc.body || resp.Trailer.Get("X-Sum") != tc.trailer {
			t.Errorf("%s %s: %d %q %v %v", tc.method, tc.proto, status, body, resp.Header, resp.Trailer)
		}
	}
}

// What there is of an answer is passed on, also where its length is known: its head,
// before any of the body is there, and each part of it.
func TestStreamsKnownLength(t *testing.T) {
	step := make(chan struct{})
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		for _, part := range []string{"", "first", " last"} {
			io.WriteString(w, part)
			w.(http.Flusher).Flush()
			<-step
		}
	}))
	resp, err := http.Get(r.URL + "/graphql")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, part := range []string{"first", " last"} {
		step <- struct{}{}
		got := make([]byte, len(part))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != part {
			t.Fatalf("%q %v", got, err)
		}
	}
	close(step)
}

func TestStreamsAndCancels(t *testing.T) {
	cancelled := make(chan struct{})
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		silent(w, r)
		close(cancelled)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "POST", r.URL+"/graphql", strings.NewReader(query))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, 9)
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "data: 1\n\n" {
		t.Fatalf("%q %v", first, err)
	}
	cancel() // the caller goes away
	<-cancelled
}

// An answer that breaks off must not look whole, in any version of HTTP.
func TestBrokenAnswer(t *testing.T) {
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "sized" {
			w.Header().Set("Content-Length", "1000")
		}
		io.WriteString(w, `{"data":{"half":`)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	for _, proto := range []string{"HTTP/1.1", "HTTP/1.0"} {
		for _, kind := range []string{"sized", "chunked"} {
			t.Run(proto+" "+kind, func(t *testing.T) {
				conn, err := net.Dial("tcp", r.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				fmt.Fprintf(conn, "GET /graphql?%s %s\r\nHost: localhost\r\n\r\n", kind, proto)
				answer, err := io.ReadAll(conn)
				switch {
				case proto == "HTTP/1.1" && !bytes.HasPrefix(answer, []byte("HTTP/1.1 200 OK\r\n")):
					t.Errorf("no answer at all, which may look like leave to try again: %q", answer)
				case err != nil, len(answer) == 0: // the caller can't miss it
				case kind == "sized" && bytes.Contains(answer, []byte("Content-Length: 1000")):
				case kind == "chunked" && bytes.Contains(answer, []byte("chunked")) && !bytes.HasSuffix(answer, []byte("0\r\n\r\n")):
				default:
					t.Errorf("looks whole: %q", answer)
				}
			})
		}
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

// A connection that died before a byte was written costs nobody a failed call.
func TestDeadConnectionsAreReplaced(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		t.Run(method, func(t *testing.T) {
			var calls atomic.Int64
			var broken, refused atomic.Bool
			r := newRig(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }), func(c *Config) {
				tr := c.Upstream.(*http.Transport)
				dial := tr.DialContext
				tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if refused.Load() {
						return nil, errors.New("connection refused")
					}
					conn, err := dial(ctx, network, addr)
					if err == nil {
						cc := conn.(*countedConn)
						cc.Conn = &brittleConn{Conn: cc.Conn, broken: &broken}
					}
					return conn, err
				}
			})
			send := func() int {
				var body io.Reader
				if method == "POST" {
					body = strings.NewReader(query)
				}
				req, _ := http.NewRequest(method, r.URL+"/graphql", body)
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
			broken.Store(true) // writes on the connections that there are fail, with nothing written
			if status := send(); status != 200 || calls.Load() != 2 {
				t.Errorf("second: %d after %d calls", status, calls.Load())
			}
			refused.Store(true) // and there is no other to be had
			if status := send(); status != 502 || calls.Load() != 2 {
				t.Errorf("third: %d after %d calls", status, calls.Load())
			}
		})
	}
}

// brittleConn fails its first write after broken is set, as a connection does that
// the other side has reset; connections dialled later are fine.
type brittleConn struct {
	net.Conn
	broken *atomic.Bool
	used   atomic.Bool
}

func (c *brittleConn) Write(p []byte) (int, error) {
	if c.used.Swap(true) && c.broken.Load() {
		return 0, errors.New("broken pipe")
	}
	return c.Conn.Write(p)
}

func TestNothingSecretIsLogged(t *testing.T) {
	var auth atomic.Value
	r := newRig(t, nil)
	r.billing.OnCall = func(req *http.Request, _ []byte) { auth.Store(req.Header.Get("Authorization")) }
	r.post(t, query)
	r.billing.Revoke()
	r.post(t, query)
	r.billing.FailGraphQL(sandbox.Fault{HangUp: true})
	r.post(t, query)
	log := r.log.String()
	token := strings.TrimPrefix(auth.Load().(string), "Bearer ")
	if strings.Contains(log, token) || strings.Contains(log, token[len(token)-20:]) || strings.Contains(log, "s3cret") {
		t.Errorf("a secret is in the log:\n%s", log)
	}
	if !strings.Contains(log, "long before its end") {
		t.Errorf("nothing is said of the early revocation:\n%s", log)
	}
}

func TestCallerHangsUpIsCounted(t *testing.T) {
	entered := make(chan struct{})
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		silent(w, r)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	req, _ := http.NewRequestWithContext(ctx, "POST", r.URL+"/graphql", strings.NewReader(query))
	if _, err := http.DefaultClient.Do(req); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	r.Close() // waits for the handler
	if n, ok := r.statuses.Load(statusGone); !ok || n.(*atomic.Int64).Load() != 1 {
		t.Errorf("not counted as gone: %s", r.log.String())
	}
}
