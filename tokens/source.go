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

	// forcedBurst fetches may be forced by 401s in a row, then one each forcedEvery.
	forcedBurst = 5
	forcedEvery = time.Second

	// nap is the longest that Run sleeps: its timer stands still while a laptop
	// sleeps, and the token should be renewed soon after it wakes.
	nap = 10 * time.Second
)

// ErrKept says that Replace did not ask for a new token: too many were refused
// of late, and the caller should pass the service's 401 on.
var ErrKept = errors.New("too many tokens were refused of late: no new one is asked for")

// NoTokenError says that there is no valid token, why, and when the next try is due.
type NoTokenError struct {
	Err        error // a *RejectedError in its chain when the endpoint refused
	RetryAfter time.Duration
}

func (e *NoTokenError) Error() string { return e.Err.Error() }
func (e *NoTokenError) Unwrap() error { return e.Err }

// Source keeps the token of one identity. Its zero value is not usable: see NewSource.
type Source struct {
	client *Client
	log    *slog.Logger

	// Fetched, if set before Run, is told the outcome of each request to the token
	// endpoint, and EarlyRevoked of each token refused long before its end.
	Fetched      func(*Token, error)
	EarlyRevoked func()

	// Advice, if set before Run, says what to do about a failed request; it is logged
	// beside the failure.
	Advice func(error) string

	current atomic.Pointer[Token]
	had     atomic.Bool // whether there ever was a token

	wake chan struct{} // has Run look at the schedule again

	mu       sync.Mutex      // guards what follows; never held over I/O, never taken to read a valid token
	ctx      context.Context // of Run, which fetches run under
	underway *fetch
	failed   *failure // of the last fetch; nil when it succeeded
	forced   *rate.Limiter
	keeping  bool // refused tokens are kept at the moment
}

// fetch is a request under way. done is closed when it has ended, and the outcome
// stands in token and err.
type fetch struct {
	done  chan struct{}
	token *Token
	err   error
}

// wait waits for the outcome, until ctx ends or for ten seconds.
func (f *fetch) wait(ctx context.Context) (*Token, error) {
	timeout := time.NewTimer(waitLimit)
	defer timeout.Stop()
	select {
	case <-f.done:
		return f.token, f.err
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
	return &Source{
		client: client,
		log:    log,
		wake:   make(chan struct{}, 1),
		ctx:    context.Background(),
		forced: rate.NewLimiter(rate.Every(forcedEvery), forcedBurst),
	}
}

// Run fetches the first token, and then a new one in time before each one's end,
// until ctx ends. Nothing that goes wrong ends it.
func (s *Source) Run(ctx context.Context) {
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		timer.Reset(min(s.step(time.Now()), nap))
	}
}

// step starts a fetch if one is due, and says when to look again.
func (s *Source) step(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch t := s.current.Load(); {
	case s.underway != nil:
		return nap // its end wakes Run
	case s.failed != nil:
		if wait := s.failed.wait(now); wait > 0 {
			return wait
		}
	case t != nil && t.age(now) < t.renewAt:
		return t.renewAt - t.age(now)
	}
	s.start()
	return nap
}

// Token returns the current token. With a valid one at hand it neither waits nor
// locks nor allocates. Without, it waits for the fetch under way, until ctx ends
// or for ten seconds; between two tries of an endpoint that fails it says so at
// once, with a *NoTokenError.
func (s *Source) Token(ctx context.Context) (*Token, error) {
	if t := s.current.Load(); t != nil && t.valid(time.Now()) {
		return t, nil
	}
	s.mu.Lock()
	t, f, err := s.join(time.Now())
	s.mu.Unlock()
	if t != nil || err != nil {
		return t, err
	}
	return f.wait(ctx)
}

// Replace returns another token than refused, which the service answered with
// 401. If refused is still the current one it is dropped, and a new one is
// fetched: once, for all who ask. ErrKept means that refused stays in place.
func (s *Source) Replace(ctx context.Context, refused *Token) (*Token, error) {
	t, f, err := s.drop(refused)
	if t != nil || err != nil {
		return t, err
	}
	return f.wait(ctx)
}

// Discard is Replace for a caller that has no use for the new token.
func (s *Source) Discard(refused *Token) { _, _, _ = s.drop(refused) }

func (s *Source) drop(refused *Token) (*Token, *fetch, error) {
	now := time.Now()
	s.mu.Lock()
	dropped := s.current.Load() == refused
	// A fetch that is under way anyhow, or a backoff that forbids one, does not
	// count as forced.
	if dropped && s.underway == nil && s.failed.wait(now) == 0 && !s.forced.Allow() {
		first := !s.keeping
		s.keeping = true
		s.mu.Unlock()
		if first {
			s.log.Warn("tokens are refused again and again: the current one is kept for a while, and the 401s go to the callers", "token", refused)
		}
		return nil, nil, ErrKept
	}
	if dropped {
		s.current.Store(nil)
		s.keeping = false
	}
	t, f, err := s.join(now)
	s.mu.Unlock()

	if age := refused.age(now); dropped && age < refused.renewAt {
		s.log.Warn("token refused long before its end: if another program uses the same API client, its new tokens may revoke ours",
			"token", refused, "age", age.Round(time.Millisecond), "left", (refused.life - age).Round(time.Millisecond))
		if s.EarlyRevoked != nil {
			s.EarlyRevoked()
		}
	}
	return t, f, err
}

// join returns the current token if it is valid, else the fetch under way, which
// it starts if need be, else the failure whose backoff is in force. s.mu is held.
func (s *Source) join(now time.Time) (*Token, *fetch, error) {
	if t := s.current.Load(); t != nil && t.valid(now) {
		return t, nil, nil
	}
	if s.underway == nil {
		if wait := s.failed.wait(now); wait > 0 {
			return nil, nil, &NoTokenError{Err: s.failed.err, RetryAfter: wait}
		}
		s.start()
	}
	return nil, s.underway, nil
}

// start sends a request on its way. s.mu is held, and none is under way.
func (s *Source) start() {
	f := &fetch{done: make(chan struct{})}
	s.underway = f
	go s.fetch(s.ctx, f)
}

// fetch sends the request and tells those who wait for f. It runs on the source's
// context, never on that of the caller who happened to need it first.
func (s *Source) fetch(ctx context.Context, f *fetch) {
	secret := s.client.Secret()
	token, retryAfter, err := s.client.fetch(ctx)
	if err == nil && !token.valid(time.Now()) {
		token, err = nil, errors.New("the token endpoint took longer to answer than its token lives")
	}
	if ctx.Err() != nil { // shutting down, which is no failure of the endpoint's
		err = errors.New("usher is shutting down")
	} else if s.Fetched != nil {
		s.Fetched(token, err)
	}

	s.mu.Lock()
	s.underway = nil
	switch {
	case err == nil:
		s.current.Store(token)
		s.had.Store(true)
		s.failed = nil
	case Rejected(err) && s.client.Secret() != secret:
		s.failed = nil // the secret changed meanwhile: ask with the new one at once
	default:
		s.failed = s.failed.follow(err, retryAfter)
	}
	wait := s.failed.wait(time.Now())
	s.mu.Unlock()

	if err == nil {
		f.token = token
	} else {
		f.err = &NoTokenError{Err: err, RetryAfter: wait}
	}
	close(f.done)
	s.poke()
	if ctx.Err() == nil {
		s.report(token, err, wait)
	}
}

// report logs the outcome of a fetch.
func (s *Source) report(token *Token, err error, wait time.Duration) {
	if err == nil {
		s.log.Info("token fetched", "token", token, "life", token.life)
		return
	}
	attrs := []any{"url", s.client.URL, "err", err, "next_try_in", wait.Round(time.Millisecond)}
	if s.Advice != nil {
		attrs = append(attrs, "advice", s.Advice(err))
	}
	s.log.Warn("no token could be fetched", attrs...)
}

// SecretChanged has a source that failed ask again at once.
func (s *Source) SecretChanged() {
	s.mu.Lock()
	s.failed = nil
	s.mu.Unlock()
	s.poke()
}

func (s *Source) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
