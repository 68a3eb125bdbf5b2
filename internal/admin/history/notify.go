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
	"time"

	"usher/internal/admin/status"
	"usher/internal/inbox"
)

// Results of a try to send a notification.
var Results = [...]string{"ok", "status", "timeout", "error"}

const postTimeout = 10 * time.Second

// speech is how notifications fare.
type speech struct {
	tried   time.Time // when the last try began
	last    time.Time // when the last message went out
	failing time.Time // since when tries fail
	err     error     // of the last try; nil: it went out
}

// notifications describes it. A failed try is forgotten when nothing has had to be said for a while. r.mu is held.
func (r *Recorder) notifications(now time.Time) *status.Notifications {
	if r.cfg.URL == nil {
		return nil
	}
	n := &status.Notifications{Last: r.speech.last}
	if r.speech.err != nil && now.Sub(r.speech.tried) < 3*inbox.TroubleSaid {
		n.Error, n.Since = r.speech.err.Error(), r.speech.failing
	}
	return n
}

// say sends a message about these, and says whether it went out. What could not be said is due again in a minute, as
// long as it is true.
func (r *Recorder) say(ctx context.Context, due []inbox.Trouble) bool {
	if len(due) == 0 {
		return false
	}
	began := time.Now()
	result, err := r.send(ctx, compose(r.cfg.Host, due, began.UTC()))
	r.cfg.Sent(result)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.speech
	if s.tried = began; err == nil {
		s.last = began
	} else if s.err == nil {
		s.failing = began.UTC()
		r.cfg.Log.Warn("cannot send a notification, will retry", "err", err)
	}
	s.err = err
	return err == nil
}

// send posts a text. Its error never has the address, which is a secret.
func (r *Recorder) send(ctx context.Context, text string) (result string, err error) {
	body := new(bytes.Buffer)
	encode := json.NewEncoder(body)
	encode.SetEscapeHTML(false)
	_ = encode.Encode(map[string]string{"text": text}) // text is always encoded
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	payload := bytes.NewReader(bytes.TrimSpace(body.Bytes()))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.cfg.URL(), payload)
	if err != nil {
		return "error", errors.New("the address in USHER_NOTIFY_URL cannot be read")
	}
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	req.Header.Set("User-Agent", "usher")
	resp, err := r.roundTrip(req) // follows no redirect
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
