package inbox

import (
	"context"
	"net"
	"net/http/httptrace"
	"sync/atomic"
)

// right is the leave to make one delivery. Lost once, it is lost for that delivery, though
// a renewal of the lease may bring it back a moment later: what was held back meanwhile
// must not be taken for a try that failed.
type right struct {
	may  func() bool // nil: always
	lost atomic.Bool
}

func (r *right) held() bool {
	if r.may != nil && !r.may() {
		r.lost.Store(true)
	}
	return !r.lost.Load()
}

// fenced is a context for one request, that is not sent unless may agrees. It is asked at
// the last moment, when the request stands ready in a buffer: a process may be stopped for
// a while at any time, and when it goes on it sends what it was about to, before anything
// has told it that another replica delivers.
func fenced(ctx context.Context, may func() bool) context.Context {
	var conn net.Conn
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) { conn = got.Conn },
		WroteHeaders: func() { // to the buffer
			if !may() {
				conn.Close()
			}
		},
	})
}
