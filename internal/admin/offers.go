package admin

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/view"
)

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
		all, err := h.choose(r.Context(), a.Name == "redeliver", *t.all, force)
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

// toErase says how many webhooks an erasure would delete, and how many of them are never delivered then.
func (h *Handler) toErase(ctx context.Context, platform, tenant string) (words string, err error) {
	all, open := 0, 0
	of := inbox.Filter{Tenant: tenant, Platform: &platform}
	err = h.cfg.Inbox.Each(ctx, of, false, func(w *lane.Webhook) bool {
		if all++; !w.State.Finished() {
			open++
		}
		return true
	})
	words = "It has " + view.Plural(all, "webhook", "webhooks")
	if open > 0 {
		words += fmt.Sprintf(", of which %s: never delivered then", view.Plural(open, "waits, is parked or is invalid", "wait, are parked or are invalid"))
	}
	return words + ".", err
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

// shown is a page about something that acts may be done to.
type shown struct {
	*page.Page
	about target
}

// page makes the handler of a page: it adds the pauses in force, what was just done, and the dialog that the address
// asks for.
func (h *Handler) page(do func(*http.Request) (any, error)) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		answer, err := do(r)
		if err != nil {
			return nil, err
		}
		p, _ := answer.(*page.Page)
		if s, ok := answer.(shown); ok {
			if p = s.Page; r.URL.Query().Has("ask") {
				p.Ask, err = h.question(r, s.about)
				p.Live = false // it would be asked anew every two seconds
			}
		}
		paused := slices.Clone(h.paused())
		slices.SortFunc(paused, func(a, b inbox.Pause) int { return a.Since.Compare(b.Since) })
		for _, pause := range paused {
			offers := h.offers(target{on: pause})
			offers = slices.DeleteFunc(offers, func(o page.Offer) bool { return o.Act != "resume" })
			p.Paused = append(p.Paused, page.Paused{Pause: pause, Offers: offers})
		}
		p.Notice = noticeOf(r.URL.Query().Get("did"))
		return p, err
	})
}
