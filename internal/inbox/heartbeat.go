package inbox

import (
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
)

const (
	// minOutage is for how long no gate must be up and ready, so that webhooks count as missed.
	minOutage = time.Minute
	// beatInterval is how often a gate that is up and ready says so.
	beatInterval = 15 * time.Second
	// missedAge is how long something counts as missed.
	missedAge = 7 * 24 * time.Hour
)

// A heartbeat is when this process last said whether its gate is up and ready.
type heartbeat struct {
	up bool
	at time.Time // zero: it never said so
}

// outage returns since when no gate was up, if that is for minOutage or more, by the database's clock: last is when one
// last said so. If that is in the future when this process first asks, the clock was set back meanwhile: nobody knows
// for how long no gate was up, and the outage has no length.
func (b *heartbeat) outage(last, now int64) (began int64, found bool) {
	wentBack := b.at.IsZero() && last-now >= clock.Micros(minOutage)
	return min(last, now), last > 0 && (now-last >= clock.Micros(minOutage) || wentBack)
}

// A pulse says in the database that the gate of this process is up and ready.
type pulse struct {
	*figures
	heart    heartbeat     // only the writer uses it
	gateIsUp chan struct{} // to the writer
}

func newPulse(f *figures) *pulse { return &pulse{figures: f, gateIsUp: make(chan struct{}, 1)} }

// GateIsUp says that the gate takes webhooks from now on. So the inbox finds out at once whether there was an outage
// before.
func (p *pulse) GateIsUp() {
	select {
	case p.gateIsUp <- struct{}{}:
	default:
	}
}

// beat says that the gate is up and ready, each beatInterval and when it ends, and stores what was missed.
func (p *pulse) beat(up bool) {
	b := &p.heart
	due := up && clock.Since(b.at) >= beatInterval || b.up && !up
	inMemory := p.missedInMemory()
	if !due && inMemory.Webhooks == 0 {
		return
	}
	var outage Missed
	asked := time.Now()
	err := p.write(func(tx engine.Tx) error {
		var stored Missed
		var last, now int64
		tx.Queue("missed_lock", func(r engine.Row) (err error) { stored, last, err = scanMissed(r); return err })
		tx.Now(&now)
		if err := tx.Send(); err != nil {
			return err
		}
		now = p.applyOffset(now)
		// So what is in memory may seem to have come a little later than it did, but never before a reconcile that had begun
		// earlier.
		dated := func(at time.Time) time.Time { return clock.Moment(now - clock.Micros(asked.Sub(at))) }
		all, gateUp := stored, last
		if !inMemory.From.IsZero() {
			all = all.Add(Missed{dated(inMemory.From), dated(inMemory.To), inMemory.Webhooks})
		}
		outage = Missed{}
		if due {
			if began, found := b.outage(last, now); found {
				outage = Missed{clock.Moment(began), clock.Moment(now), 0}
			}
			gateUp = now
		}
		all = all.Add(outage)
		tx.Queue("missed_save", nil, microsOrZero(all.From), microsOrZero(all.To), int64(all.Webhooks), gateUp)
		return nil
	})
	if err != nil {
		return
	}
	if !outage.From.IsZero() {
		p.cfg.Log.Warn("no gate was ready to take webhooks for a while: usher may have missed some",
			"from", outage.From, "to", outage.To)
	}
	if due {
		p.heart = heartbeat{up, asked}
	}
	p.asked.Store(p.asked.Load() || due)
	p.changed()
	p.storedMissed(inMemory)
}

func (p *pulse) beatIfDue() {
	if p.health.lastErr() == nil && !p.cfg.ReadOnly {
		p.beat(p.cfg.GateUp != nil && p.cfg.GateUp() && p.Err() == nil)
	}
}

// endMissed notes that nothing is missed any more that ended until then.
func (t *turn) endMissed(until time.Time) {
	t.tx.Queue("missed_end", nil, until.UnixMicro(), t.Now)
	t.person = true
	t.Then(func() { t.s.endMissed(t.s.ours(until)) })
}
