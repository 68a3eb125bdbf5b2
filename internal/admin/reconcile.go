package admin

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"usher/internal/inbox"
	"usher/internal/lane"
)

// The call of 'usher reconcile' is POST /api/reconcile. The first line of its body says what is asked for. The first
// call begins a run. Then one for each pass carries what the command's program has printed, line by line, and the
// results back, in one stream: a pass that compares, and one that takes in. Only the server can read the lines, because
// it has the schema. Over the billing service's webhook log a pass carries no lines: the server reads it.
type (
	// RunCall is the first line of a call. Without a run it begins one.
	RunCall struct {
		inbox.Pass
		About string    `json:"about,omitempty"` // the flags of the command
		Log   bool      `json:"log,omitempty"`   // over the webhook log
		Since time.Time `json:"since,omitzero"`  // how far back that is read; zero: as far as any
	}

	// RunLine is a line of an answer.
	RunLine struct {
		Run      *inbox.Run     `json:"run,omitempty"`      // the last line of a call
		Known    int            `json:"known,omitempty"`    // how many tenants usher knows when a run begins
		Tenant   *lane.Compared `json:"tenant,omitempty"`   // what came of a line
		Compared int            `json:"compared,omitempty"` // how many tenants the pass has compared so far
		Error    string         `json:"error,omitempty"`    // the last line of a call that failed
	}
)

// linePatience is how long a call waits for the next bytes.
const linePatience = 2 * time.Minute

// A runStream reads the lines of a call, and writes those of its answer.
type runStream struct {
	*http.ResponseController
	*json.Encoder
	body    io.Reader
	lines   *bufio.Reader
	longest int
}

func newRunStream(w http.ResponseWriter, r *http.Request, longest int) *runStream {
	w.Header().Set("Content-Type", "application/x-ndjson")
	s := &runStream{http.NewResponseController(w), json.NewEncoder(w), r.Body, nil, longest}
	s.lines = bufio.NewReaderSize(s, 64<<10)
	return s
}

// Read reads the body, which may come for as long as something of it comes.
func (s *runStream) Read(b []byte) (int, error) {
	_ = s.SetReadDeadline(time.Now().Add(linePatience))
	n, err := s.body.Read(b)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errors.New("the list arrives too slowly")
	case err != nil:
		_ = s.SetReadDeadline(time.Time{}) // from here on net/http watches the connection
	}
	return n, err
}

// next returns the next line, without the space around it. One that is too long is cut off: then it is too long
// still.
func (s *runStream) next() (line []byte, err error) {
	for {
		part, err := s.lines.ReadSlice('\n')
		if len(line) <= s.longest {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return bytes.TrimSpace(line), nil
		default:
			return bytes.TrimSpace(line), err
		}
	}
}

func (s *runStream) send(line RunLine) error {
	if err := s.Encode(line); err != nil {
		return err
	}
	return s.Flush()
}

// reconcile is POST /api/reconcile.
func (h *Handler) reconcile(c *call) error {
	s := newRunStream(c.w, c.Request, h.cfg.Inbox.MaxLine())
	var asked RunCall
	line, err := s.next()
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		err = d.Decode(&asked)
	}
	switch {
	case err != nil:
		return badBody(err)
	case asked.Log && h.cfg.ReadLog == nil:
		return badRequest("usher does not read the billing service's webhook log: set USHER_WEBHOOK_CATCH_UP_URL for it, " +
			"or reconcile with a command that prints the tenants: usher reconcile -- CMD")
	case asked.Run != "":
		h.runPass(s, c.Request, &asked)
		return nil
	}
	var run *inbox.Run
	var known int
	err = h.perform(c, asked.About, func() (err error) {
		if run, known, err = h.cfg.Inbox.BeginRun(c.by); err == nil {
			c.note("run", run.ID)
		}
		return err
	})
	if err == nil {
		_ = s.send(RunLine{Run: run, Known: known}) // an error means that the caller has gone
	}
	return err
}

// runPass is one pass over the lines, or over the log. It reads and writes at the same time.
func (h *Handler) runPass(s *runStream, r *http.Request, pass *RunCall) {
	tell := func(some []lane.Compared, seen int) error {
		for n := range some {
			if err := s.Encode(RunLine{Tenant: &some[n]}); err != nil {
				return err
			}
		}
		return s.send(RunLine{Compared: seen})
	}
	var run *inbox.Run
	var err error
	if pass.Log {
		run, err = h.cfg.ReadLog(r.Context(), pass.Run, pass.Since, pass.Mode, tell)
	} else {
		_ = s.EnableFullDuplex()
		run, err = h.cfg.Inbox.Reconcile(r.Context(), pass.Pass, s.next, tell)
	}
	if err != nil {
		h.cfg.Log.Warn("reconcile failed", "run", pass.Run, "why", err, "who", nameOf(r), "from", r.RemoteAddr)
		_ = s.send(RunLine{Error: err.Error()})
		return
	}
	level := slog.LevelInfo
	if run.Failed != "" || run.Found.Open() > 0 || run.Found[lane.Applied] > 0 {
		level = slog.LevelWarn
	}
	h.cfg.Log.Log(r.Context(), level, "reconciled", "run", run.ID, "failed", run.Failed, "found", run.Found,
		"who", nameOf(r), "from", r.RemoteAddr)
	_ = s.send(RunLine{Run: run})
}

// backup is POST /api/backup: a copy of an inbox in a file. If it fails halfway, the connection is cut: the caller sees
// that the copy is not complete.
func (h *Handler) backup(c *call) error {
	var broken error
	err := h.perform(c, "", func() error {
		copied, size, err := h.cfg.Inbox.Backup(c.Context())
		if err != nil {
			return err
		}
		defer copied.Close()
		if err := h.cfg.Inbox.Note(c.by, 0); err != nil { // before anybody gets anything
			if h.cfg.Inbox.Health().Err == nil {
				return err
			}
			// It cannot be written, and this may be the only way to save it: somebody has removed the file, say.
			h.cfg.Log.Warn("a backup is not stored as an action: the inbox cannot be written", "who", c.by.Who)
		}
		c.w.Header().Set("Content-Type", "application/vnd.sqlite3")
		c.w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		c.note("bytes", size)
		if n, err := io.Copy(c.w, copied); err != nil || n != size {
			broken = fmt.Errorf("%d of %d bytes were sent: %w", n, size, err)
		}
		return nil
	})
	if broken != nil {
		h.cfg.Log.Error("a backup ended too early", "err", broken)
		panic(http.ErrAbortHandler)
	}
	return err
}
