// Package admin is the port for those who run usher: is it alive, is it ready, what are
// its figures, what became of a webhook. It knows nothing of how the rest is put
// together; what it shows and does reaches it through the funcs of its Config.
//
// Every page is made of what the API answers: package status, webhooks.go and tenant.go
// put it together, act.go does what people ask for, and answer.go writes it as JSON or as a page.
package admin

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"usher/internal/admin/page"
	"usher/internal/admin/status"
	"usher/internal/entitlements"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/secret"
)

// Config is what the admin port needs to know.
type Config struct {
	// Hosts says which Host headers are answered, but for the health pages, which
	// answer any: probes come by whatever address the pod has. Required.
	Hosts *guard.Hosts
	// Token returns what a caller must know for all but the health pages, as
	// [secret.Tokens] reads it; nil when none is demanded. One that returns the empty
	// string lets nobody in.
	Token func() string
	// ReadToken returns the tokens of those who may look and not act; may be nil.
	ReadToken func() string
	// Unready returns what keeps usher from being ready, in words; nothing when it
	// is. Required.
	Unready func() []string
	// Stopping says that usher is shutting down. Required.
	Stopping func() bool
	// Parts are usher's parts; /readyz/NAME speaks of each alone.
	Parts []Part
	// Metrics serves /metrics. Required.
	Metrics http.Handler
	// Ports returns how the local ports stand. May be nil.
	Ports func() []status.Port
	// Gate returns how the webhook gate stands; nil when it is off.
	Gate func() *status.Gate
	// Decisions are the gate's last; nil when the gate is off.
	Decisions *Decisions
	// Inbox is nil when there is none.
	Inbox *inbox.Inbox
	// Forget drops what dedup remembers of a tenant, and returns of how many lanes; nil
	// when there is no gate. It works without an inbox too.
	Forget func(platform, tenant string) (int, error)
	// Platforms returns those on which a tenant of that code is known. Required with
	// Forget, and with Inbox.
	Platforms func(tenant string) ([]string, error)
	// Entitlements returns what a tenant may use, by its last snapshot; nil when there is no inbox to
	// answer from.
	Entitlements entitlements.Lookup
	// EntitlementsPort returns how a shell calls the port that answers what tenants may use: curl with
	// its options, and the address. Nil: it is off.
	EntitlementsPort func() (curl, base string)
	// Changes returns a number that goes up with whatever a page shows. Required.
	Changes func() uint64
	// Version is shown on the page.
	Version string
	// Log gets refused requests, and what was done by hand. Required.
	Log *slog.Logger
}

// Part is one of usher's parts.
type Part struct {
	Name    string          // as in /readyz/NAME
	Unready func() []string // what keeps it from being ready; nil: it is off
	Off     string          // that it is off, and what switches it on, in words
}

// New returns the handler of the admin port.
func New(cfg Config) *Handler {
	h := &Handler{cfg: cfg, streams: make(chan struct{}, maxStreams), closing: make(chan struct{})}
	h.routes = []route{
		{path: "/healthz", read: h.alive, probe: true},
		{path: "/readyz", read: Part{Unready: cfg.Unready}.ready, probe: true},
		{path: "/metrics", read: cfg.Metrics.ServeHTTP},

		{path: "/", read: h.answer(h.overview)},
		{path: "/webhooks", read: with(h, readSelection, h.webhookPage), params: append(listed, "did")},
		{path: "/webhooks/{id}", read: h.answer(h.oneWebhook)},
		{path: "/webhooks/{id}/payload", read: h.download},
		{path: "/webhooks/{id}/redeliver", read: h.askOne("redeliver"), act: h.one("redeliver"), inbox: true},
		{path: "/webhooks/{id}/discard", read: h.askOne("discard"), act: h.one("discard"), inbox: true},
		{path: "/webhooks/{id}/accept", read: h.askOne("accept"), act: h.one("accept"), inbox: true},
		{path: "/redeliver", read: h.askMany("redeliver"), act: h.many("redeliver"), params: chosen, inbox: true},
		{path: "/discard", read: h.askMany("discard"), act: h.many("discard"), params: chosen, inbox: true},
		{path: "/pause", read: h.ask(h.aboutPause), act: h.do(h.pause), inbox: true},
		{path: "/resume", act: h.do(h.resume), inbox: true},
		{path: "/tenants", read: h.answer(h.tenants), inbox: true},
		{path: "/tenant", read: h.answer(h.oneTenant)},
		{path: "/tenant/forget", read: h.ask(h.aboutForget), act: h.do(h.forget)},
		{path: "/tenant/erase", read: h.ask(h.aboutErase), act: h.do(h.erase), inbox: true},
		{path: "/actions", read: h.answer(h.actions), inbox: true},
		{path: "/static/{id}", read: page.Static},

		{path: "/api/status", read: h.answer(func(*http.Request) (any, error) { return h.status(), nil })},
		{path: "/api/webhooks", read: with(h, readSelection, h.apiWebhooks), params: listed},
		{path: "/api/webhooks/{id}", read: h.answer(func(r *http.Request) (any, error) { return h.webhook(r.PathValue("id")) })},
		{path: "/api/webhooks/{id}/redeliver", act: h.one("redeliver"), params: []string{"force"}, inbox: true},
		{path: "/api/webhooks/{id}/discard", act: h.one("discard"), params: []string{"force"}, inbox: true},
		{path: "/api/redeliver", read: h.many("redeliver"), act: h.many("redeliver"), params: chosen, inbox: true},
		{path: "/api/discard", read: h.many("discard"), act: h.many("discard"), params: chosen, inbox: true},
		{path: "/api/webhooks/{id}/accept", act: h.one("accept"), params: []string{"force"}, inbox: true},
		{path: "/api/export", read: h.export, whole: true, inbox: true},
		{path: "/api/import", act: h.imports, params: []string{"skip_faulty"}, inbox: true},
		{path: "/api/actions", read: h.answer(h.actions), params: []string{"before", "limit"}, inbox: true},
		{path: "/api/pause", act: h.do(h.pause), inbox: true},
		{path: "/api/resume", act: h.do(h.resume), inbox: true},
		{path: "/api/forget", act: h.do(h.forget)},
		{path: "/api/erase", act: h.do(h.erase), inbox: true},
		{path: "/api/tenant", read: h.answer(h.apiTenant), params: []string{"code", "platform"}},
		{path: "/api/tenants", read: h.answer(h.tenants), params: []string{"search", "platform", "after"}, inbox: true},
		{path: "/api/events", read: h.events},
	}
	if cfg.Entitlements != nil {
		h.routes = append(h.routes, route{path: "/api/entitlements", read: cfg.Entitlements.Describe, params: []string{"tenant", "feature", "platform"}})
	}
	for _, p := range cfg.Parts {
		h.routes = append(h.routes, route{path: "/readyz/" + p.Name, read: p.ready, probe: true})
	}
	return h
}

// bodyPatience is for the whole of a request's body.
const bodyPatience = 10 * time.Second

// Handler serves the admin port.
type Handler struct {
	cfg       Config
	routes    []route
	origin    http.CrossOriginProtection
	acted     atomic.Uint64 // things done by hand
	streams   chan struct{} // one for each page that follows
	closing   chan struct{} // closed to end the streams
	closeOnce sync.Once
}

// route is something that the port answers.
type route struct {
	path  string           // as it is sent; {id} stands for one segment
	read  http.HandlerFunc // answers GET and HEAD; may be nil
	act   http.HandlerFunc // answers POST; may be nil
	whole bool             // reading it is an action, too: an export
	probe bool             // answers any Host, and needs no token
	inbox bool             // it is about what is in the inbox

	params []string // what its query may have; nil: nothing under /api/, anything elsewhere
}

// What a query may have: to choose webhooks for an action, and to list them.
var (
	chosen = []string{"state", "tenant", "search", "since", "until", "force"}
	listed = []string{"state", "tenant", "search", "since", "until", "before", "limit", "inbox"}
)

// checkQuery refuses a name that the route does not know. To pass over a slip would mean to list,
// or to act on, everybody's webhooks.
func (to *route) checkQuery(rawQuery string) error {
	if to.params == nil && !strings.HasPrefix(to.path, "/api/") {
		return nil
	}
	query, err := readQuery(rawQuery)
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(to.params, name) {
			return badRequest("%s has no parameter %q; it has: %s", to.path, name, cmp.Or(strings.Join(to.params, ", "), "none"))
		}
	}
	return err
}

// isAPI says whether a program asks, and not a page.
func isAPI(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/api/") }

// acts says whether a request to the route is an action, or asks on a page for one.
func (to *route) acts(r *http.Request) bool {
	return to.whole || to.act != nil && (r.Method == http.MethodPost || !strings.HasPrefix(to.path, "/api/"))
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Security-Policy", page.Policy)
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Referrer-Policy", "same-origin")
	header.Set("X-Content-Type-Options", "nosniff")
	if r.ContentLength != 0 {
		// A body is short here. net/http would wait for the rest of it as long as it
		// takes, also of a request that is refused.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyPatience))
	}
	to := h.find(r)
	guarded := to == nil || !to.probe
	visitor, known := h.visitor(r)
	r = r.WithContext(context.WithValue(r.Context(), visitorKey{}, visitor))
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		header.Set("Connection", "close")
		h.refuse(w, r, http.StatusMethodNotAllowed, r.Method+" is not for this port")
	case guarded && !h.cfg.Hosts.Allowed(r.Host):
		h.refuse(w, r, http.StatusMisdirectedRequest, "this Host is not allowed: call the port by its address, or allow the name with USHER_ALLOWED_HOSTS")
	case guarded && !known:
		header.Set("WWW-Authenticate", `Basic realm="usher", charset="UTF-8"`)
		h.refuse(w, r, http.StatusUnauthorized, "the admin token is missing or wrong: send it as 'Authorization: Bearer TOKEN', or as the password of Basic auth")
	case h.origin.Check(r) != nil:
		// A browser that knows the password adds it to what any page sends.
		h.refuse(w, r, http.StatusForbidden, "a page of another origin can't act here")
	case guarded && embedded(r):
		h.refuse(w, r, http.StatusForbidden, "a page of another origin can't read here")
	case to != nil && visitor.looks && to.acts(r):
		h.refuse(w, r, http.StatusForbidden, "with this token you can look, but not act")
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

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, to *route, handler http.HandlerFunc) {
	err := to.checkQuery(r.URL.RawQuery)
	if err == nil && to.inbox && h.cfg.Inbox == nil {
		err = errNoInbox
	}
	if err != nil {
		h.explain(w, r, err)
		return
	}
	handler(w, r)
}

var errNoInbox = &refusal{http.StatusNotFound, "this usher has no inbox: USHER_WEBHOOK_INBOX is not set"}

// embedded says whether a page of another origin asks for something to use it: an image,
// a script, a stream. It could not read the answer, but it could learn that there is
// one, and hold streams. A link that somebody follows is fine.
func embedded(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return false
	case "":
		// An older browser, or one that does not trust plain http; or no browser.
		origin := r.Header.Get("Origin")
		u, err := url.Parse(origin)
		return origin != "" && (err != nil || u.Host != r.Host)
	default:
		return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
	}
}

// find returns the route that a request is for, or nil. The path is compared as it
// was sent: http.ServeMux would clean it and answer with a redirect.
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

func (h *Handler) alive(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"alive": true})
}

// ready of a part that is off is a 404: the caller asked the wrong usher, or forgot a
// setting, and should not take it for one that will be ready soon.
func (p Part) ready(w http.ResponseWriter, _ *http.Request) {
	status, problems := http.StatusNotFound, []string{p.Off}
	if p.Unready != nil {
		status, problems = http.StatusOK, append([]string{}, p.Unready()...) // [] and not null
	}
	if p.Unready != nil && len(problems) > 0 {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, map[string]any{"ready": len(problems) == 0, "problems": problems})
}

// visitor is who sends a request.
type visitor struct {
	name  string // of the token; may be empty
	looks bool   // and may not act
}

// visitor returns whose token a request has, and whether it has one, or needs none. It always
// compares all of them, so that the time it takes says nothing.
func (h *Handler) visitor(r *http.Request) (v visitor, known bool) {
	if h.cfg.Token == nil {
		return v, true
	}
	bearer := guard.Bearer(r.Header)
	_, password, _ := r.BasicAuth()
	compare := func(list func() string, looks bool) {
		if list == nil {
			return
		}
		tokens, _ := secret.Tokens(list()) // none lets nobody in
		for _, t := range tokens {
			asBearer, asPassword := guard.Equal(bearer, t.Value), guard.Equal(password, t.Value)
			if asBearer || asPassword {
				v, known = visitor{t.Name, looks}, true
			}
		}
	}
	compare(h.cfg.ReadToken, true)
	compare(h.cfg.Token, false)
	return v, known
}

type visitorKey struct{}

// visitorOf returns who sent a request that this port has let in.
func visitorOf(r *http.Request) visitor {
	v, _ := r.Context().Value(visitorKey{}).(visitor)
	return v
}

// Who says who sent a request that this port has let in: the name of the token or, if it has none,
// the address.
func Who(r *http.Request) string {
	if name := visitorOf(r).name; name != "" {
		return name
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}
