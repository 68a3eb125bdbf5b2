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
	// bodyPatience is how long each bodyStep of a body may take. usher knows the sender for
	// sure only after it has checked the signature. A limit for each byte instead would let
	// any stranger hold a place in flight for ever.
	bodyPatience = 30 * time.Second
	bodyStep     = 64 << 10

	// drainPatience and maxDrain limit the rest of a request that has been answered.
	drainPatience = 5 * time.Second
	maxDrain      = 64 << 20
)

// readBody reads the whole body, up to limit bytes, as long as it keeps arriving. Of one that is too
// large it returns the beginning.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, *answer) {
	conn := http.NewResponseController(w)
	if r.ContentLength > limit {
		conn.SetReadDeadline(time.Now().Add(drainPatience))
		var beginning []byte
		if r.Header.Get("Expect") == "" { // else it was not sent yet
			beginning, _ = io.ReadAll(io.LimitReader(r.Body, min(limit, maxRefusedBody))) // as much of it as comes
		}
		return beginning, tooLarge(limit)
	}
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
			// If the deadline stayed, it would look like a sender that hangs up during a long
			// delivery.
			conn.SetReadDeadline(time.Time{})
			return body.Bytes(), nil
		case errors.As(err, new(*http.MaxBytesError)):
			conn.SetReadDeadline(time.Now().Add(drainPatience))
			return body.Bytes()[:min(body.Len(), maxRefusedBody)], tooLarge(limit)
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

// drain reads what a refused sender still sends. Many senders read the answer only after they
// have sent everything. If usher closed the connection before, they would see a reset and
// never learn why. A sender that waits for 100 Continue sends nothing.
func drain(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Expect") == "" && http.NewResponseController(w).Flush() == nil {
		io.CopyN(io.Discard, r.Body, maxDrain) // ends at the deadline at the latest
	}
}
