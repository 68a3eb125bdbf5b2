//go:build unix

package wire

import (
	"bufio"
	"context"
	"io"
	"net"
	"syscall"
	"testing"
)

// Bytes that arrive on a new connection before the request are read at once: the kernel has already
// reported them to the runtime, and does so only once.
func TestAnswerBeforeTheRequest(t *testing.T) {
	addr, _ := serve(t, func(conn net.Conn, from *bufio.Reader, _ int) {
		io.WriteString(conn, okAnswer)
		io.Copy(io.Discard, from) // and sends nothing more
	})
	cl := newClient(t, func(c *Config) {
		c.Timeout = 0 // it would wait for ever
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			raw, err := conn.(*net.TCPConn).SyscallConn()
			if err != nil {
				return nil, err
			}
			return conn, raw.Read(func(fd uintptr) bool { // until it is there
				_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
				return err != syscall.EAGAIN
			})
		}
	})
	if status, body, err := call(cl, request(t, t.Context(), "POST", "http://"+addr, nil)); status != 200 || body != "ok" {
		t.Error(status, body, err)
	}
}
