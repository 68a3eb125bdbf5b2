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
	store             *store.Store
	receivers         *receiver.Set
	delivered         func(receiver string, after time.Duration)
	log               *slog.Logger
	wake              chan struct{} // asks run to look for work
	paused            func() []store.Pause
	unservedPlatforms string // the platforms, as last logged, whose webhooks wait though nobody takes them

	mu         sync.Mutex // guards what follows
	changed    *sync.Cond // bodies have become less, or busy
	targets    map[*receiver.Receiver]*target
	leases     map[*store.Lease]bool // all that this process has
	bodies     int64                 // bytes of webhooks that are held to be delivered
	ending     bool
	hard       context.Context // ends deliveries that are under way
	unfinished int             // deliveries, and outcomes that are not written yet; no WaitGroup: leaves may still come while we wait for the last one
}

// maxBodies is how many bytes of webhooks are held at once, whatever their size, but for one webhook of each receiver.
const maxBodies = 64 << 20

// A line is what one receiver gets.
type target struct {
	*receiver.Receiver
	queue       []*store.Lease // to be delivered when there is a place
	inFlight    int
	sending     int // of those: they have room for their bodies
	failedLanes int // of those that are ready or under way: lanes whose last try failed
	reserved    int // leaves that the store may still give

	missesInARow int       // tries in a row that found the receiver down
	lastAnswer   time.Time // the last that did not
	lastAccepted time.Time // the last that was accepted
	startedAt    time.Time
	downLogged   bool // and was logged

	lastProbe      time.Time // when the last probe was asked for
	mayHaveReady   bool      // there may be lanes whose time has come
	mayHaveRetries bool      // and some of them may have failed before
	nextRetry      time.Time // when one of them may be due; zero: none is known of
	wave           wave
}

// A wave lets lanes go before their time, after a receiver was down: as many as it has places, and for each
// success among them as many more.
type wave struct {
	credits     int
	earned      bool  // one of them was accepted: until then they take half of the places, as all that have failed
	triedBefore int64 // lanes that were last tried before
	waitingFrom int64 // those that wait since before then had their turn
}

func newCourier(cfg Config) *courier {
	c := &courier{
		receivers: cfg.Store.Receivers, delivered: cfg.Delivered, log: cfg.Store.Log, wake: make(chan struct{}, 1),
		targets: make(map[*receiver.Receiver]*target), leases: make(map[*store.Lease]bool), ending: true,
	}
	c.changed = sync.NewCond(&c.mu)
	for _, rc := range c.receivers.All() {
		c.targets[rc] = &target{Receiver: rc, mayHaveReady: true, mayHaveRetries: true, startedAt: time.Now()}
	}
	return c
}

const (
	downAfter         = 10
	downFor           = 5 * time.Second
	probeInterval     = time.Second
	slowProbeInterval = 5 * time.Second
	slowProbeAfter    = 10 * time.Minute
)

// down says whether the receiver seems to be down: its last ten tries, and all of the last five seconds, found it so.
func (t *target) down(now time.Time) bool {
	return t.missesInARow >= downAfter && now.Sub(t.lastAnswer) >= downFor
}

// free is how many more lanes may be held, under way or ahead of that. Ahead, since otherwise places would wait for commits.
func (t *target) room() int {
	return 3*t.Concurrency - t.inFlight - len(t.queue) - t.reserved
}

// enough is how many lanes to ask for at least, so that a claim is worth its transaction. There are others ready meanwhile.
func (t *target) minRoom() int { return max(1, t.Concurrency/2) }

func (c *courier) lanePaused(platform, tenant, receiver string) bool {
	return slices.ContainsFunc(c.paused(), func(p store.Pause) bool { return p.Covers(platform, tenant, receiver) })
}

// pausedAll says whether a receiver gets nothing at all.
func (c *courier) receiverPaused(t *target) bool {
	return slices.ContainsFunc(c.paused(), func(p store.Pause) bool { return p.Tenant == "" && (p.Receiver == "" || p.Receiver == t.Name) })
}

// Grant is part of store.Courier.
func (c *courier) Reserve(rc *receiver.Receiver, size int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.targets[rc]
	if t == nil || c.ending || t.room() <= 0 || t.down(time.Now()) || c.receiverPaused(t) || c.bodies+size > maxBodies {
		return false
	}
	t.reserved++
	c.bodies += size
	return true
}

// Ungrant is part of store.Courier.
func (c *courier) Release(rc *receiver.Receiver, size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.targets[rc].reserved--
	c.freeBytes(size)
}

func (c *courier) freeBytes(size int64) {
	c.bodies -= size
	c.changed.Broadcast()
}

// done says that a delivery has ended, and its outcome is written.
func (c *courier) finishOne() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unfinished--
	c.changed.Broadcast()
}

// Left is part of store.Courier.
func (c *courier) LaneReady(rc *receiver.Receiver) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.targets[rc]; t != nil {
		t.mayHaveReady = true
		c.wakeRun()
	}
}

// Look is part of store.Courier.
func (c *courier) Wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.targets {
		t.mayHaveReady, t.mayHaveRetries = true, true
	}
	c.wakeRun()
}

func (c *courier) wakeRun() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Start is part of store.Courier.
func (c *courier) Deliver(lease *store.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enqueue(c.targets[lease.Receiver], lease)
}

func (c *courier) enqueue(t *target, lease *store.Lease) {
	c.leases[lease] = true
	if lease.LastTryFailed {
		t.failedLanes++
	}
	if lease.Webhook.HasContent() {
		c.bodies += lease.Webhook.Size()
	}
	t.queue = append(t.queue, lease)
	c.fillPlaces(t)
}

// pump begins deliveries while there are places. c.mu is held.
func (c *courier) fillPlaces(t *target) {
	for t.inFlight < t.Concurrency && len(t.queue) > 0 {
		lease := t.queue[0]
		t.queue = t.queue[1:]
		t.inFlight++
		c.unfinished++
		go c.deliver(t, lease)
	}
}

// deliver tries a webhook once, and gives the outcome to the store.
func (c *courier) deliver(t *target, lease *store.Lease) {
	o := c.try(t, lease)
	c.mu.Lock()
	t.inFlight--
	if lease.LastTryFailed {
		t.failedLanes--
	}
	if o == nil { // the leave has run out, and somebody else delivers
		delete(c.leases, lease)
	} else {
		c.noteAnswer(t, lease, o)
		o.WantsNext = !c.ending && !t.down(time.Now()) && !c.receiverPaused(t)
	}
	c.fillPlaces(t)
	if t.room() >= t.minRoom() && (t.mayHaveReady || t.mayHaveRetries || !t.nextRetry.IsZero() || t.wave.credits > 0) {
		c.wakeRun()
	}
	c.mu.Unlock()
	if o == nil {
		c.finishOne()
		return
	}
	c.store.SaveOutcome(o, c.outcomeSaved)
}

// try reads the content and sends it, if this process may. Nil: it has lost the leave before anything was sent.
func (c *courier) try(t *target, lease *store.Lease) *store.Outcome {
	w := lease.Webhook
	c.mu.Lock()
	if !w.HasContent() { // else it counts already
		for t.sending > 0 && c.bodies+w.Size() > maxBodies { // the first need not wait: those that are ready may have all of the room, and no place
			c.changed.Wait()
		}
		c.bodies += w.Size()
	}
	t.sending++
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		t.sending--
		c.freeBytes(w.Size())
	}()
	hard := c.hard
	stop := c.ending || c.lanePaused(w.Platform, w.Tenant, t.Name)
	c.mu.Unlock()
	o := &store.Outcome{Lease: lease, Began: time.Now(), Aborted: true}
	if !lease.Valid() {
		return nil
	}
	if stop {
		return o
	}
	if err := c.store.LoadContent(hard, w); errors.Is(err, store.ErrDamaged) {
		o.Aborted, o.ContentErr = false, err
		return o
	} else if err != nil {
		o.RetryIn = time.Second
		return o
	}
	ctx, cancel := c.untilLeaseEnds(hard, lease)
	defer cancel()
	o.Began = time.Now()
	if !lease.Valid() {
		return nil
	}
	o.Attempt = t.Try(receiver.Fenced(ctx, lease.Valid), w.Webhook, w.Header, w.Body)
	o.Took = time.Since(o.Began)
	o.Aborted = !o.Attempt.Accepted() && (hard.Err() != nil || !lease.Valid())
	return o
}

// lasting returns a context that ends with the leave, which may be renewed meanwhile.
func (c *courier) untilLeaseEnds(parent context.Context, lease *store.Lease) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	var timer *time.Timer
	var mu sync.Mutex
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(time.Until(lease.ValidUntil()), func() {
		mu.Lock()
		defer mu.Unlock()
		if left := time.Until(lease.ValidUntil()); left > 0 {
			timer.Reset(left)
			return
		}
		cancel()
	})
	return ctx, func() { timer.Stop(); cancel() }
}

// judge notes what a try says about the receiver. c.mu is held.
func (c *courier) noteAnswer(t *target, lease *store.Lease, o *store.Outcome) {
	if o.Aborted || o.ContentErr != nil {
		return
	}
	now := time.Now()
	wasDown := t.down(now)
	if o.Missed() {
		t.missesInARow++
		c.logDown(t, now)
		return
	}
	t.missesInARow, t.lastAnswer = 0, now
	if wasDown { // whatever it answers, it is back
		t.wave = wave{credits: t.Concurrency, triedBefore: c.store.Now().UnixMicro()}
		c.wakeRun()
	}
	if o.Attempt.Accepted() {
		t.lastAccepted = now
		if lease.InWave {
			t.wave.credits += t.Concurrency
			t.wave.earned = true
		}
	}
	c.logDown(t, now)
}

// sayDown logs that a receiver is down, or no longer. c.mu is held.
func (c *courier) logDown(t *target, now time.Time) {
	switch down := t.down(now); {
	case down && !t.downLogged:
		c.log.Warn("receiver seems to be down, trying one delivery at a time", "receiver", t.Name)
		t.downLogged = true
	case !down && t.downLogged:
		c.log.Info("receiver answers again", "receiver", t.Name)
		t.downLogged = false
	}
}

// settled is called by the store when an outcome is written, or could not be.
func (c *courier) outcomeSaved(o *store.Outcome, err error) {
	lease := o.Lease
	t := c.targets[lease.Receiver]
	if err != nil && !errors.Is(err, store.ErrClosed) && (o.Attempt.Accepted() || lease.Valid()) && !c.hardStopped() {
		// It must be written, or a webhook that was accepted is sent again. This may take as long as an outage.
		time.AfterFunc(200*time.Millisecond, func() { c.store.SaveOutcome(o, c.outcomeSaved) })
		return
	}
	defer c.finishOne()
	c.mu.Lock()
	delete(c.leases, lease)
	if err == nil && o.NextLease != nil {
		c.enqueue(t, o.NextLease)
	}
	if err == nil && o.LaneReady {
		t.mayHaveReady = true
		c.wakeRun()
	}
	if err == nil && !o.NextTry.IsZero() {
		due := time.Now().Add(o.NextTry.Sub(c.store.Now()))
		if t.nextRetry.IsZero() || due.Before(t.nextRetry) {
			t.nextRetry = due
			c.wakeRun()
		}
	}
	c.mu.Unlock()
	if err != nil || o.LeaseLost {
		c.log.Debug("an outcome was not written", "id", lease.Webhook.ID, "lost", o.LeaseLost, "err", err)
		return
	}
	if o.Attempt.Accepted() && c.delivered != nil {
		c.delivered(t.Name, max(0, o.Entry.Changed.Sub(ageFrom(&o.Entry))))
	}
	c.logOutcome(o)
}

func ageFrom(e *store.Entry) time.Time {
	if !e.Again.IsZero() {
		return e.Again
	}
	return e.Received
}

// over says whether nobody waits for deliveries any more.
func (c *courier) hardStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hard.Err() != nil
}

// run delivers until ctx ends, then lets what is under way finish, until hard ends.
func (c *courier) run(ctx, hard context.Context) {
	tick := time.NewTicker(probeInterval)
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
		c.claimLanes(ctx)
		c.mu.Lock()
		var first time.Time
		for _, t := range c.targets {
			// Without room the end of a delivery wakes us.
			if !t.nextRetry.IsZero() && t.room() >= t.minRoom() && (first.IsZero() || t.nextRetry.Before(first)) {
				first = t.nextRetry
			}
		}
		c.mu.Unlock()
		if !first.IsZero() {
			due.Reset(max(0, time.Until(first)))
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
			c.everySecond(ctx)
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
	for _, t := range c.targets {
		for _, lease := range t.queue { // they end without a try
			t.inFlight++
			c.unfinished++
			go c.deliver(t, lease)
		}
		t.queue = nil
	}
	c.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.mu.Lock()
		defer c.mu.Unlock()
		for c.unfinished > 0 {
			c.changed.Wait()
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
func (c *courier) everySecond(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c.renew(ctx)
	c.store.Refresh(ctx) // an outage shows when something is written
	c.logUnservedPlatforms(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.targets {
		t.mayHaveReady, t.mayHaveRetries = true, true
		c.logDown(t, time.Now())
	}
}

// sayHomeless says that webhooks wait for a receiver that is gone from the settings.
func (c *courier) logUnservedPlatforms(ctx context.Context) {
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
	if all := strings.Join(codes, ", "); all != c.unservedPlatforms {
		if c.unservedPlatforms = all; all != "" {
			c.log.Warn("webhooks wait, but no receiver takes their platforms", "platforms", all)
		}
	}
}

// renew prolongs the leaves that have lasted for a third of their time.
func (c *courier) renew(ctx context.Context) {
	var old []*store.Lease
	c.mu.Lock()
	for lease := range c.leases {
		if left := time.Until(lease.ValidUntil()); left > 0 && left < c.store.UsableLeaseTime()*2/3 {
			old = append(old, lease)
		}
	}
	c.mu.Unlock()
	if len(old) > 0 {
		c.store.Renew(ctx, old) // those that are lost run out
	}
}

// look asks the store for leave to deliver, for each receiver that has room.
func (c *courier) claimLanes(ctx context.Context) {
	for {
		claims, reserved := c.planClaims(time.Now())
		if len(claims) == 0 {
			return
		}
		err := c.store.Claim(ctx, claims)
		if again := c.noteClaims(claims, reserved, err); !again {
			return
		}
	}
}

// claims returns what to ask for, and how many leaves it reserves for each receiver.
func (c *courier) planClaims(now time.Time) (claims []*store.Claim, reserved map[*target]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reserved = make(map[*target]int)
	for _, rc := range c.receivers.All() {
		t := c.targets[rc]
		if !t.nextRetry.IsZero() && !t.nextRetry.After(now) { // from here on it waits for room, not for time
			t.mayHaveReady, t.mayHaveRetries, t.nextRetry = true, true, time.Time{}
		}
		free := t.room()
		if free < t.minRoom() || c.receiverPaused(t) || c.bodies >= maxBodies {
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
			claim := &store.Claim{Receiver: rc, Kind: kind, Max: most, Budget: &free}
			claims = append(claims, claim)
			return claim
		}
		half := max(1, t.Concurrency/2) - t.failedLanes // what lanes may still take whose last try failed
		probe := t.probeDue(now)
		if t.down(now) {
			if probe {
				free = 1
				ask(store.Ready, 1)
				ask(store.Probe, min(1, half))
				ask(store.Retry, min(1, half)) // nobody may be left who found it down: discarded, erased, paused
				t.lastProbe = now
			}
		} else {
			if t.mayHaveReady {
				ask(store.Ready, free)
				t.mayHaveReady = false
			}
			if t.wave.credits > 0 {
				most := min(free, t.wave.credits)
				if !t.wave.earned {
					most = min(most, half)
				}
				w := ask(store.Wave, most)
				w.WaitingFrom, w.TriedBefore = t.wave.waitingFrom, t.wave.triedBefore
			}
			if t.mayHaveRetries {
				ask(store.Retry, min(free, half))
				t.mayHaveRetries = false
			}
			if probe {
				ask(store.Probe, min(1, half))
				t.lastProbe = now
			}
		}
		if len(claims) > before {
			reserved[t] = free
			t.reserved += free
		}
	}
	return claims, reserved
}

// probes says whether it is time for a probe.
func (t *target) probeDue(now time.Time) bool {
	each := probeInterval
	if last := latest(t.lastAccepted, t.startedAt); now.Sub(last) > slowProbeAfter {
		each = slowProbeInterval
	}
	return now.Sub(t.lastProbe) >= each-50*time.Millisecond // a tick may come early
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// claimed notes what the store gave, and says whether to ask again.
func (c *courier) noteClaims(claims []*store.Claim, reserved map[*target]int, err error) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t, n := range reserved {
		t.reserved -= n
	}
	for _, claim := range claims {
		t := c.targets[claim.Receiver]
		if err != nil {
			t.mayHaveReady, t.mayHaveRetries = true, true
			continue
		}
		full := claim.Found >= claim.Max
		switch claim.Kind {
		case store.Ready:
			if full {
				t.mayHaveReady = true
				again = again || t.room() >= t.minRoom() && !t.down(time.Now())
			}
		case store.Wave:
			t.wave.credits -= len(claim.Leases)
			t.wave.waitingFrom = max(t.wave.waitingFrom, claim.WaitingTo)
			if !full {
				t.wave.credits = 0
			}
		case store.Retry:
			if full && claim.Max > 0 {
				t.mayHaveRetries = true
			}
		}
	}
	return again && err == nil
}

// stats is what this process knows about a receiver.
func (c *courier) stats(rc *receiver.Receiver) ReceiverStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.targets[rc]
	return ReceiverStats{Down: t.down(time.Now()), TakesNone: t.lastAccepted.IsZero() || t.missesInARow > 0 && time.Since(t.lastAccepted) > downFor}
}

// report logs what became of a webhook.
func (c *courier) logOutcome(o *store.Outcome) {
	e := &o.Entry
	attrs := []slog.Attr{
		slog.Int64("id", e.ID), slog.String("webhook", e.Webhook), slog.String("platform", text.Clip(e.Platform, 200)), slog.String("tenant", text.Clip(e.Tenant, 200)),
		slog.String("receiver", o.Lease.Receiver.Name), slog.String("state", string(e.State)), slog.Int("attempt", e.Tries),
	}
	if id := text.TraceID(o.Lease.Webhook.Header); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	level, message := slog.LevelInfo, "webhook delivered"
	switch a := o.Attempt; {
	case o.ContentErr != nil:
		level, message = slog.LevelError, "webhook damaged, parked"
		attrs = append(attrs, slog.Any("err", o.ContentErr))
	case o.Aborted:
		message = "delivery interrupted, will retry"
	case a.Accepted():
	default:
		if e.State == store.Parked {
			level, message = slog.LevelWarn, "webhook parked"
			attrs = append(attrs, slog.String("why", e.Why))
		} else {
			message = "delivery failed, will retry"
			attrs = append(attrs, slog.Duration("next_try", max(0, o.NextTry.Sub(c.store.Now())).Round(time.Second/10)))
		}
		if a.Status != 0 {
			attrs = append(attrs, slog.Int("receiver_status", a.Status))
		} else {
			attrs = append(attrs, slog.Any("err", a.Err))
		}
	}
	c.log.LogAttrs(context.Background(), level, message, attrs...)
}
