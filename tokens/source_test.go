package tokens

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// endpoint is a token endpoint behind a RoundTripper, so that it lives inside a
// synctest bubble. Its tokens are t1, t2, …
type endpoint struct {
	mu       sync.Mutex
	delay    time.Duration
	life     string
	status   int    // other than 0: refuses or fails with it
	body     string // goes with status
	header   http.Header
	secret   string // if set, the only one that is accepted
	requests []time.Time
}

func (e *endpoint) RoundTrip(req *http.Request) (*http.Response, error) {
	form, _ := io.ReadAll(req.Body)
	e.mu.Lock()
	e.requests = append(e.requests, time.Now())
	n, delay, life, status, body := len(e.requests), e.delay, e.life, e.status, e.body
	if e.secret != "" && !strings.Contains(string(form), "client_secret="+e.secret) {
		status, body = 401, `{"error":"invalid_client"}`
	}
	header := e.header
	e.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	if status == 0 {
		status, body = 200, fmt.Sprintf(`{"access_token":"t%d","expires_in":%s}`, n, life)
	}
	if status == -1 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body))}, nil
}

func (e *endpoint) set(f func(*endpoint)) { e.mu.Lock(); defer e.mu.Unlock(); f(e) }

func (e *endpoint) count() int { e.mu.Lock(); defer e.mu.Unlock(); return len(e.requests) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// start runs a source on e until the test ends.
func start(t *testing.T, e *endpoint) *Source {
	t.Helper()
	if e.life == "" {
		e.life = "100"
	}
	c := client("http://billing/oauth/token")
	c.HTTP = e
	s := NewSource(c, quiet())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s
}

func header(t *testing.T, s *Source) string {
	t.Helper()
	token, err := s.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return token.Header()[0]
}

func TestColdCallersShareOneFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{delay: 2 * time.Second}
		s := start(t, e)
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if h := header(t, s); h != "Bearer t1" {
					t.Errorf("got %q", h)
				}
			})
		}
		wg.Wait()
		if n := e.count(); n != 1 {
			t.Errorf("%d token requests, want 1", n)
		}
	})
}

func TestRenewedBeforeItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{delay: time.Second}
		s := start(t, e)
		begin := time.Now()
		for time.Since(begin) < time.Hour {
			before := time.Now()
			header(t, s)
			if waited := time.Since(before); waited > 0 && before != begin {
				t.Fatalf("a call waited %v at %v", waited, time.Since(begin))
			}
			time.Sleep(time.Second)
		}
		var last time.Time
		for i, at := range e.requests {
			if gap := at.Sub(last); i > 0 && (gap < 75*time.Second || gap > 84*time.Second) {
				t.Errorf("renewal %d after %v, want about 80 s", i, gap)
			}
			last = at
		}
	})
}

func TestWaitsOnItsOwnContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{delay: 5 * time.Second}
		s := start(t, e)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Token(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		// The impatient caller did not take the refresh down with it.
		if h := header(t, s); h != "Bearer t1" || e.count() != 1 {
			t.Errorf("got %q after %d requests", h, e.count())
		}
	})
}

func TestHangingEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, &endpoint{delay: time.Hour})
		begin := time.Now()
		_, err := s.Token(t.Context())
		none := new(NoTokenError)
		if !errors.As(err, &none) || time.Since(begin) > waitLimit {
			t.Fatalf("got %v after %v", err, time.Since(begin))
		}
	})
}

func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		s := start(t, e)
		header(t, s)
		e.set(func(e *endpoint) { e.status = -1 })

		time.Sleep(99 * time.Second)
		if h := header(t, s); h != "Bearer t1" {
			t.Errorf("the valid token does not serve on: %q", h)
		}
		time.Sleep(time.Second)
		_, err := s.Token(t.Context())
		none := new(NoTokenError)
		if !errors.As(err, &none) || none.RetryAfter <= 0 || none.RetryAfter > lastBackoff {
			t.Fatalf("after its end: %#v", err)
		}
		time.Sleep(30 * time.Minute)
		if n := e.count(); n > 50 {
			t.Errorf("%d requests in half an hour of outage", n)
		}
		for i := 3; i < len(e.requests); i++ {
			if gap := e.requests[i].Sub(e.requests[i-1]); gap < 1600*time.Millisecond || gap > lastBackoff {
				t.Errorf("gap %d is %v", i, gap)
			}
		}
		e.set(func(e *endpoint) { e.status = 0 })
		time.Sleep(lastBackoff)
		synctest.Wait()
		header(t, s)
	})
}

// One malformed answer must not end the renewal for good.
func TestNonsenseIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{status: 200, body: "<html>"}
		s := start(t, e)
		if _, err := s.Token(t.Context()); err == nil {
			t.Fatal("a token out of nonsense")
		}
		e.set(func(e *endpoint) { e.status = 0 })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		header(t, s)
	})
}

func TestRetryAfterOfTheEndpoint(t *testing.T) {
	seconds := func() string { return "30" }
	date := func() string { return time.Now().Add(30 * time.Second).UTC().Format(http.TimeFormat) }
	for _, value := range []func() string{seconds, date} {
		synctest.Test(t, func(t *testing.T) {
			e := &endpoint{status: 429, header: http.Header{"Retry-After": {value()}}}
			start(t, e)
			time.Sleep(29 * time.Second)
			if n := e.count(); n != 1 {
				t.Errorf("%s: %d requests within the time it wished to be left alone", value(), n)
			}
			time.Sleep(2 * time.Second)
			if n := e.count(); n != 2 {
				t.Errorf("%s: %d requests after that time, want 2", value(), n)
			}
		})
	}
}

func TestRefusalIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{status: 401, body: `{"error":"invalid_client"}`}
		s := start(t, e)
		synctest.Wait()
		for range 100 {
			_, err := s.Token(t.Context())
			if !Rejected(err) {
				t.Fatalf("got %v", err)
			}
		}
		if n := e.count(); n != 1 {
			t.Errorf("%d token requests, want 1", n)
		}
	})
}

func TestSecretChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{secret: "new", delay: time.Second, life: "100"}
		var secret atomic.Value
		secret.Store("old")
		c := client("http://billing/oauth/token")
		c.HTTP = e
		c.Secret = func() string { return secret.Load().(string) }
		s := NewSource(c, quiet())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		time.Sleep(200 * time.Second) // deep in the backoff
		synctest.Wait()
		n := e.count()

		secret.Store("new")
		s.SecretChanged()
		time.Sleep(1500 * time.Millisecond)
		header(t, s)
		if e.count() != n+1 {
			t.Errorf("%d requests after the change, want 1", e.count()-n)
		}
	})
}

// The secret changes while a request with the old one is on its way: the refusal
// that comes back is of yesterday.
func TestSecretChangedUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{secret: "new", delay: time.Second, life: "100"}
		var secret atomic.Value
		secret.Store("old")
		c := client("http://billing/oauth/token")
		c.HTTP = e
		c.Secret = func() string { return secret.Load().(string) }
		s := NewSource(c, quiet())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		time.Sleep(500 * time.Millisecond)
		secret.Store("new")
		s.SecretChanged()
		time.Sleep(1600 * time.Millisecond)
		synctest.Wait()
		if s.State().Token == nil {
			t.Error("no token at once after the change")
		}
	})
}

// A token that is over before it arrives is no token, and no reason for a storm.
func TestShorterThanItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{delay: 2 * time.Second, life: "1"}
		s := start(t, e)
		time.Sleep(10 * time.Minute)
		if _, err := s.Token(t.Context()); err == nil {
			t.Error("an expired token was handed out")
		}
		if n := e.count(); n > 20 {
			t.Errorf("%d token requests in ten minutes", n)
		}
	})
}

func TestOneSecondTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{delay: 100 * time.Millisecond, life: "1"}
		s := start(t, e)
		header(t, s)
		for range 1000 {
			before := time.Now()
			header(t, s)
			if time.Since(before) > 0 {
				t.Fatal("a call waited")
			}
			time.Sleep(37 * time.Millisecond)
		}
		if n := e.count(); n > 50 {
			t.Errorf("%d token requests in 37 s", n)
		}
	})
}

func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{status: -1}
		s := start(t, e)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		begin := time.Now()
		if _, err := s.Ready(ctx); err == nil || !strings.Contains(err.Error(), "connection refused") || time.Since(begin) != 30*time.Second {
			t.Errorf("unreachable: %v after %v", err, time.Since(begin))
		}
		e.set(func(e *endpoint) { e.status, e.body = 400, `{"error":"invalid_scope"}` })
		time.Sleep(lastBackoff)
		if _, err := s.Ready(t.Context()); !Rejected(err) {
			t.Errorf("refused: %v", err)
		}
		e.set(func(e *endpoint) { e.status = 0 })
		time.Sleep(2 * lastBackoff)
		if _, err := s.Ready(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestTokenAllocatesNothingAndTakesNoLock(t *testing.T) {
	s := NewSource(client("http://billing"), quiet())
	s.current.Store(newToken("abc", time.Now(), time.Hour))
	s.mu.Lock() // as a refresh would; a read that wanted it would hang here
	defer s.mu.Unlock()
	if n := testing.AllocsPerRun(100, func() { _, _ = s.Token(t.Context()) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
