package shared

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
)

// A pause is a message on a subject of its own, paused.WHAT, that the next one about the same
// takes the place of. All replicas follow them, and none delivers before it has read them.

// pauseMessage is the content of one.
type pauseMessage struct {
	record.Pause
	Off bool `json:"off,omitempty"` // it was resumed
}

// pauses is what this replica knows of them.
type pauses struct {
	mu    sync.Mutex // guards what follows
	read  bool       // all were read once
	known map[string]pauseSeen
}

// pauseSeen is the last word on one subject.
type pauseSeen struct {
	pauseMessage
	seq uint64
}

func (s *Store) pauseSubject(p record.Pause) string {
	digest := sha256.Sum256([]byte(p.String()))
	return fmt.Sprintf("%spaused.%x", s.prefix, digest[:16])
}

// Pause has deliveries held back, by all replicas, until Resume. When it returns no replica
// begins one; those under way may finish.
func (s *Store) Pause(p record.Pause) error {
	p.Since = time.Now()
	for _, q := range s.Paused() {
		if q.Same(p) {
			p.Since = q.Since
		}
	}
	return s.sayPause(pauseMessage{Pause: p})
}

// Resume ends a pause, and says whether there was one.
func (s *Store) Resume(p record.Pause) (was bool, err error) {
	ctx, cancel := context.WithTimeout(s.alive, appendTimeout)
	defer cancel()
	m, err := s.lastOn(ctx, s.pauseSubject(p))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		if !slices.ContainsFunc(s.Paused(), p.Same) {
			return false, nil
		}
		// Somebody has deleted it, or the servers have lost it: it still counts here.
	} else if err != nil {
		return false, err
	} else {
		var last pauseMessage
		if err := json.Unmarshal(m.Data, &last); err == nil && last.Off {
			return false, nil
		}
	}
	return true, s.sayPause(pauseMessage{Pause: p, Off: true})
}

// sayPause writes a message, and returns when those who deliver have read it.
func (s *Store) sayPause(message pauseMessage) error {
	if err := s.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.alive, appendTimeout)
	defer cancel()
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	m := nats.NewMsg(s.pauseSubject(message.Pause))
	m.Data = data
	rollup(m)
	seq, err := s.publish(ctx, m)
	if err != nil {
		return err
	}
	s.tookPause(m.Subject, seq, data)
	var asking sync.WaitGroup
	unheard := make([]error, s.parts)
	for part := range s.parts {
		asking.Go(func() { unheard[part] = s.confirm(ctx, part, &errand{Act: "paused", ID: seq, Subject: m.Subject}) })
	}
	asking.Wait()
	if err := errors.Join(unheard...); err != nil {
		return fmt.Errorf("saved, but not all replicas have confirmed it: %w", err)
	}
	return nil
}

// confirm asks who delivers a part, again every second: who was asked may just have given it up.
func (s *Store) confirm(ctx context.Context, part int, e *errand) error {
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		err := s.ask(try, part, e)
		cancel()
		if errors.Is(err, record.ErrNobody) { // who takes it over knows
			return nil
		}
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// catchUp reads what is held back, as the servers have it now. Who takes a part over may not have heard of it:
// that its consumer is gone it notices some seconds late.
func (s *Store) catchUp(ctx context.Context) error {
	stream, _, err := s.streams()
	if err != nil {
		return err
	}
	info, err := request(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		return stream.Info(ctx, jetstream.WithSubjectFilter(s.prefix+"paused.*"))
	})
	if err != nil {
		return err
	}
	for subject := range info.State.Subjects {
		m, err := s.lastOn(ctx, subject)
		if err != nil {
			return err
		}
		s.tookPause(subject, m.Sequence, m.Data)
	}
	return nil
}

// tookPause takes a message in.
func (s *Store) tookPause(subject string, seq uint64, data []byte) {
	seen := pauseSeen{seq: seq}
	if err := json.Unmarshal(data, &seen.pauseMessage); err != nil {
		s.log.Error("inbox has a damaged message", "seq", seq)
		return
	}
	s.pauses.mu.Lock()
	defer s.pauses.mu.Unlock()
	if s.pauses.known[subject].seq >= seq {
		return
	}
	if s.pauses.known == nil {
		s.pauses.known = make(map[string]pauseSeen)
	}
	s.pauses.known[subject] = seen
	s.courier.HoldBack(s.pauses.now())
}

// now is what is held back. p.mu is held.
func (p *pauses) now() (all []record.Pause) {
	for _, seen := range p.known {
		if !seen.Off {
			all = append(all, seen.Pause)
		}
	}
	return all
}

// Paused is what is held back.
func (s *Store) Paused() []record.Pause {
	s.pauses.mu.Lock()
	defer s.pauses.mu.Unlock()
	return s.pauses.now()
}

// knows says whether a message of a subject, or a later one, was taken in.
func (p *pauses) knows(subject string, seq uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[subject].seq >= seq
}

// ready says whether all were read: before that nothing may be delivered.
func (p *pauses) ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.read
}

// unorder has whatever is read next count: the servers have lost the stream's end.
func (p *pauses) unorder() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for subject, seen := range p.known {
		seen.seq = 0
		p.known[subject] = seen
	}
}

// followPauses reads what is held back, until ctx ends.
func (s *Store) followPauses(ctx context.Context) {
	s.follow(ctx, "paused.*", func() {
		s.pauses.mu.Lock()
		s.pauses.read = true
		s.pauses.mu.Unlock()
		s.leases.poke()
	}, func(m jetstream.Msg, seq uint64) { s.tookPause(m.Subject(), seq, m.Data()) })
}
