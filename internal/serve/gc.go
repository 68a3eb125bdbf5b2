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

// ballastSize is how much usher may allocate between two garbage collections, beyond what
// is in use.
//
// Go collects when the heap has doubled. usher's is small, so under load that is dozens of
// times a second. A large GOGC would help, but it would also let a large heap (an inbox with
// a million webhooks, the features of 100,000 tenants) grow to many times its size. A low
// memory limit would have Go collect all the time once more than that is in use. So usher
// allocates a ballast: it counts as heap, and nobody touches it, so that the system gives
// it no memory.
const ballastSize = 10 << 20

// tuneGC sets up the garbage collector. It stays within the container's memory limit, if
// there is one. A user's GOGC or GOMEMLIMIT comes first. restore undoes it all.
func tuneGC(environ []string) (restore func()) {
	before := debug.SetMemoryLimit(-1) // only asks
	size, limit := gcPlan(settings.Environment(environ)["GOGC"], before, containerMemory())
	ballast := make([]byte, size)
	debug.SetMemoryLimit(limit)
	return func() {
		debug.SetMemoryLimit(before)
		runtime.KeepAlive(ballast)
	}
}

// gcPlan returns the size of the ballast and the memory limit. limit is that of GOMEMLIMIT;
// math.MaxInt64 for none. container is zero if the container has none.
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
		limit += ballast // which Go counts, though it takes no memory
	}
	return ballast, limit
}

// containerMemory is the memory limit of the control group (version 2) that usher runs in,
// as a container sees it; zero where there is none.
func containerMemory() uint64 {
	b, err := os.ReadFile("/sys/fs/cgroup/memory.max")
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 63) // "max": none
	return n
}
