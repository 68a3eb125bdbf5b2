package admin

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"usher/internal/admin/page"
	"usher/internal/inbox/store"
)

// What the pages ask, and do, about deliveries as a whole, and about a tenant.

// fields are those of a form that names what is paused.
func fields(p store.Pause) map[string]string {
	switch {
	case p.Tenant != "":
		return map[string]string{"platform": p.Platform, "tenant": p.Tenant}
	case p.Receiver != "":
		return map[string]string{"receiver": p.Receiver}
	}
	return nil
}

func (h *Handler) askPause(r *http.Request) (*view, error) {
	query, err := readQuery(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	t, err := formTarget(query)
	if err != nil {
		return nil, err
	}
	p, err := h.pauseOf(t)
	if err != nil {
		return nil, err
	}
	return confirm(http.StatusOK, &confirmation{
		Question: "Pause " + p.String() + "?",
		Effect: "No delivery begins until somebody resumes, also after a restart, and on all replicas. Deliveries under way may finish. " +
			"Nothing is lost: senders still get 200, and webhooks wait in the inbox.",
		Button: "Pause", Action: "/pause", Fields: fields(p), Back: pausePage(p),
	}), nil
}

// pausePage is where somebody sees what is paused.
func pausePage(p store.Pause) string {
	if p.Tenant != "" {
		return tenantAddress(p.Platform, p.Tenant, "")
	}
	return "/"
}

func (h *Handler) doPause(r *http.Request, form url.Values) (*view, error) {
	t, err := formTarget(form)
	if err != nil {
		return nil, err
	}
	p, err := h.pause(r, t)
	return &view{goTo: pausePage(p)}, err // whose banner says it
}

func (h *Handler) doResume(r *http.Request, form url.Values) (*view, error) {
	t, err := formTarget(form)
	if err != nil {
		return nil, err
	}
	resumed, err := h.resume(r, t)
	if err != nil {
		return nil, err
	}
	did := "resume"
	if h.stillPaused(resumed.Pause) {
		did = "resume-held"
	}
	if resumed.Tenant != "" {
		return &view{goTo: tenantAddress(resumed.Platform, resumed.Tenant, did)}, nil
	}
	return &view{goTo: "/?did=" + did}, nil
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

// tenantOf is the tenant that a page is about.
func tenantOf(query url.Values) (target, error) {
	platform, code, err := readTenant(query)
	return target{Tenant: code, Platform: &platform}, err
}

func (h *Handler) askForget(r *http.Request) (*view, error) {
	platform, code, err := readTenant(r.URL.Query())
	if err != nil {
		return nil, err
	}
	return confirm(http.StatusOK, &confirmation{
		Question: "Forget what " + page.TenantName(platform, code) + " was sent last?",
		Effect: "The tenant's next webhook is delivered even if the receiver was sent exactly that before. " +
			"Use it when somebody changed the receiver's state without usher, then resend the webhook from the billing service's log. " +
			"Nothing is deleted here.",
		Button: "Forget it", Action: "/tenant/forget", Fields: map[string]string{"platform": platform, "code": code},
		Back: tenantAddress(platform, code, ""),
	}), nil
}

func (h *Handler) doForget(r *http.Request, form url.Values) (*view, error) {
	t, err := tenantOf(form)
	if err != nil {
		return nil, err
	}
	forgotten, err := h.forget(r, t)
	did := "forget"
	if forgotten.Forgotten == 0 {
		did = "forget-nothing"
	}
	return &view{goTo: tenantAddress(forgotten.Platform, forgotten.Tenant, did)}, err
}

func (h *Handler) askErase(r *http.Request) (*view, error) {
	t, err := tenantOf(r.URL.Query())
	if err != nil {
		return nil, err
	}
	box, err := h.inbox()
	if err != nil {
		return nil, err
	}
	named, err := h.named(t)
	if err != nil {
		return nil, err
	}
	entries, err := box.List(store.Filter{Tenant: named.Tenant, Platform: &named.Platform})
	if err != nil {
		return nil, err
	}
	c := &confirmation{
		Question: "Erase " + page.TenantName(named.Platform, named.Tenant) + "?",
		Effect: fmt.Sprintf("This deletes %s of this tenant, what it may use, and what dedup remembers of it. It can't be undone. "+
			"usher then answers that it does not know the tenant. The receiver is not told, and keeps what it has.", page.Plural(len(entries), "webhook", "webhooks")),
		Button: "Erase it", Danger: true, Action: "/tenant/erase", Fields: map[string]string{"platform": named.Platform, "code": named.Tenant},
		Back: tenantAddress(named.Platform, named.Tenant, ""),
	}
	open := 0
	for i := range entries {
		if !entries[i].State.Finished() {
			open++
		}
	}
	if open > 0 {
		c.Warning = page.Plural(open, "webhook waits or is parked: it is", "webhooks wait or are parked: they are") + " never delivered."
	}
	return confirm(http.StatusOK, c), nil
}

func (h *Handler) doErase(r *http.Request, form url.Values) (*view, error) {
	t, err := tenantOf(form)
	if err != nil {
		return nil, err
	}
	_, err = h.erase(r, t)
	return &view{goTo: "/webhooks?did=erase"}, err
}

func tenantAddress(platform, code, did string) string {
	query := url.Values{"platform": {platform}, "code": {code}}
	if did != "" {
		query.Set("did", did)
	}
	return "/tenant?" + query.Encode()
}
