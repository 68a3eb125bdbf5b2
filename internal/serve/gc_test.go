package serve

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

func TestGCPlan(t *testing.T) {
	const none = math.MaxInt64
	for _, tc := range []struct {
		gogc      string
		limit     int64 // of GOMEMLIMIT
		container uint64
		ballast   int64
		want      int64
	}{
		{"", none, 0, ballastSize, none},
		{"", 1 << 30, 0, ballastSize, 1<<30 + ballastSize},
		{"", none, 1000 << 20, ballastSize, 900<<20 + ballastSize},
		{"", none, 20 << 20, 5 << 20, 18<<20 + 5<<20},
		{"", 15 << 20, 20 << 20, 5 << 20, 15<<20 + 5<<20},
		{"70", none, 0, 0, none},
		{"off", none, 1000 << 20, 0, 900 << 20},
	} {
		if ballast, limit := gcPlan(tc.gogc, tc.limit, tc.container); ballast != tc.ballast || limit != tc.want {
			t.Errorf("GOGC=%q GOMEMLIMIT=%d in %d: %d, %d; want %d, %d", tc.gogc, tc.limit, tc.container, ballast, limit, tc.ballast, tc.want)
		}
	}
}

// The ballast exists until restore is called. If the user sets GOGC there is none.
func TestTuneGC(t *testing.T) {
	limit := debug.SetMemoryLimit(-1)
	before := liveHeap()
	restore := tuneGC(nil)
	during := liveHeap()
	restore()
	after := liveHeap()
	// Other tests may still change the heap a little, so half of the ballast is enough.
	if during-before < ballastSize/2 || during-after < ballastSize/2 {
		t.Errorf("in use: %d, with the ballast %d, afterwards %d", before, during, after)
	}
	restore = tuneGC([]string{"GOGC=70"})
	if user := liveHeap(); user-after > ballastSize/2 {
		t.Errorf("in use with the user's GOGC: %d, before that %d", user, after)
	}
	restore()
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
