package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
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

	lease    *Lease // this process may deliver the webhook now
	unleased bool   // the lane was idle, but this process had no room: any process may lease it
}

// An intake is the op that takes a webhook in.
type intake struct {
	s         *Store
	hook      *webhookgate.Webhook // as the gate has read it
	row       *Webhook
	snapshot  *snapshotRow // nil: the webhook is no snapshot
	skipDedup bool         // somebody accepted it by hand, so it is no duplicate
	accepted  *Webhook     // the refused webhook that somebody accepted
	abandoned atomic.Bool  // the sender has given up waiting
	reserved  bool         // the courier has reserved room for it
	answer    Answer
	reply     chan error
}

// Add takes a webhook in and returns when it is stored durably. When ctx ends first, Add returns an error. Then the webhook
// may have been taken in or not, but it is not taken in later: the sender may have sent a newer one through another replica
// meanwhile.
func (s *Store) Add(ctx context.Context, w *webhookgate.Webhook) Answer {
	if s.cfg.Engine.AlmostFull() {
		return Answer{Err: errors.New("the disk of the inbox's file is full")}
	}
	i := s.newIntake(w)
	return i.submit(ctx, i)
}

// submit hands the intake, or an op that it is part of, to the writer, and waits for the answer until ctx ends.
func (i *intake) submit(ctx context.Context, o op) Answer {
	err := i.s.await(ctx, ctx.Done(), o, i.reply)
	if err == nil {
		return i.answer
	}
	i.abandoned.Store(true)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = i.s.timeoutErr()
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

func (s *Store) newIntake(w *webhookgate.Webhook) *intake {
	i := &intake{s: s, hook: w, row: newWebhook(w), reply: make(chan error, 1)}
	if w.Snapshot {
		state := w.State
		if state == nil { // it does not come from the gate
			read := snapshot.Read(w.Body)
			state = &read
		}
		i.snapshot = &snapshotRow{lane: i.row.lane, Stored: snapshot.Stored{
			Platform: w.Lane.Platform, Tenant: w.Lane.Tenant, Name: state.Name, Webhook: w.ID, Features: state.Encode(),
		}}
	}
	return i
}

func (i *intake) weight() int64 { return i.row.size }

func (i *intake) need(n *needs) bool {
	i.answer = Answer{} // a transaction that failed may have left one
	if i.abandoned.Load() {
		return false
	}
	n.lanes[i.row.lane] = i.hook.Lane
	n.newNumbers++
	if i.hook.SignedID != "" {
		n.seenIDs = append(n.seenIDs, i.seenID())
	}
	if i.hook.Snapshot {
		n.refused[i.row.lane] = true
		if i.s.cfg.KeepLatest {
			n.waiting[i.row.lane] = true
		}
	}
	return true
}

// decide answers with the original if the webhook is a duplicate, and else puts it at the end of its lane.
func (i *intake) decide(b *batch) {
	i.answer = Answer{}
	// The lane is locked until the transaction ends. So if the sender gives up from here on, and sends a newer webhook
	// through another replica, the newer one waits for the lock and comes after this one. If the sender gave up before, a
	// newer one may already be in the lane, and this one must not come after it. (The lane was not locked all the time if the
	// transaction runs again.)
	if i.abandoned.Load() {
		i.answer.Err = i.s.timeoutErr()
		return
	}
	s, row := i.s, i.row
	l := b.lanes[row.lane]
	if original := i.duplicate(b, l); original != "" && !i.skipDedup {
		i.answer.DuplicateOf = original
		seq := int64(0)
		if original == l.tailID {
			seq = l.tail
		}
		i.rememberID(b, seq, original) // the same id must be a duplicate later, too, whatever has come meanwhile
		for _, old := range b.supersedable[row.lane] {
			if old.State == Refused && !old.Newer {
				old.Newer = true
				b.markChanged(old)
			}
		}
		return
	}
	rc := i.hook.Receiver
	kept := s.cfg.Keep && rc == nil && l.waiting == 0 && l.parked == 0
	if !kept && s.wouldOverflow(b.bytesAdded+row.size) {
		i.answer.Err = webhookgate.ErrFull
		return
	}
	if kept {
		i.appendKept(b, l)
	} else {
		i.append(b, l)
		i.enqueue(b, l, rc)
	}
	i.rememberID(b, row.ID, row.Webhook)
	if i.snapshot != nil {
		i.supersedeRefused(b, l)
	}
	if i.accepted != nil {
		b.move(l, i.accepted, Accepted, fmt.Sprint("taken in as ", row.ID))
	}
}

// append gives the webhook its number, and makes it the tail of its lane.
func (i *intake) append(b *batch, l *lane) {
	row := i.row
	row.ID, row.Received = b.nextNumber(), b.time()
	row.Status = Status{}
	l.tail, l.tailID, l.dirty = row.ID, row.Webhook, true
	b.added = append(b.added, row)
	if i.snapshot != nil {
		i.snapshot.Seq, i.snapshot.Received = row.ID, row.Received
		b.snapshots = append(b.snapshots, i.snapshot)
	}
}

// appendKept takes the webhook in as kept: it is not delivered, and dedup goes by usher itself as its receiver.
func (i *intake) appendKept(b *batch, l *lane) {
	i.append(b, l)
	l.countIn(i.row, Kept, "", b.time())
	l.tailDigest = nil
	l.held, l.heldAt, l.heldBy, l.heldID = dedupDigest(i.row), b.now, "", i.row.Webhook
	i.s.sweepSoon.Store(true)
}

// rememberID stores the webhook's signed id, if it has one, together with the original: the webhook itself, or the one that it
// is a duplicate of. seq is the original's number; zero: the original counts as delivered.
func (i *intake) rememberID(b *batch, seq int64, uuid string) {
	if i.hook.SignedID == "" {
		return
	}
	id := &seenRow{seenID: i.seenID(), digest: i.row.digest, seq: seq, at: b.now, state: Waiting, uuid: uuid}
	same := func(known *seenRow) bool { return bytes.Equal(known.digest, id.digest) }
	if uuid != i.row.Webhook && slices.ContainsFunc(b.seen[id.seenID], func(known *seenRow) bool { return same(known) && known.makesCopy(b) }) {
		return // the 15 minutes count from the first time
	}
	b.seen[id.seenID] = append(slices.DeleteFunc(b.seen[id.seenID], same), id) // other ops of this batch must see it
	b.seenChanges = append(b.seenChanges, id)
}

// duplicate returns the webhook-id of the original if the webhook is a duplicate, and else an empty string. This is the whole
// rule:
//
//   - A signed id that was seen within 15 minutes, with the same body, is a duplicate whatever has come since.
//   - While webhooks wait in the lane, a copy of the tail is a duplicate, if the tail still waits.
//   - If none waits, a copy of the snapshot that the receiver holds for sure is a duplicate, if the same receiver accepted
//     it within the window.
//
// Anything else may be a change. In A, B, A the second A is not a duplicate.
func (i *intake) duplicate(b *batch, l *lane) string {
	row := i.row
	reused := false
	if i.hook.SignedID != "" {
		for _, seen := range b.seen[i.seenID()] {
			same := bytes.Equal(seen.digest, row.digest)
			if same && seen.makesCopy(b) {
				return seen.uuid
			}
			reused = reused || !same && seen.recent(b)
		}
	}
	if reused {
		i.s.cfg.Log.Warn("webhook-id was used before, for another body: usher accepts the webhook", "webhook", row.Webhook, "tenant", row.Tenant)
	}
	if !row.snapshot || i.s.cfg.DedupWindow == 0 {
		return ""
	}
	if l.waiting > 0 {
		if l.tailDigest != nil && bytes.Equal(l.tailDigest, row.digest) {
			return l.tailID
		}
		return ""
	}
	// After a forced redelivery the receiver holds an older snapshot than the tail. Then a copy of that older one is a change,
	// which the sender made after the tail.
	holdsTail := l.held != nil && l.heldID == l.tailID && l.heldBy == nameOf(i.hook.Receiver)
	age := time.Duration(b.now-l.heldAt) * time.Microsecond
	if holdsTail && bytes.Equal(l.held, row.digest) && age.Abs() < i.s.cfg.DedupWindow {
		return l.heldID
	}
	return ""
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

// enqueue puts the webhook at the end of its lane. If the lane was idle, and the courier of this process has room, the same
// transaction gives this process the lease. So most webhooks need no claim.
func (i *intake) enqueue(b *batch, l *lane, rc *receiver.Receiver) {
	s, row := i.s, i.row
	// Superseding, below, may empty the lane, but does not make it idle: its backoff, its pause and its turn stay.
	idle := l.waiting == 0
	if s.cfg.KeepLatest && row.snapshot {
		b.endExpiredLease(l)
		for _, old := range b.waiting[row.lane] {
			if old.State == Waiting && old.snapshot && !old.Forced && !(b.leased(l) && l.leasedID == old.ID) {
				b.move(l, old, Superseded, newerCame)
			}
		}
		b.waiting[row.lane] = slices.DeleteFunc(b.waiting[row.lane], func(old *Webhook) bool { return old.State != Waiting })
	}
	b.bytesAdded += row.size
	l.countIn(row, Waiting, "", b.time())
	l.tailDigest = dedupDigest(row)
	b.waiting[row.lane] = append(b.waiting[row.lane], row)
	if next := b.next[row.lane]; next == nil || next.State != Waiting {
		// An outcome or a claim of the same batch looks here for the lane's next webhook: row, or one that waits before it and
		// was not superseded.
		first := slices.IndexFunc(b.waiting[row.lane], func(h *Webhook) bool { return h.State == Waiting && h.ID != l.leasedID })
		b.next[row.lane] = b.waiting[row.lane][first]
	}
	if !idle {
		return
	}
	// From here on the receiver may hold this webhook or the one before: a try may succeed without our knowing. Only a 2xx says
	// which.
	l.held, l.waitingSince = nil, b.now
	l.clearBackoff()
	l.release(b.now)
	if rc == nil || l.paused || s.cfg.Courier == nil {
		return
	}
	if i.reserved = i.reserved || s.cfg.Courier.Reserve(rc, row.size); i.reserved { // once, also if the transaction runs again
		i.answer.lease = b.grantLease(l, row, rc)
		return
	}
	i.answer.unleased = true
}

const newerCame = "a newer snapshot of the tenant came before it was delivered"

// supersedeRefused supersedes the tenant's refused webhooks: this snapshot is newer and complete. It leaves alone events of
// other types, whose content no snapshot has. If this webhook is a refused one that somebody has accepted, it only supersedes
// those that were last received before it.
func (i *intake) supersedeRefused(b *batch, l *lane) {
	for _, old := range b.supersedable[i.row.lane] {
		sameType := old.Type == i.row.Type || old.Type == ""
		isOlder := i.accepted == nil || old.ID < i.accepted.ID && !old.Last.After(i.accepted.lastReceived())
		if old.State == Refused && sameType && isOlder {
			b.move(l, old, Superseded, "a newer snapshot of the tenant was taken in")
		}
	}
}

func (i *intake) done(err error) {
	a := i.answer
	if err != nil {
		a = Answer{Err: err}
	}
	if i.reserved {
		i.s.cfg.Courier.Release(i.hook.Receiver, i.row.size)
	}
	if a.Err == nil && i.snapshot != nil { // also for a duplicate: the original may have come through another replica
		i.s.cfg.Changed(i.row.Tenant)
	}
	i.reply <- a.Err
	switch {
	case a.lease != nil:
		i.s.cfg.Courier.Deliver(a.lease)
	case a.unleased:
		i.s.cfg.Courier.Wake(i.hook.Receiver)
	}
}

// wouldOverflow says whether there is no room for so many more bytes.
func (s *Store) wouldOverflow(more int64) bool {
	used, err := s.used()
	return err == nil && used+more > s.cfg.MaxBytes
}

// A snapshotRow is a row of the table snapshot: the last snapshot of a tenant, for entitlements.
type snapshotRow struct {
	lane Key
	snapshot.Stored
}

func (r *snapshotRow) columns() []any {
	return []any{r.lane[:], r.Seq, r.Webhook, r.Received.UnixMicro(), r.Name, r.Features}
}

// seenIDsFor is how long a signed webhook-id is remembered. It is longer than a signature is valid.
const seenIDsFor = 15 * time.Minute

// A seenID is a signed webhook-id in a lane, as its hash.
type seenID struct {
	lane Key
	hash [32]byte
}

func (i *intake) seenID() seenID { return seenID{i.row.lane, sha256.Sum256([]byte(i.hook.SignedID))} }

// A seenRow is a row of the table seen_id: a signed webhook-id that was seen, with the body that it came with.
type seenRow struct {
	seenID
	digest []byte
	at     int64

	// The original.
	seq   int64 // zero: it counts as delivered
	uuid  string
	state State
}

func (r *seenRow) recent(b *batch) bool { return b.now-r.at < micros(seenIDsFor) }

// makesCopy says whether a webhook with this id and body is a duplicate: not if the original was parked or discarded, or came
// too long ago.
func (r *seenRow) makesCopy(b *batch) bool {
	state := r.state
	if original := b.changed[r.seq]; original != nil { // another op of this batch has changed it
		state = original.State
	}
	return r.recent(b) && (state == Waiting || state.Taken() || state == Superseded)
}

func scanSeen(r Row) (*seenRow, error) {
	s := new(seenRow)
	var lane, hash, uuid []byte
	var state int64
	err := r.Scan(&lane, &hash, &s.digest, &s.seq, &s.at, &state, &uuid)
	copy(s.lane[:], lane)
	copy(s.hash[:], hash)
	s.state, s.uuid = stateOf(state), string(uuid)
	return s, err
}

func (r *seenRow) columns() []any { return []any{r.lane[:], r.hash[:], r.digest, r.seq, r.at, r.uuid} }
