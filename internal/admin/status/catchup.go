package status

import (
	"fmt"
	"strings"
	"time"

	"usher/internal/view"
)

// caughtUp says what usher has caught up within a day; empty: nothing.
func (c *CatchUp) caughtUp(now time.Time) string {
	if c == nil || c.Webhooks == 0 || now.Sub(c.CaughtAt) > 24*time.Hour {
		return ""
	}
	why := "sent while usher was down"
	if !c.Down {
		why = "which had not reached usher"
	}
	when := strings.TrimPrefix(strings.TrimPrefix(between(c.From, c.To), " at "), " from ")
	return fmt.Sprintf("caught up %s of %s, %s (%s)", view.Plural(c.Webhooks, "webhook", "webhooks"),
		view.Plural(c.Tenants, "tenant", "tenants"), why, when)
}

const (
	// unreadFor is how long the log may not answer: the service may restart.
	unreadFor = 5 * time.Minute
	// So many webhooks, or so long a time, in which all came through the log alone say that none comes by itself.
	manyAlone = 10
	longAlone = 24 * time.Hour
)

// logUnread says that catch-up does not find what usher has missed.
func logUnread(s *Status, now time.Time) []Trouble {
	if s.Gate == nil || s.Gate.CatchUp == nil {
		return nil
	}
	switch c := s.Gate.CatchUp; {
	case c.Failed != "" && (c.Refused || now.Sub(c.Since) >= unreadFor):
		return wrong("usher cannot read the billing service's webhook log", ofGate("")).quoting("it", c.Failed).since(c.Since).only()
	case c.Elsewhere:
		t := wrong("The billing service's webhook log has no webhook that was sent to this gate", ofGate(""))
		t.Do = "Set USHER_WEBHOOK_CATCH_UP_URL to the address that the billing service has for this gate: " +
			"its webhook log shows it with each webhook."
		return t.only()
	case c.Shorter:
		t := wrong("The billing service's webhook log ends before the newest webhook that usher has read there", ofGate(""))
		t.Do = "Find out whether USHER_BASE_URL and USHER_CLIENT_ID are still those of the same account, then run " +
			"'usher help reconcile' and reconcile."
		return t.only()
	}
	return nil
}

// gateUnreached says that the service's webhooks come through its log alone: catch-up must not hide an address that
// is wrong.
func gateUnreached(s *Status, now time.Time) []Trouble {
	if s.Gate == nil || s.Gate.CatchUp == nil {
		return nil
	}
	c := s.Gate.CatchUp
	if c.Alone < manyAlone && (c.Alone == 0 || now.Sub(c.AloneSince) < longAlone) {
		return nil
	}
	what := view.Plural(c.Alone, "webhook", "webhooks") + " came through the billing service's log alone, and none by itself: "
	if c.Answer == "" {
		what += "the service got no answer"
	} else {
		what += "the service got " + c.Answer
	}
	return wrong(what, ofGate("")).since(c.AloneSince).only()
}
