package shared

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/webhookgate"
)

// Actions of people, through any replica.

// Redeliver has a webhook sent again, ahead of what its lane has waiting, with a fresh count of
// tries; one that waits is tried now. What is not the latest of its lane would undo what
// came after it, and needs force.
func (s *Store) Redeliver(id uint64, force bool) error {
	if err := s.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.alive, appendTimeout)
	defer cancel()
	var first *found
	return patiently(ctx, func() error {
		f, err := s.find(ctx, id)
		if err != nil {
			return err
		}
		if first == nil {
			first = f
		} else if !f.Status.Again.Equal(first.Status.Again) {
			return nil // the answer got lost in a handover
		}
		lane := f.Webhook.Lane
		last, err := s.mayRedeliver(ctx, f, force)
		if err != nil {
			return err
		}
		return s.ask(ctx, s.partOf(placeOf(lane)), &errand{Act: "redeliver", ID: id, Lane: lane, Last: last.seq})
	})
}

// mayRedeliver says why a webhook is not sent again, or how its lane ends, which that depends on.
func (s *Store) mayRedeliver(ctx context.Context, f *found, force bool) (last end, err error) {
	lane := f.Webhook.Lane
	if f.Status.State == record.Waiting {
		return last, nil
	}
	if f.Status.State == record.Kept && s.cfg.Route(lane) == "" {
		return last, record.ErrKept
	}
	if f.Status.State.Finished() {
		if err := s.room.check(len(f.data), false); err != nil {
			return last, err
		}
	}
	if lane.Tenant == "" {
		return last, nil
	}
	last, err = s.readEnd(ctx, placeOf(lane))
	if err == nil && last.ID > f.ID && !force {
		err = &record.OverwriteError{ID: f.ID, Latest: s.entryOf(ctx, last)}
	}
	return last, err
}

// entryOf is what a lane's end says of its last webhook.
func (s *Store) entryOf(ctx context.Context, last end) record.Entry {
	if f, err := s.find(ctx, last.ID); err == nil {
		return f.Entry()
	}
	r := record.Record{ID: last.ID, Webhook: slim(&last.head), Status: record.Status{State: record.Delivered, Changed: last.Accepted}}
	return r.Entry()
}

// forget empties a lane's memory.
func (s *Store) forget(ctx context.Context, place string, last end) (end, error) {
	h := last.again(forgotKind)
	h.Digest = nil
	e, err := s.restate(ctx, place, last, h)
	if err == nil {
		s.ends.Add(place, e)
	}
	return e, err
}

// Forget drops the dedup memory of a tenant, on one platform or on all, and says of how many
// lanes.
func (s *Store) Forget(platform *string, tenant string) (forgotten int, err error) {
	if err := s.Err(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(s.alive, appendTimeout)
	defer cancel()
	ends, err := s.endsOf(ctx, platform, tenant)
	if err != nil {
		return 0, err
	}
	for place, last := range ends {
		for len(last.Digest) > 0 {
			_, err = s.forget(ctx, place, last)
			if err == nil {
				forgotten++
				break
			}
			if !isConflict(err) {
				return forgotten, err
			}
			if last, err = s.readEnd(ctx, place); err != nil {
				return forgotten, err
			}
		}
	}
	return forgotten, nil
}

// endsOf returns how the lanes of a tenant end, by their places.
func (s *Store) endsOf(ctx context.Context, platform *string, tenant string) (map[string]end, error) {
	if platform != nil {
		place := placeOf(webhookgate.Lane{Platform: *platform, Tenant: tenant})
		e, err := s.readEnd(ctx, place)
		if err != nil || e.seq == 0 {
			return nil, err
		}
		return map[string]end{place: e}, nil
	}
	stream, _, err := s.streams()
	if err != nil {
		return nil, err
	}
	place := placeOf(webhookgate.Lane{Tenant: tenant})
	token, _, _ := strings.Cut(place, ".")
	info, err := request(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		return stream.Info(ctx, jetstream.WithSubjectFilter(s.part(s.partOf(place), "in."+token+".*")))
	})
	if err != nil {
		return nil, err
	}
	ends := make(map[string]end)
	for subject := range info.State.Subjects {
		_, place, _ := s.split(subject)
		if ends[place], err = s.readEnd(ctx, place); err != nil {
			return nil, err
		}
	}
	return ends, nil
}

// Discard sets aside a webhook that waits or is parked: it will not be sent any more.
func (s *Store) Discard(id uint64) error {
	if err := s.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.alive, appendTimeout)
	defer cancel()
	tried := false
	return patiently(ctx, func() error {
		f, err := s.find(ctx, id)
		if err != nil {
			return err
		}
		if tried && f.Status.State == record.Discarded {
			return nil // the answer got lost in a handover
		}
		if f.Status.State.Finished() {
			return record.ErrFinished
		}
		tried = true
		return s.ask(ctx, s.partOf(placeOf(f.Webhook.Lane)), &errand{Act: "discard", ID: id, Lane: f.Webhook.Lane})
	})
}
