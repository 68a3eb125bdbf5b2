package metrics

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Minutes is how many a ring tells of, the one that is under way included.
const Minutes = 60

// maxKinds is how many things a ring can count.
const maxKinds = 8

// ring counts what happened in the last hour, minute by minute, for the charts of the admin port's
// page. Prometheus has this for longer, but not everybody has it at hand. Everything is allocated beforehand. Its zero value is not usable: see newRing.
type ring struct {
	now func() time.Time

	mu    sync.Mutex // guards what follows
	slots [Minutes]slot
}

type slot struct {
	minute int64 // since 1970
	counts [maxKinds]int
	took   []uint32 // by bucket; nil where nothing is timed
}

// New returns a ring; a timed one knows how long things took, too.
func newRing(timed bool) *ring {
	r := &ring{now: time.Now}
	if timed {
		for i := range r.slots {
			r.slots[i].took = make([]uint32, buckets)
		}
	}
	return r
}

// Count counts one of a kind.
func (r *ring) Count(kind int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slot().counts[kind]++
}

// Took counts one of a kind that took so long. The ring must be a timed one.
func (r *ring) Took(kind int, took time.Duration) {
	b := bucket(took)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slot()
	s.counts[kind]++
	s.took[b]++
}

// slot is that of the present minute. r.mu is held.
func (r *ring) slot() *slot {
	minute := r.now().Unix() / 60
	s := &r.slots[minute%Minutes]
	if s.minute != minute {
		s.minute, s.counts = minute, [maxKinds]int{}
		clear(s.took)
	}
	return s
}

// Minute is what happened in one.
type Minute struct {
	Start    time.Time
	Counts   [maxKinds]int
	P50, P99 time.Duration // zero where nothing was timed
}

// Sum adds up some kinds, or all when none is named.
func (m Minute) Sum(kinds ...int) (n int) {
	for kind, c := range m.Counts {
		if len(kinds) == 0 || slices.Contains(kinds, kind) {
			n += c
		}
	}
	return n
}

// Sum adds up some kinds over the last n minutes.
func Sum(minutes []Minute, n int, kinds ...int) (total int) {
	for _, m := range minutes[max(0, len(minutes)-n):] {
		total += m.Sum(kinds...)
	}
	return total
}

// Last returns the last hour, the oldest minute first.
func (r *ring) Last() []Minute {
	now := r.now().Unix() / 60
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

// Durations fall into buckets of about a tenth of their own size: eight for each time they
// double, from a microsecond on. The last is for all beyond a quarter of an hour.
const (
	perDoubling = 8
	buckets     = 30 * perDoubling
)

func bucket(d time.Duration) int {
	us := max(1, float64(d)/float64(time.Microsecond))
	return min(int(math.Log2(us)*perDoubling), buckets-1)
}

// middle is the duration that stands for a bucket.
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
