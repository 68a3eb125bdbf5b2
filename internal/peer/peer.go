// Package peer accepts connections only from processes of usher's own user: every user of the machine can connect to a
// port on loopback. Only on Linux the kernel says who owns the other end; on other systems all are accepted.
package peer

import (
	"log/slog"
	"net"
)

// listener closes the connections of other users without an answer.
type listener struct {
	net.Listener
	owner  func(client, server *net.TCPAddr) (uid uint32, err error)
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
		uid, err := l.owner(conn.RemoteAddr().(*net.TCPAddr), conn.LocalAddr().(*net.TCPAddr))
		if err == nil && uid == l.user {
			return conn, nil
		}
		conn.Close()
		if !l.warned { // once, because every user of the machine could fill the log
			l.warned = true
			l.log.Warn("connection refused: it belongs to another user", "uid", uid, "answered", l.user, "err", err)
		}
	}
}
