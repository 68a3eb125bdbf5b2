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
	"usher/internal/inbox/store"
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

func (c *confirmation) page(status int) *page.Shell {
	return &page.Shell{Name: "confirm", Status: status, Title: c.Question, At: "webhooks", Body: c}
}

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

// askOne asks before something is done to a webhook.
func (h *Handler) askOne(act string) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		d, err := h.webhook(r.PathValue("id"))
		if err != nil {
			return nil, err
		}
		if !d.InInbox() {
			return nil, store.ErrNotFound
		}
		return about(act, &d.Webhook).page(http.StatusOK), nil
	})
}

func about(act string, w *Webhook) *confirmation {
	what := "it"
	if w.Tenant != "" {
		what = "this snapshot of " + page.TenantName(w.Platform, w.Tenant)
	}
	c := &confirmation{Action: "/webhooks/" + w.ID + "/" + act, Back: "/webhooks/" + w.ID}
	switch act {
	case "redeliver":
		c.Question, c.Button = "Send webhook "+w.ID+" again?", "Send it again"
		c.Effect = "The receiver gets " + what + " once more, with the same webhook-id, before what the tenant has waiting."
	case "accept":
		c.Question, c.Button = "Accept webhook "+w.ID+"?", "Accept it"
		c.Effect = "usher takes in " + what + " as it is, behind what the tenant has waiting: for the receiver, and for what usher answers about the tenant. It becomes a new webhook with its own id."
	case "discard":
		c.Question, c.Button, c.Danger = "Discard webhook "+w.ID+"?", "Discard it", true
		c.Effect = "The receiver never gets " + what + ". The tenant's next webhook goes out instead. " +
			"It stays in the list as discarded, and you can still send it again. What usher itself answers about the tenant does not change."
		if w.State == store.Refused {
			c.Effect = "usher no longer reports it as a problem, and you can no longer accept it. It stays in the list as discarded."
		}
	}
	return c
}

// doOne does it.
func (h *Handler) doOne(act string) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		force, err := formForce(r)
		if err != nil {
			return nil, err
		}
		id := r.PathValue("id")
		_, err = h.act(r, act, id, force)
		if overwrite, ok := errors.AsType[*store.OverwriteError](err); ok {
			// Asked once more, now that it is known what is at stake.
			c := about(act, &Webhook{ID: id, Platform: overwrite.Latest.Platform, Tenant: overwrite.Latest.Tenant})
			c.Question, c.Warning = "Overwrite a newer snapshot?", overwrite.Error()+"."
			c.Button, c.Danger = map[string]string{"accept": "Accept the old one anyway", "redeliver": "Send the old one anyway"}[act], true
			c.Fields = map[string]string{"force": "true"}
			return c.page(http.StatusConflict), nil
		}
		return goTo("/webhooks/" + id + "?did=" + act), err
	})
}

// formForce says whether a form is to do it though a newer snapshot is undone: somebody was asked about that, and an address is not
// enough.
func formForce(r *http.Request) (bool, error) {
	if err := r.ParseForm(); err != nil {
		return false, unread(err)
	}
	return r.PostForm.Get("force") == "true", nil
}

// askMany asks before all that a filter chooses are sent again, or discarded. What comes after the question is not
// part of it.
func (h *Handler) askMany(act string) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		s, err := readChoice(r)
		if err != nil {
			return nil, err
		}
		if s.Until.IsZero() {
			s.Until = time.Now()
		}
		chosen, err := h.choose(act, s)
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
		if s.force {
			c.Fields, c.Danger, c.Warning = map[string]string{"force": "true"}, true, "Older snapshots among them may undo newer ones."
		}
		return c.page(http.StatusOK), nil
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
	return h.answer(func(r *http.Request) (any, error) {
		s, err := readChoice(r)
		if err != nil {
			return nil, err
		}
		if s.force, err = formForce(r); err != nil {
			return nil, err
		}
		chosen, err := h.choose(act, s)
		if err != nil {
			return nil, err
		}
		acted := h.actOnAll(r, act, chosen.Webhooks, s.force)
		if len(acted.Failed) > 0 {
			var why []string
			for _, id := range slices.Sorted(maps.Keys(acted.Failed)) {
				why = append(why, id+": "+acted.Failed[id])
			}
			return nil, &refusal{http.StatusConflict, fmt.Sprintf("%s done, %d not: %s", page.Plural(len(acted.Done), "webhook", "webhooks"), len(why), strings.Join(why, "; "))}
		}
		query := url.Values{"did": {act + "-all"}}
		if len(acted.Done) == 0 {
			query.Set("did", "nothing")
		}
		if s.Tenant != "" {
			query.Set("tenant", s.Tenant)
		}
		return goTo("/webhooks?" + query.Encode()), nil
	})
}

// ask is a page that asks before something is done to a target, which read reads.
func (h *Handler) ask(read func(url.Values) (target, error), about func(target) (*confirmation, error)) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		query, err := readQuery(r.URL.RawQuery)
		if err != nil {
			return nil, err
		}
		t, err := read(query)
		if err != nil {
			return nil, err
		}
		c, err := about(t)
		if err != nil {
			return nil, err
		}
		return c.page(http.StatusOK), nil
	})
}

func (h *Handler) aboutPause(t target) (*confirmation, error) {
	p, err := h.pauseOf(t)
	return &confirmation{
		Question: "Pause " + p.String() + "?",
		Effect: "No delivery begins until somebody resumes, also after a restart, and on all replicas. Deliveries under way may finish. " +
			"Nothing is lost: senders still get 200, and webhooks wait in the inbox.",
		Button: "Pause", Action: "/pause", Fields: fields(p), Back: string(pausePage(p, "")),
	}, err
}

func (h *Handler) aboutForget(t target) (*confirmation, error) {
	return &confirmation{
		Question: "Forget what " + page.TenantName(*t.Platform, t.Tenant) + " was sent last?",
		Effect: "The tenant's next webhook is delivered even if the receiver was sent exactly that before. " +
			"Use it when somebody changed the receiver's state without usher, then resend the webhook from the billing service's log. " +
			"Nothing is deleted here.",
		Button: "Forget it", Action: "/tenant/forget", Fields: map[string]string{"platform": *t.Platform, "code": t.Tenant},
		Back: page.TenantURL(*t.Platform, t.Tenant, ""),
	}, nil
}

func (h *Handler) aboutErase(t target) (*confirmation, error) {
	box, err := h.inbox()
	if err != nil {
		return nil, err
	}
	named, err := h.named(t.TenantName)
	if err != nil {
		return nil, err
	}
	entries, err := box.List(store.Filter{Tenant: named.Tenant, Platform: &named.Platform})
	c := &confirmation{
		Question: "Erase " + page.TenantName(named.Platform, named.Tenant) + "?",
		Effect: fmt.Sprintf("This deletes %s of this tenant, what it may use, and what dedup remembers of it. It can't be undone. "+
			"usher then answers that it does not know the tenant. The receiver is not told, and keeps what it has.", page.Plural(len(entries), "webhook", "webhooks")),
		Button: "Erase it", Danger: true, Action: "/tenant/erase", Fields: map[string]string{"platform": named.Platform, "code": named.Tenant},
		Back: page.TenantURL(named.Platform, named.Tenant, ""),
	}
	open := len(slices.DeleteFunc(entries, func(e store.Entry) bool { return e.State.Finished() }))
	if open > 0 {
		c.Warning = page.Plural(open, "webhook waits or is parked: it is", "webhooks wait or are parked: they are") + " never delivered."
	}
	return c, err
}
