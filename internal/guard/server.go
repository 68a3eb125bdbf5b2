package guard

import (
	"log/slog"
	"net/http"
	"time"

	"usher/internal/stdlog"
)

// Server returns a server with the limits of every listener. An answer may take as long as it
// likes: GraphQL can stream.
func Server(h http.Handler, log *slog.Logger) *http.Server {
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
