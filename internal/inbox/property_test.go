package inbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/inbox/postgres"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/internal/testkit/pgtest"
	"usher/webhookgate"
)

var (
	long         = flag.Bool("long", false, "many random worlds")
	worldCount   = flag.Uint64("worlds", 1000, "how many random worlds of lanes")
	worldSeed    = flag.Uint64("world", 0, "the seed of the only random world to try")
	worldSkip    = flag.String("skip", "", "steps of that world to leave out, comma-separated")
	shrinkWorlds = flag.Bool("shrink", false, "shrink worlds that fail")
	worldLog     = flag.Bool("worldlog", false, "log what the inboxes of that world say")
)

// A pace is how fast a world lives. A file lives in a bubble, where time costs nothing; a database in real time.
type pace struct {
	window, timeout, maxAge, lease time.Duration
	patience                       time.Duration // of senders
	settled                        time.Duration // what a try led to is written by then, if nothing is wrong
	pauses                         time.Duration // a pause counts everywhere by then
	answer                         time.Duration // of a receiver
	backoff                        time.Duration // a second of it
	sleeps, outages                []time.Duration
	steps                          int           // at most
	calm                           time.Duration // by then everything is delivered
}

var filePace = pace{
	window:   time.Minute,
	timeout:  2 * time.Second,
	maxAge:   90 * time.Second,
	patience: 10 * time.Second,
	settled:  20*time.Millisecond + 8*disk,
	answer:   20 * time.Millisecond,
	backoff:  time.Second,
	sleeps: []time.Duration{
		time.Millisecond, disk, 10 * time.Millisecond, 30 * time.Millisecond, 300 * time.Millisecond,
		2 * time.Second, 30 * time.Second, 59 * time.Second, 61 * time.Second, 3 * time.Minute,
	},
	outages: []time.Duration{time.Second, 10 * time.Second, time.Minute},
	calm:    15 * time.Minute,
	steps:   45,
}

// disk is how long a transaction of the file takes: before it is on disk, and then until its caller knows.
const disk = 3 * time.Millisecond

var databasePace = pace{
	window:   1500 * time.Millisecond,
	timeout:  300 * time.Millisecond,
	maxAge:   1500 * time.Millisecond,
	lease:    2500 * time.Millisecond,
	patience: 2500 * time.Millisecond,
	settled:  1500 * time.Millisecond,
	pauses:   2500 * time.Millisecond,
	answer:   3 * time.Millisecond,
	backoff:  25 * time.Millisecond,
	sleeps: []time.Duration{
		time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond,
		100 * time.Millisecond, 300 * time.Millisecond, time.Second, 1600 * time.Millisecond,
	},
	outages: []time.Duration{30 * time.Millisecond, 200 * time.Millisecond, time.Second},
	calm:    40 * time.Second,
	steps:   30,
}

// A world is an inbox, of one process or of several, with its senders and receivers.
type world struct {
	seed uint64
	r    *rand.Rand // of the step
	pace
	cfg     Config
	stores  bool
	tenants []string
	jitter  time.Duration // percent
	places  []*place
	dir     string // of the file
	files   int    // how many there were
	group   *group // of the database
	dsn     string // of the database; empty: it is a file
	senders sync.WaitGroup
	dying   sync.WaitGroup
	story   []string

	mu         sync.Mutex // guards what follows
	healthy    bool
	arrivals   []*arrival
	byID       map[string]*arrival // by webhook-id
	tries      []*try              // in the order of their beginnings
	underway   map[string]int      // by tenant
	latest     map[holding]string  // what receivers hold
	routes     map[string]string   // platforms' receivers
	outages    map[string]time.Time
	erasures   []span // of tenants
	asks       []ask
	pauses     map[Pause]time.Time // since when nothing of it may be tried
	violations []string
	seen       map[string]bool // what came up at all

	service map[string]saying   // what the billing service says of each tenant
	byLine  map[string]*arrival // what reconcile may take in
	runs    int
	invalid []saying // webhooks that are invalid for sure
	lost    []saying // invalid ones that were not stored, as their senders were told
}

// A saying is what the billing service says of a tenant: its state, and how many changes there were before. It was
// said in a time, if that matters.
type saying struct {
	tenant, snapshot string
	version          int
	from, to         time.Time
}

// An aRun is a reconcile.
type aRun struct {
	number int
	began  time.Time // by then its mark is committed
	stores bool
}

// change changes what the billing service says of a tenant.
func (w *world) change(tenant, snapshot string) int { // w.mu is held
	next := saying{tenant: tenant, snapshot: snapshot, version: w.service[tenant].version + 1}
	w.service[tenant] = next
	return next.version
}

// A holding is the snapshot that a receiver holds of a tenant.
type holding struct{ receiver, tenant string }

// A span is the time in which something was done to a tenant.
type span struct {
	tenant   string
	from, to time.Time
	unsure   bool // whether it was done
}

// An ask is a question for a tenant's last snapshot, and its answer.
type ask struct {
	tenant  string
	at      time.Time
	webhook string // empty: none
	seq     int64
}

// A place is where processes run, one after the other.
type place struct {
	world  *world
	number int
	inbox  *Inbox
	life   *life
	wire   *pgtest.Wire
	stop   func(gently bool)
}

// A life is the time from a process's start to its end.
type life struct {
	place     *place
	receivers *receiver.Set
	dead      time.Time // when it was killed
	troubles  []trouble
}

// A trouble is a time in which a process had a problem with its database. Away: not only one connection broke, the
// database was away for a while.
type trouble struct {
	from, to time.Time
	away     bool
}

// An arrival is one webhook that was sent, and its answer.
type arrival struct {
	number           int
	webhook          *webhookgate.Webhook
	tenant, snapshot string
	plan             []string // what the receiver will do with it, a word for each try
	life             *life
	receiver         string    // of its platform, when it came
	from, to         time.Time // it was sent, and answered
	ended, ok        bool
	gave             bool // its sender gave up
	err              error
	original         string // what it was said to be a copy of
	again            []*redelivery
	discards         []*discard
	entry            *lane.Webhook // in the end; nil: it is not there
	version          int           // of the state that it has; see world.service
	run              *aRun         // usher made it; nil: a sender sent it
}

type redelivery struct {
	from, to time.Time
	forced   bool
	unsure   bool
}

type discard struct {
	from, to time.Time
	instance int // how often it had been sent again before
	unsure   bool
}

// A try is one try at the receiver.
type try struct {
	*arrival
	life         *life
	receiver     string
	instance     int // how many redeliveries went before
	began, ended time.Time
	status       int
	cut          bool // by usher itself, or its end
}

func (a *try) accepted() bool { return a.status == 200 }

// TestWorldsInAFile throws random traffic at an inbox: copies, changes back and forth, bursts, two receivers that
// fail, hang, are down for a while, time out having applied a snapshot or not, a platform that nobody takes,
// redeliveries, discards, erasures, pauses, waits beyond the window. Every now and then a process is
// gone, and another one finds the inbox as it was at that moment. On a database there are two processes, whose
// connections break at any byte, in COMMIT above all, hang or are slow, and a server that crashes. Then it asks what
// may never be:
//
//	(a) a copy answered duplicate of what its receiver neither holds for sure as its latest nor is about to get as
//	    such,
//	(b) a delivery that overlaps or overtakes another of its tenant, comes after it was discarded or erased, or is
//	    made again without a trouble to excuse it,
//	(c) a webhook that was acknowledged, and is neither delivered, nor parked for a reason, nor superseded by a newer
//	    one, nor discarded, nor erased,
//	(d) a receiver that in the end does not hold the newest that it accepted,
//	(e) a snapshot, for entitlements, that is older than the last acknowledged one, or erased,
//	(f) a try of what is paused,
//	(g) a webhook that was taken in although its sender was told otherwise, and the database could be asked; or after
//	    its sender had given up,
//	(h) figures that are not what is listed,
//	(i) an invalid webhook that is lost, or accepted twice,
//	(k) a state that reconcile has brought back although a newer one had come; a difference that it does not find in
//	    the end.
func TestWorldsInAFile(t *testing.T) {
	t.Parallel()
	worlds := 10
	switch {
	case *long:
		worlds = 300
	case thorough(): // the same ones, and more
		worlds = 24
	}
	checkWorlds(t, worlds, 1, func(t *testing.T, seed uint64, skip []int) (w *world) {
		synctest.Test(t, func(*testing.T) {
			w = newWorld(seed, filePace)
			w.live(skip)
		})
		return w
	}, "duplicate", "delivered", "parked", "superseded", "discarded", "stored", "killed", "repeat", "redelivered",
		"forced", "asked", "paused", "erased")
}

// TestWorldsInADatabase is the same with two replicas on a database.
func TestWorldsInADatabase(t *testing.T) {
	t.Parallel()
	worlds, atOnce := 2, 8 // they wait most of the time
	switch {
	case *long:
		worlds, atOnce = 60, 20
	case thorough(): // the same ones, and more
		worlds = 8
	}
	g := &group{server: pgtest.New(t, "max_connections=400")}
	defer g.watch()()
	checkWorlds(t, worlds, atOnce, func(t *testing.T, seed uint64, skip []int) *world {
		w := newWorld(seed, databasePace)
		w.group, w.dsn = g, g.server.DSN()+"&schema="+fmt.Sprintf("w%016x_%d", seed, rand.Uint32())
		for range 2 + seed%2 {
			wire := pgtest.Cut(t, g.server.Addr()) // it ends with the test
			w.places = append(w.places, &place{world: w, number: len(w.places), wire: wire})
		}
		w.live(skip)
		return w
	}, "duplicate", "delivered", "killed", "cut", "away", "redelivered")
}

// A group has the worlds that share a server.
type group struct {
	server   *pgtest.Server
	mu       sync.Mutex // guards what follows
	restarts []trouble
	stalls   []trouble // of the machine
}

// watch notes when the machine did not let the worlds go on for a while, which they cannot know: leases end meanwhile.
func (g *group) watch() (end func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for last := time.Now(); ; last = time.Now() {
			select {
			case <-tick.C:
			case <-done:
				return
			}
			if now := time.Now(); now.Sub(last) > 300*time.Millisecond {
				g.mu.Lock()
				g.stalls = append(g.stalls, trouble{last, now, true})
				g.mu.Unlock()
			}
		}
	}()
	return func() { close(done); <-stopped }
}

func (g *group) restart() {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.restarts)
	if n > 0 && time.Since(g.restarts[n-1].to) < 5*time.Second {
		return // not all worlds at once
	}
	from := time.Now()
	g.restarts = append(g.restarts, trouble{from, from.Add(time.Hour), true})
	g.server.Kill()
	g.server.Start()
	g.restarts[n].to = time.Now()
}

func (g *group) troubles() []trouble {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Concat(g.restarts, g.stalls)
}

// checkWorlds runs so many worlds, some at once. In many worlds every kind of event must occur: a test in which
// nothing is parked proves nothing.
func checkWorlds(t *testing.T, worlds, atOnce int, try func(*testing.T, uint64, []int) *world, expected ...string) {
	if *worldSeed != 0 {
		var skip []int
		for _, s := range strings.FieldsFunc(*worldSkip, func(r rune) bool { return r == ',' }) {
			n, _ := strconv.Atoi(s)
			skip = append(skip, n)
		}
		w := try(t, *worldSeed, skip)
		w.tell(t)
		return
	}
	var mu sync.Mutex
	seen := make(map[string]bool)
	failed := 0
	places := make(chan bool, atOnce)
	var all sync.WaitGroup
	deadline, limited := t.Deadline()
	for n := range worlds {
		places <- true
		if limited && time.Until(deadline) < time.Minute {
			t.Logf("%d worlds", n) // so that what they showed is told
			break
		}
		all.Go(func() {
			defer func() { <-places }()
			mu.Lock()
			enough := failed >= 5
			mu.Unlock()
			if enough {
				return
			}
			seed := uint64(n) + 1 // the same ones each time
			if *long {
				seed += rand.Uint64N(1 << 40)
			}
			w := try(t, seed, nil)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(seen, w.seen)
			if len(w.violations) == 0 {
				return
			}
			failed++
			var skip []int
			if w.dsn == "" && *shrinkWorlds { // it does the same again
				w, skip = shrink(t, w, try)
			}
			without := strings.Trim(strings.ReplaceAll(fmt.Sprint(skip), " ", ","), "[]")
			t.Errorf("again with -run=%s -world=%d -skip=%s", t.Name(), w.seed, without)
			w.tell(t)
		})
	}
	all.Wait()
	for _, what := range expected {
		if *long && !seen[what] && !t.Failed() { // in a few worlds something may be missing by chance
			t.Errorf("never seen: %s", what)
		}
	}
}

// shrink leaves out the steps that a world does not need to fail.
func shrink(t *testing.T, w *world, try func(*testing.T, uint64, []int) *world) (*world, []int) {
	var skip []int
	for n := w.steps - 1; n >= 0; n-- {
		if less := try(t, w.seed, append(slices.Clone(skip), n)); len(less.violations) > 0 {
			w, skip = less, append(skip, n)
		}
	}
	return w, skip
}

func newWorld(seed uint64, p pace) *world {
	w := &world{
		seed:     seed,
		pace:     p,
		r:        rand.New(rand.NewPCG(seed, 1<<32)),
		byID:     make(map[string]*arrival),
		underway: make(map[string]int),
		latest:   make(map[holding]string),
		outages:  make(map[string]time.Time),
		pauses:   make(map[Pause]time.Time),
		seen:     make(map[string]bool),
		routes:   map[string]string{"p": "one", "q": "two"},
		service:  make(map[string]saying),
		byLine:   make(map[string]*arrival),
	}
	w.tenants = []string{"t1", "t2", "t3", "t4"}[:1+w.r.IntN(4)]
	w.jitter = time.Duration(pick(w.r, 0, 50, 100))
	w.stores = w.r.IntN(2) == 0
	if w.r.IntN(2) == 0 {
		w.routes["k"] = "one"
	}
	w.cfg = Config{
		Rules: lane.Rules{
			StoreUnclaimed: w.stores,
			ParkAfter:      p.maxAge,
			MaxBytes:       1 << 30,
			LeaseExtra:     p.lease,
			DedupWindow:    p.window,
			Log:            quiet,
			Jitter: func(d time.Duration) time.Duration {
				return time.Duration(d.Seconds() * float64(w.backoff*w.jitter/100))
			},
		},
	}
	if *worldLog {
		w.cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return w
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// platform returns the platform of a tenant.
func platform(tenant string) string {
	return map[string]string{"t1": "p", "t2": "q", "t3": "k", "t4": "p"}[tenant]
}

// live runs a world's steps, except those in skip.
func (w *world) live(skip []int) {
	if w.dsn == "" {
		dir, err := os.MkdirTemp("", "world")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		w.dir, w.places = dir, []*place{{world: w}}
	}
	for _, p := range w.places {
		p.start()
	}
	steps := 5 + w.r.IntN(w.steps-5)
	for n := range steps {
		if !slices.Contains(skip, n) {
			w.r = rand.New(rand.NewPCG(w.seed, uint64(n)))
			w.step(n)
		}
	}
	w.calm()
	for _, p := range w.places {
		p.stop(true)
	}
	w.senders.Wait()
	w.dying.Wait()
	w.judge()
}

// start begins a process's life.
func (p *place) start() {
	w, life := p.world, &life{place: p}
	cfg := w.cfg
	life.receivers = w.receivers(func(rc *receiver.Receiver) {
		rc.Concurrency = 1 + w.r.IntN(4)
		rc.Transport = transport(func(r *http.Request) (*http.Response, error) { return w.receive(r, life, rc.Name) })
	})
	cfg.Receivers = life.receivers
	engine, err := p.open(life, cfg.Log)
	if err != nil {
		panic(err)
	}
	i := New(engine, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	hard, cut := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { i.Run(ctx, hard) })
	p.inbox, p.life = i, life
	for began := time.Now(); !i.Ready() && time.Since(began) < w.patience; {
		time.Sleep(disk)
	}
	p.stop = func(gently bool) {
		cancel()
		if gently {
			time.AfterFunc(3*w.timeout, cut)
		} else {
			cut()
		}
		running.Wait()
		cut()
		i.Close()
	}
}

// receivers returns those that platforms have now.
func (w *world) receivers(change func(*receiver.Receiver)) *receiver.Set {
	var all []*receiver.Receiver
	for _, name := range []string{"one", "two"} {
		platforms := []string{"only " + name}
		for code, to := range w.routes {
			if to == name {
				platforms = append(platforms, code)
			}
		}
		rc := newTaker(name, 4, platforms...).Receiver
		rc.Timeout = w.timeout
		change(rc)
		all = append(all, rc)
	}
	return receiver.NewSet(all...)
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (p *place) open(life *life, log *slog.Logger) (engine.Engine, error) {
	if w := p.world; w.dsn == "" {
		e, err := openFile(w.file(), log)
		// It takes its time, so that a crash can find a transaction under way.
		return intercepted{write: func(run func(failure error) error) error {
			time.Sleep(disk)
			err := run(nil)
			time.Sleep(disk) // it is safe, and nobody knows yet
			return err
		}}.on(e), err
	}
	a, err := postgres.Parse(p.wire.Through(p.world.dsn))
	if err != nil {
		return nil, err
	}
	e, err := postgres.Open(a, nil, log)
	return intercepted{write: func(run func(failure error) error) error {
		began := time.Now()
		err := run(nil)
		if ended := time.Now(); ended.Sub(began) > p.world.lease/8 { // on a busy machine leases may end meanwhile
			p.world.mu.Lock()
			defer p.world.mu.Unlock()
			life.troubles = append(life.troubles, trouble{began, ended, true})
		}
		return err
	}}.on(e), err
}

func (w *world) file() string { return filepath.Join(w.dir, fmt.Sprint(w.files)) }

// kill ends a process without a shutdown, and starts another one.
func (p *place) kill() {
	w := p.world
	if w.dsn == "" {
		synctest.Wait()
	}
	now := time.Now()
	w.mu.Lock()
	p.life.dead = now
	p.life.troubles = append(p.life.troubles, trouble{now, now, true})
	w.mu.Unlock()
	w.saw("killed")
	stop := p.stop
	if w.dsn == "" {
		for _, suffix := range []string{"", "-wal"} {
			data, err := os.ReadFile(w.file() + suffix)
			if err != nil {
				panic(err)
			}
			if err := os.WriteFile(filepath.Join(w.dir, fmt.Sprint(w.files+1))+suffix, data, 0o600); err != nil {
				panic(err)
			}
		}
		stop(false)
		w.files++
		if w.r.IntN(4) == 0 { // platforms change their receivers
			w.reroute()
		}
	} else {
		p.wire.Refuse()
		w.dying.Go(func() { stop(false) })
		p.wire = p.wire.Again()
	}
	p.start()
}

func (w *world) reroute() {
	switch w.r.IntN(3) {
	case 0:
		w.routes["p"], w.routes["q"] = w.routes["q"], w.routes["p"]
	case 1:
		delete(w.routes, "k")
	case 2:
		w.routes["k"] = "two"
	}
}

func (w *world) saw(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[what] = true
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.story = append(w.story, time.Now().Format("15:04:05.000000 ")+fmt.Sprintf(format, args...))
}

func (w *world) violation(format string, args ...any) { // w.mu is held
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

func (w *world) step(n int) {
	p := w.places[w.r.IntN(len(w.places))]
	steps := []string{
		"send", "send", "send", "send", "send", "copy", "copy", "copy", "burst", "burst", "sleep", "sleep", "sleep",
		"redeliver", "redeliver", "discard", "erase", "outage", "ask", "pause", "resume", "kill", "shutdown",
		"reconcile", "reconcile", "reconcile", "lose", "lose", "odd",
	}
	if w.dsn != "" {
		steps = append(steps, "commit", "commit", "commit", "commit", "bytes", "bytes", "hang", "reject", "latency",
			"restart", "sleep", "sleep", "sleep")
	}
	step := pick(w.r, steps...)
	tenant, snapshot := pick(w.r, w.tenants...), pick(w.r, "A", "B")
	w.note("step %d at place %d: %s", n, p.number, step)
	switch step {
	case "send":
		w.quiet(tenant)
		p.send(tenant, snapshot)
	case "copy":
		if all := w.arrived(); len(all) > 0 {
			a := all[len(all)-1-w.r.IntN(min(3, len(all)))]
			w.quiet(a.tenant)
			p.send(a.tenant, a.snapshot)
		}
	case "burst":
		for range 2 + w.r.IntN(4) {
			w.places[w.r.IntN(len(w.places))].send(tenant, pick(w.r, "A", "B"))
		}
	case "sleep":
		time.Sleep(pick(w.r, w.sleeps...))
	case "redeliver":
		p.redeliver()
	case "discard":
		p.discard()
	case "erase":
		p.erase(tenant)
	case "outage":
		w.mu.Lock()
		w.outages[pick(w.r, "one", "two")] = time.Now().Add(pick(w.r, w.pace.outages...))
		w.mu.Unlock()
	case "ask":
		p.ask(tenant)
	case "reconcile":
		at, store := w.places[w.r.IntN(len(w.places))], w.r.IntN(4) == 0
		p.reconcile(at, store, pick(w.r, w.sleeps...)/2, pick(w.r, w.sleeps...)/2)
	case "lose":
		w.mu.Lock()
		w.change(tenant, snapshot)
		w.mu.Unlock()
	case "odd":
		p.recordInvalid(tenant, pick(w.r, "A", "B"))
	case "pause":
		p.pause(pick(w.r, w.pausable()...))
	case "resume":
		p.resume(pick(w.r, w.pausable()...))
	case "kill":
		p.kill()
	case "shutdown":
		now := time.Now()
		p.stop(true)
		w.mu.Lock()
		p.life.dead = time.Now()
		p.life.troubles = append(p.life.troubles, trouble{now, time.Now(), true})
		w.mu.Unlock()
		p.start()
	default:
		p.disturb(step)
	}
	if w.dsn == "" {
		synctest.Wait()
	}
}

// disturb makes a problem between a process and its database.
func (p *place) disturb(step string) {
	w, r := p.world, p.world.r
	d := pick(r, 10*time.Millisecond, 200*time.Millisecond, time.Second, 3500*time.Millisecond)
	life, wire := p.life, p.wire
	note := func(d time.Duration, away bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		now := time.Now()
		life.troubles = append(life.troubles, trouble{now, now.Add(d), away})
		w.seen[map[bool]string{true: "away", false: "cut"}[away]] = true
	}
	pass := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if life.dead.IsZero() {
			wire.Pass()
		}
	}
	switch step {
	case "commit", "bytes":
		var fired <-chan struct{}
		if step == "commit" {
			// A transaction that writes sends its lanes together with COMMIT.
			statement, nth := pick(r, "COMMIT", ".lane l SET", ".lane l SET"), 1+r.IntN(2)
			fired = wire.Statement(statement, nth, pick(r, pgtest.Before, pgtest.After))
			defer p.send(pick(r, w.tenants...), pick(r, "A", "B"))
		} else {
			fired = wire.Bytes(pick(r, pgtest.FromClient, pgtest.FromServer), r.IntN(20_000))
		}
		w.saw("cut")
		go func() { <-fired; note(1500*time.Millisecond, false) }()
	case "hang":
		note(d, true)
		wire.Blackhole()
		time.AfterFunc(d, pass)
	case "reject":
		note(d, true)
		wire.Refuse()
		time.AfterFunc(d, pass)
	case "latency":
		wire.Latency(pick(r, 0, 5*time.Millisecond, 20*time.Millisecond))
		note(time.Hour, false)
	case "restart":
		w.group.restart()
	}
}

// troubled says whether any process had a problem with its database so far.
func (w *world) troubled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen["cut"] || w.seen["away"] || w.seen["killed"] || len(w.group.troubles()) > 0
}

func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violation(format, args...)
}

// quiet waits until no webhook of a tenant is being sent, so that it is known which one came first.
func (w *world) quiet(tenant string) {
	sending := func(a *arrival) bool { return a.tenant == tenant && !a.ended && a.life.dead.IsZero() }
	for {
		w.mu.Lock()
		quiet := !slices.ContainsFunc(w.arrivals, sending)
		w.mu.Unlock()
		if quiet {
			return
		}
		time.Sleep(disk)
	}
}

// arrived returns what has come. A reconcile may add to it meanwhile.
func (w *world) arrived() []*arrival {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.arrivals
}

// hook makes a snapshot of a tenant with this body.
func (w *world) hook(id, tenant string, body []byte) *webhookgate.Webhook {
	return &webhookgate.Webhook{
		ID:       id,
		Type:     content.TenantProvisioningChange,
		Lane:     webhookgate.LaneName{Platform: platform(tenant), Tenant: tenant},
		Snapshot: true,
		Header:   http.Header{"X-Test": {"1"}},
		Body:     body,
		Digest:   sha256.Sum256(body),
	}
}

// send sends one webhook. Sometimes it is no snapshot: it is in the same lane, and never a duplicate.
func (p *place) send(tenant, snapshot string) { p.sendAs(tenant, snapshot, p.world.r.IntN(10) == 0) }

func (p *place) sendAs(tenant, snapshot string, other bool) {
	w := p.world
	a := &arrival{number: len(w.arrived()), tenant: tenant, snapshot: snapshot, life: p.life, from: time.Now()}
	a.plan = w.plan()
	body := []byte(snapshotOf(tenant, snapshot))
	if snapshot == "A" && tenant == "t1" {
		body = append(body, bytes.Repeat([]byte(" "), 70<<10)...) // too large to be read ahead
	}
	rc := p.life.receivers.For(platform(tenant))
	a.webhook = w.hook(fmt.Sprintf("%d-%x", a.number, w.seed), tenant, body)
	a.webhook.Received, a.webhook.Receiver = time.Now(), rc
	if other {
		a.webhook.Type, a.webhook.Snapshot = "Other", false
	}
	if rc != nil {
		a.receiver = rc.Name
	}
	w.mu.Lock()
	if !other {
		a.version = w.change(tenant, snapshot)
	}
	w.arrivals = append(w.arrivals, a)
	w.byID[a.webhook.ID] = a
	w.mu.Unlock()
	i := p.inbox
	w.senders.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), w.patience)
		defer cancel()
		original, err := i.Store(ctx, a.webhook)
		w.mu.Lock()
		defer w.mu.Unlock()
		a.ended, a.to, a.gave = true, time.Now(), ctx.Err() != nil
		if !a.life.dead.IsZero() {
			return // nobody was there any more to be told
		}
		a.ok, a.err, a.original = err == nil, err, original
	})
}

// recordInvalid has a webhook come that cannot be taken in.
func (p *place) recordInvalid(tenant, snapshot string) {
	w, i, life := p.world, p.inbox, p.life
	w.mu.Lock()
	said := saying{tenant, snapshot, w.change(tenant, snapshot), time.Now(), time.Time{}}
	w.mu.Unlock()
	const odd = `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":%q},"change":%q}}`
	body := fmt.Appendf(nil, odd, tenant, snapshot)
	hook := w.hook(fmt.Sprint("odd-", tenant, "-", said.version), tenant, body)
	hook.Snapshot, hook.Received = false, time.Now()
	invalid := &webhookgate.Invalid{Webhook: *hook, Status: 422, Faults: []content.Fault{{Message: "is odd"}}}
	w.senders.Go(func() {
		stored := i.RecordInvalid(context.Background(), invalid) != 0
		w.mu.Lock()
		defer w.mu.Unlock()
		switch said.to = time.Now(); {
		case !stored:
			w.lost = append(w.lost, said)
		case life.dead.IsZero():
			w.invalid = append(w.invalid, said)
		}
	})
}

// reconcile compares what the billing service says of all tenants with what is known, and takes in what differs,
// maybe through another place. It asks the service after a while, and goes on after another one.
func (p *place) reconcile(at *place, store bool, asks, goesOn time.Duration) {
	w, from, to, life := p.world, p.inbox, at.inbox, at.life
	mode := lane.ToApply
	if store {
		mode = lane.ToStore
	}
	w.runs++
	run := &aRun{number: w.runs, stores: store}
	w.senders.Go(func() {
		r, _, err := from.BeginRun(&Action{Who: "world", What: "reconcile"})
		if err != nil {
			if !w.troubled() && !errors.Is(err, ErrClosed) {
				w.fail("reconcile did not begin: %v", err)
			}
			return
		}
		run.began = time.Now()
		time.Sleep(asks)
		lines, offered := w.offer(run)
		time.Sleep(goesOn)
		w.mu.Lock()
		for _, a := range offered {
			a.from, a.life = time.Now(), life
			w.arrivals = append(w.arrivals, a)
		}
		w.mu.Unlock()
		got, err := decide(to, r.ID, mode, lines)
		w.note("reconcile %d: %v", run.number, words(got, err))
		w.mu.Lock()
		defer w.mu.Unlock()
		for n, a := range offered {
			a.ended, a.to = true, time.Now()
			if err == nil && life.dead.IsZero() {
				a.ok = got[n].Applied
				w.seen["reconciled "+string(got[n].Result)] = true
			}
		}
	})
}

// offer returns what the billing service says of all tenants now, with what comes of each line if it is taken in.
func (w *world) offer(run *aRun) (lines []string, offered []*arrival) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, tenant := range w.tenants {
		s, ok := w.service[tenant]
		if !ok {
			continue
		}
		name := fmt.Sprint(run.number, "/", tenant)
		const says = `{"tenant":{"code":%q,"name":%q,"platform":{"code":%q}},"change":{"features":[{"code":%q}]}}`
		line := fmt.Appendf(nil, says, tenant, name, platform(tenant), s.snapshot)
		body := fmt.Appendf(nil, `{"type":"TenantProvisioningChange","payload":%s}`, line)
		a := &arrival{tenant: tenant, snapshot: s.snapshot, version: s.version, run: run}
		a.number = 1000*run.number + len(offered)
		a.webhook = w.hook("", tenant, body)
		a.receiver = w.routes[platform(tenant)]
		w.byLine[name] = a
		lines, offered = append(lines, string(line)), append(offered, a)
	}
	return lines, offered
}

// made finds the arrival of a webhook that usher made.
func (w *world) made(uuid string, body []byte) *arrival { // w.mu is held
	if a := w.byID[uuid]; a != nil {
		return a
	}
	a := w.byLine[snapshot.Read(body).Name]
	if a != nil {
		a.webhook.ID, w.byID[uuid] = uuid, a
	}
	return a
}

// ask asks for a tenant's last snapshot.
func (p *place) ask(tenant string) {
	w := p.world
	at := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), w.patience)
	defer cancel()
	all, err := p.inbox.Snapshots(ctx, tenant)
	if err != nil {
		if !w.troubled() {
			w.fail("(e) no snapshot of %s: %v", tenant, err)
		}
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen["asked"] = true
	q := ask{tenant: tenant, at: at}
	for _, s := range all {
		if s.Platform == platform(tenant) {
			q.webhook, q.seq = s.Webhook, s.Seq
		}
	}
	w.asks = append(w.asks, q)
}

// some picks one of the listed webhooks.
func (p *place) some(fits func(*lane.Webhook) bool) (e *lane.Webhook, a *arrival) {
	w := p.world
	entries, err := p.inbox.List(context.Background(), Filter{})
	if err != nil && !w.troubled() {
		w.fail("listing: %v", err)
	}
	entries = slices.DeleteFunc(entries, func(e *lane.Webhook) bool { return !fits(e) })
	if len(entries) == 0 {
		return e, nil
	}
	e = entries[w.r.IntN(min(6, len(entries)))]
	w.mu.Lock()
	defer w.mu.Unlock()
	return e, w.byID[e.UUID]
}

func (p *place) redeliver() {
	w := p.world
	e, a := p.some(func(*lane.Webhook) bool { return true })
	if a == nil {
		return
	}
	force := w.r.IntN(2) == 0
	again := &redelivery{from: time.Now(), to: time.Now().Add(time.Hour), forced: force}
	// It may be tried now, or again after a try that is under way.
	again.unsure = e.State == state.Waiting || e.State == state.Superseded
	w.mu.Lock()
	a.again = append(a.again, again)
	w.mu.Unlock()
	err := p.inbox.Redeliver(e.ID, "", force, nil)
	w.note("redelivered %d (%s), forced %v: %v", a.number, e.State, force, err)
	w.mu.Lock()
	again.to = time.Now()
	impossible := []error{lane.ErrStored, lane.ErrBusy, ErrNotFound}
	invalid := errors.As(err, new(*lane.OverwriteError)) ||
		slices.ContainsFunc(impossible, func(e error) bool { return errors.Is(err, e) })
	switch {
	case err == nil:
		w.seen[map[bool]string{true: "forced", false: "redelivered"}[force]] = true
	case invalid:
		w.takeBack(a, again)
	default:
		again.unsure = true
	}
	w.mu.Unlock()
	switch {
	case err == nil && w.r.IntN(2) == 0: // a copy of what the receiver will no longer hold
		if last := w.newest(a.tenant); last != nil {
			p.send(a.tenant, last.snapshot)
		}
	case err != nil && !invalid && !w.troubled():
		w.fail("redelivering %d: %v", a.number, err)
	}
}

func (p *place) discard() {
	w := p.world
	e, a := p.some(func(e *lane.Webhook) bool { return !e.State.Finished() })
	if a == nil {
		return
	}
	d := &discard{from: time.Now(), to: time.Now().Add(time.Hour), instance: len(a.again), unsure: true}
	w.mu.Lock()
	a.discards = append(a.discards, d)
	w.mu.Unlock()
	err := p.inbox.Discard(e.ID, nil)
	w.note("discarded %d (%s): %v", a.number, e.State, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	d.to = time.Now()
	switch {
	case err == nil:
		d.unsure = false
	case errors.Is(err, lane.ErrBusy), errors.Is(err, lane.ErrFinished), errors.Is(err, ErrNotFound):
		a.discards = a.discards[:len(a.discards)-1]
	default:
		if w.dsn == "" {
			w.violation("discarding %d: %v", a.number, err)
		}
	}
}

func (p *place) erase(tenant string) {
	w := p.world
	e := span{tenant: tenant, from: time.Now()}
	_, err := p.inbox.Erase(platform(tenant), tenant, nil)
	e.to, e.unsure = time.Now(), err != nil
	w.note("erased %s: %v", tenant, err)
	if err != nil && !errors.Is(err, lane.ErrBusy) && !errors.Is(err, lane.ErrMeanwhile) && !w.troubled() {
		w.fail("erasing: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !errors.Is(err, lane.ErrBusy) && !errors.Is(err, lane.ErrMeanwhile) {
		w.erasures, w.seen["erased"] = append(w.erasures, e), true
	}
}

// pausable returns the pauses that can be made.
func (w *world) pausable() []Pause {
	all := []Pause{{}, {Receiver: "one"}}
	for _, tenant := range w.tenants {
		all = append(all, Pause{Platform: platform(tenant), Tenant: tenant})
	}
	return all
}

func (p *place) pause(what Pause) {
	w := p.world
	_, err := p.inbox.Pause(what, 0, nil)
	if err != nil && !w.troubled() {
		w.fail("pausing: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, was := w.pauses[what]; !was && err == nil {
		w.pauses[what] = time.Now().Add(w.pace.pauses)
		w.seen["paused"] = true
	}
}

func (p *place) resume(what Pause) {
	w := p.world
	w.mu.Lock()
	delete(w.pauses, what)
	w.mu.Unlock()
	if _, err := p.inbox.Resume(what, nil); err != nil && !w.troubled() {
		w.fail("resuming: %v", err)
	}
}

// receive is the receiver: it answers according to the webhook's plan, and keeps a diary.
func (w *world) receive(r *http.Request, life *life, receiver string) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	w.mu.Lock()
	if !life.dead.IsZero() {
		w.mu.Unlock()
		return nil, context.Canceled // the dead deliver nothing
	}
	a := w.byID[r.Header.Get("webhook-id")]
	if r.Header.Get("usher-source") == "reconcile" {
		a = w.made(r.Header.Get("webhook-id"), body)
	}
	if a == nil {
		w.violation("(c) an unknown webhook %q was delivered", r.Header.Get("webhook-id"))
		w.mu.Unlock()
		return nil, syscall.ECONNREFUSED
	}
	t, word, took := w.begin(a, life, receiver, time.Now())
	for what, since := range w.pauses {
		covers := what.Covers(a.webhook.Lane.Platform, a.tenant, receiver) && t.began.After(since)
		if covers && !w.away(life, since.Add(-w.pace.pauses), t.began) {
			w.violation("(f) arrival %d was tried at %v, but %s is paused", a.number, t.began, what)
		}
	}
	if !bytes.Equal(body, a.webhook.Body) || r.Header.Get("X-Test") != "1" && a.run == nil {
		w.violation("(c) arrival %d was delivered as %q %v", a.number, body, r.Header)
	}
	w.mu.Unlock()
	if word == "timeout" {
		took = time.Hour // usher ends it
	}
	select {
	case <-time.After(took):
	case <-r.Context().Done():
		t.cut = context.Cause(r.Context()) != context.DeadlineExceeded
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Context().Err() != nil {
		word = "timeout"
	}
	switch w.end(t, word, time.Now()); {
	case r.Context().Err() != nil:
		return nil, r.Context().Err()
	case t.status == 0:
		return nil, syscall.ECONNREFUSED
	}
	return &http.Response{StatusCode: t.status, Header: make(http.Header), Body: http.NoBody}, nil
}

// plan returns what a receiver will do with a webhook.
func (w *world) plan() (words []string) {
	for range 1 + w.r.IntN(4) {
		words = append(words, pick(w.r, "ok", "ok", "ok", "ok", "applied, ok", "ok slowly",
			"500", "422", "503", "refused", "timeout", "applied, timeout"))
	}
	return words
}

// begin notes a try. It returns what the receiver does, and how long that takes.
//
// w.mu is held.
func (w *world) begin(
	a *arrival, life *life, receiver string, now time.Time,
) (t *try, word string, took time.Duration) {
	t = &try{arrival: a, life: life, receiver: receiver, instance: len(a.again), began: now}
	w.tries = append(w.tries, t)
	word = "ok"
	switch {
	case w.healthy:
	case now.Before(w.outages[receiver]):
		word = "refused"
	case len(a.plan) > 0:
		word, a.plan = a.plan[0], a.plan[1:]
	}
	if w.underway[a.tenant]++; w.underway[a.tenant] > 1 {
		w.violation("(b) arrival %d overlaps another delivery to %s", a.number, a.tenant)
	}
	word, applied := strings.CutPrefix(word, "applied, ")
	if applied {
		w.holds(receiver, a) // whatever usher gets to know of it
	}
	switch word {
	case "refused":
		return t, word, 0
	case "timeout":
		return t, word, w.timeout
	case "ok slowly":
		return t, "ok", w.timeout / 2
	}
	return t, word, w.answer
}

// end notes what came of a try: its status, or 0 if there was no answer.
func (w *world) end(t *try, word string, now time.Time) { // w.mu is held
	w.underway[t.tenant]--
	t.ended = now
	switch word {
	case "timeout", "refused":
	case "ok":
		w.holds(t.receiver, t.arrival)
		t.status = 200
	default:
		t.status, _ = strconv.Atoi(word)
	}
}

// takeBack is for a redelivery that was not made. Tries may have begun meanwhile.
func (w *world) takeBack(a *arrival, again *redelivery) { // w.mu is held
	n := slices.Index(a.again, again)
	for _, t := range w.tries {
		if t.arrival == a && t.instance > n {
			t.instance--
		}
	}
	a.again = slices.Delete(a.again, n, n+1)
}

func (w *world) holds(receiver string, a *arrival) { // w.mu is held
	if a.webhook.Snapshot {
		w.latest[holding{receiver, a.tenant}] = a.snapshot
	}
}

// calm waits until everything is delivered or parked, and notes the final state.
func (w *world) calm() {
	w.note("calm")
	w.mu.Lock()
	w.healthy = true
	clear(w.pauses)
	w.mu.Unlock()
	for _, p := range w.places {
		if p.wire != nil {
			p.wire.Calm()
		}
	}
	deadline := time.Now().Add(w.pace.calm)
	for _, what := range w.pausable() {
		for _, err := w.places[0].inbox.Resume(what, nil); err != nil; _, err = w.places[0].inbox.Resume(what, nil) {
			if time.Now().After(deadline) {
				w.fail("resuming in the end: %v", err)
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	w.note("resumed")
	w.senders.Wait()
	w.note("all answered")
	var entries []*lane.Webhook
	var err error
	for {
		entries, err = w.places[0].inbox.List(context.Background(), Filter{})
		if err == nil && !slices.ContainsFunc(entries, w.unfinished) || time.Now().After(deadline) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		w.fail("listing in the end: %v", err)
		return
	}
	w.note("all finished")
	deadline = time.Now().Add(w.pace.calm)
	if w.seed%2 == 0 {
		if entries = w.reconcileAll(); entries == nil {
			return
		}
	}
	time.Sleep(10 * w.answer) // what was delivered may be on its way to be noted
	for _, p := range w.places {
		for _, tenant := range w.tenants {
			p.ask(tenant)
		}
	}
	waiting, parked := 0, 0
	bodies := make(map[int64][]byte) // of what usher made
	for _, e := range entries {
		for e.Source != "" && bodies[e.ID] == nil && time.Now().Before(deadline) {
			if found, err := w.places[0].inbox.find(context.Background(), e.ID); err == nil {
				bodies[e.ID] = found.Body
			}
		}
	}
	w.mu.Lock()
	for _, e := range entries {
		if e.Rejected() {
			continue
		}
		if e.Source != "" && w.made(e.UUID, bodies[e.ID]) == nil {
			w.violation("(c) there is a webhook %d of no run", e.ID)
			continue
		}
		w.byID[e.UUID].entry = e
		if w.unfinished(e) {
			w.violation("(c) still waiting: %d, arrival %d: %+v", e.ID, w.byID[e.UUID].number, e.Status)
		}
		waiting, parked = waiting+number(e.State == state.Waiting), parked+number(e.State == state.Parked)
	}
	w.mu.Unlock()
	p := w.places[0]
	p.stop(true)
	p.start() // figures may be some seconds old, after a trouble; now they are new
	s := p.inbox.Stats()
	for began := time.Now(); s.Old && time.Since(began) < w.pace.calm; s = p.inbox.Stats() {
		time.Sleep(disk)
	}
	if s.Pending != waiting || s.Parked != parked {
		w.fail("(h) %d wait and %d are parked, by the figures; there are %d and %d",
			s.Pending, s.Parked, waiting, parked)
	}
}

// reconcileAll compares everything in the end, when nothing is on its way any more: what differs is taken in, and
// then nothing differs.
func (w *world) reconcileAll() (entries []*lane.Webhook) {
	i, life, deadline := w.places[0].inbox, w.places[0].life, time.Now().Add(w.pace.calm)
	var lines []string
	for {
		w.runs++
		var offered []*arrival
		var got []lane.Compared
		r, _, err := i.BeginRun(&Action{Who: "world", What: "reconcile"})
		if err == nil {
			lines, offered = w.offer(&aRun{number: w.runs, began: time.Now()})
			w.mu.Lock()
			for _, a := range offered {
				a.from, a.life = time.Now(), life
				w.arrivals = append(w.arrivals, a)
			}
			w.mu.Unlock()
			got, err = decide(i, r.ID, lane.ToApply, lines)
		}
		w.note("reconcile in the end: %s", words(got, err))
		for n, a := range offered {
			a.ended, a.to, a.ok = true, time.Now(), err == nil && got[n].Applied
			if err == nil && got[n].Result != lane.Equal && !a.ok && got[n].Result != lane.PassedOver && !w.leftErased(got[n]) {
				w.fail("(k) in the end reconcile finds %s: %s", a.tenant, words(got, err))
			}
		}
		if err == nil {
			break
		}
		if time.Now().After(deadline) { // another world may have restarted the server
			w.fail("reconcile in the end: %v", err)
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	for {
		var err error
		entries, err = i.List(context.Background(), Filter{})
		if err == nil && !slices.ContainsFunc(entries, w.unfinished) || time.Now().After(deadline) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	for {
		var got []lane.Compared
		r, _, err := i.BeginRun(&Action{Who: "world", What: "reconcile"})
		if err == nil {
			got, err = decide(i, r.ID, lane.ToCompare, lines)
		}
		for n := range got {
			if err == nil && got[n].Result != lane.Equal && got[n].Result != lane.PassedOver && !w.leftErased(got[n]) {
				w.fail("(k) a difference is left: %s", words(got, err))
			}
		}
		if err == nil {
			return append([]*lane.Webhook{}, entries...)
		}
		if time.Now().After(deadline) {
			w.fail("reconcile in the end: %v", err)
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// leftErased says whether a tenant is left because somebody has erased it.
func (w *world) leftErased(c lane.Compared) bool {
	return c.Result == lane.Left && slices.ContainsFunc(w.erasures, func(e span) bool { return e.tenant == c.Tenant })
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// unfinished says whether something is still to be done with a webhook.
func (w *world) unfinished(e *lane.Webhook) bool {
	return e.State == state.Waiting && w.places[0].life.receivers.For(e.Platform) != nil
}
