package wire

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
)

// outgoing is a request on its way.
type outgoing struct {
	// first is the first write: the head, and the body if it fits. Until a byte of it has left
	// it can be written to another connection.
	first *bytes.Buffer
	// rest is the body if it is not in first; length is its length, -1 if unknown.
	rest   io.ReadCloser
	length int64
}

// pieceSize is how much is written at once. The buffers of the two kernels can hold a piece even
// if the other side does not read. So the writer can go on and read the answer.
const pieceSize = 32 << 10

// smallSize is enough for the head of a call with its token, and a small body beside it. A
// buffer is held until the answer begins: a thousand calls that wait hold a thousand.
const smallSize = 4 << 10

var (
	pieces = newBuffers(pieceSize)
	small  = newBuffers(smallSize)
)

func newBuffers(size int) *sync.Pool {
	return &sync.Pool{New: func() any { return bytes.NewBuffer(make([]byte, 0, size)) }}
}

// poison is for tests: it makes a use of something that was given back visible.
var poison = false

func giveBack(b *bytes.Buffer) {
	if poison {
		b.Reset()
		full := b.AvailableBuffer()[:b.Available()]
		for i := range full {
			full[i] = 0xDB
		}
	}
	b.Reset()
	switch size := b.Cap(); {
	case size >= pieceSize && size <= 2*pieceSize:
		pieces.Put(b)
	case size >= smallSize && size <= 2*smallSize:
		small.Put(b)
	}
}

func newOutgoing(req *http.Request) (*outgoing, error) {
	out := new(outgoing)
	if req.Body != nil && req.Body != http.NoBody {
		out.rest, out.length = req.Body, req.ContentLength
		if out.length == 0 {
			out.length = -1 // as in http.Request
		}
	}
	buffers := small
	if out.length > smallSize/2 && out.length < pieceSize {
		buffers = pieces
	}
	out.first = buffers.Get().(*bytes.Buffer)
	err := out.writeHead(req)
	if err == nil && out.rest != nil && out.length >= 0 && out.length <= int64(out.first.Available()) {
		err = out.takeBody()
	}
	if err != nil {
		out.closeBody()
		out.free()
		return nil, err
	}
	return out, nil
}

func (out *outgoing) free() { giveBack(out.first) }

func (out *outgoing) closeBody() {
	if out.rest != nil {
		out.rest.Close()
	}
}

// writeHead writes the head. It refuses what could be read as more than one request.
func (out *outgoing) writeHead(req *http.Request) error {
	host, err := hostHeader(req)
	if err != nil {
		return err
	}
	method, target := cmp.Or(req.Method, http.MethodGet), req.URL.RequestURI()
	if strings.ContainsFunc(method, notToken) || strings.ContainsFunc(target, isControl) {
		return errors.New("the method or the address can't stand in a request")
	}
	out.write(method, " ", target, " HTTP/1.1\r\nHost: ", host, "\r\n")
	switch _, said := req.Header["Content-Length"]; {
	case out.rest != nil && out.length < 0:
		out.write("Transfer-Encoding: chunked\r\n")
	case out.rest != nil || said: // without a body, only if the request says so
		out.write("Content-Length: ", strconv.FormatInt(out.length, 10), "\r\n")
	}
	if req.Close {
		out.write("Connection: close\r\n")
	}
	for name, values := range req.Header {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("%q can't be the name of a header", name)
		}
		for _, value := range values {
			switch {
			case !httpguts.ValidHeaderFieldValue(value):
				return fmt.Errorf("the value of header %s can't be sent", name) // it may be a secret
			case ours(name), name == "User-Agent" && value == "": // none, as in http.Transport
			default:
				out.write(name, ": ", textproto.TrimString(value), "\r\n")
			}
		}
	}
	out.write("\r\n")
	return nil
}

func (out *outgoing) write(parts ...string) {
	for _, part := range parts {
		out.first.WriteString(part)
	}
}

// ours reports whether a header frames a message or belongs to the connection, in any spelling. A
// second Content-Length would turn one request into two.
func ours(name string) bool {
	for _, own := range [...]string{"Host", "Content-Length", "Transfer-Encoding", "Trailer", "Connection"} {
		if len(name) == len(own) && strings.EqualFold(name, own) {
			return true
		}
	}
	return false
}

// hostHeader returns the value of Host: ASCII, and without the zone of an address, which has a
// meaning only on this machine.
func hostHeader(req *http.Request) (string, error) {
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	host, err := httpguts.PunycodeHostPort(host)
	if err != nil || host == "" || !httpguts.ValidHostHeader(host) {
		return "", errors.New("the host's name can't stand in a request")
	}
	if from := strings.IndexByte(host, '%'); from >= 0 && host[0] == '[' {
		if to := strings.LastIndexByte(host, ']'); to > from {
			host = host[:from] + host[to:]
		}
	}
	return host, nil
}

func isControl(r rune) bool { return r <= ' ' || r == 0x7f }
func notToken(r rune) bool  { return !httpguts.IsTokenRune(r) }

// takeBody reads a body that fits into the first write.
func (out *outgoing) takeBody() error {
	into := out.first.AvailableBuffer()[:out.length]
	if _, err := io.ReadFull(out.rest, into); err != nil {
		return bodyEnd(err)
	}
	if err := expectEnd(out.rest); err != nil {
		return err
	}
	out.first.Write(into)
	out.rest.Close()
	out.rest = nil
	return nil
}

// bodyEnd returns the error of a body that is shorter than its length.
func bodyEnd(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return errors.New("the request's body is shorter than its length")
	}
	return err
}

// expectEnd checks that a body ends where its length says. It must be read to its end in any case:
// some bodies do work at their end.
func expectEnd(body io.Reader) error {
	var one [1]byte
	switch n, err := io.ReadFull(body, one[:]); {
	case n > 0:
		return errors.New("the request's body is longer than its length")
	case err != io.EOF:
		return err
	}
	return nil
}
