package admin

import (
	"context"
	"net/url"
	"strings"
	"time"

	"usher/internal/inbox"
)

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
		line := "usher entitlements " + quote(inbox.ExactTenant(platform, code))
		return []string{line, line + " " + quote(feature)}[:1+min(1, len(feature))]
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

// quote writes a word so that no shell finds anything in it. Codes are foreign.
func quote(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:") == "" && word[0] != '-' {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
