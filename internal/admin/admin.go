// Package admin is the port for the people who run usher: health checks, metrics, a JSON API, and pages that
// show the same as the API. It reaches the other parts of usher only through its Config.
//
//	admin.go                                     the routes, and who may use them
//	overview.go, webhooks.go, tenant.go          what a GET shows; package status finds the troubles
//	decisions.go                                 the gate's last decisions, in memory
//	acts.go                                      what people can do: one table
//	act.go                                       how it is asked for and done, with its entry and its line in the log
//	reconcile.go                                 the acts whose answer is a stream: reconcile and backup
//	selection.go                                 which webhooks a list or an act is about
//	answer.go                                    writes an answer as a page or JSON, and turns errors into status codes
package admin

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"usher/internal/admin/history"
	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
	"usher/internal/admin/status"
	"usher/internal/entitlements"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/receiver"
	"usher/internal/secret"
)

// Config is what the admin port needs to know.
type Config struct {
	// Hosts says which Host headers are allowed. Health checks answer any, because probes use whatever
	// address the pod has. Required.
	Hosts *guard.Hosts
	// Token returns the tokens that callers must send, except for health checks; see [secret.Tokens]. Nil: no
	// token is required. A func that returns the empty string lets no caller in.
	Token func() string
	// ReadToken returns the tokens of callers that may read, but not act. May be nil.
	ReadToken func() string
	// Health returns what decides whether usher is ready. Each of its parts has a /readyz/NAME. Required.
	Health func() *status.Health
	// Metrics serves /metrics. Required.
	Metrics http.Handler
	// Ports returns the states of the local ports. Nil: outbound is off.
	Ports func() []status.Port
	// Gate returns the state of the webhook gate. Nil: the gate is off.
	Gate func() *status.Gate
	// Receivers are those of the gate. Nil if the gate is off: then only other replicas know them.
	Receivers *receiver.Set
	// Decisions are the last decisions of a gate without an inbox. Nil: the gate is off, or there is an inbox.
	Decisions *Decisions
	// Inbox is nil if there is none.
	Inbox *inbox.Inbox
	// ReadLog is a run of reconcile over the billing service's webhook log; see catchup.CatchUp.Reconcile. Nil: usher does
	// not read it.
	ReadLog func(ctx context.Context, run string, since time.Time, mode lane.ReconcileMode,
		tell func(some []lane.Compared, seen int) error) (*inbox.Run, error)
	// Platforms returns the platforms that have a tenant with this code.
	Platforms func(ctx context.Context, tenant string) ([]string, error)
	// Entitlements returns what a tenant may use. Required with an inbox.
	Entitlements entitlements.Lookup
	// Held returns for how many tenants it can do so without the inbox. Required with the entitlements port.
	Held func() int
	// EntitlementsPort says that there is one.
	EntitlementsPort bool
	// Answers returns how the last questions on that port were answered. Required with it.
	Answers func() metrics.Answers
	// History says how the history is kept, and where notifications go. New sets what the admin port itself knows.
	History history.Config
	// Version is shown on the pages.
	Version string
	// Log gets refused requests and what people do. Required.
	Log *slog.Logger
}

// Troubles is what the page says is wrong, for the metric usher_trouble.
func (h *Handler) Troubles() []status.Trouble { return h.status(context.Background()).Troubles }

// New returns the handler of the admin port.
func New(cfg Config) *Handler {
	h := &Handler{cfg: cfg, making: make(chan struct{}, 2)}
	known := cfg.History
	known.Status, known.Inbox, known.Log = h.status, cfg.Inbox, cfg.Log
	known.Stopping = func() bool { return cfg.Health().Stopping }
	h.recorder = history.New(known)
	h.routes = []route{
		{path: "/healthz", read: alive, probe: true},
		{path: "/readyz", read: h.ready(status.Part{On: true}), probe: true},
		{path: "/metrics", read: cfg.Metrics.ServeHTTP},

		{path: "/", read: h.answer(h.overview)},
		{path: "/webhooks", read: h.answer(h.webhooksPage), params: slices.Concat(listParams, []string{"did", "ask", "force"})},
		{path: "/webhooks/{id}", read: h.answer(h.webhookPage)},
		{path: "/webhooks/{id}/payload", read: h.download, file: true},
		{path: "/tenants", read: h.answer(h.tenantsPage), inbox: true},
		{path: "/tenant", read: h.few(h.tenantPage), inbox: true},
		{path: "/actions", read: h.answer(h.actions), inbox: true},
		{path: "/static/{id}", read: page.Static},

		{path: "/api/status", read: h.answer(h.apiStatus), params: []string{"since"}},
		{path: "/api/webhooks", read: h.answer(h.apiWebhooks), params: listParams, inbox: true},
		{path: "/api/webhooks/{id}", read: h.answer(h.apiWebhook), inbox: true},
		{path: "/api/actions", read: h.answer(h.actions), params: []string{"before", "limit"}, inbox: true},
		{path: "/api/tenant", read: h.few(h.apiTenant), params: []string{"code", "platform"}, inbox: true},
		{path: "/api/tenants", read: h.answer(h.apiTenants), params: []string{"trouble", "platform", "after", "limit"}, inbox: true},
	}
	for _, a := range Acts {
		h.routes = append(h.routes, h.actRoutes(a)...)
	}
	for _, p := range cfg.Health().Parts {
		h.routes = append(h.routes, route{path: "/readyz/" + p.Name, read: h.ready(p, p.Name), probe: true})
	}
	return h
}

// bodyPatience is how long the whole body of a request may take to arrive.
const bodyPatience = 10 * time.Second

// Handler serves the admin port.
type Handler struct {
	cfg      Config
	recorder *history.Recorder
	making   chan struct{} // holds one value for each answer about a tenant that is being made
	routes   []route
	origin   http.CrossOriginProtection
}

// route is one address of the port.
type route struct {
	path   string           // as it is sent; {id} stands for one segment
	read   http.HandlerFunc // answers GET and HEAD; may be nil
	act    http.HandlerFunc // answers POST; may be nil
	probe  bool             // a health check: answers any Host, and needs no token
	inbox  bool             // needs an inbox
	file   bool             // a download with customers' data: no link of another origin leads to it
	params []string         // the allowed query parameters; nil: none under /api/, any elsewhere
}

// The query parameters that select webhooks, and those of a list.
var (
	filterParams = []string{"state", "tenant", "platform", "since", "until"}
	listParams   = slices.Concat(filterParams, []string{"before", "limit"})
)

// checkQuery refuses unknown parameters, and those that are given twice. If usher ignored a typing error in a
// filter, the list or the action would be about all webhooks.
func (to *route) checkQuery(rawQuery string) error {
	query, err := readQuery(rawQuery)
	for name, values := range query {
		for _, v := range values { // PostgreSQL fails on it
			if strings.Contains(v, "\x00") || !utf8.ValidString(v) {
				return badRequest("%q contains a zero character, or is not valid UTF-8", name)
			}
		}
	}
	if to.params == nil && !strings.HasPrefix(to.path, "/api/") {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(to.params, name) {
			return badRequest("%s has no parameter %q; it has: %s",
				to.path, name, cmp.Or(strings.Join(to.params, ", "), "none"))
		}
		if len(query[name]) > 1 {
			return badRequest("%s is given twice: it should be given once", name)
		}
	}
	return err
}

// isAPI reports whether a request is for the API, and not for a page.
func isAPI(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/api/") }

// Run keeps the history, and sends notifications, until ctx ends. name is that of this replica, if there may be others.
func (h *Handler) Run(ctx context.Context, name string) { h.recorder.Run(ctx, name) }

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Security-Policy", page.Policy)
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Referrer-Policy", "same-origin")
	header.Set("X-Content-Type-Options", "nosniff")
	if r.ContentLength != 0 {
		// net/http would wait without a limit for the rest of a body, even if the request is refused.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyPatience))
	}
	to := h.find(r)
	guarded := to == nil || !to.probe
	visitor, known := h.visitor(r)
	r = r.WithContext(context.WithValue(r.Context(), visitorKey{}, visitor))
	switch {
	case guard.Refused(r.Method):
		h.refuse(w, r, http.StatusMethodNotAllowed, r.Method+" is not for this port")
	case guarded && !h.cfg.Hosts.Allowed(r.Host):
		h.refuse(w, r, http.StatusMisdirectedRequest,
			"this Host is not allowed: call the port by its address, or allow the name with USHER_ALLOWED_HOSTS")
	case guarded && !known:
		header.Set("WWW-Authenticate", `Basic realm="usher", charset="UTF-8"`)
		h.refuse(w, r, http.StatusUnauthorized,
			"the admin token is missing or wrong: send it as 'Authorization: Bearer TOKEN', or as the "+
				"password of Basic auth")
	case guarded && h.foreign(r, to):
		// A browser that knows the password adds it to the requests of any page.
		h.refuse(w, r, http.StatusForbidden, "a page of another origin can neither read nor act here")
	case to == nil:
		h.refuse(w, r, http.StatusNotFound, "there is no such page")
	case r.Method == http.MethodPost && to.act != nil:
		h.serve(w, r, to, to.act)
	case (r.Method == http.MethodGet || r.Method == http.MethodHead) && to.read != nil:
		h.serve(w, r, to, to.read)
	case to.read == nil:
		header.Set("Allow", "POST")
		h.refuse(w, r, http.StatusMethodNotAllowed, "this is an action: send a POST")
	default:
		header.Set("Allow", "GET, HEAD")
		if to.act != nil {
			header.Set("Allow", "GET, HEAD, POST")
		}
		h.refuse(w, r, http.StatusMethodNotAllowed, "this page can only be read")
	}
}

// serve calls a handler of the route, unless the visitor, the query or the missing inbox rules it out.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, to *route, handler http.HandlerFunc) {
	if visitorOf(r).readOnly && r.Method == http.MethodPost {
		h.fail(w, r, errReadOnly)
		return
	}
	err := to.checkQuery(r.URL.RawQuery)
	if err == nil && to.inbox && h.cfg.Inbox == nil {
		err = errNoInbox
	}
	if err != nil {
		h.fail(w, r, err)
		return
	}
	handler(w, r)
}

var errReadOnly = &refusal{http.StatusForbidden, "this token is read-only: it cannot act"}

var errNoInbox = &refusal{http.StatusNotFound, "this usher has no inbox: USHER_WEBHOOK_INBOX is not set"}

// foreign reports whether a page of another origin acts here, or uses something of this port, such as an
// image or a script. That page could not read the answer, but it could see whether there is one. To follow a
// link to a page of this port is allowed.
func (h *Handler) foreign(r *http.Request, to *route) bool {
	opened := r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	if opened && r.Method != http.MethodPost && (to == nil || !to.file) {
		return false
	}
	asAction := *r // http.CrossOriginProtection allows every GET
	asAction.Method = http.MethodPost
	return h.origin.Check(&asAction) != nil
}

// find returns the route of a request, or nil. It compares the path as it was sent: http.ServeMux would clean
// it, and answer with a redirect.
func (h *Handler) find(r *http.Request) *route {
	path := r.URL.EscapedPath()
	for i := range h.routes {
		if id, ok := h.routes[i].match(path); ok {
			r.SetPathValue("id", id)
			return &h.routes[i]
		}
	}
	return nil
}

func (to *route) match(path string) (id string, ok bool) {
	before, after, wild := strings.Cut(to.path, "{id}")
	if !wild {
		return "", path == to.path
	}
	if id, ok = strings.CutPrefix(path, before); ok {
		id, ok = strings.CutSuffix(id, after)
	}
	return id, ok && id != "" && !strings.Contains(id, "/")
}

func alive(w http.ResponseWriter, _ *http.Request) {
	guard.WriteJSON(w, http.StatusOK, map[string]any{"alive": true})
}

// ready answers /readyz, or /readyz/NAME. A part that is off is 404, not 503: it will not become ready. The
// caller asks the wrong usher, or somebody forgot a setting.
func (h *Handler) ready(p status.Part, names ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		code, problems := http.StatusNotFound, []string{p.Off}
		if p.On {
			code, problems = http.StatusOK, append([]string{}, h.cfg.Health().Unready(names...)...) // [] and not null
		}
		if p.On && len(problems) > 0 {
			code = http.StatusServiceUnavailable
		}
		guard.WriteJSON(w, code, map[string]any{"ready": len(problems) == 0, "problems": problems})
	}
}

// visitor is the sender of a request.
type visitor struct {
	name     string // of the token; may be empty
	readOnly bool   // may not act
}

// visitor returns whose token a request has. known is false if it needs one and has none. All tokens are
// always compared, so that the time it takes says nothing about them.
func (h *Handler) visitor(r *http.Request) (v visitor, known bool) {
	if h.cfg.Token == nil {
		return v, true
	}
	bearer := guard.Bearer(r.Header)
	_, password, _ := r.BasicAuth()
	compare := func(list func() string, readOnly bool) {
		if list == nil {
			return
		}
		tokens, _ := secret.Tokens(list()) // after an error there are none, and nobody gets in
		for _, t := range tokens {
			asBearer, asPassword := guard.Equal(bearer, t.Value), guard.Equal(password, t.Value)
			if asBearer || asPassword {
				v, known = visitor{t.Name, readOnly}, true
			}
		}
	}
	compare(h.cfg.ReadToken, true)
	compare(h.cfg.Token, false)
	return v, known
}

type visitorKey struct{}

// visitorOf returns the sender of a request that was let in.
func visitorOf(r *http.Request) visitor {
	v, _ := r.Context().Value(visitorKey{}).(visitor)
	return v
}

// nameOf returns who sent a request that was let in: the name of the token or, if it has none, the address.
func nameOf(r *http.Request) string {
	if name := visitorOf(r).name; name != "" {
		return name
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}
