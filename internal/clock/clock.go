// Package clock measures how long ago something happened. The monotonic clock stands still while a laptop sleeps, and
// the wall clock can be set back. Neither ever shows too much time by these faults, so the larger difference is right.
package clock

import "time"

// Age returns how much time has passed from then to now. Both must come from time.Now.
func Age(then, now time.Time) time.Duration {
	return max(now.Sub(then), now.Round(0).Sub(then.Round(0)))
}

// Since returns Age until now.
func Since(then time.Time) time.Duration { return Age(then, time.Now()) }
