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

// Server serves one of usher's ports.
type Server struct {
	http.Server
	cutOff context.CancelCauseFunc // ends the contexts of all requests
}

// ErrCutOff is the cause of a request's context if Server.Close ended it.
var ErrCutOff = errors.New("usher is shutting down")

// connKey is the key of a request's connection in its context.
type connKey struct{}

// NewServer returns a server with the limits that every port has. There is no limit on how long an
// answer takes: GraphQL can stream. If a request arrives on a connection whose client certificate
// would no longer be accepted, the server closes the connection without an answer.
func NewServer(h http.Handler, log *slog.Logger) *Server {
	base, cutOff := context.WithCancelCause(context.Background())
	return &Server{cutOff: cutOff, Server: http.Server{
		Handler:           requireCertificate(h),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          logs.ForLibrary(log, slog.LevelWarn, "http server"),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if c, ok := c.(interface{ changed(http.ConnState) }); ok {
				c.changed(state)
			}
		},
		// The handlers refuse OPTIONS * themselves, like any other path that does not exist.
		DisableGeneralOptionsHandler: true,
	}}
}

// Close ends all requests in progress, with ErrCutOff as the cause, and closes all connections.
func (s *Server) Close() error {
	s.cutOff(ErrCutOff)
	return s.Server.Close()
}

// ResetOnClose says how the connection of a request ends when it is closed: with a TCP reset, or
// normally. It has no effect on a unix socket, which has no reset.
func ResetOnClose(r *http.Request, reset bool) {
	seconds := -1
	if reset {
		seconds = 0
	}
	if c, ok := r.Context().Value(connKey{}).(interface{ SetLinger(int) error }); ok {
		_ = c.SetLinger(seconds) // fails if the connection is closed, or is not TCP
	}
}

// requireCertificate checks the client's certificate before each request. To check it when bytes
// arrive is not enough: a client can send requests ahead.
func requireCertificate(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*tlsConn); ok && !c.acceptable(time.Now()) {
			panic(http.ErrAbortHandler)
		}
		h.ServeHTTP(w, r)
	})
}

// WriteJSON writes one of usher's own answers, with its Content-Length.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	body, encoded := v.(JSON)
	if !encoded {
		body = Encode(v)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // an error means that the caller has gone
}

// JSON is an answer that is encoded already.
type JSON []byte

// Encode encodes an answer.
func Encode(v any) JSON {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // people read this in logs
	if err := enc.Encode(v); err != nil {
		panic(err) // cannot happen: strings, numbers and times only
	}
	return body.Bytes()
}
