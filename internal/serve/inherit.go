package serve

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/settings"
)

// firstSocket is the descriptor of the first socket that a service manager passes, see sd_listen_fds(3).
const firstSocket = 3

// inheritedSockets returns the sockets that a service manager passed to the process pid: LISTEN_FDS of them,
// starting at the descriptor first. It ignores their names, LISTEN_FDNAMES.
func inheritedSockets(environ []string, pid int, first uintptr) (sockets []net.Listener, err error) {
	env := settings.Environment(environ)
	if env["LISTEN_PID"] != strconv.Itoa(pid) || env["LISTEN_FDS"] == "" {
		return nil, nil
	}
	n, err := strconv.Atoi(env["LISTEN_FDS"])
	if err != nil || n < 0 {
		return nil, settings.Problems{"LISTEN_FDS is not a number of sockets"}
	}
	for i := range n {
		f := os.NewFile(first+uintptr(i), "LISTEN_FDS")
		socket, err := net.FileListener(f)
		f.Close() // FileListener has duplicated the descriptor
		if err != nil {
			closeSockets(sockets)
			return nil, fmt.Errorf("socket %d of LISTEN_FDS: %w", i+1, err)
		}
		sockets = append(sockets, socket)
	}
	return sockets, nil
}

func closeSockets(sockets []net.Listener) {
	for _, s := range sockets {
		s.Close()
	}
}

// adopt gives the listener the inherited socket that has its address, if there is one, and returns the others.
func (l *listener) adopt(sockets []net.Listener) (others []net.Listener) {
	i := slices.IndexFunc(sockets, func(s net.Listener) bool { return isAddressOf(l.addr, s.Addr()) })
	if i < 0 {
		return sockets
	}
	l.socket, l.inherited = sockets[i], true
	return slices.Concat(sockets[:i], sockets[i+1:])
}

// isAddressOf reports whether a socket has exactly the address in a setting.
func isAddressOf(setting string, socket net.Addr) bool {
	if path, ok := strings.CutPrefix(setting, "unix:"); ok {
		path, err := filepath.Abs(path)
		return err == nil && socket.Network() == "unix" && socket.String() == path
	}
	has, ok := socket.(*net.TCPAddr)
	want, err := net.ResolveTCPAddr("tcp", setting)
	return ok && err == nil && has.Port == want.Port && (has.IP.Equal(want.IP) || want.IP == nil && has.IP.IsUnspecified())
}

// quietPeriod is how long usher keeps the connections of an inherited socket open for one more request while
// it shuts down.
const quietPeriod = 500 * time.Millisecond

// drainInherited serves the connections of an inherited socket to their end. New connections wait in the
// socket, which the service manager holds, for the next usher. A connection that this usher has accepted is
// closed by its next answer (see draining). A busy caller sends its next request within a moment and cannot
// know that usher is about to close the connection, so drainInherited waits for a quietPeriod before it
// closes quiet connections. It is safe to call drainInherited twice.
func (l *listener) drainInherited(ctx context.Context) {
	if l == nil || !l.inherited {
		return
	}
	l.socket.Close() // the service manager has its own copy
	select {
	case <-time.After(quietPeriod):
	case <-ctx.Done():
	}
	_ = l.http.Shutdown(ctx) // close calls it again, and reports the error
}
