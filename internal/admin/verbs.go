package admin

import (
	"context"
	"slices"
	"strconv"

	"usher/internal/inbox"
	"usher/webhookgate"
)

// A Verb is something that people do to webhooks: to one, to several by their ids, or to all that a filter selects. Everything that is
// special about it is in its row of Verbs. The routes, the page that asks first, the buttons, the notices, the log and the commands of
// 'usher inbox' come from there.
type Verb struct {
	Name string      // in addresses, as a command, and in the list of actions
	Only inbox.State // the state that a webhook must have; empty: not only one

	params []string // of the API, beside those of the filter

	// do does it to a webhook, and returns the webhook's id: a new one, if it was taken in.
	do     func(h *Handler, t task) (int64, error)
	logged string // the message

	// deny says why it cannot be done to a webhook as it stands: then the page does not offer it. May be nil: then it says so afterwards.
	deny func(w *Webhook) error

	// agree returns an error if somebody has to agree first (options.unknown). May be nil.
	agree func(h *Handler, ctx context.Context, id int64) error

	// choose returns those of the selected webhooks, which are the newest first, that it would be done to. Nil: it takes ids only.
	choose func(h *Handler, ctx context.Context, s selection, all []*inbox.Webhook) (Chosen, error)

	// The buttons on the page of a webhook (suits: whether it has one, unless deny says that it has not; may be nil) and on a list (labelAll returns an empty text if it has none).
	Label    string
	Quiet    bool // it is not the button that most people look for
	suits    func(*Webhook) bool
	labelAll func(outcome string) string

	// What the page asks. what is the webhook, or the webhooks, in a sentence; count is how many.
	ask       func(w *Webhook, what string) *confirmation
	askAll    func(count, what string) *confirmation
	none      string // why it is done to none of the webhooks that a filter selects
	overwrite string // the button, if a newer snapshot would be overwritten

	did, didAll string // what the page says afterwards

	// The command: its flags, beside --yes and those of the filter, and what it prints. In Done, ID stands for the webhook's new id. Anyway
	// is what --force does.
	Flags                 string
	Done, NotDone, Anyway string
	Delivers              bool // so it says what is paused
}

// ByFilter reports whether it can be done to all webhooks that a filter selects.
func (v *Verb) ByFilter() bool { return v.choose != nil }

// A task is a verb that somebody asks for, and one of the webhooks.
type task struct {
	id     int64
	chosen inbox.State // the state for which a filter chose it; empty: none did
	by     *inbox.Action
	options
}

// Verbs are all verbs. A new one needs its row here, its lines in the help of 'usher inbox', and its decision: a method of the inbox's lane.
var Verbs = []*Verb{
	{
		Name: "redeliver", params: []string{"force"},
		do: func(h *Handler, t task) (int64, error) {
			return t.id, h.cfg.Inbox.Redeliver(t.id, t.chosen, t.force, t.by)
		},
		logged: "webhook redelivered by hand",
		choose: (*Handler).chooseToRedeliver,

		Label: "Redeliver…", suits: func(w *Webhook) bool { return !w.waits() && w.Decision != "rejected" }, // if it waits, the page can try it now
		labelAll: func(outcome string) string {
			switch inbox.State(outcome) {
			case inbox.Waiting:
				return "Try all of these now…"
			case inbox.Invalid, inbox.Replaced: // there is nothing to send again
				return ""
			}
			return "Redeliver all of these…"
		},
		ask: func(w *Webhook, what string) *confirmation {
			return &confirmation{Question: "Redeliver webhook " + w.ID + "?", Button: "Redeliver it",
				Effect: "The receiver gets " + what + " once more, with the same webhook-id, before the webhooks of the tenant that wait."}
		},
		askAll: func(count, what string) *confirmation {
			return &confirmation{Question: "Redeliver " + count + "?", Button: "Redeliver",
				Effect: "The receiver gets " + what + " now. Of a tenant's webhooks that wait, the first is tried now and the others follow."}
		},
		none:      "None of these webhooks waits or is its tenant's latest.",
		overwrite: "Send the old one anyway",
		did:       "You asked usher to redeliver it: see its state below.", didAll: "usher redelivers them.",

		Flags: "force", Done: "will be redelivered", NotDone: "not redelivered", Anyway: "redeliver it", Delivers: true,
	},
	{
		Name: "discard", params: []string{"force"},
		do: func(h *Handler, t task) (int64, error) { return t.id, h.cfg.Inbox.Discard(t.id, t.by) },
		deny: func(w *Webhook) error {
			if w.State.Finished() {
				return inbox.ErrFinished
			}
			return nil
		},
		logged: "webhook discarded by hand",
		choose: chooseToDiscard,

		Label: "Discard…", Quiet: true,
		labelAll: func(outcome string) string {
			if outcome != "" && inbox.State(outcome).Finished() {
				return ""
			}
			return "Discard all of these…"
		},
		ask: func(w *Webhook, what string) *confirmation {
			c := &confirmation{Question: "Discard webhook " + w.ID + "?", Button: "Discard it", Danger: true,
				Effect: "The receiver never gets " + what + ". usher delivers the tenant's next webhook instead. " +
					"This one stays in the list as discarded, and you can still redeliver it. What usher itself answers about the tenant does not change."}
			if w.State == inbox.Invalid {
				c.Effect = "usher no longer reports it as a problem, and you can no longer accept it. It stays in the list as discarded."
			}
			return c
		},
		askAll: func(count, what string) *confirmation {
			return &confirmation{Question: "Discard " + count + "?", Button: "Discard", Danger: true,
				Effect: "The receiver never gets " + what + ". What is discarded stays in the list, and you can still redeliver it. What is invalid can no longer be accepted."}
		},
		none: "None of these webhooks waits, is parked or is invalid.",
		did:  "It is discarded.", didAll: "They are discarded.",

		Done: "discarded", NotDone: "not discarded",
	},
	{
		Name: "accept", Only: inbox.Invalid, params: []string{"force", "unknown"},
		do: func(h *Handler, t task) (int64, error) { return h.cfg.Inbox.Accept(t.id, t.force, t.by) },
		deny: func(w *Webhook) error {
			switch {
			case w.State != inbox.Invalid:
				return inbox.ErrNotInvalid
			case w.Unacceptable != "":
				return inbox.Denied(w.Unacceptable)
			}
			return nil
		},
		logged: "invalid webhook accepted by hand",
		agree:  (*Handler).becomesUnknown,

		Label: "Accept…",
		ask: func(w *Webhook, what string) *confirmation {
			return &confirmation{Question: "Accept webhook " + w.ID + "?", Button: "Accept it",
				Effect: "usher stores " + what + " as it is, as a new webhook with its own id. usher delivers it after the webhooks of the tenant that wait, and answers from it what the tenant may use."}
		},
		overwrite: "Accept the old one anyway",
		did:       "It is accepted, as a new webhook with its own id.",

		Flags: "force", Done: "accepted: its new id is ID", NotDone: "not accepted", Anyway: "take it in", Delivers: true,
	},
}

// routes returns the addresses of the verb.
func (v *Verb) routes(h *Handler) []route {
	all := []route{
		{path: "/webhooks/{id}/" + v.Name, read: h.askOne(v), act: h.actOnOne(v), inbox: true},
		{path: "/api/webhooks/{id}/" + v.Name, act: h.actOnOne(v), params: v.params, inbox: true},
	}
	if !v.ByFilter() {
		return append(all, route{path: "/api/" + v.Name, act: h.actOnMany(v), params: v.params, inbox: true})
	}
	params := slices.Concat(filterParams, v.params)
	return append(all,
		route{path: "/" + v.Name, read: h.askMany(v), act: h.actOnMany(v), params: append(slices.Clip(params), "before"), inbox: true},
		route{path: "/api/" + v.Name, read: h.actOnMany(v), act: h.actOnMany(v), params: params, inbox: true})
}

// Offers returns what the page of a webhook offers to do with it: what most people look for comes first.
func (w *Webhook) Offers() (all []*Verb) {
	for _, quiet := range []bool{false, true} {
		for _, v := range Verbs {
			if w.InInbox() && v.Quiet == quiet && (v.suits == nil || v.suits(w)) && (v.deny == nil || v.deny(w) == nil) {
				all = append(all, v)
			}
		}
	}
	return all
}

// chooseToRedeliver chooses webhooks to send again, the oldest first, so that they keep their order. Of a tenant's webhooks that wait it
// chooses the first: the others follow by themselves. Of the others it chooses the newest only, because an older snapshot would undo it;
// with force it chooses all of them.
func (h *Handler) chooseToRedeliver(ctx context.Context, s selection, all []*inbox.Webhook) (c Chosen, err error) {
	tried := make(map[webhookgate.Lane]bool)
	for _, e := range slices.Backward(all) {
		waits := e.State == inbox.Waiting
		switch l := laneOf(e.Platform, e.Tenant, e.Type); {
		case e.Rejected(): // there is nothing to send again
		case waits && e.Tenant != "" && tried[l]: // it follows the one before it
		case s.force, waits, e.Newest:
			tried[l] = tried[l] || waits
			c.Webhooks = append(c.Webhooks, strconv.FormatInt(e.ID, 10))
		default:
			c.Older++
		}
	}
	if s.wholePlatform() {
		err = h.countGone(ctx, &c, *s.Platform, all)
	}
	return c, err
}

// countGone counts the tenants of a platform that have no webhook in the inbox any more. A person who fills a new receiver has to know.
func (h *Handler) countGone(ctx context.Context, c *Chosen, platform string, all []*inbox.Webhook) error {
	stored := make(map[string]bool)
	for _, e := range all {
		stored[e.Tenant] = stored[e.Tenant] || !e.Rejected()
	}
	tenants, err := h.cfg.Inbox.Tenants(ctx, inbox.TenantFilter{})
	for _, t := range tenants {
		if t.Platform != platform || t.Latest.IsZero() || stored[t.Tenant] {
			continue
		}
		if c.Gone++; c.Gone <= 10 {
			c.GoneTenants = append(c.GoneTenants, inbox.ShowTenant(t.Platform, t.Tenant))
		}
	}
	return err
}

// chooseToDiscard chooses webhooks that are not finished, the newest first. Otherwise usher could deliver the second webhook of a queue
// right after the first is discarded.
func chooseToDiscard(_ *Handler, _ context.Context, _ selection, all []*inbox.Webhook) (c Chosen, err error) {
	for _, e := range all {
		if !e.State.Finished() {
			c.Webhooks = append(c.Webhooks, strconv.FormatInt(e.ID, 10))
		}
	}
	return c, nil
}
