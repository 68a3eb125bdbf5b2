package webhookgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/signature"
)

func TestTries(t *testing.T) {
	// A receiver's answers, in words: a status, "timeout", "unreachable", each with
	// a Retry-After behind a slash if it has one. The last goes on for ever.
	tests := []struct {
		answers string
		want    int
		tries   int
		least   time.Duration // it takes so long
		most    time.Duration
		says    string
	}{
		{"200", 200, 1, 0, 0, ""},
		{"500 200", 200, 2, 0, firstPause, ""},
		{"unreachable 200", 200, 2, 0, firstPause, ""},
		{"timeout 200", 200, 2, 10 * time.Second, 10*time.Second + firstPause, ""},
		{"408 200", 200, 2, 0, firstPause, ""},
		{"429 200", 200, 2, 0, firstPause, ""},
		{"503 429 200", 200, 3, 0, 3 * firstPause, ""},
		{"500", 502, 3, 0, 3 * firstPause, "answered 500 Internal Server Error"},
		{"unreachable", 502, 3, 0, 3 * firstPause, "could not be reached"},
		{"timeout", 504, 3, 30 * time.Second, 30*time.Second + 3*firstPause, "did not answer within 10s"},
		{"timeout timeout 500", 502, 3, 20 * time.Second, 20*time.Second + 3*firstPause, "answered 500"},
		{"400", 502, 1, 0, 0, "answered 400 Bad Request"},
		{"401", 502, 1, 0, 0, "401"},
		{"422", 502, 1, 0, 0, "422"},
		{"301", 502, 1, 0, 0, "301 Moved Permanently"},
		{"503/3 200", 200, 2, 3 * time.Second, 3 * time.Second, ""},
		{"429/10 200", 200, 2, 10 * time.Second, 10 * time.Second, ""},
		{"429/11 200", 502, 1, 0, 0, "429 Too Many Requests"},
		{"503/99999999999999999999 200", 502, 1, 0, 0, "503 Service Unavailable"},
		{"503/0 200", 200, 2, 0, firstPause, ""},
		{"503/soon 200", 200, 2, 0, firstPause, ""},
		{"503/date+4s 200", 200, 2, 4 * time.Second, 4 * time.Second, ""},
		{"503/date+60s 200", 502, 1, 0, 0, "503 Service Unavailable"},
	}
	for _, tt := range tests {
		t.Run(tt.answers, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers := strings.Fields(tt.answers)
				var ids, stamps []string
				g := newGate(t, func(c *setup) {
					c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
						word := answers[min(len(ids), len(answers)-1)]
						ids = append(ids, r.Header.Get("webhook-id"))
						stamps = append(stamps, r.Header.Get("webhook-timestamp"))
						if want := strconv.FormatInt(time.Now().Unix(), 10); stamps[len(stamps)-1] != want {
							t.Errorf("timestamp %s, want %s", stamps[len(stamps)-1], want)
						}
						return inWords(r.Context(), word)
					})
				})
				start := time.Now()
				got := post(t, g, documented)
				took := time.Since(start)
				if got.Code != tt.want || got.Tries != tt.tries || len(ids) != tt.tries || !strings.Contains(got.Error, tt.says) {
					t.Errorf("got %v after %d tries, want %d %q after %d", got, len(ids), tt.want, tt.says, tt.tries)
				}
				if took < tt.least || took > tt.most {
					t.Errorf("took %v, want %v to %v", took, tt.least, tt.most)
				}
				for _, id := range ids {
					if id != ids[0] || id != got.Webhook {
						t.Errorf("ids %q, told %q", ids, got.Webhook)
					}
				}
			})
		})
	}
}

func inWords(ctx context.Context, word string) (*http.Response, error) {
	switch word {
	case "timeout":
		<-ctx.Done()
		return nil, ctx.Err()
	case "unreachable":
		return nil, errors.New("connection refused")
	}
	word, after, asked := strings.Cut(word, "/")
	status, err := strconv.Atoi(word)
	if err != nil {
		panic(err)
	}
	if !asked {
		return respond(status, ""), nil
	}
	if in, ok := strings.CutPrefix(after, "date"); ok {
		d, err := time.ParseDuration(in)
		if err != nil {
			panic(err)
		}
		after = time.Now().Add(d).UTC().Format(http.TimeFormat)
	}
	return respond(status, "", "Retry-After", after), nil
}

// endless is an answer that does not end by itself.
type endless struct{ ctx context.Context }

func (e endless) Read(p []byte) (int, error) {
	<-e.ctx.Done()
	return 0, e.ctx.Err()
}

func (endless) Close() error { return nil }

func TestAnAcceptanceIsAnAcceptance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		g := newGate(t, func(c *setup) {
			c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				tries++
				return &http.Response{StatusCode: 200, Body: endless{r.Context()}}, nil
			})
		})
		if got := post(t, g, documented); got.Code != 200 || tries != 1 {
			t.Errorf("%v after %d tries", got, tries)
		}
		if got := post(t, g, documented); got.Decision != duplicate {
			t.Errorf("again: %v", got)
		}
	})
}

func TestSigning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := "whsec_a2V5"
		var signatures []string
		g := newGate(t, func(c *setup) {
			c.ForwardSigningKey = func() string { return key }
			c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				body, _ := io.ReadAll(r.Body)
				want := make(http.Header)
				signature.Stamp(want, r.Header.Get("webhook-id"), time.Now(), body, []byte("key"))
				if got := r.Header["Webhook-Signature"]; !slices.Equal(got, want["Webhook-Signature"]) || r.Header.Get("webhook-timestamp") != want.Get("webhook-timestamp") {
					t.Errorf("%q, want %q", got, want)
				}
				signatures = append(signatures, r.Header.Get("webhook-signature"))
				if len(signatures) == 1 {
					return respond(503, "", "Retry-After", "2"), nil
				}
				return respond(200, ""), nil
			})
		})
		if got := post(t, g, documented, "Webhook-Signature", "v1,the sender's"); got.Code != 200 {
			t.Errorf("%v", got)
		}
		if len(signatures) != 2 || signatures[0] == signatures[1] {
			t.Errorf("signatures %q", signatures)
		}
		key = "nonsense"
		if got := post(t, g, snapshotOf("acme", "A")); got.Code != 503 || len(signatures) != 2 {
			t.Errorf("with a bad key: %v, %d deliveries", got, len(signatures))
		}
	})
}

// TestOwnTransport is about what an HTTP client may do by itself.
func TestOwnTransport(t *testing.T) {
	var requests atomic.Int32
	var header atomic.Pointer[http.Header]
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		h := r.Header.Clone()
		header.Store(&h)
		io.Copy(io.Discard, r.Body)
		switch {
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "/hook", http.StatusTemporaryRedirect)
		case n == 2: // on the connection of the first
			conn, _, _ := w.(http.Hijacker).Hijack()
			conn.Close()
		}
	}))
	defer receiver.Close()
	target, _ := url.Parse(receiver.URL + "/hook")
	var results []string
	g := newGate(t, func(c *setup) {
		c.URL, c.Transport, c.Tries = target, nil, 1
		c.Tried = func(r string, _ int, _ time.Duration) { results = append(results, r) }
	})
	for i, want := range []int{200, 502, 200} {
		got := post(t, g, snapshotOf("acme", fmt.Sprint(i)), "Idempotency-Key", "k")
		if got.Code != want || int(requests.Load()) != i+1 {
			t.Fatalf("webhook %d: %v, the receiver has seen %d requests", i, got, requests.Load())
		}
	}
	if got := fmt.Sprint(results); got != "[ok error ok]" {
		t.Errorf("results %s", got)
	}
	h := *header.Load()
	if h["User-Agent"] != nil || h["Accept-Encoding"] != nil {
		t.Errorf("it was given %v", h)
	}
	moved := *target
	moved.Path = "/moved"
	g = newGate(t, func(c *setup) { c.URL, c.Transport = &moved, nil })
	before := requests.Load()
	if got := post(t, g, documented); got.Code != 502 || got.Receiver.Status != 307 || requests.Load() != before+1 {
		t.Errorf("redirected: %v, %d requests", got, requests.Load()-before)
	}
	receiver.Close()
	if got := post(t, g, documented); got.Code != 502 || strings.Contains(got.Body.String(), "127.0.0.1") {
		t.Errorf("gone: %v", got)
	}
}

// A webhook goes to its receiver and to nobody else, whatever the environment says of
// proxies: one would see all of it, and answer in the receiver's place.
func TestDeliveriesUseNoProxy(t *testing.T) {
	var proxied atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { proxied.Add(1) }))
	defer proxy.Close()
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, proxy.URL)
	}
	for _, receiver := range []string{"http://receiver.invalid/hook", "https://receiver.invalid/hook"} {
		target, _ := url.Parse(receiver)
		g := newGate(t, func(c *setup) { c.URL, c.Transport, c.Tries = target, nil, 1 })
		if got := post(t, g, documented); got.Code != 502 || proxied.Load() != 0 {
			t.Errorf("%s: %v, and the proxy was asked %d times", receiver, got, proxied.Load())
		}
	}
}
