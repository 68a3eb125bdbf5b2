package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/webhookgate"
)

// Append writes w at its lane's end, unless it is a copy of what is there. Then it writes
// that such a copy came: who still waits to append what came before it has to know.
func (s *jetStore) Append(w *webhookgate.Webhook) (string, error) {
	if err := s.Err(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), appendTimeout)
	defer cancel()
	token := laneToken(w.Lane)
	came, begin := time.Now(), s.mirror.begin()
	ahead, leave, err := s.line(ctx, token, w.ID)
	if err != nil {
		return "", err
	}
	defer leave()
	sure := false  // the mirror holds all that had been agreed on when w came
	noted := false // that w is a copy
	for {
		if sure && s.mirror.has(token, w.ID, begin) {
			return "", nil // an earlier try got there, and its answer did not get here
		}
		last, holds := s.mirror.tail(token, w)
		var seq uint64
		switch {
		case holds && noted:
			return last.Webhook, nil
		case holds:
			if seq, err = s.publish(ctx, s.copyMessage(w, last.end)); err == nil {
				noted = true
				err = s.mirror.await(ctx, seq)
			}
		case time.Since(came) > staleAfter && s.mirror.overtook(token, w, came.Add(staleAfter/2), ahead):
			err = errStale
		default:
			if seq, err = s.publish(ctx, s.recordMessage(w, last)); err == nil {
				s.mirror.setTail(token, tailFor(w, seq))
				return "", nil
			}
		}
		if isConflict(err) || passing(err) && ctx.Err() == nil {
			err = s.refresh(ctx, w.Lane, last.end)
		}
		if err != nil {
			return "", fmt.Errorf("the inbox's servers did not take the webhook: %w", err)
		}
		sure = true
	}
}

// staleAfter is how long a webhook may wait to be appended before its sender may have
// given it up, and gone on through another replica. What came in there then is newer, and
// the webhook would undo it. Half of it is how late a mirror learns, at most, unless the
// servers are in trouble: what is learned of later came later.
const staleAfter = 500 * time.Millisecond

// errStale: who sent it has gone on, or will send it again.
var errStale = errors.New("something newer of its tenant came through another replica meanwhile")

// passing says whether an error may be of the moment, as while the servers elect a
// leader. Whether the message was taken is then not known.
func passing(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrNoStreamResponse)
}

// refresh catches up. If the mirror still has the lane end with was, which the servers
// do not know as its last, it asks them.
func (s *jetStore) refresh(ctx context.Context, lane webhookgate.Lane, was uint64) error {
	if err := s.catchUp(ctx); err != nil {
		return err
	}
	token := laneToken(lane)
	if now, _ := s.mirror.tail(token, new(webhookgate.Webhook)); now.end != was {
		return nil
	}
	last, err := s.lastOn(ctx, s.laneSubject(lane))
	if err == nil && last != was { // it was old, and is deleted
		s.mirror.replaceEnd(lane, was, last)
	}
	return err
}

// lastOn asks the servers for the last message of a subject, zero being none, and
// returns when the mirror is as far. It is for a mirror that has caught up, and still
// expects another one than they do: what it expects was deleted.
func (s *jetStore) lastOn(ctx context.Context, subject string) (seq uint64, err error) {
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	m, err := s.stream().GetLastMsgForSubject(request, subject)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return m.Sequence, s.mirror.await(ctx, m.Sequence)
}

// turn is that of a webhook in a line.
type turn struct {
	webhook string
	left    chan struct{} // closed when it has left
}

// line has the webhooks of a lane that come in here appended one after the other, in
// the order of their arrival; at once they would only refuse each other. It returns
// those that were ahead, and how to leave it.
func (s *jetStore) line(ctx context.Context, token, webhook string) ([]turn, func(), error) {
	mine := turn{webhook, make(chan struct{})}
	s.mu.Lock()
	ahead := s.lines[token]
	s.lines[token] = append(slices.Clip(ahead), mine)
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		if rest := s.lines[token][1:]; len(rest) > 0 {
			s.lines[token] = rest
		} else {
			delete(s.lines, token)
		}
		s.mu.Unlock()
		close(mine.left)
	}
	if len(ahead) == 0 {
		return nil, leave, nil
	}
	before := ahead[len(ahead)-1].left
	select {
	case <-before:
		return ahead, leave, nil
	case <-ctx.Done():
		go func() {
			<-before
			leave()
		}()
		return nil, nil, ctx.Err()
	}
}

// Again notes that a record waits once more. That is refused when something has come
// into its lane since this replica looked, and then looked at anew.
func (s *jetStore) Again(r *record, force bool) error {
	if err := s.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), appendTimeout)
	defer cancel()
	lane := r.webhook.Lane
	var last mirrorLane
	for err := s.catchUp(ctx); ; err = s.refresh(ctx, lane, last.end) {
		if err != nil {
			return err
		}
		now, ok := s.mirror.find(r.id)
		last, _ = s.mirror.tail(now.token, r.webhook)
		switch {
		case !ok:
			return ErrNotFound
		case now.status.State == Waiting:
			return ErrWaiting
		case last.ID > r.id && !force:
			return errOvertaken
		case last.ID != r.id:
			// The receiver will hold something else than the lane's last.
			if _, err := s.publish(ctx, message(s.forgetSubject(lane), nil)); err != nil {
				return err
			}
		}
		if !r.status.Again.After(now.status.Again) {
			// The replica that did this the last time has a clock that is ahead of ours.
			r.status.Again = now.status.Again.Add(1)
		}
		status, err := encodeStatus(&r.status)
		if err != nil {
			return err
		}
		m := message(s.statusSubject(r.id), status)
		expectOn(m, s.laneSubject(lane), last.end)
		seq, err := s.publish(ctx, m)
		if err == nil {
			err = s.mirror.await(ctx, seq)
			if _, ok := s.mirror.find(r.id); err == nil && !ok {
				return ErrNotFound // it was old, and dropped before this was written
			}
			return err
		}
		if !isConflict(err) {
			return err
		}
	}
}

// Forget tells the lanes of a tenant to forget, and counts those that knew something.
func (s *jetStore) Forget(tenant string) (int, error) {
	if err := s.Err(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), appendTimeout)
	defer cancel()
	if err := s.catchUp(ctx); err != nil {
		return 0, err
	}
	lanes := s.mirror.remembering(tenant)
	for n, lane := range lanes {
		seq, err := s.publish(ctx, message(s.forgetSubject(lane), nil))
		if err == nil {
			err = s.mirror.await(ctx, seq)
		}
		if err != nil {
			return n, err
		}
	}
	return len(lanes), nil
}
