// Package changes says in words what changed between two snapshots of a tenant: "users 5 → 10",
// "+ sso", "subscription trial → active".
//
// It looks only at the features and subscriptions, never at the account and its contacts. Payloads
// can be customised in the billing service. So the package ignores what is not at its documented
// place, and only says "payload changed" if it recognises nothing.
package changes

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

const (
	// payloadChanged is for a change elsewhere in the payload, or in a payload that is not
	// recognised.
	payloadChanged = "payload changed"

	// maxWords is how long a list may be: nobody reads a longer one.
	maxWords = 100
)

// Between says what changed from the snapshot previous to the snapshot next; both are bodies of
// webhooks. Without a previous one, everything counts as added. The order is fixed: features first,
// then subscriptions, in the order of next; what was removed comes last.
func Between(previous, next []byte) []string {
	var before snapshot
	known := true
	if len(previous) > 0 {
		before, known = read(previous)
	}
	after, ok := read(next)
	var words []string
	if known && ok {
		words = differences(&before, &after)
	}
	switch {
	case len(words) > maxWords:
		more := fmt.Sprintf("and %d more", len(words)-maxWords)
		return append(words[:maxWords:maxWords], more)
	case len(words) > 0:
		return words
	case len(previous) == 0 || equal(previous, next):
		return nil
	default:
		return []string{payloadChanged}
	}
}

// equal reports whether two bodies mean the same: members may be in another order, and a null may be
// missing.
func equal(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	left, err := decode(a)
	if err != nil {
		return false
	}
	right, err := decode(b)
	return err == nil && reflect.DeepEqual(present(left), present(right))
}

// present removes every null from value.
func present(value any) any {
	switch v := value.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(_ string, member any) bool { return member == nil })
		for name, member := range v {
			v[name] = present(member)
		}
	case []any:
		v = slices.DeleteFunc(v, func(item any) bool { return item == nil })
		for i, item := range v {
			v[i] = present(item)
		}
		return v
	}
	return value
}

func differences(before, after *snapshot) []string {
	words := featureChanges(before.features, after.features)
	told := make(map[string]bool)
	for _, change := range words {
		told[change] = true
	}
	several := len(before.subscriptions) > 1 || len(after.subscriptions) > 1
	pairs, added, removed := match(before.subscriptions, after.subscriptions)
	for _, p := range pairs {
		prefix := "subscription "
		if several {
			prefix += cmp.Or(p.after.label, "without a name").String() + ": "
		}
		for _, change := range subscriptionChanges(p.before, p.after) {
			words = append(words, prefix+change)
		}
		for _, change := range featureChanges(p.before.features, p.after.features) {
			// With one product the tenant and the subscription have the same features.
			if !told[change] {
				words = append(words, prefix+change)
			}
		}
	}
	for _, s := range added {
		words = append(words, "+ "+s.String())
	}
	for _, s := range removed {
		words = append(words, "- "+s.String())
	}
	return words
}

// featureChanges compares by code. If several features have the same code, it compares the first
// with the first, and so on.
func featureChanges(before, after []feature) []string {
	former := make(map[text][]feature)
	for _, f := range before {
		former[f.code] = append(former[f.code], f)
	}
	var changed, added, removed []string
	for _, f := range after {
		same := former[f.code]
		if len(same) == 0 {
			added = append(added, "+ "+f.String())
			continue
		}
		former[f.code] = same[1:]
		changed = append(changed, same[0].changesTo(f)...)
	}
	for _, f := range before {
		if left := former[f.code]; len(left) > 0 {
			former[f.code] = left[1:]
			removed = append(removed, "- "+f.code.String())
		}
	}
	return slices.Concat(changed, added, removed)
}

func (f feature) changesTo(g feature) []string {
	var words []string
	if f.quantity != g.quantity {
		words = append(words, fmt.Sprintf("%s %s → %s", f.code, f.limit(), g.limit()))
	}
	if f.value != g.value {
		words = append(words, fmt.Sprintf("%s: value %q → %q", f.code, f.value, g.value))
	}
	return words
}

func subscriptionChanges(before, after *subscription) []string {
	var words []string
	compare := func(what string, from, to text) {
		if from != to {
			words = append(words, fmt.Sprintf("%s%s → %s", what, cmp.Or(from, "none"), cmp.Or(to, "none")))
		}
	}
	compare("", before.state, after.state)
	from, to := tellApart(before.product, after.product)
	compare("product ", from, to)
	from, to = tellApart(before.plan, after.plan)
	compare("plan ", from, to)
	from, to = tellApart(before.priceList, after.priceList)
	compare("price list ", from, to)
	compare("start ", before.start, after.start)
	compare("end ", before.end, after.end)
	compare("trial start ", before.trialStart, after.trialStart)
	compare("trial end ", before.trialEnd, after.trialEnd)
	return words
}

// tellApart returns the names of two things, or their codes if only those differ.
func tellApart(a, b coded) (from, to text) {
	if a.code != b.code && a.name == b.name {
		return a.code, b.code
	}
	return a.label(), b.label()
}
