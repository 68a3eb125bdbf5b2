package admin

import (
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
	"usher/internal/content"
	"usher/internal/inbox"
	"usher/internal/snapshot"
)

// onWebhooks is the part of an act's row that only acts on webhooks have.
type onWebhooks struct {
	Only inbox.State // the state that a webhook must have; empty: not only one

	// does does it to a webhook, and returns the webhook's id: a new one, if it was taken in.
	does func(h *Handler, t task) (int64, error)

	// deny says why it cannot be done to a webhook as it stands: then the page does not offer it. May be nil: then it says so afterwards.
	deny func(w *Webhook) error

	// agree returns an error if somebody has to agree first (the parameter unknown). May be nil.
	agree func(h *Handler, ctx context.Context, id int64) error

	// choose returns those of the webhooks that a filter selects that it would be done to. Nil: it takes ids only.
	choose func(h *Handler, ctx context.Context, s selection, force bool) (chosen, error)

	// The buttons on the page of a webhook (suits: whether it has one, unless deny says that it has not; may be nil) and on a list (labelAll returns
	// an empty text if it has none).
	Label    string
	Quiet    bool // it is not the button that most people look for
	suits    func(*Webhook) bool
	labelAll func(outcome string) string

	// What the page asks. what is the webhook, or the webhooks, in a sentence; count is how many.
	askOne    func(w *Webhook, what string) *confirmation
	askAll    func(count, what string) *confirmation
	none      string // why it is done to none of the webhooks that a filter selects
	overwrite string // the button, if a newer snapshot would be overwritten
	didAll    string // what the page says afterwards

	// What the command prints. In Done, ID stands for the webhook's new id.
	Done, NotDone string
	Delivers      bool // so it says what is paused
}

// ByFilter reports whether it can be done to all webhooks that a filter selects.
func (a *Act) ByFilter() bool { return a.onWebhooks != nil && a.choose != nil }

// A task is an act that somebody asks for, and one of the webhooks.
type task struct {
	*call
	id     int64
	chosen inbox.State // the state for which a filter chose it; empty: none did
}

// The answers of the API to acts on webhooks. Package command decodes them.
type (
	// Done is what came of an act on a webhook.
	Done struct {
		ID      string `json:"id"`
		New     string `json:"new,omitempty"`     // of accept: the id of the new webhook
		Failed  string `json:"failed,omitempty"`  // why it was not done
		Newer   string `json:"newer,omitempty"`   // the newer webhook that it would overwrite without force
		Unknown bool   `json:"unknown,omitempty"` // accept would make usher's answers about its tenant unknown; with unknown=true it does
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
		Count  int      `json:"count"`
		First  []string `json:"first"`  // the ids of some
		Older  int      `json:"older"`  // how many were left out because their tenant has a newer one; with force they are chosen, too
		Before string   `json:"before"` // the parameter that leaves out what comes after this answer

		// Of a platform's tenants, how many cannot be sent again, because the inbox no longer has their last webhook. Some are named.
		Gone        int      `json:"gone,omitempty"`
		GoneTenants []string `json:"gone_tenants,omitempty"`
	}
)

// chosen are the webhooks that a filter chooses. There may be very many: only their ids are kept.
type chosen struct {
	Chosen
	ids []int64
}

// Offers returns what the page of a webhook offers to do with it: what most people look for comes first.
func (w *Webhook) Offers() (all []*Act) {
	for _, quiet := range []bool{false, true} {
		for _, a := range Acts {
			if w.InInbox() && a.onWebhooks != nil && a.Quiet == quiet && (a.suits == nil || a.suits(w)) && (a.deny == nil || a.deny(w) == nil) {
				all = append(all, a)
			}
		}
	}
	return all
}

// actOn does an act to one webhook, as a part of what somebody asks for.
func (c *call) actOn(h *Handler, id int64, chosen inbox.State) (as int64, err error) {
	if c.act.agree != nil && !c.is("unknown") {
		if err := c.act.agree(h, c.Context(), id); err != nil {
			return id, err
		}
	}
	return c.act.does(h, task{c, id, chosen})
}

// actOnOne does an act to the webhook whose id is in the path.
func (h *Handler) actOnOne(c *call) (any, error) {
	id := c.PathValue("id")
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return nil, inbox.ErrNotFound
	}
	done := DoneOne{ID: id}
	err = h.perform(c, id, func() ([]any, error) {
		as, err := c.actOn(h, n, "")
		if err == nil {
			done.ID = strconv.FormatInt(as, 10)
		}
		return []any{"force", c.is("force"), "as", done.ID}, err
	})
	overwrite, older := errors.AsType[*inbox.OverwriteError](err)
	switch {
	case isAPI(c.Request):
		if err == nil {
			done.Paused = h.paused()
		}
		return done, err
	case older: // the page asks once more, and says what would be overwritten
		question := c.act.confirmOverwrite(id, overwrite)
		if c.is("unknown") {
			question.Fields["unknown"] = "true"
		}
		return question, nil
	}
	return redirect("/webhooks/" + id + "?did=" + c.act.Name), err
}

// actOnMany does an act to many webhooks: to those whose ids the body has, or else to all that a filter chooses. The answer of the API is written
// while it is done.
func (h *Handler) actOnMany(c *call) (any, error) {
	ids, err := c.readIDs()
	if err != nil {
		return nil, err
	}
	if ids == nil && !c.act.ByFilter() {
		return nil, badRequest(`say which webhooks: {"ids":["7","8"]}`)
	}
	s, err := readChoice(c.Request, ids != nil)
	if err != nil {
		return nil, err
	}
	about := s.String()
	if ids == nil {
		all, err := h.choose(c, s)
		if err != nil {
			return nil, err
		}
		ids = all.ids
	} else if about == "" {
		about = page.FirstFew(named(ids))
	}
	if isAPI(c.Request) {
		var acted Acted
		return listed("webhooks", func(write func(any) error) error {
			return h.actOnAll(c, about, ids, s, &acted, func(d *Done) error { return write(d) })
		}, func() any { return acted }), nil
	}
	return h.actOnPage(c, about, ids, s)
}

// actOnAll does an act to webhooks, and goes on if one fails; but not if the inbox can't be written, or nobody waits for the answer.
func (h *Handler) actOnAll(c *call, about string, ids []int64, s selection, acted *Acted, each func(*Done) error) error {
	return h.perform(c, about, func() ([]any, error) {
		done, failed := 0, 0
		for n, id := range ids {
			as, err := c.actOn(h, id, inbox.State(s.Outcome))
			trouble := h.inboxTrouble(err)
			d := h.doneTo(id, as, err, trouble)
			if err == nil {
				done++
			} else {
				failed++
			}
			if each(d) != nil || err != nil && trouble != nil || errors.Is(err, inbox.ErrDoubt) || c.Context().Err() != nil {
				acted.Left = len(ids) - n - 1
				break
			}
		}
		if done > 0 {
			acted.Paused = h.paused()
		}
		return []any{"webhooks", done, "failed", failed, "left", acted.Left}, nil
	})
}

// doneTo says what came of an act on a webhook.
func (h *Handler) doneTo(id, as int64, err, trouble error) *Done {
	d := &Done{ID: strconv.FormatInt(id, 10)}
	switch {
	case err == nil && as != id:
		d.New = strconv.FormatInt(as, 10)
	case err != nil && trouble != nil:
		d.Failed = trouble.Error() // the cause says more than err
	case err != nil:
		d.Failed = err.Error()
	}
	if newer, ok := errors.AsType[*inbox.OverwriteError](err); ok {
		d.Newer = strconv.FormatInt(newer.Latest.ID, 10)
	}
	_, d.Unknown = errors.AsType[*unknownError](err)
	return d
}

// actOnPage does an act to webhooks, and returns the page that follows.
func (h *Handler) actOnPage(c *call, about string, ids []int64, s selection) (any, error) {
	const most = 10
	var why []string
	var acted Acted
	done, failed := 0, 0
	err := h.actOnAll(c, about, ids, s, &acted, func(d *Done) error {
		if d.Failed == "" {
			done++
			return nil
		}
		if failed++; failed <= most {
			why = append(why, d.ID+": "+d.Failed)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if failed > 0 {
		return nil, &refusal{http.StatusConflict, fmt.Sprintf("%s done, %d not: %s", page.Plural(done, "webhook", "webhooks"), failed+acted.Left, strings.Join(why, "; ")) + onlyIf(failed > most, "; …")}
	}
	query := url.Values{"did": {c.act.Name + "-all"}}
	if done == 0 {
		query.Set("did", "nothing")
	}
	if s.Tenant != "" {
		query.Set("tenant", s.Tenant)
	}
	return redirect("/webhooks?" + query.Encode()), nil
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
	return append([]int64{}, ids...), nil // not nil
}

func named(ids []int64) (names []string) {
	for _, id := range ids {
		names = append(names, strconv.FormatInt(id, 10))
	}
	return names
}

// choose returns the webhooks that a filter chooses for an act. What arrives later is not among them: its numbers are higher. Times would not tell,
// because this machine's clock may differ from the inbox's.
func (h *Handler) choose(c *call, s selection) (all chosen, err error) {
	ctx := c.Context()
	if s.tenant.Tenant != "" {
		if _, err := h.knownTenant(ctx, s.tenant); err != nil {
			return all, err
		}
	}
	if s.before == (cursor{}) {
		newest, err := h.cfg.Inbox.List(ctx, inbox.Filter{Limit: 1})
		if err != nil {
			return all, err
		}
		s.before.inbox = 1
		for _, w := range newest {
			s.before.inbox += w.ID
		}
	}
	if !s.decisionsOnly() {
		if all, err = c.act.choose(h, ctx, s, c.is("force")); err != nil {
			return all, err
		}
	}
	all.Count, all.First, all.Before = len(all.ids), append([]string{}, named(all.ids[:min(len(all.ids), 10)])...), s.before.String() // [] and not null
	return all, nil
}

// countMany is GET /api/NAME.
func (h *Handler) countMany(c *call) (any, error) {
	s, err := readChoice(c.Request, false)
	if err != nil {
		return nil, err
	}
	all, err := h.choose(c, s)
	return all.Chosen, err
}

// chooseToRedeliver chooses webhooks to send again, the oldest first, so that they keep their order. Of a tenant's webhooks that wait it
// chooses the first: the others follow by themselves. Of the others it chooses the newest only, because an older snapshot would undo it;
// with force it chooses all of them.
func (h *Handler) chooseToRedeliver(ctx context.Context, s selection, force bool) (all chosen, err error) {
	err = h.cfg.Inbox.EachPage(ctx, s.filterBefore(), func(page []*inbox.Webhook) error {
		behind, err := h.cfg.Inbox.Behind(ctx, s.filterBefore(), page)
		for _, w := range page {
			switch {
			case w.Rejected(), behind[w.ID]: // there is nothing to send again; it follows the one before it
			case force, w.State == inbox.Waiting, w.Newest:
				all.ids = append(all.ids, w.ID)
			default:
				all.Older++
			}
		}
		return err
	})
	slices.Reverse(all.ids)
	if err == nil && s.wholePlatform() { // a person who fills a new receiver has to know
		all.Gone, all.GoneTenants, err = h.cfg.Inbox.Gone(ctx, *s.Platform)
	}
	return all, err
}

// chooseToDiscard chooses webhooks that are not finished, the newest first. Otherwise usher could deliver the second webhook of a queue
// right after the first is discarded.
func chooseToDiscard(h *Handler, ctx context.Context, s selection, _ bool) (all chosen, err error) {
	err = h.cfg.Inbox.EachPage(ctx, s.filterBefore(), func(page []*inbox.Webhook) error {
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
	d, err := h.withoutContent(c.Context(), c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	if !d.InInbox() {
		return nil, inbox.ErrNotFound
	}
	if c.act.deny != nil {
		if err := c.act.deny(&d.Webhook); err != nil {
			return nil, err
		}
	}
	question := c.act.confirmOne(&d.Webhook)
	if n, err := strconv.ParseInt(d.ID, 10, 64); err == nil && c.act.agree != nil {
		if err := c.act.agree(h, c.Context(), n); err != nil {
			question.Warning, question.Danger, question.Fields = err.Error()+".", true, map[string]string{"unknown": "true"}
		}
	}
	return question, nil
}

func (a *Act) confirmOne(w *Webhook) *confirmation {
	what := "it"
	if w.Tenant != "" {
		what = "this snapshot of " + page.TenantName(w.Platform, w.Tenant)
	}
	c := a.askOne(w, what)
	c.Action, c.Back = "/webhooks/"+w.ID+"/"+a.Name, "/webhooks/"+w.ID
	return c
}

func (a *Act) confirmOverwrite(id string, e *inbox.OverwriteError) *confirmation {
	c := a.confirmOne(&Webhook{ID: id, Platform: e.Latest.Platform, Tenant: e.Latest.Tenant})
	c.Question, c.Warning, c.Button, c.Danger = "Overwrite a newer snapshot?", e.Error()+".", a.overwrite, true
	c.Fields, c.status = map[string]string{"force": "true"}, http.StatusConflict
	return c
}

// askMany asks before an act is done to all webhooks that a filter chooses. What arrives after the question is not among them.
func (h *Handler) askMany(c *call) (any, error) {
	s, err := readChoice(c.Request, false)
	if err != nil {
		return nil, err
	}
	all, err := h.choose(c, s)
	if err != nil {
		return nil, err
	}
	query := s.Query()
	question := c.act.confirmMany(&all.Chosen)
	question.Back = "/webhooks?" + query.Encode()
	query.Set("before", all.Before)
	question.Action = "/" + c.act.Name + "?" + query.Encode()
	if all.Older > 0 {
		query.Set("force", "true")
		question.Other, question.OtherButton = "/"+c.act.Name+"?"+query.Encode(), "Send the older ones, too…"
	}
	if c.is("force") {
		question.Fields, question.Danger, question.Warning = map[string]string{"force": "true"}, true, "Older snapshots among them may undo newer ones."
	}
	return question, nil
}

func (a *Act) confirmMany(all *Chosen) *confirmation {
	what := "webhook " + page.FirstOf(all.First, all.Count)
	if all.Count > 1 {
		what = "webhooks " + page.FirstOf(all.First, all.Count)
	}
	c := &confirmation{Question: "There is nothing to " + a.Name, Effect: a.none}
	if all.Count > 0 {
		c = a.askAll(page.Plural(all.Count, "webhook", "webhooks"), what)
	}
	if all.Older > 0 {
		c.Warning = page.Plural(all.Older, "older one is", "older ones are") + " left out: the same tenants have newer ones, which they would undo."
	}
	return c
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
