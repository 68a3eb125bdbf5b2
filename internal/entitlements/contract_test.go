package entitlements

import "testing"

// Listed means enabled: no date and no state of a subscription decides anything.
func TestDatesAndStatesDecideNothing(t *testing.T) {
	for _, subscriptions := range []string{
		`[]`, `null`,
		`[{"state":"cancelled","start_date":"2000-01-01","end_date":"2000-12-31"}]`,
		`[{"state":"draft","start_date":"2999-01-01","trial_end_date":"2000-01-01"}]`,
		`[{"state":"active","features":[{"code":"users","quantity":1}]}]`,
	} {
		s, err := Parse(webhook(`{"subscriptions":` + subscriptions + `,"features":[{"code":"users","quantity":25,"state":"off","end_date":"2000-01-01"}]}`))
		if f, ok := s.Feature("users"); err != nil || !ok || f.Limit != 25 {
			t.Errorf("%s: %+v, %v, %v", subscriptions, f, ok, err)
		}
	}
}
