package inbox

import (
	"context"
	"sync"
	"time"

	"usher/webhookgate"
)

// notesAtOnce is how many notes are on their way to the servers at the same time.
const notesAtOnce = 64

// notes are what Update was told and the log does not have yet. Those of a lane are
// written one after the other: were a webhook's delivery noted, and that of the one
// before it not, then who takes over would deliver the older one last.
type notes struct {
	slots chan struct{}

	mu    sync.Mutex             // guards what follows
	told  func(webhookgate.Lane) // when all of a lane are written
	lanes map[string][]*record   // of each, the first is being written
	idle  chan struct{}          // closed when the last is; nil: nobody waits for that
}

func (n *notes) init() {
	n.slots = make(chan struct{}, notesAtOnce)
	n.lanes = make(map[string][]*record)
	n.told = func(webhookgate.Lane) {}
}

// tell has told called for each lane whose notes are written, or given up.
func (n *notes) tell(told func(webhookgate.Lane)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = told
}

// Update takes a note down; it is written in the background.
func (s *jetStore) Update(r *record) {
	c := *r // as it stands now
	token := laneToken(r.webhook.Lane)
	n := &s.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	waiting := n.lanes[token]
	if last := len(waiting) - 1; last > 0 && waiting[last].id == c.id {
		waiting[last] = &c // each says all there is to say
		return
	}
	n.lanes[token] = append(waiting, &c)
	if len(waiting) == 0 {
		go s.writeNotes(token, c.webhook.Lane)
	}
}

// writeNotes writes the notes of one lane until there are no more.
func (s *jetStore) writeNotes(token string, lane webhookgate.Lane) {
	n := &s.notes
	n.slots <- struct{}{}
	defer func() { <-n.slots }()
	for {
		n.mu.Lock()
		r := n.lanes[token][0]
		n.mu.Unlock()
		written := s.writeNote(r)
		n.mu.Lock()
		if n.lanes[token] = n.lanes[token][1:]; !written {
			n.lanes[token] = nil // nor may those after it be
		}
		done := len(n.lanes[token]) == 0
		if done {
			delete(n.lanes, token)
			if len(n.lanes) == 0 && n.idle != nil {
				close(n.idle)
				n.idle = nil
			}
		}
		told := n.told
		n.mu.Unlock()
		if done {
			told(lane)
			return
		}
	}
}

// writeNote writes one, for as long as this replica is the one that delivers: after
// that its word no longer counts, and who took over delivers again what was not noted.
func (s *jetStore) writeNote(r *record) bool {
	status, err := encodeStatus(&r.status)
	if err != nil {
		panic(err) // times and strings always marshal
	}
	for s.leading() {
		now, ok := s.mirror.find(r.id)
		if !ok || now.status.Again.After(r.status.Again) {
			return true // it is gone, or was sent back to wait since
		}
		m := message(s.statusSubject(r.id), status)
		expect(m, now.noted)
		ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
		seq, err := s.publish(ctx, m)
		if isConflict(err) {
			err = s.catchUp(ctx)
			cancel()
			if err == nil {
				continue
			}
		}
		cancel()
		if err == nil {
			s.mirror.setNoted(r.id, seq) // the next one builds on it
			return true
		}
		s.log.Debug("inbox note not written yet", "id", r.id, "err", err)
		time.Sleep(100 * time.Millisecond)
	}
	return false
}

// flush waits until all notes are written, or given up.
func (n *notes) flush(ctx context.Context) {
	n.mu.Lock()
	if len(n.lanes) == 0 {
		n.mu.Unlock()
		return
	}
	if n.idle == nil {
		n.idle = make(chan struct{})
	}
	idle := n.idle
	n.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}
