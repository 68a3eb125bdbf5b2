package inbox

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"usher/internal/inbox/engine"
)

// The database refuses to write the lane of one tenant. The others' webhooks are delivered, and usher does not try
// again without a pause.
func TestRejectedLaneWaits(t *testing.T) {
	t.Parallel()
	refusal := &engine.StatementError{Err: errors.New("not this tenant")} // as by a trigger
	for _, places := range some(1, 32, 1, 4) {
		e := &refusedLane{statement: "lane_save"}
		inBubble(t, fmt.Sprint("claimed, ", places, " places"), func(t *testing.T, d *desk) {
			d.places(places)
			check(t, d.Pause(Pause{}))
			for n := range 6 {
				d.take(fmt.Sprint("before", n), "A")
			}
			d.take("odd", "A")
			for n := range 6 {
				d.take(fmt.Sprint("after", n), "A")
			}
			e.set("odd", refusal)
			must(d.Resume(Pause{}))(t)
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
			e.set("", nil)
			d.waitFor("odd", 1, maxRejectedWait)
		}, between(intercepted{asks: e.asked}))
	}
	e := &refusedLane{statement: "lane_save"}
	inBubble(t, "the outcome of a try", func(t *testing.T, d *desk) {
		release := d.main.hang("odd")
		d.take("odd", "A", "B")
		time.Sleep(time.Second)
		e.set("odd", refusal)
		release()
		for n := range 60 {
			d.take("other", fmt.Sprint(n))
			time.Sleep(time.Second)
		}
		if n := e.count.Load(); n > 30 { // each splits the batch that it is in
			t.Errorf("%d transactions failed in a minute", n)
		}
		d.want("the others", fmt.Sprint(len(d.main.got("other"))), "60")
		e.set("", nil)
		time.Sleep(maxRejectedWait)
		d.want("in the end", fmt.Sprint(d.main.got("odd"), len(d.main.tried("odd"))), "[A B] 2")
	}, between(intercepted{asks: e.asked}))
}
