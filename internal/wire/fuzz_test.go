package wire

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// canned is a connection on which everything has come already.
type canned struct {
	net.Conn
	answer *bytes.Reader
	closed bool
}

func (c *canned) Read(p []byte) (int, error)  { return c.answer.Read(p) }
func (c *canned) Write(p []byte) (int, error) { return len(p), nil }
func (c *canned) Close() error                { c.closed = true; return c.Conn.Close() }

// reference is what http.ReadResponse makes of it, and how much of it that takes; -1 where
// the connection is not to be used again in any case.
func reference(data []byte, method string) (words string, taken int) {
	src := bytes.NewReader(data)
	from := bufio.NewReader(src)
	for {
		resp, err := http.ReadResponse(from, &http.Request{Method: method})
		switch {
		case err != nil:
			return "failed", -1
		case resp.StatusCode == 101 || resp.StatusCode < 100:
			return "failed", -1
		case resp.StatusCode < 200:
			continue
		}
		body, err := io.ReadAll(resp.Body)
		words = fmt.Sprintf("%d %q %v %v", resp.StatusCode, body, resp.Header, resp.Trailer)
		if err != nil {
			return words + " broke off", -1
		}
		if resp.Close {
			return words, -1
		}
		return words, len(data) - src.Len() - from.Buffered()
	}
}

// FuzzAnswer holds what a Client makes of an answer beside what http.ReadResponse does,
// and a connection goes back to the pool only if the answer ended where the bytes did.
func FuzzAnswer(f *testing.F) {
	for _, answer := range wholeAnswers {
		f.Add([]byte(answer), false)
		f.Add([]byte(answer+"x"), false)
	}
	for _, answer := range oddAnswers {
		f.Add([]byte(answer), false)
		f.Add([]byte(answer), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, head bool) {
		method := map[bool]string{true: "HEAD", false: "GET"}[head]
		if len(data) > 4<<10 {
			t.Skip() // of the bounds there are other tests
		}
		near, far := net.Pipe()
		defer far.Close()
		conn := &canned{Conn: near, answer: bytes.NewReader(data)}
		cl := New(Config{MaxIdle: 1, IdleTimeout: 1 << 40, Dial: func(context.Context, string, string) (net.Conn, error) { return conn, nil }})
		defer cl.CloseIdleConnections()
		req, err := http.NewRequest(method, "http://service", nil)
		if err != nil {
			t.Fatal(err)
		}
		got := "failed"
		resp, err := cl.RoundTrip(req)
		if err == nil {
			body, err := io.ReadAll(resp.Body)
			got = fmt.Sprintf("%d %q %v %v", resp.StatusCode, body, resp.Header, resp.Trailer)
			if err != nil {
				got += " broke off"
			}
			resp.Body.Close()
		}
		want, taken := reference(data, method)
		if got != want {
			t.Errorf("%s\nhttp.ReadResponse: %s", got, want)
		}
		if kept := len(cl.pool.idle) == 1; kept == conn.closed || kept && taken < 0 {
			t.Errorf("kept %v, closed %v, after %s", kept, conn.closed, got)
		} else if kept && taken < len(data) && cl.pool.idle[0].isQuiet() {
			t.Errorf("%d bytes were left, and would be the next answer", len(data)-taken)
		}
		if err != nil && len(data) > 20 && strings.Contains(err.Error(), string(data[:20])) {
			t.Errorf("the error quotes what has come: %v", err)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(http.TimeFormat) }
		for value, want := range map[string]time.Duration{
			"": 0, "30": 30 * time.Second, "0": 0, "-5": 0, "soon": 0, "99999999999999999999": (1 << 32) * time.Second, "86400": 24 * time.Hour,
			at(time.Minute): time.Minute, at(-time.Minute): 0, at(24 * time.Hour): 24 * time.Hour,
		} {
			if got := RetryAfter(http.Header{"Retry-After": {value}}); got != want {
				t.Errorf("%q: %v, want %v", value, got, want)
			}
		}
	})
}

// FuzzRetryAfter: whatever a server writes there is a bounded, positive wait or none.
func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "0", "5", "-5", "+5", "1.5", "99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT", "Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d := RetryAfter(http.Header{"Retry-After": {s}}); d < 0 {
			t.Errorf("%q: %v", s, d)
		}
	})
}
