package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// oldCall makes a call as HTTP/1.0 has it, and returns its connection.
func oldCall(t *testing.T, r *rig, method, query string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", r.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "%s /graphql?%s HTTP/1.0\r\nHost: localhost\r\n\r\n", method, query)
	return conn
}

// oldAnswer is what such a caller gets; an error means that it can see that something is missing.
func oldAnswer(conn net.Conn) (*http.Response, string, error) {
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, "", err
	}
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

const answerSize = 100 << 10

// An answer of unknown length has one for a caller of HTTP/1.0, unless it is very long or an event stream.
func TestHTTP10(t *testing.T) {
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var size int
		kind := ""
		fmt.Sscan(strings.ReplaceAll(r.URL.RawQuery, "+", " "), &size, &kind)
		switch kind {
		case "known":
			w.Header().Set("Content-Length", fmt.Sprint(size))
		case "events":
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		case "trailer":
			w.Header().Set("Trailer", "X-Sum")
			defer w.Header().Set("X-Sum", "1")
		case "close":
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "HTTP/1.0 200 OK\r\n\r\n%s", strings.Repeat("x", size))
			return
		}
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		io.WriteString(w, strings.Repeat("x", size))
	}))
	for _, tc := range []struct {
		size   int
		kind   string
		length int64
	}{
		{0, "", 0},
		{1, "", 1},
		{answerSize, "", answerSize},
		{answerSize, "trailer", answerSize},
		{answerSize, "close", answerSize},
		{answerSize, "known", answerSize},
		{1 << 20, "", 1 << 20},
		{1<<20 + 1, "", -1},
		{4 << 20, "known", 4 << 20},
		{4 << 20, "", -1},
		{1, "events", -1},
	} {
		resp, body, err := oldAnswer(oldCall(t, r, "GET", fmt.Sprint(tc.size, "+", tc.kind)))
		if err != nil || resp.StatusCode != 200 || resp.ContentLength != tc.length || body != strings.Repeat("x", tc.size) || resp.Trailer != nil || resp.Header["Trailer"] != nil {
			t.Errorf("%+v: %v, %d bytes, %v", tc, resp, len(body), err)
		}
	}
	// What has no body gets no length.
	resp, err := http.ReadResponse(bufio.NewReader(oldCall(t, r, "HEAD", "5")), &http.Request{Method: "HEAD"})
	if err != nil || resp.Header["Content-Length"] != nil {
		t.Error(resp, err)
	}
}

// An answer that the service or usher breaks off does not look whole to a caller of HTTP/1.0, but an
// event stream is passed on as it comes.
func TestHTTP10BreaksOff(t *testing.T) {
	for _, tc := range []struct {
		name, kind string
		size       int
		status     int // that the caller gets to see
	}{
		{"short", "", 100, 502},
		{"long", "", 2 << 20, 200},
		{"known", "known", 100, 200},
		{"events", "text/event-stream", 100, 200},
	} {
		for _, cut := range []string{"by the service", "by usher"} {
			t.Run(tc.name+" "+cut, func(t *testing.T) {
				sent := make(chan struct{})
				r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if tc.kind == "known" {
						w.Header().Set("Content-Length", fmt.Sprint(2*tc.size))
					} else {
						w.Header().Set("Content-Type", tc.kind)
					}
					io.WriteString(w, strings.Repeat("x", tc.size))
					w.(http.Flusher).Flush()
					close(sent)
					if cut == "by the service" {
						panic(http.ErrAbortHandler)
					}
					<-r.Context().Done()
				}))
				conn := oldCall(t, r, "GET", "")
				<-sent
				from := bufio.NewReader(conn)
				if cut == "by usher" {
					if tc.status == 200 { // the beginning comes before the end does
						if _, err := from.Peek(1); err != nil {
							t.Fatal(err)
						}
					}
					r.server.Close()
				}
				answer, err := io.ReadAll(from)
				head, _, _ := strings.Cut(string(answer), "\r\n")
				switch {
				case cut == "by usher" && tc.status == 502:
					if len(answer) > 0 {
						t.Errorf("answered %q", answer)
					}
				case tc.status == 502:
					if _, body, _ := strings.Cut(string(answer), "\r\n\r\n"); head != "HTTP/1.0 502 Bad Gateway" || code(t, body) != "UPSTREAM_UNREACHABLE" {
						t.Errorf("answered %q, %v", answer, err)
					}
				case tc.kind == "known":
					if !strings.Contains(string(answer), "\r\nContent-Length: 200\r\n") {
						t.Errorf("answered %q, %v", answer, err)
					}
				case !errors.Is(err, syscall.ECONNRESET):
					t.Errorf("%q and %d bytes look whole: %v", head, len(answer), err)
				}
			})
		}
	}
}
