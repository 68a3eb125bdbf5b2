package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"usher/internal/admin/page"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/text"
)

// An Act is something that people do. Everything that is special about it is in its row of Acts: the routes,
// the pages that ask first, the buttons, the notices, the log, the entry in the list of actions, and
// the commands of 'usher inbox' with their help come from there.
type Act struct {
	Name    string     // in addresses, as a command, and in the list of actions
	On      Target     // what it is done to
	Params  []Param    // what it takes beside that
	NoInbox bool       // it does something without an inbox, too
	Logged  string     // the message
	Level   slog.Level // of the message

	*onWebhooks // only if it is done to webhooks

	// do does it to anything else, and returns the answer of the API. Nil: see onWebhooks, or routes.
	do       func(h *Handler, c *call) (answer any, err error)
	routes   func(h *Handler, a *Act) []route // those of an act that has routes of its own
	Download bool                             // the answer of the API's call is a file

	// The page. Without effect and ask it asks nothing.
	effect string // what it does, where the page asks first; WHAT stands for the webhooks
	// ask completes the question; may be nil.
	ask func(h *Handler, c *call, question *confirmation) error
	// offer changes its button, or takes the label away: then it has none. May be nil.
	offer  func(h *Handler, t target, button *page.Offer)
	Means  string // beside the button
	Danger bool   // draws the button that does it in the colour of a warning
	Quiet  bool   // its button is not the one that most people look for
	did    string // what the page says afterwards

	// The command: its help (empty: it is no command of 'usher inbox'), what it asks first (empty: nothing;
	// TENANT stands for the tenant), and what it says about the answer. An error comes after it.
	Help     string
	Question string
	Says     teller
}

// Target is what an act is done to.
type Target int

const (
	OnInbox      Target = iota // the whole of it
	OnWebhooks                 // one, several by their ids or, if the act can choose, all that a filter selects
	OnTenant                   // one
	OnDeliveries               // all, those of a tenant, or those to a receiver
)

// A Param is something that an act takes.
type Param struct {
	Name  string // of the API, of forms, and as a flag
	Is    string // one of the kinds
	Flag  bool   // the command takes it
	Label string // of its field on the page that asks; empty: it has none
}

// The kinds of values, as people read them.
const (
	YesOrNo   = "true or false"
	aTime     = "a time, such as 2026-01-31T08:00:00Z"
	duration  = "a time span of at most 8784h, such as 2h or 30m" // a year
	ATenant   = "the code of a tenant"                            // with the parameter platform beside it
	aReceiver = "the name of a receiver"
)

var (
	force      = Param{Name: "force", Is: YesOrNo, Flag: true}
	ofTenant   = Param{Name: "tenant", Is: ATenant, Flag: true}
	ofReceiver = Param{Name: "receiver", Is: aReceiver, Flag: true}
)

// Check says what is wrong with a value.
func (p *Param) Check(value string) (err error) {
	switch p.Is {
	case YesOrNo:
		_, err = strconv.ParseBool(value)
	case aTime:
		_, err = time.Parse(time.RFC3339Nano, value)
	case duration:
		var d time.Duration
		if d, err = time.ParseDuration(value); err == nil && (d <= 0 || d > inbox.LongestPause) {
			err = errors.New("too short or too long")
		}
	case ATenant, aReceiver: // that it is known is asked later
		if value == "" {
			err = errors.New("empty")
		}
	}
	if err != nil {
		return badRequest("%s is %q, but should be %s", p.Name, text.Clip(value, maxText), p.Is)
	}
	return nil
}

// names reports whether it says what the act is about.
func (p *Param) names() bool { return p.Is == ATenant || p.Is == aReceiver }

// Title is its name at the beginning of a sentence or on a button.
func (a *Act) Title() string { return strings.ToUpper(a.Name[:1]) + a.Name[1:] }

// Args are the arguments of its command.
func (a *Act) Args() string {
	switch {
	case a.On == OnWebhooks:
		return "ID..."
	case a.On == OnTenant:
		return "TENANT"
	}
	return onlyIf(a.Download, "FILE")
}

// Flags are the names of the flags of its command, beside those of a filter.
func (a *Act) Flags() (all []string) {
	for _, p := range a.Params {
		if p.Flag {
			all = append(all, p.Name)
		}
	}
	if a.On == OnWebhooks || a.Question != "" {
		all = append(all, "yes")
	}
	return all
}

// names are the names of what the API takes.
func (a *Act) names() (all []string) {
	if a.On == OnTenant {
		all = append(all, "tenant", "platform")
	}
	for _, p := range a.Params {
		if all = append(all, p.Name); p.Is == ATenant {
			all = append(all, "platform")
		}
	}
	return all
}

// A teller is Act.Says.
type teller func(answer []byte, run func(command string) string) (string, error)

// says makes a teller of a func that gets the answer decoded.
func says[T any](words func(answer T, run func(string) string) (string, error)) teller {
	return func(raw []byte, run func(string) string) (string, error) {
		var answer T
		if err := json.Unmarshal(raw, &answer); err != nil {
			return "", err
		}
		return words(answer, run)
	}
}

// Acts are all acts. A new one needs its row here, and what it does: mostly a method of the inbox.
var Acts []*Act

func init() {
	Acts = []*Act{ // not in the declaration: what they do leads to pages, which have buttons for Acts
		{
			Name: "redeliver", On: OnWebhooks, Params: []Param{force}, Logged: "webhooks redelivered by hand",
			onWebhooks: &onWebhooks{
				does: func(h *Handler, c *call, id int64) (int64, error) {
					return id, h.cfg.Inbox.Redeliver(id, c.chosen, c.is("force"), c.by)
				},
				deny: func(w *Webhook) error {
					if w.Decision == "rejected" || w.State == state.Invalid || w.State == state.Replaced {
						return lane.Denied("usher does not send what is invalid: if it can be accepted, accept it")
					}
					return nil
				},
				choose: (*Handler).chooseToRedeliver,
				none:   "None of these webhooks waits or is its tenant's latest.",
				didAll: "usher redelivers them.",
				Done:   "will be redelivered", NotDone: "not redelivered",
				Instead: map[state.State]string{
					state.Invalid: "redeliver does not send invalid webhooks: use 'usher inbox accept ID'",
				},
			},
			offer: func(h *Handler, on target, button *page.Offer) {
				switch w := on.webhook; {
				case !h.delivers(), w != nil && w.waits() && w.Paused:
					button.Label = ""
				case w != nil && w.waits() && w.HeldBy != "":
					button.Label, button.Address = "Try "+w.HeldBy+" now", "/webhooks/"+w.HeldBy+"/redeliver"
				case w != nil && w.waits():
					button.Label = "Try now"
				case on.all != nil && state.State(on.all.Outcome) == state.Waiting:
					button.Label = onlyIf(h.pauseOn(inbox.Pause{}) == nil, "Try all of these now…")
				}
			},
			effect: "The receiver gets WHAT now, with the same webhook-id. What else waits of the same tenant follows.",
			Means:  "The receiver gets the tenant's latest webhook once more.",
			did:    "You asked usher to redeliver it: see its state below.",
			Help: "deliver webhooks again. One that waits for its next try is tried now. " +
				"If the tenant has a newer one, this needs --force",
		},
		{
			Name: "discard", On: OnWebhooks, Params: []Param{force}, Logged: "webhooks discarded by hand",
			onWebhooks: &onWebhooks{
				does: func(h *Handler, c *call, id int64) (int64, error) { return id, h.cfg.Inbox.Discard(id, c.by) },
				deny: func(w *Webhook) error {
					if w.State.Finished() {
						return lane.ErrFinished
					}
					return nil
				},
				choose: chooseToDiscard,
				none:   "None of these webhooks waits, is parked or is invalid.",
				didAll: "They are discarded.",
				Done:   "discarded", NotDone: "not discarded",
			},
			effect: "The receiver never gets WHAT: usher delivers the tenant's next webhook instead. " +
				"What is discarded stays in the list, and you can still redeliver it. " +
				"If it is invalid, usher no longer reports it as a problem, and you can no longer accept it. " +
				"What usher itself answers about the tenant does not change.",
			Quiet: true, Danger: true,
			did:  "It is discarded.",
			Help: "never send webhooks that wait, are parked or are invalid; they stay in the list as discarded",
		},
		{
			Name:   "accept",
			On:     OnWebhooks,
			Params: []Param{force},
			Logged: "invalid webhooks accepted by hand",
			onWebhooks: &onWebhooks{
				does: func(h *Handler, c *call, id int64) (int64, error) {
					return h.cfg.Inbox.Accept(id, c.is("force"), c.by)
				},
				deny: func(w *Webhook) error {
					switch {
					case w.State != state.Invalid:
						return lane.ErrNotInvalid
					case w.Unacceptable != "":
						return lane.Denied(w.Unacceptable)
					}
					return nil
				},
				Done: "accepted: its new id is ID", NotDone: "not accepted",
			},
			effect: "usher stores WHAT as it is, as a new webhook with its own id. " +
				"usher delivers it after the webhooks of the tenant that wait, and answers from it " +
				"what the tenant may use.",
			did: "It is accepted, as a new webhook with its own id.",
			Help: "take in webhooks that are invalid, as they are. If the tenant has a newer one, this needs " +
				"--force",
		},
		{
			Name: "pause", On: OnDeliveries, Logged: "deliveries paused by hand", Level: slog.LevelWarn,
			Params: []Param{
				ofTenant,
				ofReceiver,
				{
					Name: "for", Is: duration, Flag: true,
					Label: "For how long (such as 2h; empty: until somebody resumes)",
				},
			},
			do: func(h *Handler, c *call) (any, error) {
				return h.cfg.Inbox.Pause(c.on, c.duration("for"), c.by)
			},
			effect: "usher begins no delivery until the pause ends, also after a restart, and on all " +
				"replicas. Deliveries in progress may finish. Nothing is lost: senders still get 200, " +
				"and webhooks wait in the inbox.",
			offer: func(h *Handler, t target, button *page.Offer) {
				if !h.delivers() || h.pauseOn(t.on) != nil || h.pauseOn(inbox.Pause{}) != nil {
					button.Label = ""
				}
			},
			Means: "Its webhooks wait until the pause ends.", Quiet: true,
			Help: "stop all deliveries until 'resume', also after a restart; --for 2h: until then at the " +
				"latest. --tenant T or --receiver R stops only those",
			Says: says(func(p inbox.Pause, run func(string) string) (string, error) {
				return "paused: " + p.Words() + "; to resume: " + run("usher inbox resume"+p.Flag()), nil
			}),
		},
		{
			Name:   "resume",
			On:     OnDeliveries,
			Params: []Param{ofTenant, ofReceiver},
			Logged: "deliveries resumed by hand",
			Level:  slog.LevelWarn,
			do: func(h *Handler, c *call) (any, error) {
				was, err := h.cfg.Inbox.Resume(c.on, c.by)
				c.note("was_paused", was)
				return Resumed{c.on, was, h.paused()}, err
			},
			offer: func(h *Handler, t target, button *page.Offer) {
				button.Label = onlyIf(h.pauseOn(t.on) != nil, button.Label)
			},
			Means: "Its webhooks are delivered again.",
			did:   "Resumed.",
			Help:  "start them again, with the same flags as 'pause'",
			Says: says(func(r Resumed, _ func(string) string) (string, error) {
				switch what := r.Pause.String(); {
				case r.Was:
					return "resumed: " + what, nil
				case len(r.Paused) > 0:
					return "", errors.New(what + ": not paused, so nothing was resumed; see above what is")
				default:
					return "", errors.New(what + ": not paused")
				}
			}),
		},
		{
			Name: "erase", On: OnTenant, Logged: "tenant erased by hand", Level: slog.LevelWarn,
			do: func(h *Handler, c *call) (any, error) {
				n, err := h.cfg.Inbox.Erase(c.on.Platform, c.on.Tenant, c.by)
				if err == nil || errors.Is(err, inbox.ErrDoubt) { // if it was done, nobody can name the tenant again
					h.recorder.Erase(c.on.Platform, c.on.Tenant)
				}
				of := inbox.TenantRef{Platform: c.on.Platform, Tenant: c.on.Tenant}
				c.on = inbox.Pause{} // it has no page any more
				c.note("webhooks", n)
				return Erased{of, n}, err
			},
			ask:    (*Handler).askErase,
			Means:  "Deletes its webhooks and what usher knows of it. This cannot be undone.",
			Danger: true, did: "The tenant is erased.",
			Help:     "delete a tenant's webhooks and what it may use, and forget it, too; asks first, unless --yes",
			Question: "Erase TENANT: delete all its webhooks, also those that wait, and what it may use?",
			Says: says(func(e Erased, _ func(string) string) (string, error) {
				tenant := inbox.ShowTenant(e.Platform, e.Tenant)
				return tenant + " erased: " + page.Plural(e.Webhooks, "webhook", "webhooks"), nil
			}),
		},
		{
			Name:     "backup",
			Download: true,
			Logged:   "inbox backed up by hand",
			Level:    slog.LevelWarn,
			do:       (*Handler).backup,
			Help: "write a consistent copy of an inbox in a file to a new FILE, while usher runs. " +
				"usher starts on the copy paused",
		},
		{
			Name:   "reconcile",
			Logged: "reconcile began",
			routes: reconcileRoutes,
		},
	}
}

func onlyIf(yes bool, words string) string {
	if yes {
		return words
	}
	return ""
}

// The answers of the API to acts on anything but webhooks.
type (
	// Erased is the answer of POST /api/erase.
	Erased struct {
		inbox.TenantRef
		Webhooks int `json:"webhooks"` // how many were deleted
	}

	// Resumed is the answer of POST /api/resume.
	Resumed struct {
		inbox.Pause
		Was    bool          `json:"was_paused"`
		Paused []inbox.Pause `json:"paused,omitempty"` // the pauses that are still in force
	}
)

// askErase says how much would be deleted.
func (h *Handler) askErase(c *call, question *confirmation) error {
	all, open := 0, 0
	ofTenant := inbox.Filter{Tenant: c.on.Tenant, Platform: &c.on.Platform}
	err := h.cfg.Inbox.Each(c.Context(), ofTenant, false, func(w *lane.Webhook) bool {
		if all++; !w.State.Finished() {
			open++
		}
		return true
	})
	question.Effect = fmt.Sprintf("This deletes %s of this tenant, what it may use, and what usher remembers "+
		"to recognise copies. It can't be undone. usher then answers that it does not know the tenant. "+
		"Nothing changes in the receiver.", page.Plural(all, "webhook", "webhooks"))
	if open > 0 {
		question.Warning = page.Plural(open, "webhook waits, is parked or is invalid: it is",
			"webhooks wait, are parked or are invalid: they are") + " never delivered."
	}
	return err
}
