// Package hour keeps figures of the last hour, minute by minute, for the charts of
// the admin port's page. Prometheus has them for longer, but not everybody has it at
// hand.
//
// Everything is allocated beforehand. Counting is a look at the clock and a few
// atomic additions; a lock is taken once a minute, by whoever begins it.
package hour

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Minutes is how many a Ring tells of, the one that is under way included.
const Minutes = 60

// slots has a few to spare: one that is being written again must not be among those
// that are read.
const slots = Minutes + 4

// Kinds is how many things a Ring can count.
const Kinds = 8

// Ring counts. Its zero value is not usable: see New.
type Ring struct {
	slots [slots]slot
	turn  sync.Mutex // held to begin a minute
	now   func() time.Time
}

type slot struct {
	minute atomic.Int64 // since 1970
	counts [Kinds]atomic.Uint32
	took   []atomic.Uint32 // by bucket; nil where nothing is timed
}

// New returns a ring; a timed one knows how long things took, too.
func New(timed bool) *Ring {
	r := &Ring{now: time.Now}
	if timed {
		for i := range r.slots {
			r.slots[i].took = make([]atomic.Uint32, buckets)
		}
	}
	return r
}

// Count counts one of a kind.
func (r *Ring) Count(kind int) { r.slot().counts[kind].Add(1) }

// Took counts one of a kind that took so long. The ring must be a timed one.
func (r *Ring) Took(kind int, took time.Duration) {
	s := r.slot()
	s.counts[kind].Add(1)
	s.took[bucket(took)].Add(1)
}

// slot is that of the present minute.
func (r *Ring) slot() *slot {
	minute := r.now().Unix() / 60
	s := &r.slots[minute%slots]
	if s.minute.Load() != minute {
		r.begin(s, minute)
	}
	return s
}

// begin empties a slot before it counts for its new minute.
func (r *Ring) begin(s *slot, minute int64) {
	r.turn.Lock()
	defer r.turn.Unlock()
	if s.minute.Load() == minute {
		return
	}
	for i := range s.counts {
		s.counts[i].Store(0)
	}
	for i := range s.took {
		s.took[i].Store(0)
	}
	s.minute.Store(minute)
}

// Minute is what happened in one.
type Minute struct {
	Start    time.Time
	Counts   [Kinds]int
	P50, P99 time.Duration // zero where nothing was timed
}

// Sum adds up some kinds, or all when none is named.
func (m Minute) Sum(kinds ...int) int {
	n := 0
	if len(kinds) == 0 {
		for _, c := range m.Counts {
			n += c
		}
	}
	for _, k := range kinds {
		n += m.Counts[k]
	}
	return n
}

// Last returns the last hour, the oldest minute first.
func (r *Ring) Last() []Minute {
	now := r.now().Unix() / 60
	out := make([]Minute, Minutes)
	for i := range out {
		minute := now - Minutes + 1 + int64(i)
		out[i].Start = time.Unix(minute*60, 0)
		s := &r.slots[((minute%slots)+slots)%slots]
		if s.minute.Load() != minute {
			continue
		}
		for k := range s.counts {
			out[i].Counts[k] = int(s.counts[k].Load())
		}
		out[i].P50, out[i].P99 = s.quantiles()
	}
	return out
}

// Durations fall into buckets of about a tenth of their own size: eight for each
// power of two, in microseconds. The last is for all beyond a quarter of an hour.
const (
	fine    = 3
	buckets = 28 << fine
)

func bucket(d time.Duration) int {
	us := uint64(max(d, 0) / time.Microsecond)
	power := bits.Len64(us | 1<<fine)
	low := us >> (power - 1 - fine) & (1<<fine - 1)
	return min((power-1-fine)<<fine+int(low)+indexOfFirst(us), buckets-1)
}

// indexOfFirst: numbers below the first power that is divided have a bucket each.
func indexOfFirst(us uint64) int {
	if us < 1<<fine {
		return 0
	}
	return 1 << fine
}

// middle is the duration that stands for a bucket.
func middle(b int) time.Duration {
	if b < 1<<fine {
		return time.Duration(b)*time.Microsecond + time.Microsecond/2
	}
	b -= 1 << fine
	power, low := b>>fine, b&(1<<fine-1)
	start := uint64(1<<fine+low) << power
	width := uint64(1) << power
	return time.Duration(start)*time.Microsecond + time.Duration(width)*time.Microsecond/2
}

func (s *slot) quantiles() (p50, p99 time.Duration) {
	var total uint64
	for i := range s.took {
		total += uint64(s.took[i].Load())
	}
	if total == 0 {
		return 0, 0
	}
	at50, at99 := (total+1)/2, total-total/100
	var seen uint64
	for i := range s.took {
		before := seen
		seen += uint64(s.took[i].Load())
		if before < at50 && seen >= at50 {
			p50 = middle(i)
		}
		if before < at99 && seen >= at99 {
			p99 = middle(i)
		}
	}
	return p50, max(p99, p50)
}
