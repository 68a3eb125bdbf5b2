package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"usher/internal/admin/history"
	"usher/internal/admin/metrics"
	"usher/internal/admin/status"
	"usher/internal/entitlements"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/receiver"
)

// Config is what the admin port needs to know.
type Config struct {
	// Hosts says which Host headers are allowed. Health checks answer any, because probes use whatever
	// address the pod has. Required.
	Hosts *guard.Hosts
	// Token returns the tokens that callers must send, except for health checks; see [secret.Tokens]. Nil: no
	// token is required. A func that returns the empty string lets no caller in.
	Token func() string
	// ReadToken returns the tokens of callers that may read, but not act. May be nil.
	ReadToken func() string
	// Health returns what decides whether usher is ready. Each of its parts has a /readyz/NAME. Required.
	Health func() *status.Health
	// Metrics serves /metrics. Required.
	Metrics http.Handler
	// Ports returns the states of the local ports. Nil: outbound is off.
	Ports func() []status.Port
	// Gate returns the state of the webhook gate. Nil: the gate is off.
	Gate func() *status.Gate
	// Receivers are those of the gate. Nil if the gate is off: then only other replicas know them.
	Receivers *receiver.Set
	// Decisions are the last decisions of a gate without an inbox. Nil: the gate is off, or there is an inbox.
	Decisions *Decisions
	// Inbox is nil if there is none.
	Inbox *inbox.Inbox
	// ReadLog is a run of reconcile over the billing service's webhook log; see catchup.CatchUp.Reconcile. Nil: usher does
	// not read it.
	ReadLog func(ctx context.Context, run string, since time.Time, mode lane.ReconcileMode,
		tell func(some []lane.Compared, seen int) error) (*inbox.Run, error)
	// Platforms returns the platforms that have a tenant with this code.
	Platforms func(ctx context.Context, tenant string) ([]string, error)
	// Entitlements returns what a tenant may use. Required with an inbox.
	Entitlements entitlements.Lookup
	// Held returns for how many tenants it can do so without the inbox. Required with the entitlements port.
	Held func() int
	// EntitlementsPort says that there is one.
	EntitlementsPort bool
	// Answers returns how the last questions on that port were answered. Required with it.
	Answers func() metrics.Answers
	// History says how the history is kept, and where notifications go. New sets what the admin port itself knows.
	History history.Config
	// Version is shown on the pages.
	Version string
	// Log gets refused requests and what people do. Required.
	Log *slog.Logger
}

// Handler serves the admin port.
type Handler struct {
	cfg      Config
	recorder *history.Recorder
	making   chan struct{} // holds one value for each answer about a tenant that is being made
	routes   []route
	origin   http.CrossOriginProtection
}

// route is one address of the port.
type route struct {
	path   string           // as it is sent; {id} stands for one segment
	read   http.HandlerFunc // answers GET and HEAD; may be nil
	act    http.HandlerFunc // answers POST; may be nil
	probe  bool             // a health check: answers any Host, and needs no token
	inbox  bool             // needs an inbox
	file   bool             // a download with customers' data: no link of another origin leads to it
	params []string         // the allowed query parameters; nil: none under /api/, any elsewhere
}

// isAPI reports whether a request is for the API, and not for a page.
func isAPI(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/api/") }

// visitor is the sender of a request.
type visitor struct {
	name     string // of the token; may be empty
	readOnly bool   // may not act
}

type visitorKey struct{}

// visitorOf returns the sender of a request that was let in.
func visitorOf(r *http.Request) visitor {
	v, _ := r.Context().Value(visitorKey{}).(visitor)
	return v
}

// nameOf returns who sent a request that was let in: the name of the token or, if it has none, the address.
func nameOf(r *http.Request) string {
	if name := visitorOf(r).name; name != "" {
		return name
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}

var errReadOnly = &refusal{http.StatusForbidden, "this token is read-only: it cannot act"}

var errNoInbox = &refusal{http.StatusNotFound, "this usher has no inbox: USHER_WEBHOOK_INBOX is not set"}

// refusal is an error that the caller made, with its status.
type refusal struct {
	status int
	why    string
}

func badRequest(format string, args ...any) error {
	return &refusal{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// badBody returns the refusal of a body that cannot be read.
func badBody(err error) error {
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return &refusal{http.StatusRequestEntityTooLarge, "the body is too large"}
	}
	return badRequest("the body can't be read: %v", err)
}

// inboxTrouble returns why the inbox takes no webhooks, or nil if it does or there is none. err is what it
// said last: a read may fail before the writer has noticed anything.
func (h *Handler) inboxTrouble(err error) error {
	if h.cfg.Inbox == nil {
		return nil
	}
	if trouble := h.cfg.Inbox.Health().Err; trouble != nil {
		return trouble
	}
	if away, ok := errors.AsType[*engine.AwayError](err); ok {
		return away
	}
	return nil
}

// hasWebhooks reports whether there can be webhooks to show. A replica without a gate shows those of
// the inbox that it shares.
func (h *Handler) hasWebhooks() bool { return h.cfg.Gate != nil || h.cfg.Inbox != nil }

// paused returns the pauses in force.
func (h *Handler) paused() []inbox.Pause {
	if h.cfg.Inbox == nil {
		return nil
	}
	return h.cfg.Inbox.Paused()
}

// pauseOn returns the pause of exactly this tenant or receiver, or of all; nil: there is none.
func (h *Handler) pauseOn(on inbox.Pause) *inbox.Pause {
	paused := h.paused()
	if i := slices.IndexFunc(paused, on.Same); i >= 0 {
		return &paused[i]
	}
	return nil
}

// delivers reports whether this usher, or another replica, delivers what is in the inbox: without a gate
// other replicas have the receivers.
func (h *Handler) delivers() bool {
	return h.cfg.Inbox != nil && (h.cfg.Gate == nil || len(h.cfg.Receivers.All()) > 0)
}
