package changes

import "slices"

// pair is one subscription in two snapshots.
type pair struct{ before, after *subscription }

// likenesses are the ways to recognise a subscription in another snapshot, the surest first. Not all
// payloads have ids or codes.
var likenesses = []func(a, b *subscription) bool{
	func(a, b *subscription) bool { return a.id != "" && a.id == b.id },
	func(a, b *subscription) bool {
		return a.product.code != "" && a.product.code == b.product.code && !distinct(a, b)
	},
	func(a, b *subscription) bool {
		return a.plan.code != "" && a.plan.code == b.plan.code && !distinct(a, b)
	},
	func(a, b *subscription) bool {
		// By name. Those without a name are matched in their order.
		return a.label == b.label && !distinct(a, b)
	},
}

// distinct reports that two subscriptions cannot be the same.
func distinct(a, b *subscription) bool {
	differ := func(x, y text) bool { return x != "" && y != "" && x != y }
	return differ(a.id, b.id) || differ(a.product.code, b.product.code)
}

// match finds the subscriptions of one snapshot in the other. If one is left on each side, and they
// are not distinct, they count as the same.
func match(before, after []subscription) (pairs []pair, added, removed []*subscription) {
	added, removed = pointers(after), pointers(before)
	was := make(map[*subscription]*subscription)
	pairUp := func(a, b *subscription) {
		was[b] = a
		removed = slices.DeleteFunc(removed, func(s *subscription) bool { return s == a })
	}
	for _, alike := range likenesses {
		for _, b := range added {
			if i := slices.IndexFunc(removed, func(a *subscription) bool { return alike(a, b) }); i >= 0 {
				pairUp(removed[i], b)
			}
		}
		added = slices.DeleteFunc(added, func(b *subscription) bool { return was[b] != nil })
	}
	if len(added) == 1 && len(removed) == 1 && !distinct(removed[0], added[0]) {
		pairUp(removed[0], added[0])
		added = nil
	}
	for i := range after {
		if a := was[&after[i]]; a != nil {
			pairs = append(pairs, pair{a, &after[i]})
		}
	}
	return pairs, added, removed
}

func pointers(list []subscription) []*subscription {
	var all []*subscription
	for i := range list {
		all = append(all, &list[i])
	}
	return all
}
