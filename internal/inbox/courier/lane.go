package courier

import (
	"slices"
	"time"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

const (
	firstPause = time.Second
	lastPause  = 5 * time.Minute
	// longestWish bounds what a receiver's Retry-After can ask for.
	longestWish = time.Hour
)

// lane is a tenant's line. It exists while something in it waits or is parked.
type lane struct {
	key     webhookgate.Lane
	term    *term
	waiting []*item // the first is next; while busy it is being delivered
	parked  []*item
	busy    bool

	// What the store is told, in order; see notes.go. Until it has taken it down
	// everything stands as before, and nothing is delivered.
	notes   []*note
	noting  bool // the first was given to the store
	telling bool // somebody is at it

	failures int       // in a row, of the first
	down     bool      // it waits because the receiver as a whole seems to be down
	woken    bool      // it did until the receiver was back, and has not been tried since
	last     time.Time // when the first was last tried
	wish     time.Time // when the receiver wished to be asked again
	at       time.Time // when the first may be tried; zero: now, behind those that wait already

	queue     *receiver // in whose heaps it is; nil: in none
	dueIndex  int
	downIndex int // -1: not down
}

// item is a webhook in a lane.
type item struct {
	record.Record
	whole   *webhookgate.Webhook // with its content; nil: to be read from the store
	leaving bool                 // a note says that it goes
	parked  bool                 // it is among those
}

// ceiling is the longest pause after the next failure in a row.
func (l *lane) ceiling() time.Duration { return min(firstPause<<min(l.failures, 20), lastPause) }

// reset drops the pauses: what is first from now on has not been tried.
func (l *lane) reset() {
	l.failures, l.down, l.woken = 0, false, false
	l.at, l.wish = time.Time{}, time.Time{}
}

// wake has a lane that waits because the receiver was down try again soon; but not twice
// within the first pause.
func (l *lane) wake() {
	l.down, l.woken = false, true
	if soon := l.last.Add(firstPause); soon.Before(l.at) {
		l.at = soon
	}
}

// wait puts an item in among those that wait.
func (l *lane) wait(at int, it *item) {
	l.waiting = slices.Insert(l.waiting, at, it)
	l.term.load.Add(it.Size, it.Size)
}

// park puts an item in among those that are parked.
func (l *lane) park(it *item) {
	l.parked, it.parked = append(l.parked, it), true
	l.term.load.Add(it.Size, 0)
}

// drop takes an item out, unless that was done already.
func (l *lane) drop(it *item) {
	list, waiting := &l.waiting, it.Size
	if it.parked {
		list, waiting = &l.parked, 0
	}
	n := slices.Index(*list, it)
	if n < 0 {
		return
	}
	*list = without(*list, n)
	it.parked = false
	l.term.load.Add(-it.Size, -waiting)
}

// without takes the nth out of a list. The shorter part is moved: there may be many, and all of them leave
// from the front.
func without(list []*item, n int) []*item {
	if n >= len(list)/2 {
		return slices.Delete(list, n, n+1)
	}
	copy(list[1:], list[:n])
	list[0] = nil
	return list[1:]
}

// find returns the item of that id.
func (l *lane) find(id uint64) *item {
	for _, list := range [][]*item{l.waiting, l.parked} {
		for _, it := range list {
			if it.ID == id {
				return it
			}
		}
	}
	return nil
}

// laneHeap is a heap of lanes.
type laneHeap struct {
	lanes []*lane
	less  func(a, b *lane) bool
	index func(*lane) *int
}

func (h *laneHeap) Len() int           { return len(h.lanes) }
func (h *laneHeap) Less(i, j int) bool { return h.less(h.lanes[i], h.lanes[j]) }
func (h *laneHeap) Swap(i, j int) {
	h.lanes[i], h.lanes[j] = h.lanes[j], h.lanes[i]
	*h.index(h.lanes[i]), *h.index(h.lanes[j]) = i, j
}

func (h *laneHeap) Push(x any) {
	l := x.(*lane)
	*h.index(l) = len(h.lanes)
	h.lanes = append(h.lanes, l)
}

func (h *laneHeap) Pop() any {
	last := len(h.lanes) - 1
	l := h.lanes[last]
	h.lanes[last] = nil
	h.lanes = h.lanes[:last]
	return l
}
