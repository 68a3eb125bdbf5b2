package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"usher/internal/receiver"
	"usher/internal/snapshot"
	"usher/webhookgate"
)

// An Answer is what became of a webhook that was to be taken in.
type Answer struct {
	DuplicateOf string // the webhook-id of what it is a copy of; empty: it was taken in
	lease       *Lease // this process may deliver it now; nil: some process will
	unleased    bool   // nobody does yet
	Err         error
}

// intake takes a webhook in.
type intake struct {
	s         *Store
	hook      *webhookgate.Webhook
	row       *Webhook
	snapshot  *snapshotRow
	mayKeep   bool // it may be kept, if no receiver takes it
	skipDedup bool // it is accepted by hand: it is no copy
	accepted  *Webhook
	abandoned atomic.Bool // the sender has given it up

	reserved bool
	answer   Answer
	reply    chan Answer
}

// Add takes a webhook in and returns once that is durable. After ctx ends it returns an error; then the webhook may
// have been taken in or not, but it is not taken in later: the sender may have gone on through another replica.
func (s *Store) Add(ctx context.Context, w *webhookgate.Webhook, keep bool) Answer {
	if s.cfg.Engine.AlmostFull() {
		return Answer{Err: errors.New("the disk of the inbox's file is full")}
	}
	i := s.newIntake(w)
	i.mayKeep = keep
	return i.submit(ctx, i)
}

// submit hands the intake, or an op that it is part of, to the writer, and waits until ctx ends.
func (i *intake) submit(ctx context.Context, o op) Answer {
	a, err := await(ctx, ctx.Done(), i.s, o, i.reply)
	if err != nil {
		i.abandoned.Store(true)
		if !errors.Is(err, ErrClosed) {
			err = i.s.timeoutErr()
		}
		return Answer{Err: err}
	}
	return a
}

func (s *Store) timeoutErr() error {
	if err := s.health.lastErr(); err != nil {
		return err
	}
	return errors.New("the inbox did not confirm it in time")
}

func (s *Store) newIntake(w *webhookgate.Webhook) *intake {
	i := &intake{s: s, hook: w, row: newWebhook(w), reply: make(chan Answer, 1)}
	if w.Snapshot {
		says := w.Says
		if says == nil { // it does not come from the gate
			seen := snapshot.Read(w.Body)
			says = &snapshot.Kept{Name: seen.Name, Features: seen.Encode()}
		}
		i.snapshot = &snapshotRow{lane: i.row.lane, Stored: snapshot.Stored{
			Platform: w.Lane.Platform, Tenant: w.Lane.Tenant, Name: says.Name, Webhook: w.ID, Features: says.Features,
		}}
	}
	return i
}

func (i *intake) weight() int64 { return i.row.size }

func (i *intake) need(n *needs) bool {
	i.answer = Answer{} // what a transaction that failed decided does not count
	if i.abandoned.Load() {
		return false
	}
	l := i.hook.Lane
	n.lanes[i.row.lane] = l
	n.newNumbers++
	if i.hook.SignedID != "" {
		n.seenIDs = append(n.seenIDs, i.seenID())
	}
	if i.hook.Snapshot {
		n.supersedable[i.row.lane] = true
		if i.s.cfg.KeepLatest {
			n.waiting[i.row.lane] = true
		}
	}
	return true
}

func (i *intake) decide(b *batch) {
	i.answer = Answer{}
	// The lane is locked until the transaction ends. So a sender that gives up from here on, and sends through another
	// replica, finds what becomes of this one. One that gave up before may have found nothing: a transaction that must be
	// run again had no lock in between.
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
		i.rememberID(b, seq, original) // the id of a copy must not bring it back later either
		for _, old := range b.supersedable[row.lane] {
			if old.State == Refused && !old.Newer {
				old.Newer = true
				b.markChanged(old)
			}
		}
		return
	}
	rc := i.hook.Receiver
	kept := i.mayKeep && rc == nil && l.waiting == 0 && l.parked == 0
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
		b.move(l, i.accepted, Accepted, "taken in as "+itoa(row.ID))
	}
}

// take gives the webhook its number, and makes it its lane's last.
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

// keepIn takes the webhook in as one that is not to be delivered: usher itself holds it.
func (i *intake) appendKept(b *batch, l *lane) {
	i.append(b, l)
	l.countIn(i.row, Kept, "", b.time())
	l.tailDigest = nil
	l.held, l.heldAt, l.heldBy, l.heldID = dedupDigest(i.row), b.now, "", i.row.Webhook
	i.s.sweepSoon.Store(true)
}

// remember notes a signed webhook-id: that of a webhook, or of a copy of one. seq is zero if that one was delivered.
func (i *intake) rememberID(b *batch, seq int64, uuid string) {
	if i.hook.SignedID == "" {
		return
	}
	id := &seenRow{seenID: i.seenID(), digest: i.row.digest, seq: seq, at: b.now, state: Waiting, uuid: uuid}
	same := func(known *seenRow) bool { return bytes.Equal(known.digest, id.digest) }
	if uuid != i.row.Webhook && slices.ContainsFunc(b.seen[id.seenID], func(known *seenRow) bool { return same(known) && known.makesCopy(b) }) {
		return // the window counts from the first
	}
	b.seen[id.seenID] = append(slices.DeleteFunc(b.seen[id.seenID], same), id) // for the rest of this batch
	b.seenChanges = append(b.seenChanges, id)
}

// duplicate returns what i is a copy of: of what arrived last, while that one waits; else of what the receiver
// holds for sure, if it took it within the window. A signed id that was seen before is a copy whatever came since.
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
		i.s.cfg.Log.Warn("webhook has a signed webhook-id that another webhook had before; it is taken in", "webhook", row.Webhook, "tenant", row.Tenant)
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
	// After a forced redelivery the receiver holds something older than what was taken in last. Then the same again is a change.
	age := time.Duration(b.now-l.heldAt) * time.Microsecond
	if l.held != nil && l.heldID == l.tailID && bytes.Equal(l.held, row.digest) && age.Abs() < i.s.cfg.DedupWindow && l.heldBy == nameOf(i.hook.Receiver) {
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

// digestOf is what a copy is compared with: only snapshots have copies.
func dedupDigest(w *Webhook) []byte {
	if !w.snapshot {
		return nil
	}
	return w.digest
}

// queue puts the webhook at the end of its lane. If the lane was idle, and this process has room, it may deliver it at
// once: that saves another transaction.
func (i *intake) enqueue(b *batch, l *lane, rc *receiver.Receiver) {
	s, row := i.s, i.row
	idle := l.waiting == 0 // superseding does not make it so: pauses are the lane's, and so is its turn
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
	if next := b.next[row.lane]; next == nil || next.State != Waiting { // for an outcome or a claim of this batch
		first := slices.IndexFunc(b.waiting[row.lane], func(h *Webhook) bool { return h.State == Waiting && h.ID != l.leasedID })
		b.next[row.lane] = b.waiting[row.lane][first] // row, or what waits before it and was not superseded
	}
	if !idle {
		return
	}
	// From here on the receiver may hold this one or what it held before. Only a 2xx tells.
	l.held, l.waitingSince = nil, b.now
	l.clearBackoff()
	l.release(b.now)
	if rc == nil || l.paused || s.cfg.Courier == nil {
		return
	}
	if i.reserved = i.reserved || s.cfg.Courier.Reserve(rc, row.size); i.reserved { // kept, if the transaction runs again
		i.answer.lease = b.grantLease(l, row, rc)
		return
	}
	i.answer.unleased = true
}

const newerCame = "a newer snapshot of the tenant came before it was delivered"

// settleRefused marks what was refused of the tenant before: this snapshot says what it would have said. It does not say what an
// event of another type would have said. If it was refused itself, it says nothing about what came again after it.
func (i *intake) supersedeRefused(b *batch, l *lane) {
	for _, old := range b.supersedable[i.row.lane] {
		if old.State == Refused && (old.Type == i.row.Type || old.Type == "") && old != i.accepted && (i.accepted == nil || old.ID < i.accepted.ID && !old.Last.After(i.accepted.lastReceived())) {
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
	if a.Err == nil && i.snapshot != nil { // of a copy, too: the first may have come through another replica
		i.s.cfg.Changed(i.row.Tenant)
	}
	i.reply <- a
	switch {
	case a.lease != nil:
		i.s.cfg.Courier.Deliver(a.lease)
	case a.unleased:
		i.s.cfg.Courier.LaneReady(i.hook.Receiver)
	}
}

// full says whether there is no room for so many bytes more.
func (s *Store) wouldOverflow(more int64) bool {
	used, err := s.used()
	return err == nil && used+more > s.cfg.MaxBytes
}

// snapshotRow is a row of the table snapshot: a tenant's last one, for entitlements.
type snapshotRow struct {
	lane Key
	snapshot.Stored
}

func (r *snapshotRow) columns() []any {
	return []any{r.lane[:], r.Seq, r.Webhook, r.Received.UnixMicro(), r.Name, r.Features}
}

// seenFor is how long a signed webhook-id is remembered.
const seenIDsFor = 15 * time.Minute

// seenID is a signed webhook-id of a lane.
type seenID struct {
	lane Key
	hash [32]byte
}

func (i *intake) seenID() seenID { return seenID{i.row.lane, sha256.Sum256([]byte(i.hook.SignedID))} }

// seenRow is a row of the table seen_id: a signed webhook-id that was taken in, with that body.
type seenRow struct {
	seenID
	digest []byte
	seq    int64
	at     int64
	state  State // of that webhook
	uuid   string
}

func (r *seenRow) recent(b *batch) bool { return b.now-r.at < int64(seenIDsFor/time.Microsecond) }

// counts says whether the same again would be a copy: not if the first was parked or discarded, or came too long ago.
func (r *seenRow) makesCopy(b *batch) bool {
	state := r.state
	if now := b.changed[r.seq]; now != nil { // in this batch
		state = now.State
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
