package command

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"usher/internal/guard"
	"usher/internal/stdlog"
)

// listener is one of usher's addresses, and the server behind it.
type listener struct {
	variable string // the one that says where it is
	name     string
	addr     string
	handler  http.Handler
	tls      *tls.Config
	closing  func() // called when the server begins to close; may be nil

	socket net.Listener // nil until it is open
	http   *http.Server
}

// url is where the listener can be reached, once it is open.
func (l *listener) url() string {
	if strings.HasPrefix(l.addr, "unix:") {
		return l.addr
	}
	scheme := "http"
	if l.tls != nil {
		scheme = "https"
	}
	addr := l.socket.Addr().String()
	if tcp, ok := l.socket.Addr().(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		addr = fmt.Sprintf("127.0.0.1:%d", tcp.Port) // what answers there to its name
	}
	return scheme + "://" + addr
}

// client returns what calls the listener, once it is open, and the address to use with it.
func (l *listener) client() (c *http.Client, base string) {
	c, base = &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}, l.url()
	if path, ok := strings.CutPrefix(l.addr, "unix:"); ok {
		base = "http://localhost"
		c.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}
	}
	return c, base
}

// attach has the listener serve what comes in on socket, once its server is started.
func (l *listener) attach(socket net.Listener, log *slog.Logger) {
	l.socket = guard.Listener(socket, l.tls, log)
	l.http = newServer(l.handler, log)
	if l.closing != nil {
		l.http.RegisterOnShutdown(l.closing)
	}
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

// removeStale removes the socket that a killed usher left behind, but neither one
// that somebody answers on nor a file that is no socket.
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

// newServer returns a server with the limits that every listener of usher's has.
// There is none on how long an answer may take: GraphQL can stream.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          stdlog.New(log, slog.LevelWarn, "http server"),
		// OPTIONS * is for the handler to refuse, like any other path.
		DisableGeneralOptionsHandler: true,
	}
}

// draining returns next such that, once stopping is set, every answer ends its
// connection, also that to a request which came before. The caller's next one then goes
// to a connection of its own, and so to whoever serves by then. (SetKeepAlivesEnabled
// would close idle connections at once, under the feet of a request that is on its way.)
func draining(stopping *atomic.Bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last := &drainingWriter{ResponseWriter: w, stopping: stopping}
		next.ServeHTTP(last, r)
		if !last.begun && stopping.Load() { // net/http is about to write the header
			w.Header().Set("Connection", "close")
		}
	})
}

// drainingWriter decides at the last moment whether its connection may be used again.
type drainingWriter struct {
	http.ResponseWriter
	stopping *atomic.Bool
	begun    bool // the header is written
}

func (w *drainingWriter) WriteHeader(status int) {
	if status >= 200 && !w.begun {
		w.begun = true
		if w.stopping.Load() {
			w.Header().Set("Connection", "close")
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *drainingWriter) Write(p []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(p)
}

// FlushError is what http.ResponseController looks for.
func (w *drainingWriter) FlushError() error {
	w.begin()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *drainingWriter) begin() {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
}

// Unwrap lets http.ResponseController find the rest.
func (w *drainingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
