package entitlements

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"usher/internal/content"
	"usher/internal/guard"
	"usher/internal/snapshot"
)

// OpenFeature's remote evaluation protocol. Each feature is three flags: its code (may the tenant
// use it?), its code with .limit, and its code with .value.

const (
	limitSuffix = ".limit"
	valueSuffix = ".value"
)

type flagBody struct {
	Key     string `json:"key"`
	Value   any    `json:"value"`
	Reason  string `json:"reason"`
	Variant string `json:"variant"`
}

// newFlag returns the flag of a feature that the suffix names; enabled is false if the tenant does not
// have the feature.
func (a *Answer) newFlag(code, suffix string, f snapshot.Feature, enabled bool) flagBody {
	// STATIC: no rule was evaluated. (With DISABLED, some providers return the program's default, which might let a
	// denied tenant in.)
	flag := flagBody{code + suffix, enabled, "STATIC", "denied"}
	if a.Stale > 0 {
		flag.Reason = "STALE"
	}
	if enabled {
		flag.Variant = "enabled"
	}
	switch {
	case suffix == valueSuffix:
		flag.Value = f.Value
	case suffix == limitSuffix && !enabled:
		flag.Value = 0
	case suffix == limitSuffix && f.Limit == snapshot.Unlimited:
		flag.Value, flag.Variant = int64(snapshot.MaxLimit), "unlimited"
	case suffix == limitSuffix:
		flag.Value, flag.Variant = int64(f.Limit), "limited"
	}
	return flag
}

// evaluate returns a flag of a tenant whose features are known, and whether the feature behind it
// is enabled. A feature with the code users.limit comes before the limit of users.
func (a *Answer) evaluate(key string) (_ flagBody, enabled bool) {
	f, enabled := a.Snapshot.Feature(key)
	if enabled {
		return a.newFlag(key, "", f, true), true
	}
	for _, suffix := range []string{limitSuffix, valueSuffix} {
		if code, ok := strings.CutSuffix(key, suffix); ok && code != "" {
			f, enabled := a.Snapshot.Feature(code)
			return a.newFlag(code, suffix, f, enabled), enabled
		}
	}
	return a.newFlag(key, "", f, false), false
}

// evaluateAll returns the three flags of each feature. Each key occurs once, with the result of evaluate.
func (a *Answer) evaluateAll() []flagBody {
	codes := make(map[string]bool)
	for _, f := range a.Snapshot.Features {
		codes[f.Code] = true
	}
	all := make([]flagBody, 0, 3*len(a.Snapshot.Features))
	for _, f := range a.Snapshot.Features {
		for _, suffix := range []string{"", limitSuffix, valueSuffix} {
			if suffix == "" || !codes[f.Code+suffix] {
				all = append(all, a.newFlag(f.Code, suffix, f, true))
			}
		}
	}
	return all
}

func (h *Handler) flag(w http.ResponseWriter, r *http.Request, to target) (reply, error) {
	tenant, platform, err := readContext(w, r)
	if err != nil {
		return reply{}, err
	}
	a, err := h.cfg.Lookup.last(r.Context(), w, tenant, platform)
	flag, enabled := a.evaluate(*to.feature)
	h.count(err, enabled)
	return reply{http.StatusOK, flag}, err
}

// flags answers with all flags of a tenant, or 304 if the caller already has them.
func (h *Handler) flags(w http.ResponseWriter, r *http.Request, _ target) (reply, error) {
	tenant, platform, err := readContext(w, r)
	if err != nil {
		return reply{}, err
	}
	a, err := h.cfg.Lookup.last(r.Context(), w, tenant, platform)
	// A tenant that is not known has no flags: the program's own defaults apply.
	if err != nil && !errors.Is(err, ErrUnknown) && !errors.Is(err, errFeaturesUnknown) {
		return reply{}, err
	}
	body := guard.Encode(map[string][]flagBody{"flags": a.evaluateAll()})
	sum := sha256.Sum256(body)
	tag := `"` + hex.EncodeToString(sum[:16]) + `"`
	w.Header().Set("ETag", tag)
	for known := range strings.SplitSeq(strings.Join(r.Header.Values("If-None-Match"), ","), ",") {
		if strings.TrimPrefix(strings.TrimSpace(known), "W/") == tag {
			return reply{http.StatusNotModified, nil}, nil
		}
	}
	return reply{http.StatusOK, body}, nil
}

const (
	// maxContext is the largest body of a question, bodyPatience how long it may take to
	// arrive: net/http removes that deadline at the body's end.
	maxContext   = 256 << 10
	bodyPatience = 10 * time.Second
)

// readContext reads which tenant the question is about. It reads a body only in the one way in which
// every program reads it: with a name twice, the caller and usher could mean two different tenants.
func readContext(w http.ResponseWriter, r *http.Request) (tenant string, platform *string, err error) {
	if r.URL.RawQuery != "" || r.URL.ForceQuery {
		// Some providers do not escape the key. Of "a?b" only "a" would remain.
		return "", nil, flagProblem("PARSE_ERROR", "There must be no query. Percent-encode the key.")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxContext))
	if err != nil {
		return "", nil, flagProblem("PARSE_ERROR", "The body is too large, or it ended too early.")
	}
	// Takes back what ServeHTTP has added. The guard may have asked for the connection's end, too.
	if ends := w.Header()["Connection"]; r.ContentLength != 0 && len(ends) > 0 {
		w.Header()["Connection"] = ends[1:]
	}
	value, fault := content.Parse(body)
	request, ok := value.(map[string]any)
	if fault != nil || !ok {
		return "", nil, flagProblem("PARSE_ERROR", "The body must be one JSON object, with no name twice.")
	}
	about, ok := request["context"].(map[string]any)
	if !ok && request["context"] != nil {
		return "", nil, flagProblem("INVALID_CONTEXT", "The context must be an object.")
	}
	tenant, ok = about["targetingKey"].(string)
	switch {
	case !ok && about["targetingKey"] != nil:
		return "", nil, flagProblem("INVALID_CONTEXT", "The targetingKey must be a string: the tenant's code.")
	case tenant == "":
		return "", nil, flagProblem("TARGETING_KEY_MISSING", "The context has no targetingKey: the tenant's code.")
	}
	if named, ok := about["platform"].(string); ok {
		platform = &named
	} else if about["platform"] != nil {
		return "", nil, flagProblem("INVALID_CONTEXT", "The platform must be a string: the platform's code.")
	}
	return tenant, platform, nil
}

func flagProblem(code, message string) error {
	return &problem{status: http.StatusBadRequest, ofrep: code, message: message}
}
