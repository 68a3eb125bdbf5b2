package shared

import (
	"context"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
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
		return s.ask(ctx, s.subjects.PartOf(message.PlaceOf(lane)), &errand{Act: "redeliver", ID: id, Lane: lane, Last: last.Seq})
	})
}

// mayRedeliver says why a webhook is not sent again, or how its lane ends, which that depends on.
func (s *Store) mayRedeliver(ctx context.Context, f *found, force bool) (last message.End, err error) {
	lane := f.Webhook.Lane
	if f.Status.State == record.Waiting {
		return last, nil
	}
	if f.Status.State == record.Kept && s.cfg.Route(lane) == "" {
		return last, record.ErrKept
	}
	if f.Status.State.Finished() {
		if err := s.servers.Room.Check(len(f.Data)+message.Aside, true); err != nil {
			return last, err
		}
	}
	if lane.Tenant == "" {
		return last, nil
	}
	last, err = s.readEnd(ctx, message.PlaceOf(lane))
	if err == nil && last.ID > f.ID && !force {
		err = &record.OverwriteError{ID: f.ID, Latest: s.entryOf(ctx, last)}
	}
	return last, err
}

// entryOf is what a lane's end says of its last webhook.
func (s *Store) entryOf(ctx context.Context, last message.End) record.Entry {
	if f, err := s.find(ctx, last.ID); err == nil {
		return f.Entry()
	}
	r := record.Record{ID: last.ID, Webhook: last.Slim(), Status: record.Status{State: record.Delivered, Changed: last.Accepted}}
	return r.Entry()
}

// forget empties a lane's memory.
func (s *Store) forget(ctx context.Context, place string, last message.End) (message.End, error) {
	h := last.Again(message.Forgot)
	h.Digest = nil
	return s.restate(ctx, place, last, h)
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
			if !servers.Conflict(err) {
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
func (s *Store) endsOf(ctx context.Context, platform *string, tenant string) (map[string]message.End, error) {
	if platform != nil {
		place := message.PlaceOf(webhookgate.Lane{Platform: *platform, Tenant: tenant})
		e, err := s.readEnd(ctx, place)
		if err != nil || e.Seq == 0 {
			return nil, err
		}
		return map[string]message.End{place: e}, nil
	}
	place := message.PlaceOf(webhookgate.Lane{Tenant: tenant})
	info, err := s.servers.Waiting.Info(ctx, s.subjects.Part(s.subjects.PartOf(place), "in."+message.PlacesOf(tenant)))
	if err != nil {
		return nil, err
	}
	ends := make(map[string]message.End)
	for subject := range info.State.Subjects {
		_, place, _ := s.subjects.Split(subject)
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
		return s.ask(ctx, s.subjects.PartOf(message.PlaceOf(f.Webhook.Lane)), &errand{Act: "discard", ID: id, Lane: f.Webhook.Lane})
	})
}
