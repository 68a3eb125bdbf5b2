package changes

import "slices"

// pair is one subscription in two snapshots.
type pair struct{ before, after *subscription }

// likenesses are what two subscriptions are known as the same by, the surest first.
// Neither ids nor codes are present in all payloads.
var likenesses = []func(a, b *subscription) bool{
	func(a, b *subscription) bool { return a.id != "" && a.id == b.id },
	func(a, b *subscription) bool {
		return a.product.code != "" && a.product.code == b.product.code && !distinct(a, b)
	},
	func(a, b *subscription) bool {
		return a.plan.code != "" && a.plan.code == b.plan.code && !distinct(a, b)
	},
	func(a, b *subscription) bool {
		// By name. Those without any are the same in the order in which they stand.
		return a.label == b.label && !distinct(a, b)
	},
}

// distinct says that two subscriptions can't be the same one.
func distinct(a, b *subscription) bool {
	differ := func(x, y text) bool { return x != "" && y != "" && x != y }
	return differ(a.id, b.id) || differ(a.product.code, b.product.code)
}

// match finds the subscriptions of one snapshot in the other. Where one is left on
// either side, and nothing speaks against it, these two are taken for the same.
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
