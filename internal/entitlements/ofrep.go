package entitlements

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
)

// OpenFeature's remote evaluation protocol. Each feature is three flags: its code (may the tenant
// use it?), its code with .limit, and its code with .value.

type (
	flagBody struct {
		Key     string `json:"key"`
		Value   any    `json:"value"`
		Reason  string `json:"reason"`
		Variant string `json:"variant"`
	}
	flagsBody struct {
		Flags []flagBody `json:"flags"`
	}
)

// static is the reason in all answers: no rule was evaluated. (With DISABLED, some providers return
// the program's default, which might let a denied tenant in.)
const static = "STATIC"

// The variants of flags.
const (
	variantEnabled   = "enabled"
	variantDenied    = "denied"
	variantLimited   = "limited"
	variantUnlimited = "unlimited"
)

func codeFlag(key string, enabled bool) flagBody {
	variant := variantDenied
	if enabled {
		variant = variantEnabled
	}
	return flagBody{key, enabled, static, variant}
}

func limitFlag(key string, f Feature, enabled bool) flagBody {
	switch {
	case !enabled:
		return flagBody{key, 0, static, variantDenied}
	case f.Limit == Unlimited:
		return flagBody{key, int64(MaxLimit), static, variantUnlimited}
	default:
		return flagBody{key, int64(f.Limit), static, variantLimited}
	}
}

func valueFlag(key string, f Feature, enabled bool) flagBody {
	flag := codeFlag(key, enabled)
	flag.Value = f.Value
	return flag
}

const (
	limitSuffix = ".limit"
	valueSuffix = ".value"
)

// evaluate returns a flag of a tenant whose features are known, and whether the feature behind it
// is enabled. A feature with the code users.limit comes before the limit of users.
func evaluate(s Snapshot, key string) (_ flagBody, enabled bool) {
	if _, whole := s.Feature(key); whole {
		return codeFlag(key, true), true
	}
	if code, ok := strings.CutSuffix(key, limitSuffix); ok && code != "" {
		f, enabled := s.Feature(code)
		return limitFlag(key, f, enabled), enabled
	}
	if code, ok := strings.CutSuffix(key, valueSuffix); ok && code != "" {
		f, enabled := s.Feature(code)
		return valueFlag(key, f, enabled), enabled
	}
	return codeFlag(key, false), false
}

// evaluateAll returns the three flags of each feature. Each key occurs once, with the result of
// evaluate.
func evaluateAll(s Snapshot) []flagBody {
	flags := make([]flagBody, 0, 3*s.Len()) // never null
	codes := make(map[string]bool, s.Len())
	for f := range s.Features() {
		codes[f.Code] = true
	}
	for f := range s.Features() {
		flags = append(flags, codeFlag(f.Code, true))
		if key := f.Code + limitSuffix; !codes[key] {
			flags = append(flags, limitFlag(key, f, true))
		}
		if key := f.Code + valueSuffix; !codes[key] {
			flags = append(flags, valueFlag(key, f, true))
		}
	}
	return flags
}

// flag answers with one flag.
func (h *Handler) flag(w http.ResponseWriter, r *http.Request, to target) (answer, error) {
	tenant, platform, err := readContext(w, r)
	if err != nil {
		return answer{}, err
	}
	a, err := h.last(r.Context(), w, tenant, platform)
	if err != nil {
		h.count(err, false)
		return answer{}, err
	}
	flag, enabled := evaluate(a.Snapshot, to.feature)
	h.count(nil, enabled)
	return answer{http.StatusOK, flag}, nil
}

// flags answers with all flags of a tenant, or 304 if the caller already has them.
func (h *Handler) flags(w http.ResponseWriter, r *http.Request) (answer, error) {
	tenant, platform, err := readContext(w, r)
	if err != nil {
		return answer{}, err
	}
	body := flagsBody{[]flagBody{}}
	a, err := h.last(r.Context(), w, tenant, platform)
	switch {
	case errors.Is(err, ErrUnknown), errors.Is(err, errFeaturesUnknown):
		// No flags: the program's own defaults apply.
	case err != nil:
		return answer{}, err
	default:
		body.Flags = evaluateAll(a.Snapshot)
	}
	// A digest of the whole content, so that it changes with it.
	encoded, err := json.Marshal(body)
	if err != nil {
		panic(err) // cannot happen: strings, numbers and booleans only
	}
	sum := sha256.Sum256(encoded)
	tag := `"` + hex.EncodeToString(sum[:16]) + `"`
	w.Header().Set("ETag", tag)
	if knows(r.Header.Values("If-None-Match"), tag) {
		return answer{http.StatusNotModified, nil}, nil
	}
	return answer{http.StatusOK, json.RawMessage(encoded)}, nil
}

// knows reports whether the caller has this tag.
func knows(lists []string, tag string) bool {
	for _, list := range lists {
		for known := range strings.SplitSeq(list, ",") {
			if known = strings.TrimSpace(known); strings.TrimPrefix(known, "W/") == tag {
				return true
			}
		}
	}
	return false
}
