// Package socket makes the connections of a process that waits most of the time
// cheaper.
//
// Around each system call Go's runtime does some bookkeeping, so that it can let other
// goroutines run if the call should block. When everything was idle before, it also
// wakes the thread that keeps watch over such calls (sysmon), which goes to sleep again
// as soon as everything is idle: for a proxy that has a call now and then, that is twice
// per call, and costs about an eighth of its CPU time at one connection. But reads and
// writes of a socket do not block, as the runtime has it in non-blocking mode and waits
// elsewhere, so they can do without.
//
// The price: the same thread interrupts goroutines that run for long. Whoever is woken
// by such a read and then computes keeps others from running until it is done. So this
// is for those who pass things on, as the local ports do, and not for the gate, which
// parses, or the admin port, which searches.
package socket

import "net"

// Listener returns l with connections that are direct: see Direct.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Direct(conn), nil
}
