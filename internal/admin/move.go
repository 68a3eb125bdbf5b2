package admin

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"usher/internal/admin/page"
	"usher/internal/inbox"
)

// export is POST /api/export: the whole inbox as lines of JSON. It changes nothing, but a link of any other
// site could make a GET, and the person who is signed in would have taken a file with customers' data. If it
// fails halfway, the connection is cut, so that the caller sees that the export is not complete.
func (h *Handler) export(c *call) (any, error) {
	if err := h.cfg.Inbox.Note(c.by, 0); err != nil { // before anybody gets anything
		if h.cfg.Inbox.Health().Err == nil {
			return nil, err
		}
		// It cannot be written, but it may still be read: of a file that was removed this may be the only
		// way to save what is in it.
		h.cfg.Log.Warn("an export is not stored as an action: the inbox cannot be written", "who", c.by.Who)
	}
	c.w.Header().Set("Content-Type", "application/x-ndjson")
	c.w.Header().Set("Content-Disposition", `attachment; filename="usher-inbox.jsonl"`)
	_ = http.NewResponseController(c.w).Flush() // it streams; see guard.Answers
	n, err := h.cfg.Inbox.Export(c.Context(), c.w)
	if err := h.cfg.Inbox.Note(c.by, n); err != nil {
		h.cfg.Log.Error("cannot store how many webhooks were exported", "webhooks", n, "err", err)
	}
	c.note("webhooks", n)
	if err != nil {
		return broken{err}, nil
	}
	return written{}, nil
}

// All webhooks wait for an import, so it does not wait long for its file: for importPatience, and a
// second for each importRate bytes that have arrived. Its first byte may come later, since nobody waits
// for the import until then.
const (
	beginPatience  = 30 * time.Second
	importPatience = 5 * time.Second
	importRate     = 64 << 10
)

// stream is the body of an import, of any length, or of a part of a reconcile. A read fails if there was
// too much waiting for it.
type stream struct {
	conn   *http.ResponseController
	from   io.Reader
	size   int64 // as far as it was read
	waited time.Duration
}

func (s *stream) Read(p []byte) (int, error) {
	began, patience := time.Now(), beginPatience
	if s.size > 0 {
		patience = importPatience + time.Duration(s.size/importRate)*time.Second - s.waited
	}
	_ = s.conn.SetReadDeadline(began.Add(patience))
	n, err := s.from.Read(p)
	if s.size > 0 {
		s.waited += time.Since(began)
	}
	s.size += int64(n)
	return n, err
}

const tooSlow = "the file arrives too slowly, and all webhooks wait for the import meanwhile, so nothing was " +
	"imported: save it on a machine near usher first"

// imports is POST /api/import. Its body has no limit: it is passed around that of h.answer.
func (h *Handler) imports(c *call) (any, error) {
	from := bufio.NewReaderSize(&stream{conn: http.NewResponseController(c.w), from: c.body}, 256<<10)
	_, _ = from.Peek(1) // the import meets its error
	done, err := h.cfg.Inbox.Import(c.Context(), from, c.by)
	var faulty *inbox.FaultyError
	switch {
	case errors.As(err, &faulty):
		err = &refusal{http.StatusConflict, err.Error()}
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = &refusal{http.StatusConflict, tooSlow}
	}
	c.note("webhooks", done.Webhooks, "snapshots", done.Snapshots)
	return done, err
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
	all, err := h.cfg.Inbox.Actions(r.Context(), before, limit+1)
	if err != nil {
		return nil, err
	}
	out := Actions{Actions: append([]inbox.Action{}, all[:min(len(all), limit)]...)} // [] and not null
	if len(all) > limit {
		out.Next = strconv.FormatInt(all[limit-1].ID, 10)
	}
	return &page.Page{Name: "actions", Title: "Actions", Section: "actions", Body: out}, nil
}
