package main

import (
	"bufio"
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
	want := calls{requests: 18158, took: time.Second, p50: 3010 * time.Microsecond, p99: 950 * time.Microsecond}
	if got, err := parseWrk(out); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	want.refused = 7 + 1 + 2 + 3 + 4
	bad := out + "  Socket errors: connect 1, read 2, write 3, timeout 4\n  Non-2xx or 3xx responses: 7\nRequests/sec: 1\n"
	if got, err := parseWrk(bad); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := parseWrk("unable to connect"); err == nil {
		t.Error("what says nothing is taken for a result")
	}
}

func TestReadAnswer(t *testing.T) {
	r := bufio.NewReader(strings.NewReader("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc" +
		"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n" + "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"))
	for _, want := range []int{200, 503} {
		if status, err := readAnswer(r); err != nil || status != want {
			t.Errorf("got %d, %v, want %d", status, err, want)
		}
	}
	if status, err := readAnswer(r); err == nil {
		t.Errorf("an answer that breaks off is %d", status)
	}
}

// Parts are measured at different times: each replaces its own section alone.
func TestMerged(t *testing.T) {
	file := merged("", "Receivers", "## Receivers\n\nr1\n")
	file = merged(file, "Outbound", "## Outbound\n\no1\n\n### Aims\n")
	file = merged(strings.Replace(file, "## Receivers", "## Gone\n\nx\n\n## Receivers", 1), "Outbound", "## Outbound\n\no2\n")
	if want := title + "\n## Outbound\n\no2\n\n## Receivers\n\nr1\n"; file != want {
		t.Errorf("got %q", file)
	}
}

// A column for each scenario, a row for each peer that was measured; what was aimed at is not in the file.
func TestOutboundTables(t *testing.T) {
	alone := scenario{plain, sizes[0], 1}
	reads := func(micros, beside float64) []reading {
		return []reading{{calls: calls{requests: 1000, took: time.Second, p50: 50 * time.Microsecond, p99: time.Millisecond}, cpu: micros / 1e6, beside: beside / 1e6}}
	}
	f := &findings{court: &court{bench: new(bench)}, footprints: map[string]*footprint{ours: new(footprint)}, readings: map[scenario]map[string][]reading{
		scenarios[0]: {ours: reads(30, 0), asItIs: reads(100, 30)}, alone: {ours: reads(50, 0), direct: reads(0, 0)}}}
	got := (&section{name: outboundPart, facts: []string{"usher"}, tables: f.tables()}).markdown(false)
	for _, want := range []string{
		"1 KB, 64 | 1 KB, 1 |", "| ReverseProxy | 100.0 (0.30) |", "| usher        |         30.0 |    50.0 |", "calls a second: 1000, 1000.", "| direct       |           | 0.05/1.00 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "≤") {
		t.Errorf("aims are in the file:\n%s", got)
	}
}
