package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// tend drops what is finished and old: from the mirror, and where this replica
// delivers from the log.
func (s *jetStore) tend(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		dropped, begin := s.mirror.trim(time.Now())
		if len(dropped) == 0 || !s.leading() {
			continue
		}
		if err := s.erase(ctx, dropped, begin); err != nil && ctx.Err() == nil {
			s.log.Warn("inbox could not delete what is finished", "err", err)
		}
	}
}

// erase deletes records from the log. What goes before begin goes at once, with all
// that was said of it; what is behind a record that is still needed goes one by one.
func (s *jetStore) erase(ctx context.Context, ids []uint64, begin uint64) error {
	if begin > 1 {
		if err := s.request(ctx, func(ctx context.Context) error {
			return s.stream().Purge(ctx, jetstream.WithPurgeSequence(begin))
		}); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if id < begin {
			continue
		}
		if !s.leading() {
			return nil
		}
		// The record first: one without a status would seem to wait.
		if err := s.request(ctx, func(ctx context.Context) error { return s.stream().DeleteMsg(ctx, id) }); err != nil {
			// Who delivered before may have deleted it.
			if _, gone := s.message(ctx, id); !errors.Is(gone, jetstream.ErrMsgNotFound) {
				return err
			}
		}
		if err := s.request(ctx, func(ctx context.Context) error {
			return s.stream().Purge(ctx, jetstream.WithPurgeSubject(s.statusSubject(id)))
		}); err != nil {
			return err
		}
	}
	return nil
}

func (s *jetStore) request(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return do(ctx)
}
