package entitlements

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"usher/internal/guard"
	"usher/internal/snapshot"
)

type (
	changeBody struct {
		Tenant   string        `json:"tenant"`
		Platform string        `json:"platform"`
		Name     string        `json:"name"`
		Features []featureBody `json:"features"` // null: unknown
		AsOf     time.Time     `json:"as_of"`
		Webhook  string        `json:"webhook"`
	}
	erasedBody struct {
		Tenant   string `json:"tenant"`
		Platform string `json:"platform"`
		Erased   bool   `json:"erased"`
	}
)

// changes answers with a page of changes, for programs that keep a copy.
func (h *Handler) changes(_ http.ResponseWriter, r *http.Request, _ target) (reply, error) {
	params, err := readQuery(r, "after", "limit", "wait")
	if err != nil {
		return reply{}, err
	}
	if after := optional(params, "after"); after != nil && *after == "" {
		return reply{}, badRequest("The query parameter after is empty. Leave it out to begin with all tenants.")
	}
	wait, err := number(params, "wait", 0, 55, 0)
	if err != nil {
		return reply{}, err
	}
	limit, err := number(params, "limit", 1, 1000, 100)
	if err != nil {
		return reply{}, err
	}
	page, err := h.cfg.Changes(r.Context(), params.Get("after"), limit, time.Duration(wait)*time.Second)
	if err != nil {
		return reply{}, err
	}
	if h.cfg.Told != nil {
		h.cfg.Told(len(page.All))
	}
	return reply{http.StatusOK, guard.JSON(page.Encoded(encodeChanges))}, nil
}

// number returns a parameter that is a whole number, or otherwise if it is left out.
func number(params url.Values, name string, least, most, otherwise int) (int, error) {
	written := optional(params, name)
	if written == nil {
		return otherwise, nil
	}
	n, err := strconv.Atoi(*written)
	if err != nil || n < least || n > most || !wholeNumber.MatchString(*written) {
		return 0, badRequest(fmt.Sprintf("The query parameter %s must be a whole number from %d to %d.",
			name, least, most))
	}
	return n, nil
}

// encodeChanges returns the body of the answer.
func encodeChanges(page *snapshot.Changes) []byte {
	all := make([]any, 0, len(page.All)) // never null
	for i := range page.All {
		c := &page.All[i]
		if c.Erased {
			all = append(all, erasedBody{c.Tenant, c.Platform, true})
			continue
		}
		body := changeBody{Tenant: c.Tenant, Platform: c.Platform, Name: c.Name, AsOf: c.Received.UTC(), Webhook: c.Webhook}
		if state, err := snapshot.Decode(c.Features); err == nil && state.Known {
			body.Features = enabledBodies(state.Features)
		}
		all = append(all, body)
	}
	return guard.Encode(struct {
		Changes []any  `json:"changes"`
		Cursor  string `json:"cursor"`
		More    bool   `json:"more"`
	}{all, page.Cursor, page.More})
}
