package guard

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"usher/internal/logs"
)

// Server serves one of usher's ports, within limits that every port has.
type Server struct {
	http.Server
	cutOff context.CancelCauseFunc // ends the contexts of all requests
	log    *slog.Logger
	drains atomic.Bool
}

// ErrCutOff is the cause of a request's context if Server.Close ended it.
var ErrCutOff = errors.New("usher is shutting down")

// NewServer returns a server that speaks TLS if cert is not nil. There is no limit on how long an answer takes:
// GraphQL can stream. See [listener] for readers that take nothing.
func NewServer(h http.Handler, cert *Certificate, log *slog.Logger) *Server {
	base, cutOff := context.WithCancelCause(context.Background())
	s := &Server{cutOff: cutOff, log: log}
	s.Server = http.Server{
		Handler:           s.oneEnd(h),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog:    logs.ForLibrary(log, slog.LevelWarn, "http server"),
		BaseContext: func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if secured, ok := c.(*tls.Conn); ok {
				c = secured.NetConn()
			}
			return context.WithValue(ctx, connKey{}, c)
		},
		// The handlers refuse OPTIONS * themselves, like any other path that does not exist.
		DisableGeneralOptionsHandler: true,
	}
	if cert != nil {
		s.TLSConfig = &tls.Config{GetCertificate: cert.get, NextProtos: []string{"http/1.1"}}
	}
	return s
}

// Drain closes the connection of each further request after its answer: its caller opens the next one to another
// replica.
func (s *Server) Drain() { s.drains.Store(true) }

// Serve serves the connections of l until the server is closed.
func (s *Server) Serve(l net.Listener) error {
	l = newListener(l, maxConns, s.log)
	if s.TLSConfig != nil {
		l = tls.NewListener(l, s.TLSConfig)
	}
	return s.Server.Serve(l)
}

// Close ends all requests in progress, with ErrCutOff as the cause, and closes all connections.
func (s *Server) Close() error {
	s.cutOff(ErrCutOff)
	return s.Server.Close()
}

// oneEnd closes the connection after a request of which another parser may see another end than net/http, which
// prefers Transfer-Encoding to Content-Length, ignores Transfer-Encoding in HTTP/1.0 and reads what follows a CONNECT.
// So what a proxy in front of usher takes for the rest of that request is never read as a second one (request
// smuggling).
func (s *Server) oneEnd(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*conn); ok {
			c.working(true)
			defer c.working(false)
			if r.Body != http.NoBody {
				r.Body = body{r.Body, c}
			}
		}
		odd := len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) || Refused(r.Method)
		if odd || s.drains.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// Refused reports whether no port answers the method but with a 405.
func Refused(method string) bool { return method == http.MethodConnect || method == http.MethodTrace }

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
