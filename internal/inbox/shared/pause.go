package shared

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/lease"
	"usher/internal/inbox/shared/servers"
)

// All pauses are one message. Every replica reads it once a second, before it takes a part over, and
// when another one that has changed it asks for that.

// pauses is what this replica knows of them.
type pauses struct {
	all  atomic.Pointer[[]record.Pause]
	data []byte // as they were last read; by one after the other: what is read later counts
}

const pausesSubject = "paused"

// Paused is what is held back.
func (s *Store) Paused() []record.Pause {
	if all := s.pauses.all.Load(); all != nil {
		return *all
	}
	return nil
}

// readPauses reads what is held back, and has the courier know it. seq is that of the message.
func (s *Store) readPauses(ctx context.Context) (all []record.Pause, seq uint64, err error) {
	leave, err := s.lines.enter(ctx, pausesSubject)
	if err != nil {
		return nil, 0, err
	}
	defer leave()
	m, err := s.servers.LastWaiting(ctx, s.subjects.Prefix+pausesSubject)
	if servers.Missing(err) {
		return s.Paused(), 0, nil // if somebody has deleted it, or the servers have lost it, it still counts here
	}
	if err != nil {
		return nil, 0, err
	}
	if bytes.Equal(m.Data, s.pauses.data) {
		return s.Paused(), m.Sequence, nil
	}
	if json.Unmarshal(m.Data, &all) != nil {
		s.log.Error("the inbox's pauses are damaged, all deliveries are paused until you resume them", "seq", m.Sequence)
		all = []record.Pause{{Since: m.Time}}
	}
	s.pauses.data = m.Data
	s.pauses.all.Store(&all)
	s.courier.HoldBack(all)
	return all, m.Sequence, nil
}

// followPauses reads what is held back, until ctx ends.
func (s *Store) followPauses(ctx context.Context) {
	for ctx.Err() == nil {
		if _, _, err := s.readPauses(ctx); err != nil {
			s.log.Debug("inbox pauses can't be read", "err", err)
		}
		servers.Sleep(ctx, time.Second)
	}
}

// Pause has deliveries held back, by all replicas, until Resume. When it returns no replica
// begins one; those under way may finish.
func (s *Store) Pause(p record.Pause) error {
	p.Since = time.Now()
	return s.changePauses(func(all []record.Pause) []record.Pause {
		if slices.ContainsFunc(all, p.Same) {
			return all
		}
		return append(slices.Clone(all), p)
	})
}

// Resume ends a pause, and says whether there was one.
func (s *Store) Resume(p record.Pause) (was bool, err error) {
	err = s.changePauses(func(all []record.Pause) []record.Pause {
		was = slices.ContainsFunc(all, p.Same)
		return slices.DeleteFunc(slices.Clone(all), p.Same)
	})
	return was, err
}

// changePauses returns when those who deliver have read what changed.
func (s *Store) changePauses(change func([]record.Pause) []record.Pause) error {
	if err := s.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.alive, appendTimeout+lease.Time) // see confirm
	defer cancel()
	for {
		all, seq, err := s.readPauses(ctx)
		if err != nil {
			return err
		}
		m := nats.NewMsg(s.subjects.Prefix + pausesSubject)
		if m.Data, err = json.Marshal(change(all)); err != nil {
			return err
		}
		servers.Rollup(m)
		servers.Expect(m, seq)
		if _, err = s.servers.Publish(ctx, m); err == nil {
			break
		}
		if servers.TooLarge(err) {
			return fmt.Errorf("too many pauses, resume some of them, or raise max_payload of the NATS servers: %w", err)
		}
		if !servers.Conflict(err) {
			return err
		}
	}
	if _, _, err := s.readPauses(ctx); err != nil {
		return err
	}
	var asking sync.WaitGroup
	unheard := make([]error, s.subjects.Parts)
	for part := range s.subjects.Parts {
		asking.Go(func() { unheard[part] = s.confirm(ctx, part) })
	}
	asking.Wait()
	if err := errors.Join(unheard...); err != nil {
		return fmt.Errorf("saved, but not all replicas have confirmed it: %w", err)
	}
	return nil
}

// confirm has who delivers a part read the pauses. It asks again and again: who was asked may just have given it up, or
// can't read for a moment. A replica that does not hear it is cut off, and may go on until its lease has run out.
func (s *Store) confirm(ctx context.Context, part int) error {
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		err := s.ask(try, part, &errand{Act: "read pauses"})
		cancel()
		if err == nil || errors.Is(err, record.ErrNobody) && s.leases.Free(part) { // who takes it over reads them
			return nil
		}
		if servers.Sleep(ctx, 100*time.Millisecond); ctx.Err() != nil {
			return err
		}
	}
}
