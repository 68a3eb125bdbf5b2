package admin

import (
	"cmp"
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

func confirm(status int, c *confirmation) *view {
	return &view{name: "confirm", status: status, shell: page.Shell{Title: c.Question, At: "webhooks", Body: c}}
}

// form is a page that acts on what a form says.
func (h *Handler) form(do func(*http.Request, url.Values) (*view, error)) http.HandlerFunc {
	return h.page(func(r *http.Request) (*view, error) {
		if err := r.ParseForm(); err != nil {
			return nil, unread(err)
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
			return nil, store.ErrNotFound
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
	if act == "discard" && w.State == store.Refused {
		c.Question, c.Button, c.Danger = "Discard webhook "+w.ID+"?", "Discard it", true
		c.Effect = "usher no longer reports it as a problem, and you can no longer accept it. It stays in the list as discarded."
		return c
	}
	if act == "discard" {
		c.Question, c.Button, c.Danger = "Discard webhook "+w.ID+"?", "Discard it", true
		c.Effect = "The receiver never gets " + what + ". The tenant's next webhook goes out instead. " +
			"It stays in the list as discarded, and you can still send it again. What usher itself answers about the tenant does not change."
		return c
	}
	if act == "accept" {
		c.Question, c.Button = "Accept webhook "+w.ID+"?", "Accept it"
		c.Effect = "usher takes in " + what + " as it is, behind what the tenant has waiting: for the receiver, and for what usher answers about the tenant. It becomes a new webhook with its own id."
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
		var overwrite *store.OverwriteError
		if errors.As(err, &overwrite) {
			// Asked once more, now that it is known what is at stake.
			c := about(act, &Webhook{ID: id, Platform: overwrite.Latest.Platform, Tenant: overwrite.Latest.Tenant})
			c.Question = "Overwrite a newer snapshot?"
			c.Warning = overwrite.Error() + "."
			c.Button, c.Danger = map[string]string{"accept": "Accept the old one anyway"}[act], true
			c.Button = cmp.Or(c.Button, "Send the old one anyway")
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
		s, force, err := readChoice(r)
		if err != nil {
			return nil, err
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
		s, _, err := readChoice(r)
		if err != nil {
			return nil, err
		}
		force := form.Get("force") == "true" // which somebody was asked about, and not the address
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
		if len(acted.Done) == 0 {
			query.Set("did", "nothing")
		}
		if s.Tenant != "" {
			query.Set("tenant", s.Tenant)
		}
		return &view{goTo: "/webhooks?" + query.Encode()}, nil
	})
}
