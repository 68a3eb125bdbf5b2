package inbox

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"usher/webhookgate"
)

// TestNothingIsLostOrDroppedOnAGuess throws random traffic at an inbox: copies, changes
// back and forth, a receiver that fails, hangs, times out having applied a snapshot or
// not, redeliveries, forgetting, evictions, waits beyond the window, for several
// tenants at once; and every now and then a process is gone, and another one finds
// the store as it was at that moment. On NATS there are two of them, with a server and
// wires that get cut for a while. Then it asks what may never be:
//
//	(a) a copy answered duplicate of what the receiver neither holds for sure as its
//	    latest nor is about to get as such,
//	(b) a delivery that overlaps or overtakes another of its tenant, or is made again
//	    without a crash or a cut to excuse it,
//	(c) a webhook that was acknowledged, and is neither delivered, nor parked for a
//	    reason, nor superseded by a newer one,
//	(d) a receiver that in the end does not hold the newest that it accepted.
func TestNothingIsLostOrDroppedOnAGuess(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		checkWorlds(t, 1000, func(_ *rapid.T, w *world) { w.places = []*place{{world: w}} },
			"duplicate", "delivered", "parked", "superseded", "crash", "in doubt", "repeat", "redelivered", "forced")
	})
	t.Run("nats", func(t *testing.T) {
		checkWorlds(t, 100, func(rt *rapid.T, w *world) {
			w.server = newBubbleServer()
			for n := range 2 {
				// Who has the longer wire learns late what the other one has done.
				delay := rapid.SampledFrom([]time.Duration{testDisk, testWire}).Draw(rt, "wire")
				w.places = append(w.places, &place{world: w, number: n, wire: &wire{server: w.server, delay: delay}})
			}
			w.settled = testSettled + 20*testWire
		}, "duplicate", "delivered", "crash", "cut", "given up", "redelivered") // in so few no more can be relied on
	})
}

// checkWorlds tries so many worlds, each with the places that build gives it. What is
// expected has to come up at all: a test in which nothing is parked proves nothing.
func checkWorlds(t *testing.T, checks int, build func(*rapid.T, *world), expected ...string) {
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
	testPatience = 2 * staleAfter // of senders
	testSettled  = settleDelay + 8*testDisk
)

// A world is an inbox, of one process or of several, who sends to it, and what is
// behind it.
type world struct {
	cfg     Config
	dir     string
	tenants []string
	jitter  time.Duration // in percent of the ceiling
	senders sync.WaitGroup
	server  *bubbleServer // nil: the inbox is a file
	places  []*place
	dying   sync.WaitGroup
	settled time.Duration // a crash may undo what was noted within that time

	mu         sync.Mutex
	crashes    []time.Time
	troubled   bool // some place was, and what was stuck there may get in the way of others
	healthy    bool
	arrivals   []*arrival          // in order
	byID       map[string]*arrival // by webhook-id
	tries      []*attempt          // in the order of their beginnings
	underway   map[string]int      // by tenant
	latest     map[string]string   // what the receiver holds, by tenant
	violations []string
}

// A place is where a process runs; after a crash another one.
type place struct {
	world  *world
	number int
	wire   *wire
	inbox  *Inbox
	life   *life
	kill   func() // ends the courier, its deliveries at once, and closes the store
	files  int
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
	original string    // what it was said to be a duplicate of
	again    []redelivery
	entry    *Entry // as it stands in the end; nil: it was not kept
}

// A redelivery of an arrival, and how many arrivals there were before it.
type redelivery struct {
	after  int
	at     time.Time
	forced bool
}

// An attempt is one try at the receiver.
type attempt struct {
	*arrival
	life         *life
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

func newWorld(rt *rapid.T, build func(*rapid.T, *world)) *world {
	w := &world{
		tenants:  []string{"t1", "t2", "t3"}[:rapid.IntRange(1, 3).Draw(rt, "tenants")],
		jitter:   time.Duration(rapid.SampledFrom([]int{0, 50, 100}).Draw(rt, "jitter")),
		byID:     make(map[string]*arrival),
		underway: make(map[string]int),
		latest:   make(map[string]string),
		settled:  testSettled,
	}
	var err error
	if w.dir, err = os.MkdirTemp("", "inbox"); err != nil {
		rt.Fatal(err)
	}
	w.cfg = config(w.dir, new(receiver))
	w.cfg.Attempts, w.cfg.MaxAge = testTries, testMaxAge
	w.cfg.DedupWindow = testWindow
	w.cfg.DedupSize = rapid.IntRange(1, 3).Draw(rt, "dedup size")
	w.cfg.KeepLatest = rapid.Bool().Draw(rt, "keep latest")
	w.cfg.Concurrency = rapid.IntRange(1, 4).Draw(rt, "concurrency")
	w.cfg.pause = func(ceiling time.Duration) time.Duration { return ceiling * w.jitter / 100 }
	build(rt, w)
	for _, p := range w.places {
		p.start()
	}
	return w
}

func (p *place) path() string { return filepath.Join(p.world.dir, fmt.Sprint(p.files, ".db")) }

// start begins a process's life.
func (p *place) start() {
	w, life := p.world, &life{place: p}
	cfg := w.cfg
	cfg.URL = "file:" + p.path()
	cfg.Try = func(ctx context.Context, wh *webhookgate.Webhook) webhookgate.Attempt {
		return w.receive(ctx, life, wh)
	}
	if p.wire != nil {
		cfg = shared(cfg, p.wire)
	}
	i, err := Open(cfg)
	if err != nil {
		panic(err)
	}
	if s, ok := i.store.(*boltStore); ok {
		s.db.NoSync = true // it is the kernel's copy that survives here
		update := s.update
		s.update = func(f func(*bbolt.Tx) error) error {
			time.Sleep(testDisk)
			err := update(f)
			time.Sleep(testDisk) // it is safe, and nobody knows yet
			return err
		}
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
	w.dying.Wait()
	if w.server != nil {
		w.server.end()
	}
	os.RemoveAll(w.dir)
}

func (w *world) step(rt *rapid.T) {
	p := w.places[rapid.IntRange(0, len(w.places)-1).Draw(rt, "place")]
	steps := []string{"send", "send", "send", "send", "copy", "copy", "sleep", "sleep", "redeliver", "redeliver", "crash", "forget"}
	if p.wire != nil {
		steps = append(steps, "cut", "stick")
	}
	switch rapid.SampledFrom(steps).Draw(rt, "step") {
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
	case "crash":
		if p.wire != nil && rapid.Bool().Draw(rt, "late") {
			time.Sleep(p.wire.delay + time.Millisecond) // what was sent is there, the answer on its way
		}
		p.crash()
	case "cut":
		p.cut(rapid.SampledFrom(cuts).Draw(rt, "for"))
	case "stick":
		p.stick(rapid.SampledFrom(cuts).Draw(rt, "for"))
	case "forget":
		p.settle()
		if _, err := p.inbox.Forget(rapid.SampledFrom(w.tenants).Draw(rt, "tenant")); err != nil && p.inbox.Err() == nil {
			rt.Fatal(err)
		}
	}
	synctest.Wait()
}

// settle waits until the place is in order, and those who send elsewhere have their
// answers: between two replicas nothing else says what came first.
func (p *place) settle() {
	if p.wire == nil {
		return
	}
	for p.inbox.Err() != nil || p.world.sending(p) {
		time.Sleep(testDisk)
	}
	time.Sleep(4 * testWire) // until all know what was noted
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
	}
	a.webhook = webhook(a.tenant, a.snapshot)
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
		if err != nil && len(a.life.troubles) == 0 && !(w.troubled && errors.Is(err, errStale)) {
			w.violations = append(w.violations, fmt.Sprintf("arrival %d: %v", a.number, err))
		}
		a.returned, a.original = err == nil, original
	})
}

func (p *place) redeliver(rt *rapid.T) {
	p.settle()
	w := p.world
	entries, err := p.inbox.List(Filter{})
	if err != nil {
		rt.Fatal(err)
	}
	if len(entries) == 0 {
		return
	}
	e := entries[rapid.IntRange(0, min(5, len(entries)-1)).Draw(rt, "entry")]
	force := rapid.Bool().Draw(rt, "force")
	if p.wire != nil && e.State == Waiting {
		return // a try that ends before the request gets there would be taken for one of the redelivery
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
	if p.inbox.Err() != nil {
		return // the cut before has only now been noticed
	}
	if overwrite := new(OverwriteError); !errors.Is(err, ErrWaiting) && (force || !errors.As(err, &overwrite)) {
		rt.Errorf("redelivering %d: %v", a.number, err)
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
	if p.wire != nil {
		p.wire.sever()
		p.inbox.store.(*jetStore).nc.Close()
		w.dying.Go(p.kill) // it takes until the lease is over to give up
		p.wire.mend()
		p.start()
		return
	}
	file, err := os.ReadFile(p.path())
	if err != nil {
		panic(err)
	}
	p.kill()
	p.files++
	if err := os.WriteFile(p.path(), file, 0o600); err != nil {
		panic(err)
	}
	p.start()
}

// cuts is how long they last.
var cuts = []time.Duration{10 * time.Millisecond, time.Second, 3 * time.Second, 7 * time.Second}

// cut takes a place off the network for a while.
func (p *place) cut(d time.Duration) {
	p.trouble(d)
	p.wire.sever()
	time.AfterFunc(d, p.wire.mend)
}

// stick has what a place sends and gets arrive so much later.
func (p *place) stick(d time.Duration) {
	p.trouble(d)
	p.wire.stuck.Store(true)
	time.AfterFunc(d, func() { p.wire.stuck.Store(false) })
}

func (p *place) trouble(d time.Duration) {
	now := time.Now()
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.life.troubles = append(p.life.troubles, trouble{now, now.Add(d)})
	p.world.troubled = true
}

// receive is the receiver: it does as the webhook's plan says, and keeps a diary.
func (w *world) receive(ctx context.Context, life *life, wh *webhookgate.Webhook) webhookgate.Attempt {
	w.mu.Lock()
	if life.dead {
		w.mu.Unlock()
		return webhookgate.Attempt{Err: context.Canceled} // the dead deliver nothing
	}
	a := w.byID[wh.ID]
	t := &attempt{arrival: a, life: life, instance: len(a.again), began: time.Now()}
	w.tries = append(w.tries, t)
	word := "ok"
	if !w.healthy && len(a.plan) > 0 {
		word, a.plan = a.plan[0], a.plan[1:]
	}
	if w.underway[a.tenant]++; w.underway[a.tenant] > 1 {
		w.violations = append(w.violations, fmt.Sprintf("(b) arrival %d overlaps another delivery to %s", a.number, a.tenant))
	}
	if string(wh.Body) != a.snapshot || wh.Header.Get("X-Test") != "1" {
		w.violations = append(w.violations, fmt.Sprintf("(c) arrival %d was delivered as %q %v", a.number, wh.Body, wh.Header))
	}
	after, applied := strings.CutPrefix(word, "applied, ")
	if applied {
		word = after
		w.latest[a.tenant] = a.snapshot // whatever usher gets to know of it
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
		w.latest[a.tenant] = a.snapshot
		t.status = 200
	default:
		t.status, _ = strconv.Atoi(word)
	}
	return webhookgate.Attempt{Status: t.status}
}

// calm has the receiver answer 200 for long enough, and looks where everything stands.
func (w *world) calm() {
	w.mu.Lock()
	w.healthy = true
	w.mu.Unlock()
	if w.server == nil {
		time.Sleep(2 * lastPause)
	} else {
		time.Sleep(time.Minute) // longer than any pause that four failures lead to; each second costs
	}
	w.senders.Wait()
	synctest.Wait()
	one := w.places[0].inbox
	entries, err := one.List(Filter{})
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range entries {
		w.byID[e.Webhook].entry = &e
	}
	if s := one.Stats(); s.Pending != 0 {
		w.violations = append(w.violations, fmt.Sprintf("(c) still pending: %+v", s))
	}
}
