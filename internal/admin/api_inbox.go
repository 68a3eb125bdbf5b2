package admin

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

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
	f, err := h.readFilter(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	entries, err := box.List(f)
	if err != nil {
		return nil, err
	}
	l := List{Webhooks: heldUp(entries)}
	if box.Stats != nil {
		l.Paused = box.Stats().Paused
	}
	homeless := box.homeless()
	for i := range l.Webhooks {
		w := &l.Webhooks[i]
		w.Paused = w.State == inbox.Waiting && slices.ContainsFunc(l.Paused, func(p inbox.Pause) bool { return h.covers(p, &w.Entry) })
		w.NoReceiver = homeless(&w.Entry)
	}
	return l, nil
}

// homeless returns what says whether a webhook waits though no receiver takes its platform. A
// replica that delivers no such webhook, as it has no receivers at all, does not know.
func (box *Inbox) homeless() func(*inbox.Entry) bool {
	some := box.Stats != nil && box.ReceiverOf != nil && box.Stats().Receivers[""].Pending > 0
	return func(e *inbox.Entry) bool {
		return some && e.State == inbox.Waiting && box.ReceiverOf(e.Platform, e.Tenant) == ""
	}
}

// covers says whether a pause holds a webhook back.
func (h *Handler) covers(p inbox.Pause, e *inbox.Entry) bool {
	receiver := e.Receiver
	if h.cfg.Inbox.ReceiverOf != nil {
		receiver = h.cfg.Inbox.ReceiverOf(e.Platform, e.Tenant)
	}
	return p.Covers(e.Platform, e.Tenant, receiver)
}

// readFilter reads what a list is asked for.
func (h *Handler) readFilter(rawQuery string) (f inbox.Filter, err error) {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return f, badRequest("the query can't be read: %v", err)
	}
	f = inbox.Filter{State: inbox.State(query.Get("state")), Tenant: query.Get("tenant"), Search: query.Get("search"), Limit: DefaultLimit}
	if err := checkState(f.State); err != nil {
		return f, err
	}
	if query.Has("platform") {
		platform := query.Get("platform")
		f.Platform = &platform
	} else if f.Tenant != "" {
		known, err := h.tenants(f.Tenant, nil)
		if err != nil {
			return f, err
		}
		if len(known) > 1 {
			return f, ambiguous(f.Tenant, known)
		}
	}
	for name, to := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if text := query.Get(name); text != "" {
			if *to, err = time.Parse(time.RFC3339, text); err != nil {
				return f, badRequest("%s is %q, but should be a time such as 2026-01-31T08:00:00Z", name, text)
			}
		}
	}
	if before := query.Get("before"); before != "" {
		if f.Before, err = strconv.ParseUint(before, 10, 64); err != nil {
			return f, badRequest("before is %q, but should be the id of a webhook", before)
		}
	}
	if limit := query.Get("limit"); limit != "" {
		n, err := strconv.ParseUint(limit, 10, 31)
		if err != nil {
			return f, badRequest("limit is %q, but should be a number; 0 for all", limit)
		}
		f.Limit = int(n)
	}
	return f, nil
}

// heldUp says of each that waits which one of its tenant holds it up: the one that was tried,
// and failed.
func heldUp(entries []inbox.Entry) []Listed {
	type lane struct{ platform, tenant, kind string }
	of := func(e *inbox.Entry) lane {
		if e.Tenant == "" {
			return lane{platform: e.Platform, kind: e.Type}
		}
		return lane{platform: e.Platform, tenant: e.Tenant}
	}
	list, first := make([]Listed, len(entries)), make(map[lane]*Listed)
	for i, e := range entries {
		list[i].Entry = e
		if e.State == inbox.Waiting && e.Tries > 0 {
			first[of(&e)] = &list[i] // the oldest, as the newest come first
		}
	}
	for i := range list {
		e := &list[i]
		if f := first[of(&e.Entry)]; f != nil && f != e && e.State == inbox.Waiting {
			e.HeldBy = f.ID
			f.Behind++
		}
	}
	return list
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
	d := Detail{Entry: item.Entry, Header: shown(item.Header), Payload: payload(item.Body), NoReceiver: box.homeless()(&item.Entry)}
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
