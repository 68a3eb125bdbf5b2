package tokens

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/testkit"
	"usher/internal/wire"
)

func client(url string) *Client {
	return &Client{
		URL:    url,
		ID:     "app",
		Secret: func() string { return "s3cret" },
		Scope:  "standard:read standard:write",
		HTTP:   http.DefaultTransport,
	}
}

// What is sent must survive a server's form parser whatever the secret is made of.
func TestFetchSendsForm(t *testing.T) {
	for _, secret := range []string{"plain", "a+b%26c=d&e", "ünïcødé ✓", `"quo'tes\`, "%zz", " lead and trail "} {
		t.Run(secret, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got := r.Header.Get("Content-Type"); got != "application/x-www-form-urlencoded" {
					t.Errorf("Content-Type %q", got)
				}
				if r.URL.RawQuery != "" || r.Method != http.MethodPost {
					t.Errorf("%s with query %q", r.Method, r.URL.RawQuery)
				}
				for name, want := range map[string]string{
					"grant_type": "client_credentials", "scope": "standard:read standard:write",
					"client_id": "app", "client_secret": secret,
				} {
					if got := r.PostFormValue(name); got != want {
						t.Errorf("%s = %q, want %q", name, got, want)
					}
				}
				io.WriteString(w, `{"access_token":"abc","token_type":"Bearer","expires_in":60}`)
			}))
			defer srv.Close()
			c := client(srv.URL)
			c.Secret = func() string { return secret }
			token, err := c.Fetch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := token.Header()[0]; got != "Bearer abc" {
				t.Errorf("header %q", got)
			}
		})
	}
}

// A connection from the pool that the endpoint closes as the request comes costs nobody
// anything: a token request may be sent again.
func TestFetchOnADeadConnection(t *testing.T) {
	var requests atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if requests.Add(1) == 2 {
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, `{"access_token":"abc","token_type":"Bearer","expires_in":60}`)
	}))
	defer srv.Close()
	c := client(srv.URL)
	connections := wire.New(wire.Config{MaxIdle: 1, IdleTimeout: time.Minute})
	defer connections.CloseIdleConnections()
	c.HTTP = connections
	for i := range 2 {
		if _, err := c.Fetch(t.Context()); err != nil {
			t.Errorf("fetch %d: %v", i, err)
		}
	}
	if n := requests.Load(); n != 3 {
		t.Errorf("%d requests, want 3: the second came twice", n)
	}
}

// An endpoint that reads requests and closes gets two for one refresh, however many connections
// there are in the pool. Both are counted.
func TestRepeatedOnce(t *testing.T) {
	const pooled = 20
	var arrived sync.WaitGroup
	arrived.Add(pooled)
	var requests atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodPost {
			requests.Add(1)
			panic(http.ErrAbortHandler)
		}
		arrived.Done()
		arrived.Wait()
	}))
	defer srv.Close()
	connections := wire.New(wire.Config{MaxIdle: pooled, IdleTimeout: time.Minute})
	defer connections.CloseIdleConnections()
	var calls sync.WaitGroup
	for range pooled {
		calls.Go(func() {
			req, _ := http.NewRequest("GET", srv.URL, nil)
			resp, err := connections.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		})
	}
	calls.Wait()
	c := client(srv.URL)
	c.HTTP = connections
	s := NewSource(c, quiet())
	var counted atomic.Int32
	s.Fetched = func(token *Token, err error) {
		if token != nil || err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("counted %v, %v", token, err)
		}
		counted.Add(1)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	_, err := s.Token(ctx)
	stop()
	running.Wait()
	if err == nil || requests.Load() != 2 || counted.Load() != 2 {
		t.Errorf("%v after %d requests, %d counted", err, requests.Load(), counted.Load())
	}
}

func TestFetchAnswers(t *testing.T) {
	for _, tc := range []struct {
		name     string
		status   int
		body     string
		code     string // of the RejectedError that is expected
		want     string // in the error's text; empty: a token
		wantLife time.Duration
	}{
		{"documented", 200, `{"access_token":"a.b","token_type":"Bearer","expires_in":7200,"created_at":1}`, "", "", 2 * time.Hour},
		{"bearer in any case", 200, `{"access_token":"a","token_type":"bEaReR","expires_in":60}`, "", "", time.Minute},
		{"no token_type", 200, `{"access_token":"a","expires_in":60}`, "", "", time.Minute},
		{"created", 201, `{"access_token":"a","expires_in":60}`, "", "", time.Minute},
		{"empty token_type", 200, `{"access_token":"a","token_type":"","expires_in":60}`, "", "", time.Minute},
		{"null as token_type", 200, `{"access_token":"a","token_type":null,"expires_in":60}`, "", "", time.Minute},
		{"other type", 200, `{"access_token":"a","token_type":"mac"}`, "", "not a bearer token", 0},
		{"type is a number", 200, `{"access_token":"a","token_type":7}`, "", "not a bearer token", 0},
		{"no token", 200, `{"token_type":"Bearer"}`, "", "no access_token", 0},
		{"token is an object", 200, `{"access_token":{}}`, "", "no access_token", 0},
		{"name in another case", 200, `{"Access_Token":"a"}`, "", "no access_token", 0},
		{"token with a space", 200, `{"access_token":"a b"}`, "", "character", 0},
		{"token with a newline", 200, `{"access_token":"a\r\nX-Evil: 1"}`, "", "character", 0},
		{"token beyond ASCII", 200, `{"access_token":"ä"}`, "", "character", 0},
		{"not JSON", 200, `<html>hi</html>`, "", "JSON object", 0},
		{"JSON array", 200, `[]`, "", "JSON object", 0},
		{"two values", 200, `{"access_token":"a"}{}`, "", "JSON object", 0},
		{"empty", 200, ``, "", "JSON object", 0},
		{"too large", 200, `{"access_token":"` + strings.Repeat("a", maxAnswer) + `"}`, "", "larger than", 0},
		{"invalid_client", 401, `{"error":"invalid_client","error_description":"Client authentication failed"}`, "invalid_client", "Client authentication failed", 0},
		{"invalid_scope", 400, `{"error":"invalid_scope"}`, "invalid_scope", "invalid_scope", 0},
		{"forbidden", 403, `{"error":"access_denied"}`, "access_denied", "access_denied", 0},
		{"401 without an error", 401, `nope`, "", "answered 401", 0},
		{"error of another kind", 400, `{"error":{"a":1}}`, "", "answered 400", 0},
		{"server error", 500, `{"error":"invalid_client"}`, "", "answered 500", 0},
		{"redirect", 302, ``, "", "redirect", 0},
		{"echo of the secret", 401, `{"error":"invalid_client","error_description":"secret s3cret is wrong\nsay%20s3cret"}`, "invalid_client", "[redacted]", 0},
		{"echo in HTML", 401, `{"error":"invalid_client","error_description":"<html><p>The secret s&#51;cret is wrong.</p>"}`, "invalid_client", "repeats a secret", 0},
		{"echo escaped twice", 401, `{"error":"invalid_client","error_description":"the secret s&amp;#51;cret is wrong"}`, "invalid_client", "repeats a secret", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(tc.status)
				io.WriteString(w, tc.body)
			}))
			defer srv.Close()
			token, err := client(srv.URL).Fetch(t.Context())
			rejected := new(RejectedError)
			switch {
			case tc.want == "" && err != nil:
				t.Fatal(err)
			case tc.want == "" && token.life != tc.wantLife:
				t.Errorf("life %v, want %v", token.life, tc.wantLife)
			case tc.want == "":
			case err == nil || !strings.Contains(err.Error(), tc.want):
				t.Errorf("error %v, want one with %q", err, tc.want)
			case errors.As(err, &rejected) != (tc.code != "") || rejected.Code != tc.code:
				t.Errorf("error %#v, want code %q", err, tc.code)
			case strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "\n"):
				t.Errorf("not presentable: %q", err)
			}
		})
	}
}

func TestFetchUnreachable(t *testing.T) {
	_, err := client("http://" + testkit.FreeAddress(t)).Fetch(t.Context())
	if err == nil || Rejected(err) {
		t.Fatalf("got %v", err)
	}
}

func jwtOf(claims string) string {
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(`{"alg":"ES256","typ":"JWT"}`)) + "." + enc([]byte(claims)) + ".c2ln"
}

func TestLife(t *testing.T) {
	for _, tc := range []struct {
		name, token, expiresIn string
		want                   time.Duration
	}{
		{"number", "opaque", `7200`, 2 * time.Hour},
		{"missing", "opaque", ``, unknownLife},
		{"null", "opaque", `null`, unknownLife},
		{"zero", "opaque", `0`, unknownLife},
		{"negative", "opaque", `-5`, unknownLife},
		{"one", "opaque", `1`, time.Second},
		{"string", "opaque", `"3600"`, time.Hour},
		{"string of words", "opaque", `"soon"`, unknownLife},
		{"string of hex", "opaque", `"0x10"`, unknownLife},
		{"string of a float in hex", "opaque", `"0x1p4"`, unknownLife},
		{"infinity", "opaque", `"Infinity"`, unknownLife},
		{"string beyond float64", "opaque", `"1e999"`, longestLife},
		{"fraction", "opaque", `90.5`, 90*time.Second + 500*time.Millisecond},
		{"small fraction", "opaque", `0.001`, shortestLife},
		{"huge", "opaque", `9223372036854775807`, longestLife},
		{"beyond float64", "opaque", `1e999`, longestLife},
		{"negative beyond float64", "opaque", `-1e999`, unknownLife},
		{"not a number", "opaque", `"NaN"`, unknownLife},
		{"object", "opaque", `{}`, unknownLife},
		{"bool", "opaque", `true`, unknownLife},
		{"JWT shorter", jwtOf(`{"iat":1000,"exp":1060}`), `7200`, time.Minute},
		{"JWT longer", jwtOf(`{"iat":1000,"exp":9000}`), `60`, time.Minute},
		{"JWT alone", jwtOf(`{"iat":1000,"exp":1030}`), ``, 30 * time.Second},
		{"JWT without iat", jwtOf(`{"exp":1}`), `60`, time.Minute},
		{"JWT without exp", jwtOf(`{"iat":1}`), `60`, time.Minute},
		{"JWT with exp before iat", jwtOf(`{"iat":1000,"exp":10}`), `60`, time.Minute},
		{"JWT with exp as string", jwtOf(`{"iat":1000,"exp":"1060"}`), `7200`, 2 * time.Hour},
		{"JWT with huge exp", jwtOf(`{"iat":1,"exp":1e300}`), `1e300`, longestLife},
		{"JWT of an unknown algorithm", strings.Replace(jwtOf(`{"iat":1000,"exp":1060}`), base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","typ":"JWT"}`)), base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"XX"}`)), 1), `7200`, time.Minute},
		{"looks like a JWT", "a.b.c", `60`, time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := lifeOf(tc.token, []byte(tc.expiresIn)); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// A token is not used past its life if the laptop slept: the wall clock alone tells.
func TestAgeAfterASleep(t *testing.T) {
	now := time.Now()
	token := newToken("abc", now.Add(-time.Minute), time.Hour)
	if !token.valid(now) {
		t.Fatal("a fresh token is not valid")
	}
	if token.valid(now.Round(0).Add(time.Hour)) {
		t.Error("valid after a sleep that outlasted it")
	}
}

func TestTokenNeverPrinted(t *testing.T) {
	token := newToken("verysecret", time.Now(), time.Hour)
	if s := fmt.Sprintf("%v %+v %#v %s", token, token, token, token); strings.Contains(s, "verysecret") {
		t.Fatalf("the token shows: %s", s)
	}
	if len(token.Fingerprint()) != 8 {
		t.Errorf("fingerprint %q", token.Fingerprint())
	}
}

func FuzzReadAnswer(f *testing.F) {
	f.Add(200, `{"access_token":"a.b.c","token_type":"Bearer","expires_in":7200}`)
	f.Add(200, `{"access_token":"`+jwtOf(`{"iat":1,"exp":2}`)+`","expires_in":"1e5"}`)
	f.Add(401, `{"error":"invalid_client","error_description":"s3cret"}`)
	f.Add(200, `{"access_token":"a","expires_in":-1e999}`)
	f.Fuzz(func(t *testing.T, status int, body string) {
		token, err := readAnswer(status, []byte(body), time.Now(), "s3cret")
		if (token == nil) == (err == nil) {
			t.Fatalf("token %v, err %v", token, err)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Fatalf("the secret shows: %v", err)
		}
		if token != nil && (token.life < shortestLife || token.life > longestLife || strings.ContainsAny(token.Header()[0][7:], " \r\n\t\x00")) {
			t.Fatalf("unusable: life %v, header %q", token.life, token.Header())
		}
	})
}
