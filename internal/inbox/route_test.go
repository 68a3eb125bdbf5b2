package inbox

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/receiver"
	"usher/internal/testkit/pgtest"
	"usher/webhookgate"
)

// A platform gets another receiver. What waits goes there soon, whatever the former one has asked for, and although
// that one is paused.
func TestPlatformMoves(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(d *desk, alpha *taker){
		"Retry-After": func(_ *desk, alpha *taker) {
			alpha.set("", func(int) *http.Response {
				answer := status(503)(0)
				answer.Header = http.Header{"Retry-After": {"3000"}}
				return answer
			})
		},
		"paused": func(d *desk, _ *taker) { check(d.t, d.Pause(Pause{Receiver: "alpha"})) },
	} {
		t.Run(name, func(t *testing.T) {
			onEngines(t, func(t *testing.T, open func() engine.Engine) {
				alpha, beta := newTaker("alpha", 4, "p1", "p2"), newTaker("beta", 4, "p3")
				d := newDesk(t, open, func(c *setup) { c.Receivers = receiver.NewSet(alpha.Receiver, beta.Receiver) })
				trouble(d, alpha)
				d.take("p1/t", "A")
				if name != "paused" {
					d.until("tried", func() bool { return len(d.HeldUp()) == 1 })
				}
				d.shut()
				alpha.Platforms, beta.Platforms = []string{"p2"}, []string{"p3", "p1"}
				d.start()
				d.until("delivered to its receiver of now", func() bool { return fmt.Sprint(beta.got("t")) == "[A]" })
			})
		})
	}
}

// A replica dies while it delivers, and its receiver has another name when usher starts again.
func TestReceiverIsRenamed(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Schema(t)
	alpha := newTaker("alpha", 4, "p1")
	d := newDesk(t, inDatabase(t, dsn), func(c *setup) {
		c.Receivers, c.LeaseTime = receiver.NewSet(alpha.Receiver), 2*time.Second
	})
	check(t, d.Pause(Pause{}))
	d.take("p1/t", "A")
	must(d.Resume(Pause{}))(t)
	d.idle("")
	check(t, d.Pause(Pause{}))
	d.take("p1/t", "B")
	d.shut()
	const held = "UPDATE {schema}.lane SET owner = '\\x01', leased = tail, due = %d"
	inSchema(t, dsn, fmt.Sprintf(held, time.Now().Add(-time.Second).UnixMicro()))
	inSchema(t, dsn, "DELETE FROM {schema}.pause")
	beta := newTaker("beta", 4, "p1")
	d.cfg.Receivers = receiver.NewSet(beta.Receiver)
	d.start()
	d.until("delivered to the receiver with its new name", func() bool { return fmt.Sprint(beta.got("t")) == "[B]" })
}

// Lanes that an owner still holds, as far as anybody knows, keep their receiver, and nobody looks at them again and
// again.
func TestMisroutedLanesAreNotLookedAtWithoutAPause(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Schema(t)
	alpha := newTaker("alpha", 4, "p1")
	d := newDesk(t, inDatabase(t, dsn), func(c *setup) {
		c.Receivers, c.Limits = receiver.NewSet(alpha.Receiver), DefaultLimits
		c.Limits.Step = 2
	})
	check(t, d.Pause(Pause{}))
	for i := range 5 {
		d.take(fmt.Sprintf("p1/t%d", i), "A")
	}
	const held = "UPDATE {schema}.lane SET receiver = 'former', owner = '\\x01', leased = tail, due = %d"
	inSchema(t, dsn, fmt.Sprintf(held, time.Now().Add(-time.Second).UnixMicro()))
	d.Inbox.clock.mu.Lock()
	d.Inbox.clock.unsureSince = time.Now() // the clock has jumped: nobody takes anything over
	d.Inbox.clock.mu.Unlock()
	d.want("one look", fmt.Sprint(d.Inbox.route(true)), "<nil>")
	two := []webhookgate.LaneName{{Platform: "p1", Tenant: "t0"}, {Platform: "p1", Tenant: "t1"}}
	d.want("another one, at what is being delivered", fmt.Sprint(d.Inbox.reroute(two)), "0 <nil>")
	d.Inbox.clock.mu.Lock()
	d.Inbox.clock.unsureSince = time.Time{}
	d.Inbox.clock.mu.Unlock()
	d.want("then", fmt.Sprint(d.Inbox.route(true)), "<nil>")
	var left int
	check(t, d.read(t.Context(), func(tx engine.Tx) error {
		tx.Queue("receivers", func(r engine.Row) error { left++; var name string; return r.Scan(&name) })
		return tx.Send()
	}))
	d.want("receivers", fmt.Sprint(left), "1")
}
