package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/content"
	"usher/internal/inbox"
	"usher/internal/inbox/engine"
	"usher/internal/snapshot"
	"usher/internal/text"
)

// The answers of the API to actions. Package command decodes them.
type (
	// Done is the answer of POST /api/webhooks/{id}/VERB.
	Done struct {
		ID     string        `json:"id"`               // of the webhook; of accept: of the new webhook
		Paused []inbox.Pause `json:"paused,omitempty"` // the pauses in force, which may hold back the webhook
	}

	// Chosen is the answer of GET /api/VERB: the webhooks that it would be done to, in that order.
	Chosen struct {
		Webhooks []string `json:"webhooks"` // ids
		Older    int      `json:"older"`    // how many were left out because their tenant has a newer one; with force they are chosen, too

		// Of a platform's tenants, how many cannot be sent again, because the inbox no longer has their last webhook. Some are named.
		Gone        int      `json:"gone,omitempty"`
		GoneTenants []string `json:"gone_tenants,omitempty"`
	}

	// Acted is the answer of POST /api/VERB.
	Acted struct {
		Done   []string          `json:"done"`             // ids
		Failed map[string]string `json:"failed,omitempty"` // why, by id
		Newer  map[string]string `json:"newer,omitempty"`  // by id of one that failed: the newer webhook that it would overwrite without force
		New    map[string]string `json:"new,omitempty"`    // of accept: the new webhooks, by id

		// Unknown are those that failed because accept would make usher's answers about their tenant unknown; with unknown=true it does.
		Unknown []string `json:"unknown,omitempty"`

		Left   int           `json:"left,omitempty"`   // how many were not tried, because the inbox can't be written
		Paused []inbox.Pause `json:"paused,omitempty"` // the pauses in force, which may hold back the webhooks
	}

	// TenantRef names the tenant that an action was done to.
	TenantRef struct {
		Platform string `json:"platform"`
		Tenant   string `json:"tenant"`
	}

	// Forgotten is the answer of POST /api/forget.
	Forgotten struct {
		TenantRef
		Forgotten int `json:"forgotten"` // 0: dedup remembered nothing of the tenant
	}

	// Dismissed is the answer of POST /api/dismiss.
	Dismissed struct {
		Outages  int `json:"outages"`  // how many times in which no gate was ready
		Webhooks int `json:"webhooks"` // how many webhooks got a 5xx before their tenant was known
	}

	// DismissUntil is its body. It may be missing.
	DismissUntil struct {
		Until time.Time `json:"until,omitzero"` // what came later is not dismissed; zero: all is
	}

	// Erased is the answer of POST /api/erase.
	Erased struct {
		TenantRef
		Webhooks int `json:"webhooks"` // how many were deleted
	}

	// Resumed is the answer of POST /api/resume.
	Resumed struct {
		inbox.Pause
		Was    bool          `json:"was_paused"`
		Paused []inbox.Pause `json:"paused,omitempty"` // the pauses that are still in force
	}
)

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

// UserHeader is the header in which usher's commands send the name of the user at the terminal.
const UserHeader = "Usher-User"

// asked returns the action that a request asks for.
func asked(r *http.Request, what, about string) *inbox.Action {
	a := &inbox.Action{Who: nameOf(r), What: what, About: text.Clip(about, 500)}
	if user := r.Header.Get(UserHeader); user != "" {
		a.Who += " (" + text.Visible(text.Clip(user, 64)) + ")"
	}
	return a
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

// act does a verb to a webhook, as a part of an action. chosen is the state for which a filter chose it, if any.
func (h *Handler) act(r *http.Request, v *Verb, by *inbox.Action, id string, chosen inbox.State, o options) (Done, error) {
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return Done{}, inbox.ErrNotFound
	}
	if v.agree != nil && !o.unknown {
		if err := v.agree(h, r.Context(), n); err != nil {
			return Done{}, err
		}
	}
	as, err := v.do(h, task{n, chosen, by, o})
	done, args := Done{ID: id}, []any{"id", n, "force", o.force}
	if err == nil && as != n {
		done.ID, args = strconv.FormatInt(as, 10), append(args, "as", as)
	}
	h.did(r, err, slog.LevelInfo, v.logged, args...)
	return done, err
}

// actOnOne does an action to the webhook whose id is in the path.
func (h *Handler) actOnOne(v *Verb) http.HandlerFunc {
	return with(h, readOptions, func(r *http.Request, o options) (any, error) {
		id := r.PathValue("id")
		done, err := h.act(r, v, asked(r, v.Name, id), id, "", o)
		overwrite, older := errors.AsType[*inbox.OverwriteError](err)
		switch {
		case isAPI(r):
			if err == nil {
				done.Paused = h.paused()
			}
			return done, err
		case older: // the page asks once more, and says what would be overwritten
			c := v.confirmOverwrite(id, overwrite)
			if o.unknown {
				c.Fields["unknown"] = "true"
			}
			return c, nil
		}
		return redirect("/webhooks/" + id + "?did=" + v.Name), err
	})
}

// actOnMany does an action to many webhooks: to those whose ids the body has, or else to all that a filter chooses. A GET of the API
// returns which these are.
func (h *Handler) actOnMany(v *Verb) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body := http.MaxBytesReader(w, r.Body, maxIDs) // h.answer allows less
		h.answer(func(r *http.Request) (any, error) {
			ids, err := readIDs(r, body)
			if err != nil {
				return nil, err
			}
			if ids == nil && !v.ByFilter() {
				return nil, badRequest(`say which webhooks: {"ids":["7","8"]}`)
			}
			s, err := readChoice(r, ids != nil)
			if err != nil {
				return nil, err
			}
			about := s.String()
			if ids == nil {
				chosen, err := h.choose(r.Context(), v, s)
				if err != nil || r.Method != http.MethodPost {
					return chosen, err
				}
				ids = chosen.Webhooks
			} else if about == "" {
				about = page.FirstFew(ids)
			}
			acted := h.actOn(r, v, asked(r, v.Name, about), ids, inbox.State(s.Outcome), s.options)
			if isAPI(r) {
				return acted, nil
			}
			return acted.page(v, s)
		})(w, r)
	}
}

// maxIDs limits the body of a request with ids.
const maxIDs = 16 << 20

// readIDs reads the ids that the body of an API call has: {"ids":["7","8"]}. Nil: there is no body.
func readIDs(r *http.Request, from io.Reader) ([]string, error) {
	if !isAPI(r) || r.Method != http.MethodPost {
		return nil, nil
	}
	raw, err := io.ReadAll(from)
	switch {
	case err != nil:
		return nil, badBody(err)
	case len(bytes.TrimSpace(raw)) == 0:
		return nil, nil
	}
	var body struct{ IDs []string }
	if err := json.Unmarshal(raw, &body); err != nil || body.IDs == nil {
		return nil, badRequest(`the body should be JSON, such as {"ids":["7","8"]}, or empty`)
	}
	return text.Once(body.IDs), nil
}

// actOn does an action to webhooks, and goes on if one fails; but not if the inbox can't be written, or nobody waits for the answer.
func (h *Handler) actOn(r *http.Request, v *Verb, by *inbox.Action, ids []string, chosen inbox.State, o options) Acted {
	acted := Acted{Done: []string{}, Failed: make(map[string]string), Newer: make(map[string]string), New: make(map[string]string)} // [] and not null
	for n, id := range ids {
		done, err := h.act(r, v, by, id, chosen, o)
		if err == nil {
			acted.Done = append(acted.Done, id)
			if done.ID != id {
				acted.New[id] = done.ID
			}
		} else {
			acted.Failed[id] = err.Error()
		}
		if newer, ok := errors.AsType[*inbox.OverwriteError](err); ok {
			acted.Newer[id] = strconv.FormatInt(newer.Latest.ID, 10)
		}
		if _, ok := errors.AsType[*unknownError](err); ok {
			acted.Unknown = append(acted.Unknown, id)
		}
		trouble := h.inboxTrouble(err)
		if err != nil && trouble != nil {
			acted.Failed[id] = trouble.Error() // the cause says more than err
		}
		if err != nil && trouble != nil || errors.Is(err, inbox.ErrDoubt) || r.Context().Err() != nil {
			acted.Left = len(ids) - n - 1
			break
		}
	}
	if len(acted.Done) > 0 {
		acted.Paused = h.paused()
	}
	return acted
}

// page returns the page that follows.
func (a *Acted) page(v *Verb, s selection) (any, error) {
	if len(a.Failed) > 0 {
		var why []string
		for _, id := range slices.Sorted(maps.Keys(a.Failed)) {
			why = append(why, id+": "+a.Failed[id])
		}
		return nil, &refusal{http.StatusConflict, fmt.Sprintf("%s done, %d not: %s", page.Plural(len(a.Done), "webhook", "webhooks"), len(why)+a.Left, strings.Join(why, "; "))}
	}
	query := url.Values{"did": {v.Name + "-all"}}
	if len(a.Done) == 0 {
		query.Set("did", "nothing")
	}
	if s.Tenant != "" {
		query.Set("tenant", s.Tenant)
	}
	return redirect("/webhooks?" + query.Encode()), nil
}

// choose returns the webhooks that a filter chooses for a verb.
func (h *Handler) choose(ctx context.Context, v *Verb, s selection) (c Chosen, err error) {
	if s.tenant.Tenant != "" {
		if _, err := h.knownTenant(ctx, s.tenant); err != nil {
			return c, err
		}
	}
	if !s.decisionsOnly() {
		s.limit = 0
		f := s.filter()
		f.Before = s.before.inbox
		all, err := h.selected(ctx, f)
		if err != nil {
			return c, err
		}
		if c, err = v.choose(h, ctx, s, all); err != nil {
			return c, err
		}
	}
	c.Webhooks = append([]string{}, c.Webhooks...) // [] and not null
	return c, nil
}

// selected returns the webhooks that f selects, the newest first. They are without their tries, because there may be very many.
func (h *Handler) selected(ctx context.Context, f inbox.Filter) (all []*inbox.Webhook, err error) {
	err = h.cfg.Inbox.Each(ctx, f, false, func(w *inbox.Webhook) bool {
		w.Tried, w.Faults = nil, nil
		all = append(all, w)
		return true
	})
	return all, err
}

// findTenant returns the tenant of that name. A name that fits several tenants is refused. Without an inbox, usher also knows the tenants
// of the gate's last decisions, because pages show them.
func (h *Handler) findTenant(ctx context.Context, name inbox.TenantName) (t TenantRef, known bool, err error) {
	platforms, err := h.platformsOf(ctx, name.Tenant)
	if err != nil {
		return t, false, err
	}
	platforms = slices.DeleteFunc(platforms, func(p string) bool { return name.Platform != nil && p != *name.Platform })
	switch len(platforms) {
	case 0:
		return t, false, nil
	case 1:
		return TenantRef{platforms[0], name.Tenant}, true, nil
	}
	var names []string
	for _, p := range platforms {
		names = append(names, text.Quote(inbox.ShowTenant(p, name.Tenant)))
	}
	return t, false, &refusal{http.StatusConflict, "several tenants have this code: write " + strings.Join(names, " or ")}
}

// platformsOf returns the platforms that have a tenant with this code, in order.
func (h *Handler) platformsOf(ctx context.Context, code string) (all []string, err error) {
	if h.cfg.Platforms != nil {
		if all, err = h.cfg.Platforms(ctx, code); err != nil {
			return nil, err
		}
	}
	if h.cfg.Inbox == nil {
		for _, e := range h.cfg.Decisions.list(inbox.Filter{Tenant: code}) {
			all = append(all, e.Platform)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// knownTenant returns the tenant of that name, and refuses an unknown one.
func (h *Handler) knownTenant(ctx context.Context, name inbox.TenantName) (TenantRef, error) {
	if name.Tenant == "" {
		return TenantRef{}, badRequest(`no tenant is named: the body should be {"tenant":"…"}`)
	}
	t, known, err := h.findTenant(ctx, name)
	if err == nil && !known {
		err = h.unknownTenant(ctx, name)
	}
	return t, err
}

// unknownTenant returns the refusal of a name that no tenant has. It suggests similar names.
func (h *Handler) unknownTenant(ctx context.Context, name inbox.TenantName) error {
	why := "unknown tenant " + name.String()
	if h.cfg.Inbox == nil { // perhaps it is the wrong usher
		why += ": " + errNoInbox.why
	}
	if alike, err := h.similarTenants(ctx, name.Tenant); err == nil && len(alike) > 0 {
		for i := range alike {
			alike[i] = text.Quote(alike[i])
		}
		why += ": did you mean " + strings.Join(alike, " or ") + "?"
	}
	return &refusal{http.StatusNotFound, why}
}

// similarTenants returns up to three tenants whose code, platform or name contains this text, in any case, or a typing error of it.
func (h *Handler) similarTenants(ctx context.Context, tenant string) (names []string, err error) {
	if h.cfg.Inbox == nil {
		return nil, nil
	}
	all, err := h.cfg.Inbox.Tenants(ctx, inbox.TenantFilter{Search: tenant, Typo: true, Limit: 3})
	for _, t := range all {
		names = append(names, inbox.ShowTenant(t.Platform, t.Tenant))
	}
	return names, err
}

// target is what an action is done to: a tenant, a receiver, or, if it is empty, everything.
type target struct {
	inbox.TenantName
	Receiver string
}

// do does an action to a target. The API gets the answer, and the page is redirected to next.
func (h *Handler) do(action func(*http.Request, target) (answer any, next redirect, err error)) http.HandlerFunc {
	return with(h, readTarget, func(r *http.Request, t target) (any, error) {
		answer, next, err := action(r, t)
		if isAPI(r) {
			return answer, err
		}
		return next, err
	})
}

// readTarget reads a target from the JSON of an API call, from a form, or from the address of a page that asks for confirmation.
func readTarget(r *http.Request) (t target, err error) {
	if isAPI(r) {
		return readBody(r)
	}
	form, err := readForm(r)
	switch {
	case err != nil:
		return t, err
	case r.Method == http.MethodPost && r.URL.RawQuery != "": // as of the page that asks: it would mean everything
		return t, badRequest("an action takes its names from the form, not from its address")
	case strings.HasPrefix(r.URL.Path, "/tenant/"):
		return readTenant(form)
	}
	t.Tenant, t.Receiver = form.Get("tenant"), form.Get("receiver")
	if form.Has("platform") {
		t.Platform = new(form.Get("platform"))
	}
	if t == (target{}) && len(form) > 0 { // an empty name must not mean everything
		return t, badRequest("the form names neither a tenant nor a receiver")
	}
	return t, nil
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

// readBody reads a target from JSON. An empty body, or {}, means everything. The Content-Type does not matter: ServeHTTP has already
// refused pages of other origins.
func readBody(r *http.Request) (t target, err error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return t, badBody(err)
	}
	bare := string(bytes.Join(bytes.Fields(body), nil))
	if bare == "" {
		return t, nil
	}
	// Neither a wrong name nor a value that a script left empty may mean everything: {"tenants":"acme"} and {"tenant":""} would pause all
	// deliveries.
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err = d.Decode(&t)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok { // its text names our Go types
		err = fmt.Errorf("it has a JSON %s in the wrong place", wrong.Value)
	}
	if _, end := d.Token(); err == nil && end != io.EOF {
		err = errors.New("something follows it")
	}
	if err == nil && t == (target{}) && bare != "{}" {
		err = errors.New("it names neither a tenant nor a receiver")
	}
	if err != nil {
		return t, badRequest(`the body should be JSON, such as {"tenant":"…"}, {"receiver":"…"} or {}: %v`, err)
	}
	return t, nil
}

// readTenant reads the tenant of a page from its query.
func readTenant(query url.Values) (t target, err error) {
	t.Tenant, t.Platform = query.Get("code"), new(query.Get("platform"))
	if t.Tenant == "" {
		return t, badRequest("code is missing: give the tenant's code as code, and the platform's code as platform")
	}
	return t, nil
}

// forget drops what dedup remembers of a tenant.
func (h *Handler) forget(r *http.Request, t target) (any, redirect, error) {
	if h.cfg.Forget == nil {
		return nil, "", &refusal{http.StatusNotFound, "this usher has no webhook gate: USHER_WEBHOOK_FORWARD_URL is not set"}
	}
	named, err := h.knownTenant(r.Context(), t.TenantName)
	if err != nil {
		return nil, "", err
	}
	n, err := h.cfg.Forget(named.Platform, named.Tenant, asked(r, "forget", inbox.ShowTenant(named.Platform, named.Tenant)))
	h.did(r, err, slog.LevelInfo, "tenant forgotten by hand", "platform", named.Platform, "tenant", named.Tenant, "remembered", n > 0)
	if err != nil {
		return nil, "", err
	}
	return Forgotten{named, n}, redirect(page.TenantURL(named.Platform, named.Tenant, "forget")), nil
}

// readUntil reads until when what usher may have missed is dealt with: as the caller saw it. Zero: all of it.
func readUntil(r *http.Request) (until time.Time, err error) {
	if isAPI(r) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return until, badBody(err)
		}
		if len(bytes.TrimSpace(text)) == 0 {
			return until, nil
		}
		r.Body = io.NopCloser(bytes.NewReader(text))
		body, err := decodeBody[DismissUntil](r)
		return body.Until, err
	}
	form, err := readForm(r)
	if err != nil || len(form) == 0 {
		return until, err
	}
	if until, err = time.Parse(time.RFC3339Nano, form.Get("until")); err != nil {
		return until, badRequest("until should be a time, as the page that asks for confirmation has it")
	}
	return until, nil
}

// dismiss says that outages, and what was missed without a name, are dealt with.
func (h *Handler) dismiss(r *http.Request, until time.Time) (answer any, err error) {
	var d Dismissed
	switch {
	case h.cfg.Inbox != nil:
		d.Outages, d.Webhooks, err = h.cfg.Inbox.Dismiss(until, asked(r, "dismiss", ""))
	case h.cfg.Missed != nil:
		d.Webhooks = h.cfg.Missed.Dismiss(until).Count
	default:
		return nil, &refusal{http.StatusNotFound, "this usher has no webhook gate: USHER_WEBHOOK_FORWARD_URL is not set"}
	}
	h.did(r, err, slog.LevelInfo, "outages dismissed by hand", "outages", d.Outages, "webhooks", d.Webhooks)
	if err != nil || isAPI(r) {
		return d, err
	}
	return redirect("/?did=dismiss"), nil
}

// confirmDismiss shows what usher may have missed. What comes while somebody looks at it is not dismissed.
func (h *Handler) confirmDismiss(r *http.Request) (any, error) {
	o := h.status(r.Context()).Missed
	c := &confirmation{Question: "Is everything dealt with that usher may have missed?", Back: "/"}
	until, found := o.Dismissible()
	if len(found) == 0 {
		c.Effect = "There is nothing to dismiss."
		return c, nil
	}
	c.Effect = "usher then no longer shows this: " + strings.Join(found, "; ") + ". Tenants whose webhooks got a 5xx stay until these are sent again."
	c.Button, c.Action, c.Fields = "Dismiss", "/dismiss", map[string]string{"until": until.Format(time.RFC3339Nano)}
	return c, nil
}

// erase deletes everything that usher has about a tenant.
func (h *Handler) erase(r *http.Request, t target) (any, redirect, error) {
	named, err := h.knownTenant(r.Context(), t.TenantName)
	if err != nil {
		return nil, "", err
	}
	n, err := h.cfg.Inbox.Erase(named.Platform, named.Tenant, asked(r, "erase", inbox.ShowTenant(named.Platform, named.Tenant)))
	h.did(r, err, slog.LevelWarn, "tenant erased by hand", "platform", named.Platform, "tenant", named.Tenant, "webhooks", n)
	if err == nil || errors.Is(err, inbox.ErrDoubt) { // if it was done, nobody can name the tenant again
		h.cfg.Decisions.erase(named.Platform, named.Tenant)
	}
	if err != nil {
		return nil, "", err
	}
	return Erased{named, n}, "/webhooks?did=erase", nil
}

func (h *Handler) pause(r *http.Request, t target) (any, redirect, error) {
	p, err := h.pauseOf(r.Context(), t)
	if err != nil {
		return nil, "", err
	}
	err = h.cfg.Inbox.Pause(p, asked(r, "pause", p.String()))
	h.did(r, err, slog.LevelWarn, "deliveries paused by hand", "what", p.String())
	if err != nil {
		return nil, "", err
	}
	return p, pausePage(p, ""), nil // no notice: a banner shows the pause
}

func (h *Handler) resume(r *http.Request, t target) (any, redirect, error) {
	p, err := h.pauseOf(r.Context(), t)
	if err != nil {
		return nil, "", err
	}
	was, err := h.cfg.Inbox.Resume(p, asked(r, "resume", p.String()))
	h.did(r, err, slog.LevelWarn, "deliveries resumed by hand", "what", p.String(), "was_paused", was)
	if err != nil {
		return nil, "", err
	}
	return Resumed{p, was, h.paused()}, pausePage(p, "resume"), nil
}

// pauseOf returns the pause of a target. It refuses unknown names: a pause with a typing error would hold back nothing.
func (h *Handler) pauseOf(ctx context.Context, t target) (p inbox.Pause, err error) {
	switch {
	case t.Tenant != "" && t.Receiver != "":
		return p, badRequest("name a tenant or a receiver, not both")
	case t.Tenant == "" && t.Platform != nil:
		return p, badRequest("a platform needs a tenant")
	case t.Tenant != "":
		named, err := h.knownTenant(ctx, t.TenantName)
		return inbox.Pause{Platform: named.Platform, Tenant: named.Tenant}, err
	case t.Receiver != "" && h.cfg.Gate != nil: // without a gate only other replicas know the receivers
		var names []string
		for _, rc := range h.cfg.Receivers.All() {
			names = append(names, rc.Name)
		}
		if !slices.Contains(names, t.Receiver) && !slices.ContainsFunc(h.paused(), func(o inbox.Pause) bool { return o.Receiver == t.Receiver }) {
			return p, &refusal{http.StatusNotFound, "unknown receiver " + t.Receiver + ": the receivers are " + strings.Join(names, ", ")}
		}
	}
	return inbox.Pause{Receiver: t.Receiver}, nil
}

// pausePage returns the page to go to after a pause or its end.
func pausePage(p inbox.Pause, notice string) redirect {
	switch {
	case p.Tenant != "":
		return redirect(page.TenantURL(p.Platform, p.Tenant, notice))
	case notice != "":
		return "/?did=" + redirect(notice)
	}
	return "/"
}

// confirmation is a page that asks before an action is done. Its form sends the POST that acts. It works without a script.
type confirmation struct {
	Question string
	Effect   string // what the action does
	Warning  string // may be empty
	Button   string // empty if there is nothing to do
	Action   string // address of the POST
	Fields   map[string]string
	Back     string // address of the page to return to
	Danger   bool   // draws the button in the colour of a warning

	Other, OtherButton string // address and label of another confirmation; may be empty

	status int // zero means 200
}

// askOne asks before an action is done to a webhook.
func (h *Handler) askOne(v *Verb) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		d, err := h.withoutContent(r.Context(), r.PathValue("id"))
		if err != nil {
			return nil, err
		}
		if !d.InInbox() {
			return nil, inbox.ErrNotFound
		}
		if v.deny != nil {
			if err := v.deny(&d.Webhook); err != nil {
				return nil, err
			}
		}
		c := v.confirmOne(&d.Webhook)
		if n, err := strconv.ParseInt(d.ID, 10, 64); err == nil && v.agree != nil {
			if err := v.agree(h, r.Context(), n); err != nil {
				c.Warning, c.Danger, c.Fields = err.Error()+".", true, map[string]string{"unknown": "true"}
			}
		}
		return c, nil
	})
}

// unknownError says that to accept a webhook would make usher's answers about its tenant unknown.
type unknownError struct{ tenant string }

func (e *unknownError) Error() string {
	return "its features can't be read: usher would no longer know what " + e.tenant + " may use, and answer questions about it with 404"
}

// becomesUnknown returns an *unknownError if to accept a webhook makes usher's answers about its tenant unknown, which are known now.
func (h *Handler) becomesUnknown(ctx context.Context, id int64) error {
	if h.cfg.Entitlements == nil {
		return nil
	}
	w, err := h.cfg.Inbox.Show(ctx, id)
	if err != nil || w.Tenant == "" || w.Type != content.TenantProvisioningChange || snapshot.Read(w.Body).Known {
		return nil // Accept finds what else is wrong with it
	}
	if now, err := h.cfg.Entitlements(ctx, w.Tenant, &w.Platform); err != nil || !now.Snapshot.Known {
		return nil
	}
	return &unknownError{page.TenantName(w.Platform, w.Tenant)}
}

func (v *Verb) confirmOne(w *Webhook) *confirmation {
	what := "it"
	if w.Tenant != "" {
		what = "this snapshot of " + page.TenantName(w.Platform, w.Tenant)
	}
	c := v.ask(w, what)
	c.Action, c.Back = "/webhooks/"+w.ID+"/"+v.Name, "/webhooks/"+w.ID
	return c
}

func (v *Verb) confirmOverwrite(id string, e *inbox.OverwriteError) *confirmation {
	c := v.confirmOne(&Webhook{ID: id, Platform: e.Latest.Platform, Tenant: e.Latest.Tenant})
	c.Question, c.Warning, c.Button, c.Danger = "Overwrite a newer snapshot?", e.Error()+".", v.overwrite, true
	c.Fields, c.status = map[string]string{"force": "true"}, http.StatusConflict
	return c
}

// askMany asks before an action is done to all webhooks that a filter chooses. Webhooks that arrive after the question are not among them:
// their numbers are higher. Times would not tell, because this machine's clock may differ from the inbox's.
func (h *Handler) askMany(v *Verb) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		s, err := readChoice(r, false)
		if err != nil {
			return nil, err
		}
		if s.before == (cursor{}) {
			newest, err := h.cfg.Inbox.List(r.Context(), inbox.Filter{Limit: 1})
			if err != nil {
				return nil, err
			}
			s.before.inbox = 1
			for _, w := range newest {
				s.before.inbox += w.ID
			}
		}
		chosen, err := h.choose(r.Context(), v, s)
		if err != nil {
			return nil, err
		}
		query := s.Query()
		c := v.confirmMany(&chosen)
		c.Back = "/webhooks?" + query.Encode()
		query.Set("before", s.before.String())
		c.Action = "/" + v.Name + "?" + query.Encode()
		if chosen.Older > 0 {
			query.Set("force", "true")
			c.Other, c.OtherButton = "/"+v.Name+"?"+query.Encode(), "Send the older ones, too…"
		}
		if s.force {
			c.Fields, c.Danger, c.Warning = map[string]string{"force": "true"}, true, "Older snapshots among them may undo newer ones."
		}
		return c, nil
	})
}

func (v *Verb) confirmMany(chosen *Chosen) *confirmation {
	n, what := len(chosen.Webhooks), "webhook "+page.FirstFew(chosen.Webhooks)
	if n > 1 {
		what = "webhooks " + page.FirstFew(chosen.Webhooks)
	}
	c := &confirmation{Question: "There is nothing to " + v.Name, Effect: v.none}
	if n > 0 {
		c = v.askAll(page.Plural(n, "webhook", "webhooks"), what)
	}
	if chosen.Older > 0 {
		c.Warning = page.Plural(chosen.Older, "older one is", "older ones are") + " left out: the same tenants have newer ones, which they would undo."
	}
	return c
}

// ask asks before an action is done to a target.
func (h *Handler) ask(confirm func(context.Context, target) (*confirmation, error)) http.HandlerFunc {
	return with(h, readTarget, func(r *http.Request, t target) (any, error) { return confirm(r.Context(), t) })
}

func (h *Handler) confirmPause(ctx context.Context, t target) (*confirmation, error) {
	p, err := h.pauseOf(ctx, t)
	fields := map[string]string{"platform": p.Platform, "tenant": p.Tenant}
	switch {
	case p.Receiver != "":
		fields = map[string]string{"receiver": p.Receiver}
	case p.Tenant == "": // everything
		fields = nil
	}
	return &confirmation{
		Question: "Pause " + p.String() + "?",
		Effect: "usher begins no delivery until somebody resumes, also after a restart, and on all replicas. Deliveries in progress may finish. " +
			"Nothing is lost: senders still get 200, and webhooks wait in the inbox.",
		Button: "Pause", Action: "/pause", Fields: fields, Back: string(pausePage(p, "")),
	}, err
}

func (h *Handler) confirmForget(_ context.Context, t target) (*confirmation, error) {
	return &confirmation{
		Question: "Forget the last webhook of " + page.TenantName(*t.Platform, t.Tenant) + "?",
		Effect: "usher delivers the tenant's next webhook, even if the receiver already has that state. " +
			"Use it when somebody changed the receiver's state without usher, then resend the webhook from the billing service's log. " +
			"No webhook of the tenant counts as missed any more. Nothing is deleted here.",
		Button: "Forget it", Action: "/tenant/forget", Fields: map[string]string{"platform": *t.Platform, "code": t.Tenant},
		Back: page.TenantURL(*t.Platform, t.Tenant, ""),
	}, nil
}

func (h *Handler) confirmErase(ctx context.Context, t target) (*confirmation, error) {
	named, err := h.knownTenant(ctx, t.TenantName)
	if err != nil {
		return nil, err
	}
	entries, err := h.cfg.Inbox.List(ctx, inbox.Filter{Tenant: named.Tenant, Platform: &named.Platform})
	c := &confirmation{
		Question: "Erase " + page.TenantName(named.Platform, named.Tenant) + "?",
		Effect: fmt.Sprintf("This deletes %s of this tenant, what it may use, and what usher remembers to recognise copies. It can't be undone. "+
			"usher then answers that it does not know the tenant. Nothing changes in the receiver.", page.Plural(len(entries), "webhook", "webhooks")),
		Button: "Erase it", Danger: true, Action: "/tenant/erase", Fields: map[string]string{"platform": named.Platform, "code": named.Tenant},
		Back: page.TenantURL(named.Platform, named.Tenant, ""),
	}
	open := len(slices.DeleteFunc(entries, func(e *inbox.Webhook) bool { return e.State.Finished() }))
	if open > 0 {
		c.Warning = page.Plural(open, "webhook waits, is parked or is invalid: it is", "webhooks wait, are parked or are invalid: they are") + " never delivered."
	}
	return c, err
}
