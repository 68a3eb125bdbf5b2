package snapshot

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"usher/internal/text"
)

const (
	// payloadChanged is for a change that is in neither features nor subscriptions. featuresUnknown
	// is for a list of features that can no longer be read.
	payloadChanged  = "payload changed"
	featuresUnknown = "features unknown"

	// maxWords is how many changes are listed. maxShown is how many characters are shown of a text
	// that others wrote.
	maxWords = 100
	maxShown = 80
)

// Between describes what changed from one webhook's body to another's, one change in each element. If
// there is no previous body, everything counts as added.
func Between(previous, next []byte) []string {
	words := Diff(Read(previous), Read(next))
	if len(words) == 0 && len(previous) > 0 && !bytes.Equal(previous, next) {
		return []string{payloadChanged}
	}
	return words
}

// Would describes what an invalid webhook would have changed: "would have added sso, users (5); removed
// crm". It returns nil if the features cannot be read.
func Would(previous, next []byte) []string {
	after := Read(next)
	if !after.Known {
		return nil
	}
	var added, removed, changed []string
	for _, word := range Diff(Read(previous), after) {
		if what, ok := strings.CutPrefix(word, "+ "); ok {
			added = append(added, what)
		} else if what, ok := strings.CutPrefix(word, "- "); ok {
			removed = append(removed, what)
		} else {
			changed = append(changed, word)
		}
	}
	var parts []string
	for i, what := range [][]string{added, removed, changed} {
		if len(what) > 0 {
			parts = append(parts, []string{"added ", "removed ", "changed "}[i]+strings.Join(what, ", "))
		}
	}
	return []string{"would have " + cmp.Or(strings.Join(parts, "; "), "changed no feature and no subscription")}
}

// Diff describes what changed in features and subscriptions. The order is fixed: first features, then
// subscriptions, each in the order of after, and at their ends those that were removed.
func Diff(before, after Snapshot) []string {
	if before.Known && !after.Known {
		return []string{featuresUnknown}
	}
	words := featureChanges(before.Features, after.Features)
	words = append(words, subscriptionChanges(before.Subscriptions, after.Subscriptions)...)
	if len(words) > maxWords {
		more := fmt.Sprintf("and %d more", len(words)-maxWords)
		return append(words[:maxWords:maxWords], more)
	}
	return words
}

// Shown returns a text that others wrote as people may see it: short, and without control characters.
func Shown(s string) string { return text.Visible(text.Shorten(s, maxShown)) }

func featureChanges(before, after []Feature) []string {
	former, now := make(map[string]Feature, len(before)), make(map[string]bool, len(after))
	for _, f := range before {
		former[f.Code] = f
	}
	var words, added []string
	for _, f := range after {
		now[f.Code] = true
		if was, ok := former[f.Code]; ok {
			words = append(words, was.changesTo(f)...)
		} else {
			added = append(added, "+ "+f.words())
		}
	}
	words = append(words, added...)
	for _, f := range before {
		if !now[f.Code] {
			words = append(words, "- "+Shown(f.Code))
		}
	}
	return words
}

func (f Feature) words() string {
	var more []string
	if f.Limit != Unlimited {
		more = append(more, f.Limit.String())
	}
	if f.Value != "" {
		more = append(more, fmt.Sprintf("value %q", Shown(f.Value)))
	}
	if len(more) == 0 {
		return Shown(f.Code)
	}
	return Shown(f.Code) + " (" + strings.Join(more, ", ") + ")"
}

func (f Feature) changesTo(g Feature) (words []string) {
	if f.Limit != g.Limit {
		words = append(words, fmt.Sprintf("%s %s → %s", Shown(f.Code), f.Limit, g.Limit))
	}
	if f.Value != g.Value {
		words = append(words, fmt.Sprintf("%s: value %q → %q", Shown(f.Code), Shown(f.Value), Shown(g.Value)))
	}
	return words
}

func subscriptionChanges(before, after []Subscription) (words []string) {
	was, removed := match(before, after)
	var added []string
	for i := range after {
		s := &after[i]
		if was[i] == nil {
			added = append(added, "+ "+s.words())
			continue
		}
		prefix := "subscription "
		if len(before) > 1 || len(after) > 1 {
			prefix += Shown(cmp.Or(s.Label, "without a name")) + ": "
		}
		for _, change := range was[i].changesTo(s) {
			words = append(words, prefix+change)
		}
	}
	words = append(words, added...)
	for _, s := range removed {
		words = append(words, "- "+s.words())
	}
	return words
}

// match finds the subscriptions of one snapshot in the other. was has the former state of each
// subscription in after, nil if it is new. removed has the subscriptions that are gone. If there is
// one before and one after, they are the same. Otherwise a subscription is known by its id, or by its
// label if the payload has no ids; those that are alike are matched in their order.
func match(before, after []Subscription) (was, removed []*Subscription) {
	key := func(s *Subscription) string { return cmp.Or(s.ID, s.Label) }
	if len(before) == 1 && len(after) == 1 {
		key = func(*Subscription) string { return "" }
	}
	former := make(map[string][]*Subscription)
	for i := range before {
		k := key(&before[i])
		former[k] = append(former[k], &before[i])
	}
	was = make([]*Subscription, len(after))
	for i := range after {
		if k := key(&after[i]); len(former[k]) > 0 {
			was[i], former[k] = former[k][0], former[k][1:]
		}
	}
	for i := range before {
		if k := key(&before[i]); len(former[k]) > 0 && former[k][0] == &before[i] {
			removed, former[k] = append(removed, &before[i]), former[k][1:]
		}
	}
	return was, removed
}

func (s *Subscription) words() string {
	words := "subscription"
	if s.Label != "" {
		words += " " + Shown(s.Label)
	}
	if s.State != "" {
		words += " (" + Shown(s.State) + ")"
	}
	return words
}

func (s *Subscription) changesTo(t *Subscription) (words []string) {
	compare := func(what, from, to string) {
		if from != to {
			words = append(words, what+Shown(cmp.Or(from, "none"))+" → "+Shown(cmp.Or(to, "none")))
		}
	}
	compare("", s.State, t.State)
	compare("product ", s.Product.Label(), t.Product.Label())
	compare("plan ", s.Plan.Label(), t.Plan.Label())
	compare("price list ", s.PriceList.Label(), t.PriceList.Label())
	compare("start ", s.Start, t.Start)
	compare("end ", s.End, t.End)
	compare("trial start ", s.TrialStart, t.TrialStart)
	compare("trial end ", s.TrialEnd, t.TrialEnd)
	return words
}
