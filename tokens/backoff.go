package tokens

import (
	"math/rand/v2"
	"time"
)

const (
	firstBackoff = time.Second
	lastBackoff  = 60 * time.Second
)

// failure is the outcome of the last refresh, if it failed, and how long the next one has
// to wait for that. A nil *failure is none.
type failure struct {
	err     error
	backoff time.Duration // that is in force, before jitter; zero: none is, the next try is due
	next    time.Time     // when it ends
}

// wait is how long f forbids a request from now on; zero: it does not. It is fine on a
// nil f.
func (f *failure) wait(now time.Time) time.Duration {
	if f == nil {
		return 0
	}
	return max(0, f.next.Sub(now))
}

// follow is the failure after f, which may be nil: its backoff is twice as long,
// or as long as the endpoint asked for, within a minute.
func (f *failure) follow(err error, retryAfter time.Duration) *failure {
	backoff := firstBackoff
	if f != nil {
		backoff = min(max(2*f.backoff, firstBackoff), lastBackoff)
	}
	wait := jitter(backoff, 0.8, 1.2)
	wait = min(max(wait, retryAfter), lastBackoff)
	return &failure{err: err, backoff: backoff, next: time.Now().Add(wait)}
}

// renewal is the age at which a token of this life is renewed: about 80%, spread
// so that many ushers started at once don't ask in step.
func renewal(life time.Duration) time.Duration { return jitter(life, 0.76, 0.82) }

func jitter(d time.Duration, from, to float64) time.Duration {
	return time.Duration(float64(d) * (from + (to-from)*rand.Float64()))
}
