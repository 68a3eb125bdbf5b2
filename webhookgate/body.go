package webhookgate

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"
)

const (
	// bodyPatience is how long each bodyStep of a body may take. A sender is
	// only known for sure once its body's signature is: per byte, this would
	// let anyone hold a place in flight for ever.
	bodyPatience = 30 * time.Second
	bodyStep     = 64 << 10

	// drainPatience and maxDrain are for the rest of a request that has been answered.
	drainPatience = 5 * time.Second
	maxDrain      = 64 << 20
)

// readBody reads the whole body, up to limit bytes, as long as it keeps coming.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, *answer) {
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	conn := http.NewResponseController(w)
	src := http.MaxBytesReader(w, r.Body, limit)
	var body bytes.Buffer
	body.Grow(int(min(limit, bodyStep, r.ContentLength+1)) + bytes.MinRead)
	for {
		conn.SetReadDeadline(time.Now().Add(bodyPatience))
		_, err := io.CopyN(&body, src, bodyStep)
		switch {
		case err == nil:
			continue
		case err == io.EOF:
			// Left in place, the deadline would be taken for the sender
			// hanging up during a long delivery.
			conn.SetReadDeadline(time.Time{})
			return body.Bytes(), nil
		case errors.As(err, new(*http.MaxBytesError)):
			conn.SetReadDeadline(time.Now().Add(drainPatience))
			return nil, tooLarge(limit)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, reject(http.StatusRequestTimeout, "the body did not arrive in time").with("Connection", "close")
		default:
			return nil, reject(http.StatusBadRequest, "the body ended too early").with("Connection", "close")
		}
	}
}

func tooLarge(limit int64) *answer {
	return reject(http.StatusRequestEntityTooLarge, "the body is larger than the "+strconv.FormatInt(limit, 10)+" bytes accepted here")
}

// drain takes in what a sender still sends that has been refused. Many look for an
// answer only when they are done, and a connection that is closed on them before is
// reset: they would never learn why. Who waits to be told to go on sends nothing.
func drain(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Expect") == "" && http.NewResponseController(w).Flush() == nil {
		io.CopyN(io.Discard, r.Body, maxDrain) // until the deadline, at the latest
	}
}
