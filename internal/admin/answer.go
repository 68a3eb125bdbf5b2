package admin

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"usher/internal/admin/page"
	"usher/internal/admin/status"
	"usher/internal/guard"
	"usher/internal/inbox"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
)

// Problem is the body of every answer of the API that is not a 200.
type Problem struct {
	Error  string   `json:"error"`
	Latest *Webhook `json:"latest,omitempty"` // the newer webhook that the action would overwrite without force
}

// maxRequest limits the body of a request.
const maxRequest = 64 << 10

// redirect is an answer that leads to another page.
type redirect string

// answer makes a handler from a func that returns an answer or an error. A *[page.Page] is drawn, or, for the
// API, its Body is written as JSON. A *confirmation is drawn as a page, a redirect leads to another page, and
// everything else is written as JSON.
func (h *Handler) answer(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		answer, err := do(r)
		if err != nil {
			h.fail(w, r, err)
			return
		}
		if c, asks := answer.(*confirmation); asks {
			answer = &page.Page{Name: "confirm", Status: c.status, Title: c.Question, Section: "webhooks", Body: c}
		}
		switch v := answer.(type) {
		case list:
			h.writeList(w, r, v)
		case written:
		case broken:
			h.cfg.Log.Error("an answer ended too early", "path", r.URL.Path, "err", v.error)
			panic(http.ErrAbortHandler)
		case redirect:
			http.Redirect(w, r, string(v), http.StatusSeeOther)
		case *page.Page:
			if isAPI(r) {
				guard.WriteJSON(w, http.StatusOK, v.Body)
				return
			}
			v.Version = h.cfg.Version
			paused := slices.Clone(h.paused())
			slices.SortFunc(paused, func(a, b inbox.Pause) int { return a.Since.Compare(b.Since) })
			for _, p := range paused {
				v.Paused = append(v.Paused, page.Paused{Pause: p, Offers: h.offers(target{on: p}, OnDeliveries)})
			}
			if v.Live {
				v.Notice = noticeOf(r.URL.Query().Get("did"))
			}
			h.draw(w, r, v)
		default:
			guard.WriteJSON(w, http.StatusOK, v)
		}
	}
}

// few makes a few answers at a time, however many people ask: a tenant may have so many features that what
// its answer is made from takes many times the answer's size. None waits for its reader meanwhile.
func (h *Handler) few(next func(*http.Request) (any, error)) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		select {
		case h.making <- struct{}{}:
			defer func() { <-h.making }()
			return next(r)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	})
}

// written is an answer that is written already.
type written struct{}

// broken is why an answer that has begun cannot be completed. The connection is cut, so that the caller sees
// that it is not complete.
type broken struct{ error }

// list is an answer that may be very long: it is written while it is made, and never in memory as a whole.
type list struct {
	name string // of the member that has the elements
	// each writes all elements, and returns an object with the other members. It may end without an error
	// before all are written, if write returned one.
	each func(write func(any) error) (rest any, err error)
}

func (h *Handler) writeList(w http.ResponseWriter, r *http.Request, l list) {
	out := bufio.NewWriterSize(w, 32<<10)
	var one bytes.Buffer
	enc := json.NewEncoder(&one)
	enc.SetEscapeHTML(false)
	count := 0
	begin := func() {
		if count++; count == 1 {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(out, "{%q:[", l.name)
		} else {
			_ = out.WriteByte(',') // Flush has the error
		}
	}
	rest, err := l.each(func(element any) error {
		begin()
		one.Reset()
		if err := enc.Encode(element); err != nil {
			return err
		}
		_, err := out.Write(bytes.TrimSpace(one.Bytes()))
		return err
	})
	if err != nil && count == 0 {
		h.fail(w, r, err)
		return
	}
	if count == 0 {
		begin()
	}
	others, bad := json.Marshal(rest)
	if err = cmp.Or(err, bad); err == nil {
		_ = out.WriteByte(']')
		if len(others) > len("{}") {
			_, _ = out.WriteString("," + string(others[1:]))
		} else {
			_ = out.WriteByte('}')
		}
		err = out.Flush()
	}
	if err != nil {
		h.cfg.Log.Error("an answer ended too early", "path", r.URL.Path, "err", err)
		panic(http.ErrAbortHandler)
	}
}

// with makes a handler that first reads its input from the request.
func with[T any](
	h *Handler, read func(*http.Request) (T, error), do func(*http.Request, T) (any, error),
) http.HandlerFunc {
	return h.answer(func(r *http.Request) (any, error) {
		input, err := read(r)
		if err != nil {
			return nil, err
		}
		return do(r, input)
	})
}

func (h *Handler) draw(w http.ResponseWriter, r *http.Request, p *page.Page) {
	p.HasWebhooks, p.HasInbox, p.ReadOnly = h.hasWebhooks(), h.cfg.Inbox != nil, visitorOf(r).readOnly
	if err := page.Write(w, p); err != nil {
		h.cfg.Log.Error("cannot show a page", "err", err)
		guard.WriteJSON(w, http.StatusInternalServerError, Problem{Error: "cannot show the page: " + err.Error()})
	}
}

// hasWebhooks reports whether there can be webhooks to show. A replica without a gate shows those of
// the inbox that it shares.
func (h *Handler) hasWebhooks() bool { return h.cfg.Gate != nil || h.cfg.Inbox != nil }

// noticeOf returns what a page says after an action. The parameter did of the page's address has the key, not
// the text: nobody can make a page say something else with a link.
func noticeOf(did string) string {
	if did == "nothing" {
		return "Nothing was done: no webhook matches any more."
	}
	for _, a := range Acts {
		switch {
		case did == a.Name:
			return a.did
		case a.ByFilter() && did == a.Name+"-all":
			return a.didAll
		}
	}
	return ""
}

// refusal is an error that the caller made, with its status.
type refusal struct {
	status int
	why    string
}

func (e *refusal) Error() string { return e.why }

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

// fail answers with an error. It is the only place where errors become status codes.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	if refused, ok := errors.AsType[*refusal](err); ok {
		h.refuse(w, r, refused.status, refused.why)
		return
	}
	if overwrite, ok := errors.AsType[*lane.OverwriteError](err); ok {
		h.writeProblem(w, r, http.StatusConflict, Problem{
			Error:  err.Error(),
			Latest: new(newWebhook(overwrite.Latest)),
		})
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
