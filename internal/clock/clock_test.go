package clock

import (
	"testing"
	"time"

	"usher/internal/testkit"
)

func TestAgeByTheClockThatWentFurther(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		then time.Time
		want time.Duration
	}{
		"awake":                         {now.Add(-time.Minute), time.Minute},
		"slept for an hour":             {testkit.MoveWall(now.Add(-time.Minute), -time.Hour), time.Hour + time.Minute},
		"the wall clock was set back":   {testkit.MoveWall(now.Add(-time.Minute), time.Hour), time.Minute},
		"no monotonic reading":          {now.Add(-time.Minute).Round(0), time.Minute},
		"a clock that was moved to now": {testkit.MoveWall(now.Add(-time.Hour), time.Hour), time.Hour},
	} {
		if got := Age(tc.then, now); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if got := Since(now); got < 0 || got > time.Minute {
		t.Errorf("since now: %v", got)
	}
}
