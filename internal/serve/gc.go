package serve

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"usher/internal/settings"
)

// ballastSize is how much usher may allocate between two garbage collections, in addition to what Go allows
// by itself.
//
// Go collects when the heap has doubled. usher's heap is small, so under load that would be dozens of times
// a second. A large GOGC would help, but it would also let a large heap (an inbox with a million webhooks,
// the features of 100,000 tenants) grow to many times its size. A low memory limit would make Go collect all
// the time once the heap is larger than the limit. So usher allocates a ballast. Go counts it as heap, but
// usher never touches it, so the operating system gives it no memory.
const ballastSize = 10 << 20

// tuneGC sets up the garbage collector so that usher stays within the container's memory limit, if there is
// one. A user's GOGC or GOMEMLIMIT has priority. restore undoes everything.
func tuneGC(environ []string) (restore func()) {
	before := debug.SetMemoryLimit(-1) // a negative limit only returns the current one
	size, limit := gcPlan(settings.Environment(environ)["GOGC"], before, containerMemory())
	ballast := make([]byte, size)
	debug.SetMemoryLimit(limit)
	return func() {
		debug.SetMemoryLimit(before)
		runtime.KeepAlive(ballast)
	}
}

// gcPlan returns the size of the ballast and the memory limit to set. limit is that of GOMEMLIMIT, or
// math.MaxInt64 if there is none. container is the container's memory limit, or zero.
func gcPlan(gogc string, limit int64, container uint64) (ballast, newLimit int64) {
	ballast = ballastSize
	if container > 0 {
		ballast = min(ballast, int64(container/4))
		if limit == math.MaxInt64 {
			limit = int64(container / 10 * 9) // the rest is for memory that Go does not count
		}
	}
	if gogc != "" {
		ballast = 0
	}
	if limit < math.MaxInt64-ballast {
		limit += ballast // Go counts it towards the limit, although it takes no memory
	}
	return ballast, limit
}

// containerMemory returns the memory limit of the control group (version 2) that usher runs in, or zero if
// there is none.
func containerMemory() uint64 {
	b, err := os.ReadFile("/sys/fs/cgroup/memory.max")
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 63) // zero for "max", which means no limit
	return n
}
