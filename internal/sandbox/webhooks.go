package sandbox

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graph-gophers/graphql-go"

	"usher/internal/signature"
)

// Sender sends the webhooks of the billing service, as the service does: it signs each, waits 5 s for an answer, tries
// twice, and then drops the webhook, which is only in the log from then on. It has tenants whose subscriptions change,
// and sends a webhook for each change. Sometimes it sends the last webhook again, as somebody who uses the service's
// webhook log. It is safe for concurrent use.
type Sender struct {
	URLs  []string // each webhook goes to all of them
	Token string   // sent as Authorization: Bearer; may be empty

	// SigningKey signs the body: hex HMAC-SHA1 in X-Bunny-Signature. With a key that begins with "whsec_" a webhook
	// carries the headers of Standard Webhooks instead, as usher signs for a receiver. May be empty.
	SigningKey string
	Client     *http.Client // by default one with a timeout of 5 s that follows no redirect
	Attempts   int          // at a snapshot, by default 2

	forge bool // sign another body than the one that is sent
	log   *webhookLog
	book  *book

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

// Reply is the answer from one URL, to the last attempt.
type Reply struct {
	To       string `json:"to"`       // host and port, without the path: that may hold a secret
	Status   int    `json:"status"`   // 0 if there was no answer
	Decision string `json:"decision"` // the header Usher-Decision
	Answer   string `json:"answer"`   // the beginning of the body, or why there is no answer
	Attempts int    `json:"attempts"`

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

const (
	excerptSize    = 16 << 10
	serviceTimeout = 5 * time.Second // of each attempt
)

// NewSender returns a sender to these URLs. Senders with the same seed have the same tenants and changes.
func NewSender(seed uint64, urls ...string) *Sender {
	return &Sender{
		URLs: urls,
		Client: &http.Client{
			// A transport of its own: http.DefaultTransport may have idle connections of other code.
			Transport:     http.DefaultTransport.(*http.Transport).Clone(),
			Timeout:       serviceTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		Attempts: 2,
		log:      &webhookLog{limit: maxLog},
		book:     &book{places: make(map[[2]string]int)},
		world:    newWorld(seed),
	}
}

// platforms returns what is configured in the service: the sandbox's own two platforms, with the first URL.
func (s *Sender) platforms() (all []*Platform) {
	setting := func(value string) *string {
		if value == "" {
			return nil
		}
		return &value
	}
	to := ""
	if len(s.URLs) > 0 {
		to = s.URLs[0]
	}
	for _, p := range []platformRecord{crm, docs} {
		all = append(all, &Platform{
			graphql.ID(fmt.Sprint(p.ID)), &p.Code, &p.Name, setting(to), setting(s.SigningKey), setting(s.Token), new(true), new(true),
		})
	}
	return all
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
	s.book.put(body)
	return s.send(ctx, what, body)
}

// Ask asks the receiver whether a purchase may be made, as the service does at checkout: once.
func (s *Sender) Ask(ctx context.Context, state State) SentWebhook {
	return s.send(ctx, "checkout: "+state.String(), state.checkout())
}

// lose makes a change whose webhook is never sent: it is in the log alone. The last webhook is not sent again after
// it: that would say that the tenant is back in its former state.
func (s *Sender) lose(body []byte) {
	s.mu.Lock()
	s.last.Body = nil
	s.mu.Unlock()
	s.book.put(body)
	for _, to := range s.URLs {
		s.log.add(to, body, nil)
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
		all.Go(func() { e.Replies[i] = s.deliver(ctx, to, body) })
	}
	all.Wait()
	e.Took = time.Since(began)
	e.Reply = e.Replies[max(0, slices.IndexFunc(e.Replies, func(r Reply) bool { return !r.OK() }))]
	return e
}

// deliver makes the service's attempts at one URL. What comes of them is in the log.
func (s *Sender) deliver(ctx context.Context, to string, body []byte) (r Reply) {
	attempts := s.Attempts
	if onceOnly(body) {
		attempts = 1
	}
	header := s.header(body)
	event := s.log.add(to, body, header)
	for n := 1; n <= attempts && !r.OK() && ctx.Err() == nil; n++ {
		r = s.post(ctx, to, header, body)
		r.Attempts = n
		s.log.answered(event, r.Status, r.Answer)
	}
	return r
}

// onceOnly reports whether the service tries a webhook only once: a question at checkout, and the test button.
func onceOnly(body []byte) bool {
	var e struct {
		Type    string
		Payload struct{ Tenant struct{ Code string } }
	}
	err := json.Unmarshal(body, &e)
	return err == nil && (e.Type == checkoutType || e.Payload.Tenant.Code == TestTenant)
}

// header returns what a webhook is sent with.
func (s *Sender) header(body []byte) http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	if s.Token != "" {
		h.Set("Authorization", "Bearer "+s.Token)
	}
	if s.forge {
		body = []byte("{}")
	}
	if key, err := signature.ParseKey(s.SigningKey); strings.HasPrefix(s.SigningKey, standardPrefix) && err == nil {
		signature.Stamp(h, "msg_"+rand.Text(), time.Now(), body, key)
	} else if s.SigningKey != "" {
		mac := hmac.New(sha1.New, []byte(s.SigningKey))
		mac.Write(body)
		h.Set("X-Bunny-Signature", hex.EncodeToString(mac.Sum(nil)))
	}
	return h
}

const standardPrefix = "whsec_"

// CheckSigningKey returns what is wrong with a key for [Sender.SigningKey].
func CheckSigningKey(key string) error {
	if !strings.HasPrefix(key, standardPrefix) {
		return nil
	}
	_, err := signature.ParseKey(key)
	return err
}

func (s *Sender) post(ctx context.Context, to string, header http.Header, body []byte) Reply {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return Reply{To: to, Answer: err.Error()}
	}
	req.Header = header.Clone()
	r := Reply{To: req.URL.Host}
	resp, err := s.Client.Do(req)
	if err != nil {
		if request, ok := errors.AsType[*url.Error](err); ok {
			err = request.Err // without the URL: its path may hold a secret
		}
		network, _ := errors.AsType[*net.OpError](err)
		_, distrusted := errors.AsType[*tls.CertificateVerificationError](err)
		r.Answer, r.unreached = err.Error(), distrusted || network != nil && network.Op == "dial"
		if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() && ctx.Err() == nil && !r.unreached {
			r.Answer = fmt.Sprintf("it took longer than %v", s.Client.Timeout)
		}
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
