package webhookgate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"usher/internal/wire"
	"usher/webhookgate/content"
	"usher/webhookgate/signature"
)

const (
	firstPause   = 500 * time.Millisecond // at most, before the second try; then doubled
	longestPause = 10 * time.Second       // also for a receiver's Retry-After: a sender is waiting
	maxExcerpt   = 1 << 10                // how much of a receiver's answer the sender gets
	maxAnswer    = 64 << 10               // how much of it is read, so that the connection can be used again
)

// receiver is one of the customer's applications, as the gate sees it.
type receiver struct {
	name      string
	url       *url.URL // without userinfo
	basicAuth string   // made from the userinfo; may be empty
	transport http.RoundTripper
	timeout   time.Duration
	attempts  int
	secret    func() string // for signatures; may be nil
	jitter    func(ceiling time.Duration) time.Duration
	attempted func(receiver, result string, took time.Duration)
	log       *slog.Logger

	inflight int // webhooks on their way to it while their senders wait; guarded by Gate.mu
}

func newReceiver(cfg *Config, r Receiver) (*receiver, error) {
	if r.URL == nil || r.URL.Scheme != "http" && r.URL.Scheme != "https" || r.URL.Host == "" {
		return nil, fmt.Errorf("receiver %s: %s: must be an http or https address", r.Name, r.URL.Redacted())
	}
	target := *r.URL
	target.User = nil
	rc := &receiver{
		name:      r.Name,
		url:       &target,
		transport: r.Transport,
		timeout:   cmp.Or(r.Timeout, cfg.Timeout),
		attempts:  cfg.Attempts,
		secret:    r.SignSecret,
		jitter:    rand.N[time.Duration],
		attempted: cfg.Attempted,
		log:       cfg.Log,
	}
	if rc.transport == nil {
		rc.transport = newTransport(cfg.MaxInflight)
	}
	if user := r.URL.User; user != nil {
		password, _ := user.Password()
		req := http.Request{Header: make(http.Header)}
		req.SetBasicAuth(user.Username(), password)
		rc.basicAuth = req.Header.Get("Authorization")
	}
	return rc, nil
}

// newTransport is for one receiver. It uses no proxy: a proxy must not see webhooks or the
// receiver's password, and its own 200 would count as the receiver's.
func newTransport(conns int) *wire.Client {
	return wire.New(wire.Config{MaxIdle: conns, IdleTimeout: 30 * time.Second, MaxHead: 64 << 10})
}

// CloseIdleConnections closes the idle connections to the receivers. Call it after Shutdown,
// when the inbox delivers no more either.
func (g *Gate) CloseIdleConnections() {
	for _, rc := range g.receivers.all {
		if own, ok := rc.transport.(*wire.Client); ok {
			own.CloseIdleConnections()
		}
	}
}

// deliver tries w until the receiver accepts it, or another try makes no sense. It ends early
// only if ctx ends.
func (rc *receiver) deliver(ctx context.Context, w *Webhook) answer {
	tries := 0
	for ctx.Err() == nil {
		t := rc.try(ctx, w)
		tries++
		if t.Accepted() {
			return answer{status: http.StatusOK, Decision: forwarded, Webhook: w.ID, Tries: tries}
		}
		rc.logFailure(w, tries, t)
		pause, again := rc.pause(t, tries)
		if ctx.Err() == nil && (!again || tries >= rc.attempts) {
			return t.failure(w, tries, rc.timeout)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	no := *shuttingDown()
	no.Webhook, no.Tries = w.ID, tries
	return no
}

// try sends w to the receiver once, and counts it.
func (rc *receiver) try(ctx context.Context, w *Webhook) Attempt {
	start := time.Now()
	t := rc.send(ctx, w)
	rc.attempted(rc.name, t.result(), time.Since(start))
	return t
}

func (rc *receiver) send(ctx context.Context, w *Webhook) Attempt {
	ctx, cancel := context.WithTimeout(ctx, rc.timeout)
	defer cancel()
	req, err := rc.request(ctx, w)
	if err != nil {
		return Attempt{Err: err}
	}
	resp, err := rc.transport.RoundTrip(req)
	if err != nil {
		return Attempt{Err: err}
	}
	defer resp.Body.Close()
	t := Attempt{Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header)}
	// A 2xx means accepted, whatever follows. usher still waits for the body: before its end
	// the receiver may not be finished.
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.Header.Get("Content-Encoding") == "" {
		t.Excerpt = content.Clip(string(body), maxExcerpt)
	}
	return t
}

// errUnsigned: nothing is sent while the signing secret cannot be used. If a receiver got
// unsigned webhooks for a while, somebody might make it accept them.
var errUnsigned = errors.New("the signing secret can't be used")

// request makes the request of one try: the same webhook, with its own timestamp and signature.
func (rc *receiver) request(ctx context.Context, w *Webhook) (*http.Request, error) {
	h := w.Header.Clone()
	if rc.basicAuth != "" { // not part of w, which may be on disk for longer than the password is valid
		h.Set("Authorization", rc.basicAuth)
	}
	var key []byte
	if rc.secret != nil {
		var err error
		if key, err = signature.ParseKey(rc.secret()); err != nil {
			return nil, fmt.Errorf("%w: %w", errUnsigned, err)
		}
	}
	signature.Stamp(h, key, w.ID, time.Now(), w.Body)
	req := &http.Request{
		Method:        http.MethodPost,
		URL:           rc.url,
		Host:          rc.url.Host,
		Header:        h,
		ContentLength: int64(len(w.Body)),
		Body:          io.NopCloser(bytes.NewReader(w.Body)),
	}
	return req.WithContext(ctx), nil
}

// An Attempt is the result of one try.
type Attempt struct {
	Status     int // zero: there was no answer; see Err
	Err        error
	RetryAfter time.Duration // what the receiver asked for
	Excerpt    string        // of its answer
}

// Accepted reports whether the receiver has accepted the webhook.
func (t Attempt) Accepted() bool { return t.Status/100 == 2 }

func (t Attempt) timedOut() bool {
	var timeout net.Error
	return errors.Is(t.Err, context.DeadlineExceeded) || errors.As(t.Err, &timeout) && timeout.Timeout()
}

// result is the try's name in metrics.
func (t Attempt) result() string {
	switch {
	case t.Accepted():
		return "ok"
	case t.Status != 0:
		return "status"
	case t.timedOut():
		return "timeout"
	default:
		return "error"
	}
}

// pause says whether to try again after t, the nth try, and when. It uses full jitter, so that
// webhooks that failed together are not retried together.
func (rc *receiver) pause(t Attempt, n int) (time.Duration, bool) {
	switch t.Status {
	case 0, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
	default:
		if t.Status < 500 {
			return 0, false
		}
	}
	if t.RetryAfter > longestPause || errors.Is(t.Err, errUnsigned) {
		return 0, false
	}
	ceiling := min(longestPause, firstPause<<min(n-1, 10))
	return max(t.RetryAfter, rc.jitter(ceiling)), true
}

// failure is the answer to the sender if t, the nth try, was the last. Network errors stay in
// the log: they contain addresses that the sender must not see.
func (t Attempt) failure(w *Webhook, n int, timeout time.Duration) answer {
	a := answer{status: http.StatusBadGateway, Decision: failed, Webhook: w.ID, Tries: n}
	var wrong unusable
	odd := new(wire.AnswerError)
	switch {
	case errors.Is(t.Err, errUnsigned):
		return *busy("usher cannot sign deliveries right now; please send this webhook again")
	case t.Status != 0:
		a.Receiver = &receiversAnswer{t.Status, t.Excerpt}
		a.Error = fmt.Sprintf("the receiver answered %s", strings.TrimSpace(fmt.Sprint(t.Status, " ", http.StatusText(t.Status))))
		if t.RetryAfter > longestPause {
			a.Error += fmt.Sprintf(" and asked to wait %s seconds", seconds(t.RetryAfter))
		}
	case t.timedOut():
		a.status = http.StatusGatewayTimeout
		a.Error = fmt.Sprintf("the receiver did not answer within %v", timeout)
	case errors.As(t.Err, &wrong):
		a.Error = wrong.Error()
	case errors.As(t.Err, &odd):
		a.Error = "the receiver's answer can't be used: " + odd.Error()
	default:
		a.Error = "the receiver could not be reached"
	}
	if n > 1 {
		a.Error += fmt.Sprintf(", on the last of %d tries", n)
	}
	return a
}

func (rc *receiver) logFailure(w *Webhook, n int, t Attempt) {
	attrs := append(w.attrs(), slog.String("receiver", rc.name), slog.Int("try", n), slog.String("result", t.result()))
	if t.Status != 0 {
		attrs = append(attrs, slog.Int("receiver_status", t.Status))
	} else {
		attrs = append(attrs, slog.String("error", t.Err.Error()))
	}
	rc.log.LogAttrs(context.Background(), slog.LevelInfo, "webhook try failed", attrs...)
}

// retryAfter reads the Retry-After header: seconds, or a date. An invalid one is ignored.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if n, err := strconv.ParseUint(value, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(n, 1<<32)) * time.Second // limited, so that it cannot overflow
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return max(0, time.Until(at))
}
