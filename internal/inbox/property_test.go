package inbox

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// checkWorlds tries so many worlds, each with the places that build gives it. What is
// expected has to come up at all: a test in which nothing is parked proves nothing.
func checkWorlds(t *testing.T, checks int, build func(*rapid.T, *world) opener, expected ...string) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		f.Value.Set(strconv.Itoa(checks)) // rapid's own number would let a broken inbox pass now and then
		defer f.Value.Set(f.DefValue)
	}
	var seen sync.Map
	rapid.Check(t, func(rt *rapid.T) {
		rapid.SyncTest(rt, func(rt *rapid.T) {
			w := newWorld(rt, build)
			defer w.end()
			for range rapid.IntRange(1, 40).Draw(rt, "steps") {
				w.step(rt)
			}
			w.calm()
			w.judge(rt, &seen)
		})
	})
	if testing.Short() { // in so few worlds something may be missing by chance
		return
	}
	for _, what := range expected {
		if _, ok := seen.Load(what); !ok && !t.Failed() {
			t.Errorf("never seen: %s", what)
		}
	}
}

const (
	testWindow   = time.Minute
	testTimeout  = 2 * time.Second
	testMaxAge   = 10 * time.Minute
	testTries    = 3
	testDisk     = 3 * time.Millisecond // before a commit, and once more after it
	testWire     = 50 * time.Millisecond
	testPatience = time.Second     // of senders
	testLease    = 5 * time.Second // who is cut off delivers on for so long, at most
	testAsking   = 5 * time.Second // who asks another one gives up after so long
	testPause    = 5 * time.Minute // the longest that anything waits for its next try
	testSettled  = 20*time.Millisecond + 8*testDisk
)

// An opener is how a world's processes keep their inbox.
type opener interface {
	places() int
	open(p *place, cfg Config) (*Inbox, error)
	crash(p *place) // what the process knew is gone, but for what is stored
	steps() []string
	trouble(rt *rapid.T, p *place, step string)
	settled() time.Duration // a crash may undo what was noted within that time
	several() bool          // who has the inbox learns of it from others, or late
	end()
}

// A world is an inbox, of one process or of several, who sends to it, and what is
// behind it.
type world struct {
	cfg     Config
	dir     string
	tenants []string
	jitter  time.Duration // in percent of the ceiling
	senders sync.WaitGroup
	opener
	places []*place

	mu         sync.Mutex
	crashes    []time.Time
	troubled   bool // some place was, and what was stuck there may get in the way of others
	healthy    bool
	arrivals   []*arrival          // in order
	byID       map[string]*arrival // by webhook-id
	tries      []*attempt          // in the order of their beginnings
	underway   map[string]int      // by tenant
	latest     map[holding]string
	routes     map[string]string    // platforms' receivers
	outages    map[string]time.Time // until when a receiver is down
	violations []string
	asked      int                 // snapshots
	pauses     map[Pause]time.Time // since when nothing of it may be tried
	paused     bool                // something was
}

// A holding is what a receiver has of a tenant.
type holding struct{ receiver, tenant string }

// A place is where a process runs; after a crash another one.
type place struct {
	world  *world
	number int
	inbox  *Inbox
	life   *life
	kill   func() // ends the courier, its deliveries at once, and closes the store
}

// A life is that of one process. What it learnt just before one of its troubles may be
// lost with it.
type life struct {
	place    *place
	dead     bool
	troubles []trouble
}

type trouble struct{ from, to time.Time }

// An arrival is one webhook and what became of it.
type arrival struct {
	number           int
	webhook          *webhookgate.Webhook
	tenant, snapshot string
	at               time.Time
	plan             []string // what the receiver will do with it, a word for each try

	life     *life
	returned bool      // from Keep, before a crash, and not with an error
	ended    bool      // Keep did
	answered time.Time // when it did
	given    bool      // up, by its sender, who has gone on elsewhere
	receiver string    // of its platform, when it came
	original string    // what it was said to be a duplicate of
	again    []redelivery
	discards []discard
	entry    *Entry // as it stands in the end; nil: it was not kept
}

// A redelivery of an arrival, and how many arrivals there were before it.
type redelivery struct {
	after  int
	at     time.Time
	forced bool
}

// A discard of an arrival, and how often it had been sent again before.
type discard struct {
	at       time.Time
	instance int
	unsure   bool // whether it was done
}

// An attempt is one try at the receiver.
type attempt struct {
	*arrival
	life         *life
	receiver     string
	instance     int // how many redeliveries went before
	began, ended time.Time
	status       int
	cut          bool // by a crash, or with the lease
}

func (a *attempt) accepted() bool { return a.status == 200 }

// ahead says whether what is tried stood in the lane when n came.
func (a *attempt) ahead(n *arrival) bool {
	if a.instance == 0 {
		return a.number < n.number
	}
	return a.arrival.again[a.instance-1].after <= n.number
}

func newWorld(rt *rapid.T, build func(*rapid.T, *world) opener) *world {
	w := &world{
		tenants:  []string{"t1", "t2", "t3"}[:rapid.IntRange(1, 3).Draw(rt, "tenants")],
		jitter:   time.Duration(rapid.SampledFrom([]int{0, 50, 100}).Draw(rt, "jitter")),
		byID:     make(map[string]*arrival),
		underway: make(map[string]int),
		latest:   make(map[holding]string),
		routes:   map[string]string{"p": "one", "q": "two"},
		outages:  make(map[string]time.Time),
		pauses:   make(map[Pause]time.Time),
	}
	var err error
	if w.dir, err = os.MkdirTemp("", "inbox"); err != nil {
		rt.Fatal(err)
	}
	w.cfg = Config{
		Attempts: testTries, MaxAge: testMaxAge, DedupWindow: testWindow, MaxBytes: 1 << 30,
		DedupSize:  rapid.IntRange(1, 3).Draw(rt, "dedup size"),
		KeepLatest: rapid.Bool().Draw(rt, "keep latest"),
		Log:        slog.New(slog.DiscardHandler),
		pause:      func(ceiling time.Duration) time.Duration { return ceiling * w.jitter / 100 },
	}
	for _, name := range []string{"one", "two"} {
		w.cfg.Receivers = append(w.cfg.Receivers, Receiver{Name: name, Concurrency: rapid.IntRange(1, 4).Draw(rt, "concurrency")})
	}
	w.opener = build(rt, w)
	for n := range w.opener.places() {
		p := &place{world: w, number: n}
		w.places = append(w.places, p)
		p.start()
	}
	return w
}

// platform is where a tenant is: some here, some there.
func platform(tenant string) string { return map[bool]string{true: "q", false: "p"}[tenant == "t2"] }

// start begins a process's life.
func (p *place) start() {
	w, life := p.world, &life{place: p}
	cfg := w.cfg
	cfg.Receivers = slices.Clone(cfg.Receivers)
	for n := range cfg.Receivers {
		r := &cfg.Receivers[n]
		r.Try = func(ctx context.Context, wh *webhookgate.Webhook) webhookgate.Attempt {
			return w.receive(ctx, life, r.Name, wh)
		}
	}
	routes := maps.Clone(w.routes) // as they are set when it starts
	cfg.Route = func(l webhookgate.Lane) string { return routes[l.Platform] }
	i, err := w.open(p, cfg)
	if err != nil {
		panic(err)
	}
	for i.Err() != nil {
		time.Sleep(testDisk)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { i.Run(ctx, ctx) })
	p.inbox, p.life = i, life
	p.kill = func() {
		cancel()
		running.Wait()
		if err := i.Close(); err != nil {
			panic(err)
		}
	}
}

func (w *world) end() {
	for _, p := range w.places {
		p.kill()
	}
	w.senders.Wait()
	w.opener.end()
	os.RemoveAll(w.dir)
}

func (w *world) step(rt *rapid.T) {
	p := w.places[rapid.IntRange(0, len(w.places)-1).Draw(rt, "place")]
	steps := []string{
		"send", "send", "send", "send", "copy", "copy", "sleep", "sleep", "redeliver", "redeliver", "crash", "forget",
		"discard", "outage", "ask", "pause", "pause", "resume",
	}
	switch step := rapid.SampledFrom(append(steps, w.steps()...)).Draw(rt, "step"); step {
	case "send":
		p.send(rt, rapid.SampledFrom(w.tenants).Draw(rt, "tenant"), rapid.SampledFrom([]string{"A", "B"}).Draw(rt, "snapshot"))
	case "copy":
		if n := len(w.arrivals); n > 0 {
			a := w.arrivals[n-1-rapid.IntRange(0, min(2, n-1)).Draw(rt, "of")]
			p.send(rt, a.tenant, a.snapshot)
		}
	case "sleep":
		time.Sleep(rapid.SampledFrom([]time.Duration{
			time.Millisecond, testDisk, 10 * time.Millisecond, 30 * time.Millisecond, 300 * time.Millisecond,
			testTimeout, testWindow / 2, testWindow - time.Second, testWindow + time.Second, 3 * time.Minute,
		}).Draw(rt, "sleep"))
	case "redeliver":
		p.redeliver(rt)
	case "discard":
		p.discard(rt)
	case "pause":
		p.pause(rt, rapid.SampledFrom(w.pausable()).Draw(rt, "what"))
	case "resume":
		p.resume(rt, rapid.SampledFrom(w.pausable()).Draw(rt, "what"))
	case "outage":
		d := rapid.SampledFrom([]time.Duration{time.Second, 10 * time.Second, time.Minute}).Draw(rt, "for")
		w.mu.Lock()
		w.outages[rapid.SampledFrom([]string{"one", "two"}).Draw(rt, "receiver")] = time.Now().Add(d)
		w.mu.Unlock()
	case "ask":
		p.ask(rapid.SampledFrom(w.tenants).Draw(rt, "tenant"))
	case "crash":
		if !w.several() && rapid.IntRange(0, 3).Draw(rt, "reroute") == 0 { // platforms change their receivers
			w.routes["p"], w.routes["q"] = w.routes["q"], w.routes["p"]
		}
		p.crash()
	case "forget":
		p.settle()
		if _, err := p.inbox.Forget(nil, rapid.SampledFrom(w.tenants).Draw(rt, "tenant")); err != nil && !p.excused(err) {
			rt.Fatal(err)
		}
	default:
		w.trouble(rt, p, step)
	}
	synctest.Wait()
}

// settle waits until the place is in order, and those who send elsewhere have their
// answers: between two replicas nothing else says what came first.
func (p *place) settle() {
	if !p.world.several() {
		return
	}
	for p.inbox.Err() != nil || p.world.sending(p) {
		time.Sleep(testDisk)
	}
	time.Sleep(4 * testWire) // until all know what was noted
}

// excused says whether a place may say no, as it is cut off, or was until a moment ago, or
// nobody delivers just then.
func (p *place) excused(err error) bool {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	if errors.Is(err, record.ErrNobody) || errors.Is(err, record.ErrUnsure) || p.inbox.Err() != nil {
		return true
	}
	for _, other := range p.world.places { // who is asked may have to ask another one
		for _, t := range other.life.troubles {
			if time.Since(t.to) < testLease+testAsking {
				return true
			}
		}
	}
	return false
}

func (w *world) sending(elsewhere *place) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.unanswered(elsewhere)) > 0
}

// unanswered are the arrivals elsewhere that have no answer yet. w.mu is held.
func (w *world) unanswered(elsewhere *place) (waiting []*arrival) {
	for _, a := range w.arrivals {
		if a.life.place != elsewhere && !a.ended {
			waiting = append(waiting, a)
		}
	}
	return waiting
}

// giveUp has those who sent elsewhere wait no longer.
func (w *world) giveUp(elsewhere *place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.unanswered(elsewhere) {
		a.given = true
	}
}

// send brings one webhook and returns once it stands in the store's queue, so that
// the order of arrivals is known.
func (p *place) send(rt *rapid.T, tenant, snapshot string) {
	w := p.world
	for began := time.Now(); w.sending(p) && time.Since(began) < testPatience; {
		time.Sleep(testDisk)
	}
	w.giveUp(p)
	word := rapid.SampledFrom([]string{"ok", "ok", "ok", "ok", "applied, ok", "ok slowly", "500", "422", "503", "refused", "timeout", "applied, timeout"})
	a := &arrival{
		number:   len(w.arrivals),
		tenant:   tenant,
		snapshot: snapshot,
		at:       time.Now(),
		life:     p.life,
		plan:     rapid.SliceOfN(word, 1, 4).Draw(rt, "plan"),
		receiver: w.routes[platform(tenant)],
	}
	a.webhook = inboxtest.Webhook(a.tenant, a.snapshot)
	a.webhook.Lane.Platform = platform(tenant)
	w.mu.Lock()
	w.arrivals = append(w.arrivals, a)
	w.byID[a.webhook.ID] = a
	w.mu.Unlock()
	i := p.inbox
	w.senders.Go(func() {
		original, err := i.Keep(a.webhook)
		w.mu.Lock()
		defer w.mu.Unlock()
		a.ended, a.answered = true, time.Now()
		if a.life.dead || a.given {
			return // nobody was there any more to be told
		}
		if err != nil && len(a.life.troubles) == 0 && !w.troubled {
			w.violations = append(w.violations, fmt.Sprintf("arrival %d: %v", a.number, err))
		}
		a.returned, a.original = err == nil, original
	})
}

// ask asks for a tenant's last snapshot: it is never older than the last that was
// acknowledged.
func (p *place) ask(tenant string) {
	w := p.world
	w.mu.Lock()
	var last *arrival
	for _, a := range w.arrivals {
		if a.tenant == tenant && a.returned {
			last = a
		}
	}
	w.mu.Unlock()
	lane := webhookgate.Lane{Platform: platform(tenant), Tenant: tenant}
	got, _, err := p.inbox.Snapshot(context.Background(), lane)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case last == nil || err != nil && len(p.life.troubles) > 0:
		return
	case err != nil:
		w.violations = append(w.violations, fmt.Sprintf("(e) no snapshot of %s: %v", tenant, err))
		return
	}
	w.asked++
	for _, a := range w.arrivals[last.number:] {
		if a.tenant == tenant && a.snapshot == string(got.Body) {
			return
		}
	}
	w.violations = append(w.violations, fmt.Sprintf("(e) the snapshot of %s is %s; arrival %d, %s, was acknowledged", tenant, got.Body, last.number, last.snapshot))
}

func (p *place) redeliver(rt *rapid.T) {
	p.settle()
	w := p.world
	entries, err := p.inbox.List(Filter{})
	if err != nil && !p.excused(err) {
		rt.Fatal(err)
	}
	if len(entries) == 0 {
		return
	}
	e := entries[rapid.IntRange(0, min(5, len(entries)-1)).Draw(rt, "entry")]
	force := rapid.Bool().Draw(rt, "force")
	if e.State == Waiting { // a try that ends before a request gets there would be taken for one of the redelivery
		p.inbox.courier.Retry(webhookgate.Lane{Platform: e.Platform, Tenant: e.Tenant}, e.ID)
		return
	}
	a := w.byID[e.Webhook]
	w.mu.Lock()
	a.again = append(a.again, redelivery{after: len(w.arrivals), at: time.Now(), forced: force})
	w.mu.Unlock()
	err = p.inbox.Redeliver(e.ID, force)
	if err == nil {
		if rapid.Bool().Draw(rt, "and a copy") { // of what the receiver will no longer hold
			p.send(rt, a.tenant, w.newest(a.tenant).snapshot)
		}
		return
	}
	w.mu.Lock()
	for _, t := range w.tries { // begun meanwhile
		if t.arrival == a && t.instance == len(a.again) {
			t.instance--
		}
	}
	a.again = a.again[:len(a.again)-1]
	w.mu.Unlock()
	if p.excused(err) {
		return // the cut before has only now been noticed
	}
	if overwrite := new(OverwriteError); force || !errors.As(err, &overwrite) {
		rt.Errorf("redelivering %d: %v", a.number, err)
	}
}

// discard sets one aside.
func (p *place) discard(rt *rapid.T) {
	p.settle()
	w := p.world
	entries, err := p.inbox.List(Filter{})
	if err != nil && !p.excused(err) {
		rt.Fatal(err)
	}
	entries = slices.DeleteFunc(entries, func(e Entry) bool { return e.State.Finished() })
	if len(entries) == 0 {
		return
	}
	e := entries[rapid.IntRange(0, len(entries)-1).Draw(rt, "entry")]
	switch err := p.inbox.Discard(e.ID); {
	case err == nil:
		w.mu.Lock()
		a := w.byID[e.Webhook]
		a.discards = append(a.discards, discard{time.Now(), len(a.again), false})
		w.mu.Unlock()
	case errors.Is(err, record.ErrUnsure):
		w.mu.Lock()
		a := w.byID[e.Webhook]
		a.discards = append(a.discards, discard{time.Now(), len(a.again), true})
		w.mu.Unlock()
	case !p.excused(err) && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrFinished):
		rt.Errorf("discarding %d: %v", e.ID, err)
	}
}

// pausable is what can be paused.
func (w *world) pausable() []Pause {
	return []Pause{{}, {Receiver: "one"}, {Platform: platform(w.tenants[0]), Tenant: w.tenants[0]}}
}

// pause has something held back; whoever is cut off may go on until its lease ends.
func (p *place) pause(rt *rapid.T, what Pause) {
	p.settle()
	err := p.inbox.Pause(what)
	if err != nil && !p.excused(err) {
		rt.Fatal(err)
	}
	since := time.Now()
	if p.world.several() {
		since = since.Add(testLease)
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	if _, was := p.world.pauses[what]; !was && err == nil {
		p.world.pauses[what] = since
		p.world.paused = true
	}
}

// resume ends a pause.
func (p *place) resume(rt *rapid.T, what Pause) {
	p.settle()
	p.world.mu.Lock()
	delete(p.world.pauses, what)
	p.world.mu.Unlock()
	if _, err := p.inbox.Resume(what); err != nil && !p.excused(err) {
		rt.Fatal(err)
	}
}

// crash ends a process, and starts another one on what is in the store at that
// moment. Deliveries under way are cut, what was noted and not yet written is gone,
// and whoever waits in Keep never learns whether his webhook is there.
func (p *place) crash() {
	synctest.Wait()
	w := p.world
	now := time.Now()
	w.mu.Lock()
	p.life.dead = true
	p.life.troubles = append(p.life.troubles, trouble{now, now})
	w.crashes = append(w.crashes, now)
	w.mu.Unlock()
	w.opener.crash(p)
	p.start()
}

// receive is the receiver: it does as the webhook's plan says, and keeps a diary.
func (w *world) receive(ctx context.Context, life *life, receiver string, wh *webhookgate.Webhook) webhookgate.Attempt {
	w.mu.Lock()
	if life.dead {
		w.mu.Unlock()
		return webhookgate.Attempt{Err: context.Canceled} // the dead deliver nothing
	}
	a := w.byID[wh.ID]
	t := &attempt{arrival: a, life: life, receiver: receiver, instance: len(a.again), began: time.Now()}
	w.tries = append(w.tries, t)
	word := "ok"
	switch {
	case w.healthy:
	case time.Now().Before(w.outages[receiver]):
		word = "refused"
	case len(a.plan) > 0:
		word, a.plan = a.plan[0], a.plan[1:]
	}
	if w.underway[a.tenant]++; w.underway[a.tenant] > 1 {
		w.violations = append(w.violations, fmt.Sprintf("(b) arrival %d overlaps another delivery to %s", a.number, a.tenant))
	}
	for what, since := range w.pauses {
		if what.Covers(wh.Lane.Platform, wh.Lane.Tenant, receiver) && t.began.After(since) {
			w.violations = append(w.violations, fmt.Sprintf("(f) arrival %d was tried, but %s is paused", a.number, what))
		}
	}
	if string(wh.Body) != a.snapshot || wh.Header.Get("X-Test") != "1" {
		w.violations = append(w.violations, fmt.Sprintf("(c) arrival %d was delivered as %q %v", a.number, wh.Body, wh.Header))
	}
	after, applied := strings.CutPrefix(word, "applied, ")
	if applied {
		word = after
		w.latest[holding{receiver, a.tenant}] = a.snapshot // whatever usher gets to know of it
	}
	w.mu.Unlock()

	took := 20 * time.Millisecond
	switch word {
	case "refused":
		took = 0
	case "timeout":
		took = testTimeout
	case "ok slowly":
		word, took = "ok", testTimeout/2
	}
	select {
	case <-time.After(took):
	case <-ctx.Done():
		t.cut = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.underway[a.tenant]--
	t.ended = time.Now()
	switch {
	case t.cut:
		return webhookgate.Attempt{Err: ctx.Err()}
	case word == "refused":
		return webhookgate.Attempt{Err: syscall.ECONNREFUSED}
	case word == "timeout":
		return webhookgate.Attempt{Err: context.DeadlineExceeded}
	case word == "ok":
		w.latest[holding{receiver, a.tenant}] = a.snapshot
		t.status = 200
	default:
		t.status, _ = strconv.Atoi(word)
	}
	return webhookgate.Attempt{Status: t.status}
}

func (w *world) resumed(what Pause) error {
	_, err := w.places[0].inbox.Resume(what)
	return err
}

// calm has the receiver answer 200 for long enough, and looks where everything stands.
func (w *world) calm() {
	w.mu.Lock()
	w.healthy = true
	clear(w.pauses)
	w.mu.Unlock()
	for _, what := range w.pausable() {
		for w.resumed(what) != nil {
			time.Sleep(time.Second)
		}
	}
	if !w.several() {
		time.Sleep(2 * testPause)
	} else {
		time.Sleep(time.Minute) // longer than any pause that four failures lead to; each second costs
	}
	w.senders.Wait()
	synctest.Wait()
	for _, p := range w.places {
		for _, tenant := range w.tenants {
			p.ask(tenant)
		}
	}
	entries, err := w.places[0].inbox.List(Filter{})
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range entries {
		w.byID[e.Webhook].entry = &e
	}
	for _, p := range w.places {
		if s := p.inbox.Stats(); s.Pending != 0 {
			w.violations = append(w.violations, fmt.Sprintf("(c) still pending: %+v", s))
		}
	}
}
