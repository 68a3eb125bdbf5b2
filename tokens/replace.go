package tokens

import (
	"context"
	"errors"
	"time"
)

// What happens on a 401: usher marks the refused token, but does not drop it. Callers that come
// meanwhile wait a little for the new one. If usher dropped the token and could not get another one,
// a single odd answer of the service would stop every call.

// Replace returns another token than refused, which the service has answered with 401. If refused is
// still the current token, Replace fetches a new one: once for all callers, and not during a backoff.
// If that fails, only callers of Replace get the error; all others use refused while it is valid.
func (s *Source) Replace(ctx context.Context, refused *Token) (*Token, error) {
	r, err := s.refuse(refused)
	switch {
	case err != nil:
		return nil, err
	case r == nil: // it was already replaced
		return s.Token(ctx)
	}
	return r.wait(ctx, waitLimit)
}

// Refused is Replace for a caller that does not need the new token.
func (s *Source) Refused(refused *Token) { _, _ = s.refuse(refused) }

// Latest is Token for a caller that got t a while ago. If t is still current and valid, Latest returns
// it even if the service has refused it: the caller has already waited for a new one.
func (s *Source) Latest(ctx context.Context, t *Token) (*Token, error) {
	if t == s.current.Load() && t.valid(time.Now()) {
		return t, nil
	}
	return s.Token(ctx)
}

// refuse marks the token as refused and returns the refresh that will replace it. If it is no longer
// the current token, refuse returns neither a refresh nor an error.
func (s *Source) refuse(refused *Token) (*refresh, error) {
	now := time.Now()
	s.mu.Lock()
	if s.current.Load() != refused {
		s.mu.Unlock()
		return nil, nil
	}
	r, err := s.startRefresh(now, true)
	if err == nil {
		refused.refused.Store(true)
	}
	limited := errors.Is(err, ErrKept)
	begins := limited && !s.limited
	s.limited = limited
	early := !limited && refused != s.reported && refused.age(now) < refused.renewAt
	if early {
		s.reported = refused
	}
	s.mu.Unlock()

	if begins {
		s.log.Warn("the service keeps rejecting new tokens: usher keeps the current one for a while, "+
			"and callers get the 401", "token", refused)
	}
	if early {
		age := refused.age(now)
		s.log.Warn("token rejected long before it expired: if another program uses the same API client, "+
			"its new tokens may revoke ours",
			"token", refused, "age", age.Round(time.Millisecond), "left", (refused.life - age).Round(time.Millisecond))
		s.EarlyRevoked()
	}
	return r, err
}
