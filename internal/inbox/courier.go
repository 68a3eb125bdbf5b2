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

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/internal/text"
	"usher/webhookgate"
)

// The courier delivers. Each receiver has places: so many webhooks are on their way to it at once. The writer gives a free
// place a lease (plan, queueClaims, lease, take): of a lane that it has claimed, because it is due; or of one that it
// has before it anyway, of an intake or an outcome. A lease is one try (deliver), whose outcome goes to the writer again.
//
// Lanes that have not failed go first, those that have take at most half of the places, and a receiver's first success
// after a while makes due what has failed since (turn.noteAccepted). That is all: what must survive the process, or what
// replicas must agree on, is in the database.
type courier struct {
	inbox *Inbox
	all   []*target

	mu         sync.Mutex // guards what follows, and targets
	freed      *sync.Cond // target.bodies has become less
	leases     map[lane.LeaseKey]bool
	unfinished int             // deliveries whose outcomes are not written
	ending     bool            // no new deliveries: before run has begun, and after its end
	hard       context.Context // its end cancels deliveries
}

// A target is one receiver, as the courier sees it.
type target struct {
	*receiver.Receiver
	taken  int // places that have a lease
	failed int // of these: lanes whose last try failed
	bodies int64
	reads  int // deliveries that have read a large body

	mayClaim bool      // there may be lanes that are due
	retryAt  time.Time // when the next lane that failed here is due; zero: none is known
	notUntil time.Time // the database has refused a claim: no other one before
}

func newCourier(s *Inbox) *courier {
	c := &courier{inbox: s, leases: make(map[lane.LeaseKey]bool), ending: true}
	c.freed = sync.NewCond(&c.mu)
	for _, rc := range s.cfg.Receivers.All() {
		c.all = append(c.all, &target{Receiver: rc, mayClaim: true})
	}
	return c
}

// half is how many places lanes may have whose last try failed.
func (t *target) half() int { return max(1, t.Concurrency/2) }

func (c *courier) target(rc *receiver.Receiver) *target {
	for _, t := range c.all {
		if t.Receiver == rc {
			return t
		}
	}
	return nil
}

// A claim asks for lanes of one receiver that are due: so many that have not failed, and so many that have.
type claim struct {
	*target
	fresh, failed int
	found         []*lane.Lane
	seen          [2]int // how many of both there were
	given         int    // leases
}

// plan returns what the next transaction should claim. The places of outcomes that it writes are free.
func (c *courier) plan(ops []*op) (claims []*claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ended, failed := make(map[*receiver.Receiver]int), make(map[*receiver.Receiver]int)
	for _, o := range ops {
		if o.lease != nil {
			ended[o.lease.Receiver]++
			failed[o.lease.Receiver] += int(boolNumber(o.lease.Failed))
		}
	}
	now := time.Now()
	for _, t := range c.all {
		if !t.retryAt.IsZero() && !t.retryAt.After(now) {
			t.mayClaim, t.retryAt = true, time.Time{}
		}
		free := t.Concurrency - t.taken + ended[t.Receiver]
		// While most places are taken, one transaction for each that becomes free would be dear.
		enough := free >= max(1, t.Concurrency/8)
		if c.ending || !t.mayClaim || !enough || now.Before(t.notUntil) || c.inbox.paused(t.Name) {
			continue
		}
		claims = append(claims, &claim{target: t, fresh: free, failed: min(free, max(0, t.half()-t.failed+failed[t.Receiver]))})
	}
	return claims
}

// queueClaims queues the search for lanes. It goes by our estimate of the database's time; Lane.Ready looks again.
func (t *turn) queueClaims(claims []*claim) {
	now, mayTakeOver := t.s.Now().UnixMicro(), t.s.clock.mayTakeOver(t.LongestLease())
	t.claims = claims
	for _, c := range claims {
		c.found, c.seen, c.given = nil, [2]int{}, 0
		t.tx.Queue("claim", func(r engine.Row) error {
			l, err := scanLane(r)
			c.seen[boolNumber(l.Failures > 0)]++
			if err != nil {
				t.s.noteUnreadable(l.LaneName)
			} else if known := t.Lanes[l.LaneName]; known == nil {
				t.Add(l)
				c.found = append(c.found, l)
			}
			return err
		}, c.Name, now, boolNumber(mayTakeOver), int64(c.fresh+t.s.unreadable.count()), int64(c.failed+t.s.unreadable.count()))
	}
}

// readClaimed reads the first webhooks of the lanes that were claimed.
func (t *turn) readClaimed() error {
	found := make(map[webhookgate.LaneName]bool)
	for _, c := range t.claims {
		for _, l := range c.found {
			found[l.LaneName] = true
		}
	}
	if len(found) == 0 {
		return nil
	}
	t.queueFirst(lane.SortedNames(found), func(webhookgate.LaneName) int64 { return 0 })
	return t.tx.Send()
}

// lease gives the free places leases: first to the lanes that were claimed, which wait for longer, and then to those of this
// transaction's operations.
func (t *turn) lease() {
	free := t.s.courier.freePlaces(t)
	for _, c := range t.claims {
		for _, l := range c.found {
			if rc, waits := l.Ready(); rc != nil && waits {
				t.s.noteUnreadable(l.LaneName)
				l.Postpone()
			} else if rc != nil && free.give(t, l, rc) {
				c.given++
			}
		}
	}
	for _, name := range lane.SortedNames(t.Lanes) {
		l := t.Lanes[name]
		if rc, waits := l.Ready(); rc != nil && waits {
			t.waits[rc] = true
		} else if rc != nil {
			free.give(t, l, rc)
		}
	}
}

// places are those that are free for a transaction.
type places map[*receiver.Receiver]*struct{ all, failed int }

func (c *courier) freePlaces(t *turn) places {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := make(places)
	if c.ending {
		return free
	}
	for _, of := range c.all {
		free[of.Receiver] = &struct{ all, failed int }{of.Concurrency - of.taken, of.half() - of.failed}
	}
	for _, lease := range t.ended { // their places are given back once that is committed
		of := free[lease.Receiver]
		of.all++
		of.failed += int(boolNumber(lease.Failed))
	}
	return free
}

// give gives a lane a lease, if there is a place for it, and says whether it did.
func (p places) give(t *turn, l *lane.Lane, rc *receiver.Receiver) bool {
	of, failed := p[rc], l.Failures > 0
	switch {
	case t.s.lanePaused(l.Platform, l.Tenant, rc.Name):
		return false
	case of == nil || of.all <= 0 || failed && of.failed <= 0:
		t.waits[rc] = true
		return false
	case failed:
		of.failed--
	}
	of.all--
	t.leases = append(t.leases, l.Lease(rc))
	return true
}

// take takes what a committed transaction has leased, and has settled.
func (c *courier) take(t *turn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range t.claims {
		// With fewer than it has asked for, there is nothing more. What has failed may wait for the end of another one.
		of.mayClaim = of.seen[0] >= of.fresh || of.seen[1] >= of.failed && of.failed > 0
		if len(of.found) > 0 && of.given == 0 { // a pause that is not known everywhere yet
			of.notUntil = time.Now().Add(100 * time.Millisecond)
		}
	}
	for rc := range t.waits {
		if of := c.target(rc); of != nil {
			of.mayClaim = true
		}
	}
	for _, lease := range t.ended {
		c.free(lease)
	}
	for _, lease := range t.leases {
		of := c.target(lease.Receiver)
		of.taken++
		of.failed += int(boolNumber(lease.Failed))
		c.leases[lease.Key()] = true
		c.unfinished++
		go c.deliver(of, lease)
	}
	c.wakeIfDue()
}

// free gives back the place of a lease. c.mu is held.
func (c *courier) free(lease *lane.Lease) {
	of := c.target(lease.Receiver)
	of.taken--
	if lease.Failed {
		of.failed--
		of.mayClaim = true
	}
	delete(c.leases, lease.Key())
	c.unfinished--
}

// wakeIfDue wakes the writer if there is something to claim. c.mu is held.
func (c *courier) wakeIfDue() {
	for _, t := range c.all {
		if t.mayClaim && t.Concurrency-t.taken >= max(1, t.Concurrency/8) && !c.ending && !time.Now().Before(t.notUntil) {
			c.inbox.wakeWriter()
		}
	}
}

// refused is called when the database has refused a transaction with claims.
func (c *courier) refused(claims []*claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range claims {
		of.notUntil = time.Now().Add(time.Second)
	}
}

// wake says that there may be lanes to claim.
func (c *courier) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.all {
		t.mayClaim = true
	}
	c.wakeIfDue()
}

// delivering returns the leases of this process whose outcomes are not written yet.
func (c *courier) delivering() map[lane.LeaseKey]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[lane.LeaseKey]bool, len(c.leases))
	for key := range c.leases {
		all[key] = true
	}
	return all
}

// run delivers until ctx ends. Then deliveries that have begun may finish, until hard ends.
func (c *courier) run(ctx, hard context.Context) {
	tick := time.NewTicker(time.Second)
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
	c.wake()
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	for ctx.Err() == nil {
		if next := c.nextRetry(); !next.IsZero() {
			due.Reset(max(0, time.Until(next)))
		}
		select {
		case <-ctx.Done():
		case <-due.C:
			c.inbox.wakeWriter()
			c.waitForRetry()
		case <-c.inbox.retries:
		case <-tick.C: // others may have left lanes that are due
			c.wake()
			c.inbox.logUnserved(ctx)
		}
	}
	c.mu.Lock()
	c.ending = true
	c.mu.Unlock()
	for c.busy() {
		time.Sleep(10 * time.Millisecond)
	}
}

func (c *courier) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unfinished > 0
}

// nextRetry is when the next lane that failed is due.
func (c *courier) nextRetry() (next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.all {
		if !t.retryAt.IsZero() && (next.IsZero() || t.retryAt.Before(next)) {
			next = t.retryAt
		}
	}
	return next
}

// waitForRetry has those whose time has come wait for a place, and no longer for their time.
func (c *courier) waitForRetry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.all {
		if !t.retryAt.IsZero() && !t.retryAt.After(time.Now()) {
			t.mayClaim, t.retryAt = true, time.Time{}
		}
	}
}

// deliver tries a webhook once, and hands the outcome to the writer.
func (c *courier) deliver(t *target, lease *lane.Lease) {
	o := c.try(t, lease)
	key := lease.LaneName
	var save func()
	settle := &op{lanes: []webhookgate.LaneName{key}, lease: lease, size: 256}
	settle.run = func(turn *turn) error {
		o.AfterTry = turn.Lanes[key].EndTry(o)
		turn.ended = append(turn.ended, lease)
		if o.Try.Accepted() && !o.LeaseLost {
			turn.noteAccepted(t.Name)
		}
		return nil
	}
	wait := 200 * time.Millisecond
	settle.done = func(err error) {
		refused := errors.As(err, new(*engine.StatementError))
		switch {
		case err == nil:
			c.settled(t, o)
		case errors.Is(err, ErrClosed) || c.hardStopped() || !(o.Try.Accepted() && !refused || lease.Valid()):
			c.giveUp(lease)
		default: // without its outcome what was accepted would be sent once more
			if refused {
				wait = min(2*wait, time.Minute)
			}
			time.AfterFunc(wait, save)
		}
	}
	save = func() {
		if err := c.inbox.submit(context.Background(), settle); err != nil {
			settle.done(err)
		}
	}
	save()
}

func (c *courier) giveUp(lease *lane.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free(lease)
}

func (c *courier) hardStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hard.Err() != nil
}

// try loads the content and sends it.
func (c *courier) try(t *target, lease *lane.Lease) *lane.Outcome {
	w := lease.Webhook
	c.mu.Lock()
	hard, stop := c.hard, c.ending
	c.mu.Unlock()
	o := &lane.Outcome{Lease: lease, Began: time.Now(), Aborted: true}
	if stop || c.inbox.lanePaused(w.Platform, w.Tenant, t.Name) {
		return o
	}
	if !w.HasContent {
		defer c.holdBody(t, w.Size)()
	}
	if err := c.inbox.loadContent(hard, w); errors.Is(err, lane.ErrDamaged) {
		o.Aborted, o.ContentErr = false, err
		return o
	} else if err != nil {
		o.RetryIn = time.Second
		return o
	}
	if !lease.MayBegin() {
		return o
	}
	ctx, cancel := context.WithDeadline(hard, lease.ValidUntil())
	defer cancel()
	o.Began = time.Now()
	o.Try = t.Try(receiver.Fenced(ctx, lease.Valid), w.UUID, w.Header, w.Body)
	o.Took = time.Since(o.Began)
	o.Aborted = !o.Try.Accepted() && (hard.Err() != nil || !lease.Valid())
	return o
}

// holdBody waits until there is room for a large body in memory. Each receiver has its share: one that hangs with large
// webhooks must not keep the others waiting. It may always have one.
func (c *courier) holdBody(t *target, size int64) (release func()) {
	share := c.inbox.cfg.Limits.Bodies / int64(len(c.all))
	c.mu.Lock()
	defer c.mu.Unlock()
	for t.reads > 0 && t.bodies+size > share {
		c.freed.Wait()
	}
	t.reads++
	t.bodies += size
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		t.reads--
		t.bodies -= size
		c.freed.Broadcast()
	}
}

// settled is called when an outcome is written.
func (c *courier) settled(t *target, o *lane.Outcome) {
	if o.LeaseLost {
		c.inbox.cfg.Log.Debug("the result of a delivery came too late", "id", o.Lease.Webhook.ID)
		return
	}
	if !o.LaneDue.IsZero() {
		c.mu.Lock()
		if due := time.Now().Add(o.LaneDue.Sub(c.inbox.Now())); t.retryAt.IsZero() || due.Before(t.retryAt) {
			t.retryAt = due
			select {
			case c.inbox.retries <- struct{}{}:
			default:
			}
		}
		c.mu.Unlock()
	}
	if o.Try.Accepted() && c.inbox.cfg.Delivered != nil {
		c.inbox.cfg.Delivered(t.Name, max(0, o.Tried.Changed.Sub(o.Tried.AgeFrom())))
	}
	c.logOutcome(o)
}

// logOutcome logs what came of a delivery.
func (c *courier) logOutcome(o *lane.Outcome) {
	w := o.Tried
	attrs := []slog.Attr{
		slog.Int64("id", w.ID),
		slog.String("webhook", w.UUID),
		slog.String("platform", text.Clip(w.Platform, 200)),
		slog.String("tenant", text.Clip(w.Tenant, 200)),
		slog.String("receiver", o.Lease.Receiver.Name),
		slog.String("state", string(w.State)),
		slog.Int("try", w.Tries),
	}
	if id := text.TraceID(o.Lease.Webhook.Header); id != "" {
		attrs = append(attrs, slog.String("trace_id", id))
	}
	level, message := slog.LevelInfo, "webhook delivered"
	switch {
	case o.ContentErr != nil:
		level, message = slog.LevelError, "webhook damaged, parked"
		attrs = append(attrs, slog.Any("err", o.ContentErr))
	case o.Aborted:
		message = "delivery interrupted, will retry"
	case o.Try.Accepted():
	default:
		message = "delivery failed"
		switch w.State {
		case state.Parked:
			level, message = slog.LevelWarn, "webhook parked"
			attrs = append(attrs, slog.String("why", w.Why))
		case state.Superseded:
			message = "delivery failed, a newer webhook takes its place"
		case state.Waiting:
			message = "delivery failed, will retry"
			wait := max(0, o.LaneDue.Sub(c.inbox.Now()))
			attrs = append(attrs, slog.Duration("next_try", wait.Round(time.Second/10)))
		}
		if o.Try.Status != 0 {
			attrs = append(attrs, slog.Int("receiver_status", o.Try.Status))
		} else {
			attrs = append(attrs, slog.Any("err", o.Try.Err))
		}
	}
	c.inbox.cfg.Log.LogAttrs(context.Background(), level, message, attrs...)
}

// loadContent reads the content of a webhook, unless it is in memory, and checks it.
func (s *Inbox) loadContent(ctx context.Context, w *lane.Webhook) error {
	if !w.HasContent {
		err := s.engine.Read(ctx, func(tx engine.Tx) error {
			tx.Queue("content", func(r engine.Row) error {
				var header []byte
				err := r.Scan(&header, &w.Body)
				w.Header, w.HasContent = decodeHeader(header), true
				return err
			}, w.ID)
			return tx.Send()
		})
		if err != nil {
			return err
		}
	}
	if !w.HasContent {
		return lane.ErrDamaged // the content's row is missing
	}
	return w.Check()
}

// paused says whether a pause holds back everything for a receiver, and lanePaused whether one holds back a tenant.
func (s *Inbox) paused(receiver string) bool {
	return slices.ContainsFunc(s.Paused(), func(p Pause) bool { return p.CoversReceiver(receiver) })
}

func (s *Inbox) lanePaused(platform, tenant, receiver string) bool {
	return slices.ContainsFunc(s.Paused(), func(p Pause) bool { return p.Covers(platform, tenant, receiver) })
}

// route gives lanes whose webhooks wait the receivers that the settings say: they may have changed since. It runs at the start,
// and each minute, since another replica may have delivered a lane meanwhile, or have had other settings.
func (s *Inbox) route(tx engine.Tx, now int64) {
	mayTakeOver := boolNumber(s.clock.mayTakeOver(s.cfg.LongestLease()))
	claimed := []string{} // the platforms that have a receiver of their own
	for _, rc := range s.cfg.Receivers.All() {
		if len(rc.Platforms) > 0 {
			tx.Queue("lane_route", nil, rc.Name, engine.List(rc.Platforms), int64(1), now, mayTakeOver)
			claimed = append(claimed, rc.Platforms...)
		}
	}
	tx.Queue("lane_route", nil, lane.ReceiverName(s.cfg.Receivers.Main()), engine.List(claimed), int64(0), now, mayTakeOver)
}

// logUnserved logs when webhooks wait whose receiver is gone from the settings.
func (s *Inbox) logUnserved(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, countPatience)
	defer cancel()
	if st := s.stats(ctx); st.Old || st.Receivers[""].Pending == 0 && s.unserved == "" {
		return
	}
	codes, err := s.Unserved(ctx)
	if err != nil {
		return
	}
	for i, code := range codes {
		codes[i] = cmp.Or(code, "(none)")
	}
	if all := strings.Join(codes, ", "); all != s.unserved {
		if s.unserved = all; all != "" {
			s.cfg.Log.Warn("webhooks wait, but no receiver takes their platforms", "platforms", all)
		}
	}
}
