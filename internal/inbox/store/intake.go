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
	Leave       *Leave // this process may deliver it now; nil: some process will
	left        bool   // nobody does yet
	Err         error
}

// intake takes a webhook in.
type intake struct {
	s     *Store
	hook  *webhookgate.Webhook
	row   *Webhook
	snap  *snapshotRow
	keep  bool // it may be kept, if no receiver takes it
	force bool // it is accepted by hand: it is no copy
	from  *Webhook
	gone  atomic.Bool // the sender has given it up

	granted bool
	answer  Answer
	reply   chan Answer
}

// Add takes a webhook in and returns once that is durable. After ctx ends it returns an error; then the webhook may
// have been taken in or not, but it is not taken in later: the sender may have gone on through another replica.
func (s *Store) Add(ctx context.Context, w *webhookgate.Webhook, keep bool) Answer {
	if s.cfg.Engine.Tight() {
		return Answer{Err: errors.New("the disk of the inbox's file is full")}
	}
	i := s.newIntake(w)
	i.keep = keep
	return i.submit(ctx, i)
}

// submit hands the intake, or an op that it is part of, to the writer, and waits until ctx ends.
func (i *intake) submit(ctx context.Context, o op) Answer {
	a, err := await(ctx, ctx.Done(), i.s, o, i.reply)
	if err != nil {
		i.gone.Store(true)
		if !errors.Is(err, ErrClosed) {
			err = i.s.tooSlow()
		}
		return Answer{Err: err}
	}
	return a
}

func (s *Store) tooSlow() error {
	if err := s.health.get(); err != nil {
		return err
	}
	return errors.New("the inbox did not confirm it in time")
}

func (s *Store) newIntake(w *webhookgate.Webhook) *intake {
	i := &intake{s: s, hook: w, row: newWebhook(w), reply: make(chan Answer, 1)}
	if w.Snapshot {
		state := w.State
		if state == nil { // it does not come from the gate
			read := snapshot.Read(w.Body)
			state = &read
		}
		i.snap = &snapshotRow{lane: i.row.lane, Stored: snapshot.Stored{
			Platform: w.Lane.Platform, Tenant: w.Lane.Tenant, Name: state.Name, Webhook: w.ID, Features: state.Encode(),
		}}
	}
	return i
}

func (i *intake) weight() int64 { return i.row.size }

func (i *intake) need(n *needs) bool {
	i.answer = Answer{} // what a transaction that failed decided does not count
	if i.gone.Load() {
		return false
	}
	l := i.hook.Lane
	n.lanes[i.row.lane] = l
	n.count++
	if i.hook.SignedID != "" {
		n.seen = append(n.seen, i.seenID())
	}
	if i.hook.Snapshot {
		n.rest[i.row.lane] = true
		if i.s.cfg.KeepLatest {
			n.queue[i.row.lane] = true
		}
	}
	return true
}

func (i *intake) decide(w *work) {
	i.answer = Answer{}
	// The lane is locked until the transaction ends. So a sender that gives up from here on, and sends through another
	// replica, finds what becomes of this one. One that gave up before may have found nothing: a transaction that must be
	// run again had no lock in between.
	if i.gone.Load() {
		i.answer.Err = i.s.tooSlow()
		return
	}
	s, row := i.s, i.row
	l := w.lanes[row.lane]
	if original := i.duplicate(w, l); original != "" && !i.force {
		i.answer.DuplicateOf = original
		seq := int64(0)
		if original == l.tailID {
			seq = l.tail
		}
		i.remember(w, seq, original) // the id of a copy must not bring it back later either
		for _, old := range w.rest[row.lane] {
			if old.State == Refused && !old.Newer {
				old.Newer = true
				w.change(old)
			}
		}
		return
	}
	rc := i.hook.Receiver
	kept := i.keep && rc == nil && l.waiting == 0 && l.parked == 0
	if !kept && s.full(w.bytes+row.size) {
		i.answer.Err = webhookgate.ErrFull
		return
	}
	if kept {
		i.keepIn(w, l)
	} else {
		i.take(w, l)
		i.queue(w, l, rc)
	}
	i.remember(w, row.ID, row.Webhook)
	if i.snap != nil {
		i.settleRefused(w, l)
	}
	if i.from != nil {
		w.move(l, i.from, Accepted, "taken in as "+itoa(row.ID))
	}
}

// take gives the webhook its number, and makes it its lane's last.
func (i *intake) take(w *work, l *lane) {
	row := i.row
	row.ID, row.Received = w.number(), w.time()
	row.Status = Status{}
	l.tail, l.tailID, l.changed = row.ID, row.Webhook, true
	w.added = append(w.added, row)
	if i.snap != nil {
		i.snap.Seq, i.snap.Received = row.ID, row.Received
		w.taken = append(w.taken, i.snap)
	}
}

// keepIn takes the webhook in as one that is not to be delivered: usher itself holds it.
func (i *intake) keepIn(w *work, l *lane) {
	i.take(w, l)
	l.enter(i.row, Kept, "", w.time())
	l.tailDigest = nil
	l.held, l.heldAt, l.heldBy, l.heldID = digestOf(i.row), w.now, "", i.row.Webhook
	i.s.backlog.Store(true)
}

// remember notes a signed webhook-id: that of a webhook, or of a copy of one. seq is zero if that one was delivered.
func (i *intake) remember(w *work, seq int64, uuid string) {
	if i.hook.SignedID == "" {
		return
	}
	id := &seenRow{seenID: i.seenID(), digest: i.row.digest, seq: seq, at: w.now, state: Waiting, uuid: uuid}
	same := func(known *seenRow) bool { return bytes.Equal(known.digest, id.digest) }
	if uuid != i.row.Webhook && slices.ContainsFunc(w.seen[id.seenID], func(known *seenRow) bool { return same(known) && known.counts(w) }) {
		return // the window counts from the first
	}
	w.seen[id.seenID] = append(slices.DeleteFunc(w.seen[id.seenID], same), id) // for the rest of this batch
	w.ids = append(w.ids, id)
}

// duplicate returns what i is a copy of: of what arrived last, while that one waits; else of what the receiver
// holds for sure, if it took it within the window. A signed id that was seen before is a copy whatever came since.
func (i *intake) duplicate(w *work, l *lane) string {
	row := i.row
	reused := false
	if i.hook.SignedID != "" {
		for _, seen := range w.seen[i.seenID()] {
			same := bytes.Equal(seen.digest, row.digest)
			if same && seen.counts(w) {
				return seen.uuid
			}
			reused = reused || !same && seen.fresh(w)
		}
	}
	if reused {
		i.s.cfg.Log.Warn("webhook has a signed webhook-id that another webhook had before; it is taken in", "webhook", row.Webhook, "tenant", row.Tenant)
	}
	if !row.snapshot || i.s.cfg.Window == 0 {
		return ""
	}
	if l.waiting > 0 {
		if l.tailDigest != nil && bytes.Equal(l.tailDigest, row.digest) {
			return l.tailID
		}
		return ""
	}
	// After a forced redelivery the receiver holds something older than what was taken in last. Then the same again is a change.
	age := time.Duration(w.now-l.heldAt) * time.Microsecond
	if l.held != nil && l.heldID == l.tailID && bytes.Equal(l.held, row.digest) && age.Abs() < i.s.cfg.Window && l.heldBy == nameOf(i.hook.Receiver) {
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
func digestOf(w *Webhook) []byte {
	if !w.snapshot {
		return nil
	}
	return w.digest
}

// queue puts the webhook at the end of its lane. If the lane was idle, and this process has room, it may deliver it at
// once: that saves another transaction.
func (i *intake) queue(w *work, l *lane, rc *receiver.Receiver) {
	s, row := i.s, i.row
	idle := l.waiting == 0 // superseding does not make it so: pauses are the lane's, and so is its turn
	if s.cfg.KeepLatest && row.snapshot {
		w.reclaim(l)
		for _, old := range w.queue[row.lane] {
			if old.State == Waiting && old.snapshot && !old.Forced && !(w.owned(l) && l.head == old.ID) {
				w.move(l, old, Superseded, newerCame)
			}
		}
		w.queue[row.lane] = slices.DeleteFunc(w.queue[row.lane], func(old *Webhook) bool { return old.State != Waiting })
	}
	w.bytes += row.size
	l.enter(row, Waiting, "", w.time())
	l.tailDigest = digestOf(row)
	w.queue[row.lane] = append(w.queue[row.lane], row)
	if next := w.next[row.lane]; next == nil || next.State != Waiting { // for an outcome or a claim of this batch
		first := slices.IndexFunc(w.queue[row.lane], func(h *Webhook) bool { return h.State == Waiting && h.ID != l.head })
		w.next[row.lane] = w.queue[row.lane][first] // row, or what waits before it and was not superseded
	}
	if !idle {
		return
	}
	// From here on the receiver may hold this one or what it held before. Only a 2xx tells.
	l.held, l.since = nil, w.now
	l.fresh()
	l.rest(w.now)
	if rc == nil || l.paused || s.cfg.Courier == nil {
		return
	}
	if i.granted = i.granted || s.cfg.Courier.Grant(rc, row.size); i.granted { // kept, if the transaction runs again
		i.answer.Leave = w.lease(l, row, rc)
		return
	}
	i.answer.left = true
}

const newerCame = "a newer snapshot of the tenant came before it was delivered"

// settleRefused marks what was refused of the tenant before: this snapshot says what it would have said. It does not say what an
// event of another type would have said. If it was refused itself, it says nothing about what came again after it.
func (i *intake) settleRefused(w *work, l *lane) {
	for _, old := range w.rest[i.row.lane] {
		if old.State == Refused && (old.Type == i.row.Type || old.Type == "") && old != i.from && (i.from == nil || old.ID < i.from.ID && !old.Last.After(i.from.lastCame())) {
			w.move(l, old, Superseded, "a newer snapshot of the tenant was taken in")
		}
	}
}

func (i *intake) done(err error) {
	a := i.answer
	if err != nil {
		a = Answer{Err: err}
	}
	if i.granted {
		i.s.cfg.Courier.Ungrant(i.hook.Receiver, i.row.size)
	}
	if a.Err == nil && i.snap != nil { // of a copy, too: the first may have come through another replica
		i.s.cfg.Changed(i.row.Tenant)
	}
	i.reply <- a
	switch {
	case a.Leave != nil:
		i.s.cfg.Courier.Start(a.Leave)
	case a.left:
		i.s.cfg.Courier.Left(i.hook.Receiver)
	}
}

// full says whether there is no room for so many bytes more.
func (s *Store) full(more int64) bool {
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
const seenFor = 15 * time.Minute

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

func (r *seenRow) fresh(w *work) bool { return w.now-r.at < int64(seenFor/time.Microsecond) }

// counts says whether the same again would be a copy: not if the first was parked or discarded, or came too long ago.
func (r *seenRow) counts(w *work) bool {
	state := r.state
	if now := w.changed[r.seq]; now != nil { // in this batch
		state = now.State
	}
	return r.fresh(w) && (state == Waiting || state.Taken() || state == Superseded)
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
