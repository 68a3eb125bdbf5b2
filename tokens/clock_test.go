package tokens

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// moveWallClock has s see what it would see after the wall clock jumped by d: its token was
// requested that much earlier. (In synctest there is only the wall clock. The tests of package
// clock have both.)
func moveWallClock(s *Source, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	moved := *s.current.Load()
	moved.asked = moved.asked.Add(-d)
	s.current.Store(&moved)
}

// A laptop slept for an hour. Its monotonic clock, and with it every timer, stood
// still: no call gets the token of before, and without any call it is renewed soon.
func TestSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		s := start(t, e)
		header(t, s)
		moveWallClock(s, time.Hour)
		if h := header(t, s); h != "Bearer t2" {
			t.Errorf("after the sleep: %q", h)
		}
		moveWallClock(s, time.Hour)
		time.Sleep(longestSleep)
		synctest.Wait()
		if n := e.count(); n != 3 {
			t.Errorf("%d token requests, want 3: nobody called, but it should be renewed", n)
		}
		if h := header(t, s); h != "Bearer t3" {
			t.Errorf("got %q", h)
		}
	})
}

// A wall clock that jumps about makes no storm of requests.
func TestWallClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		s := start(t, e)
		header(t, s)
		before := e.count()
		for i := range 100 { // back and forth, an hour each, every second
			moveWallClock(s, []time.Duration{time.Hour, -time.Hour}[i%2])
			header(t, s)
			time.Sleep(time.Second)
		}
		if n := e.count() - before; n > 101 {
			t.Errorf("%d token requests for 50 jumps ahead and as many back", n)
		}
	})
}

// A token that ends while its caller waits for something else is not handed out: it
// is asked for again at the last moment, and is then a valid one.
func TestNeverHandedOutExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{life: "1", delay: 50 * time.Millisecond}
		s := start(t, e)
		for range 2000 {
			token, err := s.Token(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !token.valid(time.Now()) {
				t.Fatal("expired when it was handed out")
			}
			time.Sleep(7 * time.Millisecond)
		}
	})
}

// rivalry is a token endpoint where each new token revokes the one before.
type rivalry struct {
	mu     sync.Mutex
	issued int
}

func (e *rivalry) RoundTrip(*http.Request) (*http.Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.issued++
	body := fmt.Sprintf(`{"access_token":"t%d","expires_in":7200}`, e.issued)
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(body))}, nil
}

func (e *rivalry) accepts(token *Token) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return token.Header()[0] == fmt.Sprintf("Bearer t%d", e.issued)
}

// Two ushers on one API client whose new tokens revoke each other's, for an hour, with
// ten calls a second on each. The token endpoint is asked at most once a second by
// each, every call is answered, and the log says plainly what is going on.
func TestTwoOnOneClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := new(rivalry)
		var said bytes.Buffer
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer func() { cancel(); running.Wait() }()
		const hour, each = 3600, 10
		var mu sync.Mutex
		answered, passedOn := 0, 0
		var calls sync.WaitGroup
		for i := range 2 {
			c := client("http://billing/oauth/token")
			c.HTTP = e
			log := quiet()
			if i == 0 {
				log = slog.New(slog.NewTextHandler(&said, nil))
			}
			s := NewSource(c, log)
			running.Go(func() { s.Run(ctx) })
			calls.Go(func() {
				for range hour * each {
					time.Sleep(time.Second / each)
					ok := callWith(t, s, e)
					mu.Lock()
					if ok {
						answered++
					} else {
						passedOn++ // the service's 401
					}
					mu.Unlock()
				}
			})
		}
		calls.Wait()
		synctest.Wait() // the last refresh has logged
		if e.issued > 2*(hour+forcedBurst+1) {
			t.Errorf("%d token requests in an hour", e.issued)
		}
		if answered+passedOn != 2*hour*each || answered < passedOn/10 {
			t.Errorf("%d calls answered, %d got the service's 401", answered, passedOn)
		}
		if !strings.Contains(said.String(), "another program uses the same API client") {
			t.Error("the log does not say why")
		}
		t.Logf("%d token requests, %d calls answered, %d got the service's 401", e.issued, answered, passedOn)
	})
}

// callWith is what proxy does with a token: on a 401 once more with a new one.
func callWith(t *testing.T, s *Source, e *rivalry) bool {
	token, err := s.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if e.accepts(token) {
		return true
	}
	fresh, err := s.Replace(t.Context(), token)
	if errors.Is(err, ErrKept) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	return e.accepts(fresh)
}
