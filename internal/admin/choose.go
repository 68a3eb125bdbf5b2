package admin

import (
	"net/http"
	"slices"
	"strconv"

	"usher/internal/inbox/store"
	"usher/webhookgate"
)

// Chosen are the webhooks that a filter chooses for an action, in the order in which it is done to them: the answer of
// GET /api/redeliver and GET /api/discard.
type Chosen struct {
	Webhooks []string `json:"webhooks"` // their ids
	Older    int      `json:"older"`    // left out: a newer one of the same tenant would be undone; force takes them in
}

// choose returns those that a filter chooses to be sent again or discarded.
func (h *Handler) choose(act string, s Selection, force bool) (Chosen, error) {
	box, err := h.inbox()
	if err != nil {
		return Chosen{}, err
	}
	switch known, err := h.isKnown(s); {
	case err != nil:
		return Chosen{}, err
	case !known:
		return Chosen{}, h.unknown(s.tenant.Tenant, s.tenant.Platform)
	}
	s.limit, s.before = 0, cursor{}
	f, possible := s.filter()
	if !possible {
		return Chosen{Webhooks: []string{}}, nil
	}
	entries, err := box.List(f)
	if err != nil {
		return Chosen{}, err
	}
	if act == "discard" {
		return toDiscard(entries), nil
	}
	all := entries
	if !force {
		// All of the tenant, or of everybody, in whatever state: only so it is known which is the latest.
		if all, err = box.List(store.Filter{Tenant: s.tenant.Tenant, Platform: s.tenant.Platform}); err != nil {
			return Chosen{}, err
		}
	}
	return toRedeliver(entries, all, force), nil
}

// toDiscard has the newest first: of a queue that is discarded whole none is delivered because the one before it is gone.
func toDiscard(entries []store.Entry) Chosen {
	c := Chosen{Webhooks: []string{}}
	for i := range entries {
		if !entries[i].State.Finished() {
			c.Webhooks = append(c.Webhooks, strconv.FormatInt(entries[i].ID, 10))
		}
	}
	return c
}

// toRedeliver has the oldest first: what is sent again keeps its order. Of a tenant's that wait only the first is
// tried, and of others only the latest, unless forced: each is a whole snapshot, and an older one would undo it.
func toRedeliver(entries, all []store.Entry, force bool) Chosen {
	c := Chosen{Webhooks: []string{}}
	latest := make(map[webhookgate.Lane]int64)
	for i := range all {
		e := &all[i]
		if l := laneOf(e.Platform, e.Tenant, e.Type); !e.Rejected() {
			latest[l] = max(latest[l], e.ID)
		}
	}
	tried := make(map[webhookgate.Lane]bool)
	for i := range slices.Backward(entries) {
		e := &entries[i]
		waits := e.State == store.Waiting
		switch l := laneOf(e.Platform, e.Tenant, e.Type); {
		case e.Rejected(): // it was never taken in
		case waits && e.Tenant != "" && tried[l]: // the one before it is tried now
		case force, e.Tenant == "", waits, latest[l] == e.ID:
			tried[l] = tried[l] || waits
			c.Webhooks = append(c.Webhooks, strconv.FormatInt(e.ID, 10))
		default:
			c.Older++
		}
	}
	return c
}

// isKnown says whether there is a tenant that a selection names, or it names none. One that is named without its platform,
// and exists on several, is refused.
func (h *Handler) isKnown(s Selection) (bool, error) {
	if s.tenant.Tenant == "" {
		return true, nil
	}
	known, err := h.tenants(s.tenant.Tenant, s.tenant.Platform)
	if len(known) > 1 {
		err = ambiguous(s.tenant.Tenant, known)
	}
	return len(known) > 0, err
}

// Acted is what became of the webhooks that a filter chose: the answer of POST /api/redeliver and POST /api/discard.
type Acted struct {
	Done   []string          `json:"done"`
	Failed map[string]string `json:"failed,omitempty"` // why, by id
}

// actOnAll does something to each of those chosen, and goes on when one fails.
func (h *Handler) actOnAll(r *http.Request, act string, ids []string, force bool) Acted {
	acted := Acted{Done: []string{}, Failed: make(map[string]string)}
	for _, id := range ids {
		if err := h.act(r, act, id, force); err != nil {
			acted.Failed[id] = err.Error()
		} else {
			acted.Done = append(acted.Done, id)
		}
	}
	return acted
}
