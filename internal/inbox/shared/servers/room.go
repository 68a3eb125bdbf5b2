package servers

import (
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
)

// Room is how full the inbox is. What waits or is parked is counted by the replicas that deliver
// it, and told to the others with their leases; how many bytes the stream has is asked of the
// servers now and then. What came in through this replica since is added.
//
// The stream has more than what waits: it remembers each tenant's last snapshot. And a webhook
// that is parked takes its bytes twice, once to be redelivered and once to be remembered. So
// the stream reserves more than webhooks may fill, and a webhook is taken in only if there would
// be room for it, and for all others that wait, if the receiver refused every one of them.
type Room struct {
	most int64 // that may wait or be parked, by the settings

	mu       sync.Mutex // guards what follows
	load     record.Load
	stream   int64 // bytes of all messages
	reserved int64 // for the stream, by the servers
	largest  int64 // message that the servers take
	memories int64 // bytes of what is remembered of tenants
}

// growBy is in what steps a stream grows with what it remembers.
const growBy = 64 << 20

// reservation is how many bytes a stream reserves in which most may wait; waitingIn is its reverse.
func reservation(most int64) int64   { return most / 2 * 5 }
func waitingIn(reserved int64) int64 { return reserved / 5 * 2 }

// wanted is how many bytes the stream should reserve. What it remembers may become twice as
// much before it has to grow again.
func (r *Room) wanted() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if spare := r.most/2 - 2*r.memories; spare < 0 {
		return reservation(r.most) + (-spare+growBy-1)/growBy*growBy
	}
	return reservation(r.most)
}

// usable is how many bytes of the stream may be filled: a tenth stays free, or what one of the
// largest messages takes. r.mu is held.
func (r *Room) usable() int64 { return r.reserved - max(r.reserved/10, min(r.largest, r.reserved/3)) }

// limit is how many bytes may wait or be parked. r.mu is held.
func (r *Room) limit() int64 { return min(r.most, waitingIn(r.reserved), r.usable()/2) }

// left is how many of the usable bytes nobody has a claim to: what waits may need as much again.
// r.mu is held.
func (r *Room) left() int64 { return r.usable() - r.stream - r.load.Waiting }

func (r *Room) setStream(info *jetstream.StreamInfo, largest int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream, r.reserved, r.largest = int64(info.State.Bytes), info.Config.MaxBytes, largest
}

// SetLoad takes in what waits or is parked. known is false while some of it is not known.
func (r *Room) SetLoad(load record.Load, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.load = load; known {
		r.memories = max(0, r.stream-load.Bytes)
	}
}

// Took counts a message that came in: its bytes, and what it counts for while it waits; zero: it does not wait.
func (r *Room) Took(bytes, waits int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream += int64(bytes)
	r.load.Bytes += int64(waits)
	r.load.Waiting += int64(waits)
}

// Check says whether a webhook may come in that counts for so many bytes.
func (r *Room) Check(size int, waits bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cost := int64(size); waits && r.load.Bytes+cost > r.limit() {
		return fmt.Errorf("%w: %d of %d bytes are taken", record.ErrFull, r.load.Bytes, r.limit())
	} else if 2*cost > r.left() {
		return fmt.Errorf("%w: the stream has %d bytes, %d of them remember tenants' last snapshots, and the servers reserve no more than %d",
			record.ErrFull, r.stream, r.memories, r.reserved)
	}
	return nil
}

// measureEvery is how long the last measure is good for: other replicas fill it, too.
func (r *Room) measureEvery() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.load.Bytes > r.limit()/4*3 || r.left() < r.reserved/5 {
		return 100 * time.Millisecond
	}
	return time.Second
}

// Usage is how many bytes wait or are parked, and how many may. Room that the stream does not have
// for them counts as used.
func (r *Room) Usage() (used, limit int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limit = r.limit()
	return max(r.load.Bytes, limit-max(0, r.left()/2)), limit
}
