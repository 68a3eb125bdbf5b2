package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/guard"
	"usher/internal/sandbox"
	"usher/internal/wire"
)

// What usher itself answers, and what counts as a call that usher failed: not what the service itself answers, nor what a
// caller does wrong; but a 401 of the service, because the token is usher's.
func TestOwnAnswers(t *testing.T) {
	answering := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	for _, tc := range []struct {
		name    string
		tokens  sandbox.Fault
		graphql http.HandlerFunc
		change  func(*Config)
		status  int
		code    string
		counted string
	}{
		{"a good one", sandbox.Fault{}, nil, nil, 200, "", ""},
		{"the service fails", sandbox.Fault{}, answering(500), nil, 500, "", ""},
		{"the service refuses each token", sandbox.Fault{}, answering(401), nil, 401, "", "UNAUTHORIZED"},
		{"no key", sandbox.Fault{}, nil, func(c *Config) { c.Key = func() string { return "sesame" } }, 401, "KEY_REQUIRED", ""},
		{"rejected", sandbox.Fault{Status: 401, Body: `{"error":"invalid_client","error_description":"unknown client"}`}, nil, nil, 502, "TOKEN_REJECTED", "TOKEN_REJECTED"},
		{"nonsense", sandbox.Fault{Status: 200, Body: `nonsense`}, nil, nil, 503, "TOKEN_UNAVAILABLE", "TOKEN_UNAVAILABLE"},
		{"token endpoint hangs up", sandbox.Fault{HangUp: true}, nil, nil, 503, "TOKEN_UNAVAILABLE", "TOKEN_UNAVAILABLE"},
		{"service hangs up", sandbox.Fault{}, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, nil, 502, "UPSTREAM_UNREACHABLE", "UPSTREAM_UNREACHABLE"},
		{"service is silent", sandbox.Fault{}, silent,
			func(c *Config) { c.Upstream = newUpstream(wire.Config{Timeout: 50 * time.Millisecond}) }, 504, "UPSTREAM_TIMEOUT", "UPSTREAM_TIMEOUT"},
		{"service switches protocols", sandbox.Fault{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "websocket")
			w.WriteHeader(101)
		}, nil, 502, "UPSTREAM_UNREACHABLE", "UPSTREAM_UNREACHABLE"},
		{"service answers with a status that is none", sandbox.Fault{}, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 099 What\r\nContent-Length: 0\r\n\r\n")
		}, nil, 502, "UPSTREAM_UNREACHABLE", "UPSTREAM_UNREACHABLE"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var graphql http.Handler
			if tc.graphql != nil {
				graphql = tc.graphql
			}
			counted := make(chan string, 1)
			r := newRig(t, graphql, func(c *Config) {
				c.Failed = func(reason string) { counted <- reason }
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
			r.Close() // waits for the handler
			close(counted)
			if got := <-counted; status != tc.status || got != tc.counted {
				t.Fatalf("%d, counted as %q: %s", status, got, answer)
			}
			if tc.code == "" {
				return
			}
			if code(t, answer) != tc.code || resp.Header.Get("Content-Type") != "application/json" || (resp.Header.Get("Retry-After") == "") != !strings.HasPrefix(tc.code, "TOKEN_") {
				t.Errorf("%v %s", resp.Header, answer)
			}
			if tc.code == "TOKEN_REJECTED" && (!strings.Contains(answer, `"reason":"invalid_client"`) || !strings.Contains(answer, "unknown client")) {
				t.Errorf("the reason is missing: %s", answer)
			}
			if log := r.log.String(); tc.counted != "" && (!strings.Contains(log, "call failed") || !strings.Contains(log, tc.code)) {
				t.Errorf("the log does not say why: %s", log)
			}
		})
	}
}

// A call that is cut off because usher ends is one that usher failed; one whose caller hangs up is not.
func TestCutOffIsCounted(t *testing.T) {
	for cause, want := range map[error]string{context.Canceled: "", guard.ErrCutOff: "CUT_OFF"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var failed []string
		r := newRig(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			cancel(cause)
			<-r.Context().Done()
		}), func(c *Config) { c.Failed = func(reason string) { failed = append(failed, reason) } })
		func() {
			defer func() { _ = recover() }() // http.ErrAbortHandler
			r.handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "POST", "http://localhost/graphql", strings.NewReader(query)))
		}()
		if got := strings.Join(failed, ","); got != want {
			t.Errorf("%v: counted as %q", cause, got)
		}
	}
}

// silent takes a call and never answers. It reads the body first: before that
// net/http does not notice that a caller hung up.
func silent(_ http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
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

// An answer that breaks off must not look whole. (TestHTTP10BreaksOff has the callers of HTTP/1.0.)
func TestBrokenAnswer(t *testing.T) {
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "sized" {
			w.Header().Set("Content-Length", "1000")
		}
		io.WriteString(w, `{"data":{"half":`)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	for _, kind := range []string{"sized", "chunked"} {
		t.Run(kind, func(t *testing.T) {
			conn, err := net.Dial("tcp", r.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "GET /graphql?%s HTTP/1.1\r\nHost: localhost\r\n\r\n", kind)
			answer, err := io.ReadAll(conn)
			switch {
			case !bytes.HasPrefix(answer, []byte("HTTP/1.1 200 OK\r\n")):
				t.Errorf("no answer at all, which may look like leave to try again: %q", answer)
			case err != nil: // the caller can't miss it
			case kind == "sized" && bytes.Contains(answer, []byte("Content-Length: 1000")):
			case kind == "chunked" && bytes.Contains(answer, []byte("chunked")) && !bytes.HasSuffix(answer, []byte("0\r\n\r\n")):
			default:
				t.Errorf("looks whole: %q", answer)
			}
		})
	}
}

// A service that refuses tokens, breaks off, says too much and hangs up, in any order, while
// many call: whoever gets an answer gets the one to its own call, and no call comes twice
// but after a 401.
func TestAnswersAreNotMixedUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var mu sync.Mutex
	taken := make(map[string]int)   // guarded by mu
	refused := make(map[string]int) // guarded by mu
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go oddService(conn, func(id string, ok bool) {
				mu.Lock()
				defer mu.Unlock()
				if ok {
					taken[id]++
				} else {
					refused[id]++
				}
			})
		}
	}()
	r := newRig(t, nil, func(c *Config) { c.Target = &url.URL{Scheme: "http", Host: l.Addr().String(), Path: path} })
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	var right, failed int
	var callers sync.WaitGroup
	for caller := range 16 {
		callers.Go(func() {
			for n := range 50 {
				id := fmt.Sprintf("%d-%d", caller, n)
				body := strings.Repeat("x", []int{10, 1000, replayLimit / 2, 2 * replayLimit}[rand.IntN(4)])
				req, _ := http.NewRequest("POST", r.URL+path, strings.NewReader(body))
				req.Header.Set("X-Id", id)
				resp, err := client.Do(req)
				var answer []byte
				if err == nil {
					answer, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				}
				mu.Lock()
				switch {
				case err != nil || resp.StatusCode >= 500:
					failed++
				case resp.StatusCode == 401 || string(answer) == id:
					right++
				default:
					t.Errorf("%s was answered %d %q", id, resp.StatusCode, answer)
				}
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	mu.Lock()
	defer mu.Unlock()
	for id, n := range taken {
		if n > 1 || refused[id] > 2 {
			t.Errorf("%s came %d times, and was refused %d times", id, n, refused[id])
		}
	}
	if right == 0 || failed == 0 {
		t.Errorf("%d right, %d failed: nothing was tried", right, failed)
	}
}

// oddService answers each call on a connection with its id, more or less.
func oddService(conn net.Conn, note func(id string, ok bool)) {
	defer conn.Close()
	for from := bufio.NewReader(conn); ; {
		req, err := http.ReadRequest(from)
		if err != nil {
			return
		}
		id := req.Header.Get("X-Id")
		if rand.IntN(20) == 0 { // before it has read the body
			note(id, false)
			io.WriteString(conn, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		note(id, true)
		answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(id), id)
		switch rand.IntN(10) {
		case 0:
			answer += "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
		case 1:
			io.WriteString(conn, answer[:rand.IntN(len(answer))])
			return
		case 2:
			io.WriteString(conn, answer)
			return
		}
		io.WriteString(conn, answer)
	}
}
