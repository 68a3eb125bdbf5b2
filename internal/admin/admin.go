// Package admin is the port for the people who run usher: health checks, metrics, a JSON API, and pages that
// show the same as the API. It reaches the other parts of usher only through its Config.
//
//	handler.go                             what the handler has: its Config, who asks, what is refused
//	answer.go                              writes an answer as a page or JSON, and turns errors into status codes
//	selection.go, target.go                which webhooks, or which tenant or receiver, a list or an act is about
//	decisions.go                           the gate's last decisions, in memory
//	act.go                                 what an act is, how it is asked for, its entry and its line in the log
//	reconcile.go                           the acts whose answer is a stream: reconcile and backup
//	acts.go                                what people can do: one table
//	doing.go, offers.go                    how it is done; its buttons and dialogs on the pages
//	webhooks.go, tenant.go, overview.go    what a GET shows; package status finds the troubles
//	admin.go                               the routes, and who may use them
package admin

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"usher/internal/admin/history"
	"usher/internal/admin/page"
	"usher/internal/admin/status"
	"usher/internal/guard"
	"usher/internal/secret"
)

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

		{path: "/", read: h.page(h.overview)},
		{path: "/webhooks", read: h.page(h.webhooksPage), params: slices.Concat(listParams, []string{"did", "ask", "force"})},
		{path: "/webhooks/{id}", read: h.page(h.webhookPage)},
		{path: "/webhooks/{id}/payload", read: h.download, file: true},
		{path: "/tenants", read: h.page(h.tenantsPage), inbox: true},
		{path: "/tenant", read: h.page(h.few(h.tenantPage)), inbox: true},
		{path: "/actions", read: h.page(h.actions), inbox: true},
		{path: "/static/{id}", read: page.Static},

		{path: "/api/status", read: h.answer(h.apiStatus), params: []string{"since"}},
		{path: "/api/webhooks", read: h.answer(h.apiWebhooks), params: listParams, inbox: true},
		{path: "/api/webhooks/{id}", read: h.answer(h.apiWebhook), inbox: true},
		{path: "/api/actions", read: h.answer(h.actions), params: []string{"before", "limit"}, inbox: true},
		{path: "/api/tenant", read: h.answer(h.few(h.apiTenant)), params: []string{"code", "platform"}, inbox: true},
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
