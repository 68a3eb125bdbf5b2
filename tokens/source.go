package tokens

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// waitLimit is how long a caller without a token waits for one.
	waitLimit = 10 * time.Second

	// longestSleep is the longest time of Run's timer. A timer stands still while a laptop sleeps,
	// and the token should be renewed soon after the laptop wakes up.
	longestSleep = 10 * time.Second
)

// NoTokenError says why there is no valid token, and how long to wait until usher tries again.
type NoTokenError struct {
	Err        error // wraps a *RejectedError if the endpoint refused
	RetryAfter time.Duration
}

var errStopped = errors.New("usher is shutting down")

func (e *NoTokenError) Error() string { return e.Err.Error() }

func (e *NoTokenError) Unwrap() error { return e.Err }

// Source keeps the token of one identity. NewSource makes one.
type Source struct {
	client *Client
	log    *slog.Logger

	// Fetched is called with the outcome of each request to the token endpoint, and EarlyRevoked for
	// each token that the service has refused long before its end. Set them before Run.
	Fetched      func(*Token, error)
	EarlyRevoked func()

	// Advice returns what to do about a failed request, for the log. Set it before Run. May be nil.
	Advice func(error) string

	current atomic.Pointer[Token] // nil until the first token arrives

	wake chan struct{} // makes Run check again whether a refresh is due

	ctx       context.Context // of all refreshes: they end with Run, not with a caller
	stop      context.CancelFunc
	refreshes sync.WaitGroup

	// mu guards what follows. No request is made while it is held. A caller that finds a valid token
	// that was not refused does not lock it.
	mu         sync.Mutex
	stopped    bool // Run has ended: no refresh starts any more
	refreshing *refresh
	tried      string        // the client secret of the last refresh that was started
	failed     *failure      // of the last refresh; nil if it succeeded
	forced     *rate.Limiter // limits the refreshes that a 401 starts
	limited    bool          // the limiter did not allow the last of these
	reported   *Token        // the last token that was reported as refused long before its end
}

// refresh is a request for a new token. When done is closed, it has ended, with token or err.
type refresh struct {
	done  chan struct{}
	token *Token
	err   error
}

// wait waits for the outcome, until ctx ends or the limit has passed.
func (r *refresh) wait(ctx context.Context, limit time.Duration) (*Token, error) {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-r.done:
		return r.token, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timeout.C:
		return nil, &NoTokenError{fmt.Errorf("the token endpoint did not answer within %v", waitLimit), time.Second}
	}
}

// NewSource returns a source without a token. Run fetches tokens.
func NewSource(client *Client, log *slog.Logger) *Source {
	s := &Source{
		client: client, log: log, Fetched: func(*Token, error) {}, EarlyRevoked: func() {},
		wake: make(chan struct{}, 1), forced: rate.NewLimiter(rate.Every(forcedEvery), forcedBurst),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Run fetches the first token, and then a new one before each token expires, until ctx ends. No
// failure ends it. When Run returns, no refresh is in progress, and none will start any more: a source
// runs only once.
func (s *Source) Run(ctx context.Context) {
	defer s.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		timer.Reset(min(s.step(time.Now()), longestSleep))
	}
}

func (s *Source) end() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.stop()
	s.refreshes.Wait()
}

// step starts a refresh if one is due, and returns how long Run may wait until the next step.
func (s *Source) step(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch t := s.current.Load(); {
	case s.refreshing != nil:
		return longestSleep // the end of the refresh wakes Run
	case s.newSecret(): // try it at once: if it is wrong, somebody can correct it while the token is valid
	case s.failed != nil:
		if wait := s.failed.wait(now); wait > 0 {
			return wait
		}
	case t != nil && t.age(now) < t.renewAt:
		return t.renewAt - t.age(now)
	}
	_, _ = s.startRefresh(now, false) // fails only if Run has ended
	return longestSleep
}

// Token returns the current token. If it is valid and the service has not refused it, Token neither waits nor locks nor
// allocates. If there is no valid token, Token waits for the refresh in progress, ten seconds at most. While usher waits
// until it may ask a failing endpoint again, Token returns a *NoTokenError at once. If the service has refused the
// token, Token waits two seconds for the new one, and then returns the refused one, which may still work.
func (s *Source) Token(ctx context.Context) (*Token, error) {
	if t := s.current.Load(); t != nil && t.valid(time.Now()) && !t.refused.Load() {
		return t, nil
	}
	var r *refresh // the one to wait for
	var err error
	s.mu.Lock()
	t := s.current.Load()
	if now := time.Now(); t == nil || !t.valid(now) {
		t = nil
		r, err = s.startRefresh(now, false)
	} else if t.refused.Load() {
		r = s.refreshing
	}
	s.mu.Unlock()
	switch {
	case r == nil:
		return t, err
	case t == nil:
		return r.wait(ctx, waitLimit)
	}
	fresh, err := r.wait(ctx, refusedLimit)
	switch {
	case err == nil:
		return fresh, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case t.valid(time.Now()):
		return t, nil
	}
	return r.wait(ctx, waitLimit-refusedLimit)
}

// startRefresh starts a refresh, unless one is in progress, and returns it. It returns an error while a
// backoff lasts. If forced, a 401 demands the refresh, and the limit for these may forbid it, too. s.mu
// is held.
func (s *Source) startRefresh(now time.Time, forced bool) (*refresh, error) {
	if s.refreshing != nil {
		return s.refreshing, nil
	}
	s.newSecret()
	if wait := s.failed.wait(now); wait > 0 {
		return nil, &NoTokenError{Err: s.failed.err, RetryAfter: wait}
	}
	if forced && !s.forced.Allow() {
		return nil, ErrKept
	}
	if s.stopped {
		return nil, &NoTokenError{Err: errStopped, RetryAfter: time.Second}
	}
	r := &refresh{done: make(chan struct{})}
	s.refreshing, s.tried = r, s.client.Secret()
	secret := s.tried
	s.refreshes.Go(func() { s.run(r, secret) })
	return r, nil
}

// newSecret reports whether the client secret has changed since the last refresh began. If so, it ends the
// backoff, which was for the old one. s.mu is held.
func (s *Source) newSecret() bool {
	changed := s.client.Secret() != s.tried
	if changed && s.failed != nil {
		s.failed = &failure{err: s.failed.err, since: s.failed.since}
	}
	return changed
}

// run carries out a refresh: it sends the request and closes r.done. It uses the source's own context,
// not that of the caller that happened to need the token first.
func (s *Source) run(r *refresh, secret string) {
	token, retryAfter, err := s.client.request(s.ctx, secret, s.Fetched)
	if err == nil && !token.valid(time.Now()) {
		token, err = nil, errors.New("the token endpoint took longer to answer than its token lives")
	}
	ending := s.ctx.Err() != nil
	if ending { // the endpoint did not fail
		err = errStopped
	} else {
		s.Fetched(token, err)
	}

	s.mu.Lock()
	s.refreshing = nil
	if err == nil {
		s.current.Store(token)
		s.failed = nil
	} else {
		s.failed = s.failed.follow(err, retryAfter)
		s.newSecret()
	}
	if t := s.current.Load(); t != nil && err != nil {
		t.refused.Store(false) // there is no other token: use this one while it is valid
	}
	wait := s.failed.wait(time.Now())
	s.mu.Unlock()

	if err == nil {
		r.token = token
	} else {
		r.err = &NoTokenError{Err: err, RetryAfter: wait}
	}
	close(r.done)
	s.wakeRun()
	if !ending {
		s.report(token, err, wait)
	}
}

func (s *Source) report(token *Token, err error, wait time.Duration) {
	if err == nil {
		s.log.Info("token fetched", "token", token, "life", token.life)
		return
	}
	attrs := []any{"url", s.client.URL, "err", err, "next_try", wait.Round(time.Millisecond)}
	if s.Advice != nil {
		attrs = append(attrs, "advice", s.Advice(err))
	}
	s.log.Warn("cannot fetch a token", attrs...)
}

// SecretChanged makes the source try the new secret at once, also if the current token is valid.
func (s *Source) SecretChanged() { s.wakeRun() }

func (s *Source) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// State is the current state of a source.
type State struct {
	Had   bool      // whether it has ever had a token
	Token *Token    // the current token; nil if there is no valid one
	Err   error     // why the last refresh failed; nil if it did not
	Since time.Time // since when refreshes fail; zero if they do not
}

// State returns the current state.
func (s *Source) State() State {
	t := s.current.Load()
	st := State{Had: t != nil}
	if st.Had && t.valid(time.Now()) {
		st.Token = t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		st.Err, st.Since = s.failed.err, s.failed.since
	}
	return st
}

// Ready waits until there is a token, and returns it. If the endpoint refuses, Ready returns the error
// at once. If the endpoint cannot be reached, Ready waits until ctx ends. Run must be running.
func (s *Source) Ready(ctx context.Context) (*Token, error) {
	for {
		t, err := s.Token(ctx)
		if err == nil {
			return t, nil
		}
		if Rejected(err) {
			return nil, err
		}
		wait := firstBackoff
		if none := new(NoTokenError); errors.As(err, &none) {
			wait = none.RetryAfter
		}
		select {
		case <-ctx.Done():
			// Why the last refresh failed says more than that ctx has ended.
			if why := s.State().Err; why != nil {
				err = why
			}
			return nil, err
		case <-time.After(wait):
		}
	}
}

const (
	firstBackoff = time.Second
	lastBackoff  = 60 * time.Second
)

// failure says why the last refresh failed, and how long the next one has to wait because of that.
// A nil *failure means that it did not fail.
type failure struct {
	err     error
	since   time.Time     // when the first of the refreshes ended that failed in a row
	backoff time.Duration // without jitter; zero: the next refresh need not wait
	next    time.Time     // when the next refresh may begin
}

// wait returns how long the next refresh still has to wait. f may be nil.
func (f *failure) wait(now time.Time) time.Duration {
	if f == nil {
		return 0
	}
	return max(0, f.next.Sub(now))
}

// follow returns the failure that follows f, which may be nil. Its backoff is twice that of f, or as
// long as the endpoint asked for, but a minute at most.
func (f *failure) follow(err error, retryAfter time.Duration) *failure {
	backoff, since := firstBackoff, time.Now()
	if f != nil {
		since = f.since
		backoff = min(max(2*f.backoff, firstBackoff), lastBackoff)
	}
	wait := jitter(backoff, 0.8, 1.2)
	wait = min(max(wait, retryAfter), lastBackoff)
	return &failure{err: err, since: since, backoff: backoff, next: time.Now().Add(wait)}
}

const (
	// refusedLimit is how long a caller waits for a new token before it uses the refused one.
	refusedLimit = 2 * time.Second

	// A 401 may start forcedBurst refreshes in a row, then one every forcedEvery.
	forcedBurst = 5
	forcedEvery = time.Second
)

// ErrKept says that Replace did not request a new token, because the service has refused too many
// recently. The caller should pass the service's 401 on.
var ErrKept = errors.New("the service rejected too many tokens recently: usher does not request a new one yet")
