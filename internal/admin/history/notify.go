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
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"usher/internal/admin/status"
	"usher/internal/inbox"
)

// Results of a try to send a notification.
var Results = [...]string{"ok", "status", "timeout", "error"}

const postTimeout = 10 * time.Second

// A notifier sends notifications. A nil one sends none.
type notifier struct {
	url       func() string
	host      string
	sent      func(result string) // may be nil
	log       *slog.Logger
	roundTrip func(*http.Request) (*http.Response, error) // a test may have another one

	mu      sync.Mutex // guards what follows
	tried   time.Time  // when the last try began
	last    time.Time  // when the last message went out
	failing time.Time  // since when tries fail
	err     error      // of the last try; nil: it went out
}

// may reports whether a message may be sent now: at most one a minute.
func (n *notifier) may(now time.Time) bool {
	if n == nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return now.Sub(n.tried) >= inbox.TroubleSaid
}

// status says how notifications fare. A failed try is forgotten when nothing has had to be said for a while.
func (n *notifier) status(now time.Time) *status.Notifications {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &status.Notifications{Last: n.last}
	if n.err != nil && now.Sub(n.tried) < 3*inbox.TroubleSaid {
		s.Error, s.Since = n.err.Error(), n.failing
	}
	return s
}

// say sends a message about these, and says whether it went out. What could not be said is due again in a minute, as
// long as it is true.
func (n *notifier) say(ctx context.Context, due []inbox.Trouble) bool {
	if len(due) == 0 {
		return false
	}
	began := time.Now()
	result, err := n.send(ctx, compose(n.host, due, began.UTC()))
	if n.sent != nil {
		n.sent(result)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tried = began; err == nil {
		n.last = began
	} else if n.err == nil {
		n.failing = began.UTC()
		n.log.Warn("cannot send a notification, will retry", "err", err)
	}
	n.err = err
	return err == nil
}

// send posts a text. Its error never has the address, which is a secret.
func (n *notifier) send(ctx context.Context, text string) (result string, err error) {
	body := new(bytes.Buffer)
	encode := json.NewEncoder(body)
	encode.SetEscapeHTML(false)
	_ = encode.Encode(map[string]string{"text": text}) // text is always encoded
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	payload := bytes.NewReader(bytes.TrimSpace(body.Bytes()))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.url(), payload)
	if err != nil {
		return "error", errors.New("the address in USHER_NOTIFY_URL cannot be read")
	}
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	req.Header.Set("User-Agent", "usher")
	resp, err := n.roundTrip(req) // follows no redirect
	if err != nil {
		return Why(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10))
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		return "ok", nil
	case code >= 300 && code < 400:
		return "status", fmt.Errorf("the other side answered %d, a redirect, which usher does not follow", code)
	default:
		return "status", fmt.Errorf("the other side answered %d", code)
	}
}

// transport is for one message: it goes out once in a while, so no connection is kept, and no memory.
func transport(proxy func(*url.URL) (*url.URL, error)) *http.Transport {
	t := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: postTimeout}).DialContext,
		TLSHandshakeTimeout:    postTimeout,
		MaxResponseHeaderBytes: 16 << 10,
		DisableKeepAlives:      true,
		DisableCompression:     true,
	}
	if proxy != nil {
		t.Proxy = func(req *http.Request) (*url.URL, error) { return proxy(req.URL) }
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
