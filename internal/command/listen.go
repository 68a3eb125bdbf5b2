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
		addr = fmt.Sprintf("127.0.0.1:%d", tcp.Port) // an address that the Host check accepts
	}
	return scheme + "://" + addr
}

// client returns a client for the listener, once it is open, and the address to use with it.
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

// attach prepares the server that will serve connections of socket.
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

// removeStale removes the socket that a killed usher left behind. It does not remove a
// socket that a program answers on, nor a file that is not a socket.
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

// newServer returns a server with the limits of every listener. An answer may take as long
// as it likes: GraphQL can stream.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          stdlog.New(log, slog.LevelWarn, "http server"),
		// The handler refuses OPTIONS *, like any other path.
		DisableGeneralOptionsHandler: true,
	}
}

// draining wraps next: once stopping is set every answer closes its connection, also the
// answer to a request that came before. The caller then opens a new connection, which goes
// to a server that is not shutting down. (SetKeepAlivesEnabled would close idle connections
// at once, and break requests that are on their way.)
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
