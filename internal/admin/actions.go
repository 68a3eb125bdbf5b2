package admin

import (
	"net/http"
	"strconv"

	"usher/internal/admin/page"
	"usher/internal/inbox"
)

// Actions is the answer of GET /api/actions, and the page of actions: what people did.
type Actions struct {
	Actions []inbox.Action `json:"actions"`
	Next    string         `json:"next,omitempty"` // the parameter before of the next page
}

func (h *Handler) actions(r *http.Request) (_ any, err error) {
	query := r.URL.Query()
	var before int64
	if text := query.Get("before"); text != "" {
		if before, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, badRequest("before is %q, but should be a number", text)
		}
	}
	limit := 100
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxPage {
			return nil, badRequest("limit is %q, but should be a number from 1 to %d", text, maxPage)
		}
	}
	all, err := h.cfg.Inbox.Actions(r.Context(), before, limit+1)
	if err != nil {
		return nil, err
	}
	out := Actions{Actions: append([]inbox.Action{}, all[:min(len(all), limit)]...)} // [] and not null
	if len(all) > limit {
		out.Next = strconv.FormatInt(all[limit-1].ID, 10)
	}
	return &page.Page{Name: "actions", Title: "Actions", Section: "actions", Body: out}, nil
}
