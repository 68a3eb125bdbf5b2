package changes

import "cmp"

// Rights is what one snapshot says that a tenant may use, in words for people.
type Rights struct {
	Name          string // the tenant's; empty where the payload has none
	Features      []Feature
	Subscriptions []Subscription
}

// Feature is one that the tenant should have.
type Feature struct {
	Code, Name string
	Limit      string // a number, or "unlimited"
	Value      string
}

// Subscription is what the features come from.
type Subscription struct {
	Label      string // product or plan
	State      string
	Plan       string
	Start, End string // dates
	TrialEnd   string
}

// Read returns the rights in the body of a webhook; ok is false where none can be
// recognised.
func Read(body []byte) (_ Rights, ok bool) {
	s, ok := read(body)
	if !ok {
		return Rights{}, false
	}
	value, _ := decode(body) // as read has done
	r := Rights{Name: scalar(member(member(value, "payload"), "tenant"), "name").String()}
	for _, f := range s.features {
		r.Features = append(r.Features, Feature{f.code.String(), f.name.String(), f.limit().String(), f.value.String()})
	}
	for i := range s.subscriptions {
		sub := &s.subscriptions[i]
		r.Subscriptions = append(r.Subscriptions, Subscription{
			Label: cmp.Or(sub.label.String(), "subscription"), State: sub.state.String(), Plan: sub.plan.label().String(),
			Start: sub.start.String(), End: sub.end.String(), TrialEnd: sub.trialEnd.String(),
		})
	}
	return r, true
}
