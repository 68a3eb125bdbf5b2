package inbox

import (
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
	"usher/webhookgate"
)

// Outages, in which no gate was there to take webhooks, and webhooks that got a 5xx before their tenant was known:
// nobody can say whose are lost.

// An Outage is a time in which no replica's gate was up and ready.
type Outage struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

const (
	// minOutage is the shortest outage.
	minOutage = time.Minute
	// beatInterval is how often a gate that is up and ready says so.
	beatInterval = 15 * time.Second
	// shownOutages is how many outages Stats has.
	shownOutages = 100
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

// GateIsUp says that the gate takes webhooks from now on. So the inbox finds out at once whether there was an outage
// before.
func (s *Inbox) GateIsUp() {
	select {
	case s.gateIsUp <- struct{}{}:
	default:
	}
}

// beat says that the gate is up and ready, each beatInterval and when it ends, and stores the outage before, if there
// was one. It also stores how many webhooks got a 5xx before their tenant was known.
func (s *Inbox) beat(up bool) {
	b := &s.heart
	due := up && clock.Since(b.at) >= beatInterval || b.up && !up
	unnamed := s.cfg.Missed.Unnamed()
	if !due && unnamed.Count == 0 {
		return
	}
	var missed *Outage
	asked := time.Now()
	at := asked
	err := s.write(func(tx engine.Tx) error {
		var last, now int64
		missed = nil
		tx.Queue("gate_up", func(r engine.Row) error { return r.Scan(&last) })
		tx.Now(&now)
		if err := tx.Send(); err != nil {
			return err
		}
		now = s.applyOffset(now)
		if due {
			if began, found := b.outage(last, now); found {
				missed = &Outage{clock.Moment(began), clock.Moment(now)}
				tx.Queue("outage_add", nil, began, now, int64(0))
			}
			tx.Queue("gate_up_save", nil, now)
		}
		return storeUnnamed(tx, unnamed, now, asked)
	})
	if err != nil {
		return
	}
	if missed != nil {
		s.cfg.Log.Warn("no gate was ready to take webhooks for a while: usher may have missed some",
			"from", missed.From, "to", missed.To)
	}
	if due {
		s.heart = heartbeat{up, at}
	}
	s.changed() // first: they must always be in the one or in the other
	s.asked.Store(s.asked.Load() || due)
	s.cfg.Missed.DropUnnamed(unnamed)
}

// storeUnnamed adds webhooks without a tenant to those that are stored, in one row. asked is our time before the
// database's was read: so they may seem to have come a little later than they did, but never before a reconcile that
// had begun earlier.
func storeUnnamed(tx engine.Tx, u webhookgate.Unnamed, now int64, asked time.Time) error {
	if u.Count == 0 {
		return nil
	}
	stored := func(at time.Time) time.Time { return clock.Moment(now - clock.Micros(asked.Sub(at))) }
	u.Since, u.Last = stored(u.Since), stored(u.Last)
	tx.Queue("unnamed_take", func(r engine.Row) error {
		before, err := scanUnnamed(r)
		u = u.Add(before)
		return err
	})
	if err := tx.Send(); err != nil {
		return err
	}
	tx.Queue("outage_add", nil, u.Since.UnixMicro(), u.Last.UnixMicro(), int64(u.Count))
	return nil
}

// scanUnnamed reads a row of the table outage. An outage has no webhooks.
func scanUnnamed(r engine.Row) (u webhookgate.Unnamed, err error) {
	var began, ended int64
	err = r.Scan(&began, &ended, &u.Count)
	u.Since, u.Last = clock.Moment(began), clock.Moment(ended)
	return u, err
}

// Dismiss says that outages, and what was missed without a name, are dealt with, if they ended until then; zero: all.
// It returns how many outages and how many webhooks that were. What is only in memory yet came just now, and stays.
func (s *Inbox) Dismiss(until time.Time, by *Action) (outages, webhooks int, err error) {
	upTo := int64(clock.Never)
	if !until.IsZero() {
		upTo = until.UnixMicro()
	}
	type counts struct{ outages, webhooks int }
	n, err := act(s, work{by: by}, func(t *sqlTurn) (n counts, touched int, err error) {
		t.tx.Queue("outage_end", func(r engine.Row) error {
			u, err := scanUnnamed(r)
			n.webhooks += u.Count
			n.outages += int(boolNumber(u.Count == 0))
			return err
		}, upTo, t.Now)
		t.send()
		return n, n.webhooks, nil
	})
	return n.outages, n.webhooks, err
}
