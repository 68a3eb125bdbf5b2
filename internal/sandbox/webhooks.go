package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"usher/internal/signature"
)

// Sender sends the webhooks of the billing service. It has tenants whose subscriptions change, and sends a
// webhook for each change. Sometimes it sends the last webhook again, as somebody who uses the service's
// webhook log. It does not retry, because the service documents no retries. It is safe for concurrent use.
type Sender struct {
	URLs   []string                         // each webhook goes to all of them
	Header http.Header                      // sent with each webhook, such as the gate's token; may be nil
	Sign   func(h http.Header, body []byte) // adds the headers of a signature; may be nil
	Client *http.Client                     // by default one with a timeout of 60 s that follows no redirect

	// Changed is called with each new snapshot of a tenant, before it is sent; may be nil. What
	// is sent again is not new.
	Changed func(body []byte)

	mu    sync.Mutex
	world *world      // guarded by mu
	last  SentWebhook // without replies, guarded by mu
}

// SentWebhook is a webhook that was sent, with the answers to it.
type SentWebhook struct {
	N       int // its number, from 1
	Took    time.Duration
	Summary string // such as "Bluebird GmbH: users 5 → 10"
	Body    []byte // do not change it

	Replies []Reply // one from each URL
	Reply           // the first reply that is not a success, or else the first one
}

// Reply is the answer from one URL.
type Reply struct {
	To       string `json:"to"`       // host and port, without the path: that may hold a secret
	Status   int    `json:"status"`   // 0 if there was no answer
	Decision string `json:"decision"` // the header Usher-Decision
	Answer   string `json:"answer"`   // the beginning of the body, or why there is no answer

	unreached bool // there was no connection
}

// OK reports whether the receiver has the webhook.
func (r Reply) OK() bool { return r.Status/100 == 2 }

// String returns the status and usher's decision, or why there is no answer.
func (r Reply) String() string {
	if r.Status == 0 {
		return "no answer: " + r.Answer
	}
	return strings.TrimSpace(fmt.Sprint(r.Status, " ", r.Decision))
}

const excerptSize = 1 << 10

// NewSender returns a sender to these URLs. Senders with the same seed have the same tenants and changes.
func NewSender(seed uint64, urls ...string) *Sender {
	return &Sender{
		URLs: urls,
		Client: &http.Client{
			// A transport of its own: http.DefaultTransport may have idle connections of other code.
			Transport:     http.DefaultTransport.(*http.Transport).Clone(),
			Timeout:       time.Minute,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		world: newWorld(seed),
	}
}

// Change changes something about a tenant, and sends the tenant's new snapshot.
func (s *Sender) Change(ctx context.Context) SentWebhook {
	s.mu.Lock()
	t, what := s.world.change()
	body := t.render()
	s.mu.Unlock()
	return s.change(ctx, what, body)
}

// Send sends a body as it is.
func (s *Sender) Send(ctx context.Context, body []byte) SentWebhook {
	return s.change(ctx, "sent by hand", body)
}

func (s *Sender) change(ctx context.Context, what string, body []byte) SentWebhook {
	if s.Changed != nil {
		s.Changed(body)
	}
	return s.send(ctx, what, body)
}

// lose makes a change whose webhook is never sent. The last webhook is not sent again after it: that would say that
// the tenant is back in its former state.
func (s *Sender) lose(body []byte) {
	s.mu.Lock()
	s.last.Body = nil
	s.mu.Unlock()
	if s.Changed != nil {
		s.Changed(body)
	}
}

// Next sends a change or, every fourth time, the same bytes as the last time.
func (s *Sender) Next(ctx context.Context) SentWebhook {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	if last.N%4 == 3 && last.Body != nil {
		return s.send(ctx, fmt.Sprintf("#%d again: %s", last.N, last.Summary), last.Body)
	}
	return s.Change(ctx)
}

func (s *Sender) send(ctx context.Context, what string, body []byte) SentWebhook {
	s.mu.Lock()
	e := SentWebhook{N: s.last.N + 1, Summary: what, Body: body}
	s.last = e
	s.mu.Unlock()

	began := time.Now()
	e.Replies = make([]Reply, len(s.URLs))
	var all sync.WaitGroup
	for i, to := range s.URLs {
		all.Go(func() { e.Replies[i] = s.post(ctx, to, body) })
	}
	all.Wait()
	e.Took = time.Since(began)
	e.Reply = e.Replies[max(0, slices.IndexFunc(e.Replies, func(r Reply) bool { return !r.OK() }))]
	return e
}

func (s *Sender) post(ctx context.Context, to string, body []byte) Reply {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return Reply{To: to, Answer: err.Error()}
	}
	maps.Copy(req.Header, s.Header)
	req.Header.Set("Content-Type", "application/json")
	if s.Sign != nil {
		s.Sign(req.Header, body)
	}
	r := Reply{To: req.URL.Host}
	resp, err := s.Client.Do(req)
	if err != nil {
		if request, ok := errors.AsType[*url.Error](err); ok {
			err = request.Err // without the URL: its path may hold a secret
		}
		network, _ := errors.AsType[*net.OpError](err)
		_, distrusted := errors.AsType[*tls.CertificateVerificationError](err)
		r.Answer, r.unreached = err.Error(), distrusted || network != nil && network.Op == "dial"
		return r
	}
	defer resp.Body.Close()
	excerpt, err := io.ReadAll(io.LimitReader(resp.Body, excerptSize))
	if err != nil {
		r.Answer = fmt.Sprintf("the answer %d ended too early: %v", resp.StatusCode, err)
		return r
	}
	r.Status, r.Decision = resp.StatusCode, resp.Header.Get("Usher-Decision")
	r.Answer = strings.ToValidUTF8(string(excerpt), "\uFFFD")
	return r
}

// Signer returns a function that signs webhooks, for [Sender.Sign]: as the service does, in X-Bunny-Signature,
// or, if standard, with the headers of Standard Webhooks. A secret for these is "whsec_" and the key in base64.
func Signer(secret string, standard bool) (func(http.Header, []byte), error) {
	if !standard {
		hmac, _ := signature.ByName("sha1")
		return func(h http.Header, body []byte) { h.Set("X-Bunny-Signature", hmac.Sign(secret, body)) }, nil
	}
	key, err := signature.ParseKey(secret)
	return func(h http.Header, body []byte) {
		signature.Stamp(h, "msg_"+rand.Text(), time.Now(), body, key)
	}, err
}
