package admin

import (
	"fmt"
	"io"
	"strconv"
)

// backup is POST /api/backup: a copy of an inbox in a file. If it fails halfway, the connection is cut: the caller sees
// that the copy is not complete.
func (h *Handler) backup(c *call) (any, error) {
	copied, size, err := h.cfg.Inbox.Backup(c.Context())
	if err != nil {
		return nil, err
	}
	defer copied.Close()
	if err := h.cfg.Inbox.Note(c.by, 0); err != nil { // before anybody gets anything
		if h.cfg.Inbox.Health().Err == nil {
			return nil, err
		}
		// It cannot be written, and this may be the only way to save it: somebody has removed the file, say.
		h.cfg.Log.Warn("a backup is not stored as an action: the inbox cannot be written", "who", c.by.Who)
	}
	c.w.Header().Set("Content-Type", "application/vnd.sqlite3")
	c.w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	c.note("bytes", size)
	if n, err := io.Copy(c.w, copied); err != nil || n != size {
		return broken{fmt.Errorf("%d of %d bytes were sent: %w", n, size, err)}, nil
	}
	return written{}, nil
}
