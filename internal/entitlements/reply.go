package entitlements

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"usher/internal/guard"
	"usher/internal/snapshot"
)

// Config is what the port needs to know.
type Config struct {
	Lookup  Lookup       // what is known about a tenant
	Changes Changes      // what has changed, for programs that keep a copy
	Hosts   *guard.Hosts // the Host headers that are allowed
	// Key returns the key that callers must send, or several separated by commas. Nil: no key
	// is required. A func that returns the empty string lets no caller in.
	Key func() string
	// Checked is called for each question about one feature, with its result: enabled, denied, or unknown
	// if there is no answer. May be nil.
	Checked func(result string)
	// Answered is called for each question of a caller that may ask, about one feature or all, with the time
	// that it took. ok is false if usher could not answer (503). May be nil.
	Answered func(took time.Duration, ok bool)
	Told     func(changes int) // is called with the number of changes in an answer; may be nil
	Log      *slog.Logger      // gets a line if nothing can be answered
}

// Handler serves the port.
type Handler struct {
	cfg   Config
	quiet rate.Sometimes // callers may ask a thousand times a second: one log line is enough
}

// A reply is an answer with a 2xx or a 304. Headers of its own are already set.
type reply struct {
	status int
	body   any // nil for none
}

// unanswered reports whether err says that usher cannot answer now. A caller that hung up did not wait for the answer.
func unanswered(err error) bool {
	return err != nil && !errors.Is(err, context.Canceled) && problemOf(err).code == notReady
}

// target is what the path of a request asks for.
type target struct {
	serve func(*Handler, http.ResponseWriter, *http.Request, target) (reply, error) // nil for an unknown path
	// changes: the path is /v1/changes. It is no question about a tenant, and may wait for long.
	changes bool
	check   bool // the path is /v1/check
	ofrep   bool // the path is below /ofrep/, and errors have the form of that protocol
	tenant  string
	feature *string // a feature, or the key of a flag; nil if the path has none
}

const (
	checkPath  = "/v1/check"
	tenantPath = "/v1/entitlements/"
	flagsPath  = "/ofrep/v1/evaluate/flags"
)

// unescape returns a code. A code is not empty, and valid UTF-8.
func unescape(s string) (code string, ok bool) {
	code, err := url.PathUnescape(s)
	return code, err == nil && code != "" && utf8.ValidString(code)
}

// readQuery returns the parameters. It refuses unknown ones: they are typing errors (quantiy), or the
// rest of a code that was not escaped, and then the question would be about another tenant
// ("tenant=acme&co"). It also refuses a parameter that occurs twice.
func readQuery(r *http.Request, known ...string) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("The query cannot be read. Percent-encode the values.")
	}
	for name, v := range values {
		switch {
		case !slices.Contains(known, name):
			return nil, badRequest("Unknown query parameter. Use " + strings.Join(known, ", ") +
				", and percent-encode the values.")
		case len(v) > 1:
			return nil, badRequest("The query parameter " + name + " is given twice.")
		case !utf8.ValidString(v[0]):
			return nil, badRequest("The query parameter " + name + " is not UTF-8.")
		}
	}
	return values, nil
}

// optional returns a parameter, which may be empty, or nil if it is missing.
func optional(params url.Values, name string) *string {
	if v := params[name]; len(v) > 0 {
		return &v[0]
	}
	return nil
}

// last returns the last snapshot of a tenant, whose features must be known, and sets Usher-Stale if it may be outdated.
func (l Lookup) last(ctx context.Context, w http.ResponseWriter, tenant string, platform *string) (Answer, error) {
	a, err := l(ctx, tenant, platform)
	if err != nil {
		return Answer{}, err
	}
	if a.Stale > 0 {
		w.Header().Set("Usher-Stale", guard.Seconds(a.Stale))
	}
	if !a.Snapshot.Known {
		return Answer{}, errFeaturesUnknown
	}
	return a, nil
}

// count reports the result of a question about one feature.
func (h *Handler) count(err error, enabled bool) {
	result := "denied"
	if err != nil {
		result = "unknown"
	} else if enabled {
		result = "enabled"
	}
	if h.cfg.Checked != nil {
		h.cfg.Checked(result)
	}
}

// respond writes an answer, or the problem that err is.
func respond(w http.ResponseWriter, to target, a reply, err error) {
	// A cached answer would keep a customer locked out, or let in.
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		p := problemOf(err)
		if p.code == notReady {
			w.Header().Set("Retry-After", guard.Seconds(time.Second))
		}
		switch {
		case !to.ofrep:
			a = reply{p.status, map[string]map[string]string{"error": {"code": p.code, "message": p.message}}}
		case p.status == http.StatusConflict: // the protocol has no 409
			a = reply{http.StatusBadRequest, flagError{to.feature, p.ofrep, p.message}}
		default:
			a = reply{p.status, flagError{to.feature, p.ofrep, p.message}}
		}
	}
	if a.body == nil {
		w.WriteHeader(a.status)
		return
	}
	guard.WriteJSON(w, a.status, a.body)
}

// A problem is any answer except a yes or the requested data.
type problem struct {
	status      int
	code, ofrep string // its code under /v1, and in OFREP
	message     string
}

func (p *problem) Error() string { return p.message }

const (
	notReady = "NOT_READY"
	general  = "GENERAL" // OFREP's code for all that has none of its own
)

// problemOf turns errors into answers. This is the only table that does. An unknown error is
// NOT_READY: a store that fails must never become a "no".
func problemOf(err error) *problem {
	var made *problem
	switch {
	case errors.As(err, &made):
		return made
	case errors.Is(err, ErrUnknown):
		return &problem{http.StatusNotFound, "TENANT_UNKNOWN", "FLAG_NOT_FOUND", "Unknown tenant: " + err.Error() + "."}
	case errors.Is(err, errFeaturesUnknown):
		return &problem{http.StatusNotFound, "FEATURES_UNKNOWN", "FLAG_NOT_FOUND",
			"Unknown features: " + err.Error() + "."}
	case errors.Is(err, snapshot.ErrCursorUnknown):
		return &problem{http.StatusGone, "CURSOR_UNKNOWN", general,
			"This inbox cannot go on from this cursor. Begin without one, then delete all tenants that were " +
				"in none of its pages."}
	case errors.Is(err, snapshot.ErrNoCursor):
		return badRequest("The query parameter after is not a cursor. Use the cursor of the last page.").(*problem)
	case errors.Is(err, snapshot.ErrTooManyWait):
		return &problem{http.StatusServiceUnavailable, notReady, general,
			"Too many callers wait for changes here. Ask without wait, or try again."}
	case errors.As(err, new(*AmbiguousError)):
		return &problem{http.StatusConflict, "AMBIGUOUS", "INVALID_CONTEXT", "Ambiguous: " + err.Error() + "."}
	default: // the error itself is only logged: it may contain names of files and servers
		return &problem{http.StatusServiceUnavailable, notReady, general, "Not ready: the inbox cannot be read."}
	}
}

func badRequest(message string) error {
	return &problem{http.StatusBadRequest, "BAD_REQUEST", general, message}
}

// denied returns the answer no, with the reason.
func denied(message string) error {
	return &problem{http.StatusForbidden, "DENIED", general, message}
}

// flagError is an error in the form of OFREP.
type flagError struct {
	Key     *string `json:"key,omitempty"` // missing if the question was about all flags
	Code    string  `json:"errorCode"`
	Details string  `json:"errorDetails"`
}

const changesPath = "/v1/changes"
