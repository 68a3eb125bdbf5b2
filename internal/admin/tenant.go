package admin

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"usher/internal/changes"
	"usher/internal/inbox"
	"usher/webhookgate/content"
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

	latest *Webhook // of Snapshots: the one that Rights are of; nil: none
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
	// Webhooks of other types are shown among them, but do not say what a tenant may use.
	i := slices.IndexFunc(t.Snapshots, func(w Webhook) bool { return w.Type == content.TenantProvisioningChange })
	if i < 0 {
		return t, nil
	}
	t.latest = &t.Snapshots[i]
	latest, err := h.webhook(t.latest.ID)
	if err != nil {
		return nil, err
	}
	if rights, ok := changes.Read(latest.Payload); ok {
		t.Rights = &rights
	}
	return t, nil
}

// MayUse is what a tenant may use, as checks are answered at this moment.
type MayUse struct {
	Known    bool         `json:"known"` // its last webhook has a list of features
	Features []MayFeature `json:"features"`
	AsOf     time.Time    `json:"as_of"`   // when that webhook was taken in
	Webhook  string       `json:"webhook"` // its webhook-id
	ID       uint64       `json:"id"`      // its id in the inbox, whose history may not have it any more
	Ask      []string     `json:"ask"`     // lines for a shell that ask for it

	// Stale is for how long the inbox's servers could not be reached, so that another replica may
	// have taken in something newer; zero: they can.
	Stale time.Duration `json:"stale,omitzero"`
}

// MayFeature is a feature that a tenant may use.
type MayFeature struct {
	Code  string `json:"feature"`
	Name  string `json:"name,omitempty"`
	Limit string `json:"limit"` // a number, or "unlimited"
	Value string `json:"value,omitempty"`
}

// mayUse asks what a tenant may use. Why nothing is known is said in words; both are empty where
// usher does not answer such questions.
func (h *Handler) mayUse(ctx context.Context, platform, code string) (*MayUse, string) {
	if h.cfg.MayUse == nil {
		return nil, ""
	}
	may, err := h.cfg.MayUse(ctx, platform, code)
	if err != nil {
		return nil, err.Error()
	}
	feature := ""
	if len(may.Features) > 0 {
		feature = may.Features[0].Code
	}
	may.Ask = h.askLines(platform, code, feature)
	return may, ""
}

// askLines are those that ask what a tenant may use, and whether it may use a feature, on the port for
// that where there is one.
func (h *Handler) askLines(platform, code, feature string) []string {
	port := h.cfg.EntitlementsPort
	query := url.Values{"platform": {platform}}
	if port == nil {
		// The page does not know by which name it is reached from a shell, but usher's own command does.
		lines := []string{"usher entitlements " + quote(inbox.ExactTenant(platform, code))}
		if feature != "" {
			lines = append(lines, lines[0]+" "+quote(feature))
		}
		return lines
	}
	curl, base := port()
	lines := []string{curl + " " + quote(base+"/v1/entitlements/"+url.PathEscape(code)+"?"+query.Encode())}
	if feature != "" {
		query.Set("tenant", code)
		query.Set("feature", feature)
		lines = append(lines, curl+" -i "+quote(base+"/v1/check?"+query.Encode()))
	}
	return lines
}
