package shared

import (
	"context"
	"sync"

	"usher/webhookgate"
)

// lines has the webhooks of a lane that come in here appended one after the other, in the
// order of their arrival: at once they would only refuse each other.
type lines struct {
	mu    sync.Mutex               // guards what follows
	lanes map[string]chan struct{} // of each, who came last closes it when it leaves
}

// enter returns when all that came before have left, with the func to leave.
func (l *lines) enter(ctx context.Context, place string) (func(), error) {
	mine := make(chan struct{})
	l.mu.Lock()
	before := l.lanes[place]
	l.lanes[place] = mine
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		if l.lanes[place] == mine {
			delete(l.lanes, place)
		}
		l.mu.Unlock()
		close(mine)
	}
	if before == nil {
		return leave, nil
	}
	select {
	case <-before:
		return leave, nil
	case <-ctx.Done():
		go func() { // those behind must not overtake those before
			<-before
			leave()
		}()
		return nil, ctx.Err()
	}
}

// freshMost is how many bytes of webhooks that came in here are kept at hand until they come
// back from the servers.
const freshMost = 4 << 20

// fresh are webhooks that came in through the very replica that will deliver them: it need not
// read them from the servers.
type fresh struct {
	mu    sync.Mutex // guards what follows
	byID  map[string]*webhookgate.Webhook
	order []string
	size  int
}

func (f *fresh) put(w *webhookgate.Webhook) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byID == nil {
		f.byID = make(map[string]*webhookgate.Webhook)
	}
	if f.byID[w.ID] != nil {
		return
	}
	f.byID[w.ID] = w
	f.order = append(f.order, w.ID)
	f.size += len(w.Body)
	for f.size > freshMost {
		f.drop(f.order[0])
		f.order = f.order[1:]
	}
}

// take returns a webhook whole, and lets go of it; nil: it is not at hand.
func (f *fresh) take(id string) *webhookgate.Webhook {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.byID[id]
	f.drop(id)
	if len(f.byID) == 0 {
		f.order = nil
	}
	return w
}

func (f *fresh) drop(id string) {
	if w := f.byID[id]; w != nil {
		f.size -= len(w.Body)
		delete(f.byID, id)
	}
}
