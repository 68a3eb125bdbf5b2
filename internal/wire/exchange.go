package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"sync"
	"time"
)

// conn is a connection, which carries one call at a time.
type conn struct {
	net.Conn // the socket, or TLS above it
	client   *Client
	where    place
	socket   *socket
	tls      []*records // what each layer of TLS reads from
	from     *bufio.Reader

	reused    bool
	idleSince time.Time

	// Of the call under way.
	budget  int64 // what may be read yet
	readErr error // why nothing more can be
}

// readSize is of the buffer that a connection keeps for heads. What is longer of a body
// goes past it.
const readSize = 4 << 10

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

// noAnswerInTime is a net.Error.
type noAnswerInTime struct{ limit time.Duration }

func (e noAnswerInTime) Error() string { return fmt.Sprintf("no answer within %v", e.limit) }
func (noAnswerInTime) Timeout() bool   { return true }
func (noAnswerInTime) Temporary() bool { return true }

// Read is for from.
func (c *conn) Read(p []byte) (int, error) {
	if c.budget <= 0 {
		c.readErr = errHeadLong
		return 0, errHeadLong
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.budget)])
	c.budget -= int64(n)
	if err != nil {
		c.readErr = err
	}
	return n, err
}

// quiet says whether an idle connection may be used: it is open, and nothing has come on
// it but what TLS has to say to itself.
func (c *conn) quiet() bool {
	var one [1]byte
	c.socket.looking = true
	n, err := c.Conn.Read(one[:])
	c.socket.looking = false
	for _, r := range c.tls {
		if !r.whole() {
			return false
		}
	}
	return n == 0 && err == error(nothingYet{})
}

// hangUp ends an idle connection: over TLS, politely.
func (c *conn) hangUp() { c.Conn.Close() }

// abandon ends a connection at once, whatever is on its way. It may be called by anybody.
func (c *conn) abandon() { c.socket.Close() }

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

// write is one write, within the client's patience. What n counts has left; of a record
// of TLS that left in part nobody can read anything.
func (c *conn) write(p []byte) (n int, _ error) {
	if patience := c.client.cfg.Timeout; patience > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(patience)) // a closed one fails in the write
	}
	return c.Conn.Write(p)
}

// await gives the answer its time, now that all of the request has left.
func (c *conn) await() {
	var until time.Time
	if patience := c.client.cfg.Timeout; patience > 0 {
		until = time.Now().Add(patience)
	}
	_ = c.SetDeadline(until) // a closed one fails in the read
}

// readHead reads the answer's head, and those of 1xx before it.
func (c *conn) readHead(req *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(req.Context())
	for {
		if _, err := c.from.Peek(1); err != nil {
			return nil, c.headError(err)
		}
		resp, err := http.ReadResponse(c.from, req)
		switch {
		case err != nil:
			return nil, c.headError(err)
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
func (c *conn) headError(error) error {
	switch err := c.readErr; {
	case err == nil:
		return errNotHTTP
	case isTimeout(err):
		return noAnswerInTime{c.client.cfg.Timeout}
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

// sending is a body that a goroutine of its own sends while the answer is waited for.
type sending struct {
	c  *conn
	mu sync.Mutex // guards what follows, and the connection's deadlines
	// over says that all was sent or nothing more will be, for err.
	over bool
	err  error
	// heard says that the answer has begun, or will not come.
	heard bool
}

func (c *conn) send(out *outgoing) *sending {
	s := &sending{c: c}
	body, length := out.rest, out.length
	out.rest = nil // closed from here on by the goroutine
	go func() {
		defer body.Close()
		s.end(c.sendBody(body, length))
	}()
	return s
}

// end notes how the sending ended. A body that could not be had ends the call; when the
// other side did not want it, it may have said why.
func (s *sending) end(bodyErr, writeErr error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over, s.err = true, errors.Join(bodyErr, writeErr)
	switch {
	case bodyErr != nil || s.c.socket.fenced:
		s.c.abandon()
	case s.heard:
		_ = s.c.SetWriteDeadline(time.Time{})
	case writeErr != nil:
		_ = s.c.SetReadDeadline(time.Now().Add(lastWord))
	default:
		s.c.await()
	}
}

// answered notes that the head of the answer has come, or err instead, and returns why
// the sending ended, if it has.
func (s *sending) answered(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = true
	switch {
	case err != nil: // the connection is about to be closed
	case s.over:
		_ = s.c.SetDeadline(time.Time{})
	default:
		_ = s.c.SetReadDeadline(time.Time{})
	}
	return s.err
}

// done says whether all was sent.
func (s *sending) done() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over && s.err == nil
}

// sendBody sends a body in pieces, each within the client's patience.
func (c *conn) sendBody(body io.Reader, length int64) (bodyErr, writeErr error) {
	b := pieces.Get().(*bytes.Buffer)
	defer func() { giveBack(b) }()
	const sizeRoom, endRoom = len("ffff\r\n"), len("\r\n0\r\n\r\n")
	buf := b.AvailableBuffer()[:pieceSize]
	for left := length; left != 0; {
		room := buf[sizeRoom : pieceSize-endRoom]
		if left > 0 {
			room = room[:min(left, int64(len(room)))]
		}
		n, err := body.Read(room)
		piece := room[:n]
		if left > 0 {
			if left -= int64(n); left > 0 && err != nil {
				return bodyEnd(err), nil
			}
		} else {
			if err != nil && err != io.EOF {
				return err, nil
			}
			piece = chunk(buf, sizeRoom, n, err == io.EOF)
			if err == io.EOF {
				left = 0
			}
		}
		if len(piece) > 0 {
			if _, err := c.write(piece); err != nil {
				return nil, err
			}
		}
	}
	if length >= 0 {
		return expectEnd(body), nil
	}
	return nil, nil
}

// chunk puts the n bytes at buf[at:] into a chunk, in place, and the end of all chunks
// behind it where it is the last.
func chunk(buf []byte, at, n int, last bool) []byte {
	from, to := at, at
	if n > 0 {
		size := strconv.FormatInt(int64(n), 16) + "\r\n"
		from = at - len(size)
		copy(buf[from:], size)
		to = at + n + copy(buf[at+n:], "\r\n")
	}
	if last {
		to += copy(buf[to:], "0\r\n\r\n")
	}
	return buf[from:to]
}
