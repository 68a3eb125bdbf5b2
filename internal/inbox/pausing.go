package inbox

import (
	"cmp"
	"context"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
)

// Pause holds deliveries back; see type Pause. It ends by itself after lasts, by the database's clock, unless that is
// zero. The result has its end.
func (c *courier) Pause(p Pause, lasts time.Duration, by *Action) (Pause, error) {
	if lasts < 0 { // as of an end that is over
		return Pause{}, errPauseOver
	}
	return changePause(c, by, func(t *turn) (is Pause) {
		if p.Until = (time.Time{}); lasts > 0 {
			p.Until = clock.Moment(t.after(lasts))
		}
		t.ask("pause_add", func(r engine.Row) (err error) { is, err = scanPause(r); return err }, p.row(t.Now)...)
		return is
	})
}

const errPauseOver lane.Denied = "the pause would have ended already"

// Resume lifts a pause, and says whether there was one.
func (c *courier) Resume(p Pause, by *Action) (bool, error) { return c.endPause(p, clock.Never, by) }

// endPause lifts a pause that ends until then. Zero: now, by the database's clock.
func (c *courier) endPause(p Pause, until int64, by *Action) (bool, error) {
	return changePause(c, by, func(t *turn) (was bool) {
		t.ask("pause_remove", func(engine.Row) error { was = true; return nil }, p.Receiver, p.Platform, p.Tenant, cmp.Or(until, t.Now))
		return was
	})
}

// changePause writes a pause's row. Then it reads the pauses, so that the change is in force here when it returns.
func changePause[T any](c *courier, by *Action, change func(*turn) T) (result T, err error) {
	result, err = act(c.queue, op{}, by, func(t *turn) (T, int, error) { return change(t), 0, nil })
	if err == nil {
		err = c.readPauses(c.run)
		c.wake()
	}
	return result, err
}

// refreshPauses reads the pauses again and again, so that a pause of another replica is in force here within a
// second, and lifts those that have ended. In a file, which no other process changes, it reads them once.
func (c *courier) refreshPauses() {
	tick := time.NewTicker(time.Second / 2)
	defer tick.Stop()
	for read := false; c.run.Err() == nil; {
		if !read || c.engine.Shared() {
			ctx, cancel := context.WithTimeout(c.run, 5*time.Second)
			read = c.readPauses(ctx) == nil || read // an error is not logged: the writer notices an outage
			cancel()
		}
		for _, p := range c.allPauses() {
			if !p.over(c.Now()) {
				continue
			}
			if was, err := c.endPause(p, 0, nil); err == nil && was { // else another replica did, or it has a new end
				c.cfg.Log.Info("a pause has ended", "what", p.String())
			}
		}
		select {
		case <-tick.C:
		case <-c.run.Done():
		}
	}
}
