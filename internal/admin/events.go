package admin

import (
	"fmt"
	"net/http"
	"time"
)

const (
	// maxStreams is how many streams may be open at once. Each holds a connection.
	maxStreams = 32

	// pollEvery is how often a stream checks whether something has changed. tellEvery is how often it sends an event even if nothing has:
	// pages show times such as "5 s ago".
	pollEvery = time.Second
	tellEvery = 10 * time.Second

	// writePatience is how long a reader may leave an event unread before its connection is closed.
	writePatience = 5 * time.Second
)

// events is GET /api/events: a stream of server-sent events. An event says only that something has changed; the page then loads its
// content again. Each stream polls on its own, so that a slow reader does not delay the others.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	select {
	case h.streams <- struct{}{}:
		defer func() { <-h.streams }()
	default:
		w.Header().Set("Retry-After", "10")
		h.refuse(w, r, http.StatusServiceUnavailable, "too many open pages and streams: close some")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	control := http.NewResponseController(w)
	tell := func(n uint64) bool {
		_ = control.SetWriteDeadline(time.Now().Add(writePatience)) // fails only for a test's recorder
		_, err := fmt.Fprintf(w, "event: change\ndata: {\"version\":%d}\n\n", n)
		return err == nil && control.Flush() == nil
	}
	seen := h.changes()
	if _, err := fmt.Fprint(w, "retry: 2000\n\n"); err != nil || !tell(seen) {
		return
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	told := time.Now()
	for settle := false; ; {
		select {
		case <-r.Context().Done():
			return
		case <-h.closing.Done():
			return
		case <-tick.C:
		}
		now := h.changes()
		// One more event after a change: the result of a try is stored shortly after the try is counted.
		if now != seen || settle || time.Since(told) >= tellEvery {
			if !tell(now) {
				return
			}
			told = time.Now()
		}
		settle = now != seen
		seen = now
	}
}

// changes returns a number that grows with everything that a page shows.
func (h *Handler) changes() uint64 { return h.acted.Load() + h.cfg.Changes() }

// Close ends the streams, which would keep the port from closing.
func (h *Handler) Close() { h.close() }
