package inbox

import (
	"fmt"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/webhookgate"
)

// A Share is a part of the room in the inbox.
type Share string

const (
	AllOfIt       Share = ""
	ReceiverShare Share = "receiver" // while there are several: as much as is still free
	TenantShare   Share = "tenant"   // a quarter of what is still free
)

// NoRoom says that there is no room for a webhook. It is a webhookgate.ErrFull that names who has no room.
type NoRoom struct {
	webhookgate.LaneName        // the webhook's
	Receiver             string // empty: no receiver takes it
	Size                 int64  // the webhook's
	Share                Share  // what it does not fit into
	Held                 int64  // how much of that is used
	Free                 int64  // how much is free for all together
}

func (n *NoRoom) Error() string {
	const may = " may take no more than "
	switch full := webhookgate.ErrFull.Error(); {
	case n.Share == AllOfIt:
		return full
	case n.Share == ReceiverShare:
		return full + " for " + n.Who() + ": what waits for it" + may + "what is still free"
	default:
		return full + " for " + n.Who() + ": its webhooks" + may + "a quarter of what is still free"
	}
}

// Who says who has no room left.
func (n *NoRoom) Who() string {
	switch {
	case n.Share == TenantShare && n.Tenant != "":
		return "the tenant " + ShowTenant(n.Platform, n.Tenant)
	case n.Share == TenantShare:
		return fmt.Sprintf("the event type %q", n.Type)
	case n.Share == ReceiverShare && n.Receiver == "":
		return "platforms without a receiver"
	case n.Share == ReceiverShare:
		return fmt.Sprintf("the receiver %q", n.Receiver)
	}
	return "all"
}

func (n *NoRoom) Unwrap() error { return webhookgate.ErrFull }

// room is how much of the inbox is used. The bytes are those of the last count, with what this process has added and
// removed since. What it changes during a count may be in the sum or not. The limit must hold, so used may be too
// large for a while, but not too small.
type room struct {
	used      map[string]int64   // of each receiver
	everAdded map[string]int64   // all bytes that this process has added; what it removed is not subtracted
	counts    int64              // how often was counted
	noRoom    map[string]*NoRoom // for each receiver, the last one
}

// CheckRoom returns a NoRoom if there is no room for one more webhook in a lane, beside what this transaction has
// added.
func (t *sqlTurn) CheckRoom(l *lane.Lane, size int64) error {
	if err := t.countRoom(); err != nil {
		return err
	}
	s := t.s
	n := &NoRoom{LaneName: l.LaneName, Receiver: l.ReceiverName, Size: size}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.room.lack(n, s.cfg, t.AddedBytes, l.Bytes) {
		s.room.noRoom[l.ReceiverName] = n
		return n
	}
	if old := s.room.noRoom[l.ReceiverName]; old != nil && (old.Share != TenantShare || old.LaneName == l.LaneName) {
		delete(s.room.noRoom, l.ReceiverName)
	}
	return nil
}

// countRoom counts what is used, if nobody has yet. It is the transaction itself that does: the limit must hold, and
// what else is counted must not decide about it.
func (t *sqlTurn) countRoom() error {
	s := t.s
	s.mu.Lock()
	known := s.room.counts > 0
	s.mu.Unlock()
	if known {
		return nil
	}
	used := make(map[string]int64)
	t.tx.Queue("bytes_used", func(r engine.Row) error {
		var name string
		var bytes int64
		err := r.Scan(&name, &bytes)
		used[name] = bytes
		return err
	})
	if t.send(); t.err != nil {
		return t.err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.room.counts == 0 {
		s.room.used = used
		s.room.counts, t.counts = 1, 1
	}
	return nil
}

// lack says whether there is no room for a webhook whose lane has so many bytes, and notes why. One webhook of each
// receiver and tenant may always wait, if it fits in: a small room has no quarters.
func (r *room) lack(n *NoRoom, c Config, added map[string]int64, ofLane int64) bool {
	used := int64(0)
	for _, all := range []map[string]int64{r.used, added} {
		for _, bytes := range all {
			used += bytes
		}
	}
	ofReceiver := r.used[n.Receiver] + added[n.Receiver]
	n.Free = max(0, c.MaxBytes-used)
	switch left := c.MaxBytes - used - n.Size; {
	case left < 0:
		n.Share, n.Held = AllOfIt, used
	case len(c.Receivers.All()) > 1 && ofReceiver > 0 && ofReceiver+n.Size > left:
		n.Share, n.Held = ReceiverShare, ofReceiver
	case ofLane > 0 && ofLane+n.Size > left/4:
		n.Share, n.Held = TenantShare, ofLane
	default:
		return false
	}
	return true
}
