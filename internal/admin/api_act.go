package admin

import (
	"net/http"
	"slices"
	"strings"

	"usher/internal/inbox"
)

// What people can do to a tenant, or to deliveries.

// target is what an action is about, as its body says.
type target struct {
	Tenant   string
	Platform *string // nil: whichever the tenant is on, if that is one
	Receiver string
}

// tenants returns the platforms on which a tenant is known, as far as they fit.
func (h *Handler) tenants(tenant string, platform *string) ([]string, error) {
	if h.cfg.Platforms == nil {
		return nil, nil
	}
	known, err := h.cfg.Platforms(tenant)
	known = slices.DeleteFunc(slices.Clone(known), func(p string) bool { return platform != nil && p != *platform })
	slices.Sort(known)
	return known, err
}

// named returns the one tenant that t means.
func (h *Handler) named(t *target) (Named, error) {
	if t.Tenant == "" {
		return Named{}, badRequest(`the body names no tenant, but should be {"tenant":"…"}`)
	}
	known, err := h.tenants(t.Tenant, t.Platform)
	switch {
	case err != nil:
		return Named{}, err
	case len(known) == 0 && t.Platform != nil:
		return Named{}, &refusal{http.StatusNotFound, "no tenant " + inbox.ExactTenant(*t.Platform, t.Tenant) + " is known"}
	case len(known) == 0:
		return Named{}, &refusal{http.StatusNotFound, "no tenant " + inbox.ShowTenant("", t.Tenant) + " is known"}
	case len(known) > 1:
		return Named{}, ambiguous(t.Tenant, known)
	}
	return Named{known[0], t.Tenant}, nil
}

func ambiguous(tenant string, platforms []string) error {
	var names []string
	for _, p := range platforms {
		names = append(names, inbox.ExactTenant(p, tenant))
	}
	return &refusal{http.StatusConflict, "this could be " + strings.Join(names, " or ") + ": name one of them"}
}

func (h *Handler) forget(r *http.Request) (any, error) {
	var t target
	if err := decodeBody(r, &t, `{"tenant":"…"}`); err != nil {
		return nil, err
	}
	if h.cfg.Forget == nil {
		return nil, errNoGate
	}
	named, err := h.named(&t)
	if err != nil {
		return nil, err
	}
	n, err := h.drop(r, named)
	if err != nil {
		return nil, err
	}
	return Forgotten{named, n}, nil
}

var errNoGate = &refusal{http.StatusNotFound, "this usher has no webhook gate: USHER_WEBHOOK_FORWARD_URL is not set"}

// drop has dedup forget a tenant, and says of how many lanes.
func (h *Handler) drop(r *http.Request, named Named) (int, error) {
	if h.cfg.Forget == nil {
		return 0, errNoGate
	}
	n, err := h.cfg.Forget(named.Platform, named.Tenant)
	if err != nil {
		return 0, err
	}
	h.acted.Add(1)
	h.cfg.Log.Info("dedup memory dropped by hand", "platform", named.Platform, "tenant", named.Tenant, "lanes", n, "from", r.RemoteAddr)
	return n, nil
}

func (h *Handler) discard(r *http.Request) (any, error) {
	box, id, err := h.addressed(r)
	if err != nil {
		return nil, err
	}
	if err := box.Discard(id); err != nil {
		return nil, err
	}
	h.acted.Add(1)
	h.cfg.Log.Info("webhook discarded by hand", "id", id, "from", r.RemoteAddr)
	return Redelivered{id}, nil
}

// erase deletes all that is kept of a tenant.
func (h *Handler) erase(r *http.Request) (any, error) {
	box, err := h.inbox()
	if err != nil {
		return nil, err
	}
	var t target
	if err := decodeBody(r, &t, `{"tenant":"…"}`); err != nil {
		return nil, err
	}
	named, err := h.named(&t)
	if err != nil {
		return nil, err
	}
	n, err := box.Erase(named.Platform, named.Tenant)
	if err != nil {
		return nil, err
	}
	h.acted.Add(1)
	h.cfg.Log.Warn("tenant erased by hand", "platform", named.Platform, "tenant", named.Tenant, "webhooks", n, "from", r.RemoteAddr)
	return Erased{named, n}, nil
}

func (h *Handler) pause(r *http.Request) (any, error) {
	box, p, err := h.readPause(r)
	if err != nil {
		return nil, err
	}
	if err := box.Pause(p); err != nil {
		return nil, err
	}
	h.acted.Add(1)
	h.cfg.Log.Warn("deliveries paused by hand", "what", p.String(), "from", r.RemoteAddr)
	return p, nil
}

func (h *Handler) resume(r *http.Request) (any, error) {
	box, p, err := h.readPause(r)
	if err != nil {
		return nil, err
	}
	was, err := box.Resume(p)
	if err != nil {
		return nil, err
	}
	h.acted.Add(1)
	h.cfg.Log.Warn("deliveries resumed by hand", "what", p.String(), "was_paused", was, "from", r.RemoteAddr)
	return Resumed{p, was}, nil
}

// readPause reads what is to be paused or resumed. A name that nobody knows is refused: a pause
// that holds nothing back would look like one that does.
func (h *Handler) readPause(r *http.Request) (box *Inbox, p inbox.Pause, err error) {
	if box, err = h.inbox(); err != nil {
		return nil, p, err
	}
	var t target
	if err := decodeBody(r, &t, `{"tenant":"…"}, {"receiver":"…"} or {}`); err != nil {
		return nil, p, err
	}
	switch {
	case t.Tenant != "" && t.Receiver != "":
		return nil, p, badRequest("name a tenant or a receiver, not both")
	case t.Tenant == "" && t.Platform != nil:
		return nil, p, badRequest("a platform needs a tenant")
	case t.Tenant != "":
		named, err := h.named(&t)
		if err != nil {
			return nil, p, err
		}
		p.Platform, p.Tenant = named.Platform, named.Tenant
	case t.Receiver != "":
		if p.Receiver = t.Receiver; h.cfg.Gate == nil { // other replicas know them
			break
		}
		var names []string
		for _, rc := range h.cfg.Gate().Receivers {
			names = append(names, rc.Name)
		}
		if !slices.Contains(names, t.Receiver) && !slices.ContainsFunc(box.Stats().Paused, func(o inbox.Pause) bool { return o.Receiver == t.Receiver }) {
			return nil, p, &refusal{http.StatusNotFound, "no receiver " + t.Receiver + ": there is " + strings.Join(names, ", ")}
		}
	}
	return box, p, nil
}
