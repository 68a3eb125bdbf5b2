package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"usher/internal/logs"
	"usher/internal/testkit"
)

func TestOperation(t *testing.T) {
	long := strings.Repeat("x", 2*maxName)
	for _, tc := range []struct{ name, body, want string }{
		{"operationName", `{"query":"query A { a } query B { b }","operationName":"B","variables":{}}`, "B"},
		{"operationName first", `{"operationName":"B","query":"query A { a }"}`, "B"},
		{"first operation", `{"query":"query A { a } query B { b }"}`, "A"},
		{"null", `{"operationName":null,"query":"mutation Add($x: Int) { add(x: $x) }"}`, "Add"},
		{"empty", `{"operationName":"","query":"subscription S { s }"}`, "S"},
		{"after variables", `{"variables":{"query":"query No { n }","a":[1,[2],{"operationName":"No"}]},"query":"query Yes { y }"}`, "Yes"},
		{"several at once", `[{"query":"query A { a }"},{"query":"query B { b }"}]`, "A"},
		{"none", `{"query":"{ accounts { id } }"}`, ""},
		{"none, with a word", `{"query":"query ($a: Int) { accounts { id } }"}`, ""},
		{"comments", `{"query":"# query No { n }\n,\n\ufeffquery # more\n Yes { y }"}`, "Yes"},
		{"fragment before", `{"query":"fragment F on A @d(a: {b: \"}\"}, c: [\"\\\"{\"]) { a(x: \"\"\"}\\\"\"\" {\"\"\") # }\n { b } }\nquery Yes { ...F }"}`, "Yes"},
		{"fragment alone", `{"query":"fragment F on A { a }"}`, ""},
		{"fragment without an end", `{"query":"fragment F on A { a"}`, ""},
		{"string without an end", `{"query":"fragment F on A { a(b: \"c\\"}`, ""},
		{"quotes without an end", `{"query":"fragment F on A ` + strings.Repeat(`\\\"a`, maxSearched/10) + `"}`, ""},
		{"no name", `{"operationName":"not a name; password=hunter2","query":"{ a }"}`, ""},
		{"name in other letters", `{"operationName":"Größe","query":"query Größe { a }"}`, ""},
		{"control characters", `{"operationName":"A\nlevel=ERROR","query":""}`, ""},
		{"long", `{"operationName":"` + long + `"}`, long[:maxName]},
		{"long in the query", `{"query":"query ` + long + ` { a }"}`, long[:maxName]},
		{"not JSON", `query A { a }`, ""},
		{"breaks off", `{"operationName":"A","query":"`, ""},
		{"other JSON", `"query A { a }"`, ""},
		{"empty list", `[]`, ""},
		{"nothing", ``, ""},
		{"beyond what is searched", `{"variables":"` + strings.Repeat("x", maxSearched) + `","operationName":"A"}`, ""},
	} {
		if got := operationIn(iotest.HalfReader(strings.NewReader(tc.body))); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// Whatever is sent, what comes out is a GraphQL name.
func FuzzOperation(f *testing.F) {
	f.Add([]byte(`{"query":"fragment F on A { a(x: \"\"\"}\") } query Yes { ...F }"}`), "fragment F on A { a } query B { b }")
	f.Add([]byte(`[{"variables":[{}],"operationName":"A"}]`), "query # x\n A")
	f.Fuzz(func(t *testing.T, body []byte, document string) {
		for _, name := range []string{operationIn(bytes.NewReader(body)), named("", document)} {
			if len(name) > maxName || name != "" && !nameForm.MatchString(name) {
				t.Errorf("%q", name)
			}
		}
	})
}

func TestRequestID(t *testing.T) {
	for value, want := range map[string]string{
		"7f3c1b2a": "7f3c1b2a", "a b": "", "a\nb": "", "größe": "", strings.Repeat("x", maxName+1): "", "": "",
	} {
		if got := requestID(http.Header{"X-Request-Id": {value}}); got != want {
			t.Errorf("%q: %q", value, got)
		}
	}
}

// The line of a call that failed says which one it was; that of one that succeeded does
// not, as nobody looks into its body.
func TestLogNamesTheOperation(t *testing.T) {
	var status int
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }),
		func(c *Config) { c.ReplayLimit = 1 << 20 })
	const secretWord = "hunter2"
	send := func(method, rawQuery, body string) string {
		before := len(r.log.String())
		req, err := http.NewRequest(method, r.URL+"/graphql?"+rawQuery, strings.NewReader(body))
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
		testkit.Eventually(t, "logged", func() bool { return strings.Contains(r.log.String()[before:], " status=") })
		return r.log.String()[before:]
	}
	body := func(pad int) string {
		b, _ := json.Marshal(map[string]any{"query": "query Accounts { a }", "variables": map[string]string{"a": secretWord, "pad": strings.Repeat("x", pad)}})
		return string(b)
	}
	for name, line := range map[string]func() string{
		"small": func() string { return send("POST", "", body(0)) },
		"large": func() string { return send("POST", "", body(100<<10)) },
		"GET":   func() string { return send("GET", "query="+url.QueryEscape("query Accounts { a }"), "") },
	} {
		status = 500
		if got := line(); !strings.Contains(got, "operation=Accounts trace_id=0af7651916cd43dd8448eb211c80319c request_id=7f3c1b2a") || strings.Contains(got, secretWord) {
			t.Errorf("%s that failed: %s", name, got)
		}
		status = 200
		if got := line(); strings.Contains(got, "Accounts") {
			t.Errorf("%s that did not: %s", name, got)
		}
	}
	status = 500
	if got := send("POST", "", ""); strings.Contains(got, "operation") {
		t.Errorf("without a body: %s", got)
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
