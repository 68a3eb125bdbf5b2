package clock

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/testkit"
)

func TestPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := NewPulse(slog.New(slog.NewTextHandler(&log, nil)))
		go p.Run(t.Context())
		began := time.Now()
		if !p.StoodStill(began.Add(-3*time.Second)) || p.StoodStill(began.Add(-time.Second)) {
			t.Error("what waited before the start")
		}
		time.Sleep(time.Minute)
		if p.StoodStill(began) {
			t.Error("it stood still while it ran")
		}
		for range 3 { // whoever asks first finds it, and whoever asks later, too
			p.mu.Lock()
			p.last = Instant{time.Now().Add(-standstill), slept()}
			p.mu.Unlock()
			if !p.StoodStill(began) {
				t.Error("a standstill is not seen")
			}
		}
		time.Sleep(time.Millisecond)
		if !p.StoodStill(began) || p.StoodStill(time.Now()) {
			t.Error("it is before and after everything")
		}
		p.last.slept -= time.Hour
		if !p.StoodStill(time.Now().Add(-time.Millisecond)) {
			t.Error("the machine slept for an hour")
		}
		if n := strings.Count(log.String(), "usher stood still"); n != 4 || !strings.Contains(log.String(), "for=1h0m0") {
			t.Errorf("logged %d times: %s", n, log.String())
		}
	})
}

// Nobody makes time pass by setting a clock.
func TestInstant(t *testing.T) {
	now := Now()
	for name, tc := range map[string]struct {
		then Instant
		want time.Duration
	}{
		"awake":            {Instant{now.at.Add(-time.Minute), now.slept}, time.Minute},
		"slept":            {Instant{now.at.Add(-time.Minute), now.slept - time.Hour}, time.Hour + time.Minute},
		"the clock is set": {Instant{testkit.MoveWall(now.at.Add(-time.Minute), -time.Hour), now.slept}, time.Minute},
		"and back":         {Instant{testkit.MoveWall(now.at.Add(-time.Minute), time.Hour), now.slept}, time.Minute},
	} {
		if got := now.since(tc.then); got != tc.want && seesSleep {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if got := now.Elapsed(); got < 0 || got > time.Minute {
		t.Errorf("since now: %v", got)
	}
}
