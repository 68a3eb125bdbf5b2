package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A call without a body leaves framed as it came: there are services that refuse
// chunks, and others that insist on a length.
func TestEmptyBody(t *testing.T) {
	type framing struct {
		Length  []string
		Chunked bool
	}
	var seen framing
	r := newRig(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = framing{r.Header["Content-Length"], len(r.TransferEncoding) > 0}
		if body, err := io.ReadAll(r.Body); len(body) > 0 || err != nil {
			t.Errorf("body %q, %v", body, err)
		}
	}))
	for _, method := range []string{"POST", "PUT", "GET", "DELETE", "QUERY"} {
		for header, want := range map[string]framing{
			"":                               {nil, false},
			"Content-Length: 0\r\n":          {[]string{"0"}, false},
			"Transfer-Encoding: chunked\r\n": {nil, true},
		} {
			end := ""
			if want.Chunked {
				end = "0\r\n\r\n"
			}
			conn, err := net.Dial("tcp", r.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "%s /graphql HTTP/1.1\r\nHost: localhost\r\n%s\r\n%s", method, header, end)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if status, _ := read(t, resp); status != 200 || !reflect.DeepEqual(seen, want) {
				t.Errorf("%s with %q: %d, %+v", method, header, status, seen)
			}
		}
	}
}

func TestBrokenRequestBody(t *testing.T) {
	r := newRig(t, nil)
	for name, raw := range map[string]string{
		"breaks off":         "Content-Length: 100\r\n\r\n{",
		"bad chunk":          "Transfer-Encoding: chunked\r\n\r\nzz\r\n{",
		"chunks break off":   "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
		"large, breaks off":  fmt.Sprintf("Content-Length: %d\r\n\r\n{", replayLimit*2),
		"large chunk, ditto": fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s", replayLimit*2, strings.Repeat("x", replayLimit+10)),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", r.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			io.WriteString(conn, "POST /graphql HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+raw)
			conn.(*net.TCPConn).CloseWrite()
			answer, _ := io.ReadAll(conn)
			if !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") || !strings.Contains(string(answer), "BAD_REQUEST") {
				t.Errorf("got %s", answer)
			}
		})
	}
	if ok, unauthorized := r.billing.Calls(); ok+unauthorized != 0 {
		t.Errorf("%d broken calls were taken by the service", ok+unauthorized)
	}
}

// The patience with a caller's body ends with the body: an answer may take longer,
// also to a body that streams.
func TestAnswerSlowerThanBodyPatience(t *testing.T) {
	t.Parallel() // it waits
	const patience = 50 * time.Millisecond
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		time.Sleep(5 * patience)
		io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		time.Sleep(5 * patience)
		io.WriteString(w, " last")
	}))
	r.handler.patience = patience
	for _, size := range []int{10, replayLimit + 10} {
		for _, chunked := range []bool{false, true} {
			var body io.Reader = strings.NewReader(strings.Repeat("x", size))
			if chunked {
				body = io.MultiReader(body)
			}
			resp, err := http.Post(r.URL+"/graphql", "application/json", body)
			if err != nil {
				t.Fatal(err)
			}
			if status, answer := read(t, resp); status != 200 || answer != "first last" {
				t.Errorf("%d bytes, chunked %v: %d %q", size, chunked, status, answer)
			}
		}
	}
}

// A body that stands still is given up.
func TestStalledBody(t *testing.T) {
	t.Parallel() // it waits
	r := newRig(t, nil)
	r.handler.patience, r.handler.drain = 50*time.Millisecond, 100*time.Millisecond
	conn, err := net.Dial("tcp", r.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "POST /graphql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	answer, _ := io.ReadAll(conn)
	if !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Errorf("got %q", answer)
	}
}
