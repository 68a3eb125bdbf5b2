package admin

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"usher/internal/inbox"
)

// The calls of 'usher reconcile'. The command runs a program that asks the billing service, and sends what it prints here, some hundred
// lines at once: only the server has the schema. Nothing of a run is in memory between two calls.
type (
	// RunBegun is the answer of POST /api/reconcile/begin.
	RunBegun struct {
		Run   string    `json:"run"`
		Began time.Time `json:"began"`
		Known int       `json:"known"` // how many tenants usher knows
	}

	// RunBegin is its body.
	RunBegin struct {
		AsOf  time.Time `json:"as_of,omitzero"`
		About string    `json:"about"` // the flags of the command
	}

	// RunLines is the answer of POST /api/reconcile/compare and POST /api/reconcile/apply: one element for each line of the body.
	RunLines struct {
		Lines []RunLine `json:"lines"`
	}

	// RunLine is what came of a line.
	RunLine struct {
		inbox.Compared
		Error string `json:"error,omitempty"` // why it was not taken in; those after it were not tried
	}

	// RunKnown is the answer of POST /api/reconcile/known: tenants whose last snapshot is older than the run, in the order of their codes.
	RunKnown struct {
		Tenants []inbox.TenantRef `json:"tenants"`
		More    bool              `json:"more"`
	}

	// RunEnded is the answer of POST /api/reconcile/end.
	RunEnded struct {
		Partial bool `json:"partial,omitempty"` // see inbox.Inbox.EndRun
	}

	// RunEnd is its body.
	RunEnd struct {
		Complete bool          `json:"complete"`
		Failed   string        `json:"failed,omitempty"`
		Summary  inbox.Summary `json:"summary"`
	}
)

const (
	// maxRunLines is how many lines one call compares or applies, and maxRunBytes how many bytes they have.
	maxRunLines = 500
	maxRunBytes = 32 << 20
	// runKnownPage is how many tenants a call returns.
	runKnownPage = 2000
)

func (h *Handler) reconcileRoutes() []route {
	run := []string{"run"}
	return []route{
		{path: "/api/reconcile/begin", act: h.answer(h.beginRun), params: []string{}, inbox: true},
		{path: "/api/reconcile/compare", act: h.runLines(h.compareLines), params: []string{"run", "settle"}, inbox: true},
		{path: "/api/reconcile/apply", act: h.runLines(h.applyLines), params: []string{"run", "no_deliver"}, inbox: true},
		{path: "/api/reconcile/known", act: h.answer(h.knownBefore), params: append(run, "platform", "tenant"), inbox: true},
		{path: "/api/reconcile/end", act: h.answer(h.endRun), params: run, inbox: true},
	}
}

func decodeBody[T any](r *http.Request) (body T, err error) {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err = d.Decode(&body); err != nil {
		err = badBody(err)
	}
	return body, err
}

func (h *Handler) beginRun(r *http.Request) (any, error) {
	body, err := decodeBody[RunBegin](r)
	if err != nil {
		return nil, err
	}
	run, known, err := h.cfg.Inbox.BeginRun(body.AsOf, asked(r, "reconcile", body.About))
	if err != nil {
		return nil, err
	}
	h.did(r, nil, slog.LevelInfo, "reconcile began", "run", run.ID)
	return RunBegun{run.ID, run.Began, known}, nil
}

// runLines makes a handler of a func that gets the lines of the body. They may be more than the body of any other call has.
func (h *Handler) runLines(do func(r *http.Request, run string, lines [][]byte) ([]inbox.Compared, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		from := &stream{conn: http.NewResponseController(w), from: http.MaxBytesReader(w, r.Body, maxRunBytes)}
		h.answer(func(r *http.Request) (any, error) {
			lines, err := readLines(from)
			if err != nil {
				return nil, err
			}
			all, err := do(r, r.URL.Query().Get("run"), lines)
			if err != nil {
				return nil, err
			}
			out := RunLines{Lines: make([]RunLine, len(all))}
			for n, c := range all {
				out.Lines[n].Compared = c
				if c.Err != nil {
					out.Lines[n].Error = c.Err.Error()
				}
			}
			return out, nil
		})(w, r)
	}
}

func readLines(from io.Reader) (lines [][]byte, err error) {
	in := bufio.NewReaderSize(from, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			lines = append(lines, line)
		}
		switch {
		case len(lines) > maxRunLines:
			return nil, badRequest("the body has more than %d lines", maxRunLines)
		case errors.Is(err, io.EOF):
			return lines, nil
		case err != nil:
			return nil, badBody(err)
		}
	}
}

func (h *Handler) compareLines(r *http.Request, run string, lines [][]byte) ([]inbox.Compared, error) {
	return h.cfg.Inbox.Compare(r.Context(), run, lines, r.URL.Query().Get("settle") == "true")
}

func (h *Handler) applyLines(r *http.Request, run string, lines [][]byte) ([]inbox.Compared, error) {
	noDeliver := r.URL.Query().Get("no_deliver") == "true"
	all, err := h.cfg.Inbox.Apply(r.Context(), run, lines, noDeliver)
	applied := 0
	for _, c := range all {
		if c.Applied {
			applied++
		}
	}
	if applied > 0 || err != nil {
		h.did(r, err, slog.LevelWarn, "reconcile took in what the billing service says", "run", run, "tenants", applied, "no_deliver", noDeliver)
	}
	return all, err
}

func (h *Handler) knownBefore(r *http.Request) (any, error) {
	query := r.URL.Query()
	all, err := h.cfg.Inbox.KnownBefore(r.Context(), query.Get("run"), inbox.TenantRef{Platform: query.Get("platform"), Tenant: query.Get("tenant")}, runKnownPage)
	if err != nil {
		return nil, err
	}
	return RunKnown{Tenants: append([]inbox.TenantRef{}, all...), More: len(all) == runKnownPage}, nil
}

func (h *Handler) endRun(r *http.Request) (any, error) {
	body, err := decodeBody[RunEnd](r)
	if err != nil {
		return nil, err
	}
	run := r.URL.Query().Get("run")
	partial, err := h.cfg.Inbox.EndRun(run, body.Complete, body.Failed, body.Summary)
	level := slog.LevelInfo
	if body.Failed != "" || body.Summary.Left.Count() > 0 {
		level = slog.LevelWarn
	}
	s := body.Summary
	h.did(r, err, level, "reconcile ended", "run", run, "complete", body.Complete, "partial", partial, "failed", body.Failed,
		"equal", s.Equal, "differs", s.Differs, "new", s.New, "twin", s.Twin, "changed", s.Changed, "unlisted", s.Unlisted, "applied", s.Applied)
	return RunEnded{partial}, err
}
