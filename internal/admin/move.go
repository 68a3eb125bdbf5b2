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
	"usher/internal/inbox/store"
)

// Save and restore, and who did what.

// export is GET /api/export: the whole inbox, line by line. If it fails halfway, the answer ends too early for the caller, too.
func (h *Handler) export(w http.ResponseWriter, r *http.Request) {
	if err := h.cfg.Inbox.Err(); err != nil {
		h.explain(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Content-Disposition", `attachment; filename="usher-inbox.jsonl"`)
	if r.Method == http.MethodHead {
		return
	}
	conn := http.NewResponseController(w)
	out := bufio.NewWriterSize(steady{conn, nil, w}, 64<<10)
	n, err := h.cfg.Inbox.Export(r.Context(), out)
	h.did(r, slog.LevelWarn, store.Action{What: "export", Count: n}, "inbox exported by hand", "webhooks", n)
	if err := errors.Join(err, out.Flush()); err != nil {
		h.cfg.Log.Error("an export ended too early", "err", err)
		panic(http.ErrAbortHandler)
	}
	_ = conn.SetWriteDeadline(time.Time{})
}

// stall is how long the other side of an export or of an import may do nothing. A transaction is open meanwhile: that of an export
// keeps the file's log from being used again, and that of an import keeps all webhooks waiting.
const stall = 30 * time.Second

// steady reads or writes as long as the other side goes on.
type steady struct {
	conn *http.ResponseController
	from io.Reader
	to   io.Writer
}

func (s steady) Read(p []byte) (int, error) {
	_ = s.conn.SetReadDeadline(time.Now().Add(stall))
	return s.from.Read(p)
}

func (s steady) Write(p []byte) (int, error) {
	_ = s.conn.SetWriteDeadline(time.Now().Add(stall))
	return s.to.Write(p)
}

// imports is POST /api/import.
func (h *Handler) imports(w http.ResponseWriter, r *http.Request) {
	from := steady{http.NewResponseController(w), r.Body, nil} // it may be larger than other requests
	h.answer(func(r *http.Request) (any, error) {
		skip := r.URL.Query().Get("skip_faulty") == "true"
		done, err := h.cfg.Inbox.Import(r.Context(), from, skip)
		var faulty *store.FaultyError
		switch {
		case errors.As(err, &faulty), errors.Is(err, store.ErrNotEmpty):
			return nil, &refusal{http.StatusConflict, err.Error()}
		case err != nil:
			return nil, err
		}
		h.did(r, slog.LevelWarn, store.Action{What: "import", Count: done.Webhooks}, "inbox imported by hand", "webhooks", done.Webhooks, "snapshots", done.Snapshots)
		return done, nil
	})(w, r)
}

// Actions is the answer of GET /api/actions, and what the page of actions shows.
type Actions struct {
	Actions []store.Action `json:"actions"`
	Next    string         `json:"next,omitempty"` // where the next page begins
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
	all, err := h.cfg.Inbox.Actions(before, limit)
	if err != nil {
		return nil, err
	}
	out := Actions{Actions: append([]store.Action{}, all...)}
	if len(all) == limit {
		out.Next = strconv.FormatInt(all[len(all)-1].ID, 10)
	}
	return &page.Page{Name: "actions", Title: "Actions", Section: "actions", Body: out}, nil
}
