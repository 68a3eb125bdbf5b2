package entitlements

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

type (
	tenantBody struct {
		Tenant   string        `json:"tenant"`
		Platform string        `json:"platform"`
		Features []featureBody `json:"features"`
		sourceBody
	}
	oneBody struct {
		Tenant   string `json:"tenant"`
		Platform string `json:"platform"`
		featureBody
		sourceBody
	}
	featureBody struct {
		Feature string `json:"feature"`
		Name    string `json:"name"`
		Enabled bool   `json:"enabled"`
		Limit   Limit  `json:"limit"` // null: none
		Value   string `json:"value"`
	}
	sourceBody struct {
		AsOf    time.Time `json:"as_of"`
		Webhook string    `json:"webhook"`
	}
)

func (a Answer) source() sourceBody { return sourceBody{a.AsOf.UTC(), a.Webhook} }

func enabledBody(f Feature) featureBody {
	return featureBody{Feature: f.Code, Name: f.Name, Enabled: true, Limit: f.Limit, Value: f.Value}
}

// tenant answers with everything that a tenant may use.
func (h *Handler) tenant(w http.ResponseWriter, r *http.Request, to target) (answer, error) {
	params, err := query(r, "platform")
	if err != nil {
		return answer{}, err
	}
	a, err := h.last(r.Context(), w, to.tenant, optional(params, "platform"))
	if err != nil {
		return answer{}, err
	}
	body := tenantBody{Tenant: a.Tenant, Platform: a.Platform, sourceBody: a.source(),
		Features: make([]featureBody, 0, a.Snapshot.Len())} // never null
	for f := range a.Snapshot.Features() {
		body.Features = append(body.Features, enabledBody(f))
	}
	return answer{http.StatusOK, body}, nil
}

// feature answers with one feature of a tenant, listed or not.
func (h *Handler) feature(w http.ResponseWriter, r *http.Request, to target) (answer, error) {
	params, err := query(r, "platform")
	if err != nil {
		return answer{}, err
	}
	a, err := h.last(r.Context(), w, to.tenant, optional(params, "platform"))
	if err != nil {
		h.count(err, false)
		return answer{}, err
	}
	body := oneBody{Tenant: a.Tenant, Platform: a.Platform, sourceBody: a.source(),
		featureBody: featureBody{Feature: to.feature}}
	f, enabled := a.Snapshot.Feature(to.feature)
	if enabled {
		body.featureBody = enabledBody(f)
	}
	h.count(nil, enabled)
	return answer{http.StatusOK, body}, nil
}

// check answers with a status only, which is what web servers need.
func (h *Handler) check(w http.ResponseWriter, r *http.Request) (answer, error) {
	params, err := query(r, "tenant", "feature", "platform", "quantity")
	if err != nil {
		return answer{}, err
	}
	tenant, feature := params.Get("tenant"), params.Get("feature")
	quantity, ok := quantityOf(optional(params, "quantity"))
	switch {
	case tenant == "":
		return answer{}, badRequest("The query parameter tenant is missing.")
	case feature == "":
		return answer{}, badRequest("The query parameter feature is missing.")
	case !ok:
		return answer{}, badRequest("The query parameter quantity must be a whole number, 0 or more.")
	}
	a, err := h.last(r.Context(), w, tenant, optional(params, "platform"))
	if err != nil {
		h.count(err, false)
		return answer{}, err
	}
	f, enabled := a.Snapshot.Feature(feature)
	allowed := enabled && f.Limit.Allows(quantity)
	h.count(nil, allowed)
	w.Header().Set("Usher-Limit", f.Limit.String()) // 0 if it is not listed
	switch {
	case allowed:
		return answer{http.StatusNoContent, nil}, nil
	case enabled:
		return answer{}, denied(fmt.Sprintf("The limit of this feature is %s.", f.Limit))
	default:
		return answer{}, denied("This feature is not on the tenant's subscription.")
	}
}

// quantityOf returns the requested quantity, 0 if none is given. More than a uint64 can hold is more
// than any limit.
func quantityOf(written *string) (_ uint64, ok bool) {
	if written == nil {
		return 0, true
	}
	for _, c := range *written {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, _ := strconv.ParseUint(*written, 10, 64) // digits only: if it is out of range, n is the largest number
	return n, *written != ""
}
