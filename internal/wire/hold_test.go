package wire

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
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

// RoundTrip closes the body of a call that is not sent, as every RoundTripper does.
func TestUnsentBodiesAreClosed(t *testing.T) {
	addr, _ := serve(t, func(net.Conn, *bufio.Reader, int) {})
	for name, change := range map[string]func(*http.Request, *Config){
		"no connection": func(_ *http.Request, c *Config) {
			c.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, errBroken }
		},
		"bad header": func(r *http.Request, _ *Config) { r.Header["X"] = []string{"a\nb"} },
	} {
		body := &closeable{Reader: strings.NewReader("x")}
		req := request(t, t.Context(), "POST", "http://"+addr, body)
		cl := newClient(t, func(c *Config) { change(req, c) })
		if _, _, err := call(cl, req); err == nil || !body.closed {
			t.Errorf("%s: %v, closed: %v", name, err, body.closed)
		}
	}
}

type closeable struct {
	io.Reader
	closed bool
}

func (c *closeable) Close() error { c.closed = true; return nil }
