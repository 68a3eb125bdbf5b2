package shared

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/natstest"
)

// A replica is asked to hand a part over just when it has read nearly all of it. Whoever has the part next, this one too,
// delivers what waits in it. Not in a bubble: a lock is held.
func TestLeftWhileBeginning(t *testing.T) {
	t.Parallel()
	c := &cluster{t: t, server: natstest.New(), parts: 1}
	defer c.server.End()
	c.change = func(cfg *Config, _ *courier.Config) { cfg.Idle = true }
	idle := c.start()
	defer idle.stop()
	until(t, "it can be used", func() bool { return idle.Err() == nil })
	webhooks := 2000
	if testing.Short() {
		webhooks = 1000
	}
	for n := range webhooks {
		idle.send(t, fmt.Sprint("t", n), "A")
	}
	c.receiver.Set(inboxtest.Refusing)
	c.change = func(*Config, *courier.Config) {}
	r := c.start()
	defer r.stop()
	handedOver := 0
	for end := time.Now().Add(20 * time.Second); handedOver < 5 && time.Now().Before(end); runtime.Gosched() {
		term := r.term(0)
		switch {
		case term == nil:
		case term.leaveAt(webhooks - 1):
			handedOver++
			<-term.Ended()
		case term.hasBegun(): // missed: once more
			term.Leave()
			<-term.Ended()
		}
	}
	t.Logf("handed over %d times", handedOver)
	c.receiver.Set(nil)
	until(t, fmt.Sprintf("all are delivered, after %d handovers", handedOver), func() bool { return len(c.receiver.Accepted()) >= webhooks })
}

// leaveAt has the term end when it has gathered so many webhooks. Who wants its lock meanwhile has to wait a little.
func (t *term) leaveAt(webhooks int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gather == nil || len(t.gather.records) < webhooks {
		return false
	}
	t.Leave()
	time.Sleep(5 * time.Millisecond)
	return true
}
