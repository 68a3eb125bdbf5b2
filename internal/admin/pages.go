package admin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/admin/recent"
	"usher/internal/admin/status"
	"usher/internal/inbox/store"
	"usher/internal/snapshot"
)

// view is a page to be drawn: its template, and what stands in it; or where to go instead.
type view struct {
	name   string
	status int // 200 unless set
	shell  page.Shell
	goTo   string
}

// page makes a handler of a func that returns what is to be drawn, or why nothing is.
func (h *Handler) page(draw func(*http.Request) (*view, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		v, err := draw(r)
		switch {
		case err != nil:
			h.explain(w, r, err)
			return
		case v.goTo != "":
			http.Redirect(w, r, v.goTo, http.StatusSeeOther)
			return
		}
		v.shell.Tenants = h.cfg.Inbox != nil
		v.shell.Version, v.shell.Webhooks, v.shell.Paused = h.cfg.Version, h.hasWebhooks(), h.pauseViews()
		v.shell.Looks = visitorOf(r).looks
		if v.shell.Live && v.shell.Notice == "" {
			v.shell.Notice = notices[r.URL.Query().Get("did")]
		}
		if err := page.Write(w, max(v.status, http.StatusOK), v.name, v.shell); err != nil {
			h.explain(w, r, fmt.Errorf("the page can't be drawn: %w", err))
		}
	}
}

// hasWebhooks says whether there can be some to show: a replica without a gate shows those of the inbox that it shares.
func (h *Handler) hasWebhooks() bool { return h.cfg.Gate != nil || h.cfg.Inbox != nil }

// notices say what was done just now; it is named in the address, never written there.
var notices = map[string]string{
	"redeliver":      "It is being sent again.",
	"redeliver-all":  "They are being sent again.",
	"discard":        "It is discarded.",
	"accept":         "It is accepted, as a new webhook with its own id.",
	"discard-all":    "They are discarded.",
	"nothing":        "Nothing was done: no such webhook is left.",
	"resume":         "Deliveries go on.",
	"resume-held":    "Resumed. Another pause still holds these deliveries back.",
	"forget":         "Forgotten: the tenant's next webhook is delivered whatever it says.",
	"forget-nothing": "There was nothing to forget about this tenant.",
	"erase":          "The tenant is erased.",
}

// pauseView is a pause as every page shows it, with what a form needs to end it.
type pauseView struct {
	store.Pause
	Fields map[string]string
}

func (h *Handler) pauseViews() (all []pauseView) {
	for _, p := range h.paused() {
		all = append(all, pauseView{p, fields(p)})
	}
	slices.SortFunc(all, func(a, b pauseView) int { return a.Since.Compare(b.Since) })
	return all
}

// status gathers how usher's parts do, and says it in words.
func (h *Handler) status() *status.Status {
	now := &status.Status{Version: h.cfg.Version, Ready: len(h.cfg.Unready()) == 0, Stopping: h.cfg.Stopping != nil && h.cfg.Stopping()}
	if h.cfg.Ports != nil {
		now.Ports = h.cfg.Ports()
	}
	if h.cfg.Gate != nil {
		now.Gate = h.cfg.Gate()
	}
	if h.cfg.Decisions != nil {
		now.Decisions = h.cfg.Decisions.List(recent.Filter{})
	}
	if box := h.cfg.Inbox; box != nil {
		now.Inbox = status.NewInbox(box.Stats(), box.HeldUp(), h.receivers(), box.Err())
		now.Inbox.Shared = box.Shared()
		now.Inbox.ParkedOf, now.Inbox.ParkedAnswer, now.Inbox.ParkedLink = h.tenantsOf(store.Parked, now.Inbox.Parked)
		now.Inbox.RefusedOf, now.Inbox.RefusedWhy, now.Inbox.RefusedLink = h.tenantsOf(store.Refused, now.Inbox.Refused)
	}
	now.Judge(time.Now())
	return now
}

// tenantsOf names the tenants with webhooks in a state, the newest first, and says what is known of the newest, and where they are
// shown.
func (h *Handler) tenantsOf(state store.State, count int) (names []string, words, link string) {
	link = "/webhooks?state=" + string(state)
	if count == 0 {
		return nil, "", link
	}
	entries, err := h.cfg.Inbox.List(store.Filter{State: state, Limit: 1000})
	if err != nil {
		return nil, "", link // the page says that
	}
	if len(entries) == 1 {
		link = "/webhooks/" + bare(&entries[0]).ID
	}
	for i := range entries {
		w := bare(&entries[i])
		if name := page.TenantName(w.Platform, w.Tenant); w.Tenant != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
		if i == 0 {
			words = cmp.Or(w.Answer, w.Why)
		}
	}
	return names, words, link
}

func (h *Handler) tenantsPage(r *http.Request) (*view, error) {
	l, err := h.tenantList(r.URL.Query())
	return &view{name: "tenants", shell: page.Shell{Title: "Tenants", At: "tenants", Body: l}}, err
}

// overview is what the front page shows.
type overview struct {
	*status.Status
	Latest   []Webhook
	NoLatest string // why they can't be listed
}

func (h *Handler) overview(*http.Request) (*view, error) {
	o := &overview{Status: h.status()}
	if o.Gate != nil {
		list, err := h.webhooks(Selection{limit: 6})
		if err != nil { // the rest of the page is all the more wanted
			o.NoLatest = cmp.Or(h.inboxTrouble(), err).Error()
		}
		o.Latest = list.Webhooks
	}
	return &view{name: "overview", shell: page.Shell{Title: "Overview", At: "overview", Live: true, Body: o}}, nil
}

// webhookPage is the list and what it was selected by.
type webhookPage struct {
	WebhookList
	Selection
	Off      bool // there is neither a gate nor an inbox
	HasInbox bool
	Tail     bool   // not the newest are shown
	Older    string // address of those that follow; empty: there are none
	Newest   string // address of the beginning
	Choices  []string
	Finds    string // what the search looks for

	// Addresses of the pages that send all of these again, or discard them; empty: they can't be.
	Redeliver, Discard string
}

func (h *Handler) webhookList(r *http.Request) (*view, error) {
	s, err := readSelection(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	list, err := h.webhooks(s)
	if err != nil {
		return nil, err
	}
	p := &webhookPage{WebhookList: list, Selection: s, Off: !h.hasWebhooks(), HasInbox: h.cfg.Inbox != nil, Tail: s.before != cursor{}}
	p.Choices, p.Finds = passOutcomes, "id, name, any text"
	if p.HasInbox {
		p.Choices = inboxOutcomes
		if s.Narrow() && slices.ContainsFunc(list.Webhooks, func(w Webhook) bool { return w.State != "" }) {
			p.Redeliver, p.Discard = "/redeliver?"+s.Query().Encode(), "/discard?"+s.Query().Encode()
		}
	}
	query := s.Query()
	p.Newest = "/webhooks?" + query.Encode()
	if list.Next != "" {
		query.Set("before", list.Next)
		p.Older = "/webhooks?" + query.Encode()
	}
	return &view{name: "webhooks", shell: page.Shell{Title: "Webhooks", At: "webhooks", Live: true, Body: p}}, nil
}

// webhookView is one webhook, and what can be done with it.
type webhookView struct {
	*WebhookDetail
	Lines   []snapshot.Line
	Indent  string         // the payload, written out
	Beside  []faultyLine   // the same with its faults; nil: it has none, or is no JSON
	Curl    string         // a line for a shell that sends it
	Before  string         // id of the tenant's webhook before it; empty: there is none
	After   string         // and after it
	HeldUp  *status.HeldUp // what holds it up while it waits; nil: nothing is known
	InInbox bool
	Open    bool // it waits or is parked: it can be discarded

	HasInbox bool // there is one, whether or not it is in it
}

func (h *Handler) oneWebhook(r *http.Request) (*view, error) {
	d, err := h.webhook(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	v := &webhookView{WebhookDetail: d, Lines: d.lines, HeldUp: d.held, InInbox: d.State != "", HasInbox: h.cfg.Inbox != nil}
	v.Open = v.InInbox && !d.State.Finished()
	if d.Payload != nil {
		v.Indent, v.Curl = indent(d.Payload), curlLine(d)
		if len(d.Faults) > 0 && d.Payload[0] == '{' {
			v.Beside = beside(v.Indent, d.Faults)
		}
	}
	v.Before, v.After = h.neighbours(&d.Webhook)
	shell := page.Shell{Title: "Webhook " + d.ID, At: "webhooks", Live: true, Body: v}
	if r.URL.Query().Get("did") == "redeliver" {
		switch {
		case !d.waits():
			shell.Notice = "It was sent again." // what came of it stands below
		case d.Paused:
			shell.Notice = "It is sent again once its deliveries are resumed."
		case d.Down:
			shell.Notice = "It is sent again when the receiver is back."
		}
	}
	return &view{name: "webhook", shell: shell}, nil
}

// indent writes JSON for people; what was no JSON is a string by now.
func indent(payload json.RawMessage) string {
	var text string
	if json.Unmarshal(payload, &text) == nil {
		return text
	}
	var out bytes.Buffer
	if json.Indent(&out, payload, "", "  ") != nil {
		return string(payload)
	}
	return strings.ToValidUTF8(out.String(), "\uFFFD")
}

// tenantView is a tenant, and how its latest snapshot stands.
type tenantView struct {
	*Tenant
	Latest    *Webhook           // nil: none of its webhooks is kept any more
	Held      bool               // nobody need take the latest any more
	HeldUp    *status.HeldUp     // what holds up its webhooks; nil: nothing is known
	Features  []snapshot.Feature // what it may use, or, where usher does not answer that, what its latest webhook says
	Known     bool               // there is a list of them, be it an empty one
	Values    bool               // some feature has one
	Pause     *store.Pause       // what holds its webhooks back; nil: nobody does
	HasInbox  bool
	CanForget bool
	CanPause  bool // there are deliveries
}

func (h *Handler) oneTenant(r *http.Request) (*view, error) {
	platform, code, err := readTenant(r.URL.Query())
	if err != nil {
		return nil, err
	}
	t, err := h.tenant(r.Context(), platform, code)
	if err != nil {
		return nil, err
	}
	v := &tenantView{Tenant: t, Held: true, HasInbox: h.cfg.Inbox != nil, CanForget: h.cfg.Forget != nil}
	v.CanPause = v.HasInbox && (h.cfg.Gate == nil || len(h.receivers().All()) > 0) // without a gate other replicas know them
	v.Pause = status.PausedBy(h.paused(), h.receivers(), platform, code, "")
	if v.Latest = t.latest; v.Latest != nil {
		v.Held = slices.Contains([]string{"delivered", "forwarded", "kept"}, v.Latest.Outcome())
		v.HeldUp = h.heldUpOf(platform, code)
	}
	switch {
	case t.MayUse != nil:
		v.Features, v.Known = t.MayUse.Features, t.MayUse.Known
	case t.Rights != nil:
		v.Features, v.Known = t.Rights.Features, t.Rights.Known
	}
	v.Values = slices.ContainsFunc(v.Features, func(f snapshot.Feature) bool { return f.Value != "" })
	return &view{name: "tenant", shell: page.Shell{Title: code, At: "tenants", Live: true, Body: v}}, nil
}
