package metrics

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(true)
		for range 99 {
			r.countTimed(1, 10*time.Millisecond)
		}
		r.countTimed(2, 3*time.Second)
		time.Sleep(time.Minute)
		r.count(0)
		m := r.minutes()
		if len(m) != Minutes || m[Minutes-2].Counts != [maxKinds]int{0, 99, 1} || m[Minutes-1].Counts != [maxKinds]int{1} {
			t.Fatalf("%+v", m[Minutes-2:])
		}
		if !m[Minutes-1].Start.After(m[Minutes-2].Start) || m[Minutes-2].Sum() != 100 || m[Minutes-2].Sum(2, 3) != 1 {
			t.Errorf("%+v", m[Minutes-2:])
		}
		near := func(got, want time.Duration) bool { return got > want*9/10 && got < want*11/10 }
		if p := m[Minutes-2]; !near(p.P50, 10*time.Millisecond) || !near(p.P99, 10*time.Millisecond) {
			t.Errorf("p50 %v, p99 %v", p.P50, p.P99)
		}
		for range 2 {
			r.countTimed(1, 10*time.Millisecond)
			r.countTimed(1, 3*time.Second)
		}
		if p := r.minutes()[Minutes-1]; !near(p.P50, 10*time.Millisecond) || !near(p.P99, 3*time.Second) {
			t.Errorf("p50 %v, p99 %v", p.P50, p.P99)
		}
		time.Sleep(58 * time.Minute)
		if m := r.minutes(); m[0].Sum() != 100 || m[1].Sum() != 5 {
			t.Errorf("after 59 minutes: %d %d", m[0].Sum(), m[1].Sum())
		}
		time.Sleep(10 * time.Minute) // the slots come round again
		for i, m := range r.minutes() {
			if m.Sum() != 0 || m.P99 != 0 {
				t.Errorf("minute %d of an idle hour: %+v", i, m)
			}
		}
		r.count(3)
		if m := r.minutes()[Minutes-1]; m.Counts != [maxKinds]int{3: 1} || m.P50 != 0 {
			t.Errorf("a slot was not emptied: %+v", m)
		}
	})
}

// Counts that come while a minute begins are not lost.
func TestRingAtTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(true)
		for turn := range 20 {
			time.Sleep(time.Minute)
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range 50 {
						r.countTimed(0, time.Second)
					}
				})
			}
			wg.Wait()
			if m := r.minutes()[Minutes-1]; m.Counts[0] != 400 {
				t.Fatalf("turn %d: %d of 400", turn, m.Counts[0])
			}
		}
	})
}

func TestBuckets(t *testing.T) {
	last := 0
	for d := time.Microsecond; d < 15*time.Minute; d += max(time.Microsecond, d/50) {
		b := bucket(d)
		if b < last || b >= buckets {
			t.Fatalf("%v is in bucket %d after %d", d, b, last)
		}
		last = b
		if off := middle(b) - d; off > d/10 || off < -d/10 {
			t.Fatalf("%v is shown as %v", d, middle(b))
		}
	}
	if bucket(-time.Second) != 0 || bucket(0) != 0 || bucket(1<<62) != buckets-1 {
		t.Error("out of range")
	}
}
