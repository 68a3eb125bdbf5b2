package webhookgate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"usher/internal/content"
)

const (
	// bodyPatience is how long a body may take to arrive. Until the signature is checked the sender
	// may be a stranger, who would hold a connection for ever with a byte now and then.
	bodyPatience = 30 * time.Second

	// drainPatience and maxDrain limit how much usher still reads of a request after the answer.
	drainPatience = 5 * time.Second
	maxDrain      = 64 << 20

	// smallBody always has room, and counts for nothing. Most webhooks are smaller.
	smallBody = 16 << 10
)

// body is the body of a request.
type body struct {
	of     *bodies
	from   io.Reader
	giveUp func() // ends a read that waits
	size   int64  // as far as it was read

	taken int64 // of the room; guarded by of.mu, as lost is
	lost  bool  // it had to give way
}

// read reads the whole body of r, up to limit bytes. If the body is too large, read returns its beginning beside the
// answer.
func (b *body) read(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, *answer) {
	conn := http.NewResponseController(w)
	b.from, b.giveUp = r.Body, func() { conn.SetReadDeadline(time.Unix(1, 0)) }
	if r.ContentLength > limit {
		conn.SetReadDeadline(time.Now().Add(drainPatience))
		var beginning []byte
		if r.Header.Get("Expect") == "" { // otherwise the sender waits for 100 Continue, and has sent nothing
			beginning, _ = io.ReadAll(io.LimitReader(b, min(limit, maxInvalidBody))) // as much as arrives
		}
		return beginning, tooLarge(limit)
	}
	r.Header.Del("Expect") // net/http answers it with 100 Continue, and then drain has something to read
	conn.SetReadDeadline(time.Now().Add(bodyPatience))
	conn.SetWriteDeadline(time.Now().Add(bodyPatience)) // of 100 Continue, which nobody may read
	defer conn.SetWriteDeadline(time.Time{})
	b.from = http.MaxBytesReader(w, r.Body, limit)
	body, err := io.ReadAll(b)
	switch {
	case !b.of.complete(b):
		return nil, busy("too many large webhooks at once").with("Connection", "close")
	case err == nil:
		// A deadline that passes during a long delivery would look as if the sender had hung up.
		conn.SetReadDeadline(time.Time{})
		return body, nil
	case errors.As(err, new(*http.MaxBytesError)):
		conn.SetReadDeadline(time.Now().Add(drainPatience))
		return bytes.Clone(body[:min(len(body), maxInvalidBody)]), tooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, tooSlow()
	default:
		return nil, reject(http.StatusBadRequest, "the body ended too early").with("Connection", "close")
	}
}

func tooSlow() *answer {
	return reject(http.StatusRequestTimeout, "the body did not arrive in time").with("Connection", "close")
}

func tooLarge(limit int64) *answer {
	message := fmt.Sprintf("is larger than the %d bytes accepted here", limit)
	return faulty(http.StatusRequestEntityTooLarge, content.Fault{Message: message})
}

var errNoRoom = errors.New("there is no room for the body")

func (b *body) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	if b.size += int64(n); b.size > smallBody && !b.of.take(b) {
		return 0, errNoRoom
	}
	return n, err
}

// bodies limits the memory of all bodies, from their first byte until their webhooks have an answer. If there is no
// room, the one gives way that takes longest to arrive: so slow senders keep nobody out.
type bodies struct {
	limit int64

	mu       sync.Mutex // guards what follows
	used     int64
	arriving []*body // those that have taken some, and are not complete yet; the one that began first is the first
}

// take takes room for what was read of b, and reports whether b has it.
func (a *bodies) take(b *body) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if b.taken == 0 && !b.lost {
		a.arriving = append(a.arriving, b)
	}
	more := b.size - smallBody - b.taken
	for !b.lost && a.used+more > a.limit {
		first := a.arriving[0]
		a.giveBack(first)
		first.lost = true
		first.giveUp()
	}
	if !b.lost {
		a.used, b.taken = a.used+more, b.taken+more
	}
	return !b.lost
}

// complete notes that no more is read of b, and reports whether b has had room.
func (a *bodies) complete(b *body) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.arriving = slices.DeleteFunc(a.arriving, func(other *body) bool { return other == b })
	return !b.lost
}

// release gives back what b has taken.
func (a *bodies) release(b *body) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.giveBack(b)
}

// giveBack is called with mu locked.
func (a *bodies) giveBack(b *body) {
	a.arriving = slices.DeleteFunc(a.arriving, func(other *body) bool { return other == b })
	a.used, b.taken = a.used-b.taken, 0
}

// drain reads what a refused sender still sends. Many senders read the answer only after they have sent everything. If
// usher closed the connection earlier, they would see a reset and never learn why they were refused. A sender that
// waits for 100 Continue sends nothing.
func drain(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Expect") == "" && http.NewResponseController(w).Flush() == nil {
		io.CopyN(io.Discard, r.Body, maxDrain) // the deadline of drainPatience ends it at the latest
	}
}
