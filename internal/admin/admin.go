// Package admin is the port for those who run usher: is it alive, is it ready,
// what are its figures, what is in its inbox. It knows nothing of how the rest is
// put together; what it shows and does reaches it through the funcs of its Config.
package admin

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

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
	// Inbox is what can be seen and done of the inbox; nil when there is none.
	Inbox *Inbox
	// Forget drops what dedup remembers of a tenant, on whatever platform, and
	// returns of how many lanes; nil when there is no gate. It works without an
	// inbox too.
	Forget func(tenant string) (int, error)
	// Version is shown on the front page.
	Version string
	// Log is told of refused requests, and of what was done by hand. Required.
	Log *slog.Logger
}

// New returns the handler of the admin port.
func New(cfg Config) http.Handler {
	h := &handler{cfg: cfg}
	h.pages = []page{
		{path: "/healthz", serve: h.alive, probe: true},
		{path: "/readyz", serve: h.ready, probe: true},
		{path: "/metrics", serve: cfg.Metrics.ServeHTTP},
		{path: "/", serve: h.front},
		{path: "/api/inbox", serve: h.api(h.list)},
		{path: "/api/inbox/{id}", serve: h.api(h.show)},
		{path: "/api/inbox/{id}/redeliver", serve: h.api(h.redeliver), acts: true},
		{path: "/api/forget", serve: h.api(h.forget), acts: true},
	}
	return h
}

// bodyPatience is for the whole of a request's body.
const bodyPatience = 10 * time.Second

type handler struct {
	cfg    Config
	pages  []page
	origin http.CrossOriginProtection
}

// page is something that the port answers.
type page struct {
	path  string // as it is sent; {id} stands for one segment
	serve http.HandlerFunc
	probe bool // answers any Host, and needs no token
	acts  bool // takes a POST; all others can only be read
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.ContentLength != 0 {
		// A body is short here. net/http would wait for the rest of it as long as it
		// takes, also of a request that is refused.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyPatience))
	}
	p := h.find(r)
	guarded := p == nil || !p.probe
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		w.Header().Set("Connection", "close")
		h.refuse(w, r, http.StatusMethodNotAllowed, r.Method+" is not for this port")
	case guarded && !h.cfg.Hosts.Allowed(r.Host):
		h.refuse(w, r, http.StatusMisdirectedRequest, "this Host is not answered here: call the port by its address, or allow the name with USHER_ALLOWED_HOSTS")
	case guarded && h.cfg.Token != nil && !h.knowsToken(r):
		w.Header().Set("WWW-Authenticate", `Basic realm="usher"`)
		h.refuse(w, r, http.StatusUnauthorized, "the admin token is missing or wrong: send it as 'Authorization: Bearer TOKEN', or as the password of Basic auth")
	case h.origin.Check(r) != nil:
		// A browser that knows the password adds it to what any page sends.
		h.refuse(w, r, http.StatusForbidden, "a page of another origin can't act here")
	case p == nil:
		h.refuse(w, r, http.StatusNotFound, "there is no such page")
	case p.acts && r.Method != http.MethodPost:
		w.Header().Set("Allow", "POST")
		h.refuse(w, r, http.StatusMethodNotAllowed, "this acts, and takes a POST")
	case !p.acts && r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		h.refuse(w, r, http.StatusMethodNotAllowed, "this page can only be read")
	default:
		p.serve(w, r)
	}
}

// find returns the page that a request is for, or nil. The path is compared as it
// was sent: http.ServeMux would clean it and answer with a redirect.
func (h *handler) find(r *http.Request) *page {
	path := r.URL.EscapedPath()
	for i := range h.pages {
		if id, ok := h.pages[i].match(path); ok {
			r.SetPathValue("id", id)
			return &h.pages[i]
		}
	}
	return nil
}

func (p *page) match(path string) (id string, ok bool) {
	before, after, wild := strings.Cut(p.path, "{id}")
	if !wild {
		return "", path == p.path
	}
	if id, ok = strings.CutPrefix(path, before); ok {
		id, ok = strings.CutSuffix(id, after)
	}
	return id, ok && id != "" && !strings.Contains(id, "/")
}

func (h *handler) alive(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"alive": true})
}

func (h *handler) ready(w http.ResponseWriter, _ *http.Request) {
	problems := h.cfg.Unready()
	status := http.StatusOK
	if len(problems) > 0 {
		status = http.StatusServiceUnavailable
	} else {
		problems = []string{} // [] and not null
	}
	writeJSON(w, status, map[string]any{"ready": len(problems) == 0, "problems": problems})
}

func (h *handler) front(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "usher %s\n\n/healthz    is it alive?\n/readyz     is it ready, and if not, why?\n/metrics    for Prometheus\n/api/inbox  what waits, what is parked\n", h.cfg.Version)
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
	writeJSON(w, status, Problem{Error: why})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // a payload is shown as it came
	_ = e.Encode(v)        // the reader may be gone; nothing to do about it
}
