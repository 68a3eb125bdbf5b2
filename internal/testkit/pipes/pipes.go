// Package pipes is a network in memory, for tests with package synctest: these cannot wait for a real one.
package pipes

import (
	"net"
	"testing"
)

// Listener is a listener whose connections are pipes: they hold nothing that nobody reads. Create it with make.
type Listener chan net.Conn

// Dial returns a caller's connection to the listener, which ends with the test.
func (l Listener) Dial(t testing.TB) net.Conn {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close() })
	l <- far
	return near
}

// Accept implements [net.Listener].
func (l Listener) Accept() (net.Conn, error) {
	if conn, ok := <-l; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

// Close implements [net.Listener].
func (l Listener) Close() error { close(l); return nil }

// Addr implements [net.Listener].
func (Listener) Addr() net.Addr { return &net.UnixAddr{} }
