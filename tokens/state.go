package tokens

import (
	"context"
	"errors"
	"time"
)

// State is the current state of a source.
type State struct {
	Had   bool   // whether it ever had a token
	Token *Token // the current one, if it is valid
	Err   error  // why the last refresh failed; nil if it did not
}

// State returns a snapshot.
func (s *Source) State() State {
	st := State{Had: s.had.Load()}
	if t := s.current.Load(); t != nil && t.valid(time.Now()) {
		st.Token = t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		st.Err = s.failed.err
	}
	return st
}

// Ready waits until there is a token. It returns at once if the endpoint refuses. If the endpoint
// cannot be reached, it waits until ctx ends. Run must be running.
func (s *Source) Ready(ctx context.Context) (*Token, error) {
	for {
		t, err := s.Token(ctx)
		if err == nil {
			return t, nil
		}
		if Rejected(err) {
			return nil, err
		}
		wait := firstBackoff
		if none := new(NoTokenError); errors.As(err, &none) {
			wait = none.RetryAfter
		}
		select {
		case <-ctx.Done():
			// The reason says more than that the time is over.
			if why := s.State().Err; why != nil {
				err = why
			}
			return nil, err
		case <-time.After(wait):
		}
	}
}
