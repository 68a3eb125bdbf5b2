package shared

import (
	"context"
	"sync"
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
