package guard

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Refuse writes a port's own answer to a request that no handler will see.
type Refuse func(w http.ResponseWriter, status int, why string)

// plainHeader follows the status line of what net/http answers by itself, past every
// handler, to a head that it can't take. No handler's answer looks like it: those have
// a Date.
const plainHeader = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// plainAnswer reads such an answer, which net/http writes in one piece.
func plainAnswer(p []byte) (status int, why string, ok bool) {
	rest, found := bytes.CutPrefix(p, []byte("HTTP/1.1 "))
	line := bytes.IndexByte(rest, '\r')
	if !found || line < 3 || !bytes.HasPrefix(rest[line:], []byte(plainHeader)) {
		return 0, "", false
	}
	status, err := strconv.Atoi(string(rest[:3]))
	if err != nil {
		return 0, "", false
	}
	// "400 Bad Request: missing required Host header" is as much as it ever says.
	switch _, detail, found := strings.Cut(string(rest[:line]), ": "); {
	case found:
		return status, detail, true
	case status == http.StatusBadRequest:
		return status, "it is not well-formed HTTP", true
	default:
		return status, strings.ToLower(http.StatusText(status)), true
	}
}

// Write gives net/http's own answers the shape that the port has.
func (c *conn) Write(p []byte) (int, error) {
	if c.refuse == nil {
		return c.Conn.Write(p)
	}
	status, why, ok := plainAnswer(p)
	if !ok {
		return c.Conn.Write(p)
	}
	if c.objection != "" {
		why = c.objection
	}
	if _, err := c.Conn.Write(shaped(c.refuse, status, why)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func shaped(refuse Refuse, status int, why string) []byte {
	var a written
	refuse(&a, status, why)
	resp := http.Response{
		ProtoMajor: 1, ProtoMinor: 1, StatusCode: a.status, Header: a.header, Close: true,
		ContentLength: int64(a.body.Len()), Body: io.NopCloser(&a.body),
	}
	var raw bytes.Buffer
	if err := resp.Write(&raw); err != nil {
		panic(err) // a buffer takes everything
	}
	return raw.Bytes()
}

// written is a ResponseWriter that keeps the answer.
type written struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (w *written) Header() http.Header {
	if w.header == nil {
		w.header = make(http.Header)
	}
	return w.header
}

func (w *written) WriteHeader(status int) { w.status = status }

func (w *written) Write(p []byte) (int, error) { return w.body.Write(p) }
