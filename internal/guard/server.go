package guard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"usher/internal/logs"
)

// Server is the server of a listener.
type Server struct {
	http.Server
	cutOff context.CancelCauseFunc
}

// ErrCutOff is why the context of a request has ended that Close cut off.
var ErrCutOff = errors.New("usher is shutting down")

// connKey is where the context of a request has its connection.
type connKey struct{}

// NewServer returns a server with the limits of every listener. An answer may take as long as it
// likes: GraphQL can stream. It closes a connection of a Listener, without an answer, when a
// request comes and the client's certificate would not be accepted any more.
func NewServer(h http.Handler, log *slog.Logger) *Server {
	base, cutOff := context.WithCancelCause(context.Background())
	return &Server{cutOff: cutOff, Server: http.Server{
		Handler:           whileAccepted(h),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          logs.ForLibrary(log, slog.LevelWarn, "http server"),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		// The handler refuses OPTIONS *, like any other path.
		DisableGeneralOptionsHandler: true,
	}}
}

// Close ends all requests that are under way, with ErrCutOff, and their connections.
func (s *Server) Close() error {
	s.cutOff(ErrCutOff)
	return s.Server.Close()
}

// ResetOnClose makes the connection of a request end with a reset when it is closed, or makes it
// end normally again. It has no effect on a unix socket, which has no reset.
func ResetOnClose(r *http.Request, reset bool) {
	seconds := -1
	if reset {
		seconds = 0
	}
	if c, ok := r.Context().Value(connKey{}).(interface{ SetLinger(int) error }); ok {
		_ = c.SetLinger(seconds) // fails if it is closed, or is no TCP connection
	}
}

// whileAccepted looks at each request, not at each read: requests can be sent ahead.
func whileAccepted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*tlsConn); ok && !c.acceptable(time.Now()) {
			panic(http.ErrAbortHandler)
		}
		h.ServeHTTP(w, r)
	})
}

// WriteJSON writes an answer of usher's own, with its length.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // people read this in logs
	if err := enc.Encode(v); err != nil {
		panic(err) // cannot happen: strings, numbers and times only
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // an error means that the caller has gone
}
