package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// An Answer says what was done with a webhook that Add got.
type Answer struct {
	DuplicateOf string // the webhook-id of the original; empty: it is no duplicate, and was taken in
	Err         error

	id       int64  // its number
	lease    *Lease // this process may deliver the webhook now
	unleased bool   // the lane was idle, but this process had no room: any process may lease it
}

// Add takes a webhook in and returns when it is stored durably. When ctx ends first, Add returns an error. Then the webhook
// may have been taken in or not, but it is not taken in later: the sender may have sent a newer one through another replica
// meanwhile.
func (s *Store) Add(ctx context.Context, w *webhookgate.Webhook) Answer {
	if s.cfg.Engine.AlmostFull() {
		return Answer{Err: errors.New("the disk of the inbox's file is full")}
	}
	return s.takeIn(ctx, arriving(w), work{}, func(*sqlTurn, *lane, *incoming) error { return nil })
}

// takeIn takes a webhook in, unless check says why not.
func (s *Store) takeIn(ctx context.Context, in incoming, w work, check func(*sqlTurn, *lane, *incoming) error) (answer Answer) {
	var gaveUp atomic.Bool
	reply := make(chan error, 1)
	w.lanes, w.numbers, w.bytes = []webhookgate.Lane{in.name}, 1, in.size
	w.wanted = func() bool { return !gaveUp.Load() }
	w.failed = func(err error) { reply <- err }
	if in.signed {
		w.ids = []seenID{{in.lane, in.signedID}}
	}
	w.decide = func(t *sqlTurn) func() {
		var a Answer
		in, l := in, t.lanes[in.lane]
		// The lane is locked until the transaction ends. So if the sender gives up from here on, and sends a newer webhook
		// through another replica, the newer one waits for the lock and comes after this one. If the sender gave up before, a
		// newer one may already be in the lane, and this one must not come after it. (The lane was not locked all the time if the
		// transaction runs again.)
		if gaveUp.Load() {
			a.Err = s.timeoutErr()
		} else if a.Err = check(t, l, &in); a.Err == nil {
			a = l.take(&in)
		}
		return func() {
			if a.Err == nil && in.snapshot { // also for a duplicate: the original may have come through another replica
				s.cfg.Changed(in.Tenant)
			}
			answer = a
			reply <- nil
			switch {
			case a.lease != nil:
				s.cfg.Courier.Deliver(a.lease)
			case a.unleased:
				s.cfg.Courier.Wake(in.receiver)
			}
		}
	}
	err := s.await(ctx, ctx.Done(), &w, reply)
	if err == nil {
		return answer
	}
	gaveUp.Store(true)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = s.timeoutErr()
	}
	return Answer{Err: err}
}

// timeoutErr is the error of an op that the writer did not confirm in time: the outage, if there is one.
func (s *Store) timeoutErr() error {
	if err := s.health.lastErr(); err != nil {
		return err
	}
	return errors.New("the inbox did not confirm the webhook in time")
}

// arriving reads what the inbox must know of a webhook.
func arriving(w *webhookgate.Webhook) incoming {
	in := incoming{Webhook: newWebhook(w), name: w.Lane, receiver: w.Receiver, signed: w.SignedID != "", signedID: sha256.Sum256([]byte(w.SignedID))}
	if w.Snapshot {
		state := w.State
		if state == nil { // it does not come from the gate
			read := snapshot.Read(w.Body)
			state = &read
		}
		in.state = &snapshot.Stored{Platform: w.Lane.Platform, Tenant: w.Lane.Tenant, Name: state.Name, Webhook: w.ID, Features: state.Encode()}
	}
	return in
}

func nameOf(rc *receiver.Receiver) string {
	if rc == nil {
		return ""
	}
	return rc.Name
}

// dedupDigest is the digest that arriving webhooks are compared with. Only snapshots have duplicates.
func dedupDigest(w *Webhook) []byte {
	if !w.snapshot {
		return nil
	}
	return w.digest
}

// wouldOverflow says whether there is no room for so many more bytes.
func (s *Store) wouldOverflow(more int64) bool {
	used, err := s.used()
	return err == nil && used+more > s.cfg.MaxBytes
}

// snapshotColumns returns the arguments of snapshot_save.
func snapshotColumns(r *snapshot.Stored) []any {
	return []any{r.Tenant, r.Platform, r.Seq, r.Webhook, r.Received.UnixMicro(), r.Name, string(r.Features)}
}

// withoutZero replaces the zero character, which PostgreSQL's text cannot have.
func withoutZero(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }

// seenIDsFor is how long a signed webhook-id is remembered. It is longer than a signature is valid.
const seenIDsFor = 15 * time.Minute

// A seenID is a signed webhook-id in a lane, as its hash.
type seenID struct {
	lane webhookgate.Lane
	hash [32]byte
}

// A seenRow is a row of the table seen_id: a signed webhook-id that was seen, with the body that it came with.
type seenRow struct {
	seenID
	digest []byte
	at     int64

	// The original.
	seq   int64 // zero: it counts as delivered
	uuid  string
	state State
	rank  int64
}

func scanSeen(r Row) (*seenRow, error) {
	s := new(seenRow)
	var hash []byte
	var state int64
	err := r.Scan(&s.lane.Tenant, &s.lane.Platform, &s.lane.Type, &hash, &s.digest, &s.seq, &s.at, &state, &s.rank, &s.uuid)
	copy(s.hash[:], hash)
	s.state = stateOf(state)
	return s, err
}

func (r *seenRow) columns() []any {
	return []any{r.lane.Tenant, r.lane.Platform, r.lane.Type, r.hash[:], r.digest, r.seq, r.at, r.uuid}
}
