package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

const seesSleep = true

// slept is how long the machine has slept since it was started: only one of these two clocks goes on
// meanwhile, and nobody can set either.
func slept() time.Duration {
	// This one is read first: if the process is interrupted between the two, the difference is too small.
	boot := read(unix.CLOCK_BOOTTIME)
	return (boot - read(unix.CLOCK_MONOTONIC)).Round(10 * time.Millisecond)
}

func read(id int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
