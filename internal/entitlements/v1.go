package entitlements

import (
	"net/http"
	"regexp"
	"strconv"
	"time"

	"usher/internal/snapshot"
)

type (
	tenantBody struct {
		Tenant       string        `json:"tenant"`
		Platform     string        `json:"platform"`
		Features     []featureBody `json:"features,omitzero"` // of a question about all features
		*featureBody               // of a question about one
		AsOf         time.Time     `json:"as_of"`
		Webhook      string        `json:"webhook"`
	}
	featureBody struct {
		Feature string         `json:"feature"`
		Name    string         `json:"name"`
		Enabled bool           `json:"enabled"`
		Limit   snapshot.Limit `json:"limit"` // null: no limit
		Value   string         `json:"value"`
	}
)

// entitlements answers with everything that a tenant may use, or with one feature.
func (h *Handler) entitlements(w http.ResponseWriter, r *http.Request, to target) (reply, error) {
	params, err := readQuery(r, "platform")
	if err != nil {
		return reply{}, err
	}
	a, err := h.cfg.Lookup.last(r.Context(), w, to.tenant, optional(params, "platform"))
	body := tenantBody{Tenant: a.Tenant, Platform: a.Platform, AsOf: a.Received.UTC(), Webhook: a.Webhook}
	if to.feature != nil {
		body.featureBody = &featureBody{Feature: *to.feature} // also if it is not listed
		f, enabled := a.Snapshot.Feature(*to.feature)
		if enabled {
			*body.featureBody = enabledBody(f)
		}
		h.count(err, enabled)
		return reply{http.StatusOK, body}, err
	}
	body.Features = enabledBodies(a.Snapshot.Features)
	return reply{http.StatusOK, body}, err
}

// enabledBodies never returns nil, which JSON has as null.
func enabledBodies(features []snapshot.Feature) []featureBody {
	all := make([]featureBody, 0, len(features))
	for _, f := range features {
		all = append(all, enabledBody(f))
	}
	return all
}

func enabledBody(f snapshot.Feature) featureBody {
	return featureBody{Feature: f.Code, Name: f.Name, Enabled: true, Limit: f.Limit, Value: f.Value}
}

var wholeNumber = regexp.MustCompile(`^[0-9]+$`)

// check answers /v1/check with a status only, for web servers that ask before they pass on a request.
func (h *Handler) check(w http.ResponseWriter, r *http.Request, _ target) (reply, error) {
	params, err := readQuery(r, "tenant", "feature", "platform", "quantity", "unknown")
	if err != nil {
		return reply{}, err
	}
	tenant, feature := params.Get("tenant"), params.Get("feature")
	written := optional(params, "quantity")
	unknown := optional(params, "unknown")
	var quantity uint64
	if written != nil {
		// Out of range it is the largest number, and so more than any limit.
		quantity, _ = strconv.ParseUint(*written, 10, 64)
	}
	switch {
	case tenant == "":
		return reply{}, badRequest("The query parameter tenant is missing.")
	case feature == "":
		return reply{}, badRequest("The query parameter feature is missing.")
	case written != nil && !wholeNumber.MatchString(*written):
		return reply{}, badRequest("The query parameter quantity must be a whole number, 0 or more.")
	case unknown != nil && *unknown != "allow" && *unknown != "deny":
		return reply{}, badRequest("The query parameter unknown must be allow or deny.")
	}
	a, err := h.cfg.Lookup.last(r.Context(), w, tenant, optional(params, "platform"))
	f, enabled := a.Snapshot.Feature(feature)
	allowed := enabled && f.Limit.Allows(quantity)
	h.count(err, allowed)
	if err != nil {
		p := problemOf(err)
		if unknown == nil || p.status != http.StatusNotFound && p.status != http.StatusConflict {
			return reply{}, err
		}
		w.Header().Set("Usher-Unknown", "true") // nginx knows no third answer, and the caller has decided
		if *unknown == "allow" {
			return reply{http.StatusNoContent, nil}, nil
		}
		return reply{}, denied(p.message)
	}
	w.Header().Set("Usher-Limit", f.Limit.String()) // 0 if it is not enabled
	switch {
	case allowed:
		return reply{http.StatusNoContent, nil}, nil
	case enabled:
		return reply{}, denied("The limit of this feature is " + f.Limit.String() + ".")
	default:
		return reply{}, denied("This feature is not on the tenant's subscription.")
	}
}
