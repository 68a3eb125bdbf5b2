package admin

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"usher/internal/admin/page"
	"usher/internal/admin/status"
	"usher/internal/inbox"
	"usher/internal/lane/state"
	"usher/internal/view"
)

// statusPatience is how long the status may take altogether, whatever the database does. What is not known by
// then is left out, and the figures say how old they are.
const statusPatience = 4 * time.Second

// status collects the state of usher's parts, and has it described in words.
func (h *Handler) status(ctx context.Context) *status.Status {
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	now := &status.Status{Version: h.cfg.Version, Health: h.cfg.Health()}
	if h.cfg.Ports != nil {
		now.Ports = h.cfg.Ports()
	}
	if h.cfg.Gate != nil {
		now.Gate = h.cfg.Gate()
		now.Gate.Set = h.cfg.Receivers
		if h.cfg.Inbox == nil {
			now.Gate.Invalid, now.Gate.InvalidDetails = h.cfg.Decisions.Invalid()
		}
	}
	var stats inbox.Stats
	if box := h.cfg.Inbox; box != nil {
		stats = box.Stats()
		now.Inbox = status.NewInbox(stats, box.HeldUp(), h.cfg.Receivers, box.Health().Err)
		now.Inbox.Shared = box.Shared()
		now.Missed = stats.Missed
		if now.Inbox.Parked > 0 && !stats.Old { // else the database hangs
			now.Inbox.ParkedDetails = h.details(ctx, state.Parked)
		}
		if now.Inbox.Invalid > 0 && !stats.Old {
			now.Inbox.InvalidDetails = h.details(ctx, state.Invalid)
		}
	}
	if h.cfg.EntitlementsPort {
		now.Entitlements = &status.Entitlements{Tenants: stats.Tenants, Unknown: stats.Unknown, Renamed: stats.Renamed}
		if h.cfg.Held != nil {
			now.Entitlements.Held = h.cfg.Held()
		}
		if h.cfg.Answers != nil {
			now.Entitlements.Answers = h.cfg.Answers()
		}
		if !stats.Old {
			now.Entitlements.UnknownDetails = h.unknown(ctx, stats.Unknown)
		}
	}
	h.recorder.Facts(now)
	now.Judge(time.Now())
	return now
}

// apiStatus is GET /api/status. With since it has what was wrong and is over, too.
func (h *Handler) apiStatus(r *http.Request) (any, error) {
	s, query := h.status(r.Context()), r.URL.Query()
	if !query.Has("since") {
		return s, nil
	}
	since, err := readTime("since", query.Get("since"))
	if err != nil {
		return nil, err
	}
	s.History, s.OldHistory = h.recorder.Since(r.Context(), since)
	return s, nil
}

// details describes the webhooks in a state.
func (h *Handler) details(ctx context.Context, in state.State) status.Details {
	d := status.Details{Link: "/webhooks?state=" + string(in)}
	// After an error the status already says what is wrong.
	entries, _ := h.cfg.Inbox.List(ctx, inbox.Filter{State: in, Limit: 1000})
	for i := range entries {
		w := view.NewWebhook(entries[i])
		name := view.TenantName(w.Platform, w.Tenant)
		if w.Tenant == "" {
			name = unknownTenant
		}
		if (w.Tenant != "" || in == state.Invalid) && !slices.Contains(d.Tenants, name) {
			d.Tenants = append(d.Tenants, name)
		}
		if i == 0 {
			d.Reason = cmp.Or(w.Answer, w.Why)
		}
		d.Since = w.Received
		if len(entries) == 1 {
			d.Link = "/webhooks/" + w.ID
		}
	}
	return d
}

// unknown describes the tenants whose features can't be read, of which there are n.
func (h *Handler) unknown(ctx context.Context, n int) (d status.Details) {
	if n == 0 {
		return d
	}
	all, _ := h.cfg.Inbox.Unknown(ctx, 1000) // After an error the status already says what is wrong.
	d.Link = "/tenants"
	for i, t := range all {
		if d.Tenants = append(d.Tenants, view.TenantName(t.Platform, t.Tenant)); i == 0 {
			d.Since = t.Latest
		}
		if len(all) == 1 {
			d.Link = view.TenantURL(t.Platform, t.Tenant)
		}
	}
	return d
}

// overviewPage is the front page.
type overviewPage struct {
	*status.Status
	Latest   view.Table
	NoLatest string // why Latest cannot be read
	More     int    // how much of the history is not shown

	h *Handler
}

// Offers returns what can be done to a receiver's deliveries or, without its name, to all; ToWaiting, to all
// webhooks that wait.
func (p *overviewPage) Offers(receiver string) []page.Offer {
	return p.h.offers(target{on: inbox.Pause{Receiver: receiver}})
}
func (p *overviewPage) ToWaiting() []page.Offer {
	return p.h.offers(target{all: &selection{Outcome: string(state.Waiting)}})
}

func (h *Handler) overview(r *http.Request) (any, error) {
	p := &overviewPage{Status: h.status(r.Context()), h: h}
	p.History, p.OldHistory = h.recorder.Since(r.Context(), time.Now().Add(-inbox.HistoryAge))
	if p.More = len(p.History) - shownHistory; p.More > 0 {
		p.History = p.History[:shownHistory]
	}
	switch {
	case p.Gate == nil:
	case p.Inbox != nil && !p.Inbox.Counted.IsZero(): // the database may hang
		p.NoLatest = cmp.Or(h.inboxTrouble(nil), errors.New("the inbox can't be read now")).Error()
	default:
		ctx, cancel := context.WithTimeout(r.Context(), statusPatience)
		defer cancel()
		list, _, err := h.webhooks(ctx, selection{limit: 6})
		if err != nil { // the rest of the page may say why
			p.NoLatest = cmp.Or(h.inboxTrouble(err), err).Error()
		}
		p.Latest = view.NewTable(view.Webhooks, list, (*view.Webhook).ElementID)
	}
	about := target{on: inbox.Pause{Receiver: r.URL.Query().Get("receiver")}}
	if about.on.Receiver != "" {
		if err := h.knownReceiver(about.on); err != nil {
			return nil, err
		}
	}
	return shown{&page.Page{Name: "overview", Title: "Overview", Section: "overview", Live: true, Body: p}, about}, nil
}

// shownHistory is how much of the history the overview shows.
const shownHistory = 20

// Lasted and WasWrong describe what is over.
func (*overviewPage) Lasted(t inbox.Trouble) string   { return status.Lasted(&t) }
func (*overviewPage) WasWrong(t inbox.Trouble) string { return status.What(&t) }
