package shared

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
	"usher/webhookgate"
)

const (
	// appendTimeout is how long a webhook may take to be safe. A new leader among the
	// servers is elected within some seconds.
	appendTimeout = 5 * time.Second
	// patience is how long all requests for it may take while all is well. After that the sender may have given up, and gone
	// on through another replica.
	patience = 3 * time.Second
	// underWay is how long to wait for a message that is in the way of another and can't be read yet:
	// it is on its way to a majority of the servers.
	underWay = 10 * time.Millisecond
)

// ErrStale: who sent the webhook has gone on without it, or will send it again.
var ErrStale = errors.New("a newer webhook of its tenant came through another replica in the meantime")

// arriving is a webhook on its way into its lane.
type arriving struct {
	*webhookgate.Webhook
	place string
	kept  bool
	came  time.Time
	seen  uint64 // the stream's last message that was known when it came

	// unsure: the servers have not answered whether they took it, behind the message tried.
	unsure bool
	tried  uint64
}

// Append writes w at its lane's end, unless it is a copy of what is there; then it notes that
// there.
func (s *Store) Append(w *webhookgate.Webhook, kept bool) (string, error) {
	if err := s.Err(); err != nil {
		return "", err
	}
	if err := s.servers.Room.Check(len(w.Body)+message.Aside, !kept); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(s.alive, appendTimeout)
	defer cancel()
	a := &arriving{Webhook: w, place: message.PlaceOf(w.Lane), kept: kept, came: time.Now(), seen: s.servers.Seen()}
	leave, err := s.lines.enter(ctx, a.place)
	if err == nil {
		defer leave()
		var original string
		if original, err = s.arrive(ctx, a); err == nil {
			return original, nil
		}
	}
	return "", fmt.Errorf("the inbox's servers did not take the webhook: %w", err)
}

// arrive tries until w is in its lane, or known as a copy, or it makes no sense to go on.
func (s *Store) arrive(ctx context.Context, a *arriving) (original string, err error) {
	var refused uint64 // behind that message
	for {
		var last message.End
		if a.Lane.Tenant != "" {
			last, err = s.endOf(ctx, a.place)
		}
		var found uint64
		if err == nil && a.unsure && last.Seq != a.tried {
			found, err = s.gotIn(ctx, a, &last)
		}
		switch {
		case err != nil:
		case found != 0:
			return "", s.arrived(ctx, a, found)
		case s.holds(&last, a):
			if err = s.noteCopy(ctx, a, last); err == nil {
				if s.cfg.OnSnapshot != nil {
					s.cfg.OnSnapshot(a.Lane, last.Last, nil) // which may be another replica's, and not known here yet
				}
				return last.Webhook, nil
			}
		case s.stale(&last, a):
			if err = s.shutOut(ctx, a, last); err == nil {
				return "", ErrStale
			}
		default:
			// Without an answer we do not know whether they have it. If it is sent again unchanged,
			// they know it by its id, or take it, or refuse it because the lane has another end.
			for err = s.extend(ctx, a, last); s.servers.Again(ctx, err); err = s.extend(ctx, a, last) {
				a.unsure, a.tried = true, last.Seq
			}
			if err == nil {
				return "", nil
			}
		}
		s.ends.Remove(a.place)
		if !servers.Conflict(err) && !s.servers.Again(ctx, err) {
			return "", err
		}
		if servers.Conflict(err) && last.Seq == refused {
			servers.Sleep(ctx, underWay)
		}
		refused = last.Seq
	}
}

// holds says whether the receiver has exactly a, or will get it as its lane's last.
func (s *Store) holds(last *message.End, a *arriving) bool {
	if s.cfg.DedupWindow <= 0 || !a.Snapshot || !bytes.Equal(last.Digest, a.Digest[:]) {
		return false
	}
	if last.Accepted.IsZero() {
		return !a.kept
	}
	return last.Receiver == s.receiverOf(a) && record.Held(record.Delivered, last.Accepted, s.cfg.DedupWindow) && s.ends.certain(last.Accepted)
}

func (s *Store) receiverOf(a *arriving) string {
	if a.kept {
		return ""
	}
	return s.cfg.Route(a.Lane)
}

// stale says whether a would undo something newer: a waited for longer than usual, and
// meanwhile something came into its lane through another replica. What this replica has put
// there came before a. Only snapshots undo each other.
func (s *Store) stale(last *message.End, a *arriving) bool {
	if !a.Snapshot || last.Others(s.self) <= a.seen {
		return false
	}
	return record.Elapsed(a.came) > patience || s.servers.TroubledSince(a.came)
}

// shutOut has the servers refuse a, if they may still get it: its sender is told that it is not
// there, and what sends it again must not meet the first one.
func (s *Store) shutOut(ctx context.Context, a *arriving, last message.End) error {
	if !a.unsure || last.Seq != a.tried {
		return nil // it expects another end of its lane, and was not found
	}
	_, err := s.restate(ctx, a.place, last, last.Again(message.Copy))
	return err
}

// extend writes a at the end of its lane.
func (s *Store) extend(ctx context.Context, a *arriving, last message.End) error {
	kind := message.Webhook
	if a.kept {
		kind = message.Kept
	}
	h := message.NewHead(kind, a.Webhook)
	h.Replica, h.Foreign = s.self, last.Others(s.self)
	if a.kept {
		h.Accepted = time.Now()
	}
	if !h.Bears {
		h.Last, h.Bearer = last.Last, last.Bearer
	}
	m := nats.NewMsg(s.subjects.Lane(a.place))
	whole := message.Pack(a.Webhook)
	c := whole
	if a.kept {
		c = c.Remembered(s.cfg.Essence) // the history gets all of it
	}
	c.Put(m)
	h.Put(m)
	// Sent again because its answer did not come, it is known to the servers by its id.
	m.Header.Set(jetstream.MsgIDHeader, a.Webhook.ID)
	if a.Lane.Tenant != "" {
		servers.Expect(m, last.Seq)
	}
	if size := len(m.Header.Get(message.HeadHeader)); size > message.LongestHead {
		return fmt.Errorf("%w: its tenant, platform and type take %d bytes, and %d is the most", webhookgate.ErrTooLarge, size, message.LongestHead)
	}
	if size := int64(m.Size()-len(c.Data)+len(whole.Data)) + message.Outcome; size > s.servers.Conn.MaxPayload() {
		return fmt.Errorf("%w: it takes %d bytes, and the inbox's servers take %d", webhookgate.ErrTooLarge, size, s.servers.Conn.MaxPayload())
	}
	seq, err := s.servers.Publish(ctx, m)
	if err != nil {
		return err
	}
	s.took(m, a.kept)
	e := message.NewEnd(seq, h)
	if a.Lane.Tenant != "" {
		s.ends.Add(a.place, e)
		if a.kept {
			s.replaced(last, &e) // others do that when they are delivered, with their rollup
		}
	}
	return s.arrived(ctx, a, seq)
}

// took counts a message that came in. One that is kept does not wait.
func (s *Store) took(m *nats.Msg, kept bool) {
	size := message.SizeOf(m.Header, m.Data)
	bytes := size - message.Aside
	if kept {
		size = 0
	}
	s.servers.Room.Took(bytes, size)
}

// arrived does what is left to do once a is in its lane.
func (s *Store) arrived(ctx context.Context, a *arriving, id uint64) error {
	if a.Snapshot && s.cfg.OnSnapshot != nil {
		s.cfg.OnSnapshot(a.Lane, id, a.Webhook)
	}
	if a.kept {
		return s.finishKept(ctx, a, id)
	}
	return nil
}

// finishKept puts a webhook that nobody takes into the history.
func (s *Store) finishKept(ctx context.Context, a *arriving, id uint64) error {
	r := &record.Record{ID: id, Webhook: a.Webhook, Status: record.Status{State: record.Kept, Changed: time.Now()}}
	return s.finish(ctx, r, message.Pack(a.Webhook), a.place)
}

// completeKept puts a webhook that nobody takes into the history, if it is not there: who took it
// in failed, or died, before that, so that its sender had no answer and has sent it again as a.
func (s *Store) completeKept(ctx context.Context, a *arriving, last message.End) error {
	_, err := s.servers.History.Last(ctx, s.subjects.Past(a.place, last.ID))
	if !servers.Missing(err) {
		return err
	}
	first := *a.Webhook
	first.ID, first.Received = last.Webhook, last.Received
	return s.finishKept(ctx, &arriving{Webhook: &first, place: a.place}, last.ID)
}

// gotIn looks for a webhook whose answer was lost, and returns its id; zero: the servers did not
// take it. Its lane ends with last by now, so they no longer will.
func (s *Store) gotIn(ctx context.Context, a *arriving, last *message.End) (id uint64, err error) {
	if last.Webhook == a.Webhook.ID {
		return last.ID, nil
	}
	look := func(m *jetstream.RawStreamMsg) {
		if h, err := message.ReadHead(m.Header); err == nil && h.Webhook == a.Webhook.ID {
			id = message.NewEnd(m.Sequence, h).ID
		}
	}
	// In the order in which it may go from one to the next.
	for _, subject := range []string{s.subjects.Lane(a.place), s.subjects.States(a.place)} {
		if err := s.servers.Waiting.Each(ctx, subject, a.seen+1, look); err != nil || id != 0 {
			return id, err
		}
	}
	past, err := s.pastOf(ctx, a.place)
	for _, one := range past {
		if err == nil && one > a.seen {
			err = s.servers.History.Each(ctx, s.subjects.Past(a.place, one), 1, look)
		}
	}
	return id, err
}
