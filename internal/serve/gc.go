package serve

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// ballastSize is how much usher may allocate between two garbage collections, in addition to what Go allows
// by itself.
//
// Go collects when the heap has doubled. usher's heap is small, so under load that would be dozens of times a second,
// and a large GOGC would let a large heap grow to many times its size. So usher allocates a ballast. Go counts it as
// heap, but usher never touches it, so the operating system gives it no memory.
const ballastSize = 10 << 20

// tuneGC sets up the garbage collector so that usher stays within the container's memory limit, if there is
// one. A user's GOMEMLIMIT has priority. restore undoes everything.
func tuneGC() (restore func()) {
	ballast := make([]byte, ballastSize)
	before := debug.SetMemoryLimit(-1) // a negative limit only returns the current one
	if container := containerMemory(); container > 0 && before == math.MaxInt64 {
		// A tenth is for memory that Go does not count. Go does count the ballast, although it takes no memory.
		debug.SetMemoryLimit(container/10*9 + ballastSize)
	}
	return func() {
		debug.SetMemoryLimit(before)
		runtime.KeepAlive(ballast)
	}
}

// containerMemory returns the memory limit of the control group (version 2) that usher runs in, or zero if
// there is none.
func containerMemory() int64 {
	b, err := os.ReadFile("/sys/fs/cgroup/memory.max")
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // zero for "max", which means no limit
	return n
}
