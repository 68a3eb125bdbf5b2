package status

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
	"usher/tokens"
)

// Port is the state of a local port. The caller fills in all fields but those that judge derives.
type Port struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Scope   string `json:"scope"`
	Key     bool   `json:"key"`                       // callers need a key
	Shares  string `json:"shares_token_of,omitempty"` // the port whose token it uses; empty if it has its own
	State   string `json:"state"`                     // in words; derived, as are the next three
	Tone    string `json:"-"`                         // good, warn or bad
	Token   *Token `json:"token,omitempty"`           // left out if there is no valid one
	Error   string `json:"error,omitempty"`           // of the last token request

	Source tokens.State     `json:"-"`
	Calls  []metrics.Minute `json:"-"` // of metrics.Port
	Tokens []metrics.Minute `json:"-"` // of metrics.Identity, the same minutes

	Advice string `json:"-"` // what to do about Source.Err

	now time.Time // set by judge
}

// Token describes a token without showing it.
type Token struct {
	Fingerprint string    `json:"fingerprint"`
	Renewed     time.Time `json:"renewed"`
	Expires     time.Time `json:"expires"`
}

func (p *Port) judge(now time.Time) {
	p.now = now
	if t := p.Source.Token; t != nil {
		p.Token = &Token{t.Fingerprint(), t.Asked(), t.Expiry()}
	}
	if p.Source.Err != nil {
		p.Error = p.Source.Err.Error()
	}
	p.State, p.Tone = tokenWords(p.Source, now)
}

// tokenWords describes the state of a port's token.
func tokenWords(s tokens.State, now time.Time) (words, tone string) {
	switch t := s.Token; {
	case t != nil:
		words = fmt.Sprintf("token valid for %s, renewed %s, fingerprint %s",
			page.Span(t.Expiry().Sub(now).Round(time.Second)), page.Ago(now.Sub(t.Asked())), t.Fingerprint())
		if s.Err != nil {
			return words + "; its renewal fails", warn
		}
		return words, good
	case s.Err != nil && tokens.Rejected(s.Err):
		return "no token: the token endpoint refuses", bad
	case s.Err != nil:
		return "no token: usher cannot get one right now", bad
	case s.Had:
		return "no valid token: a new one is on its way", warn
	default:
		return "waiting for its first token", warn
	}
}

// tokenTroubles returns the troubles of a port that has its own token.
func (p *Port) tokenTroubles(now time.Time) (all []Trouble) {
	err := p.Source.Err
	severity, effect := bad, "Calls are answered with an error."
	if t := p.Source.Token; t != nil {
		severity, effect = warn, "Calls go on with the current token, for another "+page.Span(t.Expiry().Sub(now).Round(time.Second))+"."
	}
	var refused *tokens.RejectedError
	switch {
	case errors.As(err, &refused):
		all = append(all, Trouble{severity, fmt.Sprintf("Port %s: token endpoint refuses: %s", p.Name, refused.Code), effect + " What to do: " + p.Advice + ".", ""})
	case err != nil:
		all = append(all, Trouble{severity, fmt.Sprintf("Port %s: %v", p.Name, err), effect + " usher retries, at least once a minute. What to do: " + p.Advice + ".", ""})
	case !p.Source.Had:
		all = append(all, Trouble{warn, fmt.Sprintf("Port %s has had no token yet", p.Name), "The first one is on its way; until then usher is not ready.", ""})
	}
	// One revoked token can be the result of a change in the billing service. Another program with the same API client revokes again and
	// again.
	if n := metrics.Sum(p.Tokens, metrics.Minutes, metrics.TokensRevoked); n > 1 {
		all = append(all, Trouble{warn, fmt.Sprintf("Port %s: %s tokens were refused long before they expired, in the last hour", p.Name, page.Count(n)),
			"Another program seems to use the same API client, and its new tokens revoke ours. Give each program an API client of its own.", ""})
	}
	return all
}

// callTroubles reports that at least a tenth of the last calls failed.
func (p *Port) callTroubles() []Trouble {
	failed := metrics.Sum(p.Calls, lately, metrics.CallsFailed)
	calls := failed + metrics.Sum(p.Calls, lately, metrics.CallsFine)
	if failed < 3 || failed*10 < calls || p.Source.Token == nil { // tokenTroubles reports that there is no token
		return nil
	}
	return []Trouble{{warn, fmt.Sprintf("Port %s: %s of %s failed in the last %d minutes", p.Name, page.Count(failed), page.Plural(calls, "call", "calls"), lately),
		"The log has the status and the reason of each; usher_proxy_requests_total counts them by status.", ""}}
}

// Charts returns the charts of the last hour: calls and errors, and how long calls took.
func (p *Port) Charts() []page.Chart {
	var starts []time.Time
	fine := page.Series{Class: "c-fine", Label: "calls"}
	failed := page.Series{Class: "c-failed", Label: "errors"}
	p50 := page.Series{Class: "c-p50", Label: "p50"}
	p99 := page.Series{Class: "c-p99", Label: "p99"}
	var renewed, replayed []int
	minutes := sinceFirst(p.Calls)
	tokens := p.Tokens[len(p.Tokens)-len(minutes):]
	calls, wrong, busiest, slowest := 0, 0, 0.0, time.Duration(0)
	for i, m := range minutes {
		all, errors := m.Sum(metrics.CallsFine, metrics.CallsFailed), m.Counts[metrics.CallsFailed]
		// The current minute is not over yet.
		length := min(max(p.now.Sub(m.Start).Seconds(), 10), 60)
		rate, errorRate := float64(all)/length, float64(errors)/length
		starts = append(starts, m.Start)
		fine.Add(rate-errorRate, figure(rate))
		failed.Add(errorRate, strconv.Itoa(errors))
		p50.Add(milliseconds(m.P50), tookWords(m.P50))
		p99.Add(milliseconds(m.P99), tookWords(m.P99))
		p50.Total, p99.Total = tookWords(m.P50), tookWords(m.P99)
		renewed, replayed = append(renewed, tokens[i].Counts[metrics.TokensRenewed]), append(replayed, m.Counts[metrics.CallsReplayed])
		calls, wrong = calls+all, wrong+errors
		busiest, slowest = max(busiest, rate), max(slowest, m.P99)
	}
	fine.Total, failed.Total = page.Count(calls), page.Count(wrong)
	rates := page.NewBars("calls-"+p.Name, "Calls per second",
		fmt.Sprintf("%s in the last hour, %s; at most %s per second.", page.Plural(calls, "call", "calls"), page.Plural(wrong, "error", "errors"), figure(busiest)),
		starts, []page.Series{fine, failed}, figure)
	rates.Mark("token renewed", "m-renewed", renewed)
	rates.Mark("401 replayed", "m-replayed", replayed)
	times := page.NewLines("latency-"+p.Name, "Time until the answer's last byte",
		fmt.Sprintf("The slowest minute of the last hour had a 99th percentile of %s.", tookWords(slowest)),
		starts, []page.Series{p50, p99}, func(ms float64) string { return tookWords(time.Duration(ms * float64(time.Millisecond))) })
	return []page.Chart{rates, times}
}

// sinceFirst leaves out the beginning of the hour if nothing happened then: a chart shows the last 10, 20, 30 or all minutes.
func sinceFirst(minutes []metrics.Minute) []metrics.Minute {
	first := slices.IndexFunc(minutes, func(m metrics.Minute) bool { return m.Sum() > 0 })
	for _, n := range []int{10, 20, 30} {
		if from := len(minutes) - n; from >= 0 && (first < 0 || first >= from) {
			return minutes[from:]
		}
	}
	return minutes
}

// figure writes a rate or a count with a readable number of digits.
func figure(v float64) string {
	if v >= 100 {
		return page.Count(int(v))
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// milliseconds returns a duration as the value of a chart. Zero means that there is none.
func milliseconds(d time.Duration) float64 {
	if d == 0 {
		return math.NaN()
	}
	return float64(d) / float64(time.Millisecond)
}

func tookWords(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return page.Span(d.Round(time.Millisecond / 100))
}
