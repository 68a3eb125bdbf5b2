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

// lastWord is how long an answer may take when the request could not be written to its
// end. It may be the reason (a 413, say), and has come by then or will not.
const lastWord = time.Second

var (
	errNoAnswer = errors.New("it closed the connection without an answer")
	errCutShort = errors.New("it closed the connection in the middle of its answer's header")
	errHeadLong = &AnswerError{"its header is too long"}
	errNotHTTP  = &AnswerError{"it is not HTTP/1.1"}
)

// AnswerError says that there was an answer, but none that could be used.
type AnswerError struct{ why string }

func (e *AnswerError) Error() string { return e.why }

// exchange sends a request and reads its answer up to the body. When there is no answer,
// lost says that the call may be sent again: nothing of it has left, or it is repeatable
// and the connection ended without a byte for it.
func (c *conn) exchange(req *http.Request, out *outgoing, call Call) (_ *http.Response, lost bool, _ error) {
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
	n, writeErr := c.write(out.first.Bytes())
	if writeErr != nil && (n == 0 || c.socket.fenced) {
		return nil, n == 0, fail(writeErr)
	}
	var sent *sending
	switch {
	case writeErr != nil:
		_ = c.SetDeadline(time.Now().Add(lastWord)) // a closed one fails in the read
	case out.rest != nil:
		sent = c.send(out)
	default:
		c.await()
	}
	resp, err := c.readHead(req)
	if sent != nil {
		writeErr = sent.answered(err)
	} else if err == nil {
		_ = c.SetDeadline(time.Time{})
	}
	if err != nil {
		mute := c.budget == c.client.cfg.MaxHead && !isTimeout(err)
		if writeErr != nil {
			err = writeErr // the reason, and not what followed from it
		}
		return nil, mute && sent == nil && call.Repeatable, fail(err)
	}
	resp.Body = c.body(req, resp, sent, writeErr == nil, stop)
	return resp, false, nil
}

// readHead reads the answer's head, and those of 1xx before it.
func (c *conn) readHead(req *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(req.Context())
	for {
		if _, err := c.from.Peek(1); err != nil {
			return nil, c.headError()
		}
		resp, err := http.ReadResponse(c.from, req)
		switch {
		case err != nil:
			return nil, c.headError()
		case resp.StatusCode == http.StatusSwitchingProtocols:
			resp.Close = true // nobody asked for it, and what follows is no HTTP
			return resp, nil
		case resp.StatusCode >= 200 || resp.StatusCode < 100:
			c.budget = math.MaxInt64
			return resp, nil
		case trace != nil && trace.Got1xxResponse != nil:
			if err := trace.Got1xxResponse(resp.StatusCode, textproto.MIMEHeader(resp.Header)); err != nil {
				return nil, err
			}
		}
	}
}

// headError is why there is no answer, in words that hold nothing of what has come: those
// of net/http quote it.
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
