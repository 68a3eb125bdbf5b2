package admin

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"usher/internal/admin/page"
	"usher/internal/inbox"
)

// export is POST /api/export: the whole inbox as lines of JSON. It changes nothing, but a link of any other site could make a GET, and
// the person who is signed in would have taken a file with customers' data. If it fails halfway, the connection is cut, so that the caller
// sees that the export is not complete.
func (h *Handler) export(w http.ResponseWriter, r *http.Request) {
	if err := h.cfg.Inbox.Err(); err != nil {
		h.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Content-Disposition", `attachment; filename="usher-inbox.jsonl"`)
	by := asked(r, "export", "")
	if err := h.cfg.Inbox.Note(by, 0); err != nil { // before anybody gets anything
		h.fail(w, r, err)
		return
	}
	conn := http.NewResponseController(w)
	out := bufio.NewWriterSize(stream{conn, nil, w}, 64<<10)
	n, err := h.cfg.Inbox.Export(r.Context(), out)
	h.did(r, nil, slog.LevelWarn, "inbox exported by hand", "webhooks", n)
	if err := h.cfg.Inbox.Note(by, n); err != nil {
		h.cfg.Log.Error("cannot store how many webhooks were exported", "webhooks", n, "err", err)
	}
	if err := errors.Join(err, out.Flush()); err != nil {
		h.cfg.Log.Error("an export ended too early", "err", err)
		panic(http.ErrAbortHandler)
	}
	_ = conn.SetWriteDeadline(time.Time{})
}

// stall is how long the other side of an export or an import may do nothing. A transaction is open meanwhile: that of an export keeps
// SQLite from reusing its log file, and that of an import makes all webhooks wait.
const stall = 30 * time.Second

// stream reads or writes without a limit in all, but fails if the other side does nothing for as long as stall.
type stream struct {
	conn *http.ResponseController
	from io.Reader
	to   io.Writer
}

func (s stream) Read(p []byte) (int, error) {
	_ = s.conn.SetReadDeadline(time.Now().Add(stall))
	return s.from.Read(p)
}

func (s stream) Write(p []byte) (int, error) {
	_ = s.conn.SetWriteDeadline(time.Now().Add(stall))
	return s.to.Write(p)
}

// imports is POST /api/import. Its body has no limit: it is passed around that of h.answer.
func (h *Handler) imports(w http.ResponseWriter, r *http.Request) {
	from := stream{http.NewResponseController(w), r.Body, nil}
	h.answer(func(r *http.Request) (any, error) {
		query := r.URL.Query()
		done, err := h.cfg.Inbox.Import(r.Context(), from, inbox.ImportOptions{SkipFaulty: query.Get("skip_faulty") == "true", Replace: query.Get("replace") == "true", By: asked(r, "import", "")})
		h.did(r, err, slog.LevelWarn, "inbox imported by hand", "webhooks", done.Webhooks, "snapshots", done.Snapshots)
		var faulty *inbox.FaultyError
		switch {
		case errors.As(err, &faulty), errors.Is(err, inbox.ErrNotEmpty):
			return nil, &refusal{http.StatusConflict, err.Error()}
		case err != nil:
			return nil, err
		}
		return done, nil
	})(w, r)
}

// Actions is the answer of GET /api/actions, and the page of actions: what people did.
type Actions struct {
	Actions []inbox.Action `json:"actions"`
	Next    string         `json:"next,omitempty"` // the parameter before of the next page
}

func (h *Handler) actions(r *http.Request) (_ any, err error) {
	query := r.URL.Query()
	var before int64
	if text := query.Get("before"); text != "" {
		if before, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, badRequest("before is %q, but should be a number", text)
		}
	}
	limit := 100
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxPage {
			return nil, badRequest("limit is %q, but should be a number from 1 to %d", text, maxPage)
		}
	}
	all, err := h.cfg.Inbox.Actions(before, limit+1)
	if err != nil {
		return nil, err
	}
	out := Actions{Actions: append([]inbox.Action{}, all[:min(len(all), limit)]...)} // [] and not null
	if len(all) > limit {
		out.Next = strconv.FormatInt(all[limit-1].ID, 10)
	}
	return &page.Page{Name: "actions", Title: "Actions", Section: "actions", Body: out}, nil
}
