package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"usher/internal/inbox/store"
	"usher/webhookgate"
)

// inboxTrouble is why the inbox takes nothing in; nil: it does, or there is none.
func (h *Handler) inboxTrouble() error {
	if h.cfg.Inbox == nil {
		return nil
	}
	return h.cfg.Inbox.Err()
}

// What the API answers to actions, for those who call it.
type (
	// Done is the answer of POST /api/webhooks/{id}/redeliver, and of …/discard.
	Done struct {
		ID     string        `json:"id"`
		Paused []store.Pause `json:"paused,omitempty"` // what is not delivered for now; that may be it
	}

	// Named is what an action on a tenant answers: which tenant that was.
	Named struct {
		Platform string `json:"platform"`
		Tenant   string `json:"tenant"`
	}

	// Forgotten is the answer of POST /api/forget.
	Forgotten struct {
		Named
		Forgotten int `json:"forgotten"` // 0: nothing was remembered
	}

	// Erased is the answer of POST /api/erase.
	Erased struct {
		Named
		Webhooks int `json:"webhooks"` // that were deleted
	}

	// Resumed is the answer of POST /api/resume.
	Resumed struct {
		store.Pause
		Was bool `json:"was_paused"`
	}

	// Problem is every answer but a 200.
	Problem struct {
		Error  string   `json:"error"`
		Latest *Webhook `json:"latest,omitempty"` // what a redelivery without force would overwrite
	}
)

// maxRequest bounds the body of a request.
const maxRequest = 64 << 10

// refusal is an error that the caller has made.
type refusal struct {
	status int
	why    string
}

func (e *refusal) Error() string { return e.why }

func badRequest(format string, args ...any) error {
	return &refusal{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// api makes a handler of a func that returns its answer, or why there is none.
func (h *Handler) api(answer func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		if v, err := answer(r); err != nil {
			h.explain(w, r, err)
		} else {
			writeJSON(w, http.StatusOK, v)
		}
	}
}

// explain answers with an error. Here and nowhere else errors become status codes.
func (h *Handler) explain(w http.ResponseWriter, r *http.Request, err error) {
	var refused *refusal
	var overwrite *store.OverwriteError
	switch {
	case errors.As(err, &refused):
		h.refuse(w, r, refused.status, refused.why)
	case errors.Is(err, store.ErrNotFound):
		h.refuse(w, r, http.StatusNotFound, err.Error())
	case errors.As(err, &overwrite):
		latest := bare(&overwrite.Latest)
		h.fail(w, r, http.StatusConflict, Problem{err.Error(), &latest})
	case errors.Is(err, store.ErrFinished), errors.Is(err, store.ErrBusy), errors.Is(err, store.ErrKept), errors.Is(err, store.ErrRefused):
		h.refuse(w, r, http.StatusConflict, err.Error())
	case errors.Is(err, webhookgate.ErrFull):
		h.refuse(w, r, http.StatusServiceUnavailable, err.Error())
	default:
		h.cfg.Log.Error("admin request failed", "path", r.URL.Path, "err", err)
		if trouble := h.inboxTrouble(); trouble != nil {
			h.fail(w, r, http.StatusServiceUnavailable, Problem{Error: trouble.Error()}) // the cause, rather than where it showed
			return
		}
		h.fail(w, r, http.StatusInternalServerError, Problem{Error: err.Error()})
	}
}

func (h *Handler) apiWebhooks(r *http.Request) (any, error) {
	s, err := readSelection(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	if s.kept {
		if _, err := h.inbox(); err != nil {
			return nil, err
		}
	}
	known, err := h.isKnown(s)
	if err != nil {
		return nil, err
	}
	list, err := h.webhooks(s)
	list.Paused = h.paused()
	if err == nil && !known {
		list.Alike, err = h.alike(s.tenant.Tenant)
	}
	return list, err
}

func (h *Handler) apiTenant(r *http.Request) (any, error) {
	query := r.URL.Query()
	platform, code, err := readTenant(query)
	if err == nil && !query.Has("platform") {
		var named Named
		named, err = h.named(target{Tenant: code})
		platform = named.Platform
	}
	if err != nil {
		return nil, err
	}
	return h.tenant(r.Context(), platform, code)
}

func readTenant(query url.Values) (platform, code string, err error) {
	if code = query.Get("code"); code == "" {
		return "", "", badRequest("code is missing: give the tenant's code, and its platform's as platform")
	}
	return query.Get("platform"), code, nil
}

// decodeBody reads a JSON body; an empty one leaves t as it is. Its Content-Type is
// not asked for: what keeps foreign pages out is the check of their origin.
func decodeBody(r *http.Request, t *target) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return unread(err)
	}
	bare := string(bytes.Join(bytes.Fields(body), nil))
	if bare == "" {
		return nil
	}
	// A slip in a name, or a value that a script did not fill in, would otherwise mean everything: {"tenants":"acme"}
	// and {"tenant":""} would pause all deliveries.
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	one := &t
	if err = d.Decode(one); err == nil && *one == nil {
		err = errors.New("it is null")
	}
	if _, end := d.Token(); err == nil && end != io.EOF {
		err = errors.New("something follows it")
	}
	if err == nil && *t == (target{}) && bare != "{}" {
		err = errors.New("it names neither a tenant nor a receiver")
	}
	if err != nil {
		return badRequest(`the body should be JSON, such as {"tenant":"…"}, {"receiver":"…"} or {}: %v`, err)
	}
	return nil
}

// unread is why a body can't be read.
func unread(err error) error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return &refusal{http.StatusRequestEntityTooLarge, "the body is too large"}
	}
	return badRequest("the body can't be read: %v", err)
}

// payload is a body as a JSON value.
func payload(body []byte) json.RawMessage {
	if json.Valid(body) && utf8.Valid(body) {
		return body
	}
	text, _ := json.Marshal(strings.ToValidUTF8(string(body), "\uFFFD")) // a string can always be marshalled
	return text
}

// private are parts of the names of headers that may hold a secret: those that the
// gate knows never came so far, but a sender may have others for the receiver.
var private = []string{"auth", "cookie", "token", "secret", "pass", "signature", "key", "jwt", "session", "credential"}

// shown returns the header without what may be a secret.
func shown(h http.Header) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		normal := strings.ReplaceAll(strings.ToLower(name), "_", "-")
		if normal == "idempotency-key" || !slices.ContainsFunc(private, func(part string) bool { return strings.Contains(normal, part) }) {
			out[name] = values
		}
	}
	return out
}
