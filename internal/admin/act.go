package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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
	"usher/internal/inbox/engine"
	"usher/internal/text"
)

// A call is a request for an act: what it is about, and what somebody gave with it.
type call struct {
	*http.Request
	w      http.ResponseWriter
	body   io.ReadCloser // without a limit: of an import
	act    *Act
	given  url.Values // the target, and the act's parameters, which were checked
	tenant TenantRef  // the target, once it was found
	pause  inbox.Pause
	by     *inbox.Action // its entry
}

// is, time and duration return parameters; their zero values if they were not given.
func (c *call) is(name string) bool {
	yes, _ := parseYes(c.given.Get(name))
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

// parseYes reads true or false. Nothing is false.
func parseYes(value string) (bool, error) {
	if value == "" {
		return false, nil
	}
	return strconv.ParseBool(value)
}

// address is that of the page which asks, and takes the form. The API's is below /api/.
func (a *Act) address() string {
	if a.On == OnTenant {
		return "/tenant/" + a.Name
	}
	return "/" + a.Name
}

// actRoutes returns the addresses of an act. Its own name comes first: nothing that people do has another way in.
func (h *Handler) actRoutes(a *Act) (all []route) {
	if a.routes != nil {
		return a.routes(h, a)
	}
	params := []string{} // of the address of the API
	for _, p := range a.Params {
		if a.On == OnWebhooks || a.On == OnInbox && a.ask == nil { // else they are in the body
			params = append(params, p.Name)
		}
	}
	add := func(path string, ask, act func(*call) (any, error), params []string) {
		to := route{path: path, act: h.doing(a, act), params: params, inbox: !a.NoInbox}
		if ask != nil {
			to.read = h.doing(a, ask)
		}
		all = append(all, to)
	}
	switch {
	case a.onWebhooks == nil:
		add("/api/"+a.Name, nil, h.actOnTarget, params)
		if a.ask != nil {
			add(a.address(), h.askTarget, h.actOnTarget, nil)
		} else if a.did != "" { // a form of another page
			add(a.address(), nil, h.actOnTarget, nil)
		}
		return all
	case a.ByFilter():
		filter := slices.Concat(filterParams, []string{"before"}, params)
		add("/"+a.Name, h.askMany, h.actOnMany, filter)
		add("/api/"+a.Name, h.countMany, h.actOnMany, filter)
	default:
		add("/api/"+a.Name, nil, h.actOnMany, params)
	}
	add("/webhooks/{id}/"+a.Name, h.askOne, h.actOnOne, nil)
	add("/api/webhooks/{id}/"+a.Name, nil, h.actOnOne, params)
	return all
}

// doing makes a handler of what an act does, or asks first. It reads what was given, and what it does not take is refused.
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

// perform does what somebody asks for. Whatever people do goes through here: it gets its entry, which the inbox stores with it, and its line in
// the log. (That a read-only token gets no further than here, serve sees to: each route that has an act needs the right to act.) do returns
// what the log says beside what the act is about.
func (h *Handler) perform(c *call, about string, do func() (facts []any, err error)) error {
	c.by = asked(c.Request, c.act.Name, about)
	facts, err := do()
	h.did(c.Request, err, c.act.Level, c.act.Logged, append([]any{"about", about}, facts...)...)
	return err
}

// did logs an action, unless err says that it was not done. After inbox.ErrDoubt it may be done; then its entry is stored, too.
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

// inboxTrouble returns why the inbox takes no webhooks, or nil if it does or there is none. err is what it said last: a read may fail before
// the writer has noticed anything.
func (h *Handler) inboxTrouble(err error) error {
	if h.cfg.Inbox == nil {
		return nil
	}
	if trouble := h.cfg.Inbox.Health().Err; trouble != nil {
		return trouble
	}
	if away, ok := errors.AsType[*engine.AwayError](err); ok {
		return away
	}
	return nil
}

// read reads what was given: of the API from the address, if it is about webhooks, else from JSON; of a page from its form, or from the address of
// the page that asks.
func (c *call) read() (err error) {
	switch a := c.act; {
	case isAPI(c.Request) && (a.On == OnWebhooks || a.On == OnInbox && a.ask == nil):
		c.given, err = readQuery(c.URL.RawQuery)
	case isAPI(c.Request):
		c.given, err = c.readJSON()
	case c.Method == http.MethodPost && c.URL.RawQuery != "" && a.On != OnWebhooks: // as of the page that asks: it would mean everything
		err = badRequest("an action takes its names from the form, not from its address")
	default:
		c.given, err = readForm(c.Request)
	}
	if err != nil {
		return err
	}
	for _, p := range c.act.Params {
		// A field of a form may be empty; what a script left empty must not mean nothing.
		if value := c.given.Get(p.Name); value != "" || isAPI(c.Request) && c.given.Has(p.Name) {
			if err := p.Check(value); err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"tenant", "receiver"} { // an empty name must not mean everything
		if c.act.On != OnWebhooks && c.given.Has(name) && c.given.Get(name) == "" {
			return badRequest("%s, but the %s is empty", wantBody, name)
		}
	}
	return nil
}

const wantBody = `the body should be JSON, such as {"tenant":"…"}, {"receiver":"…"} or {}`

// readJSON reads an object of texts. Neither a wrong name nor a value that a script left empty may mean everything: {"tenants":"acme"} and
// {"tenant":""} would pause all deliveries. The Content-Type does not matter: ServeHTTP has already refused pages of other origins.
func (c *call) readJSON() (url.Values, error) {
	names := map[Target][]string{OnTenant: {"tenant", "platform"}, OnDeliveries: {"tenant", "platform", "receiver"}}[c.act.On]
	for _, p := range c.act.Params {
		names = append(names, p.Name)
	}
	body, err := io.ReadAll(c.Body)
	if err != nil {
		return nil, badBody(err)
	}
	given := make(url.Values)
	if len(bytes.TrimSpace(body)) == 0 {
		return given, nil
	}
	var members map[string]*string
	err = json.Unmarshal(body, &members)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok { // its text names our Go types
		err = fmt.Errorf("it has a JSON %s in the wrong place", wrong.Value)
	}
	if err == nil && members == nil {
		err = errors.New("it is null")
	}
	for name, value := range members {
		switch {
		case !slices.Contains(names, name):
			err = fmt.Errorf("unknown field %q", name)
		case value == nil:
			err = fmt.Errorf("%q is null", name)
		default:
			given.Set(name, *value)
		}
	}
	if err != nil {
		return nil, badRequest("%s: %v", wantBody, err)
	}
	return given, nil
}

// readForm returns the values of a form, or of the address of a page that asks for confirmation.
func readForm(r *http.Request) (url.Values, error) {
	if r.Method != http.MethodPost {
		return readQuery(r.URL.RawQuery)
	}
	// A name that is not read, in another kind of body, would mean everything.
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); r.ContentLength != 0 && kind != "application/x-www-form-urlencoded" {
		return nil, badRequest("the body must be a form (application/x-www-form-urlencoded); programs use /api/")
	}
	if err := r.ParseForm(); err != nil {
		return nil, badBody(err)
	}
	return r.PostForm, nil
}

// resolve finds the target, and returns what the call is about, in words.
func (h *Handler) resolve(c *call) (about string, err error) {
	ctx := c.Context()
	switch c.act.On {
	case OnTenant:
		name, err := c.tenantName()
		if err == nil {
			c.tenant, err = h.knownTenant(ctx, name)
		}
		if err != nil {
			return "", err
		}
		about = c.tenant.written()
	case OnDeliveries:
		if c.pause, err = h.pauseOf(c); err != nil {
			return "", err
		}
		about = c.pause.String()
	}
	for _, p := range c.act.Params { // as options of the command
		if value := c.given.Get(p.Name); p.Flag && value != "" && value != "false" {
			about += " --" + p.FlagName() + onlyIf(p.Is != yesOrNo, " "+value)
		}
	}
	return strings.TrimSpace(about), nil
}

// tenantName returns the tenant that was given.
func (c *call) tenantName() (name inbox.TenantName, err error) {
	if !isAPI(c.Request) && c.act.On == OnTenant {
		return readTenant(c.given)
	}
	if name.Tenant = c.given.Get("tenant"); c.given.Has("platform") {
		name.Platform = new(c.given.Get("platform"))
	}
	return name, nil
}

// readTenant reads the tenant of a page from its query.
func readTenant(query url.Values) (name inbox.TenantName, err error) {
	name.Tenant, name.Platform = query.Get("code"), new(query.Get("platform"))
	if name.Tenant == "" {
		return name, badRequest("code is missing: give the tenant's code as code, and the platform's code as platform")
	}
	return name, nil
}

// actOnTarget does an act to anything but webhooks.
func (h *Handler) actOnTarget(c *call) (answer any, err error) {
	about, err := h.resolve(c)
	if err != nil {
		return nil, err
	}
	err = h.perform(c, about, func() (facts []any, err error) {
		answer, facts, err = c.act.do(h, c)
		return facts, err
	})
	if err != nil || isAPI(c.Request) {
		return answer, err
	}
	return redirect(c.next()), nil
}

// next is the page to go to afterwards.
func (c *call) next() string {
	notice := onlyIf(c.act.did != "", c.act.Name)
	switch on := c.on(); {
	case c.act.gone:
		return "/webhooks?did=" + notice
	case on.Tenant != "":
		return page.TenantURL(on.Platform, on.Tenant, notice)
	case notice != "":
		return "/?did=" + notice
	}
	return "/"
}

// on is the tenant or the receiver that the call is about; empty: all.
func (c *call) on() inbox.Pause {
	if c.act.On == OnTenant {
		return inbox.Pause{Platform: c.tenant.Platform, Tenant: c.tenant.Tenant}
	}
	return c.pause
}

// askTarget asks before an act is done to anything but webhooks.
func (h *Handler) askTarget(c *call) (any, error) {
	if _, err := h.resolve(c); err != nil {
		return nil, err
	}
	question, err := c.act.ask(h, c)
	if err != nil {
		return nil, err
	}
	question.Action, question.Danger, question.Back = c.act.address(), c.act.Danger, "/"
	if question.Fields == nil {
		question.Fields = make(map[string]string)
	}
	on := c.on()
	switch {
	case c.act.On == OnTenant:
		question.Fields["platform"], question.Fields["code"] = on.Platform, on.Tenant
	case on.Tenant != "":
		question.Fields["platform"], question.Fields["tenant"] = on.Platform, on.Tenant
	case on.Receiver != "":
		question.Fields["receiver"] = on.Receiver
	}
	if on.Tenant != "" {
		question.Back = page.TenantURL(on.Platform, on.Tenant, "")
	}
	for _, p := range c.act.Params {
		if p.Label != "" {
			question.Inputs = append(question.Inputs, p)
		}
	}
	return question, nil
}

// query is the query of the address of a page that asks, for the tenant, the receiver, or all.
func onQuery(on inbox.Pause, asCode bool) string {
	switch {
	case on.Tenant != "" && asCode:
		return "?" + url.Values{"platform": {on.Platform}, "code": {on.Tenant}}.Encode()
	case on.Tenant != "":
		return "?" + url.Values{"platform": {on.Platform}, "tenant": {on.Tenant}}.Encode()
	case on.Receiver != "":
		return "?" + url.Values{"receiver": {on.Receiver}}.Encode()
	}
	return ""
}

// confirmation is a page that asks before an action is done. Its form sends the POST that acts. It works without a script.
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

// pauseOf returns the pause that a call is about. It refuses unknown names: a pause with a typing error would hold back nothing.
func (h *Handler) pauseOf(c *call) (p inbox.Pause, err error) {
	name, _ := c.tenantName()
	p.Receiver = c.given.Get("receiver")
	switch {
	case name.Tenant != "" && p.Receiver != "":
		return p, badRequest("name a tenant or a receiver, not both")
	case name.Tenant == "" && name.Platform != nil:
		return p, badRequest("a platform needs a tenant")
	case name.Tenant != "":
		named, err := h.knownTenant(c.Context(), name)
		return inbox.Pause{Platform: named.Platform, Tenant: named.Tenant}, err
	case p.Receiver != "" && h.cfg.Gate != nil: // without a gate only other replicas know the receivers
		var names []string
		for _, rc := range h.cfg.Receivers.All() {
			names = append(names, rc.Name)
		}
		if !slices.Contains(names, p.Receiver) && h.pauseOn(p) == nil {
			return p, &refusal{http.StatusNotFound, "unknown receiver " + p.Receiver + ": the receivers are " + strings.Join(names, ", ")}
		}
	}
	return p, nil
}

// pauseOn returns the pause of exactly this tenant or receiver, or of all; nil: there is none.
func (h *Handler) pauseOn(on inbox.Pause) *inbox.Pause {
	paused := h.paused()
	if i := slices.IndexFunc(paused, on.Same); i >= 0 {
		return &paused[i]
	}
	return nil
}

// delivers reports whether this usher, or another replica, delivers what is in the inbox: without a gate other replicas have the receivers.
func (h *Handler) delivers() bool {
	return h.cfg.Inbox != nil && (h.cfg.Gate == nil || len(h.cfg.Receivers.All()) > 0)
}
