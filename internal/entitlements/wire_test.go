package entitlements

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/testkit/pipes"
)

// wired serves one connection in a synctest bubble, and returns its other end.
func wired(t *testing.T, h http.Handler) net.Conn {
	l := make(pipes.Listener)
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return l.Dial(t)
}

// ended closes a connection, and waits until the server has noticed.
func ended(conn net.Conn) {
	conn.Close()
	time.Sleep(time.Second)
}

// A check whose body never comes is answered at once. Some web servers pass on the visitor's Content-Length, but
// not the body.
func TestCheckWithoutItsBody(t *testing.T) {
	for _, framing := range []string{"Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n"} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			conn := wired(t, New(config(t)))
			go io.WriteString(conn, "GET /v1/check?tenant=acme&feature=users HTTP/1.1\r\nHost: 127.0.0.1:8070\r\n"+framing+"\r\n")
			answers := bufio.NewReader(conn)
			resp, err := http.ReadResponse(answers, nil)
			if err != nil || resp.StatusCode != 204 || time.Since(begin) != 0 {
				t.Errorf("%v, %v, after %v", resp, err, time.Since(begin))
			}
			conn.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := answers.ReadByte(); err != io.EOF || time.Since(begin) > 2*bodyPatience {
				t.Errorf("the connection was not closed: %v after %v", err, time.Since(begin))
			}
			ended(conn)
		})
	}
}

// If the body of a question stops halfway, the answer is an error, soon.
func TestContextThatStopsComing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		conn := wired(t, New(config(t)))
		go io.WriteString(conn, "POST /ofrep/v1/evaluate/flags/users HTTP/1.1\r\nHost: 127.0.0.1:8070\r\nContent-Length: 100\r\n\r\n{")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != 400 || errorCode(t, resp) != "PARSE_ERROR" || time.Since(begin) > bodyPatience {
			t.Errorf("%v, %v, after %v", resp, err, time.Since(begin))
		}
		ended(conn)
	})
}
