package wire

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A call has a buffer only while it writes or reads: a thousand may wait for a connection, and then
// for an answer.
func TestWaitingCallsHoldNoBuffers(t *testing.T) {
	const calls = 100
	var made atomic.Int64
	count := func(p *sync.Pool) {
		before := p.New
		p.New = func() any { made.Add(1); return before() }
		t.Cleanup(func() { p.New = before })
	}
	poison = false // which makes a new buffer each time
	defer func() { poison = true }()
	count(&buffers)
	count(&readers)

	var dialling, arrived sync.WaitGroup
	dialling.Add(calls)
	arrived.Add(calls)
	answer, connect := make(chan struct{}), make(chan struct{})
	addr, _ := serve(t, func(conn net.Conn, from *bufio.Reader, _ int) {
		_, _, _ = readCall(from)
		arrived.Done()
		<-answer
		io.WriteString(conn, okAnswer)
	})
	cl := newClient(t, func(c *Config) {
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dialling.Done()
			<-connect
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	})
	var running sync.WaitGroup
	for range calls {
		running.Go(func() {
			if status, _, err := call(cl, request(t, t.Context(), "POST", "http://"+addr, strings.NewReader("x"))); status != 200 {
				t.Error(status, err)
			}
		})
	}
	dialling.Wait()
	if n := made.Load(); n > 0 {
		t.Errorf("%d buffers for %d calls that wait for a connection", n, calls)
	}
	close(connect)
	arrived.Wait()
	// With the race detector on, a pool drops some of what it is given.
	if n := made.Load(); n > calls {
		t.Errorf("%d buffers for %d calls that wait for an answer", n, calls)
	}
	close(answer)
	running.Wait()
}
