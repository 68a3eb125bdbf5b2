package inbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/inbox/engine"
)

// guarded is an engine that rejects to write the lane of a tenant, as a trigger may. It counts how often.
type guarded struct {
	engine.Engine
	tenant atomic.Pointer[string]
	count  atomic.Int64
}

func (e *guarded) Write(fn func(engine.Tx) error) error {
	return e.Engine.Write(func(tx engine.Tx) error {
		g := &guardedTx{Tx: tx, e: e}
		if err := fn(g); err != nil || !g.rejects {
			return err
		}
		e.count.Add(1)
		return &engine.StatementError{Err: errors.New("not this tenant")}
	})
}

type guardedTx struct {
	engine.Tx
	e       *guarded
	rejects bool
}

func (tx *guardedTx) Queue(name string, each func(engine.Row) error, args ...any) {
	if tenant := tx.e.tenant.Load(); tenant != nil && name == "lane_save" {
		tx.rejects = tx.rejects || slices.Contains(args[0].([]string), *tenant)
	}
	tx.Tx.Queue(name, each, args...)
}

// The database refuses to write the lane of one tenant. The others' webhooks are delivered, and usher does not try
// again without a pause.
func TestRejectedLaneWaits(t *testing.T) {
	t.Parallel()
	odd := "odd"
	guard := func(e *guarded) func(engine.Engine) engine.Engine {
		return func(inner engine.Engine) engine.Engine { e.Engine = inner; return e }
	}
	for _, places := range some(1, 32, 1, 4) {
		e := new(guarded)
		inBubbleOn(t, fmt.Sprint("claimed, ", places, " places"), guard(e), func(t *testing.T, d *desk) {
			d.places(places)
			check(t, d.Pause(Pause{}))
			for n := range 6 {
				d.take(fmt.Sprint("before", n), "A")
			}
			d.take(odd, "A")
			for n := range 6 {
				d.take(fmt.Sprint("after", n), "A")
			}
			e.tenant.Store(&odd)
			must(t, true, second(d.Resume(Pause{})))
			if took := d.waitFor("", 12, time.Minute); took > 2*time.Second {
				t.Errorf("the others waited for %v", took)
			}
			e.count.Store(0)
			time.Sleep(time.Minute)
			if n := e.count.Load(); n > 10 {
				t.Errorf("%d transactions failed in a minute", n)
			}
			if n := strings.Count(d.log.String(), "the database refuses"); n > 30 {
				t.Errorf("%d lines in the log", n)
			}
			e.tenant.Store(nil)
			d.waitFor(odd, 1, maxRejectedWait)
		})
	}
	e := new(guarded)
	inBubbleOn(t, "the outcome of a try", guard(e), func(t *testing.T, d *desk) {
		release := d.main.hang(odd)
		d.take(odd, "A", "B")
		time.Sleep(time.Second)
		e.tenant.Store(&odd)
		release()
		for n := range 60 {
			d.take("other", fmt.Sprint(n))
			time.Sleep(time.Second)
		}
		if n := e.count.Load(); n > 30 { // each splits the batch that it is in
			t.Errorf("%d transactions failed in a minute", n)
		}
		d.want("the others", fmt.Sprint(len(d.main.got("other"))), "60")
		e.tenant.Store(nil)
		time.Sleep(maxRejectedWait)
		d.want("in the end", fmt.Sprint(d.main.got(odd), len(d.main.tried(odd))), "[A B] 2")
	})
}
