package tokens

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestReplaceOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{delay: 100 * time.Millisecond}
		s := start(t, e)
		refused, err := s.Token(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond) // some come long after the new one is there
				fresh, err := s.Replace(t.Context(), refused)
				if err != nil || fresh.Header()[0] != "Bearer t2" {
					t.Errorf("got %v, %v", fresh, err)
				}
			})
		}
		wg.Wait()
		if n := e.count(); n != 2 {
			t.Errorf("%d token requests, want 2", n)
		}
	})
}

func TestNoStormOfRefusedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		s := start(t, e)
		var early int
		s.EarlyRevoked = func() { early++ }
		var kept int
		for range 1000 {
			token, err := s.Token(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Replace(t.Context(), token); errors.Is(err, ErrKept) {
				kept++
			} else if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // 1,000 refusals in 10 s
		}
		if n := e.count(); n < 10 || n > 1+forcedBurst+10 {
			t.Errorf("%d token requests in 10 s, want a burst of 5 and one a second", n)
		}
		if early != e.count()-1 || kept != 1000-early {
			t.Errorf("%d counted as early, %d kept", early, kept)
		}
	})
}

// One 401 in an outage of the token endpoint is told to who got it; the token serves
// everybody else while it is valid, without a wait, and nothing is forced during a backoff.
func TestOne401InAnOutage(t *testing.T) {
	for _, tc := range []struct {
		name   string
		status int
		body   string
	}{
		{"unreachable", -1, ""},
		{"nonsense", 200, "<html>"},
		{"refuses", 401, `{"error":"invalid_client"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &endpoint{}
				s := start(t, e)
				var early atomic.Int64
				s.EarlyRevoked = func() { early.Add(1) }
				refused, _ := s.Token(t.Context())
				e.set(func(e *endpoint) { e.status, e.body = tc.status, tc.body })
				for range 10 {
					_, err := s.Replace(t.Context(), refused)
					none := new(NoTokenError)
					if !errors.As(err, &none) || none.RetryAfter <= 0 || Rejected(err) != (tc.status == 401) {
						t.Fatalf("who got the 401 is told %v", err)
					}
				}
				if n := e.count(); n != 2 {
					t.Errorf("%d token requests, want 2: the first and the forced one", n)
				}
				begin := time.Now()
				if h := header(t, s); h != "Bearer t1" || time.Since(begin) > 0 {
					t.Errorf("the others get %q after %v", h, time.Since(begin))
				}
				if n := early.Load(); n != 1 {
					t.Errorf("counted as refused early %d times", n)
				}
				time.Sleep(99 * time.Second)
				if h := header(t, s); h != "Bearer t1" {
					t.Errorf("near its end: %q", h)
				}
				time.Sleep(time.Second)
				if _, err := s.Token(t.Context()); err == nil {
					t.Error("an expired token was handed out")
				}
				e.set(func(e *endpoint) { e.status = 0 })
				time.Sleep(lastBackoff)
				header(t, s)
			})
		})
	}
}

// A refused token whose replacement failed is tried to be replaced on the backoff, not
// only when its time comes.
func TestReplacedAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		s := start(t, e)
		refused, _ := s.Token(t.Context())
		e.set(func(e *endpoint) { e.status = -1 })
		s.Refused(refused)
		synctest.Wait()
		e.set(func(e *endpoint) { e.status = 0 })
		time.Sleep(2 * time.Second)
		if h := header(t, s); h != "Bearer t3" {
			t.Errorf("got %q", h)
		}
	})
}

// A changed secret is tried at once, not when the token ends. If it is wrong, everybody can see that while
// the old token serves on; a right one is in use at once, and so is one that comes while another is tried.
func TestChangedSecretIsTriedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{secret: "right", life: "3600"}
		var secret atomic.Value
		c := client("http://billing/oauth/token")
		c.HTTP = e
		c.Secret = func() string { return secret.Load().(string) }
		s := NewSource(c, quiet())
		var rejected atomic.Int32
		s.Fetched = func(_ *Token, err error) {
			if Rejected(err) {
				rejected.Add(1)
			}
		}
		change := func(to string) { secret.Store(to); s.SecretChanged() }
		change("right")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		synctest.Wait()

		change("wrong")
		synctest.Wait()
		if h, st := header(t, s), s.State(); h != "Bearer t1" || st.Token == nil || !Rejected(st.Err) || rejected.Load() != 1 {
			t.Errorf("a wrong secret: %s serves, %+v, %d rejected", h, st, rejected.Load())
		}
		time.Sleep(10 * time.Minute) // on the backoff, to its longest
		if n := rejected.Load(); n < 10 || n > 30 {
			t.Errorf("%d tries in ten minutes", n)
		}
		change("right")
		synctest.Wait()
		if h, st := header(t, s), s.State(); h == "Bearer t1" || st.Err != nil {
			t.Errorf("the right one: %s serves, %v", h, st.Err)
		}

		e.set(func(e *endpoint) { e.secret, e.delay = "", time.Second }) // it accepts both for a while, as services do
		change("first")
		time.Sleep(500 * time.Millisecond)
		before := e.count()
		change("second")
		time.Sleep(time.Second)
		if n := e.count() - before; n != 1 {
			t.Errorf("a second change while the first one is tried: %d requests, want 1", n)
		}
	})
}

// Who comes while a refused token is being replaced waits for the new one, two seconds
// at most, and then goes with the old one.
func TestWaitForTheReplacement(t *testing.T) {
	for _, tc := range []struct {
		name   string
		delay  time.Duration
		life   string
		want   string
		waited time.Duration
	}{
		{"soon there", time.Second, "100", "Bearer t2", time.Second},
		{"slow", 5 * time.Second, "100", "Bearer t1", 2 * time.Second},
		{"hangs", time.Hour, "100", "Bearer t1", 2 * time.Second},
		{"slow, and the old one ends meanwhile", 5 * time.Second, "1", "", 5 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &endpoint{life: tc.life}
				s := start(t, e)
				refused, _ := s.Token(t.Context())
				e.set(func(e *endpoint) { e.delay, e.life = tc.delay, "100" })
				s.Refused(refused)
				begin := time.Now()
				token, err := s.Token(t.Context())
				if time.Since(begin) != tc.waited || err != nil {
					t.Fatalf("%v after %v", err, time.Since(begin))
				}
				if tc.want != "" && token.Header()[0] != tc.want || token == refused && !token.valid(time.Now()) {
					t.Errorf("got %v", token.Header())
				}
				if again, err := s.Latest(t.Context(), token); again != token || err != nil || time.Since(begin) != tc.waited {
					t.Errorf("a second look: %v, %v after %v", again, err, time.Since(begin))
				}
			})
		})
	}
}

// Who waits for the replacement and hangs up does not go with the old one.
func TestHangUpWhileReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		s := start(t, e)
		refused, _ := s.Token(t.Context())
		e.set(func(e *endpoint) { e.delay = time.Hour })
		s.Refused(refused)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if token, err := s.Token(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, %v", token, err)
		}
	})
}

// No refresh outlives Run, whoever asked for it, and none starts after it.
func TestNoFetchOutlivesRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{delay: time.Hour, life: "100"}
		var log strings.Builder
		c := client("http://billing/oauth/token")
		c.HTTP = e
		s := NewSource(c, slog.New(slog.NewTextHandler(&log, nil)))
		asked := make(chan error)
		go func() { _, err := s.Token(t.Context()); asked <- err }() // before Run
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		s.Run(ctx)
		if s.refreshing != nil { // without the lock: nobody is there any more
			t.Error("a refresh is under way")
		}
		if err := <-asked; !errors.Is(err, errStopped) {
			t.Errorf("who waited is told %v", err)
		}
		begin := time.Now()
		if _, err := s.Token(t.Context()); err == nil || time.Since(begin) > 0 || e.count() != 1 {
			t.Errorf("afterwards: %v after %v, %d requests", err, time.Since(begin), e.count())
		}
		if log.Len() > 0 {
			t.Errorf("logged: %s", log.String())
		}
	})
}
