package shared

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
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
	f, err := s.find(ctx, id)
	if err != nil {
		return err
	}
	if f.Status.State == record.Waiting {
		return s.ask(ctx, s.partOf(placeOf(f.Webhook.Lane)), &errand{Act: "retry", ID: id, Lane: f.Webhook.Lane})
	}
	if f.Status.State == record.Kept && s.cfg.Route(f.Webhook.Lane) == "" {
		return record.ErrKept
	}
	for {
		err := s.sendAgain(ctx, f, force)
		if !isConflict(err) {
			return err
		}
	}
}

// sendAgain writes that a webhook is to be sent again. A conflict says that something came into
// its lane meanwhile. That it is still there is looked up after its lane's end: its tenant may have been erased
// since it was found.
func (s *Store) sendAgain(ctx context.Context, f *found, force bool) error {
	lane := f.Webhook.Lane
	place := placeOf(lane)
	if f.Status.State.Finished() {
		if err := s.room.check(len(f.data), false); err != nil {
			return err
		}
	}
	var last end
	if lane.Tenant != "" {
		var err error
		if last, err = s.readEnd(ctx, place); err != nil {
			return err
		}
		if _, err := s.find(ctx, f.ID); err != nil {
			return err
		}
		if last.Kind == erasedKind { // it is about to be deleted
			return fmt.Errorf("webhook %d: %w", f.ID, record.ErrNotFound)
		}
		if last.ID > f.ID && !force {
			return &record.OverwriteError{ID: f.ID, Latest: s.entryOf(ctx, last)}
		}
	}
	if len(last.Digest) > 0 {
		// From here on the receiver may hold either: nothing is dropped on a guess.
		var err error
		if last, err = s.forget(ctx, place, last); err != nil {
			return err
		}
	}
	r := f.Record
	r.SendAgain()
	m := newMessage(s.idSubject("again", place, r.ID), &r, f.content)
	rollup(m)
	if lane.Tenant != "" {
		expectOn(m, s.subject("in", place), last.seq)
	}
	_, err := s.publish(ctx, m)
	return err
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
	f, err := s.find(ctx, id)
	if err != nil {
		return err
	}
	if f.Status.State.Finished() {
		return record.ErrFinished
	}
	return s.ask(ctx, s.partOf(placeOf(f.Webhook.Lane)), &errand{Act: "discard", ID: id, Lane: f.Webhook.Lane})
}

// errand is what one replica asks of the one that delivers a webhook.
type errand struct {
	Act     string
	ID      uint64
	Lane    webhookgate.Lane
	Subject string `json:",omitempty"` // of a pause
}

// answers that have a meaning of their own.
var answers = []error{record.ErrBusy, record.ErrFinished, record.ErrNotFound, record.ErrNobody}

// ask has an errand done.
func (s *Store) ask(ctx context.Context, part int, e *errand) error {
	if t := s.term(part); t != nil && t.Held() {
		return t.do(ctx, e)
	}
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	m, err := s.nc.RequestWithContext(ctx, fmt.Sprintf("%sdo.%x", s.livePrefix, part), data)
	if errors.Is(err, nats.ErrNoResponders) {
		return record.ErrNobody
	}
	if err != nil {
		return err
	}
	if len(m.Data) == 0 {
		return nil
	}
	for _, known := range answers {
		if known.Error() == string(m.Data) {
			return known
		}
	}
	return errors.New(string(m.Data))
}

// serve does errands for other replicas until the term ends.
func (t *term) serve() {
	served, err := t.s.nc.Subscribe(fmt.Sprintf("%sdo.%x", t.s.livePrefix, t.part), func(m *nats.Msg) {
		t.s.background.Go(func() { t.answer(m) }) // some take long
	})
	if err != nil {
		t.s.log.Error("cannot listen for requests of other replicas", "err", err)
		return
	}
	t.s.background.Go(func() {
		<-t.leaving
		_ = served.Drain() // what came before that is answered
	})
}

// answer does what another replica asks for.
func (t *term) answer(m *nats.Msg) {
	var e errand
	err := json.Unmarshal(m.Data, &e)
	if err == nil {
		limit := appendTimeout
		if e.Act == "erase" {
			limit = eraseTimeout
		}
		ctx, cancel := context.WithTimeout(t.s.alive, limit)
		defer cancel()
		err = t.do(ctx, &e)
	}
	var answer []byte
	if err != nil {
		answer = []byte(err.Error())
	}
	_ = m.Respond(answer) // who asked no longer waits
}

// do does an errand.
func (t *term) do(ctx context.Context, e *errand) error {
	select {
	case <-t.leaving:
		return record.ErrNobody
	default:
	}
	switch e.Act {
	case "retry":
		if !t.s.courier.Waits(e.Lane, e.ID) {
			return record.ErrNotFound
		}
		t.s.courier.Retry(e.Lane, e.ID)
		return nil
	case "discard":
		return t.discard(ctx, e)
	case "paused":
		for !t.s.pauses.knows(e.Subject, e.ID) && ctx.Err() == nil {
			pause(ctx, 10*time.Millisecond)
		}
		return ctx.Err()
	case "erase":
		return t.erase(ctx, e.Lane)
	}
	return fmt.Errorf("unknown request %q", e.Act)
}

// discard sets a webhook aside. Nothing of its lane begins until that is written: it comes back if it can't be.
func (t *term) discard(ctx context.Context, e *errand) error {
	t.s.courier.Stop(e.Lane)
	r, ok := t.s.courier.Remove(t, e.Lane, e.ID)
	if !ok {
		t.s.courier.GoOn(e.Lane)
		return record.ErrBusy // or it was delivered after it was found: the next try says so
	}
	r.Enter(record.Discarded, "discarded by hand")
	err := t.write(ctx, &r, nil)
	t.goOn(e.Lane, err == nil)
	return err
}

// goOn has a lane go on that was stopped. If what was taken out of the courier is not done with, that is read again
// with the part; not before: what came since would overtake it.
func (t *term) goOn(lane webhookgate.Lane, done bool) {
	if done {
		t.s.courier.GoOn(lane)
		return
	}
	t.leave()
	t.s.background.Go(func() {
		<-t.ended
		t.s.courier.GoOn(lane)
	})
}
