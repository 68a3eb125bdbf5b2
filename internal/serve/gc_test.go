package serve

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

// The ballast exists until restore is called.
func TestTuneGC(t *testing.T) {
	limit := debug.SetMemoryLimit(-1)
	before := liveHeap()
	restore := tuneGC()
	during := liveHeap()
	restore()
	after := liveHeap()
	// Other tests may still change the heap a little, so half of the ballast is enough.
	if during-before < ballastSize/2 || during-after < ballastSize/2 {
		t.Errorf("in use: %d, with the ballast %d, afterwards %d", before, during, after)
	}
	if got := debug.SetMemoryLimit(-1); got != limit {
		t.Errorf("the memory limit is %d, and was %d", got, limit)
	}
}

// liveHeap returns the size of the heap after a collection.
func liveHeap() int64 {
	runtime.GC()
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}
