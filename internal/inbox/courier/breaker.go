package courier

import "time"

const (
	// opensAfter so many failures in a row, over all lanes, each saying that the
	// receiver is down, only single deliveries are tried.
	opensAfter   = 5
	firstProbe   = time.Second
	longestProbe = 5 * time.Second // a receiver that is back is noticed within that
)

// breaker says how many deliveries may be under way. While the receiver is down one
// probe at a time is enough; when it is back the number doubles with each delivery
// that succeeds, as a receiver that has just started may be slow.
type breaker struct {
	limit    int // deliveries at once, at most
	underway int
	now      int // the current limit: limit, or less while the receiver recovers
	failures int // in a row
	open     bool
	probing  bool          // the delivery under way is a probe
	probe    time.Duration // pause between two probes
	next     time.Time     // when the next one may be sent
}

func newBreaker(limit int) breaker { return breaker{limit: limit, now: limit} }

// admit takes a place for a delivery. If there is none it says how long to wait for
// one; zero: until a delivery ends.
func (b *breaker) admit(now time.Time) (time.Duration, bool) {
	switch {
	case b.underway >= b.now, b.open && b.underway > 0:
		return 0, false
	case b.open && now.Before(b.next):
		return b.next.Sub(now), false
	}
	b.underway++
	b.probing = b.open
	return 0, true
}

// answered gives a place back after a delivery that the receiver answered, whatever
// it said.
func (b *breaker) answered() {
	if b.open {
		b.open, b.probing, b.now = false, false, 1
	}
	b.underway--
	b.now = min(2*b.now, b.limit)
	b.failures = 0
}

// failed gives a place back after a delivery that found the receiver down.
func (b *breaker) failed(now time.Time) {
	b.underway--
	b.failures++
	switch {
	case b.probing:
		b.probing = false
		b.probe = min(2*b.probe, longestProbe)
	case b.open, b.failures < opensAfter: // others that were under way when it opened tell nothing new
		return
	default:
		b.open, b.probe = true, firstProbe
	}
	b.next = now.Add(b.probe)
}

// abandoned gives a place back after a delivery that says nothing.
func (b *breaker) abandoned() { b.underway, b.probing = b.underway-1, false }
