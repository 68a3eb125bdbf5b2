package wire

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

var errBodyNotHTTP = errors.New("the body of its answer is badly framed")

// answer is the body of an answer. At its end the connection goes back to the pool, if
// nothing speaks against it; before its end, Close closes the connection.
type answer struct {
	c     *conn
	ctx   context.Context
	src   io.Reader   // of http.ReadResponse, which knows the end
	sent  *sending    // nil: everything had left when the answer came
	again bool        // the connection may be used again
	stop  func() bool // ends the watch over ctx
	over  atomic.Bool // the connection is no longer this answer's
	err   error       // of Read, from its end on
}

// body returns the body of resp. whole says that the request has left as it should.
func (c *conn) body(req *http.Request, resp *http.Response, sent *sending, whole bool, stop func() bool) io.ReadCloser {
	a := &answer{c: c, ctx: req.Context(), src: resp.Body, sent: sent, stop: stop,
		again: whole && !resp.Close && !req.Close}
	if resp.Body == http.NoBody {
		a.finish()
		return http.NoBody
	}
	return a
}

// Read may be called while another goroutine calls Close, as http.Transport has it.
func (a *answer) Read(p []byte) (int, error) {
	switch {
	case a.err != nil:
		return 0, a.err
	case a.over.Load():
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := a.src.Read(p)
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

// failure is why an answer broke off, without a word of what has come.
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

// Close gives up on what is left of the answer, and on the connection with it.
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
	// Whoever stops the watch too late does not know whether the connection is being
	// closed at this moment.
	unwatched := a.stop()
	if !unwatched || !a.again || a.sent != nil && !a.sent.done() || c.from.Buffered() > 0 {
		c.abandon()
		return
	}
	c.socket.fence = nil
	if poison {
		c.from.Reset(poisoned{})
		c.from = bufio.NewReaderSize(c, readSize)
	}
	c.client.pool.put(c)
}

// poisoned is what somebody reads from who reads on after the end.
type poisoned struct{}

func (poisoned) Read([]byte) (int, error) { panic("a connection is read by a call that is over") }
