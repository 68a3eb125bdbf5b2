package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/changes"
	"usher/internal/inbox"
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
		v.shell.Version, v.shell.Gate = h.cfg.Version, h.cfg.Gate != nil
		if v.shell.Live && v.shell.Notice == "" {
			v.shell.Notice = notice(r.URL.Query().Get("did"))
		}
		if err := page.Write(w, max(v.status, http.StatusOK), v.name, v.shell); err != nil {
			h.explain(w, r, fmt.Errorf("the page can't be drawn: %w", err))
		}
	}
}

// notice says what was done just now; it is named in the address, never written there.
func notice(did string) string {
	switch did {
	case "redelivered":
		return "It is being sent again."
	case "forgotten":
		return "Dedup has forgotten this tenant: its next snapshot is delivered, whatever it is."
	case "forgot-nothing":
		return "Dedup remembered nothing of this tenant."
	default:
		return ""
	}
}

// overview is what the front page shows.
type overview struct {
	*Status
	Charts   [][]page.Chart // of each port
	Gate     *gateView
	Latest   []Webhook
	HasInbox bool
}

type gateView struct {
	*GateStatus
	Chart page.Chart
}

func (h *Handler) overview(*http.Request) (*view, error) {
	o := &overview{Status: h.status(), HasInbox: h.cfg.Inbox != nil}
	now := time.Now()
	for i := range o.Ports {
		o.Charts = append(o.Charts, portCharts(&o.Ports[i], now))
	}
	if o.Status.Gate != nil {
		o.Gate = &gateView{o.Status.Gate, gateChart(o.Status.Gate, o.HasInbox)}
		list, err := h.webhooks(Selection{limit: 6})
		if err != nil {
			return nil, err
		}
		o.Latest = list.Webhooks
	}
	return &view{name: "overview", shell: page.Shell{Title: "Overview", At: "overview", Live: true, Body: o}}, nil
}

// webhookPage is the list and what it was selected by.
type webhookPage struct {
	WebhookList
	Selection
	Gate     bool
	HasInbox bool
	Tail     bool   // not the newest are shown
	Older    string // address of those that follow; empty: there are none
	Newest   string // address of the beginning
	Choices  []string
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
	p := &webhookPage{WebhookList: list, Selection: s, Gate: h.cfg.Gate != nil, HasInbox: h.cfg.Inbox != nil, Tail: s.before != cursor{}}
	p.Choices = passOutcomes
	if p.HasInbox {
		p.Choices = inboxOutcomes
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
	Lines   []changes.Line
	Indent  string  // the payload, written out
	Curl    string  // a line for a shell that sends it
	Before  string  // id of the tenant's webhook before it; empty: there is none
	After   string  // and after it
	HeldUp  *HeldUp // what holds it up while it waits; nil: nothing is known
	Again   bool    // it can be sent again
	InInbox bool

	HasInbox bool // there is one, whether or not it is in it
}

func (h *Handler) oneWebhook(r *http.Request) (*view, error) {
	d, err := h.webhook(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	v := &webhookView{WebhookDetail: d, Lines: d.lines, InInbox: d.State != "", HasInbox: h.cfg.Inbox != nil}
	v.Again = v.InInbox && d.State != "waiting"
	if d.Payload != nil {
		v.Indent, v.Curl = indent(d.Payload), curlLine(d)
	}
	v.Before, v.After = h.neighbours(&d.Webhook)
	if d.State == string(inbox.Waiting) {
		v.HeldUp = h.heldUpOf(d.Platform, d.Tenant)
	}
	shell := page.Shell{Title: "Webhook " + d.ID, At: "webhooks", Live: true, Body: v}
	if r.URL.Query().Get("did") == "redelivered" && d.State != string(inbox.Waiting) {
		shell.Notice = "It was sent again." // what came of it stands below
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
	Latest    *Webhook     // nil: none of its webhooks is kept any more
	Held      bool         // nobody need take the latest any more
	HeldUp    *HeldUp      // what holds up its webhooks; nil: nothing is known
	Features  []MayFeature // what it may use, or, where usher does not answer that, what its latest webhook says
	Known     bool         // there is a list of them, be it an empty one
	Values    bool         // some feature has one
	CanForget bool
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
	v := &tenantView{Tenant: t, Held: true, CanForget: h.cfg.Forget != nil}
	if len(t.Snapshots) > 0 {
		v.Latest = &t.Snapshots[0]
		v.Held = slices.Contains([]string{"delivered", "forwarded", "kept"}, v.Latest.Outcome())
		v.HeldUp = h.heldUpOf(platform, code)
	}
	switch {
	case t.MayUse != nil:
		v.Features, v.Known = t.MayUse.Features, t.MayUse.Known
	case t.Rights != nil:
		v.Known = true
		for _, f := range t.Rights.Features {
			v.Features = append(v.Features, MayFeature{f.Code, f.Name, f.Limit, f.Value})
		}
	}
	v.Values = slices.ContainsFunc(v.Features, func(f MayFeature) bool { return f.Value != "" })
	return &view{name: "tenant", shell: page.Shell{Title: code, At: "webhooks", Live: true, Body: v}}, nil
}
