// Package trial is for tests that run programs: what they print while they run, a
// port for them to listen on, and the patience that it takes.
package trial

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"
)

// Output gathers what a program prints, and can be read meanwhile.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Eventually waits for something that another goroutine or process brings about.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for range 6000 {
		if f() {
			return
		}
		time.Sleep(10 * time.Millisecond) // real processes and sockets: nothing to wait on
	}
	t.Fatalf("in 60 s: not %s", what)
}

// FreeAddress is a loopback address that nobody listened on a moment ago.
func FreeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
