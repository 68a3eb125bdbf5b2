package admin

import (
	"net/http"
	"net/url"
	"strconv"

	"usher/internal/changes"
	"usher/internal/inbox"
)

func (h *Handler) inbox() (*Inbox, error) {
	if h.cfg.Inbox == nil {
		return nil, &refusal{http.StatusNotFound, "this usher has no inbox: USHER_WEBHOOK_INBOX is not set"}
	}
	return h.cfg.Inbox, nil
}

func (h *Handler) list(r *http.Request) (any, error) {
	box, err := h.inbox()
	if err != nil {
		return nil, err
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("the query can't be read: %v", err)
	}
	f := inbox.Filter{State: inbox.State(query.Get("state")), Tenant: query.Get("tenant"), Search: query.Get("search"), Limit: DefaultLimit}
	if err := checkState(f.State); err != nil {
		return nil, err
	}
	if before := query.Get("before"); before != "" {
		if f.Before, err = strconv.ParseUint(before, 10, 64); err != nil {
			return nil, badRequest("before is %q, but should be the id of a webhook", before)
		}
	}
	if limit := query.Get("limit"); limit != "" {
		n, err := strconv.ParseUint(limit, 10, 31)
		if err != nil {
			return nil, badRequest("limit is %q, but should be a number; 0 for all", limit)
		}
		f.Limit = int(n)
	}
	entries, err := box.List(f)
	if entries == nil {
		entries = []inbox.Entry{} // [] and not null
	}
	return List{entries}, err
}

func (h *Handler) show(r *http.Request) (any, error) {
	box, id, err := h.addressed(r)
	if err != nil {
		return nil, err
	}
	item, err := box.Show(id)
	if err != nil {
		return nil, err
	}
	d := Detail{Entry: item.Entry, Header: shown(item.Header), Payload: payload(item.Body)}
	var previous []byte
	if item.Previous != nil {
		d.Previous, previous = item.Previous.ID, item.Previous.Body
	}
	if d.Changes = changes.Between(previous, item.Body); d.Changes == nil {
		d.Changes = []string{}
	}
	return d, nil
}

func (h *Handler) redeliver(r *http.Request) (any, error) {
	box, id, err := h.addressed(r)
	if err != nil {
		return nil, err
	}
	var wanted struct{ Force bool }
	if err := decodeBody(r, &wanted, `{"force":true}`); err != nil {
		return nil, err
	}
	if force := r.URL.Query().Get("force"); force != "" {
		if wanted.Force, err = strconv.ParseBool(force); err != nil {
			return nil, badRequest("force is %q, but should be true or false", force)
		}
	}
	if err := h.sendAgain(r, box, id, wanted.Force); err != nil {
		return nil, err
	}
	return Redelivered{id}, nil
}

func (h *Handler) sendAgain(r *http.Request, box *Inbox, id uint64, force bool) error {
	if err := box.Redeliver(id, force); err != nil {
		return err
	}
	h.acted.Add(1)
	h.cfg.Log.Info("webhook sent again by hand", "id", id, "force", force, "from", r.RemoteAddr)
	return nil
}

func (h *Handler) forget(r *http.Request) (any, error) {
	var wanted struct{ Tenant string }
	if err := decodeBody(r, &wanted, `{"tenant":"…"}`); err != nil {
		return nil, err
	}
	n, err := h.drop(r, wanted.Tenant)
	if err != nil {
		return nil, err
	}
	return Forgotten{n}, nil
}

// drop has dedup forget a tenant, and says on how many platforms it did.
func (h *Handler) drop(r *http.Request, tenant string) (int, error) {
	if h.cfg.Forget == nil {
		return 0, &refusal{http.StatusNotFound, "this usher has no webhook gate: USHER_WEBHOOK_FORWARD_URL is not set"}
	}
	if tenant == "" {
		return 0, badRequest(`the body names no tenant, but should be {"tenant":"…"}`)
	}
	n, err := h.cfg.Forget(tenant)
	if err != nil {
		return 0, err
	}
	h.acted.Add(1)
	h.cfg.Log.Info("dedup memory dropped by hand", "tenant", tenant, "lanes", n, "from", r.RemoteAddr)
	return n, nil
}

// addressed returns the inbox and the id of the webhook that a request is about.
func (h *Handler) addressed(r *http.Request) (*Inbox, uint64, error) {
	box, err := h.inbox()
	if err != nil {
		return nil, 0, err
	}
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, 0, inbox.ErrNotFound
	}
	return box, id, nil
}
