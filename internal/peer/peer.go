// Package peer accepts connections only from processes of usher's own user.
//
// Every user of the machine can connect to a port on loopback; a port has no permissions like a
// file. On Linux the kernel says who owns the other end of a connection. On other systems it
// does not, and connections of all users are accepted.
package peer

import (
	"log/slog"
	"net"
	"net/netip"
)

// ownerFunc returns the user who owns the client's end of the connection from client to server. It is an
// error if there is no such connection, or if no process holds that end any more.
type ownerFunc func(client, server netip.AddrPort) (uid uint32, err error)

// listener closes the connections of other users without an answer.
type listener struct {
	net.Listener
	owner  ownerFunc
	user   uint32 // whose connections are accepted
	log    *slog.Logger
	warned bool // a refused connection was logged; used by Accept only
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := l.owner(addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr()))
		if err == nil && uid == l.user {
			return conn, nil
		}
		conn.Close()
		l.logRefused(uid, err)
	}
}

// logRefused logs a warning the first time only, because every user of the machine could fill the log.
func (l *listener) logRefused(uid uint32, err error) {
	say := l.log.Debug
	if !l.warned {
		l.warned, say = true, l.log.Warn
	}
	if err != nil {
		say("connection refused: its user is unknown", "err", err)
		return
	}
	say("connection refused: it belongs to another user", "uid", uid, "answered", l.user)
}

// addrPort returns the address and port of a TCP address. For anything else it returns the zero
// AddrPort, which no process owns.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
