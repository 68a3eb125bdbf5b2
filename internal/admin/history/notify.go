package history

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"usher/internal/admin/status"
	"usher/internal/inbox"
	"usher/internal/wire"
)

// Results of a try to send a notification.
var Results = [...]string{"ok", "status", "timeout", "error"}

const (
	postTimeout = 10 * time.Second
	pauseAfter  = time.Minute // between two messages
	firstRetry  = time.Second
	maxRetry    = 5 * time.Minute
	maxAfter    = time.Hour // of a Retry-After
)

// speech is how notifications fare.
type speech struct {
	posting  bool
	last     time.Time // when the last one of this process went out, by our clock
	notAgain time.Time // no try before
	fails    int       // in a row
	failing  time.Time // since when
	err      error     // of the last try; nil: it went out
}

// notifications describes it. r.mu is held.
func (r *Recorder) notifications() *status.Notifications {
	if r.cfg.URL == nil {
		return nil
	}
	n := &status.Notifications{Last: r.lastSaid, Fails: r.speech.fails}
	if r.speech.err != nil {
		n.Error, n.Since = r.speech.err.Error(), r.speech.failing
	}
	return n
}

// dueNow returns the message that should go out now; nil: none. It counts as being posted.
func (r *Recorder) dueNow() *message {
	if r.cfg.URL == nil {
		return nil
	}
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.speech
	if s.posting || time.Now().Before(s.notAgain) {
		return nil
	}
	if !s.last.IsZero() && time.Since(s.last) < pauseAfter || now.Sub(r.lastSaid).Abs() < pauseAfter {
		return nil
	}
	m := compose(r.cfg.Host, r.mySay(), r.records, now)
	s.posting = m != nil
	return m
}

// mySay returns the records of which this process is to speak: of all, if it speaks for all; else, while
// nobody can agree on who does, its own. r.mu is held.
func (r *Recorder) mySay() []inbox.Trouble {
	agreed := r.shared() && !r.cfg.ReadOnly && !r.readable.IsZero()
	if agreed && r.speaks && time.Since(r.claimed) < claimFor {
		return r.records
	}
	return slices.DeleteFunc(slices.Clone(r.records), func(t inbox.Trouble) bool {
		return agreed || t.Replica != r.cfg.Name && (t.Replica != "" || !r.speaks)
	})
}

// post sends a message, and notes what came of it.
func (r *Recorder) post(ctx context.Context, m *message) error {
	after, result, err := r.send(ctx, m)
	r.cfg.Sent(result)
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.speech
	s.posting, s.err = false, err
	if err != nil {
		if s.fails++; s.fails == 1 {
			s.failing = time.Now().UTC()
			r.cfg.Log.Warn("cannot send a notification, will retry", "err", err)
		}
		if !m.people {
			s.notAgain = time.Now().Add(max(after, min(maxRetry, firstRetry<<min(s.fails-1, 20))))
		}
		return err
	}
	if s.fails > 0 {
		r.cfg.Log.Info("notifications can be sent again", "after", time.Since(s.failing).Round(time.Second))
	}
	s.fails = 0
	s.last, r.lastSaid = time.Now(), now
	s.notAgain = time.Time{}
	for i := range r.records {
		t := &r.records[i]
		switch {
		case slices.Contains(m.begun, t.ID):
			t.Said = now
		case slices.Contains(m.over, t.ID):
			t.SaidOver = now
		default:
			continue
		}
		if r.writes() {
			r.said[t.ID] = true
		}
	}
	return nil
}

// Test sends a message that says that it is a test, or returns why it cannot.
func (r *Recorder) Test(ctx context.Context, who string) error {
	if r.cfg.URL == nil {
		return errNoURL
	}
	r.mu.Lock()
	s := &r.speech
	wait := pauseAfter - min(time.Since(s.last), pauseAfter)
	switch {
	case s.posting:
		r.mu.Unlock()
		return errPosting
	case !s.last.IsZero() && wait > 0:
		r.mu.Unlock()
		return &TooSoonError{wait}
	}
	s.posting = true
	r.mu.Unlock()
	return r.post(ctx, &message{
		people: true,
		kinds:  []string{"test"},
		text: fmt.Sprintf("usher on %s: this is a test, sent by %s. Nothing is wrong because of it.",
			neutral(r.cfg.Host), unlinked(neutral(who))),
	})
}

var (
	errNoURL   = errors.New("there are no notifications: USHER_NOTIFY_URL is not set")
	errPosting = errors.New("a message is being sent just now: try again in some seconds")
)

// A TooSoonError says that a message went out less than a minute ago.
type TooSoonError struct{ Wait time.Duration }

func (e *TooSoonError) Error() string {
	return fmt.Sprintf("a message went out less than a minute ago: try again in %d seconds", int(e.Wait/time.Second)+1)
}

// send posts a message. Its error never has the address, which is a secret. after is when the other side
// wants to be asked again.
func (r *Recorder) send(ctx context.Context, m *message) (after time.Duration, result string, err error) {
	body := new(bytes.Buffer)
	encode := json.NewEncoder(body)
	encode.SetEscapeHTML(false)
	_ = encode.Encode(map[string]string{"text": m.text}) // text is always encoded
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	payload := bytes.NewReader(bytes.TrimSpace(body.Bytes()))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.cfg.URL(), payload)
	if err != nil {
		return 0, "error", errors.New("the address in USHER_NOTIFY_URL cannot be read")
	}
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	req.Header.Set("User-Agent", "usher")
	req.Header.Set("Usher-Trouble", strings.Join(m.kinds, ","))
	req.Header.Set("Usher-Host", r.cfg.Host)
	resp, err := r.roundTrip(req) // follows no redirect
	if err != nil {
		result, err = Why(err)
		return 0, result, err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10))
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		return 0, "ok", nil
	case code >= 300 && code < 400:
		return 0, "status", fmt.Errorf("the other side answered %d, a redirect, which usher does not follow", code)
	default:
		after = min(wire.RetryAfter(resp.Header), maxAfter)
		return after, "status", fmt.Errorf("the other side answered %d", code)
	}
}

// transport is for one message: it goes out once in a while, so no connection is kept, and no memory.
func (r *Recorder) transport() *http.Transport {
	t := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: postTimeout}).DialContext,
		TLSHandshakeTimeout:    postTimeout,
		MaxResponseHeaderBytes: 16 << 10,
		DisableKeepAlives:      true,
		DisableCompression:     true,
	}
	if r.cfg.Proxy != nil {
		t.Proxy = func(req *http.Request) (*url.URL, error) { return r.cfg.Proxy(req.URL) }
	}
	return t
}

// Why says why the other side could not be reached, without the address. result is one of Results.
func Why(err error) (result string, why error) {
	var network net.Error
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	var op *net.OpError
	switch {
	case errors.As(err, &network) && network.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "timeout", fmt.Errorf("no answer within %v", postTimeout)
	case errors.As(err, &certificate), errors.As(err, new(x509.UnknownAuthorityError)):
		return "error", errors.New("usher does not trust the other side's certificate")
	case errors.As(err, &name):
		return "error", errors.New("the name of the host cannot be resolved")
	case errors.As(err, &op) && op.Op == "proxyconnect":
		return "error", errors.New("the proxy in HTTPS_PROXY cannot be reached, or refuses")
	case errors.As(err, &op) && op.Op == "dial":
		return "error", errors.New("the host does not accept a connection")
	}
	return "error", errors.New("the connection broke, or the answer cannot be read")
}
