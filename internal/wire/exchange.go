package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

	errBodyNotHTTP = errors.New("the body of its answer is badly framed")
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

// sending is a body on its way: its own goroutine sends it while the caller waits for the answer.
type sending struct {
	c        *conn
	mu       sync.Mutex // guards what follows, and the deadline for reading
	over     bool       // nothing more will be sent: the body has ended, or there is an err
	err      error
	answered bool // the head of the answer has arrived, or will never arrive
}

func (c *conn) send(out *outgoing) *sending {
	_ = c.SetReadDeadline(time.Time{}) // the time for the answer begins when the whole body has left
	s := &sending{c: c}
	body, length := out.rest, out.length
	out.rest = nil // the goroutine closes it
	go func() {
		defer body.Close()
		s.end(c.sendBody(body, length))
	}()
	return s
}

// end notes how the sending ended. If the body could not be read, the call ends. If it could not be
// written, the other side may have sent an answer that says why, so the caller goes on reading.
func (s *sending) end(bodyErr, writeErr error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over, s.err = true, errors.Join(bodyErr, writeErr)
	_ = s.c.SetWriteDeadline(time.Time{})
	switch {
	case bodyErr != nil || s.c.socket.fenced.Load():
		s.c.abandon()
	case s.answered:
	case writeErr != nil:
		_ = s.c.SetReadDeadline(time.Now().Add(lastWord))
	default:
		_ = s.c.SetReadDeadline(s.c.deadline())
	}
}

// noteAnswer notes that the head of the answer has arrived or, if err is not nil, never will. It
// returns the error of the sending so far.
func (s *sending) noteAnswer(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered = true
	if err == nil {
		_ = s.c.SetReadDeadline(time.Time{})
	}
	return s.err
}

// done reports whether everything was sent.
func (s *sending) done() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over && s.err == nil
}

// sendBody sends a body in pieces, each with one write and within the client's timeout. If the
// length is unknown, the pieces are chunks.
func (c *conn) sendBody(body io.Reader, length int64) (bodyErr, writeErr error) {
	out := bufio.NewWriterSize(c.Conn, pieceSize)
	pieces, end := io.Writer(out), ""
	if length < 0 {
		pieces, end = httputil.NewChunkedWriter(out), "0\r\n\r\n"
	}
	buf := make([]byte, pieceSize-len("ffff\r\n")-len("\r\n0\r\n\r\n")) // out has room for all of a piece
	for sent := int64(0); ; {
		n, err := body.Read(buf)
		sent += int64(n)
		atEnd := err == io.EOF
		switch {
		case err != nil && !atEnd:
			return err, nil
		case length >= 0 && (sent > length || atEnd && sent < length):
			return errLength, nil
		}
		_, _ = pieces.Write(buf[:n]) // Flush returns the error
		if atEnd {
			_, _ = out.WriteString(end)
		}
		_ = c.SetWriteDeadline(c.deadline())
		if err := out.Flush(); err != nil || atEnd {
			return nil, err
		}
	}
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
