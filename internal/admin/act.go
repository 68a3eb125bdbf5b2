package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/text"
	"usher/internal/view"
)

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

// actRoutes returns the addresses of an act: one for forms of the page, and those of the API. Its own name is all of
// them: nothing that people do has another way in.
func (h *Handler) actRoutes(a *Act) []route {
	api := route{path: "/api/" + a.Name, act: h.acting(a), inbox: true}
	if a.On == OnWebhooks {
		api.params = a.allowed()
	}
	if a.ByFilter {
		api.read = h.answer(func(r *http.Request) (any, error) { return h.chosenBy(r, a) })
	}
	switch {
	case a.serve != nil:
		return []route{api}
	case a.On == OnWebhooks:
		return []route{api, {path: "/" + a.Name, act: h.acting(a), inbox: true},
			{path: "/api/webhooks/{id}/" + a.Name, act: h.acting(a), params: a.allowed(), inbox: true}}
	}
	return []route{api, {path: "/" + a.Name, act: h.acting(a), inbox: true}}
}

// maxRequest limits the body of a request; maxIDs that of one with ids: about as many as a command line can have.
const (
	maxRequest = 64 << 10
	maxIDs     = 2 << 20
)

// acting makes the handler of an act.
func (h *Handler) acting(a *Act) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{Request: r, w: w, act: a}
		if a.serve != nil {
			if err := a.serve(h, c); err != nil {
				h.fail(w, r, err)
			}
			return
		}
		most := int64(maxRequest)
		if a.On == OnWebhooks && isAPI(r) {
			most = maxIDs
		}
		r.Body = http.MaxBytesReader(w, r.Body, most)
		h.answer(func(*http.Request) (any, error) {
			err := c.read()
			if err == nil && a.On == OnWebhooks {
				return h.actOnWebhooks(c)
			}
			if err == nil {
				return h.actOnTarget(c)
			}
			return nil, err
		})(w, r)
	}
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

// resolve finds what a call is about that is not about webhooks, and says it in words. It refuses unknown names: a
// pause with a typing error would hold back nothing.
func (h *Handler) resolve(c *call) (about string, err error) {
	name, receiver := inbox.TenantName{Tenant: c.given.Get("tenant")}, c.given.Get("receiver")
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
	if about = c.on.String(); c.act.On == OnTenant {
		about = inbox.ShowTenant(c.on.Platform, c.on.Tenant)
	}
	for _, p := range c.act.Params { // as options of the command
		if value := c.given.Get(p.Name); !p.names() && value != "" {
			about += " --" + p.Name + " " + value
		}
	}
	return about, err
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
func (h *Handler) actOnTarget(c *call) (any, error) {
	about, err := h.resolve(c)
	if err != nil {
		return nil, err
	}
	var result view.Result
	err = h.perform(c, about, func() (err error) { result, err = c.act.do(h, c); return err })
	if err != nil || !isAPI(c.Request) {
		return h.backTo(target{on: c.on}, c.act.Name), err
	}
	return lines(func(write func(any) error) (view.End, error) {
		return view.End{Paused: h.paused()}, write(result)
	}), nil
}

// backTo leads to the page of a target, which says what was done.
func (h *Handler) backTo(t target, did string) redirect {
	address, query, _ := strings.Cut(t.address(), "?")
	values, _ := url.ParseQuery(query)
	values.Set("did", did)
	values.Del("state") // what was done may have changed it
	return redirect(address + "?" + values.Encode())
}

// actOnWebhooks does an act to the webhooks that a call names, or else to all that its filter chooses.
func (h *Handler) actOnWebhooks(c *call) (any, error) {
	err := h.selectFor(c)
	if err != nil {
		return nil, err
	}
	about := cmp.Or(c.selection.String(), view.FirstFew(named(c.ids)))
	named := c.ids != nil
	if !named {
		chosen, err := h.choose(c.Context(), c.act, c.selection, c.is("force"))
		if err != nil {
			return nil, err
		}
		c.ids = chosen.ids
	}
	if isAPI(c.Request) && c.PathValue("id") == "" {
		return lines(func(write func(any) error) (end view.End, err error) {
			end.Left, _ = h.actOn(c, about, func(r *view.Result) error { return write(r) }) // the lines have its error
			end.Paused = h.paused()
			return end, nil
		}), nil
	}
	var last view.Result
	var why []string // some of them: there may be very many
	failed := 0
	left, err := h.actOn(c, about, func(r *view.Result) error {
		if last = *r; r.Failed != "" {
			failed++
			why = append(why, r.ID+": "+r.Failed)[:min(3, failed)]
		}
		return nil
	})
	switch did := c.act.Name; {
	case err != nil && named:
		return nil, err
	case isAPI(c.Request):
		return lines(func(write func(any) error) (view.End, error) { return view.End{Paused: h.paused()}, write(last) }), nil
	case failed > 0:
		return nil, &refusal{http.StatusConflict, view.Plural(len(c.ids)-failed-left, "webhook", "webhooks") + " done, " +
			view.Count(failed+left) + " not: " + view.FirstOf(why, failed)}
	case named:
		return h.backTo(target{webhook: &view.Webhook{ID: last.ID}}, did), nil
	case len(c.ids) == 0:
		return h.backTo(target{all: &c.selection}, "nothing"), nil
	default:
		return h.backTo(target{all: &c.selection}, did+"-all"), nil
	}
}

// actOn does an act to webhooks, and calls each with what came of it. It goes on if one fails; but not if
// the inbox can't be written, or nobody waits for the answer: then some are left. If it was done to none
// of them, err is why not.
func (h *Handler) actOn(c *call, about string, each func(*view.Result) error) (left int, err error) {
	err = h.perform(c, about, func() (why error) {
		var taken []string // as new webhooks
		failed := 0
		for n, id := range c.ids {
			left = len(c.ids) - n - 1
			as, err := c.act.one(h, c, id)
			r := view.Result{ID: strconv.FormatInt(id, 10)}
			if err != nil {
				failed, why = failed+1, err
				r.Failed = cmp.Or(h.inboxTrouble(err), err).Error() // the cause says more than err
			} else if as != id {
				r.New = strconv.FormatInt(as, 10)
				taken = append(taken, r.New)
			}
			if newer, ok := errors.AsType[*lane.OverwriteError](err); ok {
				r.Newer = strconv.FormatInt(newer.Latest.ID, 10)
			}
			stuck := err != nil && h.inboxTrouble(err) != nil || errors.Is(err, inbox.ErrDoubt)
			if each(&r) != nil || stuck || c.Context().Err() != nil {
				break
			}
		}
		done := len(c.ids) - left - failed
		c.note("webhooks", done, "failed", failed, "left", left, "force", c.is("force"), "as", view.FirstFew(taken))
		if done > 0 {
			return nil
		}
		return why
	})
	return left, err
}

func named(ids []int64) (names []string) {
	for _, id := range ids {
		names = append(names, strconv.FormatInt(id, 10))
	}
	return names
}

// selectFor reads the filter of a call. Without ids it must have one, or the act would be about all webhooks.
func (h *Handler) selectFor(c *call) (err error) {
	if c.selection, err = h.readSelection(c.given); err != nil {
		return err
	}
	c.selection.limit = 0
	switch {
	case c.ids == nil && !c.act.ByFilter:
		return badRequest(`say which webhooks: {"ids":["7","8"]}`)
	case c.ids == nil && !c.selection.Narrow():
		return badRequest("say which webhooks: state, tenant, platform, since or until")
	}
	return nil
}

// chosen are the webhooks that a filter chooses. There may be very many: only their ids are kept.
type chosen struct {
	view.Chosen
	ids []int64
}

// choose returns the webhooks that a filter chooses for an act. What arrives later is not among them: its
// numbers are higher. Times would not tell, because this machine's clock may differ from the inbox's.
func (h *Handler) choose(ctx context.Context, a *Act, s selection, force bool) (all chosen, err error) {
	if s.tenant.Tenant != "" {
		if _, err := h.knownTenant(ctx, s.tenant); err != nil {
			return all, err
		}
	}
	if s.before == 0 {
		newest, err := h.cfg.Inbox.List(ctx, inbox.Filter{Limit: 1})
		if err != nil {
			return all, err
		}
		s.before = 1
		for _, w := range newest {
			s.before += w.ID
		}
	}
	if all.ids, all.Older, err = h.selectIDs(ctx, a, s.filter(), force); err != nil {
		return all, err
	}
	// An empty list is written as [], not as null.
	all.Count = len(all.ids)
	all.First = append([]string{}, named(all.ids[:min(len(all.ids), 10)])...)
	all.Before = strconv.FormatInt(s.before, 10)
	return all, nil
}

// selectIDs returns the webhooks to which an act would be done of those that a filter selects.
//
// What is discarded comes with the newest first: otherwise usher could deliver the second webhook of a queue right
// after the first is discarded. What is redelivered comes with the oldest first, and keeps its order. Of a tenant's
// webhooks that wait it is the first: the others follow by themselves. Of the others it is the newest only, because
// an older snapshot would undo it; with force it is all of them.
func (h *Handler) selectIDs(ctx context.Context, a *Act, f inbox.Filter, force bool) (ids []int64, older int, err error) {
	redeliver := a.Name == "redeliver"
	err = h.cfg.Inbox.EachPage(ctx, f, func(page []*lane.Webhook) (err error) {
		var behind map[int64]bool
		if redeliver {
			behind, err = h.cfg.Inbox.Behind(ctx, f, page)
		}
		for _, w := range page {
			switch {
			case redeliver && (w.Rejected() || behind[w.ID]): // there is nothing to send again; it follows the one before it
			case !redeliver && w.State.Finished():
			case redeliver && !force && w.State != state.Waiting && !w.Newest:
				older++
			default:
				ids = append(ids, w.ID)
			}
		}
		return err
	})
	if redeliver {
		slices.Reverse(ids)
	}
	return ids, older, err
}

// chosenBy is GET /api/NAME: what an act would be done to.
func (h *Handler) chosenBy(r *http.Request, a *Act) (any, error) {
	query, err := readQuery(r.URL.RawQuery)
	c := &call{Request: r, act: a, given: query}
	if err == nil {
		err = h.selectFor(c)
	}
	if err != nil {
		return nil, err
	}
	all, err := h.choose(r.Context(), a, c.selection, c.is("force"))
	return all.Chosen, err
}

// A target is something that acts may be done to: it has a page, with buttons for them.
type target struct {
	on      inbox.Pause   // a tenant or a receiver; neither: all deliveries
	webhook *view.Webhook // or a webhook
	all     *selection    // or all webhooks that a filter selects
}

// address is that of its page.
func (t target) address() string {
	switch {
	case t.webhook != nil:
		return t.webhook.URL()
	case t.all != nil:
		return "/webhooks?" + t.all.Query().Encode()
	case t.on.Tenant != "":
		return view.TenantURL(t.on.Platform, t.on.Tenant)
	case t.on.Receiver != "":
		return "/?" + url.Values{"receiver": {t.on.Receiver}}.Encode()
	}
	return "/"
}

// ask is the address of its page with the dialog of an act.
func (t target) ask(act string, force bool) string {
	address, query, _ := strings.Cut(t.address(), "?")
	values, _ := url.ParseQuery(query)
	if values.Set("ask", act); force {
		values.Set("force", "true")
	}
	return address + "?" + values.Encode()
}

// fields are those of a form that names it.
func (t target) fields() map[string]string {
	out := make(map[string]string)
	switch {
	case t.webhook != nil:
		out["id"] = t.webhook.ID
	case t.all != nil:
		for name, values := range t.all.Query() {
			out[name] = values[0]
		}
	case t.on.Tenant != "":
		out["platform"], out["tenant"] = t.on.Platform, t.on.Tenant
	case t.on.Receiver != "":
		out["receiver"] = t.on.Receiver
	}
	return out
}

// offer returns the label of an act's button at a target; empty: it has none there.
func (h *Handler) offer(a *Act, t target) string {
	label := a.Title()
	if a.label != nil {
		label = a.label(h, t)
	}
	onWebhook, onAll := t.webhook != nil, t.all != nil
	switch {
	case h.cfg.Inbox == nil || label == "" || a.serve != nil:
	case onWebhook && a.On == OnWebhooks && t.webhook.InInbox() && a.deny(t.webhook) == nil:
		return label
	case onAll && a.ByFilter && a.mayDo(t.all.Outcome):
		if label == a.Title() {
			label += " all of these"
		}
		return label
	case onWebhook || onAll || a.On == OnWebhooks:
	case a.On == OnTenant && t.on.Tenant != "":
		return label + " tenant"
	case a.On == OnDeliveries && t.on.Same(inbox.Pause{}):
		return label + " all deliveries"
	case a.On == OnDeliveries:
		return label
	}
	return ""
}

// offers returns the buttons of what can be done to a target.
func (h *Handler) offers(t target) (all []page.Offer) {
	for _, a := range Acts {
		label := h.offer(a, t)
		if label == "" {
			continue
		}
		o := page.Offer{Act: a.Name, Label: label, Fields: t.fields(), Means: a.Means, Quiet: a.Quiet, Danger: a.Danger}
		waits := t.webhook != nil && t.webhook.Waits()
		if waits && a.Name == "redeliver" && t.webhook.HeldBy != "" {
			o.Fields = map[string]string{"id": t.webhook.HeldBy}
		}
		if tryNow := waits && a.Name == "redeliver"; a.effect != "" && !tryNow {
			o.Ask, o.Label = t.ask(a.Name, false), label+"…"
		}
		all = append(all, o)
	}
	return all
}

// question is the dialog of the act that an address names; nil: it names none.
func (h *Handler) question(r *http.Request, t target) (*page.Question, error) {
	query := r.URL.Query()
	if query.Get("ask") == "" {
		return nil, nil
	}
	i := slices.IndexFunc(Acts, func(a *Act) bool { return a.Name == query.Get("ask") && a.effect != "" })
	switch {
	case visitorOf(r).readOnly:
		return nil, errReadOnly
	case i < 0:
		return nil, badRequest("there is nothing to ask about %q", query.Get("ask"))
	}
	a, force := Acts[i], query.Get("force") == "true"
	if w := t.webhook; w != nil && a.On == OnWebhooks && w.InInbox() && a.deny(w) != nil {
		return nil, a.deny(w)
	}
	if h.offer(a, t) == "" {
		return nil, &refusal{http.StatusConflict, a.Name + ": this is not possible here as things stand"}
	}
	q := &page.Question{Act: a.Name, Button: a.Title(), Fields: t.fields(), Back: t.address(), Danger: a.Danger}
	what, which := "", ""
	switch {
	case t.webhook != nil:
		w := t.webhook
		if what, which = "webhook "+w.ID, "it"; w.Tenant != "" {
			which = "this snapshot of " + view.TenantName(w.Platform, w.Tenant)
		}
		if w.Newer != "" && a.Name != "discard" {
			q.Warning = "Webhook " + w.Newer + " of the same tenant is newer: this would overwrite it."
			q.Button, q.Danger, q.Fields["force"] = a.Title()+" the old one anyway", true, "true"
		}
	case t.all != nil:
		all, err := h.choose(r.Context(), a, *t.all, force)
		if err != nil {
			return nil, err
		}
		what, which = view.Plural(all.Count, "webhook", "webhooks"), "webhooks "+view.FirstOf(all.First, all.Count)
		if all.Count == 1 {
			which = "webhook " + all.First[0]
		}
		q.Fields["before"] = all.Before
		if all.Older > 0 {
			q.Warning = view.Plural(all.Older, "older one is", "older ones are") +
				" left out: the same tenants have newer ones, which they would undo."
			q.Other, q.OtherButton = t.ask(a.Name, true), a.Title()+" the older ones, too…"
		}
		if force {
			q.Fields["force"], q.Danger, q.Warning = "true", true, "Older snapshots among them may undo newer ones."
		}
		if all.Count == 0 {
			q.Words, q.Effect, q.Button = "There is nothing to "+a.Name, a.none, ""
			return q, nil
		}
	case a.On == OnTenant:
		what = view.TenantName(t.on.Platform, t.on.Tenant)
		words, err := h.toErase(r.Context(), t.on.Platform, t.on.Tenant)
		if err != nil {
			return nil, err
		}
		q.Warning = words
	default:
		what = t.on.String()
	}
	q.Words, q.Effect = a.Title()+" "+what+"?", strings.Replace(a.effect, "WHAT", which, 1)
	for _, p := range a.Params {
		if p.Label != "" {
			q.Inputs = append(q.Inputs, page.Input{Name: p.Name, Label: p.Label})
		}
	}
	return q, nil
}

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

// noticeOf returns what a page says after an action. The parameter did of the page's address has the key, not
// the text: nobody can make a page say something else with a link.
func noticeOf(did string) string {
	notices := map[string]string{"nothing": "Nothing was done: no webhook matches any more."}
	for _, a := range Acts {
		maps.Copy(notices, map[string]string{a.Name: a.did, a.Name + "-all": a.didAll})
	}
	return notices[did]
}
