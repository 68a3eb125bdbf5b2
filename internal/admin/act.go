package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/inbox/store"
	"usher/internal/text"
	"usher/webhookgate"
)

// What people can do, through the API, the page and the commands. Each is done here, stored, and written to the log.

// What the API answers to actions, for those who call it.
type (
	// Done is the answer of POST /api/webhooks/{id}/redeliver, …/discard and …/accept.
	Done struct {
		ID     string        `json:"id"`               // the webhook; of accept: the one that was taken in
		Paused []store.Pause `json:"paused,omitempty"` // what is not delivered for now; that may be it
	}

	// Chosen are the webhooks that a filter chooses for an action, in the order in which it is done to them: the answer of
	// GET /api/redeliver and GET /api/discard.
	Chosen struct {
		Webhooks []string `json:"webhooks"` // their ids
		Older    int      `json:"older"`    // left out: a newer one of the same tenant would be undone; force takes them in
	}

	// Acted is what became of them: the answer of POST /api/redeliver and POST /api/discard.
	Acted struct {
		Done   []string          `json:"done"`
		Failed map[string]string `json:"failed,omitempty"` // why, by id
	}

	// Named is what an action on a tenant answers: which tenant that was.
	Named struct {
		Platform string `json:"platform"`
		Tenant   string `json:"tenant"`
	}

	// Forgotten is the answer of POST /api/forget.
	Forgotten struct {
		Named
		Forgotten int `json:"forgotten"` // 0: nothing was remembered
	}

	// Erased is the answer of POST /api/erase.
	Erased struct {
		Named
		Webhooks int `json:"webhooks"` // that were deleted
	}

	// Resumed is the answer of POST /api/resume.
	Resumed struct {
		store.Pause
		Was bool `json:"was_paused"`
	}
)

func (h *Handler) inbox() (*inbox.Inbox, error) {
	if h.cfg.Inbox == nil {
		return nil, &refusal{http.StatusNotFound, "this usher has no inbox: USHER_WEBHOOK_INBOX is not set"}
	}
	return h.cfg.Inbox, nil
}

// inboxTrouble is why the inbox takes nothing in; nil: it does, or there is none.
func (h *Handler) inboxTrouble() error {
	if h.cfg.Inbox == nil {
		return nil
	}
	return h.cfg.Inbox.Err()
}

// UserHeader has the name of the user at the terminal, who typed a command.
const UserHeader = "Usher-User"

// did stores what somebody has done, and writes it to the log.
func (h *Handler) did(r *http.Request, level slog.Level, a store.Action, message string, args ...any) {
	h.acted.Add(1)
	h.cfg.Log.Log(r.Context(), level, message, append(args, "who", Who(r), "from", r.RemoteAddr)...)
	if h.cfg.Inbox == nil {
		return
	}
	a.Who, a.About = Who(r), text.Clip(a.About, 500)
	if user := r.Header.Get(UserHeader); user != "" {
		a.Who += " (" + text.Visible(text.Clip(user, 64)) + ")"
	}
	if err := h.cfg.Inbox.Note(a); err != nil {
		h.cfg.Log.Error("cannot store what was done by hand", "what", a.What, "err", err)
	}
}

// act sends a webhook again, discards it, or accepts one that was refused.
func (h *Handler) act(r *http.Request, act, id string, force bool) (Done, error) {
	box, err := h.inbox()
	if err != nil {
		return Done{}, err
	}
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return Done{}, store.ErrNotFound
	}
	done, message, args := Done{ID: id}, "", []any{"id", n, "force", force}
	switch act {
	case "accept":
		var taken int64
		taken, err = box.Accept(n, force)
		done.ID, message, args = strconv.FormatInt(taken, 10), "refused webhook accepted by hand", append(args, "as", taken)
		if _, older := errors.AsType[*store.OverwriteError](err); err != nil && !older && !errors.Is(err, store.ErrNotFound) {
			err = &refusal{http.StatusConflict, err.Error()}
		}
	case "discard":
		err, message = box.Discard(n), "webhook discarded by hand"
		done.Paused = h.paused()
	default:
		err, message = box.Redeliver(n, force), "webhook sent again by hand"
		done.Paused = h.paused()
	}
	if err == nil {
		h.did(r, slog.LevelInfo, store.Action{What: act, About: id, Count: 1}, message, args...)
	}
	return done, err
}

// onOne is POST /api/webhooks/{id}/redeliver, …/discard or …/accept.
func (h *Handler) onOne(act string) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		s, err := readSelection(r.URL.RawQuery)
		if err != nil {
			return nil, err
		}
		return h.act(r, act, r.PathValue("id"), s.force)
	})
}

// onMany is /api/redeliver, or /api/discard: GET says which webhooks the filter chooses, POST does it.
func (h *Handler) onMany(act string) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		s, err := readChoice(r)
		if err != nil {
			return nil, err
		}
		chosen, err := h.choose(act, s)
		if err != nil || r.Method != http.MethodPost {
			return chosen, err
		}
		return h.actOnAll(r, act, chosen.Webhooks, s.force), nil
	})
}

// actOnAll does something to each of those chosen, and goes on when one fails.
func (h *Handler) actOnAll(r *http.Request, act string, ids []string, force bool) Acted {
	acted := Acted{Done: []string{}, Failed: make(map[string]string)}
	for _, id := range ids {
		if _, err := h.act(r, act, id, force); err != nil {
			acted.Failed[id] = err.Error()
		} else {
			acted.Done = append(acted.Done, id)
		}
	}
	return acted
}

// choose returns those that a filter chooses to be sent again or discarded.
func (h *Handler) choose(act string, s Selection) (c Chosen, err error) {
	box, err := h.inbox()
	if err != nil {
		return c, err
	}
	if s.tenant.Tenant != "" {
		if _, err := h.named(s.tenant); err != nil {
			return c, err
		}
	}
	c.Webhooks = []string{} // [] and not null
	if s.decided() {
		return c, nil
	}
	s.limit = 0
	entries, err := box.List(s.filter())
	switch {
	case err != nil:
	case act == "discard":
		// The newest first: of a queue that is discarded whole none is delivered because the one before it is gone.
		for _, e := range entries {
			if !e.State.Finished() {
				c.Webhooks = append(c.Webhooks, strconv.FormatInt(e.ID, 10))
			}
		}
	case s.force:
		c.redeliver(entries, nil)
	default:
		// All of the tenant, or of everybody, in whatever state: only so it is known which is the latest.
		var all []store.Entry
		all, err = box.List(store.Filter{Tenant: s.tenant.Tenant, Platform: s.tenant.Platform})
		latest := make(map[webhookgate.Lane]int64)
		for _, e := range all {
			if l := laneOf(e.Platform, e.Tenant, e.Type); !e.Rejected() {
				latest[l] = max(latest[l], e.ID)
			}
		}
		c.redeliver(entries, latest)
	}
	return c, err
}

// redeliver chooses those to be sent again, the oldest first: what is sent again keeps its order. Of a tenant's that wait only the
// first is tried, and of others only the latest, unless latest is nil: each is a whole snapshot, and an older one would undo it.
func (c *Chosen) redeliver(entries []store.Entry, latest map[webhookgate.Lane]int64) {
	tried := make(map[webhookgate.Lane]bool)
	for _, e := range slices.Backward(entries) {
		waits := e.State == store.Waiting
		switch l := laneOf(e.Platform, e.Tenant, e.Type); {
		case e.Rejected(): // it was never taken in
		case waits && e.Tenant != "" && tried[l]: // the one before it is tried now
		case latest == nil, e.Tenant == "", waits, latest[l] == e.ID:
			tried[l] = tried[l] || waits
			c.Webhooks = append(c.Webhooks, strconv.FormatInt(e.ID, 10))
		default:
			c.Older++
		}
	}
}

// platformsOf returns the platform on which a tenant is known; none: nobody has this name. One that fits several tenants is
// refused. Without an inbox those whose webhooks the gate remembers are known, too: pages show them.
func (h *Handler) platformsOf(name store.TenantName) (known []string, err error) {
	if h.cfg.Platforms != nil {
		if known, err = h.cfg.Platforms(name.Tenant); err != nil {
			return nil, err
		}
	}
	if h.cfg.Inbox == nil && h.cfg.Decisions != nil {
		for _, e := range h.cfg.Decisions.list(store.Filter{Tenant: name.Tenant}) {
			known = append(known, e.Platform)
		}
	}
	known = slices.DeleteFunc(slices.Clone(known), func(p string) bool { return name.Platform != nil && p != *name.Platform })
	slices.Sort(known)
	if known = slices.Compact(known); len(known) > 1 {
		var names []string
		for _, p := range known {
			names = append(names, store.Exact(p, name.Tenant))
		}
		return nil, &refusal{http.StatusConflict, "this could be " + strings.Join(names, " or ") + ": name one of them"}
	}
	return known, nil
}

// named returns the one tenant that is meant.
func (h *Handler) named(name store.TenantName) (Named, error) {
	if name.Tenant == "" {
		return Named{}, badRequest(`no tenant is named: the body should be {"tenant":"…"}`)
	}
	known, err := h.platformsOf(name)
	switch {
	case err != nil:
		return Named{}, err
	case len(known) == 0:
		return Named{}, h.unknown(name)
	}
	return Named{known[0], name.Tenant}, nil
}

// unknown says that nobody has this name, and which names are alike.
func (h *Handler) unknown(name store.TenantName) error {
	why := "unknown tenant " + store.ShowTenant("", name.Tenant)
	if name.Platform != nil {
		why = "unknown tenant " + store.Exact(*name.Platform, name.Tenant)
	}
	if alike, err := h.alike(name.Tenant); err == nil && len(alike) > 0 {
		why += ": did you mean " + strings.Join(alike, " or ") + "?"
	}
	return &refusal{http.StatusNotFound, why}
}

// alike returns those that somebody may have meant who named a tenant that nobody knows: the same letters in another
// case, on whichever platform, or as a part of a code or a name.
func (h *Handler) alike(tenant string) (names []string, err error) {
	if h.cfg.Inbox == nil {
		return nil, nil
	}
	all, err := h.cfg.Inbox.Tenants(store.TenantFilter{Search: tenant, Limit: 3})
	for _, t := range all {
		names = append(names, store.ShowTenant(t.Platform, t.Tenant))
	}
	return names, err
}

// target is what an action is about: a tenant, a receiver, or everything.
type target struct {
	store.TenantName
	Receiver string
}

// deed does something to a target. Its answer is for the API, and next is where a page goes on.
type deed func(r *http.Request, t target) (answer any, next goTo, err error)

// call is a deed that the API is asked for.
func (h *Handler) call(do deed) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		t, err := readBody(r)
		if err != nil {
			return nil, err
		}
		answer, _, err := do(r, t)
		return answer, err
	})
}

// form is a deed that a form asks for, which read reads.
func (h *Handler) form(read func(url.Values) (target, error), do deed) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		if err := r.ParseForm(); err != nil {
			return nil, unread(err)
		}
		t, err := read(r.PostForm)
		if err != nil {
			return nil, err
		}
		_, next, err := do(r, t)
		return next, err
	})
}

// readBody reads a target as JSON; an empty body means everything. Its Content-Type is
// not asked for: what keeps foreign pages out is the check of their origin.
func readBody(r *http.Request) (t target, err error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return t, unread(err)
	}
	bare := string(bytes.Join(bytes.Fields(body), nil))
	if bare == "" {
		return t, nil
	}
	// A slip in a name, or a value that a script did not fill in, would otherwise mean everything: {"tenants":"acme"}
	// and {"tenant":""} would pause all deliveries.
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	one := &t
	if err = d.Decode(&one); err == nil && one == nil {
		err = errors.New("it is null")
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

// readTarget reads a target from a form, or from an address.
func readTarget(form url.Values) (t target, err error) {
	t.Tenant, t.Receiver = form.Get("tenant"), form.Get("receiver")
	if form.Has("platform") {
		t.Platform = new(form.Get("platform"))
	}
	if t == (target{}) && len(form) > 0 { // an empty name does not mean everybody
		return t, badRequest("the form names neither a tenant nor a receiver")
	}
	return t, nil
}

// readTenant reads the tenant that a page is about.
func readTenant(query url.Values) (t target, err error) {
	t.Tenant, t.Platform = query.Get("code"), new(query.Get("platform"))
	if t.Tenant == "" {
		return t, badRequest("code is missing: give the tenant's code, and its platform's as platform")
	}
	return t, nil
}

// forget has dedup forget a tenant.
func (h *Handler) forget(r *http.Request, t target) (any, goTo, error) {
	if h.cfg.Forget == nil {
		return nil, "", &refusal{http.StatusNotFound, "this usher has no webhook gate: USHER_WEBHOOK_FORWARD_URL is not set"}
	}
	named, err := h.named(t.TenantName)
	if err != nil {
		return nil, "", err
	}
	n, err := h.cfg.Forget(named.Platform, named.Tenant)
	if err != nil {
		return nil, "", err
	}
	h.did(r, slog.LevelInfo, store.Action{What: "forget", About: store.ShowTenant(named.Platform, named.Tenant)},
		"dedup memory dropped by hand", "platform", named.Platform, "tenant", named.Tenant, "remembered", n > 0)
	notice := "forget"
	if n == 0 {
		notice = "forget-nothing"
	}
	return Forgotten{named, n}, tenantPage(named.Platform, named.Tenant, notice), nil
}

// erase deletes all that is kept of a tenant.
func (h *Handler) erase(r *http.Request, t target) (any, goTo, error) {
	box, err := h.inbox()
	if err != nil {
		return nil, "", err
	}
	named, err := h.named(t.TenantName)
	if err != nil {
		return nil, "", err
	}
	n, err := box.Erase(named.Platform, named.Tenant)
	if err != nil {
		return nil, "", err
	}
	if h.cfg.Decisions != nil {
		h.cfg.Decisions.erase(named.Platform, named.Tenant)
	}
	h.did(r, slog.LevelWarn, store.Action{What: "erase", About: store.ShowTenant(named.Platform, named.Tenant), Count: n},
		"tenant erased by hand", "platform", named.Platform, "tenant", named.Tenant, "webhooks", n)
	return Erased{named, n}, "/webhooks?did=erase", nil
}

func (h *Handler) pause(r *http.Request, t target) (any, goTo, error) {
	p, err := h.pauseOf(t)
	if err != nil {
		return nil, "", err
	}
	if err := h.cfg.Inbox.Pause(p); err != nil {
		return nil, "", err
	}
	h.did(r, slog.LevelWarn, store.Action{What: "pause", About: p.String()}, "deliveries paused by hand", "what", p.String())
	return p, pausePage(p, ""), nil // whose banner says it
}

func (h *Handler) resume(r *http.Request, t target) (any, goTo, error) {
	p, err := h.pauseOf(t)
	if err != nil {
		return nil, "", err
	}
	was, err := h.cfg.Inbox.Resume(p)
	if err != nil {
		return nil, "", err
	}
	h.did(r, slog.LevelWarn, store.Action{What: "resume", About: p.String()}, "deliveries resumed by hand", "what", p.String(), "was_paused", was)
	notice := "resume"
	if h.stillPaused(p) {
		notice = "resume-held"
	}
	return Resumed{p, was}, pausePage(p, notice), nil
}

// pauseOf is what is to be paused or resumed. A name that nobody knows is refused: a pause that
// holds nothing back would look like one that does.
func (h *Handler) pauseOf(t target) (p store.Pause, err error) {
	if _, err := h.inbox(); err != nil {
		return p, err
	}
	switch {
	case t.Tenant != "" && t.Receiver != "":
		return p, badRequest("name a tenant or a receiver, not both")
	case t.Tenant == "" && t.Platform != nil:
		return p, badRequest("a platform needs a tenant")
	case t.Tenant != "":
		named, err := h.named(t.TenantName)
		return store.Pause{Platform: named.Platform, Tenant: named.Tenant}, err
	case t.Receiver != "" && h.cfg.Gate != nil: // without a gate other replicas know them
		var names []string
		for _, rc := range h.receivers().All() {
			names = append(names, rc.Name)
		}
		if !slices.Contains(names, t.Receiver) && !slices.ContainsFunc(h.paused(), func(o store.Pause) bool { return o.Receiver == t.Receiver }) {
			return p, &refusal{http.StatusNotFound, "no receiver " + t.Receiver + ": there is " + strings.Join(names, ", ")}
		}
	}
	return store.Pause{Receiver: t.Receiver}, nil
}

// stillPaused says whether another pause holds back what p did.
func (h *Handler) stillPaused(p store.Pause) bool {
	receiver := p.Receiver
	if r := h.receivers().For(p.Platform); p.Tenant != "" && r != nil {
		receiver = r.Name
	}
	return slices.ContainsFunc(h.paused(), func(other store.Pause) bool {
		return !other.Same(p) && other.Covers(p.Platform, p.Tenant, receiver)
	})
}

// pausePage is where somebody sees what is paused.
func pausePage(p store.Pause, notice string) goTo {
	switch {
	case p.Tenant != "":
		return tenantPage(p.Platform, p.Tenant, notice)
	case notice != "":
		return "/?did=" + goTo(notice)
	}
	return "/"
}

func tenantPage(platform, code, notice string) goTo {
	return goTo(page.TenantURL(platform, code, notice))
}
