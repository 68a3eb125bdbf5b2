package inbox

import (
	"context"
	"net"
	"net/http/httptrace"
)

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
