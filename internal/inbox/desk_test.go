package inbox

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/receiver"
	"usher/internal/testkit"
	"usher/webhookgate"
)

// A taker is a receiver that notes what it gets, and answers as the test has set for each tenant.
type taker struct {
	*receiver.Receiver
	mu       sync.Mutex
	accepted []string // tenant:body
	tries    []aTry
	answers  map[string]func(n int) *http.Response // by tenant, or "" for all others; nil: 200
	count    map[string]int                        // tries of a tenant since its answer was set
	hangs    map[string]chan struct{}              // tries of a tenant wait for it
	delay    time.Duration
	underway int
	most     int // at once
}

type aTry struct {
	tenant, body, id string
	at               time.Time
	header           http.Header
}

// mostAtOnce returns how many tries were under way at once.
func (k *taker) mostAtOnce() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.most
}

func newTaker(name string, places int, platforms ...string) *taker {
	k := &taker{
		answers: make(map[string]func(int) *http.Response),
		count:   make(map[string]int),
		hangs:   make(map[string]chan struct{}),
	}
	k.Receiver = &receiver.Receiver{
		Name:        name,
		Platforms:   platforms,
		URL:         &url.URL{Scheme: "http", Host: name},
		Timeout:     10 * time.Second,
		Concurrency: places,
		Transport:   k,
	}
	return k
}

// RoundTrip is one try. The header X-Tenant names the tenant.
func (k *taker) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	tenant := r.Header.Get("X-Tenant")
	k.mu.Lock()
	k.tries = append(k.tries, aTry{tenant, string(body), r.Header.Get("webhook-id"), time.Now(), r.Header})
	k.underway++
	k.most = max(k.most, k.underway)
	whose := tenant
	if _, ok := k.answers[tenant]; !ok {
		whose = ""
	}
	k.count[whose]++
	answer, n, hang, delay := k.answers[whose], k.count[whose], k.hangs[tenant], k.delay
	k.mu.Unlock()
	defer func() { k.mu.Lock(); k.underway--; k.mu.Unlock() }()
	if hang != nil {
		select {
		case <-hang:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	response := status(200)(n)
	if answer != nil {
		response = answer(n)
	}
	if response == nil {
		return nil, errors.New("connection refused")
	}
	if response.StatusCode/100 == 2 {
		k.mu.Lock()
		k.accepted = append(k.accepted, tenant+":"+string(body))
		k.mu.Unlock()
	}
	return response, nil
}

// status returns an answer with this status for every try. Further arguments are headers.
func status(code int, header ...string) func(int) *http.Response {
	return func(int) *http.Response {
		said := io.NopCloser(strings.NewReader("said so"))
		r := &http.Response{StatusCode: code, Header: make(http.Header), Body: said}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		return r
	}
}

// answers returns the answers for one try after the other: each with a status, or 0 if there is none. The last one
// stays.
func answers(codes ...int) func(int) *http.Response {
	return func(n int) *http.Response {
		code := codes[min(n, len(codes))-1]
		if code == 0 {
			return nil
		}
		return status(code)(n)
	}
}

// unreachable are the answers of a receiver that can't be reached.
var unreachable = answers(0)

// set sets the answers for a tenant from now on, or with "" those for all other tenants; nil: 200.
func (k *taker) set(tenant string, answer func(int) *http.Response) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answers[tenant], k.count[tenant] = answer, 0
	if answer == nil {
		delete(k.answers, tenant)
	}
}

// hang lets all tries of a tenant wait until release is called.
func (k *taker) hang(tenant string) (release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := make(chan struct{})
	k.hangs[tenant] = c
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.hangs[tenant] == c {
			delete(k.hangs, tenant)
			close(c)
		}
	}
}

// got returns the bodies that it has accepted of a tenant, or with "" of all.
func (k *taker) got(tenant string) (all []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, one := range k.accepted {
		if whose, body, _ := strings.Cut(one, ":"); tenant == "" {
			all = append(all, one)
		} else if whose == tenant {
			all = append(all, body)
		}
	}
	return all
}

// tried returns all tries of a tenant, or with "" of all.
func (k *taker) tried(tenant string) (all []aTry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, one := range k.tries {
		if tenant == "" || one.tenant == tenant {
			all = append(all, one)
		}
	}
	return all
}

// A desk is a running inbox with its receiver, for a test.
type desk struct {
	*Inbox
	t       *testing.T
	main    *taker
	cfg     setup
	open    func() engine.Engine
	log     *testkit.Output
	ahead   *atomic.Int64 // how far the database's clock is ahead
	end     func()        // orderly: what is under way finishes
	cut     func()        // what is under way is cut off
	release map[string]func()
	ended   bool
}

// A setup is what a desk is made of.
type setup struct {
	Config
	between intercepted
	ahead   *atomic.Int64 // how far the database's clock is ahead
	timeout time.Duration // of the desk's main receiver, if it is not ten seconds
}

// newDesk starts an inbox. change may change how it is set up; if it sets no receivers, the desk's main one is used.
func newDesk(t *testing.T, open func() engine.Engine, change ...func(*setup)) *desk {
	t.Helper()
	d := &desk{
		t:       t,
		open:    open,
		main:    newTaker(receiver.Main, 32),
		log:     new(testkit.Output),
		release: make(map[string]func()),
	}
	d.cfg.ahead = new(atomic.Int64)
	d.cfg.Config = Config{
		Rules: lane.Rules{
			ParkAfter:   72 * time.Hour,
			MaxBytes:    1 << 30,
			DedupWindow: 10 * time.Minute,
			Jitter:      func(d time.Duration) time.Duration { return d / 1000 },
			Log:         slog.New(slog.NewTextHandler(d.log, nil)),
		},
		Limits:      DefaultLimits,
		ClockOffset: func() time.Duration { return time.Duration(d.ahead.Load()) },
	}
	for _, f := range change {
		f(&d.cfg)
	}
	d.ahead = d.cfg.ahead
	d.main.Timeout = cmp.Or(d.cfg.timeout, d.main.Timeout)
	if d.cfg.Receivers == nil {
		d.cfg.Receivers = receiver.NewSet(d.main.Receiver)
	}
	d.start()
	t.Cleanup(func() {
		d.shut()
		if t.Failed() {
			log := d.log.String()
			t.Logf("the end of the log:\n%s", log[max(0, len(log)-2000):])
		}
	})
	return d
}

// inBubble runs a test on a desk in a bubble, where an hour takes no longer than the events in it: when webhooks are
// tried. Pauses are as long as they can be.
func inBubble(t *testing.T, name string, test func(t *testing.T, d *desk), change ...func(*setup)) {
	t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
		t.Parallel()
		path := newFile(t)
		synctest.Test(t, func(t *testing.T) {
			slowly := func(c *setup) {
				c.Jitter = func(d time.Duration) time.Duration { return d }
			}
			d := newDesk(t, inFile(t, path), append([]func(*setup){slowly}, change...)...)
			time.Sleep(time.Millisecond)
			test(t, d)
		})
	})
}

func (d *desk) start() {
	d.Inbox = New(d.cfg.between.on(d.open()), d.cfg.Config)
	soft, end := context.WithCancel(context.Background())
	hard, cut := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { d.Run(soft, hard) })
	d.cut, d.ended = cut, false
	d.end = func() { end(); wg.Wait(); cut() }
}

// shut ends the inbox at once.
func (d *desk) shut() {
	if d.ended {
		return
	}
	d.ended = true
	d.cut()
	d.end()
	if err := d.Close(); err != nil {
		d.t.Error(err)
	}
}

func (d *desk) restart() { d.shut(); d.start() }

// storing is the configuration of an inbox that only stores what comes.
var storing = Config{
	Rules: lane.Rules{
		Receivers:      receiver.NewSet(),
		StoreUnclaimed: true,
		ParkAfter:      time.Hour,
		MaxBytes:       1 << 30,
		Log:            quiet,
	},
}

// opened opens an inbox until the test ends. Nothing of it is delivered: that is for desks.
func opened(t testing.TB, e engine.Engine, cfg Config) *Inbox {
	s := New(e, cfg)
	t.Cleanup(func() { shut(t, s) })
	<-s.opened
	return s
}

// shut closes an inbox, if it is not closed yet.
func shut(t testing.TB, s *Inbox) {
	if s.EndWaiting(); s.run.Err() == nil {
		check(t, s.Close())
	}
}

// What people do, if no test looks at who they are.
func (d *desk) Redeliver(id int64, force bool) error       { return d.Inbox.Redeliver(id, "", force, nil) }
func (d *desk) Discard(id int64) error                     { return d.Inbox.Discard(id, nil) }
func (d *desk) Accept(id int64, force bool) (int64, error) { return d.Inbox.Accept(id, force, nil) }
func (d *desk) Erase(platform, tenant string) (int, error) {
	return d.Inbox.Erase(platform, tenant, nil)
}
func (d *desk) Pause(p Pause) error {
	return patiently(func() error { return second(d.Inbox.Pause(p, 0, nil)) })
}
func (d *desk) Resume(p Pause) (bool, error) { return d.Inbox.Resume(p, nil) }

// patiently does what may be done twice until a busy machine ends it in time.
func patiently(do func() error) (err error) {
	for range 10 {
		if err = do(); !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return err
}

// little gives the inbox a sixteenth of the memory, so that webhooks that do not fit are quickly made.
func little(c *setup) {
	c.Limits.Bodies /= 16
	c.Limits.PageBytes /= 16
}

var hookIDs atomic.Int64

// hook makes a snapshot of a tenant ("platform/tenant" or "tenant") with this body.
func (d *desk) hook(tenant, body string) *webhookgate.Webhook {
	return aHook(d.cfg.Receivers, tenant, body)
}

// event makes an event of a tenant, or with "" of none: it is no snapshot, and never a duplicate.
func (d *desk) event(tenant, body string) *webhookgate.Webhook {
	w := d.hook(tenant, body)
	w.Type, w.Snapshot = "Other", false
	if tenant == "" {
		w.Lane = webhookgate.LaneName{Type: w.Type}
	}
	return w
}

func aHook(set *receiver.Set, tenant, body string) *webhookgate.Webhook {
	platform := ""
	if p, t, ok := strings.Cut(tenant, "/"); ok {
		platform, tenant = p, t
	}
	return &webhookgate.Webhook{
		ID:       fmt.Sprintf("id-%06d", hookIDs.Add(1)),
		Type:     content.TenantProvisioningChange,
		Lane:     webhookgate.LaneName{Platform: platform, Tenant: tenant},
		Snapshot: true,
		Digest:   sha256.Sum256([]byte(body)),
		Body:     []byte(body),
		Header:   http.Header{"Content-Type": {"application/json"}, "X-Tenant": {tenant}},
		Received: time.Now(), Receiver: set.For(platform),
	}
}

// send takes a webhook in, and returns "+" if it was stored, "=" if it is a duplicate, and else the error.
func (d *desk) send(tenant, body string) string { return d.sendHook(d.hook(tenant, body)) }

// told is send: again as long as a busy machine does not confirm the webhook in time.
func (d *desk) told(tenant, body string) (told string) {
	d.t.Helper()
	late := false
	d.until("told in time", func() bool {
		if told = d.send(tenant, body); late && told == "=" {
			told = "+" // it was stored after all
		}
		late = told == errNotInTime.Error()
		return !late
	})
	return told
}

func (d *desk) sendHook(w *webhookgate.Webhook) string {
	switch duplicateOf, err := d.Store(context.Background(), w); {
	case errors.Is(err, webhookgate.ErrFull):
		return "full"
	case err != nil:
		return err.Error()
	case duplicateOf != "":
		return "="
	}
	return "+"
}

// take sends webhooks, which must all be stored.
func (d *desk) take(tenant string, bodies ...string) {
	d.t.Helper()
	for _, body := range bodies {
		if got := d.told(tenant, body); got != "+" {
			d.t.Fatalf("%s:%s was not taken in: %s", tenant, body, got)
		}
	}
}

var says = testkit.Says

// snapshotOf returns the body of a webhook that says so.
func snapshotOf(tenant string, features ...string) string {
	return `{"type":"TenantProvisioningChange","payload":` + says(tenant, features...) + `}`
}

// hears sends a webhook that says so.
func (d *desk) hears(tenant string, features ...string) {
	d.t.Helper()
	d.want(tenant, d.send(tenant, snapshotOf(tenant, features...)), "+")
}

// list returns a tenant's webhooks, or with "" all, the oldest first.
func (d *desk) list(tenant string) []*lane.Webhook {
	d.t.Helper()
	var all []*lane.Webhook
	check(d.t, patiently(func() (err error) {
		all, err = d.List(context.Background(), Filter{Tenant: tenant})
		return err
	}))
	slices.Reverse(all)
	return all
}

// items returns the webhooks that f selects, newest first, with their content.
func (d *desk) items(f Filter) (all []*lane.Webhook, err error) {
	err = d.Each(context.Background(), f, true, func(item *lane.Webhook) bool {
		all = append(all, item)
		return f.Limit == 0 || len(all) < f.Limit
	})
	return all, err
}

// states returns the states of a tenant's webhooks, the oldest first.
func (d *desk) states(tenant string) string {
	d.t.Helper()
	var all []string
	for _, e := range d.list(tenant) {
		all = append(all, string(e.State))
	}
	return strings.Join(all, " ")
}

// nth returns the id of a tenant's nth webhook, from 1.
func (d *desk) nth(tenant string, n int) int64 {
	d.t.Helper()
	all := d.list(tenant)
	if len(all) < n {
		d.t.Fatalf("%s has only %d webhooks", tenant, len(all))
	}
	return all[n-1].ID
}

// until waits for something.
func (d *desk) until(what string, f func() bool) {
	d.t.Helper()
	for began := time.Now(); !f(); time.Sleep(min(time.Millisecond+time.Since(began)/8, 100*time.Millisecond)) {
		if time.Since(began) > 2*time.Minute {
			d.t.Fatalf("not within two minutes: %s\n%s", what, d.picture())
		}
	}
}

func (d *desk) picture() string {
	var out bytes.Buffer
	for _, e := range d.list("") {
		fmt.Fprintf(&out, "%d %s %s tries %d next %v %s\n", e.ID, e.Tenant, e.State, e.Tries, e.Next, e.Why)
	}
	return out.String() + fmt.Sprintf("%+v", d.Stats())
}

// idle waits until no webhook of a tenant, or with "" of all, waits.
func (d *desk) idle(tenant string) {
	d.t.Helper()
	d.until(cmp.Or(tenant, "all")+" delivered", func() bool { return !strings.Contains(d.states(tenant), "waiting") })
}

// becomes waits until the states of a tenant's webhooks are these, the oldest first.
func (d *desk) becomes(tenant, states string) {
	d.t.Helper()
	d.until(tenant+" is "+states, func() bool { return d.states(tenant) == states })
}

// untilTried waits until so many tries of a tenant, or with "" of all, have begun.
func (d *desk) untilTried(tenant string, count int) {
	d.t.Helper()
	d.until(cmp.Or(tenant, "all")+" tried", func() bool { return len(d.main.tried(tenant)) >= count })
}

// insist sends a webhook until it is taken in, or is a duplicate because it was before.
func (d *desk) insist(tenant, body string) {
	d.t.Helper()
	d.until(body+" is taken in", func() bool {
		got := d.send(tenant, body)
		return got == "+" || got == "="
	})
}

// places gives the desk's receiver so many places.
func (d *desk) places(n int) {
	d.courier.mu.Lock() // it looks at them all the time
	defer d.courier.mu.Unlock()
	d.main.Concurrency = n
}

func (d *desk) want(what, got, want string) {
	d.t.Helper()
	if got != want {
		d.t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// must is like check, for a call that also returns a value: must(f())(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T { t.Helper(); check(t, err); return v }
}

// second drops the value of a call that also returns an error.
func second[T any](_ T, err error) error { return err }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError fails the test unless there is an error that says this.
func wantError(t testing.TB, what string, err error, says string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want an error that says %q", what, err, says)
	}
}

// add is Store without a sender that leaves.
func (d *desk) add(ctx context.Context, w *webhookgate.Webhook) error { return second(d.Store(ctx, w)) }
