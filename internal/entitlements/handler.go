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
	// Lookup returns what is known about a tenant. Required.
	Lookup Lookup
	// Hosts says which Host headers are allowed. Required.
	Hosts *guard.Hosts
	// Key returns the key that callers must send, or several separated by commas. Nil: no key
	// is required. A func that returns the empty string lets no caller in.
	Key func() string
	// Checked is called for each question about one feature, with Enabled, Denied or Unknown. It
	// must not block. May be nil.
	Checked func(result string)
	// Log gets a line if nothing can be answered. Required.
	Log *slog.Logger
}

// The results of a question about a feature.
const (
	Enabled = "enabled"
	Denied  = "denied"
	Unknown = "unknown" // the tenant is unknown or ambiguous, or nothing can be read
)

// drainPatience is the time for the rest of a request that is answered before it was read.
// net/http reads that rest, to keep the connection, and would wait for it without a limit.
const drainPatience = 5 * time.Second

// Handler serves the port.
type Handler struct {
	cfg   Config
	quiet rate.Sometimes // callers may ask a thousand times a second: one log line is enough
}

// New returns the handler of the port.
func New(cfg Config) *Handler {
	return &Handler{cfg: cfg, quiet: rate.Sometimes{Interval: 10 * time.Second}}
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A cached answer would keep a customer locked out, or let in.
	w.Header().Set("Cache-Control", "no-store")
	to := parsePath(sentPath(r.URL))
	switch {
	case r.ContentLength == 0:
	case to.ofrep:
		// If it cannot be set (a test's recorder) there is no connection that could stall.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainPatience))
	default:
		// A common mistake: a web server passes on a visitor's Content-Length, but not the body.
		// net/http would wait for that body before it answers, unless the connection is closed
		// afterwards.
		w.Header().Set("Connection", "close")
	}
	a, err := h.answer(w, r, to)
	if err != nil {
		h.problem(w, to, err)
		return
	}
	write(w, a.status, a.body)
}

// An answer is a successful one. Its own headers have already been set.
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

// last returns a tenant's last snapshot.
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

// count counts a question about a feature.
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
		panic(err) // cannot happen: strings, numbers and times only
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // an error means that the caller has gone
}

// seconds writes a duration for a header, in whole seconds; at least 1 unless it is zero.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(d.Seconds())), 10)
}
