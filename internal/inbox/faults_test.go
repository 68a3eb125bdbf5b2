package inbox

import (
	"fmt"

	"strings"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/inbox/engine"
)

// A database that hangs keeps nobody waiting who wants figures that are at hand: once two seconds, then not at all.
func TestFaultFiguresOfADatabaseThatHangs(t *testing.T) {
	var mute atomic.Bool
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		check(t, d.Pause(Pause{}))
		d.take("a", "A")
		time.Sleep(2 * time.Second)
		d.Stats()
		mute.Store(true)
		time.Sleep(5 * time.Second)
		waited := time.Duration(0)
		for range 60 {
			began := time.Now()
			s := d.Stats()
			d.HeldUp()
			took := time.Since(began)
			if waited += took; took > 2*countPatience || !s.Old || s.Pending != 1 {
				t.Fatalf("after %v: %+v", took, s)
			}
			time.Sleep(time.Second)
		}
		// A count gives up after five seconds, and the next one begins five later: at most eight in this minute and
		// what was waited in it.
		if waited > 8*countPatience {
			t.Errorf("they waited for %v", waited)
		}
		mute.Store(false)
		time.Sleep(10 * time.Second)
		if s := d.Stats(); s.Old || s.Pending != 1 {
			t.Errorf("after it: %+v", s)
		}
	}, between(unanswered(&mute)))
}

// A disk that is full for a minute is one outage, with one line at its begin and one at its end, whatever could be
// written meanwhile.
func TestFaultFullDiskIsOneOutage(t *testing.T) {
	var full atomic.Pointer[engine.FullError]
	count := 0 // every other transaction still fits, as a small outcome does
	crammed := intercepted{full: full.Load, write: func(run func(failure error) error) error {
		if full := full.Load(); full != nil {
			if count++; count%2 == 1 {
				return full
			}
		}
		return run(nil)
	}}
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		begins := func() int { return strings.Count(d.log.String(), "cannot write to the inbox") }
		ends := func() int { return strings.Count(d.log.String(), "can be written again") }
		for n := 1; n <= 2; n++ {
			full.Store(&engine.FullError{Of: "it", Since: time.Now()})
			time.Sleep(time.Minute)
			if begins() != n || ends() != n-1 {
				t.Fatalf("outage %d begins %d times", n, begins())
			}
			full.Store(nil)
			time.Sleep(2 * time.Second)
			if h := d.Health(); h.Err != nil || ends() != n {
				t.Errorf("outage %d has no end: %v", n, h.Err)
			}
		}
		if strings.Count(d.log.String(), "after=1m")+strings.Count(d.log.String(), "after=59s") != 2 {
			t.Errorf("they lasted for a minute each, and it says:\n%s", d.log.String())
		}
	}, between(crammed))
}

// What cannot be known in an outage keeps its last value, and says how old it is.
func TestFaultFiguresInAnOutage(t *testing.T) {
	var gone atomic.Bool
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		if s := d.Stats(); s.Paused == nil {
			t.Error("no pauses are not the same as unknown ones")
		}
		d.main.set("parked", status(422))
		d.take("parked", "A")
		time.Sleep(time.Second)
		check(t, d.Pause(Pause{}))
		check(t, d.Pause(Pause{Tenant: "a"}))
		d.take("a", "A", "B")
		d.recordInvalid("", "odd")
		time.Sleep(3 * time.Second)
		counts := func(s Stats) string {
			return fmt.Sprintf("%d wait, %d parked, %d invalid, %d pauses",
				s.Pending, s.Parked, s.Invalid, len(s.Paused))
		}
		const all = "2 wait, 1 parked, 1 invalid, 2 pauses"
		before := d.Stats()
		if counts(before) != all || before.Old || time.Since(before.At) > 2*time.Second {
			t.Fatalf("%+v", before)
		}
		gone.Store(true)
		time.Sleep(time.Minute)
		now := d.Stats()
		same := now.Used == before.Used && now.Tenants == before.Tenants
		if counts(now) != all || !same || now.Receivers["main"].Pending != 2 {
			t.Errorf("in an outage: %+v", now)
		}
		if age := time.Since(now.At); !now.Old || age < 58*time.Second || age > 63*time.Second {
			t.Errorf("it does not say that its figures are of %v ago: %v", age, now.Old)
		}
		if now.Oldest < before.Oldest+59*time.Second {
			t.Errorf("the oldest was %v old, and now %v", before.Oldest, now.Oldest)
		}
		gone.Store(false)
		time.Sleep(10 * time.Second)
		if now := d.Stats(); now.Old || time.Since(now.At) > 3*time.Second || now.Pending != 2 {
			t.Errorf("after it: %+v", now)
		}
		gone.Store(true)
		d.restart()
		time.Sleep(10 * time.Second)
		if now := d.Stats(); now.Paused != nil || !now.At.IsZero() || !now.Old {
			t.Errorf("nothing is known yet: %+v", now)
		}
		gone.Store(false)
		time.Sleep(10 * time.Second)
		if now := d.Stats(); len(now.Paused) != 2 || now.Pending != 2 {
			t.Errorf("when it is back: %+v", now)
		}
	}, between(away(&gone)))
}
