package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"usher/webhookgate/signature"
)

// Sender is the sending side of the billing service: tenants whose subscriptions change, a webhook for
// each change, and a log from which webhooks can be sent again. It is safe for concurrent use. It does
// not retry, because the service documents no retries.
type Sender struct {
	URLs   []string                         // where webhooks go: each to all of them
	Header http.Header                      // sent with each webhook, such as the gate's token; may be nil
	Sign   func(h http.Header, body []byte) // adds the headers of a signature; may be nil
	Client *http.Client                     // by default one with a timeout of 60 s that follows no redirect

	mu    sync.Mutex
	world *world  // guarded by mu
	log   []Entry // guarded by mu
	count int     // of all webhooks that were ever sent, guarded by mu
}

// Entry is a line of the webhook log.
type Entry struct {
	N      int       // counts from 1
	At     time.Time // when it was sent
	Took   time.Duration
	Tenant string // the tenant's code, where the body has one
	What   string // in words, such as "Bluebird GmbH: users 5 → 10"
	Body   []byte // what was sent; read only

	Replies []Reply // one from each address
	Reply           // the first that is not a success, otherwise the first
}

// Reply is what came back from one address.
type Reply struct {
	To       string      `json:"to"`       // host and port: a path may hold a secret
	Status   int         `json:"status"`   // 0 if there was no answer
	Decision string      `json:"decision"` // usher's, from its header
	Answer   string      `json:"answer"`   // the beginning of the body, or why there was none
	Header   http.Header `json:"-"`
}

// OK reports whether the receiver has the webhook.
func (r Reply) OK() bool { return r.Status/100 == 2 }

// String says it in a few words.
func (r Reply) String() string {
	if r.Status == 0 {
		return "no answer: " + r.Answer
	}
	return strings.TrimSpace(fmt.Sprint(r.Status, " ", r.Decision))
}

const (
	logSize     = 500
	excerptSize = 1 << 10
)

// NewSender returns a sender to an address. Equal seeds give equal tenants and equal changes.
func NewSender(to string, seed uint64) *Sender {
	return &Sender{
		URLs: []string{to},
		Client: &http.Client{
			// Not the shared one, so that nobody else's connections are in it.
			Transport:     http.DefaultTransport.(*http.Transport).Clone(),
			Timeout:       time.Minute,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		world: newWorld(seed),
	}
}

// Change changes something about a tenant and sends its new snapshot. It returns an error only if
// there was no answer, whatever the status.
func (s *Sender) Change(ctx context.Context) (Entry, error) {
	s.mu.Lock()
	t, what := s.world.change()
	e := Entry{Tenant: t.record.Code, What: what, Body: t.render()}
	s.mu.Unlock()
	return s.send(ctx, e)
}

// Send sends a body as it is.
func (s *Sender) Send(ctx context.Context, body []byte) (Entry, error) {
	t, _ := readSnapshot(body) // the body may be invalid on purpose
	return s.send(ctx, Entry{Tenant: t.Code, What: "sent by hand", Body: bytes.Clone(body)})
}

// Resend sends the n-th webhook again, byte for byte, as the service's webhook log does.
func (s *Sender) Resend(ctx context.Context, n int) (Entry, error) {
	s.mu.Lock()
	i := slices.IndexFunc(s.log, func(e Entry) bool { return e.N == n })
	var former Entry
	if i >= 0 {
		former = s.log[i]
	}
	s.mu.Unlock()
	if i < 0 {
		return Entry{}, fmt.Errorf("webhook %d is not in the log", n)
	}
	return s.send(ctx, Entry{Tenant: former.Tenant, What: fmt.Sprintf("#%d again: %s", n, former.What), Body: former.Body})
}

// Next sends a change or, every fourth time, the last webhook once more. It returns an error only if
// there was no answer.
func (s *Sender) Next(ctx context.Context) (Entry, error) {
	s.mu.Lock()
	last := s.count
	s.mu.Unlock()
	if last%4 == 3 {
		return s.Resend(ctx, last)
	}
	return s.Change(ctx)
}

// Log returns the last 500 webhooks in the order in which they were sent. One without an answer so far
// has status 0.
func (s *Sender) Log() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// send logs the entry at once, in the order of sending, and completes it when its answers arrive.
func (s *Sender) send(ctx context.Context, e Entry) (Entry, error) {
	e.At = time.Now()
	s.mu.Lock()
	s.count++
	e.N = s.count
	s.log = keepLast(append(s.log, e), logSize)
	s.mu.Unlock()

	e.Replies = make([]Reply, len(s.URLs))
	var all sync.WaitGroup
	for i, to := range s.URLs {
		all.Go(func() { e.Replies[i] = s.post(ctx, to, e.Body) })
	}
	all.Wait()
	e.Took = time.Since(e.At)
	e.Reply = e.Replies[max(0, slices.IndexFunc(e.Replies, func(r Reply) bool { return !r.OK() }))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.log, func(l Entry) bool { return l.N == e.N }); i >= 0 {
		s.log[i] = e
	}
	if e.Status == 0 {
		return e, errors.New(e.Answer)
	}
	return e, nil
}

func (s *Sender) post(ctx context.Context, to string, body []byte) Reply {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return Reply{To: to, Answer: err.Error()}
	}
	for name, values := range s.Header {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	req.Header.Set("Content-Type", "application/json")
	if s.Sign != nil {
		s.Sign(req.Header, body)
	}
	r := Reply{To: req.URL.Host}
	resp, err := s.Client.Do(req)
	if err != nil {
		if request := new(url.Error); errors.As(err, &request) {
			err = request.Err // without the address, which may hold a secret
		}
		r.Answer = err.Error()
		return r
	}
	defer resp.Body.Close()
	excerpt, err := io.ReadAll(io.LimitReader(resp.Body, excerptSize))
	if err != nil {
		r.Answer = fmt.Sprintf("the answer %d ended too early: %v", resp.StatusCode, err)
		return r
	}
	r.Status, r.Header, r.Decision = resp.StatusCode, resp.Header, resp.Header.Get("Usher-Decision")
	r.Answer = strings.ToValidUTF8(string(excerpt), "\uFFFD")
	return r
}

// Signer returns what signs a webhook as the gate checks it: an HMAC of the body in X-Signature or, if
// standard, the headers of Standard Webhooks. Then the secret is "whsec_" and the key in base64.
func Signer(secret string, standard bool) (func(http.Header, []byte), error) {
	if !standard {
		hmac, _ := signature.ByName("sha256")
		return func(h http.Header, body []byte) { h.Set("X-Signature", hmac.Sign(secret, body)) }, nil
	}
	key, err := signature.ParseKey(secret)
	return func(h http.Header, body []byte) {
		signature.Stamp(h, key, "msg_"+rand.Text(), time.Now(), body)
	}, err
}
