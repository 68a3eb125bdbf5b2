package tokens

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// waitLimit is how long a caller without a token waits for one.
	waitLimit = 10 * time.Second

	// longestSleep is how long Run waits at most. Its timer stands still while a laptop sleeps,
	// and the token should be renewed soon after it wakes up.
	longestSleep = 10 * time.Second
)

// NoTokenError says that there is no valid token, why, and when the next try is due.
type NoTokenError struct {
	Err        error // has a *RejectedError in its chain if the endpoint refused
	RetryAfter time.Duration
}

var errStopped = errors.New("usher is shutting down")

func (e *NoTokenError) Error() string { return e.Err.Error() }
func (e *NoTokenError) Unwrap() error { return e.Err }

// Source keeps the token of one identity. Its zero value is not usable: see NewSource.
type Source struct {
	client *Client
	log    *slog.Logger

	// Fetched is called with the outcome of each request to the token endpoint, and EarlyRevoked for
	// each token refused long before its end. They may be set before Run, and do nothing otherwise.
	Fetched      func(*Token, error)
	EarlyRevoked func()

	// Advice, if set before Run, says what to do about a failed request; it is logged
	// beside the failure.
	Advice func(error) string

	current atomic.Pointer[Token] // nil before the first one; never again

	wake chan struct{} // makes Run check the schedule again

	ctx       context.Context // of all refreshes: they end with Run, not with a caller
	stop      context.CancelFunc
	refreshes sync.WaitGroup

	mu       sync.Mutex // guards what follows; never held over I/O, never taken to read a valid token that was not refused
	stopped  bool       // Run has ended: no refresh starts any more
	underway *refresh
	failed   *failure      // of the last refresh; nil if it succeeded
	forced   *rate.Limiter // limits refreshes that a 401 starts
	limited  bool          // the limiter refused the last 401
	reported *Token        // the last one that was reported as refused long before its end
}

// refresh is a request for a new token. done is closed when it has ended; token and err are its
// outcome.
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
		return nil, &NoTokenError{
			Err:        fmt.Errorf("the token endpoint did not answer within %v", waitLimit),
			RetryAfter: time.Second,
		}
	}
}

// NewSource returns a source without a token. Run makes it live.
func NewSource(client *Client, log *slog.Logger) *Source {
	s := &Source{
		client:       client,
		log:          log,
		Fetched:      func(*Token, error) {},
		EarlyRevoked: func() {},
		wake:         make(chan struct{}, 1),
		forced:       rate.NewLimiter(rate.Every(forcedEvery), forcedBurst),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Run fetches the first token, and then a new one before each token expires, until ctx ends. No
// failure ends it. It returns after the last refresh has ended, and none starts after that: a source
// runs once.
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

// step starts a refresh if one is due, and returns when to check again.
func (s *Source) step(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch t := s.current.Load(); {
	case s.underway != nil:
		return longestSleep // the end of the refresh wakes Run
	case s.failed != nil:
		if wait := s.failed.wait(now); wait > 0 {
			return wait
		}
	case t != nil && t.age(now) < t.renewAt:
		return t.renewAt - t.age(now)
	}
	_, _ = s.refreshing(now, false) // fails only if Run is about to end
	return longestSleep
}

// Token returns the current token. With a valid one at hand that was not refused it
// neither waits nor locks nor allocates. Without one it waits for the refresh under way,
// until ctx ends or for ten seconds; between two tries of an endpoint that fails it
// returns a *NoTokenError at once. A token that was refused is about to be replaced: Token
// waits a short time for the new one, and then returns the refused one, which may still work.
func (s *Source) Token(ctx context.Context) (*Token, error) {
	if t := s.current.Load(); t != nil && t.valid(time.Now()) && !t.refused.Load() {
		return t, nil
	}
	var r *refresh // to wait for
	var err error
	s.mu.Lock()
	t := s.current.Load()
	if now := time.Now(); t == nil || !t.valid(now) {
		t = nil
		r, err = s.refreshing(now, false)
	} else if t.refused.Load() {
		r = s.underway
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

// refreshing returns the refresh under way, or starts one, unless a backoff forbids it. forced says that a 401 demands it: then
// the limit for those may forbid it, too. s.mu is held.
func (s *Source) refreshing(now time.Time, forced bool) (*refresh, error) {
	if s.underway != nil {
		return s.underway, nil
	}
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
	s.underway = r
	s.refreshes.Go(func() { s.run(r) })
	return r, nil
}

// run carries out a refresh: it sends the request and wakes those who wait for r. It does so on
// the source's own context, never on that of the caller who happened to need the token first.
func (s *Source) run(r *refresh) {
	secret := s.client.Secret()
	token, retryAfter, err := s.client.request(s.ctx, s.Fetched)
	if err == nil && !token.valid(time.Now()) {
		token, err = nil, errors.New("the token endpoint took longer to answer than its token lives")
	}
	ending := s.ctx.Err() != nil
	if ending { // not the endpoint's failure
		err = errStopped
	} else {
		s.Fetched(token, err)
	}

	s.mu.Lock()
	s.underway = nil
	switch {
	case err == nil:
		s.current.Store(token)
		s.failed = nil
	case Rejected(err) && s.client.Secret() != secret:
		s.failed = &failure{err: err} // the secret changed meanwhile: ask with the new one at once
	default:
		s.failed = s.failed.follow(err, retryAfter)
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
	attrs := []any{"url", s.client.URL, "err", err, "next_try_in", wait.Round(time.Millisecond)}
	if s.Advice != nil {
		attrs = append(attrs, "advice", s.Advice(err))
	}
	s.log.Warn("cannot fetch a token", attrs...)
}

// SecretChanged makes a source that failed try again at once.
func (s *Source) SecretChanged() {
	s.mu.Lock()
	if s.failed != nil {
		s.failed = &failure{err: s.failed.err}
	}
	s.mu.Unlock()
	s.wakeRun()
}

func (s *Source) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// State is the current state of a source.
type State struct {
	Had   bool   // whether it ever had a token
	Token *Token // the current one, if it is valid
	Err   error  // why the last refresh failed; nil if it did not
}

// State returns a snapshot.
func (s *Source) State() State {
	t := s.current.Load()
	st := State{Had: t != nil}
	if st.Had && t.valid(time.Now()) {
		st.Token = t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		st.Err = s.failed.err
	}
	return st
}

// Ready waits until there is a token. It returns at once if the endpoint refuses. If the endpoint
// cannot be reached, it waits until ctx ends. Run must be running.
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
			// The reason says more than that the time is over.
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

// failure is the last refresh's failure, and how long the next refresh has to wait because of it.
// A nil *failure means that it did not fail.
type failure struct {
	err     error
	backoff time.Duration // the current one, before jitter; zero: the next try is due
	next    time.Time     // when it ends
}

// wait returns how long the next request still has to wait; zero: not at all. f may be nil.
func (f *failure) wait(now time.Time) time.Duration {
	if f == nil {
		return 0
	}
	return max(0, f.next.Sub(now))
}

// follow returns the failure after f, which may be nil. Its backoff is twice as long, or as long as
// the endpoint asked for, but a minute at most.
func (f *failure) follow(err error, retryAfter time.Duration) *failure {
	backoff := firstBackoff
	if f != nil {
		backoff = min(max(2*f.backoff, firstBackoff), lastBackoff)
	}
	wait := jitter(backoff, 0.8, 1.2)
	wait = min(max(wait, retryAfter), lastBackoff)
	return &failure{err: err, backoff: backoff, next: time.Now().Add(wait)}
}

func jitter(d time.Duration, from, to float64) time.Duration {
	return time.Duration(float64(d) * (from + (to-from)*rand.Float64()))
}
