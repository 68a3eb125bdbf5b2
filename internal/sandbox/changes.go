package sandbox

import (
	"fmt"
	"slices"
	"time"
)

// change lets a day pass, and changes something about a tenant. It returns the tenant and, in words,
// what happened.
func (w *world) change() (t *tenantState, what string) {
	w.today = w.today.AddDate(0, 0, 1)
	t = w.tenants[w.random.IntN(len(w.tenants))]
	choices := w.choices(t)
	what = choices[w.random.IntN(len(choices))]()
	t.changed = time.Now()
	return t, t.record.Name + ": " + what
}

// choices lists what can happen to the tenant; likely events are in the list more often. Each changes
// its state, so that no two snapshots in a row are the same.
func (w *world) choices(t *tenantState) []func() string {
	var list []func() string
	may := func(times int, f func() string) { list = append(list, slices.Repeat([]func() string{f}, times)...) }
	for i := range t.subs {
		sub, p := &t.subs[i], t.products[i]
		if sub.State == "canceled" {
			may(3, func() string { return w.renew(t, p) })
			continue
		}
		if sub.State == "trial" {
			may(3, func() string { return w.move(sub, "active") })
		}
		may(1, func() string { return w.move(sub, "canceled") })
		may(6, func() string { return w.requote(sub) })
		if len(sub.Features) < len(p.features) {
			may(2, func() string { return addFeature(sub, p) })
		}
	}
	for _, p := range w.catalog {
		if p.platform == t.record.Platform && !slices.Contains(t.products, p) {
			may(1, func() string {
				w.subscribe(t, p, true)
				return p.Name + " subscribed, on trial"
			})
		}
	}
	return list
}

// move changes a subscription's state.
func (w *world) move(sub *Subscription, state string) string {
	former := sub.State
	sub.State = state
	if state == "canceled" {
		sub.EndDate = new(date(w.today))
	}
	return fmt.Sprintf("%s %s → %s", sub.Product.Name, former, state)
}

// renew replaces a canceled subscription with a new one, this time without a trial.
func (w *world) renew(t *tenantState, p *product) string {
	w.subscribe(t, p, false)
	return p.Name + " canceled → active"
}

// requote changes a quoted quantity. There are few quantities, so that a tenant often returns to an
// earlier snapshot (A, B, A).
func (w *world) requote(sub *Subscription) string {
	var limited []*Feature
	for i := range sub.Features {
		// The first feature of a product always has a limit; others may have lost theirs.
		if i == 0 || sub.Features[i].Quantity != nil {
			limited = append(limited, &sub.Features[i])
		}
	}
	f := limited[w.random.IntN(len(limited))]
	quantities := []*int{new(5), new(10), new(25), new(50), nil}
	quantities = slices.DeleteFunc(quantities, func(q *int) bool { return words(q) == words(f.Quantity) })
	former := f.Quantity
	f.Quantity = quantities[w.random.IntN(len(quantities))]
	return fmt.Sprintf("%s %s → %s", f.Code, words(former), words(f.Quantity))
}

// addFeature adds the product's next feature to the subscription.
func addFeature(sub *Subscription, p *product) string {
	f := p.features[len(sub.Features)]
	sub.Features = append(sub.Features, f)
	return fmt.Sprintf("feature %s added to %s", f.Code, p.Name)
}

func words(quantity *int) string {
	if quantity == nil {
		return "no limit"
	}
	return fmt.Sprint(*quantity)
}
