package guard

import (
	"net/http"
	"time"
)

// LastByte is when the last byte of a request that was read to its end reached this machine, maybe long
// before anybody read it. Where nobody knows, it is now.
func LastByte(r *http.Request) time.Time {
	now := time.Now()
	if at := kernelOf(r).lastByte(); !at.IsZero() && at.Before(now) {
		return at
	}
	return now
}

// Gone says whether the sender of a request that was read to its end has closed the connection since.
func Gone(r *http.Request) bool {
	if ended, known := kernelOf(r).ended(); known {
		return ended
	}
	return r.Context().Err() != nil // net/http notices it a little later
}

func kernelOf(r *http.Request) (k kernel) {
	if c, ok := r.Context().Value(connKey{}).(interface{ askKernel() kernel }); ok {
		k = c.askKernel()
	}
	return k
}

func (c *conn) askKernel() kernel { return c.raw.kernel }
