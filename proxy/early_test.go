package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/testkit/pipes"
	"usher/tokens"
)

// A service may answer while the body is still on its way to it. The rest of the body reaches
// it whole: net/http must not read a part of it to throw it away.
func TestAnswerWhileTheBodyStreams(t *testing.T) {
	t.Parallel()
	const piece = 1000
	for _, chunked := range []bool{true, false} {
		t.Run(fmt.Sprintf("chunked %v", chunked), func(t *testing.T) {
			got := make(chan string, 1)
			r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				rc := http.NewResponseController(w)
				if err := rc.EnableFullDuplex(); err != nil {
					t.Error(err)
				}
				io.WriteString(w, "begun")
				rc.Flush()
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				got <- string(body)
				io.WriteString(w, ", done")
			}))
			var want strings.Builder
			for i := range 2 * replayLimit / piece {
				want.WriteString(strings.Repeat(string(rune('a'+i%26)), piece))
			}
			body, writer := io.Pipe()
			req, err := http.NewRequest("POST", r.URL+"/graphql", body)
			if err != nil {
				t.Fatal(err)
			}
			if !chunked {
				req.ContentLength = int64(want.Len())
			}
			begun := make(chan struct{})
			go func() {
				defer writer.Close()
				first := replayLimit + piece
				io.WriteString(writer, want.String()[:first])
				<-begun
				io.WriteString(writer, want.String()[first:])
			}()
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			close(begun)
			if status, answer := read(t, resp); status != 200 || answer != "begun, done" {
				t.Errorf("%d %q", status, answer)
			}
			if got := <-got; got != want.String() {
				t.Errorf("the service got %d bytes of %d", len(got), want.Len())
			}
		})
	}
}

// A connection whose caller was answered before its body had ended never takes the rest of that
// body for a call, or mixes up the answers.
func TestAfterAnEarlyAnswer(t *testing.T) {
	t.Parallel()
	const size, first = 2 * replayLimit, replayLimit + 1000
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
		io.Copy(io.Discard, conn)
	}))
	r.handler.drain = time.Second
	byLength := fmt.Sprintf("Content-Length: %d\r\n\r\n", size)
	chunked := fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", size)
	const next = "GET /graphql?next HTTP/1.1\r\nHost: localhost\r\n\r\n"
	rest := strings.Repeat("x", size-first)
	for _, tc := range []struct{ head, then string }{
		{byLength, rest + next},
		{chunked, rest + "\r\n0\r\n\r\n" + next},
		{byLength, ""}, // it waits for usher
		{chunked, ""},
	} {
		conn, err := net.Dial("tcp", r.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		from := bufio.NewReader(conn)
		io.WriteString(conn, "POST /graphql HTTP/1.1\r\nHost: localhost\r\n"+tc.head+strings.Repeat("x", first))
		resp, err := http.ReadResponse(from, nil)
		if err != nil {
			t.Fatal(err)
		}
		if status, answer := read(t, resp); status != 413 || answer != "big" || !resp.Close {
			t.Errorf("%d %q, close %v", status, answer, resp.Close)
		}
		io.WriteString(conn, tc.then)
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if after, err := io.ReadAll(from); len(after) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after it: %q, %v", after, err)
		}
	}
}

// A caller that waits for 100 Continue before it sends its body gets usher's own answer at once.
func TestRefusedBeforeTheBody(t *testing.T) {
	r := newRig(t, nil)
	synctest.Test(t, func(t *testing.T) {
		cfg := r.handler.cfg
		cfg.Source = tokens.NewSource(&tokens.Client{URL: "http://down/", Secret: func() string { return "" }, HTTP: down{}}, cfg.Log)
		l := make(pipes.Listener)
		server := &http.Server{Handler: New(cfg)}
		go server.Serve(l)
		defer server.Close()
		near := l.Dial(t)
		begin := time.Now()
		io.WriteString(near, "POST /graphql HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(near), nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != 503 || time.Since(begin) > 0 {
			t.Errorf("%d after %v", resp.StatusCode, time.Since(begin))
		}
		io.Copy(io.Discard, near) // until usher has closed it
	})
}

// A caller gets usher's own 100 Continue before anything of the service: both at once would be mixed
// up.
func TestContinueBeforeHints(t *testing.T) {
	t.Parallel()
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 20 {
			w.WriteHeader(http.StatusEarlyHints)
		}
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	}))
	body := strings.Repeat("x", 2*replayLimit)
	for range 10 {
		conn, err := net.Dial("tcp", r.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /graphql HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(body))
		from := bufio.NewReader(conn)
		for i := range 22 {
			resp, err := http.ReadResponse(from, nil)
			if err != nil {
				t.Fatal(err)
			}
			want := http.StatusEarlyHints
			switch i {
			case 0:
				want = http.StatusContinue
				io.WriteString(conn, body)
			case 21:
				want = http.StatusOK
			}
			if resp.StatusCode != want {
				t.Fatalf("answer %d is %d", i, resp.StatusCode)
			}
		}
	}
}

// A call whose body is too large to be kept reaches the service as soon as that is known, and not only when
// its caller sends the next chunk: it may wait for the answer's beginning before it does.
func TestStreamedAtTheEndOfAChunk(t *testing.T) {
	t.Parallel()
	began := make(chan struct{})
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(began)
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	}))
	conn, err := net.Dial("tcp", r.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /graphql HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n",
		replayLimit+1, strings.Repeat("x", replayLimit+1))
	<-began
	io.WriteString(conn, "0\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if status, answer := read(t, resp); status != 200 || answer != fmt.Sprint(replayLimit+1, nil) {
		t.Errorf("%d %q", status, answer)
	}
}

// down is a token endpoint that cannot be reached.
type down struct{}

func (down) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("down") }
