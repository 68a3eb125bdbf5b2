package admin

import (
	"context"
	"net/http"
	"slices"

	"usher/internal/changes"
	"usher/internal/inbox"
)

// Tenant is the answer of GET /api/tenant: what it should have now, and how that came.
type Tenant struct {
	Platform  string          `json:"platform"`
	Code      string          `json:"code"`
	MayUse    *MayUse         `json:"may_use,omitempty"`   // as checks are answered at this moment
	NotKnown  string          `json:"not_known,omitempty"` // why that is not known
	Rights    *changes.Rights `json:"rights,omitempty"`    // of the latest snapshot that has come, delivered or not
	Snapshots []Webhook       `json:"snapshots"`           // the newest first
	More      bool            `json:"more,omitempty"`      // there are older ones
	Elsewhere []string        `json:"elsewhere,omitempty"`
}

// maxTimeline is how many of a tenant's snapshots are shown, and maxScan how many pages
// of webhooks are looked through for them: a tenant of the same code on another platform
// may have all the others.
const (
	maxTimeline = 100
	maxScan     = 10
)

// tenant gathers what a tenant may use, and its snapshots. Duplicates are none: they changed nothing.
func (h *Handler) tenant(ctx context.Context, platform, code string) (*Tenant, error) {
	t := &Tenant{Platform: platform, Code: code, Snapshots: []Webhook{}}
	t.MayUse, t.NotKnown = h.mayUse(ctx, platform, code)
	selection := Selection{tenant: inbox.TenantName{Tenant: code}, limit: maxTimeline}
	for range maxScan {
		list, err := h.webhooks(selection)
		if err != nil {
			return nil, err
		}
		for _, w := range list.Webhooks {
			switch {
			case w.Platform != platform:
				if !slices.Contains(t.Elsewhere, w.Platform) {
					t.Elsewhere = append(t.Elsewhere, w.Platform)
				}
			case w.Decision == "duplicate" || w.Decision == "failed" && h.cfg.Inbox != nil:
			default:
				t.Snapshots = append(t.Snapshots, w)
			}
		}
		if list.Next == "" || len(t.Snapshots) > maxTimeline {
			break
		}
		selection.before = list.next
	}
	if t.More = len(t.Snapshots) > maxTimeline; t.More {
		t.Snapshots = t.Snapshots[:maxTimeline]
	}
	switch {
	case len(t.Snapshots) == 0 && t.MayUse != nil:
		return t, nil // what it may use is kept for longer than its webhooks
	case len(t.Snapshots) == 0:
		if len(t.Elsewhere) > 0 {
			return nil, &refusal{http.StatusNotFound, "usher knows nothing of this tenant on this platform, but knows it on another"}
		}
		return nil, &refusal{http.StatusNotFound, "usher knows nothing of this tenant: it keeps none of its webhooks"}
	}
	latest, err := h.webhook(t.Snapshots[0].ID)
	if err != nil {
		return nil, err
	}
	if rights, ok := changes.Read(latest.Payload); ok {
		t.Rights = &rights
	}
	return t, nil
}
