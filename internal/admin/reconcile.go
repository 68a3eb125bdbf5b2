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
	"net/url"
	"os"
	"strconv"
	"time"

	"usher/internal/inbox"
	"usher/internal/lane"
)

// The call of 'usher reconcile' is POST /api/reconcile. The first one begins a run, and stays open until its
// end: if it ends earlier, the run has failed. Then one more for each pass carries what the command's program
// has printed, line by line, and the results back, in one stream: a pass that compares, and one that takes
// in. Only the server can read the lines, because it has the schema.
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

		Tenant   *lane.Compared `json:"tenant,omitempty"`   // what came of a line
		Compared int            `json:"compared,omitempty"` // how many tenants the pass has compared so far
		Ended    *lane.Run      `json:"ended,omitempty"`    // the last line of a pass
		Error    string         `json:"error,omitempty"`    // the last line of a call that failed
	}
)

// passParams are the parameters of the call of a pass.
var passParams = []string{"run", "apply", "failed", "partial", "last"}

// PassQuery returns them.
func PassQuery(p inbox.Pass) url.Values {
	partial, last := strconv.FormatBool(p.Partial), strconv.FormatBool(p.Last)
	return url.Values{"run": {p.Run}, "apply": {p.Apply}, "failed": {p.Failed}, "partial": {partial}, "last": {last}}
}

func passOf(q url.Values) inbox.Pass {
	partial, last := q.Get("partial") == "true", q.Get("last") == "true"
	return inbox.Pass{Run: q.Get("run"), Apply: q.Get("apply"), Failed: q.Get("failed"), Partial: partial, Last: last}
}

// linePatience is how long a pass waits for the next bytes.
const linePatience = 2 * time.Minute

// A runStream writes the lines of an answer.
type runStream struct {
	*json.Encoder
	buffer *bufio.Writer // thousands of tenants may differ
	conn   *http.ResponseController
}

func newRunStream(w http.ResponseWriter) *runStream {
	w.Header().Set("Content-Type", "application/x-ndjson")
	buffer := bufio.NewWriterSize(w, 32<<10)
	return &runStream{json.NewEncoder(buffer), buffer, http.NewResponseController(w)}
}

func (s *runStream) flush() error {
	if err := s.buffer.Flush(); err != nil {
		return err
	}
	return s.conn.Flush()
}

func (s *runStream) send(line RunLine) error {
	if err := s.Encode(line); err != nil {
		return err
	}
	return s.flush()
}

func reconcileRoutes(h *Handler, a *Act) []route {
	post := func(w http.ResponseWriter, r *http.Request) {
		if pass := passOf(r.URL.Query()); pass.Run != "" {
			h.runPass(w, r, pass)
			return
		}
		h.beginRun(&call{Request: r, w: w, act: a})
	}
	return []route{{path: "/api/reconcile", params: passParams, inbox: true, act: post}}
}

// beginRun is POST /api/reconcile without a run.
func (h *Handler) beginRun(c *call) {
	w, r := c.w, c.Request
	var body RunBegin
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil {
		h.fail(w, r, badBody(err))
		return
	}
	var run *lane.Run
	var known int
	err := h.perform(c, body.About, func() (err error) {
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
	for beat := time.NewTicker(lane.RunBeat); err == nil; {
		select {
		case <-beat.C:
			switch err = h.cfg.Inbox.KeepRun(run.ID); {
			case errors.Is(err, inbox.ErrNoRun):
				_ = out.send(RunLine{Error: err.Error()})
				return
			case err != nil: // in an outage of the database the passes fail, not this
				err = nil
			}
			_ = out.buffer.WriteByte('\n') // flush says whether it could
			err = out.flush()
		case <-r.Context().Done():
			err = r.Context().Err()
		}
	}
	h.abortRun(r, run.ID, endedEarly)
}

const endedEarly = "'usher reconcile' was ended before the run was"

// abortRun ends a run that has not ended yet.
func (h *Handler) abortRun(r *http.Request, run, why string) {
	err := h.cfg.Inbox.AbortRun(run, why)
	if !errors.Is(err, inbox.ErrNoRun) {
		h.did(r, nil, slog.LevelWarn, "reconcile failed", "run", run, "why", why)
	}
}

// runPass is one pass over the lines. It reads and writes at the same time.
func (h *Handler) runPass(w http.ResponseWriter, r *http.Request, pass inbox.Pass) {
	out, answered := newRunStream(w), false
	_ = out.conn.EnableFullDuplex()
	lines := readLines(&patientReader{r.Body, out.conn}, h.cfg.Inbox.MaxLine())
	run, err := h.cfg.Inbox.Reconcile(r.Context(), pass, lines, func(some []lane.Compared, seen int) error {
		answered = true
		for n := range some {
			if err := out.Encode(RunLine{Tenant: &some[n]}); err != nil {
				return err
			}
		}
		return out.send(RunLine{Compared: seen})
	})
	switch {
	case err == nil:
	case r.Context().Err() != nil:
		h.abortRun(r, pass.Run, endedEarly)
		return
	case !answered:
		h.abortRun(r, pass.Run, err.Error())
		h.fail(w, r, err)
		return
	default:
		h.abortRun(r, pass.Run, err.Error())
		_ = out.send(RunLine{Error: err.Error()})
		return
	}
	if !run.Ended.IsZero() {
		level, s := slog.LevelInfo, run.Summary
		if run.Failed != "" || s.Left.Count() > 0 || s.Applied > 0 {
			level = slog.LevelWarn
		}
		h.did(r, nil, level, "reconcile ended", "run", run.ID, "complete", run.Complete, "failed", run.Failed,
			"equal", s.Equal, "differs", s.Differs, "new", s.New, "twin", s.Twin, "changed", s.Changed,
			"unlisted", s.Unlisted, "applied", s.Applied)
	}
	_ = out.send(RunLine{Ended: run})
}

// A patientReader reads the body of a pass, which may come for as long as something of it comes.
type patientReader struct {
	body io.Reader
	conn *http.ResponseController
}

func (p *patientReader) Read(b []byte) (int, error) {
	_ = p.conn.SetReadDeadline(time.Now().Add(linePatience))
	n, err := p.body.Read(b)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errors.New("the list arrives too slowly")
	case err != nil:
		_ = p.conn.SetReadDeadline(time.Time{}) // from here on net/http watches the connection
	}
	return n, err
}

// readLines reads lines, each without the space around it. One that is too long is cut off: then it is too
// long still.
func readLines(body io.Reader, longest int) iter.Seq2[[]byte, error] {
	in := bufio.NewReaderSize(body, 64<<10)
	return func(yield func([]byte, error) bool) {
		for {
			var line []byte
			part, err := in.ReadSlice('\n')
			for ; errors.Is(err, bufio.ErrBufferFull); part, err = in.ReadSlice('\n') {
				if len(line) <= longest {
					line = append(line, part...)
				}
			}
			if len(line) <= longest {
				line = append(line, part...)
			}
			if err != nil && !errors.Is(err, io.EOF) {
				yield(nil, err)
				return
			}
			if !yield(bytes.TrimSpace(line), nil) || err != nil {
				return
			}
		}
	}
}
