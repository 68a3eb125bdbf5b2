package wire

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

var errBodyNotHTTP = errors.New("the body of its answer is badly framed")

// answer is the body of an answer. At its end the connection goes back to the pool, if it can be
// used again. Close before the end closes the connection.
type answer struct {
	c        *conn
	ctx      context.Context
	src      io.Reader   // the body, without its framing
	until    time.Time   // when the other side closes the connection; zero: it did not say
	sent     *sending    // nil: the whole request had left before the answer
	reusable bool        // neither side has asked to close the connection, and no write has failed
	stop     func() bool // stops watching ctx
	over     atomic.Bool // the connection no longer belongs to this answer
	err      error       // what Read returns after the end
}

// body returns the body of resp. whole says that no write of the request has failed.
func (c *conn) body(req *http.Request, resp *http.Response, sent *sending, whole bool, stop func() bool) io.ReadCloser {
	a := &answer{c: c, ctx: req.Context(), src: resp.Body, sent: sent, stop: stop,
		reusable: whole && !resp.Close && !req.Close}
	if announced, ok := keepAlive(resp.Header); ok {
		a.until = time.Now().Add(announced - time.Second)
	}
	if resp.Body == http.NoBody {
		a.finish()
		return http.NoBody
	}
	return a
}

// keepAlive returns how long the other side keeps an idle connection, if it says so (Keep-Alive:
// timeout=5). That time begins when the other side has sent the answer, which may be long before
// usher has read it.
func keepAlive(h http.Header) (time.Duration, bool) {
	for _, line := range h["Keep-Alive"] {
		for param := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(param, "=")
			seconds, err := strconv.ParseUint(strings.Trim(value, ` "`), 10, 31)
			if err == nil && strings.EqualFold(strings.TrimSpace(name), "timeout") {
				return time.Duration(seconds) * time.Second, true
			}
		}
	}
	return 0, false
}

// Read may be called while another goroutine calls Close, as with http.Transport.
func (a *answer) Read(p []byte) (int, error) {
	switch {
	case a.err != nil:
		return 0, a.err
	case a.over.Load():
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := a.src.Read(p)
	if err == io.EOF && a.c.cutOff() {
		err = io.ErrUnexpectedEOF
	}
	switch {
	case err == nil:
		return n, nil
	case err == io.EOF:
		a.finish()
	default:
		err = a.failure(err)
		a.Close()
	}
	a.err, a.src = err, nil
	return n, err
}

// failure says why an answer ended too early. It does not quote the answer.
func (a *answer) failure(err error) error {
	switch {
	case a.ctx.Err() != nil:
		return context.Cause(a.ctx)
	case a.c.readErr == nil:
		return errBodyNotHTTP
	default:
		return err
	}
}

// Close gives up the rest of the answer, and the connection.
func (a *answer) Close() error {
	if a.over.CompareAndSwap(false, true) {
		a.stop()
		a.c.abandon()
	}
	return nil
}

// finish is called at the exact end of the answer.
func (a *answer) finish() {
	if !a.over.CompareAndSwap(false, true) {
		return
	}
	c := a.c
	// If ctx has ended before this, the connection is about to be closed.
	unwatched := a.stop()
	c.idleSince, c.maxIdle = time.Now(), c.client.cfg.IdleTimeout
	if !a.until.IsZero() {
		c.maxIdle = min(c.maxIdle, a.until.Sub(c.idleSince))
	}
	if !unwatched || !a.reusable || c.maxIdle <= 0 || a.sent != nil && !a.sent.done() || c.from.Buffered() > 0 {
		c.abandon()
		return
	}
	c.socket.fence = nil
	c.dropReader()
	c.client.pool.put(c)
}

// poisoned is for tests: it panics if a call reads after its end.
type poisoned struct{}

func (poisoned) Read([]byte) (int, error) { panic("a call reads from its connection after its end") }

// RetryAfter returns how long an answer's Retry-After asks to wait, or zero if there is none.
func RetryAfter(h http.Header) time.Duration {
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
