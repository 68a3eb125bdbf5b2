package inbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"usher/internal/inbox/store"
	"usher/internal/receiver"
	"usher/internal/text"
)

// The courier decides when and how webhooks are tried: each receiver has its own places, its own word on being down, and its
// own queue of lanes that this process has leave to deliver. What must survive the process, or be agreed on by
// several, is the store's.
type courier struct {
	store     *store.Store
	receivers *receiver.Set
	delivered func(receiver string, after time.Duration)
	log       *slog.Logger
	wake      chan struct{} // asks run to look for work
	paused    func() []store.Pause
	homeless  string // the platforms, as last logged, whose webhooks wait though nobody takes them

	mu     sync.Mutex // guards what follows
	room   *sync.Cond // bodies have become less, or busy
	lines  map[*receiver.Receiver]*line
	leaves map[*store.Leave]bool // all that this process has
	bodies int64                 // bytes of webhooks that are held to be delivered
	ending bool
	hard   context.Context // ends deliveries that are under way
	busy   int             // deliveries, and outcomes that are not written yet; no WaitGroup: leaves may still come while we wait for the last one
}

// maxBodies is how many bytes of webhooks are held at once, whatever their size, but for one webhook of each receiver.
const maxBodies = 64 << 20

// A line is what one receiver gets.
type line struct {
	*receiver.Receiver
	ready    []*store.Leave // to be delivered when there is a place
	underway int
	sending  int // of those: they have room for their bodies
	failed   int // of those that are ready or under way: lanes whose last try failed
	granted  int // leaves that the store may still give

	streak   int       // tries in a row that found the receiver down
	answered time.Time // the last that did not
	took     time.Time // the last that was accepted
	began    time.Time
	wasDown  bool // and was logged

	probed time.Time // when the last probe was asked for
	more   bool      // there may be lanes whose time has come
	late   bool      // and some of them may have failed before
	next   time.Time // when one of them may be due; zero: none is known of
	wave   wave
}

// A wave lets lanes go before their time, after a receiver was down: as many as it has places, and for each
// success among them as many more.
type wave struct {
	credits int
	earned  bool  // one of them was accepted: until then they take half of the places, as all that have failed
	before  int64 // lanes that were last tried before
	after   int64 // those that wait since before then had their turn
}

func newCourier(cfg Config) *courier {
	c := &courier{
		receivers: cfg.Store.Receivers, delivered: cfg.Delivered, log: cfg.Store.Log, wake: make(chan struct{}, 1),
		lines: make(map[*receiver.Receiver]*line), leaves: make(map[*store.Leave]bool), ending: true,
	}
	c.room = sync.NewCond(&c.mu)
	for _, rc := range c.receivers.All() {
		c.lines[rc] = &line{Receiver: rc, more: true, late: true, began: time.Now()}
	}
	return c
}

const (
	inARowDown = 10
	downFor    = 5 * time.Second
	probeEach  = time.Second
	probeSlow  = 5 * time.Second
	longDown   = 10 * time.Minute
)

// down says whether the receiver seems to be down: its last ten tries, and all of the last five seconds, found it so.
func (l *line) down(now time.Time) bool {
	return l.streak >= inARowDown && now.Sub(l.answered) >= downFor
}

// free is how many more lanes may be held, under way or ahead of that. Ahead, since otherwise places would wait for commits.
func (l *line) free() int {
	return 3*l.Concurrency - l.underway - len(l.ready) - l.granted
}

// enough is how many lanes to ask for at least, so that a claim is worth its transaction. There are others ready meanwhile.
func (l *line) enough() int { return max(1, l.Concurrency/2) }

func (c *courier) isPaused(platform, tenant, receiver string) bool {
	return slices.ContainsFunc(c.paused(), func(p store.Pause) bool { return p.Covers(platform, tenant, receiver) })
}

// pausedAll says whether a receiver gets nothing at all.
func (c *courier) pausedAll(l *line) bool {
	return slices.ContainsFunc(c.paused(), func(p store.Pause) bool { return p.Tenant == "" && (p.Receiver == "" || p.Receiver == l.Name) })
}

// Grant is part of store.Courier.
func (c *courier) Grant(rc *receiver.Receiver, size int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lines[rc]
	if l == nil || c.ending || l.free() <= 0 || l.down(time.Now()) || c.pausedAll(l) || c.bodies+size > maxBodies {
		return false
	}
	l.granted++
	c.bodies += size
	return true
}

// Ungrant is part of store.Courier.
func (c *courier) Ungrant(rc *receiver.Receiver, size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines[rc].granted--
	c.release(size)
}

func (c *courier) release(size int64) {
	c.bodies -= size
	c.room.Broadcast()
}

// done says that a delivery has ended, and its outcome is written.
func (c *courier) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy--
	c.room.Broadcast()
}

// Left is part of store.Courier.
func (c *courier) Left(rc *receiver.Receiver) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.lines[rc]; l != nil {
		l.more = true
		c.poke()
	}
}

// Look is part of store.Courier.
func (c *courier) Look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lines {
		l.more, l.late = true, true
	}
	c.poke()
}

func (c *courier) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Start is part of store.Courier.
func (c *courier) Start(leave *store.Leave) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.start(c.lines[leave.Receiver], leave)
}

func (c *courier) start(l *line, leave *store.Leave) {
	c.leaves[leave] = true
	if leave.Failed {
		l.failed++
	}
	if leave.Webhook.Held() {
		c.bodies += leave.Webhook.Size()
	}
	l.ready = append(l.ready, leave)
	c.pump(l)
}

// pump begins deliveries while there are places. c.mu is held.
func (c *courier) pump(l *line) {
	for l.underway < l.Concurrency && len(l.ready) > 0 {
		leave := l.ready[0]
		l.ready = l.ready[1:]
		l.underway++
		c.busy++
		go c.deliver(l, leave)
	}
}

// deliver tries a webhook once, and gives the outcome to the store.
func (c *courier) deliver(l *line, leave *store.Leave) {
	o := c.try(l, leave)
	c.mu.Lock()
	l.underway--
	if leave.Failed {
		l.failed--
	}
	if o == nil { // the leave has run out, and somebody else delivers
		delete(c.leaves, leave)
	} else {
		c.judge(l, leave, o)
		o.GoOn = !c.ending && !l.down(time.Now()) && !c.pausedAll(l)
	}
	c.pump(l)
	if l.free() >= l.enough() && (l.more || l.late || !l.next.IsZero() || l.wave.credits > 0) {
		c.poke()
	}
	c.mu.Unlock()
	if o == nil {
		c.done()
		return
	}
	c.store.Settle(o, c.settled)
}

// try reads the content and sends it, if this process may. Nil: it has lost the leave before anything was sent.
func (c *courier) try(l *line, leave *store.Leave) *store.Outcome {
	w := leave.Webhook
	c.mu.Lock()
	if !w.Held() { // else it counts already
		for l.sending > 0 && c.bodies+w.Size() > maxBodies { // the first need not wait: those that are ready may have all of the room, and no place
			c.room.Wait()
		}
		c.bodies += w.Size()
	}
	l.sending++
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		l.sending--
		c.release(w.Size())
	}()
	hard := c.hard
	stop := c.ending || c.isPaused(w.Platform, w.Tenant, l.Name)
	c.mu.Unlock()
	o := &store.Outcome{Leave: leave, Began: time.Now(), Cut: true}
	if !leave.Held() {
		return nil
	}
	if stop {
		return o
	}
	if err := c.store.Content(hard, w); errors.Is(err, store.ErrDamaged) {
		o.Cut, o.Err = false, err
		return o
	} else if err != nil {
		o.Later = time.Second
		return o
	}
	ctx, cancel := c.lasting(hard, leave)
	defer cancel()
	o.Began = time.Now()
	if !leave.Held() {
		return nil
	}
	o.Attempt = l.Try(receiver.Fenced(ctx, leave.Held), w.Webhook, w.Header, w.Body)
	o.Took = time.Since(o.Began)
	o.Cut = !o.Attempt.Accepted() && (hard.Err() != nil || !leave.Held())
	return o
}

// lasting returns a context that ends with the leave, which may be renewed meanwhile.
func (c *courier) lasting(parent context.Context, leave *store.Leave) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	var timer *time.Timer
	var mu sync.Mutex
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(time.Until(leave.Until()), func() {
		mu.Lock()
		defer mu.Unlock()
		if left := time.Until(leave.Until()); left > 0 {
			timer.Reset(left)
			return
		}
		cancel()
	})
	return ctx, func() { timer.Stop(); cancel() }
}

// judge notes what a try says about the receiver. c.mu is held.
func (c *courier) judge(l *line, leave *store.Leave, o *store.Outcome) {
	if o.Cut || o.Err != nil {
		return
	}
	now := time.Now()
	wasDown := l.down(now)
	if o.Missed() {
		l.streak++
		c.sayDown(l, now)
		return
	}
	l.streak, l.answered = 0, now
	if wasDown { // whatever it answers, it is back
		l.wave = wave{credits: l.Concurrency, before: c.store.Clock().UnixMicro()}
		c.poke()
	}
	if o.Attempt.Accepted() {
		l.took = now
		if leave.Wave {
			l.wave.credits += l.Concurrency
			l.wave.earned = true
		}
	}
	c.sayDown(l, now)
}

// sayDown logs that a receiver is down, or no longer. c.mu is held.
func (c *courier) sayDown(l *line, now time.Time) {
	switch down := l.down(now); {
	case down && !l.wasDown:
		c.log.Warn("receiver seems to be down, trying one delivery at a time", "receiver", l.Name)
		l.wasDown = true
	case !down && l.wasDown:
		c.log.Info("receiver answers again", "receiver", l.Name)
		l.wasDown = false
	}
}

// settled is called by the store when an outcome is written, or could not be.
func (c *courier) settled(o *store.Outcome, err error) {
	leave := o.Leave
	l := c.lines[leave.Receiver]
	if err != nil && !errors.Is(err, store.ErrClosed) && (o.Attempt.Accepted() || leave.Held()) && !c.over() {
		// It must be written, or a webhook that was accepted is sent again. This may take as long as an outage.
		time.AfterFunc(200*time.Millisecond, func() { c.store.Settle(o, c.settled) })
		return
	}
	defer c.done()
	c.mu.Lock()
	delete(c.leaves, leave)
	if err == nil && o.Next != nil {
		c.start(l, o.Next)
	}
	if err == nil && o.More {
		l.more = true
		c.poke()
	}
	if err == nil && !o.NextTry.IsZero() {
		due := time.Now().Add(o.NextTry.Sub(c.store.Clock()))
		if l.next.IsZero() || due.Before(l.next) {
			l.next = due
			c.poke()
		}
	}
	c.mu.Unlock()
	if err != nil || o.Lost {
		c.log.Debug("an outcome was not written", "id", leave.Webhook.ID, "lost", o.Lost, "err", err)
		return
	}
	if o.Attempt.Accepted() && c.delivered != nil {
		c.delivered(l.Name, max(0, o.Entry.Changed.Sub(since(&o.Entry))))
	}
	c.report(o)
}

func since(e *store.Entry) time.Time {
	if !e.Again.IsZero() {
		return e.Again
	}
	return e.Received
}

// over says whether nobody waits for deliveries any more.
func (c *courier) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hard.Err() != nil
}

// run delivers until ctx ends, then lets what is under way finish, until hard ends.
func (c *courier) run(ctx, hard context.Context) {
	tick := time.NewTicker(probeEach)
	defer tick.Stop()
	// Nothing is delivered before it is known what is paused.
	for c.store.ReadPauses(ctx) != nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	c.mu.Lock()
	c.hard, c.ending = hard, false
	c.mu.Unlock()
	due := time.NewTimer(0)
	defer due.Stop()
	for ctx.Err() == nil {
		c.look(ctx)
		c.mu.Lock()
		var first time.Time
		for _, l := range c.lines {
			// Without room the end of a delivery wakes us.
			if !l.next.IsZero() && l.free() >= l.enough() && (first.IsZero() || l.next.Before(first)) {
				first = l.next
			}
		}
		c.mu.Unlock()
		if !first.IsZero() {
			due.Reset(max(0, time.Until(first)))
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
			c.follow(ctx)
		case <-due.C:
		case <-c.wake:
		}
	}
	c.finish(hard)
}

// finish waits for deliveries that are under way, and gives back what was not begun.
func (c *courier) finish(hard context.Context) {
	c.mu.Lock()
	c.ending = true
	for _, l := range c.lines {
		for _, leave := range l.ready { // they end without a try
			l.underway++
			c.busy++
			go c.deliver(l, leave)
		}
		l.ready = nil
	}
	c.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.mu.Lock()
		defer c.mu.Unlock()
		for c.busy > 0 {
			c.room.Wait()
		}
	}()
	renew := time.NewTicker(time.Second)
	defer renew.Stop()
	for {
		select {
		case <-ended:
			return
		case <-renew.C:
			c.renew(hard)
		}
	}
}

// follow does what is due every second: leaves are renewed, platforms of other replicas are read.
func (c *courier) follow(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c.renew(ctx)
	c.store.Follow(ctx) // an outage shows when something is written
	c.sayHomeless(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lines {
		l.more, l.late = true, true
		c.sayDown(l, time.Now())
	}
}

// sayHomeless says that webhooks wait for a receiver that is gone from the settings.
func (c *courier) sayHomeless(ctx context.Context) {
	st, err := c.store.Stats(ctx)
	if err != nil || c.receivers == nil {
		return
	}
	var codes []string
	for code, f := range st.ByPlatform {
		if f.Pending > 0 && c.receivers.For(code) == nil {
			codes = append(codes, cmp.Or(code, "(none)"))
		}
	}
	slices.Sort(codes)
	if all := strings.Join(codes, ", "); all != c.homeless {
		if c.homeless = all; all != "" {
			c.log.Warn("webhooks wait, but no receiver takes their platforms", "platforms", all)
		}
	}
}

// renew prolongs the leaves that have lasted for a third of their time.
func (c *courier) renew(ctx context.Context) {
	var old []*store.Leave
	c.mu.Lock()
	for leave := range c.leaves {
		if left := time.Until(leave.Until()); left > 0 && left < c.store.Leased()*2/3 {
			old = append(old, leave)
		}
	}
	c.mu.Unlock()
	if len(old) > 0 {
		c.store.Renew(ctx, old) // those that are lost run out
	}
}

// look asks the store for leave to deliver, for each receiver that has room.
func (c *courier) look(ctx context.Context) {
	for {
		claims, reserved := c.claims(time.Now())
		if len(claims) == 0 {
			return
		}
		err := c.store.Claim(ctx, claims)
		if again := c.claimed(claims, reserved, err); !again {
			return
		}
	}
}

// claims returns what to ask for, and how many leaves it reserves for each receiver.
func (c *courier) claims(now time.Time) (claims []*store.Claim, reserved map[*line]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reserved = make(map[*line]int)
	for _, rc := range c.receivers.All() {
		l := c.lines[rc]
		if !l.next.IsZero() && !l.next.After(now) { // from here on it waits for room, not for time
			l.more, l.late, l.next = true, true, time.Time{}
		}
		free := l.free()
		if free < l.enough() || c.pausedAll(l) || c.bodies >= maxBodies {
			continue
		}
		// Half of the room stays for what arrives meanwhile. Otherwise that would be left to the next claim, and so on for ever: each
		// webhook would cost a claim.
		free -= free / 2
		before := len(claims)
		ask := func(kind store.ClaimKind, most int) *store.Claim {
			if most <= 0 {
				return new(store.Claim)
			}
			claim := &store.Claim{Receiver: rc, Kind: kind, Most: most, Room: &free}
			claims = append(claims, claim)
			return claim
		}
		half := max(1, l.Concurrency/2) - l.failed // what lanes may still take whose last try failed
		probe := l.probes(now)
		if l.down(now) {
			if probe {
				free = 1
				ask(store.Ready, 1)
				ask(store.Probe, min(1, half))
				ask(store.Retry, min(1, half)) // nobody may be left who found it down: discarded, erased, paused
				l.probed = now
			}
		} else {
			if l.more {
				ask(store.Ready, free)
				l.more = false
			}
			if l.wave.credits > 0 {
				most := min(free, l.wave.credits)
				if !l.wave.earned {
					most = min(most, half)
				}
				w := ask(store.Wave, most)
				w.After, w.Before = l.wave.after, l.wave.before
			}
			if l.late {
				ask(store.Retry, min(free, half))
				l.late = false
			}
			if probe {
				ask(store.Probe, min(1, half))
				l.probed = now
			}
		}
		if len(claims) > before {
			reserved[l] = free
			l.granted += free
		}
	}
	return claims, reserved
}

// probes says whether it is time for a probe.
func (l *line) probes(now time.Time) bool {
	each := probeEach
	if last := latest(l.took, l.began); now.Sub(last) > longDown {
		each = probeSlow
	}
	return now.Sub(l.probed) >= each-50*time.Millisecond // a tick may come early
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// claimed notes what the store gave, and says whether to ask again.
func (c *courier) claimed(claims []*store.Claim, reserved map[*line]int, err error) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l, n := range reserved {
		l.granted -= n
	}
	for _, claim := range claims {
		l := c.lines[claim.Receiver]
		if err != nil {
			l.more, l.late = true, true
			continue
		}
		full := claim.Found >= claim.Most
		switch claim.Kind {
		case store.Ready:
			if full {
				l.more = true
				again = again || l.free() >= l.enough() && !l.down(time.Now())
			}
		case store.Wave:
			l.wave.credits -= len(claim.Leaves)
			l.wave.after = max(l.wave.after, claim.Last)
			if !full {
				l.wave.credits = 0
			}
		case store.Retry:
			if full && claim.Most > 0 {
				l.late = true
			}
		}
	}
	return again && err == nil
}

// stats is what this process knows about a receiver.
func (c *courier) stats(rc *receiver.Receiver) ReceiverStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lines[rc]
	return ReceiverStats{Down: l.down(time.Now()), TakesNone: l.took.IsZero() || l.streak > 0 && time.Since(l.took) > downFor}
}

// report logs what became of a webhook.
func (c *courier) report(o *store.Outcome) {
	e := &o.Entry
	attrs := []slog.Attr{
		slog.Int64("id", e.ID), slog.String("webhook", e.Webhook), slog.String("platform", text.Clip(e.Platform, 200)), slog.String("tenant", text.Clip(e.Tenant, 200)),
		slog.String("receiver", o.Leave.Receiver.Name), slog.String("state", string(e.State)), slog.Int("attempt", e.Tries),
	}
	if id := text.TraceID(o.Leave.Webhook.Header); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	level, message := slog.LevelInfo, "webhook delivered"
	switch a := o.Attempt; {
	case o.Err != nil:
		level, message = slog.LevelError, "webhook damaged, parked"
		attrs = append(attrs, slog.Any("err", o.Err))
	case o.Cut:
		message = "delivery interrupted, will retry"
	case a.Accepted():
	default:
		if e.State == store.Parked {
			level, message = slog.LevelWarn, "webhook parked"
			attrs = append(attrs, slog.String("why", e.Why))
		} else {
			message = "delivery failed, will retry"
			attrs = append(attrs, slog.Duration("next_try", max(0, o.NextTry.Sub(c.store.Clock())).Round(time.Second/10)))
		}
		if a.Status != 0 {
			attrs = append(attrs, slog.Int("receiver_status", a.Status))
		} else {
			attrs = append(attrs, slog.Any("err", a.Err))
		}
	}
	c.log.LogAttrs(context.Background(), level, message, attrs...)
}
