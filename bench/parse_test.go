package main

import (
	"bufio"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseWrk(t *testing.T) {
	const out = `Running 1s test @ http://127.0.0.1:1/graphql?1024
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     4.33ms    4.52ms  54.23ms   89.53%
    Req/Sec    18.23k     1.59k   20.42k    70.00%
  Latency Distribution
     50%    3.01ms
     75%    5.11ms
     90%    9.34ms
     99%  950.00us
  18158 requests in 1.00s, 22.65MB read
`
	want := calls{Requests: 18158, Took: time.Second, P50: 3010 * time.Microsecond, P99: 950 * time.Microsecond}
	if got, err := parseWrk(out); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	want.Refused = 7 + 1 + 2 + 3 + 4
	bad := out + "  Socket errors: connect 1, read 2, write 3, timeout 4\n  Non-2xx or 3xx responses: 7\nRequests/sec: 1\n"
	if got, err := parseWrk(bad); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := parseWrk("unable to connect"); err == nil {
		t.Error("what says nothing is taken for a result")
	}
}

func TestParseBenchmarks(t *testing.T) {
	order, all := parseBenchmarks(`goos: linux
BenchmarkToken  	 1000	       130.5 ns/op	       0 B/op	       0 allocs/op
BenchmarkParseAndValidate/parse_and_validate 	 50	 24700 ns/op	  40.70 MB/s	 8904 B/op	 97 allocs/op
BenchmarkToken  	 1000	       120 ns/op	       0 B/op	       0 allocs/op
PASS
`)
	if want := []string{"Token", "ParseAndValidate/parse and validate"}; !reflect.DeepEqual(order, want) {
		t.Errorf("order %q", order)
	}
	if want := []measure{{130.5, 0, 0}, {120, 0, 0}}; !reflect.DeepEqual(all["Token"], want) {
		t.Errorf("Token: %v", all["Token"])
	}
	if want := []measure{{24700, 8904, 97}}; !reflect.DeepEqual(all[order[1]], want) {
		t.Errorf("%s: %v", order[1], all[order[1]])
	}
}

func TestReadAnswer(t *testing.T) {
	r := bufio.NewReader(strings.NewReader("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc" +
		"HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n" +
		"HTTP/1.1 204 No Content\r\n\r\n" + "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"))
	for _, want := range []int{200, 503, 204} {
		if status, err := readAnswer(r); err != nil || status != want {
			t.Errorf("got %d, %v, want %d", status, err, want)
		}
	}
	if status, err := readAnswer(r); err == nil {
		t.Errorf("an answer that breaks off is %d", status)
	}
}
