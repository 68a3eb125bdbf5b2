package admin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/lane/state"
	"usher/internal/text"
)

// A call is a request for an act: what it is about, and what somebody gave with it.
type call struct {
	*http.Request
	w      http.ResponseWriter
	body   io.ReadCloser // without a limit: a file, or ids
	act    *Act
	given  url.Values    // what it is about, and the act's parameters, which were checked
	on     inbox.Pause   // the tenant or the receiver that it is about; neither: all, or webhooks
	chosen state.State   // the state for which a filter chose the webhooks; empty: none did
	by     *inbox.Action // its entry
	facts  []any         // what the log says beside what it is about
}

// note adds to what the log says.
func (c *call) note(facts ...any) { c.facts = append(c.facts, facts...) }

// is, time and duration return parameters; their zero values if they were not given.
func (c *call) is(name string) bool {
	yes, _ := strconv.ParseBool(c.given.Get(name))
	return yes
}

func (c *call) time(name string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, c.given.Get(name))
	return t
}

func (c *call) duration(name string) time.Duration {
	d, _ := time.ParseDuration(c.given.Get(name))
	return d
}

// actRoutes returns the addresses of an act. Its own name comes first: nothing that people do has another way in.
func (h *Handler) actRoutes(a *Act) (all []route) {
	if a.routes != nil {
		return a.routes(h, a)
	}
	add := func(path string, ask, act func(*call) (any, error), params []string) {
		to := route{path: path, act: h.doing(a, act), params: params, inbox: !a.NoInbox}
		if ask != nil {
			to.read = h.doing(a, ask)
		}
		all = append(all, to)
	}
	if a.onWebhooks == nil {
		add("/api/"+a.Name, nil, h.actOnTarget, nil)
		if a.asks() {
			add(a.address(), h.askTarget, h.actOnTarget, nil)
		} else if a.offer != nil { // a button that acts at once
			add(a.address(), nil, h.actOnTarget, nil)
		}
		return all
	}
	params := a.names()
	add("/webhooks/{id}/"+a.Name, h.askOne, h.actOnOne, nil)
	add("/api/webhooks/{id}/"+a.Name, nil, h.actOnOne, params)
	if !a.ByFilter() {
		add("/api/"+a.Name, nil, h.actOnMany, params)
		return all
	}
	filter := slices.Concat(filterParams, []string{"before"}, params)
	add("/"+a.Name, h.askMany, h.actOnMany, filter)
	add("/api/"+a.Name, h.askMany, h.actOnMany, filter)
	return all
}

// doing makes a handler of what an act does, or asks first. It reads what was given, and what it
// does not take is refused.
func (h *Handler) doing(a *Act, do func(*call) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{w: w, act: a, body: r.Body}
		h.answer(func(r *http.Request) (any, error) {
			c.Request = r
			if err := c.read(); err != nil {
				return nil, err
			}
			return do(c)
		})(w, r)
	}
}

// perform does what somebody asks for. Whatever people do goes through here: it gets its entry, which the
// inbox stores with it, and its line in the log. (That a read-only token gets no further than here, serve
// sees to: each route that has an act needs the right to act.)
func (h *Handler) perform(c *call, about string, do func() error) error {
	c.by = asked(c.Request, c.act.Name, about)
	c.note("about", about)
	err := do()
	h.did(c.Request, err, c.act.Level, c.act.Logged, c.facts...)
	return err
}

// did logs an action, unless err says that it was not done. After inbox.ErrDoubt it may be done; then
// its entry is stored, too.
func (h *Handler) did(r *http.Request, err error, level slog.Level, message string, args ...any) {
	switch {
	case errors.Is(err, inbox.ErrDoubt):
		args = append(args, "confirmed", false)
	case err != nil:
		return
	}
	h.cfg.Log.Log(r.Context(), level, message, append(args, "who", nameOf(r), "from", r.RemoteAddr)...)
}

// UserHeader is the header in which usher's commands send the name of the user at the terminal.
const UserHeader = "Usher-User"

// asked returns the entry of what a request asks for.
func asked(r *http.Request, what, about string) *inbox.Action {
	a := &inbox.Action{Who: nameOf(r), What: what, About: text.Clip(about, 500)}
	if user := r.Header.Get(UserHeader); user != "" {
		a.Who += " (" + text.Visible(text.Clip(user, 64)) + ")"
	}
	return a
}

// read reads what was given: of the API from the address, if it is about webhooks, else from JSON; of a page
// from its form, or from the address of the page that asks.
func (c *call) read() (err error) {
	switch about := c.act.On; {
	case isAPI(c.Request) && about == OnWebhooks:
		c.given, err = readQuery(c.URL.RawQuery)
	case isAPI(c.Request):
		c.given, err = c.readJSON()
	case c.Method == http.MethodPost && c.URL.RawQuery != "" && about != OnWebhooks:
		// The address is that of the page that asks: without names it would mean everything.
		err = badRequest("an action takes its names from the form, not from its address")
	default:
		c.given, err = readForm(c.Request)
	}
	for _, p := range c.act.Params {
		// A field of a form may be empty; what a script left empty must not mean nothing, nor an empty name everything.
		value := c.given.Get(p.Name)
		if given := value != "" || c.given.Has(p.Name) && (isAPI(c.Request) || p.names()); given && err == nil {
			err = p.Check(value)
		}
	}
	return err
}

const wantBody = `the body should be JSON with texts, such as {"tenant":"…"}, {"receiver":"…"} or {}`

// readJSON reads an object of texts. Neither a wrong name nor a value that a script left empty may mean
// everything: {"tenants":"acme"} and {"tenant":""} would pause all deliveries. The Content-Type does not
// matter: ServeHTTP has already refused pages of other origins.
func (c *call) readJSON() (url.Values, error) {
	names := c.act.names()
	body, err := io.ReadAll(c.Body)
	if err != nil {
		return nil, badBody(err)
	}
	given := make(url.Values)
	if len(bytes.TrimSpace(body)) == 0 {
		return given, nil
	}
	var members map[string]*string
	if err := json.Unmarshal(body, &members); err != nil || members == nil {
		return nil, badRequest("%s", wantBody)
	}
	for name, value := range members {
		switch {
		case !slices.Contains(names, name):
			return nil, badRequest("%s: unknown field %q", wantBody, name)
		case value == nil:
			return nil, badRequest("%s: %q is null", wantBody, name)
		}
		given.Set(name, *value)
	}
	return given, nil
}

// readForm returns the values of a form, or of the address of a page that asks for confirmation.
func readForm(r *http.Request) (url.Values, error) {
	if r.Method != http.MethodPost {
		return readQuery(r.URL.RawQuery)
	}
	// A name that is not read, in another kind of body, would mean everything.
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if r.ContentLength != 0 && kind != "application/x-www-form-urlencoded" {
		return nil, badRequest("the body must be a form (application/x-www-form-urlencoded); programs use /api/")
	}
	if err := r.ParseForm(); err != nil {
		return nil, badBody(err)
	}
	return r.PostForm, nil
}

// resolve finds what the call is about, and says it in words. It refuses unknown names: a pause with a typing
// error would hold back nothing.
func (h *Handler) resolve(c *call) (about string, err error) {
	name := inbox.TenantName{Tenant: cmp.Or(c.given.Get("tenant"), c.given.Get("code"))}
	receiver := c.given.Get("receiver")
	if c.given.Has("platform") {
		name.Platform = new(c.given.Get("platform"))
	}
	switch {
	case name.Tenant != "" && receiver != "":
		err = badRequest("name a tenant or a receiver, not both")
	case name.Tenant != "" || c.act.On == OnTenant:
		var t inbox.TenantRef
		t, err = h.knownTenant(c.Context(), name)
		c.on = inbox.Pause{Platform: t.Platform, Tenant: t.Tenant}
	case name.Platform != nil:
		err = badRequest("a platform needs a tenant")
	case receiver != "":
		c.on = inbox.Pause{Receiver: receiver}
		err = h.knownReceiver(c.on)
	}
	switch {
	case c.act.On == OnDeliveries:
		about = c.on.String()
	case c.on.Tenant != "":
		about = inbox.ShowTenant(c.on.Platform, c.on.Tenant)
	}
	for _, p := range c.act.Params { // as options of the command
		if value := c.given.Get(p.Name); p.Flag && !p.names() && value != "" && value != "false" {
			about += " --" + p.Name + onlyIf(p.Is != YesOrNo, " "+value)
		}
	}
	return strings.TrimSpace(about), err
}

// knownReceiver refuses an unknown receiver. Without a gate only other replicas know them.
func (h *Handler) knownReceiver(on inbox.Pause) error {
	var names []string
	for _, rc := range h.cfg.Receivers.All() {
		names = append(names, rc.Name)
	}
	if h.cfg.Gate == nil || slices.Contains(names, on.Receiver) || h.pauseOn(on) != nil {
		return nil
	}
	return &refusal{http.StatusNotFound, "unknown receiver " + on.Receiver + ": the receivers are " +
		strings.Join(names, ", ")}
}

// actOnTarget does an act to anything but webhooks.
func (h *Handler) actOnTarget(c *call) (answer any, err error) {
	about, err := h.resolve(c)
	if err != nil {
		return nil, err
	}
	err = h.perform(c, about, func() (err error) { answer, err = c.act.do(h, c); return err })
	switch {
	case err != nil || isAPI(c.Request):
		return answer, err
	case c.on.Tenant != "":
		return redirect(page.TenantURL(c.on.Platform, c.on.Tenant, c.act.Name)), nil
	}
	return redirect("/?did=" + c.act.Name), nil
}

// askTarget asks before an act is done to anything but webhooks.
func (h *Handler) askTarget(c *call) (any, error) {
	about, err := h.resolve(c)
	if err != nil {
		return nil, err
	}
	question := c.act.confirm(about, "")
	question.Action, question.Fields, question.Back = c.URL.Path, fields(c.on), "/"
	if c.on.Tenant != "" {
		question.Back = page.TenantURL(c.on.Platform, c.on.Tenant, "")
	}
	for _, p := range c.act.Params {
		if p.Label != "" {
			question.Inputs = append(question.Inputs, p)
		}
	}
	if c.act.ask != nil {
		err = c.act.ask(h, c, question)
	}
	return question, err
}

// confirm is the question of an act to something, with what it does to it.
func (a *Act) confirm(to, what string) *confirmation {
	return &confirmation{
		Question: a.Title() + " " + to + "?",
		Effect:   strings.Replace(a.effect, "WHAT", what, 1),
		Button:   a.Title(),
		Danger:   a.Danger,
	}
}

// asks reports whether the page asks before it is done.
func (a *Act) asks() bool { return a.effect != "" || a.ask != nil }

// fields are those of a form, or of an address, about a tenant, a receiver, or all.
func fields(on inbox.Pause) map[string]string {
	switch {
	case on.Tenant != "":
		return map[string]string{"platform": on.Platform, "tenant": on.Tenant}
	case on.Receiver != "":
		return map[string]string{"receiver": on.Receiver}
	}
	return make(map[string]string)
}

// confirmation is a page that asks before an action is done. Its form sends the POST that acts.
// It works without a script.
type confirmation struct {
	Question string
	Effect   string // what the action does
	Warning  string // may be empty
	Button   string // empty if there is nothing to do
	Action   string // address of the POST
	Fields   map[string]string
	Inputs   []Param // what else people may give
	Back     string  // address of the page to return to
	Danger   bool    // draws the button in the colour of a warning

	Other, OtherButton string // address and label of another confirmation; may be empty

	status int // zero means 200
}

// A target is something that acts may be done to.
type target struct {
	on      inbox.Pause // a tenant or a receiver; neither: all deliveries
	webhook *Webhook    // or a webhook
	all     *selection  // or all webhooks that a filter selects
}

// offers returns the buttons of what can be done to a target, of acts on these kinds of targets.
func (h *Handler) offers(t target, kinds ...Target) (all []page.Offer) {
	for _, a := range Acts {
		if !slices.Contains(kinds, a.On) || h.cfg.Inbox == nil && !a.NoInbox {
			continue
		}
		o := page.Offer{
			Act:     a.Name,
			Address: a.address(),
			Fields:  fields(t.on),
			Means:   a.Means,
			Quiet:   a.Quiet,
			Danger:  a.Danger,
		}
		switch {
		case a.On == OnWebhooks:
			a.offerOnWebhooks(t, &o)
		case a.On == OnTenant && t.on.Tenant != "":
			o.Label = a.Title() + " tenant" + onlyIf(a.asks(), "…")
		case a.On == OnDeliveries:
			o.Label = a.Title() + onlyIf(t.on.Same(inbox.Pause{}), " all deliveries") + onlyIf(a.asks(), "…")
		}
		if a.offer != nil {
			a.offer(h, t, &o)
		}
		if o.Label != "" {
			all = append(all, o)
		}
	}
	return all
}

// address is that of the page which asks, and takes the form. The API's is below /api/.
func (a *Act) address() string { return onlyIf(a.On == OnTenant, "/tenant") + "/" + a.Name }

// pauseOn returns the pause of exactly this tenant or receiver, or of all; nil: there is none.
func (h *Handler) pauseOn(on inbox.Pause) *inbox.Pause {
	paused := h.paused()
	if i := slices.IndexFunc(paused, on.Same); i >= 0 {
		return &paused[i]
	}
	return nil
}

// delivers reports whether this usher, or another replica, delivers what is in the inbox: without a gate
// other replicas have the receivers.
func (h *Handler) delivers() bool {
	return h.cfg.Inbox != nil && (h.cfg.Gate == nil || len(h.cfg.Receivers.All()) > 0)
}
