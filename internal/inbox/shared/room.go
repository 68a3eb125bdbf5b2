package shared

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/record"
)

// room is how full the inbox is. What waits or is parked is counted by the replicas that deliver
// it, and told to the others with their leases; how many bytes the stream has is asked of the
// servers now and then. What came in through this replica since is added.
//
// The stream has more than what waits: it remembers each tenant's last snapshot. And a webhook
// that is parked takes its bytes twice, once to be redelivered and once to be remembered. So
// the stream reserves more than webhooks may fill, and a webhook is taken in only if there would
// be room for it, and for all others that wait, if the receiver refused every one of them.
type room struct {
	most int64 // that may wait or be parked, by the settings

	mu       sync.Mutex // guards what follows
	load     courier.Load
	stream   int64 // bytes of all messages
	reserved int64 // for the stream, by the servers
	largest  int64 // message that the servers take
	memories int64 // bytes of what is remembered of tenants
}

const (
	// aside is what a webhook counts for beside its content: where it stands, why, and what its
	// lane remembers of it. That is less, unless the receiver used many words.
	aside = 2 << 10
	// growBy is in what steps a stream grows with what it remembers.
	growBy = 64 << 20
)

// reservation is how many bytes a stream reserves in which most may wait; waitingIn is its reverse.
func reservation(most int64) int64   { return most / 2 * 5 }
func waitingIn(reserved int64) int64 { return reserved / 5 * 2 }

// wanted is how many bytes the stream should reserve. What it remembers may become twice as
// much before it has to grow again.
func (r *room) wanted() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if spare := r.most/2 - 2*r.memories; spare < 0 {
		return reservation(r.most) + (-spare+growBy-1)/growBy*growBy
	}
	return reservation(r.most)
}

// usable is how many bytes of the stream may be filled: a tenth stays free, or what one of the
// largest messages takes. r.mu is held.
func (r *room) usable() int64 { return r.reserved - max(r.reserved/10, min(r.largest, r.reserved/3)) }

// limit is how many bytes may wait or be parked. r.mu is held.
func (r *room) limit() int64 { return min(r.most, waitingIn(r.reserved), r.usable()/2) }

// left is how many of the usable bytes nobody has a claim to: what waits may need as much again.
// r.mu is held.
func (r *room) left() int64 { return r.usable() - r.stream - r.load.Waiting }

func (r *room) set(load courier.Load, info *jetstream.StreamInfo, largest int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.load, r.stream, r.reserved, r.largest = load, int64(info.State.Bytes), info.Config.MaxBytes, largest
}

// sizeOf is what a message with a webhook counts for. Where it was read without its content,
// the servers say how large that is.
func sizeOf(h nats.Header, data []byte) int {
	const rest = 250 // the subject, the headers' names, what the servers add
	return contentSize(h, data) + len(h.Get(headHeader)) + len(h.Get(statusHeader)) + rest + aside
}

func contentSize(h nats.Header, data []byte) int {
	if n, err := strconv.Atoi(h.Get("Nats-Msg-Size")); err == nil {
		return n
	}
	return len(data)
}

// took counts a message that came in, of which sizeOf says how large it is. One that is kept does not wait.
func (r *room) took(size int, kept bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream += int64(size - aside)
	if !kept {
		r.load.Bytes += int64(size)
		r.load.Waiting += int64(size)
	}
}

// check says whether a webhook of that size may come in.
func (r *room) check(size int, kept bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cost := int64(size + aside); !kept && r.load.Bytes+cost > r.limit() {
		return fmt.Errorf("%w: %d of %d bytes are taken", record.ErrFull, r.load.Bytes, r.limit())
	} else if 2*cost > r.left() {
		return fmt.Errorf("%w: the stream has %d bytes, %d of them remember tenants' last snapshots, and the servers reserve no more than %d",
			record.ErrFull, r.stream, r.memories, r.reserved)
	}
	return nil
}

// measureEvery is how long the last measure is good for: other replicas fill it, too.
func (r *room) measureEvery() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.load.Bytes > r.limit()/4*3 || r.left() < r.reserved/5 {
		return 100 * time.Millisecond
	}
	return time.Second
}

// Usage is how many bytes wait or are parked, and how many may. Room that the stream does not have
// for them counts as used.
func (s *Store) Usage() (used, limit int64) {
	r := &s.room
	r.mu.Lock()
	defer r.mu.Unlock()
	limit = r.limit()
	return max(r.load.Bytes, limit-max(0, r.left()/2)), limit
}

// load is what waits or is parked: of its own parts this replica knows, of the others what
// their leases say. known is false until all of them were read.
func (s *Store) load() (sum courier.Load, known bool) {
	s.leases.mu.Lock()
	terms, seen := s.leases.terms, s.leases.seen
	s.leases.mu.Unlock()
	known = true
	for part := range s.parts {
		one := seen[part].Load
		if t := terms[part]; t != nil {
			one = t.load()
		} else if seen[part].seq == 0 {
			known = false
		}
		sum.Bytes, sum.Waiting = sum.Bytes+one.Bytes, sum.Waiting+one.Waiting
	}
	return sum, known
}

// measure asks the servers how full the stream is.
func (s *Store) measure(ctx context.Context) error {
	stream, _, err := s.streams()
	if err != nil {
		return err
	}
	known := s.seen.Load()
	ask := func(ctx context.Context) (*jetstream.StreamInfo, error) { return stream.Info(ctx) }
	info, err := request(ctx, ask)
	if err == nil && info.State.LastSeq < known { // a leader that was just elected may not have all ready
		pause(ctx, 500*time.Millisecond)
		info, err = request(ctx, ask)
	}
	if err != nil {
		return err
	}
	if !majority(info) {
		return errSilent
	}
	if info.State.LastSeq < known {
		// They have lost the end of it, as after a power failure without sync_interval: always, or
		// were restored from a backup. What is known here may be of messages that are no more.
		s.log.Error("the inbox servers have lost the end of the stream, reading it again", "had", known, "have", info.State.LastSeq)
		s.seen.Store(info.State.LastSeq)
		s.ends.Purge()
		s.follower.restart()
		s.dropTerms()
	}
	s.measured(info)
	s.saw(info.State.LastSeq)
	s.heard.Store(time.Now().UnixNano())
	return nil
}

// measured takes in how many bytes the stream has.
func (s *Store) measured(info *jetstream.StreamInfo) {
	load, known := s.load()
	s.room.set(load, info, s.nc.MaxPayload())
	if known {
		s.room.mu.Lock()
		s.room.memories = max(0, int64(info.State.Bytes)-load.Bytes)
		s.room.mu.Unlock()
	}
}

// majority reports whether the server that answered about a stream leads it, and has heard from most of
// the servers that keep a copy. A server that is alone still answers from what it has. What counts is
// which servers have a copy, not how many should: while that is being changed the group is another.
func majority(info *jetstream.StreamInfo) bool {
	c := info.Cluster
	if c == nil {
		return true
	}
	heard, all := 1, 1
	for _, peer := range c.Replicas {
		if peer.Pending { // it is to get a copy, and has no vote yet
			continue
		}
		if all++; !peer.Offline && peer.Active < silence {
			heard++
		}
	}
	return c.Leader != "" && heard > all/2
}
