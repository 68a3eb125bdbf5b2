package inbox

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"usher/internal/inbox/engine"
)

// health is the state of the database, as the writer sees it.
type health struct {
	mu           sync.Mutex
	err          error     // why the last transaction failed; nil: it was committed
	failingSince time.Time // when the outage began: a first transaction that failed; zero: there is none
	txBegan      time.Time // when the current transaction began; zero: none runs
	everWritten  bool      // a transaction was committed since the start
	openedAt     time.Time // when the first of them began, or the first after the last outage
	broken       bool      // there was a BrokenError
}

// outagePatience is how long a database may be away before usher says that it is not ready.
const outagePatience = 5 * time.Second

// Health says whether webhooks can be taken in.
type Health struct {
	Err     error     // why none can be; nil: they can
	Since   time.Time // since when
	Unready bool      // it lasts for longer than usher waits before it says that it is not ready
}

func (h *health) begin(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.txBegan = at
}

// lastErr is why the last transaction failed; nil: it was committed.
func (h *health) lastErr() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// unproven says whether the next transaction must write something: only that proves that the database can be written,
// after the start or an outage.
func (h *health) unproven() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err != nil || !h.everWritten
}

// end keeps the result of a transaction. It logs the begin and the end of an outage, not each failure. On a disk that
// is full outcomes can still be written, which is not the end.
func (h *health) end(log *slog.Logger, began time.Time, err error, full bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.txBegan = time.Time{}
	var refused *engine.StatementError
	var broken *engine.BrokenError
	switch {
	case errors.As(err, &refused):
		return // this neither begins an outage, nor proves that one has ended
	case err == nil && (full || h.failingSince.IsZero()):
	case err == nil:
		log.Info("the inbox can be written again", "after", time.Since(h.failingSince).Round(time.Millisecond))
		h.failingSince = time.Time{}
	case errors.As(err, &broken) && !h.broken:
		h.broken, h.failingSince = true, began
		log.Error("the inbox is broken: usher stores nothing more in it until you restart usher", "err", err)
	case h.failingSince.IsZero():
		h.failingSince = began
		log.Error("cannot write to the inbox, will retry", "err", err)
	}
	if err == nil && (h.err != nil || !h.everWritten) {
		h.openedAt = began
	}
	h.err = err
	h.everWritten = h.everWritten || err == nil
}
