package proxy

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"usher/internal/stdlog"
	"usher/internal/testkit"
)

// Nothing that a service sends reaches the log, whether it can't be read, or comes
// unasked after an answer; nor does an answer of usher's own show it.
func TestNothingOfAnAnswerIsLogged(t *testing.T) {
	const customer = "jane@example.com"
	for name, answer := range map[string]string{
		"no HTTP":              customer + "\r\n\r\n",
		"no status":            "HTTP/1.1 " + customer + "\r\n\r\n",
		"no header":            "HTTP/1.1 200 OK\r\n" + customer + "\r\n\r\n",
		"odd header":           "HTTP/1.1 200 OK\r\n" + customer + " : x\r\n\r\n",
		"odd length":           "HTTP/1.1 200 OK\r\nContent-Length: " + customer + "\r\n\r\n",
		"odd transfer":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + customer + "\r\n\r\n",
		"odd chunk":            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + customer + "\r\n",
		"unasked, after":       "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + customer + "\r\n\r\n",
		"unasked, after empty": "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 " + customer + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go sayAlways(l, answer)
			r := newRig(t, nil, func(c *Config) { c.Target = &url.URL{Scheme: "http", Host: l.Addr().String(), Path: "/graphql"} })
			defer stdlog.TakeOver(slog.New(slog.NewTextHandler(r.log, nil)))()
			for i := range 3 {
				resp, err := http.Post(r.URL+"/graphql", "application/json", strings.NewReader(query))
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(resp.Body) // it may break off
				resp.Body.Close()
				if strings.Contains(string(body), customer) {
					t.Errorf("call %d is answered %s", i, body)
				}
			}
			testkit.Eventually(t, "logged", func() bool { return strings.Count(r.log.String(), " status=") == 3 })
			if log := r.log.String(); strings.Contains(log, "jane") || strings.Contains(log, "example.com") {
				t.Errorf("the log: %s", log)
			}
		})
	}
}

// sayAlways answers each request with these bytes.
func sayAlways(l net.Listener, answer string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			for from := bufio.NewReader(conn); ; {
				req, err := http.ReadRequest(from)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				fmt.Fprint(conn, answer)
			}
		}()
	}
}
