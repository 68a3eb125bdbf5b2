package webhookgate

import (
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"sync/atomic"
)

// Fenced is a context for a Try of which nothing is sent unless may agrees, for each
// piece at the last moment. A process may be stopped for a while at any time, and when it
// goes on it does what it was about to, before anything has told it that another replica
// delivers. What is left is a stop between that last look and the system call. It is for
// a gate with a transport of its own: who puts in another one has to fence it himself.
func Fenced(ctx context.Context, may func() bool) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) { fenceOf(got.Conn).may.Store(&may) },
	})
}

// errFenced is why a piece was not sent. The receiver gets no whole request, and so none.
var errFenced = errors.New("no longer this replica's to deliver")

// fence is a connection to the receiver, for one request at a time.
type fence struct {
	net.Conn
	may atomic.Pointer[func() bool] // of the latest request; nil: of none, or it is not asked
}

func (f *fence) Write(p []byte) (int, error) {
	if may := f.may.Load(); may != nil && !(*may)() {
		return 0, errFenced
	}
	return f.Conn.Write(p)
}

// fenceOf finds the fence below TLS.
func fenceOf(conn net.Conn) *fence {
	for {
		if f, ok := conn.(*fence); ok {
			return f
		}
		conn = conn.(interface{ NetConn() net.Conn }).NetConn()
	}
}

// dialFenced is a dialer's DialContext, whose connections are fences.
func dialFenced(d *net.Dialer) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &fence{Conn: conn}, nil
	}
}
