package admin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"usher/internal/admin/hour"
	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
	"usher/tokens"
)

const (
	bad  = "bad"
	warn = "warn"

	lately = metrics.Lately

	// patience is how long a webhook may wait before somebody should know; less is
	// enough when the last try failed.
	patience      = time.Minute
	shortPatience = 3 * time.Second
)

// tokenWords says in words how a port's token stands.
func tokenWords(p *PortState, now time.Time) (words, tone string) {
	t, err := p.Token.Token, p.Token.Err
	switch {
	case t != nil:
		words = fmt.Sprintf("token valid for %s, renewed %s, fingerprint %s",
			page.Span(t.Expiry().Sub(now).Round(time.Second)), page.Ago(now.Sub(t.Asked())), t.Fingerprint())
		if err != nil {
			return words + "; its renewal fails", warn
		}
		return words, "good"
	case err != nil && tokens.Rejected(err):
		return "no token: the token endpoint refuses", bad
	case err != nil:
		return "no token: usher cannot get one right now", bad
	case p.Token.Had:
		return "no valid token: a new one is on its way", warn
	default:
		return "waiting for its first token", warn
	}
}

// troubles says what is wrong, the worst first, and what to do.
func (h *Handler) troubles(ports []PortState, gate *GateState, s *Status) []Trouble {
	all := []Trouble{} // [] and not null
	if h.cfg.Stopping != nil && h.cfg.Stopping() {
		all = append(all, Trouble{warn, "usher is shutting down", "What is under way may still finish.", ""})
	}
	if s.Inbox != nil {
		all = append(all, inboxTroubles(s.Inbox)...)
		all = append(all, receiverTroubles(s.Gate, s.Inbox)...)
	}
	for i := range ports {
		if p := &ports[i]; p.Shares == "" {
			all = append(all, portTroubles(p)...)
		}
	}
	for i := range ports {
		all = append(all, callTroubles(&ports[i])...)
	}
	if gate != nil && s.Inbox == nil {
		all = append(all, passTroubles(s.Gate, gate.Decisions, h.failedTenants())...)
	}
	if gate != nil {
		all = append(all, senderTroubles(gate)...)
	}
	slices.SortStableFunc(all, func(a, b Trouble) int { return strings.Compare(a.Severity, b.Severity) })
	return all
}

func portTroubles(p *PortState) (all []Trouble) {
	err := p.Token.Err
	severity, effect := bad, "Calls are answered with an error."
	if t := p.Token.Token; t != nil {
		severity, effect = warn, "Calls go on with the current token, for another "+page.Span(time.Until(t.Expiry()).Round(time.Second))+"."
	}
	var refused *tokens.RejectedError
	switch {
	case errors.As(err, &refused):
		all = append(all, Trouble{severity, fmt.Sprintf("Port %s: token endpoint refuses: %s", p.Name, refused.Code), effect + " " + p.remedy(refused.Code), ""})
	case err != nil:
		all = append(all, Trouble{severity, fmt.Sprintf("Port %s: %v", p.Name, err),
			effect + " Check USHER_BASE_URL and the way there (network, proxy, certificates); usher check tries it. usher goes on trying, at least once a minute.", ""})
	case !p.Token.Had:
		all = append(all, Trouble{warn, fmt.Sprintf("Port %s has had no token yet", p.Name), "The first one is on its way; until then usher is not ready.", ""})
	}
	// One alone may be that of somebody who changed something; who shares an API client revokes again and again.
	if n := hour.Sum(p.Tokens, hour.Minutes, metrics.TokensRevoked); n > 1 {
		all = append(all, Trouble{warn, fmt.Sprintf("Port %s: %s tokens were refused long before the end, in the last hour", p.Name, page.Count(n)),
			"Another program seems to use the same API client, and its new tokens revoke ours. Give each program an API client of its own.", ""})
	}
	return all
}

// remedy says what to look at, by the token endpoint's error code.
func (p *PortState) remedy(code string) string {
	switch code {
	case "invalid_client":
		return fmt.Sprintf("Check %s and %s: the id or the secret is wrong, or the API client was deleted.", p.SecretVariable, p.ClientVariable)
	case "invalid_scope":
		return fmt.Sprintf("Check %s: a scope is unknown, or not assigned to the API client.", p.ScopeVariable)
	default:
		return fmt.Sprintf("Check %s, %s and %s against the API client in the billing service.", p.ClientVariable, p.SecretVariable, p.ScopeVariable)
	}
}

// callTroubles speaks up when a good part of the calls fail.
func callTroubles(p *PortState) []Trouble {
	failed := hour.Sum(p.Calls, lately, metrics.CallsFailed)
	calls := failed + hour.Sum(p.Calls, lately, metrics.CallsFine)
	if failed < 3 || failed*10 < calls || p.Token.Token == nil { // without a token there is another line
		return nil
	}
	return []Trouble{{warn, fmt.Sprintf("Port %s: %s of %s failed in the last %d minutes", p.Name, page.Count(failed), page.Plural(calls, "call", "calls"), lately),
		"The log has the status and the reason of each; usher_proxy_requests_total counts them by status.", ""}}
}

func inboxTroubles(box *InboxStatus) (all []Trouble) {
	if box.Error != "" {
		all = append(all, Trouble{bad, "The inbox takes no webhooks: " + box.Error,
			"Senders get 503, and usher is not ready. Nothing that was answered 200 is lost. " + whatToFix(box), ""})
	}
	if box.Limit > 0 && box.Used > box.Limit/10*9 {
		all = append(all, Trouble{bad, fmt.Sprintf("The inbox is nearly full: %s of %s", page.Bytes(box.Used), page.Bytes(box.Limit)),
			"When it is full, senders get 503. Fix the receivers so that they take what waits, discard what they will never take, or raise USHER_WEBHOOK_INBOX_MAX_BYTES.", "/webhooks?outcome=waiting"})
	}
	if box.Homeless > 0 {
		all = append(all, Trouble{bad, page.Plural(box.Homeless, "webhook waits, but no receiver takes its platform any more", "webhooks wait, but no receiver takes their platform any more"),
			"Give that platform to a receiver (USHER_WEBHOOK_RECEIVERS_n_PLATFORMS), or set USHER_WEBHOOK_FORWARD_URL, then restart usher.", "/webhooks?outcome=waiting"})
	}
	if box.Parked > 0 {
		all = append(all, Trouble{warn, page.Plural(box.Parked, "webhook is parked", "webhooks are parked"),
			"The receiver refused what is parked, and usher does not retry it. See why, fix the receiver, then send it again.", "/webhooks?outcome=parked"})
	}
	return all
}

// senderTroubles speaks up when nothing but what is turned away arrives. Some of it
// always may: anybody can knock.
func senderTroubles(gate *GateState) []Trouble {
	rejected := hour.Sum(gate.Decisions, lately, slices.Index(metrics.Decisions[:], "rejected"))
	if rejected < 3 || rejected != hour.Sum(gate.Decisions, lately) {
		return nil
	}
	return []Trouble{{warn, fmt.Sprintf("Every webhook of the last %d minutes was rejected: %s", lately, page.Count(rejected)),
		"See why: the sender may use another secret than the gate, or send a customised payload (USHER_WEBHOOK_SCHEMA_FILE).", "/webhooks?outcome=rejected"}}
}

func whatToFix(box *InboxStatus) string {
	if box.Shared {
		return "Check the NATS servers in USHER_WEBHOOK_INBOX: when they are back, usher goes on by itself."
	}
	return "Fix the disk of the file in USHER_WEBHOOK_INBOX, then restart usher."
}
