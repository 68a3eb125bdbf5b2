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

// firstSocket is the first descriptor that a service manager passes on, see sd_listen_fds(3).
const firstSocket = 3

// inherited returns the sockets that a service manager passed to the process pid: LISTEN_FDS of
// them, from the descriptor first on. Their names, LISTEN_FDNAMES, do not matter.
func inherited(environ []string, pid int, first uintptr) (sockets []net.Listener, err error) {
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
		f.Close() // FileListener has a copy
		if err != nil {
			closeAll(sockets)
			return nil, fmt.Errorf("socket %d of LISTEN_FDS: %w", i+1, err)
		}
		sockets = append(sockets, socket)
	}
	return sockets, nil
}

func closeAll(sockets []net.Listener) {
	for _, s := range sockets {
		s.Close()
	}
}

// take gives the listener its socket, if a service manager has passed it on, and returns the others.
func (l *listener) take(sockets []net.Listener) (others []net.Listener) {
	i := slices.IndexFunc(sockets, func(s net.Listener) bool { return fits(l.addr, s.Addr()) })
	if i < 0 {
		return sockets
	}
	l.socket, l.inherited = sockets[i], true
	return slices.Concat(sockets[:i], sockets[i+1:])
}

// fits says whether a socket has the very address of a setting.
func fits(setting string, socket net.Addr) bool {
	if path, ok := strings.CutPrefix(setting, "unix:"); ok {
		path, err := filepath.Abs(path)
		return err == nil && socket.Network() == "unix" && socket.String() == path
	}
	has, ok := socket.(*net.TCPAddr)
	want, err := net.ResolveTCPAddr("tcp", setting)
	return ok && err == nil && has.Port == want.Port && (has.IP.Equal(want.IP) || want.IP == nil && has.IP.IsUnspecified())
}

// quiet is how long a connection that came through a service manager's socket is kept for one more
// request while usher shuts down.
const quiet = 500 * time.Millisecond

// finish serves to the end what came through a service manager's socket. From here on connections
// wait in that socket for the next usher. Those that this usher has accepted are closed by their
// next answer (see draining). A caller cannot know that a quiet connection is about to be closed:
// if it is used all the time, its next request comes within a moment. It is safe to call finish twice.
func (l *listener) finish(ctx context.Context) {
	if l == nil || !l.inherited {
		return
	}
	l.socket.Close() // usher's own copy
	<-l.served
	enough, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	for enough.Err() == nil && l.open.Load() > 0 {
		time.Sleep(5 * time.Millisecond)
	}
	_ = l.http.Shutdown(ctx) // shutdown looks again
}
