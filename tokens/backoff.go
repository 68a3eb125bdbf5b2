package tokens

import (
	"math/rand/v2"
	"time"
)

const (
	firstBackoff = time.Second
	lastBackoff  = 60 * time.Second
)

// failure is the last refresh's failure, and how long the next refresh has to wait because of it.
// A nil *failure means that it did not fail.
type failure struct {
	err     error
	backoff time.Duration // the current one, before jitter; zero: the next try is due
	next    time.Time     // when it ends
}

// wait returns how long the next request still has to wait; zero: not at all. f may be nil.
func (f *failure) wait(now time.Time) time.Duration {
	if f == nil {
		return 0
	}
	return max(0, f.next.Sub(now))
}

// follow returns the failure after f, which may be nil. Its backoff is twice as long, or as long as
// the endpoint asked for, but a minute at most.
func (f *failure) follow(err error, retryAfter time.Duration) *failure {
	backoff := firstBackoff
	if f != nil {
		backoff = min(max(2*f.backoff, firstBackoff), lastBackoff)
	}
	wait := jitter(backoff, 0.8, 1.2)
	wait = min(max(wait, retryAfter), lastBackoff)
	return &failure{err: err, backoff: backoff, next: time.Now().Add(wait)}
}

// renewal returns the age at which a token of this life is renewed: about 80%, with jitter, so that
// many ushers that started together do not ask together.
func renewal(life time.Duration) time.Duration { return jitter(life, 0.76, 0.82) }

func jitter(d time.Duration, from, to float64) time.Duration {
	return time.Duration(float64(d) * (from + (to-from)*rand.Float64()))
}
