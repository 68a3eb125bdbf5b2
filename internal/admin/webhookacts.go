package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/lane/state"
)

// onWebhooks is the part of an act's row that only acts on webhooks have.
type onWebhooks struct {
	// does does it to a webhook, and returns the webhook's id: a new one, if it was taken in.
	does func(h *Handler, c *call, id int64) (int64, error)

	// deny says why it cannot be done to a webhook as it stands, or to those in a state: then
	// the page does not offer it.
	deny func(w *Webhook) error

	// choose returns those of the webhooks that a filter selects that it would be done to. Nil: it takes ids only.
	choose func(h *Handler, ctx context.Context, s selection, force bool) (chosen, error)

	none   string // what the page says if it is done to none of the webhooks that a filter selects
	didAll string // and afterwards

	// What the command prints. In Done, ID stands for the webhook's new id. Instead has states for which it
	// says what to do instead.
	Done, NotDone string
	Instead       map[state.State]string
}

// ByFilter reports whether it can be done to all webhooks that a filter selects.
func (a *Act) ByFilter() bool { return a.onWebhooks != nil && a.choose != nil }

// offerOnWebhooks fills in the button of an act on a webhook, or on all that a filter selects. The label
// stays empty if it has none there.
func (a *Act) offerOnWebhooks(t target, button *page.Offer) {
	switch w := t.webhook; {
	case w != nil && w.InInbox() && a.deny(w) == nil:
		button.Label, button.Address, button.Fields = a.Title()+"…", "/webhooks/"+w.ID+"/"+a.Name, nil
	case t.all != nil && a.ByFilter() && a.mayDo(t.all.Outcome):
		button.Label, button.Address = a.Title()+" all of these…", "/"+a.Name+"?"+t.all.Query().Encode()
	}
}

// mayDo reports whether it can be done to webhooks in a state; empty: to those in some state.
func (a *Act) mayDo(outcome string) bool {
	return outcome == "" || a.deny(&Webhook{State: state.State(outcome)}) == nil
}

// The answers of the API to acts on webhooks. Package command decodes them.
type (
	// Done is what came of an act on a webhook.
	Done struct {
		ID     string `json:"id"`
		New    string `json:"new,omitempty"`    // of accept: the id of the new webhook
		Failed string `json:"failed,omitempty"` // why it was not done
		Newer  string `json:"newer,omitempty"`  // the newer webhook that it would overwrite without force
	}

	// DoneOne is the answer of POST /api/webhooks/{id}/NAME.
	DoneOne struct {
		ID     string        `json:"id"`               // of the webhook; of accept: of the new webhook
		Paused []inbox.Pause `json:"paused,omitempty"` // the pauses in force, which may hold back the webhook
	}

	// Acted is what the answer of POST /api/NAME has after the list "webhooks" of Done.
	Acted struct {
		Left   int           `json:"left,omitempty"` // how many were not tried, because the inbox can't be written
		Paused []inbox.Pause `json:"paused,omitempty"`
	}

	// Chosen is the answer of GET /api/NAME: what it would be done to.
	Chosen struct {
		Count int      `json:"count"`
		First []string `json:"first"` // the ids of some
		// Older is how many were left out because their tenant has a newer one; with force they are chosen, too.
		Older  int    `json:"older"`
		Before string `json:"before"` // the parameter that leaves out what comes after this answer
	}
)

// chosen are the webhooks that a filter chooses. There may be very many: only their ids are kept.
type chosen struct {
	Chosen
	ids []int64
}

// actOnOne does an act to the webhook whose id is in the path.
func (h *Handler) actOnOne(c *call) (any, error) {
	id, n, err := c.webhook()
	if err != nil {
		return nil, err
	}
	done := DoneOne{ID: id}
	_, err = h.actOn(c, id, []int64{n}, func(d *Done) error { done.ID = cmp.Or(d.New, id); return nil })
	overwrite, older := errors.AsType[*lane.OverwriteError](err)
	switch {
	case isAPI(c.Request):
		if err == nil {
			done.Paused = h.paused()
		}
		return done, err
	case older: // the page asks once more, and says what would be overwritten
		return c.confirmOverwrite(id, overwrite), nil
	}
	return redirect("/webhooks/" + id + "?did=" + c.act.Name), err
}

// webhook returns the id in the path, also as a number.
func (c *call) webhook() (id string, n int64, err error) {
	id = c.PathValue("id")
	if n, err = strconv.ParseInt(id, 10, 64); err != nil {
		err = inbox.ErrNotFound
	}
	return id, n, err
}

// actOnMany does an act to many webhooks: to those whose ids the body has, or else to all that a filter
// chooses. The answer of the API is written while it is done.
func (h *Handler) actOnMany(c *call) (any, error) {
	ids, err := c.readIDs()
	if err != nil {
		return nil, err
	}
	if ids == nil && !c.act.ByFilter() {
		return nil, badRequest(`say which webhooks: {"ids":["7","8"]}`)
	}
	s, err := h.readChoice(c.Request, ids != nil)
	if err != nil {
		return nil, err
	}
	c.chosen = state.State(s.Outcome)
	about := cmp.Or(s.String(), page.FirstFew(named(ids)))
	if ids == nil {
		all, err := h.choose(c, s)
		if err != nil {
			return nil, err
		}
		ids = all.ids
	}
	if !isAPI(c.Request) {
		return h.actOnPage(c, about, ids, s)
	}
	return list{"webhooks", func(write func(any) error) (any, error) {
		var acted Acted
		some := false
		acted.Left, _ = h.actOn(c, about, ids, func(d *Done) error { // the list has its error
			some = some || d.Failed == ""
			return write(d)
		})
		if some {
			acted.Paused = h.paused()
		}
		return acted, nil
	}}, nil
}

// actOn does an act to webhooks, and calls each with what came of it. It goes on if one fails; but not if
// the inbox can't be written, or nobody waits for the answer: then some are left. If it was done to none
// of them, err is why not.
func (h *Handler) actOn(c *call, about string, ids []int64, each func(*Done) error) (left int, err error) {
	err = h.perform(c, about, func() (why error) {
		var taken []string // as new webhooks
		failed := 0
		for n, id := range ids {
			left = len(ids) - n - 1
			d, err := h.actOnWebhook(c, id)
			if err != nil {
				failed, why = failed+1, err
			}
			if d.New != "" {
				taken = append(taken, d.New)
			}
			stuck := err != nil && h.inboxTrouble(err) != nil || errors.Is(err, inbox.ErrDoubt)
			if each(d) != nil || stuck || c.Context().Err() != nil {
				break
			}
		}
		done := len(ids) - left - failed
		c.note("webhooks", done, "failed", failed, "left", left, "force", c.is("force"), "as", page.FirstFew(taken))
		if done > 0 {
			return nil
		}
		return why
	})
	return left, err
}

// actOnWebhook does an act to one webhook, as a part of what somebody asks for.
func (h *Handler) actOnWebhook(c *call, id int64) (*Done, error) {
	as, err := c.act.does(h, c, id)
	d := &Done{ID: strconv.FormatInt(id, 10)}
	switch {
	case err != nil:
		d.Failed = cmp.Or(h.inboxTrouble(err), err).Error() // the cause says more than err
	case as != id:
		d.New = strconv.FormatInt(as, 10)
	}
	if newer, ok := errors.AsType[*lane.OverwriteError](err); ok {
		d.Newer = strconv.FormatInt(newer.Latest.ID, 10)
	}
	return d, err
}

// actOnPage does an act to webhooks, and returns the page that follows.
func (h *Handler) actOnPage(c *call, about string, ids []int64, s selection) (any, error) {
	var why []string
	left, err := h.actOn(c, about, ids, func(d *Done) error {
		if d.Failed != "" {
			why = append(why, d.ID+": "+d.Failed)
		}
		return nil
	})
	if failed := len(why); failed > 0 {
		done := page.Plural(len(ids)-failed-left, "webhook", "webhooks")
		not := fmt.Sprintf("%d not: %s", failed+left, page.FirstFew(why))
		return nil, &refusal{http.StatusConflict, done + " done, " + not}
	}
	query := url.Values{"did": {c.act.Name + "-all"}}
	if len(ids) == 0 {
		query.Set("did", "nothing")
	}
	if s.Tenant != "" {
		query.Set("tenant", s.Tenant)
	}
	return redirect("/webhooks?" + query.Encode()), err
}

// maxIDs limits the body of a request with ids: about as many as a command line can have.
const maxIDs = 2 << 20

// readIDs reads the ids that the body of an API call has: {"ids":["7","8"]}. Nil: there is no body.
func (c *call) readIDs() (ids []int64, err error) {
	if !isAPI(c.Request) || c.Method != http.MethodPost {
		return nil, nil
	}
	raw, err := io.ReadAll(http.MaxBytesReader(c.w, c.body, maxIDs))
	switch {
	case err != nil:
		return nil, badBody(err)
	case len(strings.TrimSpace(string(raw))) == 0:
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

func named(ids []int64) (names []string) {
	for _, id := range ids {
		names = append(names, strconv.FormatInt(id, 10))
	}
	return names
}

// choose returns the webhooks that a filter chooses for an act. What arrives later is not among them: its
// numbers are higher. Times would not tell, because this machine's clock may differ from the inbox's.
func (h *Handler) choose(c *call, s selection) (all chosen, err error) {
	ctx := c.Context()
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
	if all, err = c.act.choose(h, ctx, s, c.is("force")); err != nil {
		return all, err
	}
	// An empty list is written as [], not as null.
	all.Count = len(all.ids)
	all.First = append([]string{}, named(all.ids[:min(len(all.ids), 10)])...)
	all.Before = strconv.FormatInt(s.before, 10)
	return all, nil
}

// chooseToRedeliver chooses webhooks to send again, the oldest first, so that they keep their order. Of a
// tenant's webhooks that wait it chooses the first: the others follow by themselves. Of the others it chooses
// the newest only, because an older snapshot would undo it; with force it chooses all of them.
func (h *Handler) chooseToRedeliver(ctx context.Context, s selection, force bool) (all chosen, err error) {
	err = h.cfg.Inbox.EachPage(ctx, s.filter(), func(page []*lane.Webhook) error {
		behind, err := h.cfg.Inbox.Behind(ctx, s.filter(), page)
		for _, w := range page {
			switch {
			case w.Rejected(), behind[w.ID]: // there is nothing to send again; it follows the one before it
			case force, w.State == state.Waiting, w.Newest:
				all.ids = append(all.ids, w.ID)
			default:
				all.Older++
			}
		}
		return err
	})
	slices.Reverse(all.ids)
	return all, err
}

// chooseToDiscard chooses webhooks that are not finished, the newest first. Otherwise usher could deliver the
// second webhook of a queue right after the first is discarded.
func chooseToDiscard(h *Handler, ctx context.Context, s selection, _ bool) (all chosen, err error) {
	err = h.cfg.Inbox.EachPage(ctx, s.filter(), func(page []*lane.Webhook) error {
		for _, w := range page {
			if !w.State.Finished() {
				all.ids = append(all.ids, w.ID)
			}
		}
		return nil
	})
	return all, err
}

// askOne asks before an act is done to a webhook.
func (h *Handler) askOne(c *call) (any, error) {
	id, _, err := c.webhook()
	if err != nil {
		return nil, err
	}
	d, err := h.withoutContent(c.Context(), id)
	if err == nil {
		err = c.act.deny(&d.Webhook)
	}
	if err != nil {
		return nil, err
	}
	return c.act.confirmOne(&d.Webhook), nil
}

func (a *Act) confirmOne(w *Webhook) *confirmation {
	what := "it"
	if w.Tenant != "" {
		what = "this snapshot of " + page.TenantName(w.Platform, w.Tenant)
	}
	question := a.confirm("webhook "+w.ID, what)
	question.Action, question.Back = "/webhooks/"+w.ID+"/"+a.Name, "/webhooks/"+w.ID
	return question
}

// confirmOverwrite asks before an old webhook overwrites a newer one.
func (c *call) confirmOverwrite(id string, e *lane.OverwriteError) *confirmation {
	question := c.act.confirmOne(&Webhook{ID: id, Platform: e.Latest.Platform, Tenant: e.Latest.Tenant})
	question.Question, question.Warning, question.Danger = "Overwrite a newer snapshot?", e.Error()+".", true
	question.Button += " the old one anyway"
	question.Fields, question.status = map[string]string{"force": "true"}, http.StatusConflict
	return question
}

// askMany asks before an act is done to all webhooks that a filter chooses; the API says only which these
// are. What arrives later is not among them.
func (h *Handler) askMany(c *call) (any, error) {
	s, err := h.readChoice(c.Request, false)
	if err != nil {
		return nil, err
	}
	all, err := h.choose(c, s)
	if err != nil || isAPI(c.Request) {
		return all.Chosen, err
	}
	query, question := s.Query(), c.act.confirmMany(&all.Chosen)
	question.Back = "/webhooks?" + query.Encode()
	query.Set("before", all.Before)
	question.Action = "/" + c.act.Name + "?" + query.Encode()
	if all.Older > 0 {
		question.Warning = page.Plural(all.Older, "older one is", "older ones are") +
			" left out: the same tenants have newer ones, which they would undo."
		query.Set("force", "true")
		question.Other = "/" + c.act.Name + "?" + query.Encode()
		question.OtherButton = c.act.Title() + " the older ones, too…"
	}
	if c.is("force") {
		question.Fields = map[string]string{"force": "true"}
		question.Danger = true
		question.Warning = "Older snapshots among them may undo newer ones."
	}
	return question, nil
}

func (a *Act) confirmMany(all *Chosen) *confirmation {
	if all.Count == 0 {
		return &confirmation{Question: "There is nothing to " + a.Name, Effect: a.none}
	}
	which := onlyIf(all.Count == 1, "webhook ") + onlyIf(all.Count > 1, "webhooks ") +
		page.FirstOf(all.First, all.Count)
	return a.confirm(page.Plural(all.Count, "webhook", "webhooks"), which)
}
