package admin

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/text"
	"usher/internal/view"
)

// eachWebhook calls fn for what is selected, the newest first, with what each changed. next is the query of the next
// page; empty: there is none. No payload stays in memory: they may be large.
func (h *Handler) eachWebhook(ctx context.Context, s selection, fn func(*view.Webhook) error) (next string, err error) {
	f, n, last := s.filter(), 0, int64(0)
	f.Limit++ // one more shows that there is a next page
	var failed error
	add := func(w *view.Webhook, number int64) (more bool) {
		if n++; n > s.limit {
			query := s.Query()
			query.Set("before", strconv.FormatInt(last, 10))
			next = query.Encode()
			return false
		}
		last, failed = number, fn(w)
		return failed == nil
	}
	if h.cfg.Inbox == nil {
		for _, e := range h.cfg.Decisions.list(f) {
			if !add(&e.Webhook, e.seq) {
				break
			}
		}
		return next, failed
	}
	var queues *view.Queues // it may take long to read
	err = h.cfg.Inbox.Each(ctx, f, true, func(e *lane.Webhook) bool {
		w := view.NewWebhook(e)
		w.SetChanges(e)
		if w.Waits() && queues == nil {
			queues = h.queues()
		}
		queues.Explain(&w)
		return add(&w, e.ID)
	})
	if err == nil {
		err = failed
	}
	return next, err
}

// webhooks lists what is selected.
func (h *Handler) webhooks(ctx context.Context, s selection) (list []view.Webhook, next string, err error) {
	next, err = h.eachWebhook(ctx, s, func(w *view.Webhook) error { list = append(list, *w); return nil })
	return list, next, err
}

// queues says why webhooks wait.
func (h *Handler) queues() *view.Queues {
	q := &view.Queues{Paused: h.paused(), Receivers: h.cfg.Receivers, Delivers: h.cfg.Gate != nil}
	q.Hold(h.cfg.Inbox.HeldUp())
	return q
}

// listPage is what every page of a list has.
type listPage struct {
	Rows   view.Table
	Newest string // address of the first page; empty: this is it
	Older  string // address of the next page; empty: there is none
}

// newListPage returns a page of a list. query is that of the page, next that of the next one.
func newListPage(path string, rows view.Table, r *http.Request, cursor, next string) (p listPage) {
	p.Rows = rows
	query := r.URL.Query()
	if query.Has(cursor) {
		query.Del(cursor)
		p.Newest = path + "?" + query.Encode()
	}
	if next != "" {
		p.Older = path + "?" + next
	}
	return p
}

// webhooksPage is a list of webhooks, with the form that selects them.
type webhooksPage struct {
	listPage
	selection
	Off      bool // there is neither a gate nor an inbox
	HasInbox bool
	Choices  []string // of Outcome

	Offers []page.Offer // what can be done to all of these
}

func (h *Handler) webhooksPage(r *http.Request) (any, error) {
	query, err := readQuery(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	s, err := h.readSelection(query)
	if err != nil {
		return nil, err
	}
	list, next, err := h.webhooks(r.Context(), s)
	if err != nil {
		return nil, err
	}
	rows := view.NewTable(view.Webhooks, list, (*view.Webhook).ElementID)
	p := &webhooksPage{
		listPage: newListPage("/webhooks", rows, r, "before", next), selection: s,
		Off: !h.hasWebhooks(), HasInbox: h.cfg.Inbox != nil, Choices: h.outcomes(),
	}
	about := target{}
	if s.Narrow() {
		about.all = &s
		if len(list) > 0 {
			p.Offers = h.offers(about)
		}
	}
	return shown{&page.Page{Name: "webhooks", Title: "Webhooks", Section: "webhooks", Live: true, Body: p}, about}, nil
}

// apiWebhooks is GET /api/webhooks.
func (h *Handler) apiWebhooks(r *http.Request) (any, error) {
	query, err := readQuery(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	s, err := h.readSelection(query)
	if err == nil && s.tenant.Tenant != "" {
		// One that is unknown has no webhooks, and a name that fits two is refused.
		_, unknown := h.knownTenant(r.Context(), s.tenant)
		if refused, ok := errors.AsType[*refusal](unknown); ok && refused.status == http.StatusConflict {
			err = unknown
		}
	}
	if err != nil {
		return nil, err
	}
	return lines(func(write func(any) error) (end view.End, err error) {
		end.Next, err = h.eachWebhook(r.Context(), s, func(w *view.Webhook) error { return write(w) })
		end.Paused = h.paused()
		return end, err
	}), nil
}

// actions is the list of what people did.
func (h *Handler) actions(r *http.Request) (any, error) {
	before, limit, err := readPage(r.URL.Query(), 100)
	if err != nil {
		return nil, err
	}
	all, err := h.cfg.Inbox.Actions(r.Context(), before, limit+1)
	if err != nil {
		return nil, err
	}
	next := ""
	if len(all) > limit {
		all = all[:limit]
		next = "before=" + strconv.FormatInt(all[limit-1].ID, 10)
	}
	if isAPI(r) {
		return lines(func(write func(any) error) (view.End, error) { return view.End{Next: next}, writeAll(write, all) }), nil
	}
	rows := view.NewTable(view.Actions, all, nil)
	return &page.Page{Name: "actions", Title: "Actions", Section: "actions", Body: newListPage("/actions", rows, r, "before", next)}, nil
}

func writeAll[T any](write func(any) error, all []T) error {
	for i := range all {
		if err := write(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

// found is a webhook with what the page alone needs of it.
type found struct {
	*view.Detail
	raw []byte // the body as it came; nil if it is not kept
}

// webhook returns a webhook by its id in an address, with what it changed if that is wanted, which takes much longer.
func (h *Handler) webhook(ctx context.Context, id string, changes bool) (f found, err error) {
	number, decided := strings.CutPrefix(id, "d")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || decided && h.cfg.Decisions == nil || !decided && h.cfg.Inbox == nil {
		return f, inbox.ErrNotFound
	}
	if decided {
		if e := h.cfg.Decisions.get(n); e != nil {
			return found{Detail: new(e.Detail)}, nil
		}
		return f, &refusal{http.StatusNotFound, "usher no longer remembers this decision: it remembers the last 1,000"}
	}
	e, err := h.cfg.Inbox.Show(ctx, n)
	if err != nil {
		return f, err
	}
	f = found{view.NewDetail(e), e.Body}
	h.addDenial(&f.Webhook, e)
	if f.Waits() {
		h.queues().Explain(&f.Webhook)
	}
	if changes {
		f.SetChanges(e)
	}
	if _, newer := h.neighbours(ctx, &f.Webhook); !e.Newest && (e.Snapshot || e.Rejected()) {
		f.Newer = newer
	}
	return f, nil
}

// addDenial says of an invalid webhook, whose content was read, why it can't be accepted.
func (h *Handler) addDenial(w *view.Webhook, e *lane.Webhook) {
	if err := h.cfg.Inbox.Acceptable(e); err != nil && w.State == "invalid" {
		w.Unacceptable = text.Clip(err.Error(), maxText)
	}
}

// apiWebhook is GET /api/webhooks/{id}.
func (h *Handler) apiWebhook(r *http.Request) (any, error) {
	f, err := h.webhook(r.Context(), r.PathValue("id"), true)
	if err != nil {
		return nil, err
	}
	return f.Detail, nil
}

// webhookPage is the page of one webhook.
type webhookPage struct {
	*view.Detail
	TryTable, FaultTable view.Table

	Indented string // the payload
	NotShown int64  // how many bytes of the payload are not in Indented
	Before   string // id of the tenant's webhook before this one; empty if there is none
	After    string // and of the one after it
	Offers   []page.Offer
	ToTenant string // in words, what its tenant's page offers
}

func (h *Handler) webhookPage(r *http.Request) (any, error) {
	f, err := h.webhook(r.Context(), r.PathValue("id"), true)
	if err != nil {
		return nil, err
	}
	d := f.Detail
	about := target{webhook: &d.Webhook}
	body := &webhookPage{
		Detail:     d,
		TryTable:   view.NewTable(view.Tries, d.Tried, nil),
		FaultTable: view.NewTable(view.Faults, d.Faults, nil),
		Offers:     h.offers(about),
	}
	var acts []string
	for _, o := range h.offers(target{on: inbox.Pause{Platform: d.Platform, Tenant: d.Tenant}}) {
		acts = append(acts, o.Act)
	}
	body.ToTenant = strings.Join(acts, ", ")
	indented, left := text.Payload(f.raw)
	body.Indented, body.NotShown = indented, int64(left)
	body.Before, body.After = h.neighbours(r.Context(), &d.Webhook)
	return shown{&page.Page{Name: "webhook", Title: "Webhook " + d.ID, Section: "webhooks", Live: true, Body: body}, about}, nil
}

// neighbours returns the ids of the tenant's webhooks before and after this one in the inbox, empty if there
// is none.
func (h *Handler) neighbours(ctx context.Context, w *view.Webhook) (before, after string) {
	if w.Tenant == "" || !w.InInbox() {
		return "", ""
	}
	n, _ := strconv.ParseInt(w.ID, 10, 64)
	first := func(f inbox.Filter) (id string) {
		f.Tenant, f.Platform, f.Limit = w.Tenant, &w.Platform, 1
		found, _ := h.cfg.Inbox.List(ctx, f) // after an error the page has no link
		for _, other := range found {
			id = strconv.FormatInt(other.ID, 10)
		}
		return id
	}
	return first(inbox.Filter{Before: n}), first(inbox.Filter{After: n})
}

// download is GET /webhooks/{id}/payload: the body as it came.
func (h *Handler) download(w http.ResponseWriter, r *http.Request) {
	f, err := h.webhook(r.Context(), r.PathValue("id"), false)
	if err == nil && f.raw == nil {
		err = &refusal{http.StatusNotFound, "the payload of this webhook is not kept"}
	}
	if err != nil {
		h.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Disposition", "attachment; filename=webhook-"+f.ID+".json")
	_, _ = w.Write(f.raw) // an error means that the caller has gone
}
