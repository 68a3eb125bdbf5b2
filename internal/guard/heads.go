package guard

import (
	"errors"
	"sync"
	"sync/atomic"
)

const (
	// MaxHeads limits the memory for the heads of requests, over all connections of all ports. A head counts
	// from its first bytes until its request is answered, and TLS counts what it reads before it has any
	// of a request. If there is no room, usher closes the connection that asks for more of it.
	MaxHeads = 16 << 20

	// smallHead always has room, of a head as of a TLS handshake. Most are smaller.
	smallHead = 8 << 10
	// wholeRecord is what TLS must read at most before it can decrypt some of it.
	wholeRecord = 20 << 10
)

// heads is the memory for the heads of this process.
var heads = &memory{limit: MaxHeads}

var errCrowded = errors.New("the memory for heads is used up")

type memory struct {
	limit int64
	used  atomic.Int64
}

// holding is what a connection has of a memory. It has a mutex because net/http may still read from a
// connection that it has closed.
type holding struct {
	of *memory

	mu    sync.Mutex // guards what follows
	bytes int64      // of heads since the last release
	taken int64
	over  bool // the connection has ended
}

// head counts further bytes of a head, and reports whether there is room for them.
func (h *holding) head(n int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bytes += n
	return h.take(h.bytes - smallHead)
}

// reach reports whether there is room for n bytes.
func (h *holding) reach(n int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.take(n)
}

// take is called with mu locked.
func (h *holding) take(n int64) bool {
	more := n - h.taken
	if more <= 0 || h.over {
		return true
	}
	if h.of.used.Add(more) > h.of.limit {
		h.of.used.Add(-more)
		return false
	}
	h.taken = n
	return true
}

// release gives the room back; with over for good.
func (h *holding) release(over bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.of.used.Add(-h.taken)
	h.bytes, h.taken, h.over = 0, 0, over
}
