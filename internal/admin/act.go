package admin

import (
	"bytes"
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

	"usher/internal/inbox"
	"usher/internal/lane/state"
	"usher/internal/text"
	"usher/internal/view"
)

// An Act is something that people do. Everything that is special about it is in its row of Acts: the routes, the
// dialogs, the buttons, the notices, the log, the entry in the list of actions, and the commands of 'usher inbox'
// with their help come from there.
type Act struct {
	Name   string     // in addresses, as a command, and in the list of actions
	On     Target     // what it is done to
	Params []Param    // what it takes beside that
	logged string     // the message
	level  slog.Level // of the message

	// What it does: to a webhook, whose id it returns (a new one, if it was taken in), or to anything else. serve
	// writes an answer of its own.
	one   func(h *Handler, c *call, id int64) (int64, error)
	do    func(h *Handler, c *call) (view.Result, error)
	serve func(h *Handler, c *call) error

	// On webhooks: deny says why it cannot be done to one as it stands, or to those in a state. ByFilter: it can be
	// done to all that a filter selects.
	deny     func(w *view.Webhook) error
	ByFilter bool

	// The page. Without effect it asks nothing.
	effect string // what it does; WHAT stands for the webhooks
	// label is that of its button, before what it is done to; empty: it has none. Nil: its name.
	label         func(h *Handler, t target) string
	Means         string // beside the button
	Danger, Quiet bool   // how its button looks
	did, didAll   string // what the page says afterwards
	none          string // what it says if it is done to none of the webhooks that a filter selects

	// The command: its help (empty: it is no command of 'usher inbox'), what it asks first (empty: nothing; TENANT
	// stands for the tenant), and what it says of each webhook. In Done, ID stands for the webhook's new id. Instead
	// has states for which it says what to do instead.
	Help, Question string
	Done, NotDone  string
	Instead        map[state.State]string
	Download       bool // it answers with a file
}

// Target is what an act is done to.
type Target int

const (
	OnInbox      Target = iota // the whole of it
	OnWebhooks                 // one, several by their ids or, if the act can choose, all that a filter selects
	OnTenant                   // one
	OnDeliveries               // all, those of a tenant, or those to a receiver
)

// A Param is something that an act takes.
type Param struct {
	Name  string // of the API, of forms, and as a flag
	Is    string // one of the kinds
	Label string // of its field in the dialog; empty: it has none
}

// The kinds of values, as people read them.
const (
	YesOrNo   = "true or false"
	duration  = "a time span of at most 8784h, such as 2h or 30m" // a year
	ATenant   = "the code of a tenant"                            // with the parameter platform beside it
	aReceiver = "the name of a receiver"
)

var (
	force      = Param{Name: "force", Is: YesOrNo}
	ofTenant   = Param{Name: "tenant", Is: ATenant}
	ofReceiver = Param{Name: "receiver", Is: aReceiver}
)

// Check says what is wrong with a value.
func (p *Param) Check(value string) (err error) {
	switch p.Is {
	case YesOrNo:
		_, err = strconv.ParseBool(value)
	case duration:
		var d time.Duration
		if d, err = time.ParseDuration(value); err == nil && (d <= 0 || d > inbox.LongestPause) {
			err = errors.New("too short or too long")
		}
	case ATenant, aReceiver: // that it is known is asked later
		if value == "" {
			err = errors.New("empty")
		}
	}
	if err != nil {
		return badRequest("%s is %q, but should be %s", p.Name, text.Clip(value, maxText), p.Is)
	}
	return nil
}

// names reports whether it says what the act is about.
func (p *Param) names() bool { return p.Is == ATenant || p.Is == aReceiver }

// Title is its name at the beginning of a sentence or on a button.
func (a *Act) Title() string { return strings.ToUpper(a.Name[:1]) + a.Name[1:] }

// Args are the arguments of its command.
func (a *Act) Args() string {
	switch {
	case a.On == OnWebhooks:
		return "ID..."
	case a.On == OnTenant:
		return "TENANT"
	case a.Download:
		return "FILE"
	}
	return ""
}

// Flags are the names of the flags of its command, beside those of a filter.
func (a *Act) Flags() (all []string) {
	for _, p := range a.Params {
		all = append(all, p.Name)
	}
	if a.On == OnWebhooks || a.Question != "" {
		all = append(all, "yes")
	}
	return all
}

// allowed are the names of all that it takes.
func (a *Act) allowed() (all []string) {
	switch {
	case a.ByFilter:
		all = append(slices.Clone(filterParams), "before")
	case a.On == OnTenant:
		all = append(all, "tenant", "platform")
	case a.On == OnDeliveries:
		all = append(all, "platform")
	}
	for _, p := range a.Params {
		all = append(all, p.Name)
	}
	return all
}

// mayDo reports whether it can be done to webhooks in a state; empty: to those in some state.
func (a *Act) mayDo(outcome string) bool {
	return outcome == "" || a.deny(&view.Webhook{State: state.State(outcome)}) == nil
}

// A call is a request for an act: what it is about, and what somebody gave with it.
type call struct {
	*http.Request
	w         http.ResponseWriter
	act       *Act
	given     url.Values    // what it is about, and the act's parameters, which were checked
	ids       []int64       // the webhooks that it names; nil: it names none
	selection selection     // of webhooks, if it has a filter
	on        inbox.Pause   // the tenant or the receiver that it is about; neither: all, or webhooks
	by        *inbox.Action // its entry
	facts     []any         // what the log says beside what it is about
}

// note adds to what the log says.
func (c *call) note(facts ...any) { c.facts = append(c.facts, facts...) }

// is returns a parameter that is true or false.
func (c *call) is(name string) bool {
	yes, _ := strconv.ParseBool(c.given.Get(name))
	return yes
}

// perform does what somebody asks for. Whatever people do goes through here: it gets its entry, which the
// inbox stores with it, and its line in the log, unless it was not done. After inbox.ErrDoubt it may be done; then
// its entry is stored, too. (That a read-only token gets no further than here, serve sees to: each route that has an
// act needs the right to act.)
func (h *Handler) perform(c *call, about string, do func() error) error {
	c.by = &inbox.Action{Who: nameOf(c.Request), What: c.act.Name, About: text.Clip(about, 500)}
	if user := c.Header.Get(UserHeader); user != "" {
		c.by.Who += " (" + text.Visible(text.Clip(user, 64)) + ")"
	}
	err := do()
	if errors.Is(err, inbox.ErrDoubt) {
		c.note("confirmed", false)
	} else if err != nil {
		return err
	}
	facts := append([]any{"about", about}, c.facts...)
	h.cfg.Log.Log(c.Context(), c.act.level, c.act.logged, append(facts, "who", nameOf(c.Request), "from", c.RemoteAddr)...)
	return err
}

// UserHeader is the header in which usher's commands send the name of the user at the terminal.
const UserHeader = "Usher-User"

// read reads what was given: of a page from its form; of the API from the address and the body's ids if it is about
// webhooks, else from JSON. What the act does not take is refused: a name that is not read would mean everything.
func (c *call) read() (err error) {
	api, about := isAPI(c.Request), c.act.On
	switch {
	case api && about == OnWebhooks: // the route has checked the names
		if c.given, err = readQuery(c.URL.RawQuery); err == nil {
			c.ids, err = c.readIDs()
		}
	case api:
		c.given, err = c.readJSON()
	default:
		c.given, err = c.readForm()
	}
	if err != nil {
		return err
	}
	for _, p := range c.act.Params {
		// A field of a form may be empty; what a script left empty must not mean nothing, nor an empty name everything.
		value := c.given.Get(p.Name)
		if value != "" || c.given.Has(p.Name) && (api || p.names()) {
			if err := p.Check(value); err != nil {
				return err
			}
		}
	}
	return nil
}

const wantBody = `the body should be JSON with texts, such as {"tenant":"…"}, {"receiver":"…"} or {}`

// readJSON reads an object of texts. Neither a wrong name nor a value that a script left empty may mean
// everything: {"tenants":"acme"} and {"tenant":""} would pause all deliveries. The Content-Type does not
// matter: ServeHTTP has already refused pages of other origins.
func (c *call) readJSON() (url.Values, error) {
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
		if value == nil || !slices.Contains(c.act.allowed(), name) {
			return nil, badRequest("%s: unknown field %q, or it is null", wantBody, name)
		}
		given.Set(name, *value)
	}
	return given, nil
}

// readForm reads the form of a page. An id in it names a webhook.
func (c *call) readForm() (url.Values, error) {
	kind, _, _ := mime.ParseMediaType(c.Header.Get("Content-Type"))
	if c.ContentLength != 0 && kind != "application/x-www-form-urlencoded" {
		return nil, badRequest("the body must be a form (application/x-www-form-urlencoded); programs use /api/")
	}
	if c.URL.RawQuery != "" {
		return nil, badRequest("an action takes its names from the form, not from its address")
	}
	if err := c.ParseForm(); err != nil {
		return nil, badBody(err)
	}
	allowed := c.act.allowed()
	if c.act.On == OnWebhooks {
		allowed = append(allowed, "id")
	}
	for name, values := range c.PostForm {
		if !slices.Contains(allowed, name) || len(values) > 1 {
			return nil, badRequest("the form has an unknown field %q, or has it twice", name)
		}
	}
	if !c.PostForm.Has("id") {
		return c.PostForm, nil
	}
	id, err := webhookID(c.PostForm.Get("id"))
	c.ids = []int64{id}
	return c.PostForm, err
}

func webhookID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		err = inbox.ErrNotFound
	}
	return id, err
}

// readIDs reads the ids that a call of the API has: in its path, or in its body, as {"ids":["7","8"]}. Nil: it has none.
func (c *call) readIDs() (ids []int64, err error) {
	if in := c.PathValue("id"); in != "" {
		id, err := webhookID(in)
		return []int64{id}, err
	}
	raw, err := io.ReadAll(c.Body)
	switch {
	case err != nil:
		return nil, badBody(err)
	case len(bytes.TrimSpace(raw)) == 0:
		return nil, nil
	}
	var body struct{ IDs []json.Number }
	if err := json.Unmarshal(raw, &body); err != nil || body.IDs == nil {
		return nil, badRequest(`the body should be JSON, such as {"ids":["7","8"]}, or empty`)
	}
	ids = []int64{} // not nil
	seen := make(map[int64]bool)
	for _, id := range body.IDs {
		n, err := id.Int64()
		if err != nil {
			return nil, badRequest("%q is no id: ids are numbers", id)
		}
		if !seen[n] {
			ids, seen[n] = append(ids, n), true
		}
	}
	return ids, nil
}
