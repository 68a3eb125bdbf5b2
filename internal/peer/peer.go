// Package peer answers only the processes of usher's own user.
//
// A port on loopback is open to every user of the machine, and has no permissions as a
// file has. On Linux the kernel can be asked who owns the other end of a connection.
// Elsewhere it can't, and everybody is answered.
package peer

import (
	"log/slog"
	"net"
	"net/netip"
)

// owner returns the user whose socket goes from client to server. A socket that is not
// there, or that no process holds any more, is an error.
type owner func(client, server netip.AddrPort) (uid uint32, err error)

// listener closes the connections of others than user, unanswered.
type listener struct {
	net.Listener
	owner owner
	user  uint32
	log   *slog.Logger
	told  bool // of one that was refused; Accept's own
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

// refused is a warning the first time: whoever can connect could fill the log.
func (l *listener) refused(uid uint32, err error) {
	say := l.log.Debug
	if !l.told {
		l.told, say = true, l.log.Warn
	}
	if err != nil {
		say("connection refused: it is unknown whose it is", "err", err)
		return
	}
	say("connection refused: it is another user's", "uid", uid, "answered", l.user)
}

// addrPort is the zero AddrPort, which nobody owns, for what is not TCP.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
