package demo

import (
	"context"
	"time"
)

// goOn sends a webhook every few seconds until ctx ends: mostly a change, sometimes a copy.
// Sometimes one of the receivers is down for a while.
func (s *story) goOn(ctx context.Context) {
	sender := s.newSender(webhookToken)
	over := func() {}
	for n := 0; ; n++ {
		which := platforms[n/12%len(platforms)]
		switch n % 12 {
		case 6:
			over = s.staged()
			s.setDown(which)
			s.say.event("the receiver of "+which+" is down", "")
		case 8:
			s.setUp()
			s.say.event("the receiver of "+which+" is back", "")
		}
		entry, err := sender.Next(ctx)
		outcome := s.outcome(ctx, entry, err)
		if ctx.Err() != nil {
			return
		}
		s.say.event(entry.What, outcome)
		if !s.watch(ctx, over) {
			return
		}
	}
}

// watch waits until the next webhook is due. It reports when the last webhook that waited for a
// receiver is delivered.
func (s *story) watch(ctx context.Context, over func()) bool {
	for due := time.Now().Add(webhookEvery); time.Now().Before(due); {
		if s.late && s.down == "" && s.usher.Waiting() == 0 {
			s.late = false
			over()
			s.say.event("all that waited is delivered", "0 waiting")
		}
		if !pause(ctx, 50*time.Millisecond) {
			return false
		}
	}
	return true
}

// pause waits for d. It returns false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
