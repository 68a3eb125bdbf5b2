package status

import (
	"fmt"
	"time"

	"usher/internal/text"
	"usher/internal/view"
)

// fromMemory says for whom usher answers while the inbox cannot be read. How many tenants there are
// it may never have counted.
func (s *Status) fromMemory() string {
	held := view.Count(s.Entitlements.Held) + " of " + view.Plural(s.Entitlements.Tenants, "tenant", "tenants")
	if s.Inbox.Unknown {
		held = view.Plural(s.Entitlements.Held, "tenant", "tenants")
	}
	return "answers for the " + held + " that it holds in memory, and 503 for others"
}

// featuresUnknown says that usher cannot answer what some tenants may use, although it has a webhook of them.
func featuresUnknown(s *Status, _ time.Time) []Trouble {
	e := s.Entitlements
	if e == nil || e.Unknown == 0 {
		return nil
	}
	who, whose := view.Plural(e.Unknown, "tenant", "tenants"), "their"
	if names := view.FirstFew(e.UnknownDetails.Tenants); names != "" {
		who += " (" + names + ")"
	}
	if e.Unknown == 1 {
		whose = "its"
	}
	what := "usher cannot tell what " + who + " may use: " + whose + " last webhook has no features that can be read"
	return wrong(what, ofEntitlements("")).since(e.UnknownDetails.Since).link(e.UnknownDetails.Link).
		run("usher inbox tenants --trouble").naming(e.UnknownDetails.Tenants).only()
}

// renamed says that tenants may have been renamed, whose old codes go on to be answered as before.
func renamed(s *Status, _ time.Time) []Trouble {
	e := s.Entitlements
	if e == nil || len(e.Renamed) == 0 {
		return nil
	}
	var names, pairs []string
	for _, r := range e.Renamed {
		was, is := view.TenantName(r.Platform, r.Old), view.TenantName(r.Platform, r.New)
		names, pairs = append(names, was, is), append(pairs, was+" (now "+is+")")
	}
	what := view.FirstFew(pairs) + " may have been renamed: the same tenant id came with another code. usher answers for both codes"
	return wrong(what, ofEntitlements("")).link("/tenants").run("usher inbox erase " + text.Quote(names[0])).naming(names).only()
}

// answersFail says that more than a twentieth of the last questions, three at least, got a 503, or an answer after a
// second or more. While the inbox cannot be used, that is said instead.
func answersFail(s *Status, now time.Time) []Trouble {
	e := s.Entitlements
	if e == nil || s.of("entitlements") != nil && s.Health.Inbox != nil && s.Health.Inbox.Err != nil {
		return nil
	}
	a := e.Answers
	if a.Bad < 3 || a.Bad*20 <= a.Bad+a.Good || isOver(a.LastBad, a.LastGood, now) {
		return nil
	}
	what := fmt.Sprintf("usher failed %s of %s about what a tenant may use in the last %d minutes, or took a second or more",
		view.Count(a.Bad), view.Plural(a.Bad+a.Good, "question", "questions"), lately)
	return wrong(what, ofEntitlements("")).only()
}
