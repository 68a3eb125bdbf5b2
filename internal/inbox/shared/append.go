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
	"usher/webhookgate"
)

const (
	// appendTimeout is how long a webhook may take to be safe. A new leader among the
	// servers is elected within some seconds.
	appendTimeout = 5 * time.Second
	// slow is how long one request may take while all is well, and patience how long all of
	// them may. After that the sender may have given up, and gone on through another replica.
	slow     = 500 * time.Millisecond
	patience = 3 * time.Second
	// outcome is how many bytes more a message takes that says what became of a webhook, at the most: its tries, and
	// the receiver's words. Without room for them it could be delivered, but never finished.
	outcome = 32 << 10
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
	if err := s.room.check(len(w.Body), kept); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(s.alive, appendTimeout)
	defer cancel()
	a := &arriving{Webhook: w, place: placeOf(w.Lane), kept: kept, came: time.Now(), seen: s.seen.Load()}
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
		var last end
		if a.Lane.Tenant != "" {
			last, err = s.endOf(ctx, a.place)
		}
		var found uint64
		if err == nil && a.unsure && last.seq != a.tried {
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
			for err = s.extend(ctx, a, last); s.again(ctx, err); err = s.extend(ctx, a, last) {
				a.unsure, a.tried = true, last.seq
			}
			if err == nil {
				return "", nil
			}
		}
		s.ends.Remove(a.place)
		if !isConflict(err) && !s.again(ctx, err) {
			return "", err
		}
		if isConflict(err) && last.seq == refused {
			pause(ctx, underWay)
		}
		refused = last.seq
	}
}

// again says whether to ask the servers again, and waits a little: that no leader is there
// is said at once.
func (s *Store) again(ctx context.Context, err error) bool {
	if !passing(err) || ctx.Err() != nil {
		return false
	}
	s.troubled.Store(time.Now().UnixNano())
	pause(ctx, 50*time.Millisecond)
	return ctx.Err() == nil
}

// holds says whether the receiver has exactly a, or will get it as its lane's last.
func (s *Store) holds(last *end, a *arriving) bool {
	if s.cfg.DedupWindow <= 0 || !a.Snapshot || !bytes.Equal(last.Digest, a.Digest[:]) {
		return false
	}
	if last.Accepted.IsZero() {
		return !a.kept
	}
	return last.Receiver == s.receiverOf(a) && record.Held(record.Delivered, last.Accepted, s.cfg.DedupWindow)
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
func (s *Store) stale(last *end, a *arriving) bool {
	if !a.Snapshot || last.others(s.self) <= a.seen {
		return false
	}
	return time.Since(a.came) > patience || s.troubled.Load() > a.came.UnixNano()
}

// shutOut has the servers refuse a, if they may still get it: its sender is told that it is not
// there, and what sends it again must not meet the first one.
func (s *Store) shutOut(ctx context.Context, a *arriving, last end) error {
	if !a.unsure || last.seq != a.tried {
		return nil // it expects another end of its lane, and was not found
	}
	_, err := s.restate(ctx, a.place, last, last.again(copyKind))
	s.ends.Remove(a.place)
	return err
}

// extend writes a at the end of its lane.
func (s *Store) extend(ctx context.Context, a *arriving, last end) error {
	kind := webhookKind
	if a.kept {
		kind = keptKind
	}
	h := newHead(kind, a.Webhook)
	h.Replica, h.Foreign = s.self, last.others(s.self)
	if a.kept {
		h.Accepted = time.Now()
	}
	if !h.Bears {
		h.Last, h.Bearer = last.Last, last.Bearer
	}
	m := nats.NewMsg(s.subject("in", a.place))
	pack(a.Webhook).put(m)
	h.put(m)
	// Sent again because its answer did not come, it is known to the servers by its id.
	m.Header.Set(jetstream.MsgIDHeader, a.Webhook.ID)
	if a.Lane.Tenant != "" {
		expect(m, last.seq)
	}
	if size := len(m.Header.Get(headHeader)); size > longestHead {
		return fmt.Errorf("%w: its tenant, platform and type take %d bytes, and %d is the most", webhookgate.ErrTooLarge, size, longestHead)
	}
	if size := int64(m.Size()) + outcome; size > s.nc.MaxPayload() {
		return fmt.Errorf("%w: it takes %d bytes, and the inbox's servers take %d", webhookgate.ErrTooLarge, size, s.nc.MaxPayload())
	}
	seq, err := s.publish(ctx, m)
	if err != nil {
		return err
	}
	s.room.took(sizeOf(m.Header, m.Data), a.kept)
	e := newEnd(seq, h)
	if a.Lane.Tenant != "" {
		s.ends.Add(a.place, e)
		if a.kept {
			s.replaced(last, &e) // others do that when they are delivered, with their rollup
		}
	}
	return s.arrived(ctx, a, seq)
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
	return s.finish(ctx, r, pack(a.Webhook), a.place)
}

// completeKept puts a webhook that nobody takes into the history, if it is not there: who took it
// in failed, or died, before that, so that its sender had no answer and has sent it again as a.
func (s *Store) completeKept(ctx context.Context, a *arriving, last end) error {
	_, history, err := s.streams()
	if err != nil {
		return err
	}
	_, err = request(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return history.GetLastMsgForSubject(ctx, s.historySubject(a.place, last.ID))
	})
	if !errors.Is(err, jetstream.ErrMsgNotFound) {
		return err
	}
	first := *a.Webhook
	first.ID, first.Received = last.Webhook, last.Received
	return s.finishKept(ctx, &arriving{Webhook: &first, place: a.place}, last.ID)
}

// gotIn looks for a webhook whose answer was lost, and returns its id; zero: the servers did not
// take it. Its lane ends with last by now, so they no longer will.
func (s *Store) gotIn(ctx context.Context, a *arriving, last *end) (id uint64, err error) {
	if last.Webhook == a.Webhook.ID {
		return last.ID, nil
	}
	stream, history, err := s.streams()
	if err != nil {
		return 0, err
	}
	look := func(m *jetstream.RawStreamMsg) error {
		if h, err := readHead(m.Header); err == nil && h.Webhook == a.Webhook.ID {
			id = newEnd(m.Sequence, h).ID
		}
		return nil
	}
	// In the order in which it may go from one to the next.
	for _, subject := range []string{s.subject("in", a.place), s.part(s.partOf(a.place), "*."+a.place+".*")} {
		if err := s.each(ctx, stream, subject, a.seen+1, look); err != nil || id != 0 {
			return id, err
		}
	}
	past, err := idsOn(ctx, history, s.historyPrefix+a.place+".")
	for _, one := range past {
		if err == nil && one > a.seen {
			err = s.each(ctx, history, s.historySubject(a.place, one), 1, look)
		}
	}
	return id, err
}

// passing says whether an error may be of the moment, as while the servers elect a
// leader. Whether the message was taken is then not known.
func passing(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, nats.ErrNoResponders) || errors.As(err, &api) && (api.ErrorCode == duplicateUnderWay || api.Code == 503)
}

// duplicateUnderWay: the servers are about to take a message of that id.
const duplicateUnderWay = 10158

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
