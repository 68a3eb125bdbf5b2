package inbox

import (
	"time"

	"usher/webhookgate"
)

// lane is a tenant's line. It exists while something in it waits or is parked.
type lane struct {
	key      webhookgate.Lane
	waiting  []*record // the first is next; while busy it is being delivered
	parked   []*record
	busy     bool
	noting   bool      // how its last one stands is being written, and the next one waits for that
	failures int       // in a row, of the first
	down     bool      // it waits because the receiver as a whole seems to be down
	last     time.Time // when the first was last tried
	wish     time.Time // when the receiver wished to be asked again
	at       time.Time // when the first may be tried
	index    int       // in the queue; -1 when not in it
}

// ceiling is the longest pause after the next failure in a row.
func (l *lane) ceiling() time.Duration { return min(firstPause<<min(l.failures, 20), lastPause) }

// wake has a lane try again soon if it waits because the receiver was down; but not
// twice within the first pause.
func (l *lane) wake() {
	if soon := l.last.Add(firstPause); l.down && soon.Before(l.at) {
		l.at = soon
	}
}

// laneQueue is a heap of lanes by when they may deliver.
type laneQueue []*lane

func (q laneQueue) Len() int           { return len(q) }
func (q laneQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q laneQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *laneQueue) Push(x any) {
	l := x.(*lane)
	l.index = len(*q)
	*q = append(*q, l)
}

func (q *laneQueue) Pop() any {
	old := *q
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	l.index = -1
	return l
}
