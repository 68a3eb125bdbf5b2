package courier

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// What each answer of a receiver means, as it is promised: these four park at once, those that say
// that the receiver is down are no tries, and every other failure is one.
func TestWhatAnAnswerMeans(t *testing.T) {
	statuses := make(map[int]string)
	for status := 100; status < 600; status++ {
		switch {
		case status/100 == 2:
			statuses[status] = "delivered"
		case status == 400, status == 410, status == 413, status == 422:
			statuses[status] = "parked"
		case status == 502, status == 503, status == 504:
			statuses[status] = "down"
		default:
			statuses[status] = "try"
		}
	}
	statuses[0] = "down" // no answer at all
	for status, want := range statuses {
		synctest.Test(t, func(t *testing.T) {
			rc := new(inboxtest.Receiver)
			a := webhookgate.Attempt{Status: status}
			if status == 0 {
				a.Err = errors.Join(errors.New("refused"), context.DeadlineExceeded)
			}
			rc.Set(func(*webhookgate.Webhook, int) webhookgate.Attempt { return a })
			cfg := config(rc)
			cfg.Pause = full
			d := run(t, cfg)
			d.send("t", "A")
			time.Sleep(time.Second / 2)
			s := d.stands(1)
			got := "try"
			switch {
			case s.State == record.Delivered:
				got = "delivered"
			case s.State == record.Parked:
				got = "parked"
			case s.Counted == 0:
				got = "down"
			}
			if got != want || s.Tries != 1 {
				t.Errorf("%d: %s, want %s: %+v", status, got, want, s)
			}
		})
	}
}

// The pauses of a lane: 1 s, and twice as long after each failure, up to 5 minutes.
func TestPausesOfALane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(inboxtest.Status(500))
		cfg := config(rc)
		cfg.Pause = full
		run(t, cfg).send("t", "A")
		time.Sleep(2 * time.Hour)
		want := time.Second
		at := rc.Tried()
		for i := 1; i < len(at); i++ {
			if gap := at[i].Sub(at[i-1]); gap != want {
				t.Errorf("try %d after %v, want %v", i+1, gap, want)
			}
			want = min(2*want, 5*time.Minute)
		}
		if len(at) != 20 {
			t.Errorf("%d tries, want 20", len(at))
		}
	})
}

// A parked webhook frees its lane: the next of its tenant goes at once.
func TestParkedFreesItsLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		rc.Set(func(_ *webhookgate.Webhook, n int) webhookgate.Attempt {
			return webhookgate.Attempt{Status: map[bool]int{true: 500, false: 200}[n <= 3]}
		})
		cfg := config(rc)
		cfg.Attempts, cfg.Pause = 3, full
		d := run(t, cfg)
		d.send("t", "A")
		d.send("t", "B")
		time.Sleep(3500 * time.Millisecond) // 1 s, 2 s, and the third fails
		d.want(record.Superseded, record.Delivered)
	})
}
