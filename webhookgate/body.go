package webhookgate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"usher/internal/content"
)

const (
	// bodyPatience is how long a body may take to arrive. Until the signature is checked the sender
	// may be a stranger, who would hold a place in flight for ever with a byte now and then.
	bodyPatience = 30 * time.Second

	// drainPatience and maxDrain limit how much usher still reads of a request after the answer.
	drainPatience = 5 * time.Second
	maxDrain      = 64 << 20
)

// readBody reads the whole body, up to limit bytes. If the body is too large, readBody returns its
// beginning beside the answer.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, *answer) {
	conn := http.NewResponseController(w)
	if r.ContentLength > limit {
		conn.SetReadDeadline(time.Now().Add(drainPatience))
		var beginning []byte
		if r.Header.Get("Expect") == "" { // otherwise the sender waits for 100 Continue, and has sent nothing
			beginning, _ = io.ReadAll(io.LimitReader(r.Body, min(limit, maxRefusedBody))) // as much as arrives
		}
		return beginning, tooLarge(limit)
	}
	r.Header.Del("Expect") // net/http answers it with 100 Continue, and then drain has something to read
	conn.SetReadDeadline(time.Now().Add(bodyPatience))
	conn.SetWriteDeadline(time.Now().Add(bodyPatience)) // of 100 Continue, which nobody may read
	defer conn.SetWriteDeadline(time.Time{})
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	switch {
	case err == nil:
		// A deadline that passes during a long delivery would look as if the sender had hung up.
		conn.SetReadDeadline(time.Time{})
		return body, nil
	case errors.As(err, new(*http.MaxBytesError)):
		conn.SetReadDeadline(time.Now().Add(drainPatience))
		return bytes.Clone(body[:min(len(body), maxRefusedBody)]), tooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, reject(http.StatusRequestTimeout, "the body did not arrive in time").with("Connection", "close")
	default:
		return nil, reject(http.StatusBadRequest, "the body ended too early").with("Connection", "close")
	}
}

func tooLarge(limit int64) *answer {
	return faulty(http.StatusRequestEntityTooLarge, content.Fault{Message: fmt.Sprintf("is larger than the %d bytes accepted here", limit)})
}

// drain reads what a refused sender still sends. Many senders read the answer only after they
// have sent everything. If usher closed the connection earlier, they would see a reset and never
// learn why they were refused. A sender that waits for 100 Continue sends nothing.
func drain(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Expect") == "" && http.NewResponseController(w).Flush() == nil {
		io.CopyN(io.Discard, r.Body, maxDrain) // the deadline of drainPatience ends it at the latest
	}
}
