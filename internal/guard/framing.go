package guard

import (
	"bytes"
	"math"
)

// framing follows the requests on one HTTP/1 connection, in step with their bytes,
// and objects to the first one that two parsers could take for requests of
// different lengths. That is what request smuggling lives on: a proxy in front of
// usher sees one request where usher sees two, and the second carries what the
// proxy would have refused or replaced (its X-Forwarded-For, say).
//
// net/http is strict about most of this but lets some pass: Content-Length beside
// Transfer-Encoding, Content-Length twice, Transfer-Encoding in HTTP/1.0, folded
// headers, lines that end with a bare LF. By the time a handler sees the request it
// can't be told any more, so it is looked for here, before net/http.
//
// What is not objected to has one reading only, so framing never needs to guess
// where the next request begins. Everything that does not bear on that (names,
// values, sizes, the Host) is left to net/http, but for the number of headers, which
// it bounds from Go 1.27 on only.
type framing struct {
	state   state
	remain  int64  // bytes of a body, or of a chunk, that pass unread before state goes on
	partial []byte // of a line: what came of it with earlier reads

	// Of the head that is being read:
	headers int
	old     bool  // HTTP/1.0
	length  int64 // Content-Length
	counted bool  // there is a Content-Length
	chunked bool
}

// maxHeaders is as in Go 1.27.
const maxHeaders = 500

type state uint8

const (
	between   state = iota // requests: what comes is the next one's first line
	inHeaders              // lines up to an empty one
	chunkSize              // a line with the next chunk's size
	chunkEnd               // the empty line after a chunk
	inTrailer              // lines up to an empty one, after the last chunk
)

// inHead says whether what comes next belongs to a request's head. It is false in
// a body, whose request a handler has by now.
func (f *framing) inHead() bool { return f.remain == 0 && f.state <= inHeaders }

// scan takes the next bytes of the connection. With an objection, good is how many
// of them may still be shown to a parser: the line feed that would complete the
// line objected to is not among them.
func (f *framing) scan(p []byte) (good int, objection string) {
	for i := 0; i < len(p); {
		switch {
		case f.remain > 0:
			n := min(f.remain, int64(len(p)-i))
			f.remain -= n
			i += int(n)
			continue
		// net/http passes over a few of these after a POST, and refuses the rest.
		case f.state == between && len(f.partial) == 0 && (p[i] == '\r' || p[i] == '\n'):
			i++
			continue
		}
		length := bytes.IndexByte(p[i:], '\n')
		if length < 0 {
			// Lines have no bound here: net/http stops reading where its own is.
			f.partial = append(f.partial, p[i:]...)
			break
		}
		line := p[i : i+length]
		if len(f.partial) > 0 {
			f.partial = append(f.partial, line...)
			line = f.partial
		}
		if objection = f.line(line); objection != "" {
			return i + length, objection
		}
		f.partial = f.partial[:0]
		if cap(f.partial) > 4<<10 {
			f.partial = nil // idle connections should not hold much
		}
		i += length + 1
	}
	return len(p), ""
}

// line takes a line, less its line feed.
func (f *framing) line(line []byte) (objection string) {
	text, ok := bytes.CutSuffix(line, []byte("\r"))
	switch {
	case !ok:
		return "a line ends with a bare LF"
	case bytes.IndexByte(text, '\r') >= 0:
		return "a line has a CR in it"
	}
	switch f.state {
	case between:
		return f.requestLine(text)
	case inHeaders:
		if len(text) == 0 {
			f.endHead()
			return ""
		}
		return f.header(text)
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
	f.headers, f.length, f.counted, f.chunked = 0, 0, false, false
	f.old = bytes.HasSuffix(text, []byte(" HTTP/1.0"))
	if !f.old && !bytes.HasSuffix(text, []byte(" HTTP/1.1")) {
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
	name, value, _ := bytes.Cut(text, []byte(":"))
	switch {
	case bytes.EqualFold(name, []byte("Content-Length")):
		n, ok := number(bytes.Trim(value, " \t"), 10)
		switch {
		case !ok:
			return "Content-Length is not a number"
		case f.counted:
			return "Content-Length is there twice"
		case f.chunked:
			return "both Content-Length and Transfer-Encoding"
		}
		f.length, f.counted = n, true
	case bytes.EqualFold(name, []byte("Transfer-Encoding")):
		switch {
		case f.counted:
			return "both Transfer-Encoding and Content-Length"
		case f.old:
			return "Transfer-Encoding in HTTP/1.0" // which net/http would pass over
		}
		// Another one than chunked, or a second one: net/http answers 501 and closes.
		f.chunked = true
	}
	return ""
}

func (f *framing) endHead() {
	f.state, f.remain = between, f.length
	if f.chunked {
		f.state = chunkSize
	}
}

// chunk takes the line before a chunk.
func (f *framing) chunk(text []byte) (objection string) {
	digits, _, _ := bytes.Cut(text, []byte(";"))
	size, ok := number(bytes.TrimRight(digits, " \t"), 16)
	switch {
	case !ok:
		return "a chunk's size is not a number"
	case size == 0:
		f.state = inTrailer
	default:
		f.state, f.remain = chunkEnd, size
	}
	return ""
}

// number reads digits and nothing else: no sign, no space, no prefix. (strconv would
// do, but for each call it would make a string that its errors could quote.)
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
