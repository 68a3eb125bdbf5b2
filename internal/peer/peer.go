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

// owner returns the user who owns the socket from client to server. If there is no such socket,
// or no process holds it any more, that is an error.
type owner func(client, server netip.AddrPort) (uid uint32, err error)

// listener closes the connections of other users without an answer.
type listener struct {
	net.Listener
	owner owner
	user  uint32
	log   *slog.Logger
	told  bool // a refused connection was logged; used by Accept only
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
		l.refused(uid, err)
	}
}

// refused logs a warning the first time only: anybody who can connect could fill the log.
func (l *listener) refused(uid uint32, err error) {
	say := l.log.Debug
	if !l.told {
		l.told, say = true, l.log.Warn
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
