package guard

import (
	"bytes"
	"math"
)

// framing follows the requests on one HTTP/1 connection byte by byte. It objects to the first
// request whose length two parsers could read differently. Request smuggling depends on such a
// request: a proxy in front of usher sees one request, usher sees two, and the second one carries
// something that the proxy would have refused or replaced (such as X-Forwarded-For).
//
// net/http is strict about most of this, but accepts Content-Length beside Transfer-Encoding,
// Content-Length twice, Transfer-Encoding in HTTP/1.0, folded headers, and lines that end with
// a bare LF. A handler cannot see any of this, so framing sees the bytes before net/http does.
//
// If framing has no objection, all parsers agree where the request ends and the next one begins.
// It leaves everything else (names, values, sizes, the Host) to net/http, except the number of
// headers, which net/http limits only since Go 1.27.
type framing struct {
	state   state
	remain  int64  // bytes of a body or chunk still to come; state applies after them
	partial []byte // what counts of a line whose end has not arrived yet; see keep
	long    bool   // the line is longer than partial can be
	stray   bool   // there is a CR in what partial lacks of the line
	head    int64  // how much memory the heads need that there were since headBytes was called

	// Of the head that is being read:
	headers   int
	http10    bool
	length    int64 // Content-Length
	hasLength bool
	chunked   bool
}

// maxHeaders is the limit of net/http in Go 1.27.
const maxHeaders = 500

// headerCost is how much memory net/http needs for a header beside its bytes, which may be as few as four.
const headerCost = 128

type state uint8

const (
	between   state = iota // between requests: the next line is a request line
	inHeaders              // lines up to an empty one
	chunkSize              // a line with the next chunk's size
	chunkEnd               // the empty line after a chunk
	inTrailer              // lines up to an empty one, after the last chunk
)

// inHead reports whether the next byte belongs to a request's head. If it belongs to a body, a
// handler already has the request.
func (f *framing) inHead() bool { return f.remain == 0 && f.state <= inHeaders }

// headBytes returns how much memory the heads need that there were since the last call.
func (f *framing) headBytes() int64 {
	n := f.head
	f.head = 0
	return n
}

// scan reads the next bytes of the connection. If it has an objection, good is how many of the bytes
// net/http may still see: all before the line feed that would complete the bad line.
func (f *framing) scan(p []byte) (good int, objection string) {
	for i := 0; i < len(p); {
		switch {
		case f.remain > 0:
			n := min(f.remain, int64(len(p)-i))
			f.remain -= n
			i += int(n)
			continue
		// net/http ignores a few empty lines after a POST, and refuses more of them.
		case f.state == between && len(f.partial) == 0 && (p[i] == '\r' || p[i] == '\n'):
			i++
			continue
		}
		length := bytes.IndexByte(p[i:], '\n')
		n := length + 1
		if length < 0 {
			n = len(p) - i
		}
		if f.state <= inHeaders {
			f.head += int64(n)
		}
		if length < 0 {
			f.keep(p[i:])
			break
		}
		line := p[i : i+length]
		if len(f.partial) > 0 {
			f.keep(line)
			line = f.partial
		}
		f.long = f.long || len(line) > maxPartial
		if objection = f.line(line); objection != "" {
			return i + length, objection
		}
		f.partial, f.long, f.stray = f.partial[:0], false, false
		i += n
	}
	return len(p), ""
}

const (
	maxPartial = 128
	lineStart  = 64                   // more than the names and sizes that framing looks for
	lineEnd    = len(" HTTP/1.1") + 1 // and a CR
)

// keep adds a further piece of a line to partial. net/http has the line, too, and that is enough of it in
// memory: strangers send long ones and never end them. So partial has no more than the start and the end of
// a long line. Between them nothing but a CR matters.
func (f *framing) keep(piece []byte) {
	for len(f.partial)+len(piece) > maxPartial {
		n := min(len(piece), maxPartial-len(f.partial))
		f.partial = append(f.partial, piece[:n]...)
		piece = piece[n:]
		end := len(f.partial) - lineEnd
		f.long, f.stray = true, f.stray || bytes.IndexByte(f.partial[lineStart:end], '\r') >= 0
		f.partial = append(f.partial[:lineStart], f.partial[end:]...)
	}
	f.partial = append(f.partial, piece...)
}

// line reads a line. Its line feed has been removed.
func (f *framing) line(line []byte) (objection string) {
	text, ok := bytes.CutSuffix(line, []byte("\r"))
	switch {
	case !ok:
		return "a line ends with a bare LF"
	case f.stray || bytes.IndexByte(text, '\r') >= 0:
		return "a line has a CR in it"
	}
	switch f.state {
	case between:
		return f.requestLine(text)
	case inHeaders:
		if len(text) > 0 {
			return f.header(text)
		}
		if f.state, f.remain = between, f.length; f.chunked {
			f.state = chunkSize
		}
	case chunkSize:
		return f.chunk(text)
	case chunkEnd:
		f.state = chunkSize
		if len(text) > 0 {
			return "a chunk is longer than its size"
		}
	case inTrailer:
		if len(text) == 0 {
			f.state = between
		}
	}
	return ""
}

func (f *framing) requestLine(text []byte) (objection string) {
	f.state = inHeaders
	f.headers = 0
	f.length, f.hasLength = 0, false
	f.chunked = false
	f.http10 = bytes.HasSuffix(text, []byte(" HTTP/1.0"))
	if !f.http10 && !bytes.HasSuffix(text, []byte(" HTTP/1.1")) {
		return "the request line does not end with HTTP/1.1 or HTTP/1.0"
	}
	return ""
}

func (f *framing) header(text []byte) (objection string) {
	if text[0] == ' ' || text[0] == '\t' {
		return "a header is folded over two lines"
	}
	if f.headers++; f.headers > maxHeaders {
		return "it has too many headers"
	}
	f.head += headerCost
	name, value, _ := bytes.Cut(text, []byte(":"))
	switch {
	case bytes.EqualFold(name, []byte("Content-Length")):
		n, ok := number(bytes.Trim(value, " \t"), 10)
		switch {
		case !ok || f.long:
			return "Content-Length is not a number"
		case f.hasLength:
			return "Content-Length occurs twice"
		case f.chunked:
			return "both Content-Length and Transfer-Encoding"
		}
		f.length, f.hasLength = n, true
	case bytes.EqualFold(name, []byte("Transfer-Encoding")):
		switch {
		case f.hasLength:
			return "both Transfer-Encoding and Content-Length"
		case f.http10:
			return "Transfer-Encoding in HTTP/1.0" // net/http would ignore it
		}
		// If the coding is not chunked, or this is the second such header, net/http answers 501 and closes.
		f.chunked = true
	}
	return ""
}

// chunk reads the line before a chunk.
func (f *framing) chunk(text []byte) (objection string) {
	digits, _, _ := bytes.Cut(text, []byte(";"))
	size, ok := number(bytes.TrimRight(digits, " \t"), 16)
	switch {
	case !ok || f.long && len(digits) >= lineStart:
		return "a chunk's size is not a number"
	case size == 0:
		f.state = inTrailer
	default:
		f.state, f.remain = chunkEnd, size
	}
	return ""
}

// number reads digits and nothing else: no sign, no space, no prefix. (strconv would allocate a
// string for each number, because its errors quote it.)
func number(digits []byte, base int64) (n int64, ok bool) {
	for _, c := range digits {
		d := base
		switch {
		case '0' <= c && c <= '9':
			d = int64(c - '0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			d = int64(c|0x20-'a') + 10
		}
		if d >= base || n > (math.MaxInt64-d)/base {
			return 0, false
		}
		n = n*base + d
	}
	return n, len(digits) > 0
}
