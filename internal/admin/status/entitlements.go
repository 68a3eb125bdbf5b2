package status

import (
	"time"

	"usher/internal/admin/page"
)

// Entitlements is the state of the port that answers what a tenant may use.
type Entitlements struct {
	Tenants int `json:"tenants"` // how many are known
	Held    int `json:"held"`    // for how many usher can answer without the inbox
	Unknown int `json:"unknown"` // how many of them have a last webhook without features that can be read

	UnknownDetails Details `json:"-"`
}

func (s *Status) entitlementsState(time.Time) string {
	e := s.Entitlements
	if e == nil { // a test without one
		return ""
	}
	words := "answers for " + page.Plural(e.Tenants-e.Unknown, "tenant", "tenants")
	if e.Unknown > 0 {
		words += ", not for " + page.Count(e.Unknown)
	}
	words, _ = s.line("entitlements", "", words, good)
	return words
}

// fromMemory says for whom usher answers while the inbox cannot be read. How many tenants there are
// it may never have counted.
func (s *Status) fromMemory() string {
	held := page.Count(s.Entitlements.Held) + " of " + page.Plural(s.Entitlements.Tenants, "tenant", "tenants")
	if s.Inbox.Unknown {
		held = page.Plural(s.Entitlements.Held, "tenant", "tenants")
	}
	return "answers for the " + held + " that it holds in memory, and 503 for others"
}

// featureTroubles say that usher cannot answer what some tenants may use, although it has a webhook of them.
func featureTroubles(s *Status, _ time.Time) []Trouble {
	e := s.Entitlements
	if e == nil || e.Unknown == 0 {
		return nil
	}
	who := page.Plural(e.Unknown, "tenant", "tenants")
	if names := page.FirstFew(e.UnknownDetails.Tenants); names != "" {
		who += " (" + names + ")"
	}
	whose := "their"
	if e.Unknown == 1 {
		whose = "its"
	}
	what := "usher cannot tell what " + who + " may use: " + whose + " last webhook has no features that can be read"
	return []Trouble{featuresUnknown.is(what, ofEntitlements("")).
		since(e.UnknownDetails.Since).
		link(e.UnknownDetails.Link).
		run("usher inbox tenants --trouble").
		counts(0, e.Unknown).
		naming(e.UnknownDetails.Tenants, e.Unknown)}
}

var featuresUnknown = kind("features-unknown", Critical, "UsherFeaturesUnknown",
	"Questions about these tenants are answered 404: your program uses its own default, and may lock them out.",
	"Correct the payload of these tenants in the billing service (change.features must be a list, "+
		"each feature with a code, and with a quantity that is a number or null), and send it again.")
