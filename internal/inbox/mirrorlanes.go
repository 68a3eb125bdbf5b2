package inbox

import (
	"bytes"
	"slices"
	"time"

	"usher/webhookgate"
)

// What the mirror knows of lanes: their tails, and what they were told to forget.

// mirrorLane is what the log remembers of a lane.
type mirrorLane struct {
	tail
	end     uint64 // the last message of its subject: the tail, or that a copy of it came
	emptied uint64 // at this sequence the lane was told to forget
	records int    // of it that are there
}

// lane returns what is known of a lane. m.mu is held.
func (m *mirror) lane(token string) *mirrorLane {
	l := m.lanes[token]
	if l == nil {
		l = new(mirrorLane)
		m.lanes[token] = l
	}
	return l
}

// forgot takes in that a lane is to forget.
func (m *mirror) forgot(seq uint64, token string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.lanes[token]; l != nil {
		l.emptied = seq
	}
	m.advance(seq)
}

// remembering returns the lanes of a tenant that something is remembered of.
func (m *mirror) remembering(tenant string) (lanes []webhookgate.Lane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.lanes {
		if l.Lane.Tenant == tenant && l.Snapshot && l.ID > l.emptied {
			lanes = append(lanes, l.Lane)
		}
	}
	return lanes
}

// tail returns the last of a lane, as far as is known, and whether the receiver has
// exactly w, or will get it as the lane's last.
func (m *mirror) tail(token string, w *webhookgate.Webhook) (last mirrorLane, holds bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lanes[token]
	if l == nil {
		return mirrorLane{}, false
	}
	if m.window <= 0 || !w.Snapshot || !l.Snapshot || l.ID <= l.emptied || !bytes.Equal(l.Digest, w.Digest[:]) {
		return *l, false
	}
	r := m.records[l.ID]
	if r == nil {
		return *l, l.ID > m.applied // from here, and not yet read back; else it was finished and old, and is dropped
	}
	return *l, stillHeld(r.status.State, r.status.Changed, m.window)
}

// has says whether a lane has that webhook among what came from begin on. It need not
// be the last: another replica may have been there since.
func (m *mirror) has(token, webhook string, begin uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range slices.Backward(m.order) {
		if r.id < begin {
			break
		}
		if r.token == token && r.webhook.ID == webhook {
			return true
		}
	}
	return false
}

// overtook says whether something has come into the lane of w since then, but not from
// here, where these were ahead of it.
func (m *mirror) overtook(token string, w *webhookgate.Webhook, since time.Time, ahead []turn) bool {
	other := func(webhook string) bool {
		return webhook != w.ID && !slices.ContainsFunc(ahead, func(t turn) bool { return t.webhook == webhook })
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range slices.Backward(m.order) {
		if r.seen.Before(since) {
			break
		}
		if r.token == token && other(r.webhook.ID) {
			return true
		}
	}
	for _, c := range slices.Backward(m.copies) {
		if c.seen.Before(since) {
			break
		}
		if c.token == token && other(c.webhook) {
			return true
		}
	}
	return false
}

// setTail notes what a lane ends with, before it is read from the log.
func (m *mirror) setTail(token string, t tail) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lane(token).extend(t)
}

// extend takes in a lane's tail, unless another one came after it.
func (l *mirrorLane) extend(t tail) {
	if l.ID < t.ID {
		l.tail = t
	}
	l.end = max(l.end, t.ID)
}

// replaceEnd puts right which message a lane ends with, if that is still was.
func (m *mirror) replaceEnd(lane webhookgate.Lane, was, end uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lane(laneToken(lane))
	if l.end != was {
		return
	}
	if l.end = end; end != l.ID {
		// Only as a place in the lane: nothing is held to be a copy of it.
		l.tail = tail{Lane: lane, ID: end}
	}
}

// copied is that a copy of a lane's tail came.
type copied struct {
	seq            uint64
	token, webhook string
	seen           time.Time // when it was read from the log
}

// copyCame takes in that a copy of a lane's tail came.
func (m *mirror) copyCame(seq uint64, token, webhook string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lane(token)
	l.end = max(l.end, seq)
	m.copies = append(m.copies, copied{seq, token, webhook, time.Now()})
	if len(m.copies) > 2*keepCount { // who delivers deletes them from the log
		m.copies = slices.Delete(m.copies, 0, keepCount/2)
	}
	m.advance(seq)
}
