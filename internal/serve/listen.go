package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"usher/internal/guard"
	"usher/internal/secret"
	"usher/internal/settings"
)

// listener is one of usher's addresses, and the server behind it.
type listener struct {
	variable string // the setting that has its address
	name     string
	addr     string
	handler  http.Handler
	cert     *guard.Certificate // nil: no TLS

	socket    net.Listener // nil until it is open
	inherited bool         // the socket came from a service manager
	http      *guard.Server
}

// url returns the address of an open listener for programs on this machine. It is empty if l is nil.
func (l *listener) url() string {
	if l == nil {
		return ""
	}
	if strings.HasPrefix(l.addr, "unix:") {
		return l.addr
	}
	scheme := "http"
	if l.cert != nil {
		scheme = "https"
	}
	addr := l.socket.Addr().String()
	if tcp, ok := l.socket.Addr().(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		addr = fmt.Sprintf("127.0.0.1:%d", tcp.Port) // the Host check accepts this address
	}
	return scheme + "://" + addr
}

// certificateExpiry returns when the listener's TLS certificate expires.
func (l *listener) certificateExpiry() time.Time { return l.cert.Leaf().NotAfter }

// attach creates the server for the connections of socket.
func (l *listener) attach(socket net.Listener, log *slog.Logger) {
	l.socket, l.http = socket, guard.NewServer(l.handler, l.cert, log)
}

// lastRequests is how long a connection from an inherited socket stays open for one more request while usher shuts
// down. A busy caller sends its next request within a moment, and cannot know that usher is about to close.
const lastRequests = 500 * time.Millisecond

// close waits for requests in progress until limit ends. Then it cuts them off and returns an error. New connections
// to an inherited socket wait for the next usher: the service manager holds that socket, too.
func (l *listener) close(limit context.Context) error {
	if l.inherited {
		l.socket.Close()
		select {
		case <-time.After(lastRequests):
		case <-limit.Done():
		}
	}
	err := l.http.Shutdown(limit)
	if err != nil {
		l.http.Close()
	}
	return err
}

// listen binds addr: host:port, or unix:/path.
func listen(addr string) (net.Listener, error) {
	path, ok := strings.CutPrefix(addr, "unix:")
	if !ok {
		return net.Listen("tcp", addr)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	return listenUnix(path)
}

// removeStale removes the socket that a killed usher has left behind. It returns an error if a program
// still answers on the socket, or if the file is not a socket.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%s: %w", path, syscall.EADDRINUSE)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

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
	if !ok || err != nil || has.Port != want.Port {
		return false
	}
	return has.IP.Equal(want.IP) || want.IP == nil && has.IP.IsUnspecified()
}

// Client calls a port of an usher on this machine.
type Client struct {
	http.Client
	Header http.Header // sent with each request
}

// LocalURL is the URL of every port for its Client, which knows where to connect. So the Host header is
// localhost, which usher always accepts, even if the port listens on 0.0.0.0 or on a unix socket.
const LocalURL = "http://localhost"

// NewClient returns a client for the port at address, which is host:port, http://host:port or unix:/path. The
// client sends the first of tokens, which may be empty.
func NewClient(address, tokens string) *Client {
	network, address := "tcp", strings.TrimPrefix(address, "http://")
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	c := &Client{Header: make(http.Header)}
	c.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}
	if list, err := secret.Tokens(tokens); err == nil {
		c.Header.Set("Authorization", "Bearer "+list[0].Value)
	}
	return c
}

// Call sends a request and returns the answer, whatever its status is.
func (c *Client) Call(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, LocalURL+path, body)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, c.Header)
	return c.Do(req)
}
