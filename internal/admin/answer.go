package admin

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"usher/internal/admin/page"
	"usher/internal/admin/status"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/view"
	"usher/webhookgate"
)

// Problem is the body of every answer of the API that is not a 200.
type Problem struct {
	Error string `json:"error"`
}

// lines is an answer in lines of JSON, each written as it is made and never in memory as a whole. The last line has
// the view.End.
type lines func(write func(any) error) (view.End, error)

// answer makes a handler from a func that returns an answer or an error. A *[page.Page] is drawn, a redirect leads to
// another page, lines are written one by one, and everything else is written as JSON.
func (h *Handler) answer(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := do(r)
		if err != nil {
			h.fail(w, r, err)
			return
		}
		switch v := answer.(type) {
		case lines:
			h.writeLines(w, r, v)
		case redirect:
			http.Redirect(w, r, string(v), http.StatusSeeOther)
		case *page.Page:
			h.draw(w, r, v)
		default:
			guard.WriteJSON(w, http.StatusOK, v)
		}
	}
}

// few makes a few answers at a time, however many people ask: a tenant may have so many features that what
// its answer is made from takes many times the answer's size. None waits for its reader meanwhile.
func (h *Handler) few(next func(*http.Request) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		select {
		case h.making <- struct{}{}:
			defer func() { <-h.making }()
			return next(r)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

func (h *Handler) writeLines(w http.ResponseWriter, r *http.Request, l lines) {
	out := bufio.NewWriterSize(w, 32<<10)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	begun := false
	write := func(line any) error {
		if !begun {
			w.Header().Set("Content-Type", "application/x-ndjson")
			begun = true
		}
		return enc.Encode(line)
	}
	end, err := l(write)
	if err != nil && !begun {
		h.fail(w, r, err)
		return
	}
	if err != nil { // the status is sent already, so the last line says it
		h.cfg.Log.Error("an answer ended too early", "path", r.URL.Path, "err", err)
		end.Error = cmp.Or(h.inboxTrouble(err), err).Error()
	}
	_ = write(map[string]view.End{"end": end}) // an error means that the caller has gone
	_ = out.Flush()
}

func (h *Handler) draw(w http.ResponseWriter, r *http.Request, p *page.Page) {
	p.Version, p.HasWebhooks, p.HasInbox, p.ReadOnly = h.cfg.Version, h.hasWebhooks(), h.cfg.Inbox != nil, visitorOf(r).readOnly
	if err := page.Write(w, p); err != nil {
		h.cfg.Log.Error("cannot show a page", "err", err)
		guard.WriteJSON(w, http.StatusInternalServerError, Problem{Error: "cannot show the page: " + err.Error()})
	}
}

func (e *refusal) Error() string { return e.why }

// fail answers with an error. It is the only place where errors become status codes.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	if refused, ok := errors.AsType[*refusal](err); ok {
		h.refuse(w, r, refused.status, refused.why)
		return
	}
	if _, ok := errors.AsType[*lane.OverwriteError](err); ok {
		h.refuse(w, r, http.StatusConflict, err.Error())
		return
	}
	if _, ok := errors.AsType[lane.Denied](err); ok {
		h.refuse(w, r, http.StatusConflict, err.Error())
		return
	}
	switch {
	case errors.Is(err, inbox.ErrNotFound):
		h.refuse(w, r, http.StatusNotFound, err.Error())
	case errors.Is(err, webhookgate.ErrFull):
		h.refuse(w, r, http.StatusServiceUnavailable, err.Error())
	case r.Context().Err() != nil && r.Method != http.MethodPost:
		// The reader has gone, so its reading was cut off: the inbox has no trouble.
	default:
		h.cfg.Log.Error("admin request failed", "path", r.URL.Path, "err", err)
		if trouble := h.inboxTrouble(err); trouble != nil {
			// The cause says more than err.
			h.writeProblem(w, r, http.StatusServiceUnavailable, Problem{Error: trouble.Error()})
			return
		}
		h.writeProblem(w, r, http.StatusInternalServerError, Problem{Error: err.Error()})
	}
}

func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	h.cfg.Log.Info("admin request refused", "method", r.Method, "status", status, "why", why, "from", r.RemoteAddr)
	h.writeProblem(w, r, status, Problem{Error: why})
}

// failure is the page of an answer that is not a 200.
type failure struct {
	Status   int
	Why      string
	Troubles []status.Trouble // of the inbox, if it cannot be used now
}

// writeProblem answers with a page for people, and with JSON for programs.
func (h *Handler) writeProblem(w http.ResponseWriter, r *http.Request, code int, problem Problem) {
	if strings.Contains(r.Header.Get("Accept"), "text/html") && !isAPI(r) {
		f := failure{Status: code, Why: problem.Error}
		if code == http.StatusServiceUnavailable {
			f.Troubles = h.cfg.Health().Troubles()
		}
		h.draw(w, r, &page.Page{Name: "failure", Status: code, Title: http.StatusText(code), Body: f})
		return
	}
	guard.WriteJSON(w, code, problem)
}
