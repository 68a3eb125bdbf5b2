package wire

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
)

// outgoing is a request on its way.
type outgoing struct {
	// first is the first write: the head, and the body if it fits. Until a byte of it has left,
	// it can be written to another connection.
	first  []byte
	buffer *buffer // the memory of first, unless first is longer; nil if there is no first
	head   int     // the length of the head
	// rest is the body if it is not in first. length is the body's length, -1 if unknown.
	rest   io.ReadCloser
	length int64
}

// pieceSize is how much is written at once. The buffers of the two kernels can hold a piece even if
// the other side does not read. So the first write does not wait, and the caller can read the answer.
const pieceSize = 32 << 10

// buffer has room for the head of a call with its token, and a small body.
type buffer [4 << 10]byte

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// poison is for tests: with it, a use of a buffer that was given back shows.
var poison = false

func newOutgoing(req *http.Request) *outgoing {
	out := new(outgoing)
	if req.Body != nil && req.Body != http.NoBody {
		out.rest, out.length = req.Body, req.ContentLength
		if out.length == 0 {
			out.length = -1 // as in http.Request
		}
	}
	return out
}

// write fills first, unless it is filled already. It is called when there is a connection for it: a
// thousand calls may wait for one, and need no buffer. If ready, which may be nil, changes the
// request's header, write writes the head again.
func (out *outgoing) write(req *http.Request, ready func() (bool, error)) error {
	if out.buffer == nil {
		out.buffer = buffers.Get().(*buffer)
		err := out.writeHead(req)
		if err == nil && out.length > 0 && out.length <= int64(pieceSize-len(out.first)) {
			err = out.takeBody()
		}
		if err != nil {
			return err
		}
	}
	if ready == nil {
		return nil
	}
	changed, err := ready()
	if err != nil || !changed {
		return err
	}
	body := slices.Clone(out.first[out.head:])
	err = out.writeHead(req)
	out.first = append(out.first, body...)
	return err
}

// written gives the buffer back, because its bytes have left.
func (out *outgoing) written() {
	if out.buffer == nil {
		return
	}
	if poison {
		for i := range out.buffer {
			out.buffer[i] = 0xDB
		}
	}
	buffers.Put(out.buffer)
	out.first, out.buffer = nil, nil
}

// drop gives up what was not sent of a request.
func (out *outgoing) drop() {
	out.written()
	if out.rest != nil {
		out.rest.Close()
	}
}

// writeHead writes the head into first. It refuses what could be read as more than one request.
func (out *outgoing) writeHead(req *http.Request) error {
	host, err := hostHeader(req)
	if err != nil {
		return err
	}
	out.first = out.buffer[:0]
	method, target := cmp.Or(req.Method, http.MethodGet), req.URL.RequestURI()
	if strings.ContainsFunc(method, notToken) || strings.ContainsFunc(target, isControl) {
		return errors.New("the method or the address can't stand in a request")
	}
	out.line(method, " ", target, " HTTP/1.1")
	out.line("Host: ", host)
	switch _, said := req.Header["Content-Length"]; {
	case out.length < 0:
		out.line("Transfer-Encoding: chunked")
	case out.length > 0 || said: // without a body, only if the request's header has it
		out.line("Content-Length: ", strconv.FormatInt(out.length, 10))
	}
	if req.Close {
		out.line("Connection: close")
	}
	for name, values := range req.Header {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("%q can't be the name of a header", name)
		}
		for _, value := range values {
			// An empty User-Agent means none, as in http.Transport.
			if ours(name) || name == "User-Agent" && value == "" {
				continue
			}
			if value = textproto.TrimString(value); !httpguts.ValidHeaderFieldValue(value) {
				return errors.New("a header's value can't be sent") // not quoted: it may be a secret
			}
			out.line(name, ": ", value)
		}
	}
	out.line()
	out.head = len(out.first)
	return nil
}

func (out *outgoing) line(parts ...string) {
	for _, part := range parts {
		out.first = append(out.first, part...)
	}
	out.first = append(out.first, "\r\n"...)
}

// ours reports whether the package itself writes this header, in any spelling: it frames the message or
// belongs to the connection. A second Content-Length could turn one request into two.
func ours(name string) bool {
	return slices.ContainsFunc(own, func(o string) bool { return len(name) == len(o) && strings.EqualFold(name, o) })
}

var own = []string{"Host", "Content-Length", "Transfer-Encoding", "Trailer", "Connection"}

// hostHeader returns the value of Host, in ASCII.
func hostHeader(req *http.Request) (string, error) {
	host, err := httpguts.PunycodeHostPort(cmp.Or(req.Host, req.URL.Host))
	if err != nil || host == "" || !httpguts.ValidHostHeader(host) {
		return "", errors.New("the host's name can't stand in a request")
	}
	return host, nil
}

func isControl(r rune) bool { return r <= ' ' || r == 0x7f }
func notToken(r rune) bool  { return !httpguts.IsTokenRune(r) }

var errLength = errors.New("the request's body does not have the length that it should have")

// takeBody reads a body that fits into the first write. It reads until EOF: some bodies do something
// there.
func (out *outgoing) takeBody() error {
	want := len(out.first) + int(out.length)
	out.first = slices.Grow(out.first, int(out.length)+1) // one byte more, to notice a body that is too long
	for {
		n, err := out.rest.Read(out.first[len(out.first) : want+1])
		out.first = out.first[:len(out.first)+n]
		switch end := err == io.EOF; {
		case err != nil && !end:
			return err
		case len(out.first) > want, end && len(out.first) < want:
			return errLength
		case end:
			out.rest.Close()
			out.rest = nil
			return nil
		}
	}
}
