package admin

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/inbox"
)

// confirmation asks before something is done. It is a page of its own, so that it works
// without a script; what it sends is the POST that acts.
type confirmation struct {
	Question string
	Effect   string // what will happen
	Warning  string // what should be known before; may be empty
	Button   string // empty: there is nothing to do
	Action   string // where the form goes
	Fields   map[string]string
	Back     string
	Danger   bool

	Other, OtherButton string // where another question is asked; may be empty
}

func confirm(status int, c *confirmation) *view {
	return &view{name: "confirm", status: status, shell: page.Shell{Title: c.Question, At: "webhooks", Body: c}}
}

// form is a page that acts on what a form says.
func (h *Handler) form(do func(*http.Request, url.Values) (*view, error)) http.HandlerFunc {
	return h.page(func(r *http.Request) (*view, error) {
		if err := r.ParseForm(); err != nil {
			return nil, badRequest("the form can't be read: %v", err)
		}
		return do(r, r.PostForm)
	})
}

// askOne asks before a webhook is sent again, or discarded.
func (h *Handler) askOne(act string) http.HandlerFunc {
	return h.page(func(r *http.Request) (*view, error) {
		d, err := h.webhook(r.PathValue("id"))
		if err != nil {
			return nil, err
		}
		if d.State == "" {
			return nil, inbox.ErrNotFound
		}
		return confirm(http.StatusOK, about(act, &d.Webhook)), nil
	})
}

func about(act string, w *Webhook) *confirmation {
	what := "it"
	if w.Tenant != "" {
		what = "this snapshot of " + page.TenantName(w.Platform, w.Tenant)
	}
	c := &confirmation{Action: "/webhooks/" + w.ID + "/" + act, Back: "/webhooks/" + w.ID}
	if act == "discard" {
		c.Question, c.Button, c.Danger = "Discard webhook "+w.ID+"?", "Discard it", true
		c.Effect = "The receiver never gets " + what + ". The tenant's next webhook goes out instead. " +
			"It stays in the list as discarded, and you can still send it again. What usher itself answers about the tenant does not change."
		return c
	}
	c.Question, c.Button = "Send webhook "+w.ID+" again?", "Send it again"
	c.Effect = "The receiver gets " + what + " once more, with the same webhook-id, before what the tenant has waiting."
	return c
}

// doOne does it.
func (h *Handler) doOne(act string) http.HandlerFunc {
	return h.form(func(r *http.Request, form url.Values) (*view, error) {
		id := r.PathValue("id")
		err := h.act(r, act, id, form.Get("force") == "true")
		var overwrite *inbox.OverwriteError
		if errors.As(err, &overwrite) {
			// Asked once more, now that it is known what is at stake.
			c := about(act, &Webhook{ID: id, Platform: overwrite.Latest.Platform, Tenant: overwrite.Latest.Tenant})
			c.Question = "Overwrite a newer snapshot?"
			c.Warning = overwrite.Error() + "."
			c.Button, c.Danger = "Send the old one anyway", true
			c.Fields = map[string]string{"force": "true"}
			return confirm(http.StatusConflict, c), nil
		}
		return &view{goTo: "/webhooks/" + id + "?did=" + act}, err
	})
}

// askMany asks before all that a filter chooses are sent again, or discarded. What comes after the question is not
// part of it.
func (h *Handler) askMany(act string) http.HandlerFunc {
	return h.page(func(r *http.Request) (*view, error) {
		s, err := readChoice(r.URL.RawQuery)
		if err != nil {
			return nil, err
		}
		force, err := readForce(r)
		if err != nil {
			return nil, err
		}
		if !s.Narrow() {
			return nil, errNoFilter
		}
		if s.Until.IsZero() {
			s.Until = time.Now()
		}
		chosen, err := h.choose(act, s, force)
		if err != nil {
			return nil, err
		}
		query := s.Query()
		c := aboutMany(act, &chosen)
		c.Action, c.Back = "/"+act+"?"+query.Encode(), "/webhooks?"+r.URL.RawQuery
		if chosen.Older > 0 {
			query.Set("force", "true")
			c.Other, c.OtherButton = "/"+act+"?"+query.Encode(), "Send the older ones, too…"
		}
		if force {
			c.Fields, c.Danger, c.Warning = map[string]string{"force": "true"}, true, "Older snapshots among them may undo newer ones."
		}
		return confirm(http.StatusOK, c), nil
	})
}

func aboutMany(act string, chosen *Chosen) *confirmation {
	n, what := len(chosen.Webhooks), "webhook "+page.Few(chosen.Webhooks)
	if n > 1 {
		what = "webhooks " + page.Few(chosen.Webhooks)
	}
	c := new(confirmation)
	switch {
	case n == 0:
		c.Question, c.Effect = "There is nothing to "+act, "None of these webhooks waits, is parked, or is its tenant's latest."
	case act == "discard":
		c.Question, c.Button, c.Danger = "Discard "+page.Plural(n, "webhook", "webhooks")+"?", "Discard", true
		c.Effect = "The receiver never gets " + what + ". What is discarded stays in the list, and you can still send it again."
	default:
		c.Question, c.Button = "Send "+page.Plural(n, "webhook", "webhooks")+" again?", "Send again"
		c.Effect = "The receiver gets " + what + " now. Of a tenant's webhooks that wait, the first is tried now and the others follow."
	}
	if chosen.Older > 0 {
		c.Warning = page.Plural(chosen.Older, "older one is", "older ones are") + " left out: the same tenants have newer ones, which they would undo."
	}
	return c
}

// doMany does it, and says which ones failed.
func (h *Handler) doMany(act string) http.HandlerFunc {
	return h.form(func(r *http.Request, form url.Values) (*view, error) {
		s, err := readChoice(r.URL.RawQuery)
		if err != nil {
			return nil, err
		}
		force := form.Get("force") == "true"
		chosen, err := h.choose(act, s, force)
		if err != nil {
			return nil, err
		}
		acted := h.actOnAll(r, act, chosen.Webhooks, force)
		if len(acted.Failed) > 0 {
			var why []string
			for _, id := range slices.Sorted(maps.Keys(acted.Failed)) {
				why = append(why, id+": "+acted.Failed[id])
			}
			return nil, &refusal{http.StatusConflict, fmt.Sprintf("%s done, %d not: %s", page.Plural(len(acted.Done), "webhook", "webhooks"), len(why), strings.Join(why, "; "))}
		}
		query := url.Values{"did": {act + "-all"}}
		if s.Tenant != "" {
			query.Set("tenant", s.Tenant)
		}
		return &view{goTo: "/webhooks?" + query.Encode()}, nil
	})
}

// fields are those of a form that names what is paused.
func fields(p inbox.Pause) map[string]string {
	switch {
	case p.Tenant != "":
		return map[string]string{"platform": p.Platform, "tenant": p.Tenant}
	case p.Receiver != "":
		return map[string]string{"receiver": p.Receiver}
	}
	return nil
}

func (h *Handler) askPause(r *http.Request) (*view, error) {
	p, err := h.pauseOf(formTarget(r.URL.Query()))
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
func pausePage(p inbox.Pause) string {
	if p.Tenant != "" {
		return tenantAddress(p.Platform, p.Tenant, "")
	}
	return "/"
}

func (h *Handler) doPause(r *http.Request, form url.Values) (*view, error) {
	p, err := h.pause(r, formTarget(form))
	return &view{goTo: pausePage(p)}, err // whose banner says it
}

func (h *Handler) doResume(r *http.Request, form url.Values) (*view, error) {
	resumed, err := h.resume(r, formTarget(form))
	if resumed.Tenant != "" {
		return &view{goTo: tenantAddress(resumed.Platform, resumed.Tenant, "resume")}, err
	}
	return &view{goTo: "/?did=resume"}, err
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
	entries, err := box.List(inbox.Filter{Tenant: named.Tenant, Platform: &named.Platform})
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
