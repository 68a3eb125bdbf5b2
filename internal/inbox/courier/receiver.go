package courier

import (
	"container/heap"
	"time"
)

// receiver is one who takes webhooks, and the lanes that have something for it. Each has
// its own breaker and its own lanes: one that is down costs the others nothing.
type receiver struct {
	Receiver
	breaker  breaker
	accepted time.Time // when it last took something
	woken    time.Time // when the lanes were last woken that waited because it was down

	// due has all lanes that only wait for their time, ordered by it. down has those of them
	// that wait because the receiver is down, ordered by when the receiver wants to be asked
	// again, then by how long ago they were tried. While the breaker is open any of those may
	// be the probe: a lane that must wait does not hide one that may go.
	due, down laneHeap
}

func newReceiver(r Receiver) *receiver {
	return &receiver{
		Receiver: r,
		breaker:  newBreaker(r.Concurrency),
		due: laneHeap{
			less:  func(a, b *lane) bool { return a.at.Before(b.at) },
			index: func(l *lane) *int { return &l.dueIndex },
		},
		down: laneHeap{
			less: func(a, b *lane) bool {
				if c := a.wish.Compare(b.wish); c != 0 {
					return c < 0
				}
				return a.last.Before(b.last)
			},
			index: func(l *lane) *int { return &l.downIndex },
		},
	}
}

// add puts a lane in.
func (rc *receiver) add(l *lane) {
	l.queue, l.downIndex = rc, -1
	heap.Push(&rc.due, l)
	if l.down {
		heap.Push(&rc.down, l)
	}
}

// remove takes a lane out.
func (rc *receiver) remove(l *lane) {
	heap.Remove(&rc.due, l.dueIndex)
	if l.downIndex >= 0 {
		heap.Remove(&rc.down, l.downIndex)
	}
	l.queue = nil
}

// long is until something happens, which wakes Run.
const long = time.Hour

// candidate is the lane whose turn it is, or how long there is none.
func (rc *receiver) candidate(now time.Time) (*lane, time.Duration) {
	wait := long
	if rc.due.Len() > 0 {
		l := rc.due.lanes[0]
		if !l.at.After(now) {
			return l, 0
		}
		wait = min(wait, l.at.Sub(now))
	}
	if rc.breaker.open && rc.down.Len() > 0 { // it sees to the pauses
		l := rc.down.lanes[0]
		if !l.wish.After(now) {
			return l, 0
		}
		wait = min(wait, l.wish.Sub(now))
	}
	return nil, wait
}

// wakeDown has the lanes try again soon that wait because the receiver was down.
func (rc *receiver) wakeDown(now time.Time) {
	rc.woken = now
	if rc.down.Len() == 0 {
		return
	}
	for _, l := range rc.down.lanes {
		l.wake()
		l.downIndex = -1
	}
	rc.down.lanes = nil
	heap.Init(&rc.due)
}
