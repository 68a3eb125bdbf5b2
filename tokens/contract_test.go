package tokens

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// The figures that usher promises, written out: tests that use the constants would agree with
// whatever somebody makes of them.
func TestPromisedFigures(t *testing.T) {
	for expiresIn, want := range map[string]time.Duration{
		``: 5 * time.Minute, `0`: 5 * time.Minute, `-1`: 5 * time.Minute, `"soon"`: 5 * time.Minute, `31536000`: 30 * 24 * time.Hour, `2592000`: 30 * 24 * time.Hour, `60`: time.Minute,
	} {
		if got := lifeOf("opaque", []byte(expiresIn)); got != want {
			t.Errorf("expires_in %s: a life of %v, want %v", expiresIn, got, want)
		}
	}
	// With jitter, about 80%.
	for range 1000 {
		if at := newToken("", time.Now(), 100*time.Second).renewAt; at < 75*time.Second || at > 85*time.Second {
			t.Fatalf("renewed after %v of 100 s", at)
		}
	}
	sum := sha256.Sum256([]byte("verysecret"))
	if got := newToken("verysecret", time.Now(), time.Hour).Fingerprint(); got != hex.EncodeToString(sum[:])[:8] {
		t.Errorf("a token shows as %s", got)
	}
}

// Without a token a caller waits ten seconds for the fetch under way, no less and no more.
func TestWaitsTenSeconds(t *testing.T) {
	for delay, waits := range map[time.Duration]time.Duration{9 * time.Second: 9 * time.Second, time.Hour: 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := start(t, &endpoint{delay: delay})
			begin := time.Now()
			_, err := s.Token(t.Context())
			if took := time.Since(begin); took != waits || (err == nil) != (delay == waits) {
				t.Errorf("an endpoint that takes %v: %v after %v", delay, err, took)
			}
		})
	}
}

// An endpoint that fails, or refuses, is asked again after 1 s, then 2 s, 4 s and so on up to 60 s,
// with jitter; who asks meanwhile is told at once when the next try is.
func TestBackoffOfTheEndpoint(t *testing.T) {
	for _, status := range []int{-1, 500, 401} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &endpoint{status: status, body: `{"error":"invalid_client"}`}
				s := start(t, e)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				begin := time.Now()
				_, err := s.Token(t.Context())
				none := new(NoTokenError)
				if !errors.As(err, &none) || time.Since(begin) > 0 || none.RetryAfter <= 0 || none.RetryAfter > 60*time.Second {
					t.Errorf("%v after %v: %+v", err, time.Since(begin), none)
				}
				e.mu.Lock()
				defer e.mu.Unlock()
				want := time.Second
				for i := 1; i < len(e.requests); i++ {
					gap := e.requests[i].Sub(e.requests[i-1])
					if most := min(want*6/5, 60*time.Second); gap < want*4/5 || gap > most {
						t.Errorf("try %d after %v, want about %v", i, gap, want)
					}
					want = min(2*want, 60*time.Second)
				}
				if len(e.requests) < 10 {
					t.Errorf("only %d tries in ten minutes", len(e.requests))
				}
			})
		})
	}
}

// Fetches forced by a 401: five in a row, then one a second.
func TestForcedByRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		s := start(t, e)
		refuse := func() error {
			token, err := s.Token(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Replace(t.Context(), token)
			return err
		}
		header(t, s)
		for range 5 {
			if err := refuse(); err != nil {
				t.Errorf("within the burst: %v", err)
			}
		}
		for range 5 {
			if err := refuse(); !errors.Is(err, ErrKept) {
				t.Errorf("after the burst: %v", err)
			}
		}
		for range 5 {
			time.Sleep(time.Second)
			if first, second := refuse(), refuse(); first != nil || !errors.Is(second, ErrKept) {
				t.Errorf("in each second: %v, then %v", first, second)
			}
		}
		if n := e.count(); n != 1+5+5 {
			t.Errorf("%d token requests", n)
		}
	})
}

// A refused token that could not be replaced serves on as if nothing had happened: the tries that
// follow, however slow, hold nobody up.
func TestNobodyWaitsForLaterTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		s := start(t, e)
		refused, err := s.Token(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		e.set(func(e *endpoint) { e.status = -1 })
		if _, err := s.Replace(t.Context(), refused); err == nil {
			t.Fatal("replaced")
		}
		e.set(func(e *endpoint) { e.delay = 5 * time.Second })
		for n := e.count(); e.count() == n; { // the next try is under way
			time.Sleep(100 * time.Millisecond)
		}
		begin := time.Now()
		if h := header(t, s); h != "Bearer t1" || time.Since(begin) > 0 {
			t.Errorf("%s after %v", h, time.Since(begin))
		}
	})
}

// A caller that took a token before it read a long body does not go with it if it has expired, or
// was replaced, meanwhile.
func TestLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		s := start(t, e)
		first, err := s.Token(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Latest(t.Context(), first); got != first || err != nil {
			t.Errorf("at once: %v, %v", got, err)
		}
		second, err := s.Replace(t.Context(), first)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Latest(t.Context(), first); got != second || err != nil {
			t.Errorf("replaced: %v, %v", got, err)
		}
		e.set(func(e *endpoint) { e.status = -1 })
		time.Sleep(100 * time.Second)
		if got, err := s.Latest(t.Context(), second); err == nil {
			t.Errorf("expired, and there is no other: %v", got)
		}
	})
}
