package serve

import (
	"net/http"
	"sync/atomic"
)

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
