package delivery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"usher/internal/wire"
)

// An Attempt is the result of one try.
type Attempt struct {
	Status     int // zero: there was no answer; see Err
	Err        error
	RetryAfter time.Duration // what the receiver asked for
	Excerpt    string        // of its answer
}

// Accepted reports whether the receiver has accepted the webhook.
func (t Attempt) Accepted() bool { return t.Status/100 == 2 }

// TimedOut reports whether there was no answer in time.
func (t Attempt) TimedOut() bool {
	var timeout net.Error
	return errors.Is(t.Err, context.DeadlineExceeded) || errors.As(t.Err, &timeout) && timeout.Timeout()
}

// Result is the try's name in metrics.
func (t Attempt) Result() string {
	switch {
	case t.Accepted():
		return "ok"
	case t.Status != 0:
		return "status"
	case t.TimedOut():
		return "timeout"
	default:
		return "error"
	}
}

// Why says why a try failed, in words for the sender. Network errors stay in the log: they
// contain addresses that the sender must not see.
func (r *Receiver) Why(t Attempt) string {
	var wrong unusable
	odd := new(wire.AnswerError)
	switch {
	case t.Status != 0:
		return "the receiver answered " + strings.TrimSpace(fmt.Sprint(t.Status, " ", http.StatusText(t.Status)))
	case t.TimedOut():
		return fmt.Sprintf("the receiver did not answer within %v", r.Timeout)
	case errors.As(t.Err, &wrong):
		return wrong.Error()
	case errors.As(t.Err, &odd):
		return "the receiver's answer can't be used: " + odd.Error()
	default:
		return "the receiver could not be reached"
	}
}

// unusable says what is wrong with a receiver's answer. It contains no address: the sender may
// read it.
type unusable string

func (u unusable) Error() string { return string(u) }

// retryAfter reads the Retry-After header: seconds, or a date. An invalid one is ignored.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if n, err := strconv.ParseUint(value, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(n, 1<<32)) * time.Second // limited, so that it cannot overflow
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return max(0, time.Until(at))
}
