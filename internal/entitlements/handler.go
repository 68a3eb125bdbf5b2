package entitlements

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
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
	// Lookup returns what is known about a tenant. Required.
	Lookup Lookup
	// Changes returns what has changed, for programs that keep a copy. Required.
	Changes Changes
	// Hosts says which Host headers are allowed. Required.
	Hosts *guard.Hosts
	// Key returns the key that callers must send, or several separated by commas. Nil: no key
	// is required. A func that returns the empty string lets no caller in.
	Key func() string
	// Checked is called for each question about one feature, with its result: enabled, denied, or unknown
	// if there is no answer. It must not block. May be nil.
	Checked func(result string)
	// Answered is called for each question of a caller that may ask, about one feature or all, with the time
	// that it took. ok is false if usher could not answer (503). It must not block. May be nil.
	Answered func(took time.Duration, ok bool)
	// Told is called with the number of changes in an answer. It must not block. May be nil.
	Told func(changes int)
	// Log gets a line if nothing can be answered. Required.
	Log *slog.Logger
}

// Handler serves the port.
type Handler struct {
	cfg   Config
	quiet rate.Sometimes // callers may ask a thousand times a second: one log line is enough
}

// New returns the handler of the port.
func New(cfg Config) http.Handler {
	return &Handler{cfg: cfg, quiet: rate.Sometimes{Interval: 10 * time.Second}}
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to := parsePath(guard.SentPath(r.URL))
	if r.ContentLength != 0 {
		// net/http would wait for the whole body before it answers, without a limit, unless the connection
		// is closed afterwards. (A common mistake: a web server passes on a visitor's Content-Length, but
		// not the body.) readContext, which reads the body, keeps the connection.
		patience := time.Now().Add(bodyPatience)
		_ = http.NewResponseController(w).SetReadDeadline(patience) // fails only without a connection
		w.Header().Add("Connection", "close")
	}
	a, err := h.answer(w, r, to)
	if unanswered(err) {
		h.quiet.Do(func() { h.cfg.Log.Warn("entitlements cannot be answered", "error", err) })
	}
	respond(w, to, a, err)
}

// An answer is a successful one. Headers of its own are already set.
type answer struct {
	status int
	body   any // nil for none
}

func (h *Handler) answer(w http.ResponseWriter, r *http.Request, to target) (answer, error) {
	if err := h.guard(w, r, to); err != nil {
		return answer{}, err
	}
	if to.serve == nil {
		usage := tenantPath + "TENANT, " + tenantPath + "TENANT/FEATURE, " +
			checkPath + ", " + changesPath + " or " + flagsPath +
			". Percent-encode the codes; a slash inside a code is %2F."
		if to.ofrep {
			usage = flagsPath + " or " + flagsPath + "/KEY."
		}
		return answer{}, &problem{http.StatusNotFound, "NOT_FOUND", general, "Not found. Use " + usage}
	}
	allow, ok := "GET, HEAD", r.Method == http.MethodGet || r.Method == http.MethodHead
	if to.ofrep {
		allow, ok = "POST", r.Method == http.MethodPost
	}
	if !ok {
		w.Header().Set("Allow", allow)
		return answer{}, &problem{http.StatusMethodNotAllowed, "METHOD_REFUSED", general, "Use " + allow + " here."}
	}
	begin := time.Now()
	a, err := to.serve(h, w, r, to)
	if h.cfg.Answered != nil && !to.changes {
		h.cfg.Answered(time.Since(begin), !unanswered(err))
	}
	return a, err
}

// unanswered reports whether err says that usher cannot answer now. A caller that hung up did not wait for the answer.
func unanswered(err error) bool {
	return err != nil && !errors.Is(err, context.Canceled) && problemOf(err).code == notReady
}

// guard returns why a request may not pass, or nil. It reads nothing of the body.
//
// A web server asks /v1/check for each of its visitors, and may send the visitor's own headers.
// So headers of a browser do not count there, and Authorization is the visitor's if the web
// server sends its own key in X-Usher-Key.
func (h *Handler) guard(w http.ResponseWriter, r *http.Request, to target) error {
	switch {
	case guard.Refused(r.Method):
		return &problem{http.StatusMethodNotAllowed, "METHOD_REFUSED", general,
			r.Method + " is not allowed on this port."}
	case !h.cfg.Hosts.Allowed(r.Host):
		return &problem{http.StatusMisdirectedRequest, "HOST_REFUSED", general,
			"This Host is not allowed: call the port by its address, or add the name to USHER_ALLOWED_HOSTS."}
	case !to.check && guard.FromBrowser(r.Header):
		return &problem{http.StatusForbidden, "BROWSER_REFUSED", general,
			"This call comes from a web page. Browsers are refused here: ask from your server."}
	case h.cfg.Key != nil && !knowsKey(r.Header, to, h.cfg.Key()):
		if !to.check { // nginx would pass it on, and the visitor's browser would ask for usher's key
			w.Header().Set("WWW-Authenticate", `Bearer realm="usher"`)
		}
		return &problem{http.StatusUnauthorized, "KEY_REQUIRED", general,
			"The key of this port is missing or wrong: send it as 'Authorization: Bearer KEY', " +
				"as the password of Basic authentication, or as 'X-Usher-Key: KEY'."}
	}
	return nil
}

// knowsKey reports whether the caller sent one of the keys, which are separated by commas.
func knowsKey(h http.Header, to target, keys string) bool {
	if to.ofrep && guard.HasKey(http.Header{guard.KeyHeader: h["X-Api-Key"]}, keys) {
		return true
	}
	if own := h[guard.KeyHeader]; to.check && own != nil {
		h = http.Header{guard.KeyHeader: own}
	}
	return guard.HasKey(h, keys)
}

// target is what the path of a request asks for.
type target struct {
	serve func(*Handler, http.ResponseWriter, *http.Request, target) (answer, error) // nil for an unknown path
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

// parsePath splits a path as it was sent, and then unescapes its parts, since a code may contain a
// slash. It cleans nothing: ".." is a code like any other.
func parsePath(path string) target {
	to := target{ofrep: strings.HasPrefix(path, "/ofrep/")}
	switch {
	case path == checkPath:
		to.check, to.serve = true, (*Handler).check
	case path == changesPath:
		to.changes, to.serve = true, (*Handler).changes
	case path == flagsPath:
		to.serve = (*Handler).flags
	case strings.HasPrefix(path, flagsPath+"/"):
		// The whole rest is the key: some providers escape a slash in it, others do not.
		if key, ok := unescape(path[len(flagsPath)+1:]); ok {
			to.serve, to.feature = (*Handler).flag, &key
		}
	case strings.HasPrefix(path, tenantPath):
		codes := strings.Split(path[len(tenantPath):], "/")
		for i := range codes {
			var ok bool
			if codes[i], ok = unescape(codes[i]); !ok {
				return to
			}
		}
		switch len(codes) {
		case 2:
			to.feature = &codes[1]
			fallthrough
		case 1:
			to.serve, to.tenant = (*Handler).entitlements, codes[0]
		}
	}
	return to
}

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
func respond(w http.ResponseWriter, to target, a answer, err error) {
	// A cached answer would keep a customer locked out, or let in.
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		p := problemOf(err)
		if p.code == notReady {
			w.Header().Set("Retry-After", guard.Seconds(time.Second))
		}
		switch {
		case !to.ofrep:
			a = answer{p.status, map[string]map[string]string{"error": {"code": p.code, "message": p.message}}}
		case p.status == http.StatusConflict: // the protocol has no 409
			a = answer{http.StatusBadRequest, flagError{to.feature, p.ofrep, p.message}}
		default:
			a = answer{p.status, flagError{to.feature, p.ofrep, p.message}}
		}
	}
	switch body := a.body.(type) {
	case nil:
		w.WriteHeader(a.status)
	case list:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(a.status)
		_ = body.write(w) // an error means that the caller has gone, or gets another answer
	default:
		guard.WriteJSON(w, a.status, a.body)
	}
}

// A list is a body that may be large. It is written item by item: as a whole it would take many times its size.
type list struct {
	before string // the beginning of a JSON object, up to the list
	items  iter.Seq[any]
	after  string // the rest of the object, and a line end
}

func (l list) write(w io.Writer) (err error) {
	var piece bytes.Buffer
	enc := json.NewEncoder(&piece)
	enc.SetEscapeHTML(false)
	piece.WriteString(l.before + "[")
	first := true
	for item := range l.items {
		if !first {
			piece.WriteByte(',')
		}
		first = false
		_ = enc.Encode(item)            // strings, numbers and booleans can always be written
		piece.Truncate(piece.Len() - 1) // the line end
		if piece.Len() >= 4<<10 {
			if _, err = piece.WriteTo(w); err != nil {
				return err
			}
		}
	}
	piece.WriteString("]" + l.after)
	_, err = piece.WriteTo(w)
	return err
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

// statusOf returns the status of an error's answer; zero for no error.
func statusOf(err error) int {
	if err == nil {
		return 0
	}
	return problemOf(err).status
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
