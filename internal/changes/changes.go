// Package changes says in words what one snapshot of a tenant changed against the
// one before it: "users 5 → 10", "+ sso", "subscription trial → active".
//
// The words come from the features and subscriptions alone, never from the account
// and its contacts. Snapshots are foreign, and can be customised in the billing
// service: what is not where the documentation has it is passed over, and a payload
// that can't be recognised at all has merely changed.
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
	// payloadChanged is all that can be said of a change elsewhere in the payload,
	// or in one that can't be recognised.
	payloadChanged = "payload changed"

	// maxWords is where a list stops being read.
	maxWords = 100
)

// Between says what changed from the snapshot previous to the snapshot next, both
// the bodies of webhooks. Without a previous one, all that is there was added. The
// result depends on nothing but the arguments: features first, then subscriptions,
// in the order of next, what was removed last.
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

// equal says whether two bodies mean the same: members may stand in another order, and
// what is null may be missing.
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

// present takes out of value whatever is null.
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
			// With one product the tenant's features are the subscription's.
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

// featureChanges compares by code; of features with the same code, the first with
// the first, and so on.
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

// tellApart returns the names of two things, or their codes where those differ
// behind the same name.
func tellApart(a, b coded) (from, to text) {
	if a.code != b.code && a.name == b.name {
		return a.code, b.code
	}
	return a.label(), b.label()
}
