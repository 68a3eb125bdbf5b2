package command

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"

	"usher/internal/settings"
)

// usher holds little, so the garbage collector's rule, to run when the heap has
// doubled, has it run dozens of times a second under load. Here it leaves a heap
// alone up to heapFloor; beyond twice of what is in use its own rule holds again. A
// large GOGC alone would do the same to a large heap, and a low memory limit alone
// would have it run without end once there is more in use than that.
const heapFloor = 16 << 20

// collector adapts GOGC to what was in use at the last collection.
type collector struct {
	floor uint64

	mu      sync.Mutex // guards what follows, and GOGC itself
	percent int        // as it was set last
	stopped bool
}

// tuneCollector starts that, and keeps to the container's memory where there is a
// limit. What the user has set with GOGC or GOMEMLIMIT stays. stop puts all back.
func tuneCollector(environ []string) (stop func()) {
	env := settings.Environment(environ)
	limit, floor := memoryPlan(env["GOMEMLIMIT"], containerMemory())
	before := debug.SetMemoryLimit(limit) // negative: only asks
	if env["GOGC"] != "" {
		return func() { debug.SetMemoryLimit(before) }
	}
	c := &collector{floor: floor, percent: 100}
	c.arm()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stopped = true
		debug.SetGCPercent(100)
		debug.SetMemoryLimit(before)
	}
}

// memoryPlan returns the limit to set, -1 for none, and the floor that goes with it.
// container is zero where there is no limit.
func memoryPlan(userLimit string, container uint64) (limit int64, floor uint64) {
	if container == 0 {
		return -1, heapFloor
	}
	floor = min(heapFloor, container/4)
	if userLimit != "" {
		return -1, floor
	}
	return int64(container / 10 * 9), floor // the rest is for what the runtime does not count
}

// containerMemory is the memory limit of the control group (version 2) that usher
// runs in, as a container sees it; zero where there is none.
func containerMemory() uint64 {
	b, err := os.ReadFile("/sys/fs/cgroup/memory.max")
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 63) // "max": none
	return n
}

// arm has adjust run after the next collection: that is when what nobody holds goes.
func (c *collector) arm() {
	runtime.AddCleanup(new([64]byte), (*collector).adjust, c)
}

func (c *collector) adjust() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return
	}
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	metrics.Read(samples)
	percent := gcPercent(samples[0].Value.Uint64(), samples[1].Value.Uint64()+samples[2].Value.Uint64(), c.floor)
	// Setting it stops everything for a moment: not for a trifle.
	if off := percent - c.percent; off > c.percent/8 || -off > c.percent/8 {
		debug.SetGCPercent(percent)
		c.percent = percent
	}
	c.arm()
}

// gcPercent is the GOGC with which the next collection comes at floor, or when the
// heap has doubled, whichever is later. The runtime's rule is to let it grow by so
// many percent of what it has to scan (what is live, and besides stacks and globals),
// but to so many percent of smallestHeap at least.
func gcPercent(live, besides, floor uint64) int {
	if live >= floor {
		return 100
	}
	return int(max(100, min(100*floor/smallestHeap, 100*(floor-live)/max(1, live+besides))))
}

// smallestHeap is what the runtime lets be at GOGC=100, however little is live.
const smallestHeap = 4 << 20
