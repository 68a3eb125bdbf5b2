// Package admin is the port for those who run usher: is it alive, is it ready,
// what are its figures. It knows nothing of how the rest is put together; what it
// shows reaches it through the funcs of its Config.
package admin

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"

	"usher/internal/guard"
)

// Config is what the admin port needs to know.
type Config struct {
	// Hosts says which Host headers are answered, but for the health pages, which
	// answer any: probes come by whatever address the pod has. Required.
	Hosts *guard.Hosts
	// Token returns what a caller must know for all but the health pages; nil when
	// none is demanded. One that returns the empty string lets nobody in.
	Token func() string
	// Unready returns what keeps usher from being ready, in words; nothing when it
	// is. Required.
	Unready func() []string
	// Metrics serves /metrics. Required.
	Metrics http.Handler
	// Version is shown on the front page.
	Version string
	// Log is told of refused requests. Required.
	Log *slog.Logger
}

// New returns the handler of the admin port.
func New(cfg Config) http.Handler { return &handler{cfg} }

type handler struct{ cfg Config }

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.Method == http.MethodConnect || r.Method == http.MethodTrace {
		w.Header().Set("Connection", "close")
		h.refuse(w, r, http.StatusMethodNotAllowed, r.Method+" is not for this port")
		return
	}
	// The path as it was sent: no cleaning, no redirect.
	path := r.URL.EscapedPath()
	health := path == "/healthz" || path == "/readyz"
	switch {
	case !health && !h.cfg.Hosts.Allowed(r.Host):
		h.refuse(w, r, http.StatusMisdirectedRequest, "this Host is not answered here: call the port by its address, or allow the name with USHER_ALLOWED_HOSTS")
		return
	case !health && h.cfg.Token != nil && !h.knowsToken(r):
		w.Header().Set("WWW-Authenticate", `Basic realm="usher"`)
		h.refuse(w, r, http.StatusUnauthorized, "the admin token is missing or wrong: send it as 'Authorization: Bearer TOKEN', or as the password of Basic auth")
		return
	}
	switch path {
	case "/healthz", "/readyz", "/metrics", "/":
	default:
		h.refuse(w, r, http.StatusNotFound, "there is no such page")
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		h.refuse(w, r, http.StatusMethodNotAllowed, "this page can only be read")
		return
	}
	switch path {
	case "/healthz":
		writeJSON(w, http.StatusOK, map[string]any{"alive": true})
	case "/readyz":
		h.ready(w)
	case "/metrics":
		h.cfg.Metrics.ServeHTTP(w, r)
	case "/":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "usher %s\n\n/healthz  is it alive?\n/readyz   is it ready, and if not, why?\n/metrics  for Prometheus\n", h.cfg.Version)
	}
}

func (h *handler) ready(w http.ResponseWriter) {
	problems := h.cfg.Unready()
	status := http.StatusOK
	if len(problems) > 0 {
		status = http.StatusServiceUnavailable
	} else {
		problems = []string{} // [] and not null
	}
	writeJSON(w, status, map[string]any{"ready": len(problems) == 0, "problems": problems})
}

func (h *handler) knowsToken(r *http.Request) bool {
	token := h.cfg.Token()
	bearer, _ := guard.Bearer(r.Header)
	_, password, _ := r.BasicAuth()
	asBearer, asPassword := guard.Equal(bearer, token), guard.Equal(password, token)
	return asBearer || asPassword
}

func (h *handler) refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	h.cfg.Log.Info("admin request refused", "method", r.Method, "status", status, "why", why, "from", r.RemoteAddr)
	writeJSON(w, status, map[string]any{"error": why})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the reader may be gone; nothing to do about it
}
