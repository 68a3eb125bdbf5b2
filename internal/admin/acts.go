package admin

import (
	"errors"
	"log/slog"
	"time"

	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/view"
)

// Acts are all acts. A new one needs its row here, and what it does: mostly a method of the inbox.
var Acts = []*Act{
	{
		Name: "redeliver", On: OnWebhooks, Params: []Param{force}, logged: "webhooks redelivered by hand",
		one: func(h *Handler, c *call, id int64) (int64, error) {
			return id, h.cfg.Inbox.Redeliver(id, state.State(c.selection.Outcome), c.is("force"), c.by)
		},
		deny: func(w *view.Webhook) error {
			if w.Decision == "rejected" || w.State == state.Invalid || w.State == state.Replaced {
				return lane.Denied("usher does not send what is invalid: if it can be accepted, accept it")
			}
			return nil
		},
		ByFilter: true,
		effect:   "The receiver gets WHAT now, with the same webhook-id. What else waits of the same tenant follows.",
		label: func(h *Handler, t target) string {
			all := t.all != nil && state.State(t.all.Outcome) == state.Waiting
			switch w := t.webhook; {
			case !h.delivers(), w != nil && w.Waits() && w.Paused, all && h.pauseOn(inbox.Pause{}) != nil:
				return ""
			case w != nil && w.Waits() && w.HeldBy != "":
				return "Try " + w.HeldBy + " now"
			case w != nil && w.Waits():
				return "Try now"
			case all:
				return "Try all of these now"
			}
			return "Redeliver"
		},
		Means:  "The receiver gets the tenant's latest webhook once more.",
		did:    "You asked usher to redeliver it: see its state below.",
		didAll: "usher redelivers them.",
		none:   "None of these webhooks waits or is its tenant's latest.",
		Help: "deliver webhooks again. One that waits for its next try is tried now. " +
			"If the tenant has a newer one, this needs --force",
		Done: "will be redelivered", NotDone: "not redelivered",
		Instead: map[state.State]string{
			state.Invalid: "redeliver does not send invalid webhooks: use 'usher inbox accept ID'",
		},
	},
	{
		Name: "discard", On: OnWebhooks, Params: []Param{force}, logged: "webhooks discarded by hand",
		one: func(h *Handler, c *call, id int64) (int64, error) { return id, h.cfg.Inbox.Discard(id, c.by) },
		deny: func(w *view.Webhook) error {
			if w.State.Finished() {
				return lane.ErrFinished
			}
			return nil
		},
		ByFilter: true,
		effect: "The receiver never gets WHAT: usher delivers the tenant's next webhook instead. " +
			"What is discarded stays in the list, and you can still redeliver it. " +
			"If it is invalid, usher no longer reports it as a problem, and you can no longer accept it. " +
			"What usher itself answers about the tenant does not change.",
		Quiet: true, Danger: true,
		did: "It is discarded.", didAll: "They are discarded.",
		none: "None of these webhooks waits, is parked or is invalid.",
		Help: "never send webhooks that wait, are parked or are invalid; they stay in the list as discarded",
		Done: "discarded", NotDone: "not discarded",
	},
	{
		Name: "accept", On: OnWebhooks, Params: []Param{force}, logged: "invalid webhooks accepted by hand",
		one: func(h *Handler, c *call, id int64) (int64, error) {
			return h.cfg.Inbox.Accept(id, c.is("force"), c.by)
		},
		deny: func(w *view.Webhook) error {
			switch {
			case w.State != state.Invalid:
				return lane.ErrNotInvalid
			case w.Unacceptable != "":
				return lane.Denied(w.Unacceptable)
			}
			return nil
		},
		effect: "usher stores WHAT as it is, as a new webhook with its own id. usher delivers it after the webhooks of " +
			"the tenant that wait, and answers from it what the tenant may use.",
		did:  "It is accepted, as a new webhook with its own id.",
		Help: "take in webhooks that are invalid, as they are. If the tenant has a newer one, this needs --force",
		Done: "accepted: its new id is ID", NotDone: "not accepted",
	},
	{
		Name: "pause", On: OnDeliveries, logged: "deliveries paused by hand", level: slog.LevelWarn,
		Params: []Param{ofTenant, ofReceiver, {
			Name: "for", Is: duration, Label: "For how long (such as 2h; empty: until somebody resumes)",
		}},
		do: func(h *Handler, c *call) (view.Result, error) {
			lasts, _ := time.ParseDuration(c.given.Get("for"))
			p, err := h.cfg.Inbox.Pause(c.on, lasts, c.by)
			return view.Result{Said: "paused: " + p.Words(), Undo: "usher inbox resume" + p.Flag()}, err
		},
		effect: "usher begins no delivery until the pause ends, also after a restart, and on all " +
			"replicas. Deliveries in progress may finish. Nothing is lost: senders still get 200, " +
			"and webhooks wait in the inbox.",
		label: func(h *Handler, t target) string {
			if !h.delivers() || h.pauseOn(t.on) != nil || h.pauseOn(inbox.Pause{}) != nil {
				return ""
			}
			return "Pause"
		},
		Means: "Its webhooks wait until the pause ends.", Quiet: true,
		Help: "stop all deliveries until 'resume', also after a restart; --for 2h: until then at the " +
			"latest. --tenant T or --receiver R stops only those",
	},
	{
		Name: "resume", On: OnDeliveries, Params: []Param{ofTenant, ofReceiver}, logged: "deliveries resumed by hand", level: slog.LevelWarn,
		do: func(h *Handler, c *call) (view.Result, error) {
			was, err := h.cfg.Inbox.Resume(c.on, c.by)
			c.note("was_paused", was)
			if !was {
				return view.Result{Failed: c.on.String() + ": not paused"}, err
			}
			return view.Result{Said: "resumed: " + c.on.String()}, err
		},
		label: func(h *Handler, t target) string {
			if h.pauseOn(t.on) == nil {
				return ""
			}
			return "Resume"
		},
		Means: "Its webhooks are delivered again.",
		did:   "Resumed.",
		Help:  "start them again, with the same flags as 'pause'",
	},
	{
		Name: "erase", On: OnTenant, logged: "tenant erased by hand", level: slog.LevelWarn,
		do: func(h *Handler, c *call) (view.Result, error) {
			n, err := h.cfg.Inbox.Erase(c.on.Platform, c.on.Tenant, c.by)
			if err == nil || errors.Is(err, inbox.ErrDoubt) { // if it was done, nobody can name the tenant again
				h.recorder.Erase(c.on.Platform, c.on.Tenant)
			}
			c.note("webhooks", n)
			said := inbox.ShowTenant(c.on.Platform, c.on.Tenant) + " erased: " + view.Plural(n, "webhook", "webhooks")
			c.on = inbox.Pause{} // it has no page any more
			return view.Result{Said: said}, err
		},
		effect: "This deletes all webhooks of this tenant, what it may use, and what usher remembers to recognise copies. " +
			"It can't be undone. usher then answers that it does not know the tenant. Nothing changes in the receiver.",
		Means:  "Deletes its webhooks and what usher knows of it. This cannot be undone.",
		Danger: true, did: "The tenant is erased.",
		Help:     "delete a tenant's webhooks and what it may use, and forget it, too; asks first, unless --yes",
		Question: "Erase TENANT: delete all its webhooks, also those that wait, and what it may use?",
	},
	{
		Name: "backup", Download: true, logged: "inbox backed up by hand", level: slog.LevelWarn, serve: (*Handler).backup,
		Help: "write a consistent copy of an inbox in a file to a new FILE, while usher runs. usher starts on the copy paused",
	},
	{Name: "reconcile", logged: "reconcile began", serve: (*Handler).reconcile},
}
