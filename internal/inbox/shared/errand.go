package shared

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

// What people do to webhooks that wait or are parked is done by the replica that delivers their part: it is the only one
// that writes there, beside those who append.

// errand is what one replica asks of the one that delivers a webhook.
type errand struct {
	Act  string
	ID   uint64
	Lane webhookgate.Lane
	Last uint64 // message of the lane, when it was decided

	Within time.Duration // after that nobody waits for it any more, and it must not be done
}

// errMoved: the lane has gone on since an errand was decided on.
var errMoved = errors.New("something came for the tenant in the meantime")

// answers that have a meaning of their own.
var answers = []error{record.ErrBusy, record.ErrFinished, record.ErrNotFound, record.ErrNobody, errMoved, record.ErrUnsure}

// patiently decides on an errand and asks for it, again while the lane goes on or no replica delivers the part: one that
// starts, or takes over, does so in a moment.
func patiently(ctx context.Context, errand func() error) error {
	var why error // it is not done yet
	for {
		switch err := errand(); {
		case errors.Is(err, record.ErrUnsure), errors.Is(why, record.ErrUnsure) && errors.Is(err, record.ErrBusy):
			why = record.ErrUnsure // whatever comes: the next try finds it done, or does it; the first may be at it
		case errors.Is(err, errMoved):
			why = cmp.Or(why, record.ErrBusy)
		case errors.Is(err, record.ErrNobody):
			why = cmp.Or(why, record.ErrNobody)
		case err == nil || why == nil || ctx.Err() == nil:
			return err
		}
		if servers.Sleep(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return why
		}
	}
}

// ask has an errand done.
func (s *Store) ask(ctx context.Context, part int, e *errand) error {
	if t := s.term(part); t != nil && t.Held() {
		return t.do(ctx, e)
	}
	if deadline, ok := ctx.Deadline(); ok {
		e.Within = time.Until(deadline) / 10 * 9 // the answer takes time, too
	}
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	m, err := s.servers.Conn.RequestWithContext(ctx, fmt.Sprintf("%sdo.%x", s.subjects.Live, part), data)
	if errors.Is(err, nats.ErrNoResponders) {
		return record.ErrNobody
	}
	if err != nil {
		return record.ErrUnsure
	}
	if len(m.Data) == 0 {
		return nil
	}
	for _, known := range answers {
		if before, ok := strings.CutSuffix(string(m.Data), known.Error()); ok {
			return fmt.Errorf("%s%w", before, known)
		}
	}
	return errors.New(string(m.Data))
}

// serve does errands for other replicas until the term ends.
func (t *term) serve() {
	served, err := t.s.servers.Conn.Subscribe(fmt.Sprintf("%sdo.%x", t.s.subjects.Live, t.Part), func(m *nats.Msg) {
		t.s.background.Go(func() { t.answer(m) }) // some take long
	})
	if err != nil {
		t.s.log.Error("cannot listen for requests of other replicas", "err", err)
		return
	}
	t.s.background.Go(func() {
		<-t.Leaving()
		_ = served.Drain() // what came before that is answered
	})
}

// answer does what another replica asks for.
func (t *term) answer(m *nats.Msg) {
	var e errand
	err := json.Unmarshal(m.Data, &e)
	if err == nil {
		ctx, cancel := context.WithTimeout(t.s.alive, cmp.Or(e.Within, appendTimeout))
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
	if t.isLeaving() || !t.Held() { // it may have been stopped since it was asked
		return record.ErrNobody
	}
	if e.Act == "read pauses" {
		_, _, err := t.s.readPauses(ctx)
		return err
	}
	if !t.hasBegun() {
		return record.ErrNobody
	}
	switch e.Act {
	case "redeliver":
		return t.redeliver(ctx, e)
	case "discard":
		return t.discard(ctx, e)
	case "erase":
		return t.erase(ctx, e)
	}
	return fmt.Errorf("unknown request %q", e.Act)
}

// redeliver sends a webhook again that is parked or finished. Nothing of its lane begins meanwhile, so
// that what comes is delivered after it.
func (t *term) redeliver(ctx context.Context, e *errand) error {
	s, place := t.s, message.PlaceOf(e.Lane)
	if s.courier.Waits(e.Lane, e.ID) {
		s.courier.Retry(e.Lane, e.ID)
		return nil
	}
	s.courier.Stop(e.Lane)
	safe := true
	defer func() { t.goOn(e.Lane, safe) }()
	leave, err := t.writing.enter(ctx, place)
	if err != nil {
		return err
	}
	defer leave()
	if e.Lane.Tenant != "" {
		if err := s.forgetAt(ctx, place, e.Last); err != nil {
			return err
		}
	}
	f, err := s.find(ctx, e.ID)
	if err != nil {
		return err
	}
	if f.Status.State == record.Waiting {
		return errMoved
	}
	s.courier.Remove(t, e.Lane, e.ID)
	if _, there := s.courier.Find(e.Lane, e.ID); there {
		return errMoved // how it stands is being written
	}
	r := f.Record
	r.SendAgain()
	err = t.insist(ctx, &r, func() error { return t.putState(ctx, f.Content, &r, place) })
	if safe = err == nil; safe {
		s.courier.Take(t, &r, nil, true)
	}
	return err
}

// forgetAt empties the memory of a lane that ends with a message: from here on the receiver may hold either, and nothing
// is dropped on a guess.
func (s *Store) forgetAt(ctx context.Context, place string, seq uint64) error {
	last, err := s.readEnd(ctx, place)
	if err == nil && last.Seq != seq {
		return errMoved
	}
	if err == nil && len(last.Digest) > 0 {
		_, err = s.forget(ctx, place, last)
	}
	if servers.Conflict(err) {
		return errMoved
	}
	return err
}

// discard sets a webhook aside. Nothing of its lane begins until that is written: it comes back if it can't be.
func (t *term) discard(ctx context.Context, e *errand) error {
	t.s.courier.Stop(e.Lane)
	safe := true
	defer func() { t.goOn(e.Lane, safe) }()
	leave, err := t.writing.enter(ctx, message.PlaceOf(e.Lane)) // first: it may be about to be sent again
	if err != nil {
		return err
	}
	defer leave()
	r, ok := t.s.courier.Remove(t, e.Lane, e.ID)
	if !ok && t.isLeaving() {
		return record.ErrNobody // who has the part next does it
	}
	if !ok {
		return record.ErrBusy // or it was delivered after it was found: the next try says so
	}
	r.Enter(record.Discarded, "discarded by hand")
	err = t.writeNext(ctx, &r, nil)
	safe = err == nil
	return err
}

// goOn has a lane go on that was stopped. If what was taken out of the courier is not done with, that is read again
// with the part; not before: what came since would overtake it.
func (t *term) goOn(lane webhookgate.Lane, done bool) {
	if done {
		t.s.courier.GoOn(lane)
		return
	}
	t.Leave()
	t.s.background.Go(func() {
		<-t.Ended()
		t.s.courier.GoOn(lane)
	})
}
