package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/sandbox"
)

var soakLength = flag.Duration("soak", 0, "run traffic through faults for so `long`, a minute or more, and see whether all adds up")

// soak runs traffic both ways through one usher for a long time, while tokens expire
// and are revoked, secrets are rotated and the receiver goes down and comes back. At
// the end the counts must balance, and usher must not have grown.
type soak struct {
	*bench
	billing  *sandbox.Billing
	receiver *receiver
	subject  *usher
	secret   string // the file of the client's secret
	token    string // the file of the gate's
	current  atomic.Value
	began    time.Time

	calls, answered atomic.Int64 // outbound
	hooks, taken    atomic.Int64 // inbound: sent, and answered with 200
	mu              sync.Mutex   // guards what follows
	odd             map[string]int
	did             map[string]int
	sent            map[string]int // by tenant: the number of its next webhook
}

const (
	soakCallers = 8
	soakSenders = 8
	soakPace    = 4 * time.Millisecond // of each caller and sender, on top of the answer
	soakSettle  = 20 * time.Second     // until usher is as large as it gets
)

func TestSoak(t *testing.T) {
	if *soakLength == 0 {
		t.Skip("it takes minutes: go test ./bench -run Soak -soak 10m -timeout 20m")
	}
	binary, err := build(t.Context(), t.TempDir(), "usher")
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{
		bench: &bench{dir: t.TempDir(), usher: binary, log: "info"}, began: time.Now(),
		odd: map[string]int{}, did: map[string]int{}, sent: map[string]int{},
	}
	stop, err := s.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	traffic, end := context.WithTimeout(t.Context(), *soakLength)
	defer end()
	var running sync.WaitGroup
	for i := range soakCallers {
		running.Go(func() { s.call(traffic, i) })
	}
	for i := range soakSenders {
		running.Go(func() { s.send(traffic, i) })
	}
	running.Go(func() { s.disturb(traffic) })
	samples := s.watch(traffic)
	running.Wait()
	if _, err := s.subject.drained(t.Context()); err != nil {
		t.Error(err)
	}
	after := s.sample()
	s.report(*soakLength, samples, after)
	if err := s.balance(samples, after); err != nil {
		t.Error(err)
	}
}

// start brings up the service, the receiver and usher. What it returns ends them.
func (s *soak) start(ctx context.Context) (stop func(), err error) {
	s.billing = sandbox.NewBilling(sandbox.Client{
		ID: "soak", Secret: "secret-0", Scopes: []string{"standard:read", "standard:write"}, TokenLife: 5 * time.Second,
	})
	if s.receiver, err = newReceiver(); err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	s.secret, s.token = filepath.Join(s.dir, "client-secret"), filepath.Join(s.dir, "webhook-token")
	s.current.Store("token-0")
	if err := errors.Join(replace(s.secret, "secret-0"), replace(s.token, "token-0")); err != nil {
		return nil, err
	}
	service := httptest.NewServer(s.billing)
	s.subject = &usher{local: ports[0], gate: ports[1], admin: ports[2], inbox: "file:" + filepath.Join(s.dir, "soak.db")}
	s.subject.process, err = s.launch([]string{s.usher}, []string{
		"USHER_BASE_URL=" + service.URL, "USHER_CLIENT_ID=soak", "USHER_CLIENT_SECRET_FILE=" + s.secret,
		"USHER_LISTEN=" + s.subject.local, "USHER_WEBHOOK_LISTEN=" + s.subject.gate, "USHER_ADMIN_LISTEN=" + s.subject.admin,
		"USHER_WEBHOOK_FORWARD_URL=http://" + s.receiver.address, "USHER_WEBHOOK_TOKEN_FILE=" + s.token,
		"USHER_WEBHOOK_INBOX=" + s.subject.inbox, "USHER_LOG_LEVEL=" + s.log,
	})
	if err != nil {
		return nil, err
	}
	stop = func() { s.subject.stop(); s.receiver.down(); service.Close() }
	if err := s.subject.ready(ctx); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// replace writes a file as a whole, so that nobody reads half of it.
func replace(path, content string) error {
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// post sends a request and reads its answer to the end.
func post(client *http.Client, url, token string, body []byte) (status int, answer string, err error) {
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("X-Webhook-Token", token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// call is one caller. Whatever happens to tokens and secrets, all that it should ever
// see is its answer.
func (s *soak) call(ctx context.Context, i int) {
	client := &http.Client{Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	for n := 0; ctx.Err() == nil; n++ {
		query := fmt.Appendf(nil, `{"query":"query($n: Int){ accounts(limit: $n) { id } }","variables":{"n":%d,"caller":%d}}`, n%5, i)
		s.calls.Add(1)
		status, answer, err := post(client, "http://"+s.subject.local+"/graphql", "", query)
		switch {
		case err != nil:
			s.strange("call: " + err.Error())
		case status != http.StatusOK || strings.Count(answer, `"id"`) != n%5:
			s.strange(fmt.Sprintf("call: %d %.120s", status, answer))
		default:
			s.answered.Add(1)
		}
		time.Sleep(soakPace)
	}
}

// send is one sender, with tenants of its own. What is not taken it sends again, as
// the billing service's webhook log lets one do.
func (s *soak) send(ctx context.Context, i int) {
	client := &http.Client{Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	var body bytes.Buffer
	for n := 0; ctx.Err() == nil; n++ {
		tenant := fmt.Sprintf("soak-%d-%d", i, n%tenantsEach)
		s.mu.Lock()
		number := s.sent[tenant]
		s.mu.Unlock()
		body.Reset()
		writeBody(&body, "crm", tenant, number)
		for {
			s.hooks.Add(1)
			status, answer, err := post(client, "http://"+s.subject.gate+"/webhooks", s.current.Load().(string), body.Bytes())
			if err == nil && status == http.StatusOK {
				break
			}
			s.strange(fmt.Sprintf("webhook: %d %.120s %v", status, answer, err))
			time.Sleep(100 * time.Millisecond)
		}
		s.taken.Add(1)
		s.mu.Lock()
		s.sent[tenant]++
		s.mu.Unlock()
		time.Sleep(soakPace)
	}
}

func (s *soak) strange(what string) { s.mu.Lock(); defer s.mu.Unlock(); s.odd[what]++ }
func (s *soak) note(what string)    { s.mu.Lock(); defer s.mu.Unlock(); s.did[what]++ }

// disturb does, in turns of 3 s, what happens to an usher in a year.
func (s *soak) disturb(ctx context.Context) {
	wait := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	for n := 1; ctx.Err() == nil; n++ {
		wait(3 * time.Second)
		switch n % 5 {
		case 0:
			s.note("tokens revoked")
			s.billing.Revoke()
		case 1:
			s.note("client secret rotated")
			secret := fmt.Sprint("secret-", n)
			s.billing.EditClient("soak", func(c *sandbox.Client) { c.Secret = secret })
			_ = replace(s.secret, secret)
		case 2:
			s.note("webhook secret rotated")
			old, fresh := s.current.Load().(string), fmt.Sprint("token-", n)
			_ = replace(s.token, old+","+fresh)
			wait(5 * time.Second) // until usher has read it
			s.current.Store(fresh)
			wait(time.Second) // what was on its way
			_ = replace(s.token, fresh)
		case 3:
			s.note("receiver down for 2 s")
			s.receiver.down()
			wait(2 * time.Second)
			if err := s.receiver.up(); err != nil {
				s.strange(err.Error())
			}
		case 4:
			s.note("receiver restarted")
			s.receiver.down()
			if err := s.receiver.up(); err != nil {
				s.strange(err.Error())
			}
		}
	}
}

// balance says what does not add up.
func (s *soak) balance(samples []soakSample, after soakSample) error {
	var errs []error
	if a, c := s.answered.Load(), s.calls.Load(); a != c {
		errs = append(errs, fmt.Errorf("%d calls, but %d right answers", c, a))
	}
	if d, n := s.receiver.delivered.Load(), s.taken.Load(); d != n {
		errs = append(errs, fmt.Errorf("%d webhooks answered with 200, but %d delivered", n, d))
	}
	for tenant, n := range s.sent {
		if lacking := lacks(s.receiver, tenant, n); lacking > 0 {
			errs = append(errs, fmt.Errorf("%s: %d webhooks lost", tenant, lacking))
		}
	}
	if n := s.receiver.disorder.Load() + s.receiver.strange.Load(); n > 0 {
		errs = append(errs, fmt.Errorf("%d webhooks out of order or unreadable", n))
	}
	return errors.Join(append(errs, grown(samples, after))...)
}

// report prints what was seen.
func (s *soak) report(length time.Duration, samples []soakSample, after soakSample) {
	fmt.Printf("soak of %v\n\ncalls              %d, answered rightly %d\nwebhooks           %d sent, %d answered 200, %d delivered, %d of those more than once\n",
		length, s.calls.Load(), s.answered.Load(), s.hooks.Load(), s.taken.Load(), s.receiver.delivered.Load(), s.receiver.repeats.Load())
	fmt.Printf("token requests     %d\n", s.billing.TokenRequests())
	for _, what := range slices.Sorted(maps.Keys(s.did)) {
		fmt.Printf("%-24s %d times\n", what, s.did[what])
	}
	for _, what := range slices.Sorted(maps.Keys(s.odd)) {
		fmt.Printf("odd: %d times %s\n", s.odd[what], what)
	}
	fmt.Printf("\n%8s %10s %10s %10s %12s %12s\n", "time", "memory", "mapped", "heap", "goroutines", "descriptors")
	for _, p := range append(samples, after) {
		fmt.Printf("%8v %8.1fMB %8.1fMB %8.1fMB %12.0f %12.0f\n", p.at.Round(time.Second),
			float64(p.memory)/1e6, float64(p.mapped)/1e6, p.heap/1e6, p.goroutines, p.files)
	}
}

// lacks is how many of a tenant's first n webhooks have not come.
func lacks(rc *receiver, tenant string, n int) int {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	a := rc.tenants[tenant]
	if a == nil {
		return n
	}
	lacking := max(0, n-a.next)
	for i := range a.missing {
		if i < n {
			lacking++
		}
	}
	return lacking
}

// soakSample is how large usher is at a time, by its own metrics.
type soakSample struct {
	at                      time.Duration
	memory, mapped          int64 // its own; and what is mapped of the inbox, which grows
	heap, goroutines, files float64
}

// watch samples usher until ctx ends: twenty times, once it has settled.
func (s *soak) watch(ctx context.Context) (samples []soakSample) {
	deadline, _ := ctx.Deadline()
	every := max((time.Until(deadline)-soakSettle)/20, time.Second)
	wait := soakSettle
	for {
		select {
		case <-ctx.Done():
			return samples
		case <-time.After(wait):
			samples = append(samples, s.sample())
			wait = every
		}
	}
}

// sample reads usher's metrics. What can't be read is zero, and shows in the report.
func (s *soak) sample() soakSample {
	p := soakSample{at: time.Since(s.began), memory: statusOf(s.subject.pid(), "RssAnon"), mapped: statusOf(s.subject.pid(), "RssFile")}
	p.heap, _ = s.subject.metric("go_memstats_heap_inuse_bytes")
	p.goroutines, _ = s.subject.metric("go_goroutines")
	p.files, _ = s.subject.metric("process_open_fds")
	return p
}

// grown compares the last quarter of a run with its first, by what is usual in each:
// whoever leaks a little with each call or webhook would by then have leaked a lot,
// while an outage that a sample happens to see passes. Memory may differ by a fifth and
// 4 MB, which is the collector's rhythm, the counts by a few connections.
func grown(samples []soakSample, after soakSample) error {
	n := len(samples) / 4
	if n < 3 {
		return errors.New("too short to tell whether usher grows: take a minute or more")
	}
	var errs []error
	check := func(what string, of func(soakSample) float64, factor, slack float64) {
		first, last := median(samples[:n], of), median(samples[len(samples)-n:], of)
		if last > first*factor+slack {
			errs = append(errs, fmt.Errorf("%s grew from %.0f to %.0f", what, first, last))
		}
	}
	check("memory", func(p soakSample) float64 { return float64(p.memory) }, 1.2, 4<<20)
	check("goroutines", func(p soakSample) float64 { return p.goroutines }, 1.1, 20)
	check("descriptors", func(p soakSample) float64 { return p.files }, 1.1, 10)
	most := 0.0
	for _, p := range samples {
		most = max(most, p.goroutines)
	}
	if after.goroutines > most {
		errs = append(errs, fmt.Errorf("%.0f goroutines when all was done, %.0f at most before", after.goroutines, most))
	}
	return errors.Join(errs...)
}
