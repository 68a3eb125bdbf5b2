package command

import (
	"net/http"
	"sync/atomic"
)

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
