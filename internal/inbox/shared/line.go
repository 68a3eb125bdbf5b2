package shared

import (
	"context"
	"sync"
)

// lines lets one webhook of a lane after the other be appended, in the order in which they came
// to this replica. If they were sent at once, the servers would accept one and refuse the others.
type lines struct {
	mu    sync.Mutex               // guards what follows
	lanes map[string]chan struct{} // of each, who came last closes it when it leaves; nil: nobody came yet
}

// enter returns when all that came before have left, with the func to leave.
func (l *lines) enter(ctx context.Context, place string) (func(), error) {
	mine := make(chan struct{})
	l.mu.Lock()
	if l.lanes == nil {
		l.lanes = make(map[string]chan struct{})
	}
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
