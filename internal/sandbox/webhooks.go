package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Sender is the sending side of the billing service: tenants whose subscriptions change, a webhook for
// each change, and a log from which webhooks can be sent again. It is safe for concurrent use. It does
// not retry, because the service documents no retries.
type Sender struct {
	URL    string       // where webhooks go
	Header http.Header  // sent with each webhook, such as the gate's token; may be nil
	Client *http.Client // by default one with a timeout of 60 s that follows no redirect

	mu    sync.Mutex
	world *world  // guarded by mu
	log   []Entry // guarded by mu
	count int     // of all webhooks that were ever sent, guarded by mu
}

// Entry is a line of the webhook log.
type Entry struct {
	N        int       // counts from 1
	At       time.Time // when it was sent
	Took     time.Duration
	Tenant   string // the tenant's code, where the body has one
	What     string // in words, such as "Acme GmbH: users 5 → 10"
	Status   int    // as answered; 0 if there was no answer
	Header   http.Header
	Answer   string // the beginning of the answer's body, or why there was none
	Body     []byte // what was sent; read only
	ResentOf int    // the N of the entry that this one repeats; 0 for none
}

const (
	logSize     = 500
	excerptSize = 1 << 10
)

// NewSender returns a sender to the URL. Equal seeds give equal tenants and equal changes.
func NewSender(url string, seed uint64) *Sender {
	return &Sender{
		URL: url,
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
	return s.send(ctx, Entry{
		Tenant:   former.Tenant,
		What:     fmt.Sprintf("#%d again: %s", n, former.What),
		Body:     former.Body,
		ResentOf: n,
	})
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

// Tenants returns what each tenant may use: what the receiver should know once every webhook has
// arrived.
func (s *Sender) Tenants() []Tenant {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Tenant
	for _, state := range s.world.tenants {
		t, err := readSnapshot(state.render())
		if err != nil {
			panic(err) // cannot happen: our own rendering
		}
		t.Changed = state.changed
		list = append(list, t)
	}
	slices.SortFunc(list, byLane)
	return list
}

// send logs the entry at once, in the order of sending, and completes it when its answer arrives.
func (s *Sender) send(ctx context.Context, e Entry) (Entry, error) {
	e.At = time.Now()
	s.mu.Lock()
	s.count++
	e.N = s.count
	s.log = keepLast(append(s.log, e), logSize)
	s.mu.Unlock()

	err := s.post(ctx, &e)
	e.Took = time.Since(e.At)
	if err != nil {
		e.Answer = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.log, func(l Entry) bool { return l.N == e.N }); i >= 0 {
		s.log[i] = e
	}
	return e, err
}

// post sends the entry's body and notes the answer in it.
func (s *Sender) post(ctx context.Context, e *Entry) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, bytes.NewReader(e.Body))
	if err != nil {
		return err
	}
	for name, values := range s.Header {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.Client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	excerpt, err := io.ReadAll(io.LimitReader(resp.Body, excerptSize))
	if err != nil {
		return fmt.Errorf("the answer %d ended too early: %w", resp.StatusCode, err)
	}
	e.Status, e.Header = resp.StatusCode, resp.Header
	e.Answer = strings.ToValidUTF8(string(excerpt), "\uFFFD")
	return nil
}
