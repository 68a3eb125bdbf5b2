package inbox

import (
	"maps"
	"testing"

	"usher/internal/lane"
	"usher/internal/snapshot"
)

// A list is counted line by line: what is said twice, what contradicts itself, what nobody takes, and what
// is known elsewhere.
func TestList(t *testing.T) {
	t.Parallel()
	type line struct {
		tenant, says string
		result       lane.Result
		elsewhere    string
	}
	equal, differs := line{"a", "x", lane.Equal, ""}, line{"a", "x", lane.Differs, ""}
	for name, c := range map[string]struct {
		lines   []line
		told    string
		want    lane.Counts
		failure string
	}{
		"nothing": {nil, "", lane.Counts{}, "the command printed nothing"},
		"each result": {
			[]line{
				equal,
				{"b", "x", lane.Differs, ""},
				{"c", "x", lane.NewTenant, ""},
				{"d", "x", lane.Left, ""},
			},
			"b c d", lane.Counts{lane.Equal: 1, lane.Differs: 1, lane.NewTenant: 1, lane.Left: 1}, "",
		},
		"the same again": {[]line{differs, differs}, "a", lane.Counts{lane.Differs: 1}, ""},
		"contradicts": {
			[]line{equal, {"a", "y", lane.Differs, ""}},
			"a", lane.Counts{lane.Equal: 1, lane.Faulty: 1}, "1 line cannot be compared",
		},
		"left meanwhile": {
			[]line{equal, {"a", "y", lane.Left, ""}},
			"", lane.Counts{lane.Equal: 1}, "",
		},
		"faulty": {
			[]line{{result: lane.Faulty}, {result: lane.Faulty}},
			" ", lane.Counts{lane.Faulty: 2}, "2 lines cannot be compared",
		},
		"nobody takes it": {
			[]line{{"a", "x", lane.PassedOver, ""}}, "", lane.Counts{lane.PassedOver: 1},
			"nothing was compared: no receiver takes the platforms in the list, such as that of crm/a. Are they right?",
		},
		"only left": {
			[]line{{"a", "x", lane.Left, ""}}, "a", lane.Counts{lane.Left: 1}, "",
		},
		"known elsewhere": {
			[]line{{"a", "x", lane.NewTenant, "erp"}}, "a", lane.Counts{lane.NewTenant: 1},
			"crm/a is new, and usher knows erp/a, which the command did not print: is the platform right?",
		},
		"known elsewhere, and printed": {[]line{{"a", "x", lane.NewTenant, "crm"}}, "a", lane.Counts{lane.NewTenant: 1}, ""},
	} {
		l := passing{seen: make(map[[16]byte][16]byte), found: make(lane.Counts)}
		var told string
		tell := func(o *lane.ListLine, result lane.Result) {
			one := o.Draft
			if one.Result = result; l.count(o, &one) {
				told += " " + one.Tenant
			}
		}
		for _, s := range c.lines {
			o := &lane.ListLine{Draft: lane.Compared{Platform: "crm", Tenant: s.tenant, Result: s.result}}
			o.Says.Features = []snapshot.Feature{{Code: s.says}}
			if s.elsewhere != "" {
				o.Draft.Elsewhere = []string{s.elsewhere}
			}
			if !l.enter(o) {
				tell(o, s.result)
			}
		}
		if told != "" {
			told = told[1:]
		}
		if told != c.told || !maps.Equal(l.found, c.want) || l.failure() != c.failure {
			t.Errorf("%s: told %q, %+v, %q", name, told, l.found, l.failure())
		}
	}
}
