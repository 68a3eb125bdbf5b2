package shared

import (
	"context"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/nats-io/nats.go"

	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
)

// How lanes end: read, and said again by notes.

// ends is how lanes end, as far as is known here.
type ends struct {
	*lru.Cache[string, message.End]

	mu    sync.Mutex // guards what follows
	boot  string     // of the only server, from which they were read; see servers.Boot
	since time.Time  // what was accepted before counts no more
}

// askBoot has all forgotten if the only server was started again. An error: there is no connection right now.
func (s *Store) askBoot() error {
	boot, err := s.servers.Boot()
	if err != nil {
		return err
	}
	s.ends.mu.Lock()
	was := s.ends.boot
	s.ends.boot = boot
	s.ends.mu.Unlock()
	if was != "" && was != boot {
		s.ends.doubt()
	}
	return nil
}

// doubt forgets all: the servers may have lost the last messages. Then a lane ends with what it had before, and its receiver may hold what was lost.
func (e *ends) doubt() {
	e.mu.Lock()
	e.since = time.Now()
	e.mu.Unlock()
	e.Purge()
}

// certain says whether what was accepted then is still what a receiver was given last.
func (e *ends) certain(accepted time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return accepted.After(e.since)
}

// noteCopy notes at the lane's end that a, a copy of its last, came.
func (s *Store) noteCopy(ctx context.Context, a *arriving, last message.End) error {
	if a.kept {
		if err := s.completeKept(ctx, a, last); err != nil {
			return err
		}
	}
	h := last.Again(message.Copy)
	h.Arrived, h.Replica, h.Foreign = 0, s.self, last.Others(s.self)
	_, err := s.restate(ctx, a.place, last, h)
	return err
}

// restate writes a note at the lane's end.
func (s *Store) restate(ctx context.Context, place string, last message.End, h message.Head) (message.End, error) {
	e, err := s.writeEnd(ctx, nats.NewMsg(s.subjects.Lane(place)), place, last.Seq, h)
	if err == nil {
		s.replaced(last, &e)
	}
	return e, err
}

// writeEnd writes m, whose head is h, at the end of a lane that ends with the message last.
func (s *Store) writeEnd(ctx context.Context, m *nats.Msg, place string, last uint64, h message.Head) (message.End, error) {
	h.Put(m)
	servers.Expect(m, last)
	seq, err := s.servers.Publish(ctx, m)
	if err != nil {
		return message.End{}, err
	}
	e := message.NewEnd(seq, h)
	s.ends.Add(place, e)
	return e, nil
}

// replaced deletes a message that all is said again of by the one after it. If that
// fails it does no harm: the lane's next rollup deletes it.
func (s *Store) replaced(last message.End, by *message.End) {
	obsolete := last.IsNote() || (last.Kind == message.Kept || last.Kind == message.Memory) && by.Bearer != last.Seq
	if last.Seq == 0 || !obsolete {
		return
	}
	s.background.Go(func() {
		_ = s.servers.Waiting.Remove(s.alive, last.Seq)
	})
}

// endOf returns a lane's last message, as far as is known here.
func (s *Store) endOf(ctx context.Context, place string) (message.End, error) {
	if err := s.askBoot(); err != nil {
		return message.End{}, err
	}
	if e, ok := s.ends.Get(place); ok {
		return e, nil
	}
	return s.readEnd(ctx, place)
}

// readEnd asks the servers for a lane's last message.
func (s *Store) readEnd(ctx context.Context, place string) (message.End, error) {
	m, err := s.servers.LastWaiting(ctx, s.subjects.Lane(place))
	if servers.Missing(err) {
		return message.End{}, nil
	}
	if err != nil {
		return message.End{}, err
	}
	h, err := message.ReadHead(m.Header)
	if err != nil {
		// Only as a place in the lane: nothing is held to be a copy of it. What the message before it says of the last
		// snapshot still holds, and if it is a note, of the last webhook, too.
		s.log.Error("inbox has a damaged message", "seq", m.Sequence)
		if h, err = s.readableBefore(ctx, place, m.Sequence, message.Head{Kind: message.Memory}); err != nil {
			return message.End{}, err
		}
		h.Digest, h.Arrived, h.Replica, h.Foreign = nil, 0, "", 0
		if len(m.Data) > 0 {
			h.ID = 0
		} else {
			h.Kind = message.Copy
		}
	}
	e := message.NewEnd(m.Sequence, h)
	s.ends.Add(place, e)
	return e, nil
}
