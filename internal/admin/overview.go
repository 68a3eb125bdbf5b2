package admin

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"usher/internal/admin/page"
	"usher/internal/admin/status"
	"usher/internal/inbox/store"
	"usher/internal/receiver"
)

// status gathers how usher's parts do, and says it in words.
func (h *Handler) status() *status.Status {
	now := &status.Status{Version: h.cfg.Version, Ready: len(h.cfg.Unready()) == 0, Stopping: h.cfg.Stopping()}
	if h.cfg.Ports != nil {
		now.Ports = h.cfg.Ports()
	}
	if h.cfg.Gate != nil {
		now.Gate = h.cfg.Gate()
	}
	if now.Gate != nil && h.cfg.Decisions != nil && h.cfg.Inbox == nil {
		now.Gate.FailedOf = failedTenants(h.cfg.Decisions.list(store.Filter{}), time.Now())
	}
	if box := h.cfg.Inbox; box != nil {
		now.Inbox = status.NewInbox(box.Stats(), box.HeldUp(), h.receivers(), box.Err())
		now.Inbox.Shared = box.Shared()
		if now.Inbox.Parked > 0 {
			now.Inbox.ParkedOnes = h.batch(store.Parked)
		}
		if now.Inbox.Refused > 0 {
			now.Inbox.RefusedOnes = h.batch(store.Refused)
		}
	}
	now.Judge(time.Now())
	return now
}

// batch says more of the webhooks in a state.
func (h *Handler) batch(state store.State) status.Batch {
	b := status.Batch{Link: "/webhooks?state=" + string(state)}
	entries, _ := h.cfg.Inbox.List(store.Filter{State: state, Limit: 1000}) // why they can't be read is said elsewhere
	for i := range entries {
		w := bare(&entries[i])
		if name := page.TenantName(w.Platform, w.Tenant); w.Tenant != "" && !slices.Contains(b.Of, name) {
			b.Of = append(b.Of, name)
		}
		if i == 0 {
			b.Why = cmp.Or(w.Answer, w.Why)
		}
		if len(entries) == 1 {
			b.Link = "/webhooks/" + w.ID
		}
	}
	return b
}

// overview is what the front page shows.
type overview struct {
	*status.Status
	Latest   []Webhook
	NoLatest string // why they can't be listed
}

func (h *Handler) overview(*http.Request) (any, error) {
	o := &overview{Status: h.status()}
	if o.Gate != nil {
		list, err := h.webhooks(Selection{limit: 6})
		if err != nil { // the rest of the page is all the more wanted
			o.NoLatest = cmp.Or(h.inboxTrouble(), err).Error()
		}
		o.Latest = list.Webhooks
	}
	return &page.Page{Name: "overview", Title: "Overview", Section: "overview", Live: true, Body: o}, nil
}

// paused is what somebody has paused.
func (h *Handler) paused() []store.Pause {
	if h.cfg.Inbox == nil {
		return nil
	}
	return h.cfg.Inbox.Stats().Paused
}

// receivers are those of the gate; none where it is off, and other replicas know them.
func (h *Handler) receivers() *receiver.Set {
	if h.cfg.Gate == nil {
		return nil
	}
	return h.cfg.Gate().Set
}
