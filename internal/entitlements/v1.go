package entitlements

import (
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"usher/internal/guard"
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
func (h *Handler) entitlements(w http.ResponseWriter, r *http.Request, to target) (answer, error) {
	params, err := readQuery(r, "platform")
	if err != nil {
		return answer{}, err
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
		return answer{http.StatusOK, body}, err
	}
	return answer{http.StatusOK, body.withFeatures(a.Snapshot.Features)}, err
}

// withFeatures returns the body of a question about all features.
func (b tenantBody) withFeatures(all []snapshot.Feature) list {
	b.Features = []featureBody{}
	const here = `"features":` // inside a text the quotes would be escaped
	before, after, _ := strings.Cut(string(guard.Encode(b)), here+"[]")
	return list{before + here, func(yield func(any) bool) {
		for _, f := range all {
			if !yield(enabledBody(f)) {
				return
			}
		}
	}, after}
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
func (h *Handler) check(w http.ResponseWriter, r *http.Request, _ target) (answer, error) {
	params, err := readQuery(r, "tenant", "feature", "platform", "quantity", "unknown")
	if err != nil {
		return answer{}, err
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
		return answer{}, badRequest("The query parameter tenant is missing.")
	case feature == "":
		return answer{}, badRequest("The query parameter feature is missing.")
	case written != nil && !wholeNumber.MatchString(*written):
		return answer{}, badRequest("The query parameter quantity must be a whole number, 0 or more.")
	case unknown != nil && *unknown != "allow" && *unknown != "deny":
		return answer{}, badRequest("The query parameter unknown must be allow or deny.")
	}
	about := question{tenant, feature, quantity}
	v, err := about.ask(h.cfg.Lookup, r, w, optional(params, "platform"))
	if several, ok := errors.AsType[*AmbiguousError](err); ok && unknown != nil {
		v, err = about.askEach(h.cfg.Lookup, r, w, several)
	}
	h.count(err, v.allowed)
	if code := statusOf(err); unknown != nil && (code == http.StatusNotFound || code == http.StatusConflict) {
		// nginx knows no third answer, and the caller has decided.
		w.Header().Set("Usher-Unknown", "true")
		if *unknown == "allow" {
			return answer{http.StatusNoContent, nil}, nil
		}
		return answer{}, denied(problemOf(err).message)
	}
	if err != nil {
		return answer{}, err
	}
	w.Header().Set("Usher-Limit", v.limit.String())
	switch {
	case v.allowed:
		return answer{http.StatusNoContent, nil}, nil
	case v.enabled:
		return answer{}, denied("The limit of this feature is " + v.limit.String() + ".")
	default:
		return answer{}, denied("This feature is not on the tenant's subscription.")
	}
}

// A question is that of a check, and a verdict what a tenant's last snapshot says to it.
type (
	question struct {
		tenant, feature string
		quantity        uint64
	}
	verdict struct {
		enabled, allowed bool
		limit            snapshot.Limit // 0 if it is not enabled
	}
)

func (q question) ask(l Lookup, r *http.Request, w http.ResponseWriter, platform *string) (verdict, error) {
	a, err := l.last(r.Context(), w, q.tenant, platform)
	f, enabled := a.Snapshot.Feature(q.feature)
	return verdict{enabled, enabled && f.Limit.Allows(q.quantity), f.Limit}, err
}

// askEach asks about all tenants that have the code. If each of them may, the least limit among theirs is the
// answer; if none may, that is. If they differ the answer is err, or what else is not known of one of them.
func (q question) askEach(
	l Lookup, r *http.Request, w http.ResponseWriter, err *AmbiguousError,
) (least verdict, _ error) {
	for i, platform := range err.Platforms {
		v, failed := q.ask(l, r, w, &platform)
		switch {
		case failed != nil:
			return verdict{}, failed
		case i > 0 && v.allowed != least.allowed:
			return verdict{}, err
		case i == 0 || uint64(v.limit) < uint64(least.limit): // no limit is the largest number
			least = v
		}
	}
	return least, nil
}
