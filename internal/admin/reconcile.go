package admin

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"os"
	"time"

	"usher/internal/inbox"
)

// The call of 'usher reconcile' is POST /api/reconcile. The first one begins a run, and stays open until its end: if it ends earlier, the run
// has failed. Then one more for each pass carries what the command's program has printed, line by line, and the results back, in one stream:
// a pass that compares, and one that takes in. Only the server can read the lines, because it has the schema.
type (
	// RunBegin is the body of the first call.
	RunBegin struct {
		AsOf  time.Time `json:"as_of,omitzero"`
		About string    `json:"about"` // the flags of the command
	}

	// RunLine is a line of an answer.
	RunLine struct {
		Run   string    `json:"run,omitempty"` // the first line of the first call: the run has begun
		Began time.Time `json:"began,omitzero"`
		Known int       `json:"known,omitempty"` // how many tenants usher knows

		Tenant   *inbox.Compared `json:"tenant,omitempty"`   // what came of a line
		Compared int             `json:"compared,omitempty"` // how many tenants the pass has compared so far
		Ended    *inbox.Run      `json:"ended,omitempty"`    // the last line of a pass
		Error    string          `json:"error,omitempty"`    // the last line of a call that failed
	}
)

// runParams are those of a pass: the run, and what inbox.ListOptions and inbox.ApplyOptions say. With apply it takes in.
var runParams = []string{"run", "failed", "partial", "last", "apply"}

// linePatience is how long a pass waits for the next bytes.
const linePatience = 2 * time.Minute

func decodeBody[T any](r *http.Request) (body T, err error) {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err = d.Decode(&body); err != nil {
		err = badBody(err)
	}
	return body, err
}

// A runStream writes the lines of an answer.
type runStream struct {
	*json.Encoder
	conn *http.ResponseController
}

func newRunStream(w http.ResponseWriter) *runStream {
	w.Header().Set("Content-Type", "application/x-ndjson")
	return &runStream{json.NewEncoder(w), http.NewResponseController(w)}
}

func (s *runStream) send(line RunLine) error {
	if err := s.Encode(line); err != nil {
		return err
	}
	return s.conn.Flush()
}

func reconcileRoutes(h *Handler, a *Act) []route {
	return []route{{path: "/api/reconcile", params: runParams, inbox: true, act: func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("run") != "" {
			h.runPass(w, r)
			return
		}
		h.beginRun(&call{Request: r, w: w, act: a})
	}}}
}

// beginRun is POST /api/reconcile without a run.
func (h *Handler) beginRun(c *call) {
	w, r := c.w, c.Request
	body, err := decodeBody[RunBegin](r)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	var run *inbox.Run
	var known int
	err = h.perform(c, body.About, func() (err error) {
		if run, known, err = h.cfg.Inbox.BeginRun(body.AsOf, c.by); err == nil {
			c.note("run", run.ID)
		}
		return err
	})
	if err != nil {
		h.fail(w, r, err)
		return
	}
	out := newRunStream(w)
	_ = out.conn.SetReadDeadline(time.Time{}) // that of the body, which has arrived
	err = out.send(RunLine{Run: run.ID, Began: run.Began, Known: known})
	for beat := time.NewTicker(inbox.RunBeat); err == nil; {
		select {
		case <-beat.C:
			switch err = h.cfg.Inbox.KeepRun(run.ID); {
			case errors.Is(err, inbox.ErrNoRun):
				_ = out.send(RunLine{Error: err.Error()})
				return
			case err != nil: // in an outage of the database the passes fail, not this
				err = nil
			}
			_, err = w.Write([]byte("\n"))
			_ = out.conn.Flush()
		case <-r.Context().Done():
			err = r.Context().Err()
		}
	}
	h.abortRun(r, run.ID, "'usher reconcile' was ended before the run was")
}

// abortRun ends a run that has not ended yet.
func (h *Handler) abortRun(r *http.Request, run, why string) {
	err := h.cfg.Inbox.AbortRun(run, why)
	if !errors.Is(err, inbox.ErrNoRun) {
		h.did(r, nil, slog.LevelWarn, "reconcile failed", "run", run, "why", why)
	}
}

// runPass is one pass over the lines. It reads and writes at the same time.
func (h *Handler) runPass(w http.ResponseWriter, r *http.Request) {
	query, out := r.URL.Query(), newRunStream(w)
	_ = out.conn.EnableFullDuplex()
	buffered := bufio.NewWriterSize(w, 32<<10) // thousands of tenants may differ
	out.Encoder = json.NewEncoder(buffered)
	answered := false
	tell := func(c *inbox.Compared) error { answered = true; return out.Encode(RunLine{Tenant: c}) }
	lines := readLines(out.conn, r.Body, h.cfg.Inbox.MaxLine())
	var run *inbox.Run
	var err error
	if apply := query.Get("apply"); apply == "" {
		run, err = h.cfg.Inbox.CompareList(r.Context(), query.Get("run"), inbox.ListOptions{
			Failed: query.Get("failed"), Partial: query.Get("partial") == "true", Last: query.Get("last") == "true", Tell: tell,
			Batch: func(n int) {
				answered = true
				_ = out.Encode(RunLine{Compared: n})
				_ = buffered.Flush()
				_ = out.conn.Flush()
			},
		}, lines)
	} else {
		run, err = h.cfg.Inbox.ApplyList(r.Context(), query.Get("run"), inbox.ApplyOptions{None: apply == "none", Store: apply == "store", Failed: query.Get("failed"), Tell: tell}, lines)
	}
	if err != nil {
		why := err.Error()
		if r.Context().Err() != nil {
			why = "'usher reconcile' was ended before the run was"
		}
		h.abortRun(r, query.Get("run"), why)
		if !answered {
			h.fail(w, r, err)
			return
		}
		_ = out.Encode(RunLine{Error: why})
		_ = buffered.Flush()
		return
	}
	level, s := slog.LevelInfo, run.Summary
	if run.Failed != "" || s.Left.Count() > 0 || s.Applied > 0 {
		level = slog.LevelWarn
	}
	if !run.Ended.IsZero() {
		h.did(r, nil, level, "reconcile ended", "run", run.ID, "complete", run.Complete, "failed", run.Failed,
			"equal", s.Equal, "differs", s.Differs, "new", s.New, "twin", s.Twin, "changed", s.Changed, "unlisted", s.Unlisted, "applied", s.Applied)
	}
	_ = out.Encode(RunLine{Ended: run})
	_ = buffered.Flush()
}

// readLines reads lines, each without the space around it. One that is too long is cut off: then it is too long still.
func readLines(conn *http.ResponseController, body io.Reader, longest int) iter.Seq2[[]byte, error] {
	in := bufio.NewReaderSize(body, 64<<10)
	return func(yield func([]byte, error) bool) {
		for {
			var line []byte
			_ = conn.SetReadDeadline(time.Now().Add(linePatience))
			part, err := in.ReadSlice('\n')
			for ; errors.Is(err, bufio.ErrBufferFull); part, err = in.ReadSlice('\n') {
				if len(line) <= longest {
					line = append(line, part...)
				}
				_ = conn.SetReadDeadline(time.Now().Add(linePatience))
			}
			if len(line) <= longest {
				line = append(line, part...)
			}
			if err != nil && !errors.Is(err, io.EOF) {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					err = errors.New("the list arrives too slowly")
				}
				yield(nil, err)
				return
			}
			if err != nil {
				_ = conn.SetReadDeadline(time.Time{}) // from here on net/http watches the connection
			}
			if line = bytes.TrimSpace(line); len(line) > 0 && !yield(line, nil) || err != nil {
				return
			}
		}
	}
}
