package status

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/view"
	"usher/tokens"
)

func (p *Port) judge(now time.Time) {
	p.now = now
	if t := p.Source.Token; t != nil {
		p.Token = &Token{t.Fingerprint(), t.Asked(), t.Expiry()}
	}
	if p.Source.Err != nil {
		p.Error = p.Source.Err.Error()
	}
}

// tokenLost says whether calls fail although the token has not expired: the billing service does not
// accept it, and usher gets no other.
func (p *Port) tokenLost() bool {
	if p.Source.Err == nil || p.Source.Token == nil {
		return false
	}
	return strings.HasPrefix(p.LastFailure.Reason, "TOKEN_") && p.LastFailure.At.After(p.Source.Token.Asked())
}

// tokenWords describes the state of a port's token.
func tokenWords(s tokens.State, now time.Time) string {
	switch t := s.Token; {
	case t != nil:
		words := fmt.Sprintf("token valid for %s, renewed %s, fingerprint %s",
			view.Span(t.Expiry().Sub(now).Round(time.Second)), view.Age(t.Asked())+" ago", t.Fingerprint())
		if s.Err != nil {
			words += "; its renewal fails"
		}
		return words
	case s.Err != nil && tokens.Rejected(s.Err):
		return "no token: rejected by the token endpoint"
	case s.Err != nil:
		return "no token: usher cannot get one right now"
	case s.Had:
		return "no valid token: a new one is on its way"
	default:
		return "waiting for its first token"
	}
}

// Tokens are judged for each API client: ports that share a token are named once.

func tokenRefused(s *Status, now time.Time) []Trouble     { return s.noToken(now, true) }
func tokenUnreachable(s *Status, now time.Time) []Trouble { return s.noToken(now, false) }

// noToken finds the ports for which usher gets no token: the token endpoint refuses, or cannot be reached.
func (s *Status) noToken(now time.Time, refused bool) (all []Trouble) {
	for i := range s.Ports {
		p := &s.Ports[i]
		err, token := p.Source.Err, p.Source.Token
		if p.Shares != "" || err != nil && tokens.Rejected(err) != refused || err == nil && (refused || token != nil || !p.Source.Had) {
			continue
		}
		if err == nil {
			all = append(all, wrong(fmt.Sprintf("Port %s has no valid token: every call fails", p.Name), s.sharing(p)...))
			continue
		}
		what, severity := fmt.Sprintf("Port %s: %v", p.Name, err), ""
		if r, ok := errors.AsType[*tokens.RejectedError](err); ok {
			what = fmt.Sprintf("Port %s: token request rejected: %s", p.Name, r.Code)
		}
		switch {
		case p.tokenLost():
			what += ", and the billing service does not accept the current token any more: every call fails"
		case token == nil:
			what += ": every call fails"
		default:
			what += ", and the current token is valid for another " + view.Span(token.Expiry().Sub(now).Round(time.Second))
			severity = Warning
		}
		t := wrong(what, s.sharing(p)...).since(p.Source.Since).severity(severity)
		if p.Advice != "" { // it knows which settings this port has
			t.Do = strings.Replace(strings.ToUpper(p.Advice[:1])+p.Advice[1:]+".", "?.", "?", 1)
		}
		all = append(all, t)
	}
	return all
}

// One revoked token can be the result of a change in the billing service. Another program with the same API client
// revokes again and again: that is over when a token has been good for twice as long as the one before was.
func tokensRevoked(s *Status, now time.Time) (all []Trouble) {
	for i := range s.Ports {
		p := &s.Ports[i]
		over := !p.Revoked[0].IsZero() && now.Sub(p.Revoked[1]) >= max(goesAfter, 2*p.Revoked[1].Sub(p.Revoked[0]))
		if n := metrics.Sum(p.Tokens, metrics.Minutes, metrics.TokensRevoked); p.Shares == "" && n > 1 && !over {
			what := fmt.Sprintf("Port %s: %s tokens were rejected long before they expired, in the last hour", p.Name, view.Count(n))
			all = append(all, wrong(what, s.sharing(p)...))
		}
	}
	return all
}

// sharing returns the ports that use the token of this one, itself first.
func (s *Status) sharing(p *Port) []Subject {
	all := []Subject{p.of("")}
	for i := range s.Ports {
		if s.Ports[i].Shares == p.Name {
			all = append(all, s.Ports[i].of(""))
		}
	}
	return all
}

// callsFail says that more than a twentieth of the last calls failed, three at least: usher's own failures, or the
// 5xx of the billing service, which usher only passes on.
func callsFail(s *Status, now time.Time) (all []Trouble) {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Source.Token == nil || p.tokenLost() { // the token's trouble says so
			continue
		}
		ours := metrics.Sum(p.Calls, lately, metrics.CallsOurs)
		theirs := metrics.Sum(p.Calls, lately, metrics.Calls5xx) - metrics.Sum(p.Calls, lately, metrics.CallsOur5xx)
		n := metrics.Sum(p.Calls, lately, metrics.CallsFine, metrics.CallsFailed)
		calls := view.Plural(n, "call", "calls")
		many := func(failed int) bool { return failed >= 3 && failed*20 > n }
		switch {
		case many(ours) && !isOver(p.LastFailure.At, p.LastFine, now):
			what := fmt.Sprintf("Port %s: usher failed %s of %s in the last %d minutes, the last one with %s",
				p.Name, view.Count(ours), calls, lately, p.LastFailure.Reason)
			all = append(all, wrong(what, p.of("usher fails calls: "+p.LastFailure.Reason)))
		case many(theirs) && !isOver(p.Last5xx, p.LastFine, now):
			what := fmt.Sprintf("Port %s: the billing service answered %s of %s with a 5xx in the last %d minutes",
				p.Name, view.Count(theirs), calls, lately)
			t := wrong(what, p.of("the billing service answers with a 5xx")).severity(Warning)
			t.Do = "usher only passes them on: ask the people of the billing service. usher's log has the names of the GraphQL operations."
			all = append(all, t)
		}
	}
	return all
}
