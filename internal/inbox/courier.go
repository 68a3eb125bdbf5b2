package inbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/internal/text"
	"usher/webhookgate"
)

// The courier delivers. A lease is one try, whose outcome goes to the writer again.
type courier struct {
	*queue
	*places
	figures  *figures
	retries  chan struct{} // to Run: a try has failed
	unserved string        // only Run uses it: the platforms that were last logged because no receiver takes them
}

func newCourier(q *queue, p *places, f *figures) *courier {
	return &courier{queue: q, places: p, figures: f, retries: make(chan struct{}, 1)}
}

// Run delivers until ctx ends. Then deliveries that have begun may finish, until hard ends.
func (c *courier) Run(ctx, hard context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	// Nothing may be delivered before the pauses are known.
	for c.readPauses(ctx) != nil && ctx.Err() == nil {
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
			c.wakeWriter()
			c.waitForRetry()
		case <-c.retries:
		case <-tick.C: // others may have left lanes that are due
			c.wake()
			c.logUnserved(ctx)
		}
	}
	c.begin(c.end())
	for c.busy() {
		time.Sleep(10 * time.Millisecond)
	}
}

// begin begins deliveries.
func (c *courier) begin(leases []*lane.Lease) {
	for _, lease := range leases {
		go c.deliver(lease)
	}
}

// deliver tries a webhook once, and hands the outcome to the writer.
func (c *courier) deliver(lease *lane.Lease) {
	t := c.target(lease.Receiver)
	o := c.try(t, lease)
	c.begin(c.left(t))
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
		if err := c.submit(context.Background(), settle); err != nil {
			settle.done(err)
		}
	}
	save()
}

// try loads the content and sends it.
func (c *courier) try(t *target, lease *lane.Lease) *lane.Outcome {
	w := lease.Webhook
	c.mu.Lock()
	hard, stop := c.hard, c.ending
	c.mu.Unlock()
	o := &lane.Outcome{Lease: lease, Aborted: true}
	if stop || c.lanePaused(w.Platform, w.Tenant, t.Name) {
		return o
	}
	if !w.HasContent {
		defer c.holdBody(t, w.Size)()
	}
	if err := c.loadContent(hard, w); errors.Is(err, lane.ErrDamaged) {
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
	share := c.cfg.Limits.Bodies / int64(len(c.all))
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
		c.cfg.Log.Debug("the result of a delivery came too late", "id", o.Lease.Webhook.ID)
		return
	}
	if !o.LaneDue.IsZero() {
		c.mu.Lock()
		if due := time.Now().Add(o.LaneDue.Sub(c.Now())); t.retryAt.IsZero() || due.Before(t.retryAt) {
			t.retryAt = due
			select {
			case c.retries <- struct{}{}:
			default:
			}
		}
		c.mu.Unlock()
	}
	if o.Try.Accepted() && c.cfg.Delivered != nil {
		c.cfg.Delivered(t.Name, max(0, o.Tried.Changed.Sub(o.Tried.AgeFrom())))
	}
	if o.ContentErr != nil || !o.Began.IsZero() { // else nothing was tried
		c.logOutcome(o)
	}
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
			wait := max(0, o.LaneDue.Sub(c.Now()))
			attrs = append(attrs, slog.Duration("next_try", wait.Round(time.Second/10)))
		}
		if o.Try.Status != 0 {
			attrs = append(attrs, slog.Int("receiver_status", o.Try.Status))
		} else {
			attrs = append(attrs, slog.Any("err", o.Try.Err))
		}
	}
	c.cfg.Log.LogAttrs(context.Background(), level, message, attrs...)
}

// loadContent reads the content of a webhook, unless it is in memory, and checks it.
func (s *store) loadContent(ctx context.Context, w *lane.Webhook) error {
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

// route gives lanes whose webhooks wait the receivers that the settings say: they may have changed since. It runs at the start,
// and each minute, since another replica may have delivered a lane meanwhile, or have had other settings.
func (s *store) route(tx engine.Tx, now int64) {
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
func (c *courier) logUnserved(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, countPatience)
	defer cancel()
	if st := c.figures.stats(ctx); st.Old || st.Receivers[""].Pending == 0 && c.unserved == "" {
		return
	}
	codes, err := listOf(ctx, c.read, scanText, "unserved")
	if err != nil {
		return
	}
	for i, code := range codes {
		codes[i] = cmp.Or(code, "(none)")
	}
	if all := strings.Join(codes, ", "); all != c.unserved {
		if c.unserved = all; all != "" {
			c.cfg.Log.Warn("webhooks wait, but no receiver takes their platforms", "platforms", all)
		}
	}
}
