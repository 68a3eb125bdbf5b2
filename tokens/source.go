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

	// nap is the longest that Run sleeps: its timer stands still while a laptop
	// sleeps, and the token should be renewed soon after it wakes.
	nap = 10 * time.Second
)

// NoTokenError says that there is no valid token, why, and when the next try is due.
type NoTokenError struct {
	Err        error // a *RejectedError in its chain when the endpoint refused
	RetryAfter time.Duration
}

var errStopped = errors.New("usher is shutting down")

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

	ctx     context.Context // which fetches run under: they end with Run, not with a caller
	stop    context.CancelFunc
	fetches sync.WaitGroup

	mu       sync.Mutex // guards what follows; never held over I/O, never taken to read a valid token that was not refused
	stopped  bool       // Run has ended: no fetch starts any more
	underway *fetch
	failed   *failure // of the last fetch; nil when it succeeded
	forced   *rate.Limiter
	keeping  bool   // refused tokens are kept at the moment
	blamed   *Token // the last one that was reported as refused long before its end
}

// fetch is a request under way. done is closed when it has ended, and the outcome
// stands in token and err.
type fetch struct {
	done  chan struct{}
	token *Token
	err   error
}

// wait waits for the outcome, until ctx ends or for so long.
func (f *fetch) wait(ctx context.Context, limit time.Duration) (*Token, error) {
	timeout := time.NewTimer(limit)
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
	s := &Source{
		client: client,
		log:    log,
		wake:   make(chan struct{}, 1),
		forced: rate.NewLimiter(rate.Every(forcedEvery), forcedBurst),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Run fetches the first token, and then a new one in time before each one's end,
// until ctx ends. Nothing that goes wrong ends it. It returns when no fetch is under
// way any more, and from then on there is none: a source runs once.
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
		timer.Reset(min(s.step(time.Now()), nap))
	}
}

func (s *Source) end() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.stop()
	s.fetches.Wait()
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
	_ = s.start() // it says no only when Run is about to end
	return nap
}

// Token returns the current token. With a valid one at hand that was not refused it
// neither waits nor locks nor allocates. Without, it waits for the fetch under way,
// until ctx ends or for ten seconds; between two tries of an endpoint that fails it
// says so at once, with a *NoTokenError. One that was refused is about to be replaced:
// that is worth a short wait, and then it is still the best there is.
func (s *Source) Token(ctx context.Context) (*Token, error) {
	if t := s.current.Load(); t != nil && t.valid(time.Now()) && !t.refused.Load() {
		return t, nil
	}
	s.mu.Lock()
	t, f, err := s.join(time.Now())
	s.mu.Unlock()
	switch {
	case f == nil:
		return t, err
	case t == nil:
		return f.wait(ctx, waitLimit)
	}
	fresh, err := f.wait(ctx, refusedLimit)
	switch {
	case err == nil:
		return fresh, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case t.valid(time.Now()):
		return t, nil
	}
	return f.wait(ctx, waitLimit-refusedLimit)
}

// join returns the current token if it is valid; the fetch under way if there is no
// such token, or it was refused; else the failure whose backoff is in force. A fetch
// that is needed and not under way is started. s.mu is held.
func (s *Source) join(now time.Time) (*Token, *fetch, error) {
	if t := s.current.Load(); t != nil && t.valid(now) {
		if t.refused.Load() {
			return t, s.underway, nil
		}
		return t, nil, nil
	}
	if s.underway == nil {
		if wait := s.failed.wait(now); wait > 0 {
			return nil, nil, &NoTokenError{Err: s.failed.err, RetryAfter: wait}
		}
		if err := s.start(); err != nil {
			return nil, nil, err
		}
	}
	return nil, s.underway, nil
}

// start sends a request on its way. s.mu is held, and none is under way.
func (s *Source) start() error {
	if s.stopped {
		return &NoTokenError{Err: errStopped, RetryAfter: time.Second}
	}
	f := &fetch{done: make(chan struct{})}
	s.underway = f
	s.fetches.Go(func() { s.fetch(s.ctx, f) })
	return nil
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
		err = errStopped
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
		s.failed = &failure{err: err} // the secret changed meanwhile: ask with the new one at once
	default:
		s.failed = s.failed.follow(err, retryAfter)
	}
	if t := s.current.Load(); t != nil && err != nil {
		t.refused.Store(false) // there is no other: it serves on while it is valid
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
	s.log.Warn("cannot fetch a token", attrs...)
}

// SecretChanged has a source that failed ask again at once.
func (s *Source) SecretChanged() {
	s.mu.Lock()
	if s.failed != nil {
		s.failed = &failure{err: s.failed.err}
	}
	s.mu.Unlock()
	s.poke()
}

func (s *Source) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
