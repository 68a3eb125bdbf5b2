package inbox

import (
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/inbox/engine"
)

// What got a 5xx is in memory until the inbox can be written, and is then stored: it outlives a restart, several become
// one, and after a week it is gone.
func TestMissed(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		var full atomic.Bool
		d := newDesk(t, open, between(intercepted{write: failsWhile(&full)}))
		d.until("open", d.Ready)
		missed := func(webhooks int) func() bool {
			return func() bool {
				m := d.Stats().Missed
				return m.Webhooks == webhooks && m.From.IsZero() == (webhooks == 0)
			}
		}
		d.until("nothing", missed(0))
		full.Store(true)
		first, last := time.Now(), time.Now().Add(3*time.Millisecond)
		d.Miss(first)
		d.Miss(last)
		d.until("in memory", missed(2))
		full.Store(false)
		d.until("stored", func() bool { return d.missedInMemory().Webhooks == 0 })
		d.Miss(last)
		d.until("stored, too", func() bool { return d.missedInMemory().Webhooks == 0 })
		d.restart()
		d.until("after a restart", missed(3))
		m := d.Stats().Missed
		if took := m.To.Sub(m.From); took < 2*time.Millisecond || took > time.Second || m.From.Sub(first).Abs() > time.Second {
			t.Errorf("from %v to %v, and it was %v to %v", m.From, m.To, first, last)
		}
		d.ahead.Store(int64(8 * 24 * time.Hour))
		d.restart()
		d.until("after a week", missed(0))
	})
}

// A gate that rejects everything because its disk is full is not ready, although it could write that it is there: who
// asks a load balancer in front of it never reaches it.
func TestFullDiskIsAnOutage(t *testing.T) {
	t.Parallel()
	var full atomic.Bool
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		d.cfg.GateUp = func() bool { return true }
		d.restart()
		d.take("fine", "A")
		time.Sleep(time.Minute)
		for outages, lasts := range []time.Duration{40 * time.Second, 10 * time.Minute} {
			begin := d.Now()
			full.Store(true)
			time.Sleep(lasts)
			full.Store(false)
			end := d.Now()
			time.Sleep(20 * time.Second)
			o := d.Stats().Missed
			if o.From.IsZero() != (outages == 0) {
				t.Fatalf("%v: %+v", lasts, o)
			}
			if outages > 0 && (o.From.Sub(begin).Abs() > 16*time.Second || o.To.Sub(end).Abs() > 16*time.Second) {
				t.Errorf("an outage of %+v, and it was from %v to %v", o, begin, end)
			}
		}
	}, between(intercepted{full: func() *engine.FullError {
		if full.Load() {
			return &engine.FullError{Of: "the file"}
		}
		return nil
	}}))
}

// When a gate was not up, by the database's clock.
func TestOutage(t *testing.T) {
	const second, minute = int64(time.Second / time.Microsecond), int64(time.Minute / time.Microsecond)
	now := time.Now().UnixMicro()
	for name, tc := range map[string]struct {
		b           heartbeat
		last, began int64 // before now; began -1: no outage
	}{
		"the first start ever":                    {heartbeat{}, now, -1},
		"just started":                            {heartbeat{}, 5 * second, -1},
		"started after a while":                   {heartbeat{}, 5 * minute, 5 * minute},
		"started after the clock was set back":    {heartbeat{}, -60 * minute, 0},
		"just started, the clock was a bit ahead": {heartbeat{}, -30 * second, -1},
		"up":                     {heartbeat{at: time.Now()}, 15 * second, -1},
		"away":                   {heartbeat{at: time.Now()}, 5 * minute, 5 * minute},
		"the clock was set back": {heartbeat{at: time.Now()}, -60 * minute, -1},
	} {
		began, found := tc.b.outage(now-tc.last, now)
		if found != (tc.began != -1) || found && now-began != tc.began {
			t.Errorf("%s: an outage of %d s: %v", name, (now-began)/second, found)
		}
	}
}
