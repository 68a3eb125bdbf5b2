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

	"usher/internal/logs"
	"usher/internal/testkit"
)

func TestRequestID(t *testing.T) {
	for value, want := range map[string]string{
		"7f3c1b2a": "7f3c1b2a", "a b": "", "a\nb": "", "größe": "", strings.Repeat("x", maxID+1): "", "": "",
	} {
		if got := requestID(http.Header{"X-Request-Id": {value}}); got != want {
			t.Errorf("%q: %q", value, got)
		}
	}
}

// The line of a call that failed has the caller's own ids, and nothing of its body.
func TestLogNamesTheCall(t *testing.T) {
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))
	req, err := http.NewRequest("POST", r.URL+"/graphql?q=hunter2", strings.NewReader(`{"query":"query hunter2 { a }"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	req.Header.Set("X-Request-Id", "7f3c1b2a")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	read(t, resp)
	testkit.Eventually(t, "logged", func() bool { return strings.Contains(r.log.String(), " status=500") })
	got := r.log.String()
	if !strings.Contains(got, "trace_id=0af7651916cd43dd8448eb211c80319c") || !strings.Contains(got, "request_id=7f3c1b2a") || strings.Contains(got, "hunter2") {
		t.Error(got)
	}
}

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
		"odd trailer":          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + customer + "\r\n\r\n",
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
			defer logs.TakeOver(slog.New(slog.NewTextHandler(r.log, nil)))()
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
