package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"time"
)

// lastWord is how long to wait for an answer if the request could not be written to its end. The
// answer may say why (413, for example), and if there is one, it has been sent already.
const lastWord = time.Second

var (
	errNoAnswer = errors.New("it closed the connection without an answer")
	errCutShort = errors.New("it closed the connection in the middle of its answer's header")
	errHeadLong = &AnswerError{"its header is too long"}
	errNotHTTP  = &AnswerError{"it is not HTTP/1.1"}
)

// AnswerError says that there was an answer, but it cannot be used.
type AnswerError struct{ why string }

func (e *AnswerError) Error() string { return e.why }

// StaleError says that a connection from the pool ended without a byte of an answer. Perhaps the
// other side has received the call. Perhaps it had closed the connection before.
type StaleError struct{ Err error }

func (e *StaleError) Error() string { return e.Err.Error() }
func (e *StaleError) Unwrap() error { return e.Err }

// exchange sends a request and reads the head of its answer. If it fails, unsent says that nothing of
// the call has left.
func (c *conn) exchange(req *http.Request, out *outgoing, call Call) (_ *http.Response, unsent bool, _ error) {
	ctx := req.Context()
	stop := context.AfterFunc(ctx, c.abandon)
	fail := func(err error) error {
		stop()
		c.abandon()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	c.socket.fence = call.Fence
	c.readErr, c.budget = nil, c.client.cfg.MaxHead
	_ = c.SetDeadline(c.deadline())
	// n bytes have left. TLS counts whole records: the other side can read nothing of a part of one.
	n, writeErr := c.Conn.Write(out.first)
	if fenced := c.socket.fenced.Load(); writeErr != nil && (n == 0 || fenced) {
		return nil, !fenced && !isTimeout(writeErr), fail(writeErr)
	}
	out.written()
	var sent *sending
	switch {
	case writeErr != nil:
		_ = c.SetDeadline(time.Now().Add(lastWord))
	case out.rest != nil:
		sent = c.send(out)
	}
	resp, err := c.readHead(req)
	if sent != nil {
		writeErr = sent.noteAnswer(err)
	} else if err == nil {
		_ = c.SetDeadline(time.Time{})
	}
	if err != nil {
		stale := c.reused && c.budget == c.client.cfg.MaxHead && !isTimeout(err)
		if writeErr != nil {
			err = writeErr // the cause; err is its consequence
		}
		if stale {
			err = &StaleError{err}
		}
		return nil, false, fail(err)
	}
	resp.Body = c.body(req, resp, sent, writeErr == nil, stop)
	return resp, false, nil
}

// readHead reads the answer's head, and the 1xx heads before it.
func (c *conn) readHead(req *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(req.Context())
	if c.awaitAnswer() != nil {
		return nil, c.headError()
	}
	for {
		resp, err := http.ReadResponse(c.from, req)
		switch {
		case err != nil:
			return nil, c.headError()
		case resp.StatusCode < 100 || resp.StatusCode == http.StatusSwitchingProtocols:
			// HTTP has no status below 100, and usher never asks to switch protocols.
			return nil, &AnswerError{fmt.Sprintf("its status is %d", resp.StatusCode)}
		case resp.StatusCode >= 200:
			c.budget = math.MaxInt64
			return resp, nil
		case trace != nil && trace.Got1xxResponse != nil:
			if err := trace.Got1xxResponse(resp.StatusCode, textproto.MIMEHeader(resp.Header)); err != nil {
				return nil, err
			}
		}
	}
}

// headError says why there is no answer. Unlike net/http's errors it does not quote what has arrived.
func (c *conn) headError() error {
	switch err := c.readErr; {
	case err == nil:
		return errNotHTTP
	case isTimeout(err):
		return fmt.Errorf("no answer within %v: %w", c.client.cfg.Timeout, os.ErrDeadlineExceeded)
	case err != io.EOF && err != io.ErrUnexpectedEOF:
		return err
	case c.budget < c.client.cfg.MaxHead:
		return errCutShort
	default:
		return errNoAnswer
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
