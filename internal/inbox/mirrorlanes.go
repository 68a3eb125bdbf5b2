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
func (m *mirror) tail(token string, w *webhookgate.Webhook) (last tail, holds bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lanes[token]
	if l == nil {
		return tail{}, false
	}
	if m.window <= 0 || !w.Snapshot || !l.Snapshot || l.ID <= l.emptied || !bytes.Equal(l.Digest, w.Digest[:]) {
		return l.tail, false
	}
	r := m.records[l.ID]
	if r == nil {
		return l.tail, l.ID > m.applied // from here, and not yet read back; else it was finished and old, and is dropped
	}
	return l.tail, stillHeld(r.status.State, r.status.Changed, m.window)
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

// overtook says whether something has come into a lane since then, but not from here,
// where these were ahead.
func (m *mirror) overtook(token string, since time.Time, ahead []turn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range slices.Backward(m.order) {
		if r.seen.Before(since) {
			break
		}
		if r.token == token && !slices.ContainsFunc(ahead, func(t turn) bool { return t.webhook == r.webhook.ID }) {
			return true
		}
	}
	return false
}

// setTail notes what a lane ends with, before it is read from the log.
func (m *mirror) setTail(token string, t tail) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.lane(token); l.ID < t.ID {
		l.tail = t
	}
}

// replaceTail puts right what a lane ends with, if that is still was.
func (m *mirror) replaceTail(token string, was uint64, t tail) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.lane(token); l.ID == was {
		l.tail = t
	}
}
