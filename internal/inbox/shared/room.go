package shared

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
)

// room is how full the stream is. It is asked of the servers now and then, and what came in
// through this replica since is added: other replicas do the same.
type room struct {
	used, limit atomic.Int64
	largest     atomic.Int64 // message that the servers take
}

// intake is what of the stream webhooks may fill. The rest is for outcomes, which have the
// content of their webhook once more: a tenth, and one of the largest at the least.
func (r *room) intake() int64 {
	limit := r.limit.Load()
	return limit - max(limit/10, min(r.largest.Load(), limit/3))
}

func (r *room) set(used, limit, largest int64) {
	r.largest.Store(largest)
	r.used.Store(used)
	r.limit.Store(limit)
}

func (r *room) took(size int) { r.used.Add(int64(size)) }

// check says whether a webhook of that size may come in.
func (r *room) check(size int) error {
	used, limit := r.used.Load()+int64(size), r.limit.Load()
	if limit > 0 && (used > r.intake() || used+int64(size) > limit) {
		return fmt.Errorf("%w: %d of %d bytes are taken", record.ErrFull, used, limit)
	}
	return nil
}

// measureEvery is how long the last measure is good for: other replicas fill it, too.
func (r *room) measureEvery() time.Duration {
	if r.used.Load() > r.limit.Load()/4*3 {
		return 100 * time.Millisecond
	}
	return time.Second
}

// measure asks the servers how full the stream is.
func (s *Store) measure(ctx context.Context) error {
	stream, _, err := s.streams()
	if err != nil {
		return err
	}
	known := s.seen.Load()
	info, err := request(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) { return stream.Info(ctx) })
	if err != nil {
		return err
	}
	if !majority(info) {
		return errSilent
	}
	if info.State.LastSeq < known {
		// They have lost the end of it, as after a power failure without sync_interval: always, or
		// were restored from a backup. What is known here may be of messages that are no more.
		s.log.Error("inbox servers have lost the stream's end, it is read again", "had", known, "have", info.State.LastSeq)
		s.seen.Store(info.State.LastSeq)
		s.ends.Purge()
		s.pauses.unorder()
		s.follower.restart()
	}
	s.room.set(int64(info.State.Bytes), min(info.Config.MaxBytes, s.cfg.MaxBytes), s.nc.MaxPayload())
	s.saw(info.State.LastSeq)
	s.heard.Store(time.Now().UnixNano())
	return nil
}

// majority says whether who tells of a stream leads it, and has heard from most of those that
// keep a copy. One that is alone goes on answering from what it has.
func majority(info *jetstream.StreamInfo) bool {
	c := info.Cluster
	if c == nil || info.Config.Replicas <= 1 {
		return true
	}
	heard := 1
	for _, peer := range c.Replicas {
		if !peer.Offline && peer.Active < silence {
			heard++
		}
	}
	return c.Leader != "" && heard > info.Config.Replicas/2
}

// Usage is how many bytes are taken, and how many there are for webhooks.
func (s *Store) Usage() (used, limit int64) {
	return s.room.used.Load(), s.room.intake()
}
