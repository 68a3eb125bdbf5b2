package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"usher/internal/admin/page"
	"usher/internal/inbox/store"
	"usher/webhookgate"
)

// Problem is every answer of the API but a 200.
type Problem struct {
	Error  string   `json:"error"`
	Latest *Webhook `json:"latest,omitempty"` // what a redelivery without force would overwrite
}

// maxRequest bounds the body of a request.
const maxRequest = 64 << 10

// goTo is an answer that leads to another page.
type goTo string

// answer makes a handler of a func that returns its answer, or why there is none. A [page.Page] is drawn, unless the API is asked
// for its body; a confirmation is a page, too; goTo leads to another page; and all else is written as JSON.
func (h *Handler) answer(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		answer, err := do(r)
		if err != nil {
			h.explain(w, r, err)
			return
		}
		if c, asks := answer.(*confirmation); asks {
			answer = &page.Page{Name: "confirm", Status: c.status, Title: c.Question, Section: "webhooks", Body: c}
		}
		switch v := answer.(type) {
		case goTo:
			http.Redirect(w, r, string(v), http.StatusSeeOther)
		case *page.Page:
			if isAPI(r) {
				writeJSON(w, http.StatusOK, v.Body)
				return
			}
			v.Version, v.Paused = h.cfg.Version, slices.SortedFunc(slices.Values(h.paused()), func(a, b store.Pause) int { return a.Since.Compare(b.Since) })
			if v.Live && v.Notice == "" {
				v.Notice = notices[r.URL.Query().Get("did")]
			}
			if err := h.draw(w, r, v); err != nil {
				h.explain(w, r, fmt.Errorf("the page can't be drawn: %w", err))
			}
		default:
			writeJSON(w, http.StatusOK, v)
		}
	}
}

// with is such a handler that first reads what it is asked for.
func with[T any](h *Handler, read func(*http.Request) (T, error), do func(*http.Request, T) (any, error)) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		asked, err := read(r)
		if err != nil {
			return nil, err
		}
		return do(r, asked)
	})
}

func (h *Handler) draw(w http.ResponseWriter, r *http.Request, shell *page.Page) error {
	shell.HasWebhooks, shell.HasInbox, shell.ReadOnly = h.hasWebhooks(), h.cfg.Inbox != nil, visitorOf(r).looks
	return page.Write(w, shell)
}

// hasWebhooks says whether there can be some to show: a replica without a gate shows those of the inbox that it shares.
func (h *Handler) hasWebhooks() bool { return h.cfg.Gate != nil || h.cfg.Inbox != nil }

// notices say what was done just now; it is named in the address, never written there.
var notices = map[string]string{
	"redeliver":      "It is being sent again.",
	"redeliver-all":  "They are being sent again.",
	"discard":        "It is discarded.",
	"accept":         "It is accepted, as a new webhook with its own id.",
	"discard-all":    "They are discarded.",
	"nothing":        "Nothing was done: no such webhook is left.",
	"resume":         "Deliveries go on.",
	"resume-held":    "Resumed. Another pause still holds these deliveries back.",
	"forget":         "Forgotten: the tenant's next webhook is delivered whatever it says.",
	"forget-nothing": "There was nothing to forget about this tenant.",
	"erase":          "The tenant is erased.",
}

// refusal is an error that the caller has made.
type refusal struct {
	status int
	why    string
}

func (e *refusal) Error() string { return e.why }

func badRequest(format string, args ...any) error {
	return &refusal{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// unread is why a body can't be read.
func unread(err error) error {
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return &refusal{http.StatusRequestEntityTooLarge, "the body is too large"}
	}
	return badRequest("the body can't be read: %v", err)
}

// explain answers with an error. Here and nowhere else errors become status codes.
func (h *Handler) explain(w http.ResponseWriter, r *http.Request, err error) {
	if refused, ok := errors.AsType[*refusal](err); ok {
		h.refuse(w, r, refused.status, refused.why)
		return
	}
	if overwrite, ok := errors.AsType[*store.OverwriteError](err); ok {
		latest := bare(&overwrite.Latest)
		h.fail(w, r, http.StatusConflict, Problem{err.Error(), &latest})
		return
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		h.refuse(w, r, http.StatusNotFound, err.Error())
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

func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	h.cfg.Log.Info("admin request refused", "method", r.Method, "status", status, "why", why, "from", r.RemoteAddr)
	h.fail(w, r, status, Problem{Error: why})
}

// fail answers with a problem: people get a page, programs JSON.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, status int, problem Problem) {
	if strings.Contains(r.Header.Get("Accept"), "text/html") && !isAPI(r) {
		err := h.draw(w, r, &page.Page{Name: "failure", Status: status, Title: http.StatusText(status), Body: map[string]any{"Status": status, "Why": problem.Error}})
		if err == nil {
			return
		}
		h.cfg.Log.Error("page can't be drawn", "err", err)
	}
	writeJSON(w, status, problem)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // a payload is shown as it came
	_ = e.Encode(v)        // the reader may be gone; nothing to do about it
}
