package inbox

import (
	"context"
	"slices"
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
	term  int                    // of the lease, counted
	told  func(webhookgate.Lane) // when all of a lane are written
	lanes map[string][]note      // of each, the first is being written
	idle  chan struct{}          // closed when the last is; nil: nobody waits for that
}

// note says how a record stands, by who delivers in that term. In a later one, though it
// may be this replica's again, another one may have delivered in between.
type note struct {
	record
	term int
}

func (n *notes) init() {
	n.slots = make(chan struct{}, notesAtOnce)
	n.lanes = make(map[string][]note)
	n.told = func(webhookgate.Lane) {}
}

// begin begins a term: told is called for each lane whose notes are written, or given
// up. What is left of former terms is no longer written.
func (n *notes) begin(told func(webhookgate.Lane)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.term++
	n.told = told
}

func (n *notes) current(term int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.term == term
}

// Update takes a note down; it is written in the background.
func (s *jetStore) Update(r *record) {
	lane := r.webhook.Lane
	token := laneToken(lane)
	n := &s.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	now := note{*r, n.term}
	waiting := n.lanes[token]
	if last := len(waiting) - 1; last > 0 && waiting[last].id == now.id {
		waiting[last] = now // each says all there is to say
		return
	}
	n.lanes[token] = append(waiting, now)
	if len(waiting) == 0 {
		s.ended.Go(func() { s.writeNotes(token, lane) })
	}
}

// writeNotes writes the notes of one lane until there are no more.
func (s *jetStore) writeNotes(token string, lane webhookgate.Lane) {
	n := &s.notes
	n.slots <- struct{}{}
	defer func() { <-n.slots }()
	for {
		n.mu.Lock()
		first := n.lanes[token][0]
		n.mu.Unlock()
		written := s.writeNote(&first)
		n.mu.Lock()
		if n.lanes[token] = n.lanes[token][1:]; !written { // nor may those after it be
			n.lanes[token] = slices.DeleteFunc(n.lanes[token], func(later note) bool { return later.term == first.term })
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

// writeNote writes one, for as long as its term lasts: after that its word no longer
// counts, and who took over delivers again what was not noted.
func (s *jetStore) writeNote(r *note) bool {
	status, err := encodeStatus(&r.status)
	if err != nil {
		panic(err) // times and strings always marshal
	}
	for s.leading() && s.notes.current(r.term) && s.alive.Err() == nil {
		now, ok := s.mirror.find(r.id)
		if !ok || now.status.Again.After(r.status.Again) {
			return true // it is gone, or was sent back to wait since
		}
		m := message(s.statusSubject(r.id), status)
		expect(m, now.noted)
		seq, err := s.publish(s.alive, m)
		if err == nil {
			s.mirror.setNoted(r.id, seq) // the next one builds on it
			return true
		}
		if isConflict(err) && s.relearnNote(r.id, now.noted) == nil {
			continue
		}
		s.log.Debug("inbox note not written yet", "id", r.id, "err", err)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-s.alive.Done():
		}
	}
	return false
}

// relearnNote catches up with what is noted of a record. If its last note still seems
// to be was, it asks the servers: somebody may have deleted that.
func (s *jetStore) relearnNote(id, was uint64) error {
	ctx, cancel := context.WithTimeout(s.alive, requestTimeout)
	defer cancel()
	if err := s.catchUp(ctx); err != nil {
		return err
	}
	if now, ok := s.mirror.find(id); !ok || now.noted != was {
		return nil
	}
	last, err := s.lastOn(ctx, s.statusSubject(id))
	if err == nil {
		s.mirror.replaceNoted(id, was, last)
	}
	return err
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
