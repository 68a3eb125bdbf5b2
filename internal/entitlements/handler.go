package entitlements

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/time/rate"

	"usher/internal/guard"
)

// Config is what the port needs to know.
type Config struct {
	// Lookup says what is known of a tenant. Required.
	Lookup Lookup
	// Hosts says which Host headers are answered. Required.
	Hosts *guard.Hosts
	// Key returns what callers must know, one of several separated by commas; nil when
	// no key is demanded. One that returns the empty string lets nobody in.
	Key func() string
	// Checked is told of each question about one feature and what came of it, one of
	// Enabled, Denied and Unknown. It must not block; nil is not told.
	Checked func(result string)
	// Log is told when nothing can be answered. Required.
	Log *slog.Logger
}

// What comes of a question about a feature.
const (
	Enabled = "enabled"
	Denied  = "denied"
	Unknown = "unknown" // nobody knows: the tenant is unknown or ambiguous, or nothing can be read
)

// drainPatience is for the rest of a request that is answered unread. net/http reads
// it, to keep the connection, and would wait for it as long as it takes.
const drainPatience = 5 * time.Second

// Handler serves the port.
type Handler struct {
	cfg   Config
	quiet rate.Sometimes // a shop asks a thousand times a second: its log needs one line
}

// New returns the handler of the port.
func New(cfg Config) *Handler {
	return &Handler{cfg: cfg, quiet: rate.Sometimes{Interval: 10 * time.Second}}
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Whoever keeps an answer keeps a customer locked out, or in.
	w.Header().Set("Cache-Control", "no-store")
	to := parsePath(sentPath(r.URL))
	switch {
	case r.ContentLength == 0:
	case to.ofrep:
		// Where it can't be set (a test's recorder) there is no connection to hold up.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainPatience))
	default:
		// A web server that passes a visitor's Content-Length on, and not what it counts,
		// is a common slip. net/http would wait for that body before it answers, unless
		// the connection is not to be used again.
		w.Header().Set("Connection", "close")
	}
	a, err := h.answer(w, r, to)
	if err != nil {
		h.problem(w, to, err)
		return
	}
	write(w, a.status, a.body)
}

// An answer is one that is no error. Headers of its own are set by then.
type answer struct {
	status int
	body   any // nil for none
}

func (h *Handler) answer(w http.ResponseWriter, r *http.Request, to target) (answer, error) {
	if err := h.guard(r, to); err != nil {
		return answer{}, err
	}
	if err := to.serves(r.Method); err != nil {
		return answer{}, err
	}
	switch to.page {
	case checkPage:
		return h.check(w, r)
	case tenantPage:
		return h.tenant(w, r, to)
	case featurePage:
		return h.feature(w, r, to)
	case flagPage:
		return h.flag(w, r, to)
	case flagsPage:
		return h.flags(w, r)
	default:
		return answer{}, notFound(to)
	}
}

// last returns what a tenant may use by its last snapshot.
func (h *Handler) last(ctx context.Context, w http.ResponseWriter, tenant string, platform *string) (Answer, error) {
	a, err := h.cfg.Lookup(ctx, tenant, platform)
	if err != nil {
		return Answer{}, err
	}
	if a.Stale > 0 {
		w.Header().Set("Usher-Stale", seconds(a.Stale))
	}
	if !a.Snapshot.Known() {
		return Answer{}, errFeaturesUnknown
	}
	return a, nil
}

// count is called for each question about a feature, and nowhere else.
func (h *Handler) count(err error, enabled bool) {
	if h.cfg.Checked == nil {
		return
	}
	switch {
	case err != nil:
		h.cfg.Checked(Unknown)
	case enabled:
		h.cfg.Checked(Enabled)
	default:
		h.cfg.Checked(Denied)
	}
}

func (h *Handler) problem(w http.ResponseWriter, to target, err error) {
	p := problemOf(err)
	if p.code == codeNotReady && !errors.Is(err, context.Canceled) {
		h.quiet.Do(func() { h.cfg.Log.Warn("entitlements cannot be answered", "error", err) })
	}
	p.write(w, to)
}

func write(w http.ResponseWriter, status int, body any) {
	if body == nil {
		w.WriteHeader(status)
		return
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		panic(err) // strings, numbers and times only: can't happen
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // a caller that has gone is not told, and that is all
}

// seconds writes a duration as headers have it; what is not zero is one at least.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(d.Seconds())), 10)
}
