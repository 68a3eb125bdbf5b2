package metrics

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Minutes is how many minutes a ring remembers, the current one included.
const Minutes = 60

// maxKinds is how many kinds of events a ring can count.
const maxKinds = 8

// ring counts events minute by minute over the last hour, for the charts of the admin page: Prometheus
// remembers more, but not everybody has one at hand. All its memory is allocated by newRing, so that
// counting allocates nothing.
type ring struct {
	mu    sync.Mutex // guards what follows
	slots [Minutes]slot
}

type slot struct {
	minute int64 // since 1970
	counts [maxKinds]int
	took   []uint32 // how many events by bucket of duration; nil in a ring that is not timed
}

// newRing returns a ring. Only a timed one can countTimed.
func newRing(timed bool) *ring {
	r := new(ring)
	if timed {
		for i := range r.slots {
			r.slots[i].took = make([]uint32, buckets)
		}
	}
	return r
}

func (r *ring) count(kind int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current().counts[kind]++
}

// countTimed counts an event and how long it took.
func (r *ring) countTimed(kind int, took time.Duration) {
	b := bucket(took)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.current()
	s.counts[kind]++
	s.took[b]++
}

// current returns the slot of the current minute. r.mu is held.
func (r *ring) current() *slot {
	minute := time.Now().Unix() / 60
	s := &r.slots[minute%Minutes]
	if s.minute != minute {
		s.minute, s.counts = minute, [maxKinds]int{}
		clear(s.took)
	}
	return s
}

// Minute is what a ring counted within one minute.
type Minute struct {
	Start    time.Time
	Counts   [maxKinds]int // by kind of event
	P50, P99 time.Duration // zero if nothing was timed
}

// Sum adds up the counts of these kinds, or of all kinds if none is given.
func (m Minute) Sum(kinds ...int) (n int) {
	for kind, c := range m.Counts {
		if len(kinds) == 0 || slices.Contains(kinds, kind) {
			n += c
		}
	}
	return n
}

// Sum adds up the counts of these kinds, or of all, over the last n minutes.
func Sum(minutes []Minute, n int, kinds ...int) (total int) {
	for _, m := range minutes[max(0, len(minutes)-n):] {
		total += m.Sum(kinds...)
	}
	return total
}

// minutes returns the last hour, the oldest minute first.
func (r *ring) minutes() []Minute {
	now := time.Now().Unix() / 60
	out := make([]Minute, Minutes)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range out {
		minute := now - Minutes + 1 + int64(i)
		out[i].Start = time.Unix(minute*60, 0)
		if s := &r.slots[minute%Minutes]; s.minute == minute {
			out[i].Counts = s.counts
			out[i].P50, out[i].P99 = s.quantiles()
		}
	}
	return out
}

// Durations are counted in buckets whose width is about a tenth of the duration: eight buckets for each
// doubling, beginning at a microsecond. The last one is for everything above a quarter of an hour.
const (
	perDoubling = 8
	buckets     = 30 * perDoubling
)

func bucket(d time.Duration) int {
	us := max(1, float64(d)/float64(time.Microsecond))
	return min(int(math.Log2(us)*perDoubling), buckets-1)
}

// middle returns the duration that stands for all those in a bucket.
func middle(b int) time.Duration {
	return time.Duration(math.Exp2((float64(b)+.5)/perDoubling) * float64(time.Microsecond))
}

func (s *slot) quantiles() (p50, p99 time.Duration) {
	var total, seen uint64
	for _, n := range s.took {
		total += uint64(n)
	}
	at50, at99 := (total+1)/2, total-total/100
	for b, n := range s.took {
		before := seen
		seen += uint64(n)
		if before < at50 && seen >= at50 {
			p50 = middle(b)
		}
		if before < at99 && seen >= at99 {
			p99 = middle(b)
		}
	}
	return p50, p99
}
