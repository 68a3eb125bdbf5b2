package clock

import (
	"testing"
	"time"
	"unsafe"
)

// moveWall changes the wall clock's reading of t by whole seconds, and leaves the monotonic one. The
// first word of a time.Time has the wall clock's seconds above 30 bits of nanoseconds.
func moveWall(t time.Time, d time.Duration) time.Time {
	*(*uint64)(unsafe.Pointer(&t)) += uint64(d/time.Second) << 30
	return t
}

func TestAgeByTheClockThatWentFurther(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		then time.Time
		want time.Duration
	}{
		"awake":                         {now.Add(-time.Minute), time.Minute},
		"slept for an hour":             {moveWall(now.Add(-time.Minute), -time.Hour), time.Hour + time.Minute},
		"the wall clock was set back":   {moveWall(now.Add(-time.Minute), time.Hour), time.Minute},
		"no monotonic reading":          {now.Add(-time.Minute).Round(0), time.Minute},
		"a clock that was moved to now": {moveWall(now.Add(-time.Hour), time.Hour), time.Hour},
	} {
		if got := Age(tc.then, now); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if got := Since(now); got < 0 || got > time.Minute {
		t.Errorf("since now: %v", got)
	}
}
