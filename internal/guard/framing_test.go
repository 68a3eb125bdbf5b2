package guard

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// scanAll scans in pieces of this size.
func scanAll(f *framing, data string, step int) (objection string) {
	for len(data) > 0 && objection == "" {
		n := min(step, len(data))
		_, objection = f.scan([]byte(data[:n]))
		data = data[n:]
	}
	return objection
}

func TestFraming(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	long := strings.Repeat("0123456789abcdef", 300)
	for _, tc := range []struct{ name, data, objection string }{
		{"one", get, ""},
		{"two", get + get, ""},
		{"length", "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n12345" + get, ""},
		{"a body that looks like a head", "POST / HTTP/1.1\r\nContent-Length: 36\r\n\r\nContent-Length: 1\nContent-Length: 2\n" + get, ""},
		{"chunks", "POST / HTTP/1.1\r\nTransfer-Encoding:  Chunked \r\n\r\n5;x=\"y\"\r\n12345\r\nA \r\n0123456789\r\n0\r\n\r\n" + get, ""},
		{"chunks and a trailer", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: 1\r\nY: 2\r\n\r\n" + get, ""},
		{"empty lines between", "POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx\r\n\r\n" + get, ""},
		{"HTTP/1.0", "POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\nx", ""},
		{"not a framing header", "GET / HTTP/1.1\r\nContent_Length: 1\r\nX-Transfer-Encoding: gzip\r\n\r\n", ""},

		{"length and chunks", "POST / HTTP/1.1\r\nContent-Length: 5\r\ntransfer-encoding: chunked\r\n\r\n", "both"},
		{"chunks and length", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\ncontent-length: 5\r\n\r\n", "both"},
		{"length twice", "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", "twice"},
		{"length as a list", "POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n", "not a number"},
		{"length with a sign", "POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n", "not a number"},
		{"length in hex", "POST / HTTP/1.1\r\nContent-Length: 0x5\r\n\r\n", "not a number"},
		{"length of nothing", "POST / HTTP/1.1\r\nContent-Length:\r\n\r\n", "not a number"},
		{"length beyond 63 bits", "POST / HTTP/1.1\r\nContent-Length: 9223372036854775808\r\n\r\n", "not a number"},
		{"chunked in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.0"},
		{"folded", "GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", "folded"},
		{"folded with a tab", "GET / HTTP/1.1\r\nTransfer-Encoding:\r\n\tchunked\r\n\r\n", "folded"},
		{"bare LF", "GET / HTTP/1.1\nHost: a\n\n", "bare LF"},
		{"bare LF at the end of the head", "GET / HTTP/1.1\r\nHost: a\r\n\n", "bare LF"},
		{"bare CR", "GET / HTTP/1.1\r\nA: b\rContent-Length: 5\r\n\r\n", "CR in it"},
		{"two CRs", "GET / HTTP/1.1\r\nA: b\r\r\n\r\n", "CR in it"},
		{"500 headers", "GET / HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", 500) + "\r\n" + get, ""},
		{"501 headers", "GET / HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", 501) + "\r\n", "too many"},
		{"no version", "GET /\r\n\r\n", "request line"},
		{"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "request line"},
		{"HTTP/1.2", "GET / HTTP/1.2\r\n\r\n", "request line"},
		{"chunk size with a sign", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\n12345\r\n", "size"},
		{"chunk size with 0x", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n12345\r\n", "size"},
		{"chunk size beyond 63 bits", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n8000000000000000\r\n", "size"},
		{"chunk size with a bare LF", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\n12345\r\n", "bare LF"},
		{"chunk extension with a bare CR", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;a\rb\r\n12345\r\n", "CR in it"},
		{"chunk longer than its size", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123456\r\n", "longer"},
		{"trailer with a bare LF", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: 1\n\r\n", "bare LF"},
		{"a long request line", "GET /" + long + " HTTP/1.1\r\nHost: a\r\n\r\n" + get, ""},
		{"a long header", "GET / HTTP/1.0\r\nX: " + long + "\r\nContent-Length: 1\r\n\r\nx" + get, ""},
		{"a long list of codings", "POST / HTTP/1.1\r\nTransfer-Encoding: " + long + "\r\nContent-Length: 1\r\n\r\n", "both"},
		{"a long extension", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;" + long + "\r\n12345\r\n0\r\n" + long + "\r\n\r\n" + get, ""},
		{"a long request line without a version", "GET /" + long + "\r\n\r\n", "request line"},
		{"a long line with a CR", "GET / HTTP/1.1\r\nX: " + long + "\r" + long + "\r\n\r\n", "CR in it"},
		{"a long line with a bare LF", "GET / HTTP/1.1\r\nX: " + long + "\n\r\n", "bare LF"},
		{"a long length", "POST / HTTP/1.1\r\nContent-Length: " + strings.Repeat("0", 200) + "5\r\n\r\n12345", "not a number"},
		{"a long name that ends like another", "GET / HTTP/1.1\r\n" + long + "Content-Length: x\r\n\r\n", ""},
		{"a long size", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("0", 200) + "5\r\n12345\r\n", "size"},
		{"a long size with an extension", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("0", 63) + "5;" + long + "\r\n12345\r\n", "size"},
		{"in the second request", get + "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "twice"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, step := range []int{1, 2, 7, 64, 127, 4096, 1 << 20} {
				f := new(framing)
				got := scanAll(f, tc.data, step)
				if cap(f.partial) > 2*maxPartial {
					t.Errorf("in steps of %d: holds %d bytes of a line", step, cap(f.partial))
				}
				if (got == "") != (tc.objection == "") || !strings.Contains(got, tc.objection) {
					t.Errorf("in steps of %d: %q, want %q", step, got, tc.objection)
				}
			}
		})
	}
}

// FuzzFraming compares with net/http. Where framing has no objection the two must
// agree on where each request ends: that is all that it is for. And nothing of a
// head that it objects to may get past net/http.
func FuzzFraming(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\nPOST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc\r\nGET / HTTP/1.0\r\n\r\n"))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\nX: y\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc"))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 03\r\n\r\nabcGET / HTTP/1.1\nHost: a\n\n"))
	f.Add([]byte("POST /" + strings.Repeat("x", 150) + " HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 150) + "\r\nTransfer-Encoding: chunked\r\n\r\n3;" + strings.Repeat("x", 150) + "\r\nabc\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		scanner := new(framing)
		good, objection := scanner.scan(data)
		seen := data[:good]
		if objection != "" && scanner.inHead() {
			seen = append(bytes.Clone(seen), malformed...)
		}
		for _, step := range []int{1, 50, 130} {
			if got := scanAll(new(framing), string(data), step); got != objection {
				t.Fatalf("in steps of %d: %q, want %q of %q", step, got, objection, data)
			}
		}
		ends, err := requestEnds(seen)
		at := 0
		for i, end := range ends {
			follow := new(framing)
			if _, no := follow.scan(seen[at:end]); no != "" || !follow.inHead() || follow.state != between {
				t.Fatalf("request %d of %q ends at %d for net/http, but framing is in state %d, %d to go: %s", i, seen, end, follow.state, follow.remain, no)
			}
			at = end
		}
		if objection != "" && err == nil {
			t.Fatalf("objected (%s), but net/http read all of %q", objection, seen)
		}
	})
}

// requestEnds is where net/http sees the end of each request, and what it says to
// the first that it can't read.
func requestEnds(data []byte) (ends []int, err error) {
	src := bytes.NewReader(data)
	r := bufio.NewReader(src)
	offset := func() int { return len(data) - src.Len() - r.Buffered() }
	for offset() < len(data) {
		req, err := http.ReadRequest(r)
		if err != nil {
			return ends, err
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return ends, fmt.Errorf("body: %w", err)
		}
		if !req.ProtoAtLeast(1, 0) {
			return ends, fmt.Errorf("HTTP %s", req.Proto)
		}
		ends = append(ends, offset())
	}
	return ends, nil
}

// What a look at a usual call costs.
func BenchmarkFraming(b *testing.B) {
	call := []byte("POST /graphql HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: app/1.0\r\nContent-Type: application/json\r\n" +
		"Accept: application/json\r\nAccept-Encoding: gzip\r\nX-Request-Id: 7f3c1b2a\r\nContent-Length: 46\r\n\r\n" +
		`{"query":"{ accounts(limit: 1) { id name } }"}`)
	f := new(framing)
	b.ReportAllocs()
	b.SetBytes(int64(len(call)))
	for b.Loop() {
		if _, objection := f.scan(call); objection != "" {
			b.Fatal(objection)
		}
	}
}
