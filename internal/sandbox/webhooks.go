package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"usher/webhookgate/signature"
)

// Sender is the sending side of the billing service: tenants whose subscriptions change, a webhook for
// each change, and now and then the same webhook again, as the service's webhook log sends it. It is
// safe for concurrent use. It does not retry, because the service documents no retries.
type Sender struct {
	URLs   []string                         // where webhooks go: each to all of them
	Header http.Header                      // sent with each webhook, such as the gate's token; may be nil
	Sign   func(h http.Header, body []byte) // adds the headers of a signature; may be nil
	Client *http.Client                     // by default one with a timeout of 60 s that follows no redirect

	mu    sync.Mutex
	world *world // guarded by mu
	last  Entry  // without replies, guarded by mu
}

// Entry is a webhook that was sent.
type Entry struct {
	N    int // counts from 1
	Took time.Duration
	What string // in words, such as "Bluebird GmbH: users 5 → 10"
	Body []byte // what was sent; read only

	Replies []Reply // one from each address
	Reply           // the first that is not a success, otherwise the first
}

// Reply is what came back from one address.
type Reply struct {
	To       string `json:"to"`       // host and port: a path may hold a secret
	Status   int    `json:"status"`   // 0 if there was no answer
	Decision string `json:"decision"` // usher's, from its header
	Answer   string `json:"answer"`   // the beginning of the body, or why there was none
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

const excerptSize = 1 << 10

// NewSender returns a sender to these addresses. Equal seeds give equal tenants and equal changes.
func NewSender(seed uint64, to ...string) *Sender {
	return &Sender{
		URLs: to,
		Client: &http.Client{
			// Not the shared one, so that nobody else's connections are in it.
			Transport:     http.DefaultTransport.(*http.Transport).Clone(),
			Timeout:       time.Minute,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		world: newWorld(seed),
	}
}

// Change changes something about a tenant and sends its new snapshot.
func (s *Sender) Change(ctx context.Context) Entry {
	s.mu.Lock()
	t, what := s.world.change()
	body := t.render()
	s.mu.Unlock()
	return s.send(ctx, what, body)
}

// Send sends a body as it is.
func (s *Sender) Send(ctx context.Context, body []byte) Entry {
	return s.send(ctx, "sent by hand", body)
}

// Next sends a change or, every fourth time, the last webhook once more, byte for byte.
func (s *Sender) Next(ctx context.Context) Entry {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	if last.N%4 == 3 {
		return s.send(ctx, fmt.Sprintf("#%d again: %s", last.N, last.What), last.Body)
	}
	return s.Change(ctx)
}

func (s *Sender) send(ctx context.Context, what string, body []byte) Entry {
	s.mu.Lock()
	e := Entry{N: s.last.N + 1, What: what, Body: body}
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
	r.Status, r.Decision = resp.StatusCode, resp.Header.Get("Usher-Decision")
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
