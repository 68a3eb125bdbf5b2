package changes

import "cmp"

// Rights is what a tenant may use according to one snapshot, in words for people.
type Rights struct {
	Name          string         `json:"name,omitempty"` // the tenant's; may be empty
	Features      []Feature      `json:"features"`
	Subscriptions []Subscription `json:"subscriptions"`
}

// Feature is a feature that the tenant should have.
type Feature struct {
	Code  string `json:"code"`
	Name  string `json:"name,omitempty"`
	Limit string `json:"limit"` // a number, or "unlimited"
	Value string `json:"value,omitempty"`
}

// Subscription is what the features come from.
type Subscription struct {
	Label    string `json:"label"` // product or plan
	State    string `json:"state,omitempty"`
	Plan     string `json:"plan,omitempty"`
	Start    string `json:"start,omitempty"` // a date, as the others
	End      string `json:"end,omitempty"`
	TrialEnd string `json:"trial_end,omitempty"`
}

// Read returns the rights in the body of a webhook; ok is false if it recognises none.
func Read(body []byte) (_ Rights, ok bool) {
	s, ok := read(body)
	if !ok {
		return Rights{}, false
	}
	r := Rights{Name: s.tenant.String()}
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
