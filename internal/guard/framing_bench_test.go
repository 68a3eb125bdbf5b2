package guard

import "testing"

// What a look at a usual call costs.
func BenchmarkFraming(b *testing.B) {
	call := []byte("POST /graphql HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: app/1.0\r\nContent-Type: application/json\r\n" +
		"Accept: application/json\r\nAccept-Encoding: gzip\r\nX-Request-Id: 7f3c1b2a\r\nContent-Length: 46\r\n\r\n" +
		`{"query":"{ accounts(limit: 1) { id name } }"}`)
	f := new(framing)
	b.ReportAllocs()
	b.SetBytes(int64(len(call)))
	for b.Loop() {
		if _, objection := f.scan(call); objection != "" {
			b.Fatal(objection)
		}
	}
}
