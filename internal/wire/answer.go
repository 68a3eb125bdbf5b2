package wire

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

var errBodyNotHTTP = errors.New("the body of its answer is badly framed")

// answer is the body of an answer. At its end the connection goes back to the pool, if it can be
// used again. Before its end, Close closes the connection.
type answer struct {
	c     *conn
	ctx   context.Context
	src   io.Reader   // from http.ReadResponse, which knows the end
	sent  *sending    // nil: the whole request had left before the answer
	again bool        // the connection may be used again
	stop  func() bool // stops watching ctx
	over  atomic.Bool // the connection no longer belongs to this answer
	err   error       // what Read returns after the end
}

// body returns the body of resp. whole says that the whole request has left.
func (c *conn) body(req *http.Request, resp *http.Response, sent *sending, whole bool, stop func() bool) io.ReadCloser {
	a := &answer{c: c, ctx: req.Context(), src: resp.Body, sent: sent, stop: stop,
		again: whole && !resp.Close && !req.Close}
	if resp.Body == http.NoBody {
		a.finish()
		return http.NoBody
	}
	return a
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

// failure says why an answer ended too early. It quotes nothing of the answer.
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
	// If the watch is stopped too late, the connection may be about to be closed.
	unwatched := a.stop()
	if !unwatched || !a.again || a.sent != nil && !a.sent.done() || c.from.Buffered() > 0 {
		c.abandon()
		return
	}
	c.socket.fence = nil
	c.dropReader()
	c.idleSince = time.Now()
	c.client.pool.put(c)
}

// poisoned catches a read after the end.
type poisoned struct{}

func (poisoned) Read([]byte) (int, error) { panic("a call reads from its connection after its end") }
