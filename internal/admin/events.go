package admin

import (
	"fmt"
	"net/http"
	"time"
)

const (
	// maxStreams is how many pages may follow at once; each holds a connection.
	maxStreams = 32

	// lookEvery is how often a stream looks whether something has changed, and
	// tellEvery how often it tells so in any case: times go on.
	lookEvery = time.Second
	tellEvery = 10 * time.Second

	// writePatience is how long a reader may leave an event unread before its
	// connection is closed.
	writePatience = 5 * time.Second
)

// events is a stream of server-sent events that say no more than that something has
// changed: a page that follows asks again for what it shows. Each stream looks by itself, so
// that a slow reader holds up nobody.
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
		_ = control.SetWriteDeadline(time.Now().Add(writePatience)) // w may be no connection, in tests
		_, err := fmt.Fprintf(w, "event: change\ndata: {\"version\":%d}\n\n", n)
		return err == nil && control.Flush() == nil
	}
	seen := h.version()
	if _, err := fmt.Fprint(w, "retry: 2000\n\n"); err != nil || !tell(seen) {
		return
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	told := time.Now()
	for settle := false; ; {
		select {
		case <-r.Context().Done():
			return
		case <-h.closing:
			return
		case <-tick.C:
		}
		now := h.version()
		// Once more after a change: what a try came to is written down shortly after
		// the try itself is counted.
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

// version goes up with whatever a page shows.
func (h *Handler) version() uint64 { return h.acted.Load() + h.cfg.Changes() }

// Close ends the streams: they would keep the port from closing.
func (h *Handler) Close() { h.closeOnce.Do(func() { close(h.closing) }) }
