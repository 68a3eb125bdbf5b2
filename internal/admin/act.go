package admin

import (
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"usher/internal/admin/recent"
	"usher/internal/inbox"
	"usher/internal/inbox/store"
)

// What people can do, through the API, the page and the commands. Each is done here, and written to the log.

func (h *Handler) inbox() (*inbox.Inbox, error) {
	if h.cfg.Inbox == nil {
		return nil, &refusal{http.StatusNotFound, "this usher has no inbox: USHER_WEBHOOK_INBOX is not set"}
	}
	return h.cfg.Inbox, nil
}

// act sends a webhook again, or discards it.
func (h *Handler) act(r *http.Request, act, id string, force bool) error {
	box, err := h.inbox()
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return store.ErrNotFound
	}
	switch act {
	case "accept":
		_, err = h.acceptOne(r, id, force)
		return err
	case "discard":
		err = box.Discard(n)
	default:
		err = box.Redeliver(n, force)
	}
	if err != nil {
		return err
	}
	h.did(r, slog.LevelInfo, done[act], "id", n, "force", force)
	h.note(r, act, id, 1)
	return nil
}

// did notes what somebody has done.
func (h *Handler) did(r *http.Request, level slog.Level, what string, args ...any) {
	h.acted.Add(1)
	h.cfg.Log.Log(r.Context(), level, what, append(args, "who", Who(r), "from", r.RemoteAddr)...)
}

var done = map[string]string{"redeliver": "webhook sent again by hand", "discard": "webhook discarded by hand"}

// onOne is POST /api/webhooks/{id}/redeliver, or …/discard.
func (h *Handler) onOne(act string) http.HandlerFunc {
	return h.api(func(r *http.Request) (any, error) {
		force, err := readForce(r.URL.Query())
		if err != nil {
			return nil, err
		}
		id := r.PathValue("id")
		return Done{id, h.paused()}, h.act(r, act, id, force)
	})
}

// onMany is /api/redeliver, or /api/discard: GET says which webhooks the filter chooses, POST does it.
func (h *Handler) onMany(act string) http.HandlerFunc {
	return h.api(func(r *http.Request) (any, error) {
		s, force, err := readChoice(r)
		if err != nil {
			return nil, err
		}
		chosen, err := h.choose(act, s, force)
		if err != nil || r.Method != http.MethodPost {
			return chosen, err
		}
		return h.actOnAll(r, act, chosen.Webhooks, force), nil
	})
}

func readForce(query url.Values) (force bool, err error) {
	text := query.Get("force")
	if text == "" {
		return false, nil
	}
	if force, err = strconv.ParseBool(text); err != nil {
		return false, badRequest("force is %q, but should be true or false", text)
	}
	return force, nil
}

// target is what an action is about: a tenant, a receiver, or everything.
type target struct {
	Tenant   string
	Platform *string // nil: whichever the tenant is on, if that is one
	Receiver string
}

// formTarget reads it from a form, or from an address.
func formTarget(form url.Values) (target, error) {
	t := target{Tenant: form.Get("tenant"), Receiver: form.Get("receiver")}
	if form.Has("platform") {
		platform := form.Get("platform")
		t.Platform = &platform
	}
	if t == (target{}) && len(form) > 0 { // an empty name does not mean everybody
		return t, badRequest("the form names neither a tenant nor a receiver")
	}
	return t, nil
}

// tenants returns the platforms on which a tenant is known, as far as they fit. Without an inbox those whose webhooks the
// gate remembers are, too: pages show them.
func (h *Handler) tenants(tenant string, platform *string) (known []string, err error) {
	if h.cfg.Platforms != nil {
		known, err = h.cfg.Platforms(tenant)
	}
	if h.cfg.Inbox == nil && h.cfg.Decisions != nil {
		for _, e := range h.cfg.Decisions.List(recent.Filter{Tenant: tenant}) {
			known = append(known, e.Platform)
		}
	}
	known = slices.DeleteFunc(slices.Clone(known), func(p string) bool { return platform != nil && p != *platform })
	slices.Sort(known)
	return slices.Compact(known), err
}

// named returns the one tenant that t means.
func (h *Handler) named(t target) (Named, error) {
	if t.Tenant == "" {
		return Named{}, badRequest(`no tenant is named: the body should be {"tenant":"…"}`)
	}
	known, err := h.tenants(t.Tenant, t.Platform)
	switch {
	case err != nil:
		return Named{}, err
	case len(known) == 0:
		return Named{}, h.unknown(t.Tenant, t.Platform)
	case len(known) > 1:
		return Named{}, ambiguous(t.Tenant, known)
	}
	return Named{known[0], t.Tenant}, nil
}

// unknown says that nobody has this name, and which names are alike.
func (h *Handler) unknown(tenant string, platform *string) error {
	name := store.ShowTenant("", tenant)
	if platform != nil {
		name = store.Exact(*platform, tenant)
	}
	why := "unknown tenant " + name
	if alike, err := h.alike(tenant); err == nil && len(alike) > 0 {
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

func ambiguous(tenant string, platforms []string) error {
	var names []string
	for _, p := range platforms {
		names = append(names, store.Exact(p, tenant))
	}
	return &refusal{http.StatusConflict, "this could be " + strings.Join(names, " or ") + ": name one of them"}
}

// forget has dedup forget a tenant.
func (h *Handler) forget(r *http.Request, t target) (Forgotten, error) {
	if h.cfg.Forget == nil {
		return Forgotten{}, &refusal{http.StatusNotFound, "this usher has no webhook gate: USHER_WEBHOOK_FORWARD_URL is not set"}
	}
	named, err := h.named(t)
	if err != nil {
		return Forgotten{}, err
	}
	n, err := h.cfg.Forget(named.Platform, named.Tenant)
	if err != nil {
		return Forgotten{}, err
	}
	h.note(r, "forget", store.ShowTenant(named.Platform, named.Tenant), 0)
	h.did(r, slog.LevelInfo, "dedup memory dropped by hand", "platform", named.Platform, "tenant", named.Tenant, "remembered", n > 0)
	return Forgotten{named, n}, nil
}

// erase deletes all that is kept of a tenant.
func (h *Handler) erase(r *http.Request, t target) (Erased, error) {
	box, err := h.inbox()
	if err != nil {
		return Erased{}, err
	}
	named, err := h.named(t)
	if err != nil {
		return Erased{}, err
	}
	n, err := box.Erase(named.Platform, named.Tenant)
	if err != nil {
		return Erased{}, err
	}
	if h.cfg.Decisions != nil {
		h.cfg.Decisions.Erase(named.Platform, named.Tenant)
	}
	h.note(r, "erase", store.ShowTenant(named.Platform, named.Tenant), n)
	h.did(r, slog.LevelWarn, "tenant erased by hand", "platform", named.Platform, "tenant", named.Tenant, "webhooks", n)
	return Erased{named, n}, nil
}

func (h *Handler) pause(r *http.Request, t target) (store.Pause, error) {
	p, err := h.pauseOf(t)
	if err != nil {
		return p, err
	}
	if err := h.cfg.Inbox.Pause(p); err != nil {
		return p, err
	}
	h.note(r, "pause", p.String(), 0)
	h.did(r, slog.LevelWarn, "deliveries paused by hand", "what", p.String())
	return p, nil
}

func (h *Handler) resume(r *http.Request, t target) (Resumed, error) {
	p, err := h.pauseOf(t)
	if err != nil {
		return Resumed{}, err
	}
	was, err := h.cfg.Inbox.Resume(p)
	if err != nil {
		return Resumed{}, err
	}
	h.note(r, "resume", p.String(), 0)
	h.did(r, slog.LevelWarn, "deliveries resumed by hand", "what", p.String(), "was_paused", was)
	return Resumed{p, was}, nil
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
		named, err := h.named(t)
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

// onTarget makes an action of the API of what is done to a target.
func onTarget[T any](h *Handler, do func(*http.Request, target) (T, error)) http.HandlerFunc {
	return h.api(func(r *http.Request) (any, error) {
		var t target
		if err := decodeBody(r, &t); err != nil {
			return nil, err
		}
		return do(r, t)
	})
}
