package inbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/internal/text"
	"usher/webhookgate"
)

// The courier decides when webhooks are tried. It keeps nothing that must survive the process, or that replicas must
// agree on: that is in the database.
//
// It gets leases in two ways. The intake of a webhook gives one at once, if the courier has room (Reserve, Deliver).
// For all other lanes run claims them (claimLanes), when it is woken, when a retry is due, and each second. A lease
// then goes this way:
//
//	enqueue        it waits for one of its receiver's places
//	deliver        one try, in a goroutine of its own; noteAnswer learns from the answer whether the receiver is down
//	saveOutcome    the writer saves the outcome
//	outcomeSaved   logs it, and enqueues the lease again if it was continued with the lane's next webhook
type courier struct {
	inbox     *Inbox
	receivers *receiver.Set
	delivered func(receiver string, after time.Duration)
	log       *slog.Logger
	paused    func() []Pause
	wake      chan struct{} // has run look for lanes to claim

	unservedPlatforms string // only run uses it: the platforms that were last logged because no receiver takes them

	mu      sync.Mutex // guards what follows
	changed *sync.Cond // target.bodies has become less
	targets map[*receiver.Receiver]*target
	leases  map[lane.LeaseKey]*lane.Lease // all leases of this process
	// unfinished is how many deliveries there are whose outcome is not written yet. It is no WaitGroup, because a
	// delivery may begin while finish waits for the last one.
	unfinished int
	ending     bool            // no new deliveries: before run has begun, and after its end
	hard       context.Context // its end cancels deliveries
}

// A target is one receiver, as the courier sees it.
type target struct {
	*receiver.Receiver

	// Leases. Each place (Concurrency) takes one delivery at a time.
	queue       []*lane.Lease // wait for a place
	inFlight    int           // have a place
	sending     int           // have a place, and room for their body
	failedLanes int           // in queue or inFlight: lanes whose last try failed
	reserved    int           // how many the intakes under way may still get
	bodies      int64         // bytes of webhooks in memory, or for which room is reserved
	newcomers   int           // how many more may come from intakes before the next claim; see noteClaims

	// Whether the receiver fails for everybody.
	failing      map[webhookgate.LaneName]bool // tenants that began to fail since something was accepted, some of them
	failingSince time.Time                     // when the first of them was tried
	lastAccepted time.Time
	startedAt    time.Time
	failLogged   bool // the log says that it fails for everybody

	// What to claim next.
	mayHaveLanes bool      // there may be lanes that are due
	nextRetry    time.Time // when the next lane that failed here is due; zero: none is known
	lastProbe    time.Time
	// back is when the receiver was last back, by the database's clock: lanes whose last try began before that are due
	// once.
	back       int64
	backLanes  bool // there may be such lanes
	newLanes   int  // while it fails for everybody: how many more lanes that have not failed may go in this second
	newLanesAt time.Time
	newestNext bool // the next of them is the one that came last, and not the one that waits longest
	atMost     int  // how many leases the next claim may ask for; zero: any number. See noteRejected
	// rejected are the lanes that the database does not let usher write.
	rejected map[webhookgate.LaneName]*rejectedLane
}

// A rejectedLane is a lane that the database refuses to write. It waits, so that the claims of the others do not fail
// with it.
type rejectedLane struct {
	until time.Time
	wait  time.Duration
}

func newCourier(s *Inbox) *courier {
	c := &courier{
		inbox:     s,
		receivers: s.cfg.Receivers,
		delivered: s.cfg.Delivered,
		log:       s.cfg.Log,
		paused:    s.Paused,
		wake:      make(chan struct{}, 1),
		targets:   make(map[*receiver.Receiver]*target),
		leases:    make(map[lane.LeaseKey]*lane.Lease),
		ending:    true,
	}
	c.changed = sync.NewCond(&c.mu)
	for _, rc := range c.receivers.All() {
		now := time.Now()
		c.targets[rc] = &target{
			Receiver:     rc,
			mayHaveLanes: true,
			newcomers:    math.MaxInt,
			startedAt:    now,
			failing:      make(map[webhookgate.LaneName]bool),
			rejected:     make(map[webhookgate.LaneName]*rejectedLane),
		}
	}
	return c
}

const (
	everybodyFrom = 3               // tenants
	maxNewLanes   = 10              // lanes a second that have not failed, while the receiver fails for everybody
	logFailAfter  = 5 * time.Second // a receiver that fails at random would fill the log

	saveAgain       = 200 * time.Millisecond // after an outcome could not be written
	maxRejectedWait = time.Minute            // if the database refuses to write its lane: 1 s, doubling to this

	probeInterval     = time.Second
	slowProbeInterval = 5 * time.Second  // if the receiver has accepted nothing
	slowProbeAfter    = 10 * time.Minute // for so long
)

// failsForEverybody says whether the receiver is to blame, and not the webhooks: several tenants have begun to fail,
// and nothing was accepted since.
func (t *target) failsForEverybody() bool { return len(t.failing) >= everybodyFrom }

// room is how many more leases the target can take. It takes twice as many as it has places ahead of those, because a
// place must not wait for the commit that brings the next lease.
func (t *target) room() int {
	return 3*t.Concurrency - t.inFlight - len(t.queue) - t.reserved
}

// failedRoom is how many more lanes may go whose last try failed.
func (t *target) failedRoom() int { return max(0, t.half()-t.failedLanes) }

// newRoom is how many more lanes may go that have not failed, while the receiver fails for everybody.
func (t *target) newRoom() int { return max(0, t.half()-(t.inFlight+len(t.queue)-t.failedLanes)) }

// half of the places. With less room a claim is not worth its transaction: the queue has enough.
func (t *target) half() int { return max(1, t.Concurrency/2) }

func (c *courier) lanePaused(platform, tenant, receiver string) bool {
	return slices.ContainsFunc(c.paused(), func(p Pause) bool { return p.Covers(platform, tenant, receiver) })
}

// receiverPaused says whether a pause holds back everything for a receiver.
func (c *courier) receiverPaused(t *target) bool {
	return slices.ContainsFunc(c.paused(), func(p Pause) bool { return p.CoversReceiver(t.Name) })
}

// IsDelivering says whether the outcome of this lease is not written yet.
func (c *courier) IsDelivering(name webhookgate.LaneName, token int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leases[lane.LeaseKey{LaneName: name, Token: token}] != nil
}

// Reserve asks for room to deliver one more webhook of that size. If it returns true, Release is called later, and
// right after that maybe Deliver. The writer calls these five, so none of them may block.
func (c *courier) Reserve(rc *receiver.Receiver, size int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.targets[rc]
	if t != nil && t.room() <= 0 {
		t.newcomers = 0 // this webhook waits for a claim: those that come later must not pass it
	}
	if t == nil || c.ending || t.newcomers <= 0 || t.failsForEverybody() || c.receiverPaused(t) {
		return false
	}
	if t.bodies+size > c.share() {
		return false
	}
	t.reserved++
	t.newcomers--
	t.bodies += size
	return true
}

// Release gives back what Reserve has given.
func (c *courier) Release(rc *receiver.Receiver, size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.targets[rc]
	t.reserved--
	c.freeBytes(t, size)
}

// share is how many bytes of webhooks each receiver may have in memory.
func (c *courier) share() int64 { return c.inbox.cfg.Limits.Bodies / int64(max(1, len(c.targets))) }

// freeBytes gives back room for bodies. c.mu is held.
func (c *courier) freeBytes(t *target, size int64) {
	t.bodies -= size
	c.changed.Broadcast()
}

// finishOne is called when a delivery has ended, and its outcome is written or given up.
func (c *courier) finishOne() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unfinished--
}

// Wake says that there may be lanes of this receiver to claim; nil: of any receiver.
func (c *courier) Wake(rc *receiver.Receiver) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.targets {
		if rc == nil || rc == t.Receiver {
			t.mayHaveLanes = true
		}
	}
	c.wakeRun()
}

// wakeRun has run look for lanes to claim.
func (c *courier) wakeRun() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Deliver passes on a lease: its webhook is delivered, and saveOutcome called.
func (c *courier) Deliver(lease *lane.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enqueue(c.targets[lease.Receiver], lease)
}

// enqueue adds a lease to its receiver's queue. c.mu is held.
func (c *courier) enqueue(t *target, lease *lane.Lease) {
	c.leases[lease.Key()] = lease
	if lease.WebhookFailed {
		t.failedLanes++
	}
	if lease.Webhook.HasContent {
		t.bodies += lease.Webhook.Size
	}
	t.queue = append(t.queue, lease)
	c.fillPlaces(t)
}

// fillPlaces begins deliveries while there are free places. c.mu is held.
func (c *courier) fillPlaces(t *target) {
	for t.inFlight < t.Concurrency && len(t.queue) > 0 {
		lease := t.queue[0]
		t.queue = t.queue[1:]
		t.inFlight++
		c.unfinished++
		go c.deliver(t, lease)
	}
}

// deliver tries a webhook once, and hands the outcome to the writer.
func (c *courier) deliver(t *target, lease *lane.Lease) {
	o := c.try(t, lease)
	c.mu.Lock()
	t.inFlight--
	if lease.WebhookFailed {
		t.failedLanes--
	}
	if o == nil { // the lease has run out: another process delivers the lane
		delete(c.leases, lease.Key())
	} else {
		c.noteAnswer(t, lease, o)
		o.WantsNext = !c.ending && !t.failsForEverybody() && !c.receiverPaused(t)
	}
	c.fillPlaces(t)
	if t.room() >= t.half() && (t.mayHaveLanes || !t.nextRetry.IsZero() || t.backLanes) {
		c.wakeRun()
	}
	c.mu.Unlock()
	if o == nil {
		c.finishOne()
		return
	}
	c.inbox.saveOutcome(o, c.outcomeSaved)
}

// try loads the content and sends it. It returns nil if the lease ran out before anything was sent.
func (c *courier) try(t *target, lease *lane.Lease) *lane.Outcome {
	w := lease.Webhook
	c.mu.Lock()
	if !w.HasContent { // otherwise enqueue has counted it
		// Webhooks in the queue may take all of the room and wait for this very place. So the only one that is
		// sending does not wait for room.
		for t.sending > 0 && t.bodies+w.Size > c.share() {
			c.changed.Wait()
		}
		t.bodies += w.Size
	}
	t.sending++
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		t.sending--
		c.freeBytes(t, w.Size)
	}()
	hard := c.hard
	stop := c.ending || lease.GivenBack || c.lanePaused(w.Platform, w.Tenant, t.Name)
	c.mu.Unlock()
	o := &lane.Outcome{Lease: lease, Began: time.Now(), Aborted: true}
	if !lease.Valid() {
		return nil
	}
	if stop {
		return o
	}
	if err := c.inbox.loadContent(hard, w); errors.Is(err, lane.ErrDamaged) {
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
	o.Try = t.Try(receiver.Fenced(ctx, lease.Valid), w.UUID, w.Header, w.Body)
	o.Took = time.Since(o.Began)
	o.Aborted = !o.Try.Accepted() && (hard.Err() != nil || !lease.Valid())
	return o
}

// untilLeaseEnds returns a context that ends with the lease, which may be renewed meanwhile.
func (c *courier) untilLeaseEnds(parent context.Context, lease *lane.Lease) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	go func() {
		defer cancel()
		for left := time.Until(lease.ValidUntil()); left > 0 && ctx.Err() == nil; left = time.Until(lease.ValidUntil()) {
			select {
			case <-ctx.Done():
			case <-time.After(left):
			}
		}
	}()
	return ctx, cancel
}

// noteAnswer learns from a try whether the receiver fails for everybody, or is back, and whether a failure counts.
// c.mu is held.
func (c *courier) noteAnswer(t *target, lease *lane.Lease, o *lane.Outcome) {
	if o.Aborted || o.ContentErr != nil {
		return
	}
	switch {
	case o.Try.Accepted():
		if t.failsForEverybody() { // it is back
			t.back, t.backLanes, t.mayHaveLanes = c.inbox.Now().UnixMicro(), true, true
			c.wakeRun()
		}
		clear(t.failing)
		t.lastAccepted = time.Now()
		t.mayHaveLanes = t.mayHaveLanes || lease.WebhookFailed // its place may be for a retry that is due
	case lane.IsPermanent(o.Try.Status): // that says something about the webhook, and nothing about the receiver
	default:
		// A tenant that has failed before says nothing new. At the start nobody knows who has.
		if (!lease.LaneFailing || t.lastAccepted.IsZero()) && len(t.failing) < everybodyFrom {
			if len(t.failing) == 0 {
				t.failingSince = o.Began
			}
			t.failing[lease.LaneName] = true
			if t.failsForEverybody() {
				c.giveBack(t) // or those would be tried before the few that may go now, which may be the healthy ones
			}
		}
		// Since its try before, this lane has had nothing accepted. So what was accepted since is another tenant's.
		acceptedSince := !t.lastAccepted.IsZero() && c.inbox.clock.at(t.lastAccepted) > lease.LastTry
		o.Counts = acceptedSince && !lane.IsDown(o.Try.Status)
	}
	c.logFails(t)
}

// logFails logs when a receiver begins to fail for everybody, and when it is back. c.mu is held.
func (c *courier) logFails(t *target) {
	switch fails := t.failsForEverybody(); {
	case fails && !t.failLogged && time.Since(t.failingSince) >= logFailAfter:
		c.log.Warn("receiver fails for everybody, trying a few deliveries a second", "receiver", t.Name)
		t.failLogged = true
	case !fails && t.failLogged:
		c.log.Info("receiver answers again", "receiver", t.Name)
		t.failLogged = false
	}
}

// outcomeSaved is called by the writer when an outcome is written, or could not be written.
func (c *courier) outcomeSaved(o *lane.Outcome, err error) {
	lease := o.Lease
	t := c.targets[lease.Receiver]
	if err != nil && !errors.Is(err, ErrClosed) && (o.Try.Accepted() || lease.Valid()) && !c.hardStopped() {
		// Try again, for as long as an outage lasts: without its outcome a webhook that was accepted would be sent
		// once more. If the database refuses this very outcome, all that are written with it fail, too, or wait for a
		// lock. So the lease is given up after some tries, unless it is in a file, where nobody else could get it.
		wait := saveAgain
		if errors.As(err, new(*engine.StatementError)) {
			wait = c.refuse(t, lease)
		}
		if wait < maxRejectedWait || !c.inbox.Shared() {
			time.AfterFunc(wait, func() { c.inbox.saveOutcome(o, c.outcomeSaved) })
			return
		}
	}
	defer c.finishOne()
	c.mu.Lock()
	delete(c.leases, lease.Key())
	if err == nil {
		delete(t.rejected, lease.LaneName)
	}
	if err == nil && o.NextLease != nil {
		c.enqueue(t, o.NextLease)
	}
	if err == nil && o.LaneReady {
		t.mayHaveLanes = true
		c.wakeRun()
	}
	if err == nil && !o.LaneDue.IsZero() {
		if c.inbox.clock.at(o.Began) < t.back {
			t.backLanes = true
			c.wakeRun()
		}
		due := time.Now().Add(o.LaneDue.Sub(c.inbox.Now()))
		if t.nextRetry.IsZero() || due.Before(t.nextRetry) {
			t.nextRetry = due
			c.wakeRun()
		}
	}
	fails := t.failsForEverybody()
	c.mu.Unlock()
	if err != nil || o.LeaseLost {
		c.log.Debug("cannot store the result of a delivery", "id", lease.Webhook.ID, "lost", o.LeaseLost, "err", err)
		return
	}
	if o.Try.Accepted() && c.delivered != nil {
		c.delivered(t.Name, max(0, o.Tried.Changed.Sub(o.Tried.AgeFrom())))
	}
	if !lease.GivenBack {
		c.logOutcome(o, fails)
	}
}

// refuse notes that the database refuses to write the outcome of a lease. The lease is not renewed, since that would
// be refused, too.
func (c *courier) refuse(t *target, lease *lane.Lease) (wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lease.Refused = true
	return t.refuse(lease.LaneName)
}

// hardStopped says whether deliveries that have begun are cancelled, too.
func (c *courier) hardStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hard.Err() != nil
}

// run delivers until ctx ends. Then deliveries that have begun may finish, until hard ends.
func (c *courier) run(ctx, hard context.Context) {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	// Nothing may be delivered before the pauses are known.
	for c.inbox.readPauses(ctx) != nil && ctx.Err() == nil {
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
			// A target without room need not be looked at: the end of a delivery wakes us.
			if !t.nextRetry.IsZero() && t.room() >= t.half() && (first.IsZero() || t.nextRetry.Before(first)) {
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

// finish waits for deliveries that have begun, and gives the other leases back.
func (c *courier) finish(hard context.Context) {
	c.mu.Lock()
	c.ending = true
	for _, t := range c.targets {
		c.giveBack(t)
	}
	c.mu.Unlock()
	for c.delivering() {
		c.renew(hard)
		time.Sleep(10 * time.Millisecond)
	}
}

// giveBack ends the leases that wait for a place, without a try. c.mu is held.
func (c *courier) giveBack(t *target) {
	for _, lease := range t.queue {
		lease.GivenBack = true
		t.inFlight++
		c.unfinished++
		go c.deliver(t, lease)
	}
	t.queue = nil
}

// delivering says whether a delivery has begun whose outcome is not written yet.
func (c *courier) delivering() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unfinished > 0
}

// everySecond renews leases, counts what other replicas have changed, and has run look for lanes.
func (c *courier) everySecond(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c.renew(ctx)
	c.logUnservedPlatforms(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.targets {
		t.mayHaveLanes = true
		c.logFails(t)
	}
}

// logUnservedPlatforms logs when webhooks wait whose receiver is gone from the settings.
func (c *courier) logUnservedPlatforms(ctx context.Context) {
	st := c.inbox.stats(ctx) // this also counts for MaxBytes, which bounds all replicas together
	if st.Old {
		return
	}
	var codes []string
	if st.Receivers[""].Pending > 0 {
		var err error
		if codes, err = c.inbox.Unserved(ctx); err != nil {
			return
		}
		for i, code := range codes {
			codes[i] = cmp.Or(code, "(none)")
		}
	}
	if all := strings.Join(codes, ", "); all != c.unservedPlatforms {
		if c.unservedPlatforms = all; all != "" {
			c.log.Warn("webhooks wait, but no receiver takes their platforms", "platforms", all)
		}
	}
}

// renew renews the leases that have less than two thirds of their time left.
func (c *courier) renew(ctx context.Context) {
	var old []*lane.Lease
	c.mu.Lock()
	for _, lease := range c.leases {
		if left := time.Until(lease.ValidUntil()); !lease.Refused && left > 0 && left < c.inbox.usableLeaseTime()*2/3 {
			old = append(old, lease)
		}
	}
	c.mu.Unlock()
	if len(old) > 0 {
		c.inbox.renew(ctx, old) // leases that could not be renewed run out
	}
}

// claimLanes asks for leases, for each receiver that has room.
func (c *courier) claimLanes(ctx context.Context) {
	for {
		claims := c.planClaims(time.Now())
		if len(claims) == 0 {
			return
		}
		c.inbox.claim(ctx, claims)
		if again := c.noteClaims(claims); !again {
			return
		}
	}
}

// planClaims returns the claims to make. It reserves no room for them: intakes that get leases meanwhile may fill the
// queue by half as much again, which does no harm.
func (c *courier) planClaims(now time.Time) (claims []*claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rc := range c.receivers.All() {
		t := c.targets[rc]
		if !t.nextRetry.IsZero() && !t.nextRetry.After(now) {
			// From here on the retry waits for room, and no longer for its time. Otherwise run would look again at
			// once, and spin.
			t.mayHaveLanes, t.nextRetry = true, time.Time{}
		}
		if t.room() < t.half() || c.receiverPaused(t) {
			continue
		}
		// Half of the room stays for webhooks that arrive meanwhile: they get their lease from the intake. If claims
		// took all of the room, each of those webhooks would need the next claim, and so on: each would cost one more
		// transaction.
		budget := min(t.room()-t.room()/2, int(c.share()-t.bodies)/maxReadAhead)
		if idle := t.inFlight+len(t.queue)+t.reserved == 0; idle {
			budget = max(1, budget) // see Limits.Bodies
		}
		if budget <= 0 {
			continue
		}
		if claim := t.plan(now, budget); claim != nil {
			claims = append(claims, claim)
		}
	}
	return claims
}

// plan returns what to claim for a receiver that has room; nil: nothing.
func (t *target) plan(now time.Time, budget int) *claim {
	if t.atMost > 0 {
		budget = min(budget, t.atMost)
	}
	claim := &claim{Receiver: t.Receiver, Room: budget, Failed: min(budget, t.failedRoom()), skip: t.waitsRejected(now)}
	probe := claim.Failed > 0 && t.probeDue(now)
	if probe {
		t.lastProbe = now
	}
	switch {
	case t.failsForEverybody():
		if now.Sub(t.newLanesAt) >= time.Second-50*time.Millisecond {
			t.newLanes, t.newLanesAt = maxNewLanes, now
		}
		fresh := max(0, min(budget, t.newLanes, t.newRoom()))
		claim.Fresh, claim.Newest = fresh/2, fresh/2
		if fresh%2 == 1 {
			if t.newestNext {
				claim.Newest++
			} else {
				claim.Fresh++
			}
			t.newestNext = !t.newestNext
		}
		if probe {
			claim.Early, claim.Failed = 1, 1
		}
	case t.mayHaveLanes || t.backLanes || probe:
		claim.Fresh, claim.Retries = budget, claim.Failed
		if t.backLanes {
			claim.Early, claim.TriedBefore = claim.Failed, t.back
			t.backLanes = claim.Failed == 0
		} else if probe {
			claim.Early, claim.DownOnly = 1, true
		}
		t.mayHaveLanes = false
	}
	if claim.Fresh+claim.Newest+claim.Early+claim.Retries == 0 {
		return nil
	}
	return claim
}

// refuse notes that the database refuses to write a lane, and returns how long the lane waits.
func (t *target) refuse(name webhookgate.LaneName) time.Duration {
	r := t.rejected[name]
	if r == nil {
		r = new(rejectedLane)
		t.rejected[name] = r
	}
	r.wait = min(max(2*r.wait, lane.MinBackoff), maxRejectedWait)
	r.until = time.Now().Add(r.wait)
	return r.wait
}

// waitsRejected returns the lanes that the database has just refused to write.
func (t *target) waitsRejected(now time.Time) (all map[webhookgate.LaneName]bool) {
	for lane, r := range t.rejected {
		if now.Before(r.until) {
			if all == nil {
				all = make(map[webhookgate.LaneName]bool)
			}
			all[lane] = true
		} else if now.Sub(r.until) > maxRejectedWait { // nobody has tried since: another replica has it, or nothing waits
			delete(t.rejected, lane)
		}
	}
	return all
}

// probeDue says whether it is time for a probe.
func (t *target) probeDue(now time.Time) bool {
	each := probeInterval
	if now.Sub(t.lastAccepted) > slowProbeAfter && now.Sub(t.startedAt) > slowProbeAfter {
		each = slowProbeInterval
	}
	return now.Sub(t.lastProbe) >= each-50*time.Millisecond // a tick may come early
}

// noteClaims notes the results of claims, and says whether to claim again at once.
func (c *courier) noteClaims(claims []*claim) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, claim := range claims {
		t, r := c.targets[claim.Receiver], &claim.result
		if r.err != nil {
			t.mayHaveLanes, t.backLanes = true, t.backLanes || claim.TriedBefore > 0
			again = t.noteRejected(claim, r.err) || again
			continue
		}
		t.atMost = 0
		for _, lease := range r.Leases {
			delete(t.rejected, lease.LaneName)
		}
		t.newLanes -= r.Fresh
		if t.failsForEverybody() {
			t.mayHaveLanes = true
			continue
		}
		if claim.Fresh > 0 {
			t.newcomers = math.MaxInt
		}
		if r.MoreFresh {
			// Of the lanes that come meanwhile, as many get a lease as of those that wait: if a receiver is too slow
			// for all, they would take each place that becomes free, and leave those that wait behind for as long as
			// it lasts.
			t.newcomers = r.Fresh
			t.mayHaveLanes = true
			again = again || t.room() >= t.half()
		}
		t.mayHaveLanes = t.mayHaveLanes || r.MoreRetries
		t.backLanes = t.backLanes || r.MoreEarly && claim.TriedBefore > 0
	}
	return again
}

// noteRejected is for a claim that failed. If the database refuses to write one of its lanes, the next claims ask for
// fewer, until that lane is found. It says whether to claim again at once.
func (t *target) noteRejected(claim *claim, err error) bool {
	switch n := len(claim.touched); {
	case !isRejected(err) || n == 0:
		return false
	case n > 1:
		t.atMost = n / 2
	default:
		t.refuse(claim.touched[0])
		t.atMost = 0
	}
	return true
}

// isRejected says whether the database works, but rejects what usher wants to write.
func isRejected(err error) bool {
	var refused *engine.StatementError
	return errors.As(err, &refused)
}

// figures returns what this process knows about a receiver, with the database's times.
func (c *courier) figures(rc *receiver.Receiver) Figures {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.targets[rc]
	f := Figures{FailsForEverybody: t.failsForEverybody(), back: t.back}
	if !t.lastAccepted.IsZero() {
		f.LastAccepted = clock.Moment(c.inbox.clock.at(t.lastAccepted))
	}
	if len(t.failing) > 0 {
		f.FailingSince = clock.Moment(c.inbox.clock.at(t.failingSince))
	}
	return f
}

// logOutcome logs what came of a delivery. While the receiver fails for everybody, nobody knows when a webhook is
// tried again.
func (c *courier) logOutcome(o *lane.Outcome, fails bool) {
	e := &o.Tried
	attrs := []slog.Attr{
		slog.Int64("id", e.ID),
		slog.String("webhook", e.UUID),
		slog.String("platform", text.Clip(e.Platform, 200)),
		slog.String("tenant", text.Clip(e.Tenant, 200)),
		slog.String("receiver", o.Lease.Receiver.Name),
		slog.String("state", string(e.State)),
		slog.Int("try", e.Tries),
	}
	if id := text.TraceID(o.Lease.Webhook.Header); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	level, message := slog.LevelInfo, "webhook delivered"
	switch a := o.Try; {
	case o.ContentErr != nil:
		level, message = slog.LevelError, "webhook damaged, parked"
		attrs = append(attrs, slog.Any("err", o.ContentErr))
	case o.Aborted:
		message = "delivery interrupted, will retry"
	case a.Accepted():
	default:
		message = "delivery failed"
		switch e.State {
		case state.Parked:
			level, message = slog.LevelWarn, "webhook parked"
			attrs = append(attrs, slog.String("why", e.Why))
		case state.Superseded:
			message = "delivery failed, a newer webhook takes its place"
		case state.Waiting:
			message = "delivery failed, will retry"
			if !fails {
				wait := max(0, o.LaneDue.Sub(c.inbox.Now()))
				attrs = append(attrs, slog.Duration("next_try", wait.Round(time.Second/10)))
			}
		}
		if a.Status != 0 {
			attrs = append(attrs, slog.Int("receiver_status", a.Status))
		} else {
			attrs = append(attrs, slog.Any("err", a.Err))
		}
	}
	c.log.LogAttrs(context.Background(), level, message, attrs...)
}

// wakeCourier has the courier look for lanes, if there is one.
func (s *Inbox) wakeCourier() {
	if s.courier != nil {
		s.courier.Wake(nil)
	}
}
