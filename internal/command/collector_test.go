package command

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

func TestGCPercent(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		live, besides uint64
		want          int
	}{
		{0, 0, 600},
		{1 * mib, 0, 600},
		{4 * mib, 0, 500},
		{4 * mib, 4 * mib, 250},
		{12 * mib, 0, 100},
		{11 * mib, 10 * mib, 100},
		{24 * mib, 0, 100},
		{1000 * mib, 50 * mib, 100},
	} {
		if got := gcPercent(c.live, c.besides, 24*mib); got != c.want {
			t.Errorf("%d MiB live, %d besides: %d, want %d", c.live/mib, c.besides/mib, got, c.want)
		}
	}
}

func TestMemoryPlan(t *testing.T) {
	for _, c := range []struct {
		user      string
		container uint64
		limit     int64
		floor     uint64
	}{
		{"", 0, -1, heapFloor},
		{"1GiB", 0, -1, heapFloor},
		{"", 1000 << 20, 900 << 20, heapFloor},
		{"", 40 << 20, 36 << 20, 10 << 20},
		{"30MiB", 40 << 20, -1, 10 << 20},
	} {
		if limit, floor := memoryPlan(c.user, c.container); limit != c.limit || floor != c.floor {
			t.Errorf("GOMEMLIMIT=%q in %d: %d, %d", c.user, c.container, limit, floor)
		}
	}
}

func TestCollectorFollowsTheHeap(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	// The test's own heap is small, so that there is something to do.
	stop := tuneCollector(nil)
	for gogc() == 100 && t.Context().Err() == nil {
		runtime.GC() // what is to be done after it is done a little later
	}
	large := make([]byte, 2*heapFloor)
	for gogc() != 100 && t.Context().Err() == nil {
		runtime.GC()
	}
	runtime.KeepAlive(large)
	stop()
	if got := gogc(); got != 100 {
		t.Errorf("GOGC is %d afterwards", got)
	}
	tuneCollector([]string{"GOGC=70"})()
	if got := gogc(); got != 100 {
		t.Errorf("GOGC is %d, though it is the user's", got)
	}
}

func gogc() uint64 {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
