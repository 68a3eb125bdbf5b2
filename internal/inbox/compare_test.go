package inbox

import (
	"testing"

	"usher/internal/lane"
)

// A list is counted line by line: what is said twice, what contradicts itself, what nobody takes, and twins
// in the end.
func TestList(t *testing.T) {
	t.Parallel()
	type line struct {
		tenant, says string
		result       lane.Result
		elsewhere    string
		fault        string
	}
	equal, differs := line{"a", "x", lane.Equal, "", ""}, line{"a", "x", lane.Differs, "", ""}
	for name, c := range map[string]struct {
		lines   []line
		told    string
		want    lane.Summary
		failure string
	}{
		"nothing": {nil, "", lane.Summary{}, "the command printed nothing"},
		"each result": {
			[]line{
				equal,
				{"b", "x", lane.Differs, "", ""},
				{"c", "x", lane.NewTenant, "", ""},
				{"d", "x", lane.Changed, "", ""},
			},
			"b c d", lane.Summary{Equal: 1, Differs: 1, New: 1, Changed: 1}, "",
		},
		"the same again": {[]line{differs, differs}, "a", lane.Summary{Differs: 1}, ""},
		"contradicts": {
			[]line{equal, {"a", "y", lane.Differs, "", ""}},
			"a", lane.Summary{Equal: 1}, "1 line cannot be compared",
		},
		"changed meanwhile": {
			[]line{equal, {"a", "y", lane.Changed, "", ""}},
			"", lane.Summary{Equal: 1}, "",
		},
		"faulty": {
			[]line{{fault: "x"}, {fault: "x"}},
			" ", lane.Summary{}, "2 lines cannot be compared",
		},
		"nobody takes it": {
			[]line{{"a", "x", "", "", ""}}, "", lane.Summary{PassedOver: 1},
			"nothing was compared: no receiver takes these platforms: crm. Are they right?",
		},
		"only changed": {
			[]line{{"a", "x", lane.Changed, "", ""}}, "a", lane.Summary{Changed: 1},
			"nothing was compared: something came for each of these tenants meanwhile. Run it again",
		},
		"a twin":               {[]line{{"a", "x", lane.NewTenant, "erp", ""}}, "a twin", lane.Summary{Twin: 1}, ""},
		"both sides of a twin": {[]line{{"a", "x", lane.NewTenant, "crm", ""}}, "a new", lane.Summary{New: 1}, ""},
	} {
		l := list{seen: make(map[[16]byte][8]byte)}
		var told string
		for _, s := range c.lines {
			one := lane.Compared{Platform: "crm", Tenant: s.tenant, Fault: s.fault}
			copy(one.Says[:], s.says)
			one.PassedOver = s.fault == "" && s.result == ""
			if l.enter(&one) {
				continue
			}
			if one.Result = s.result; s.elsewhere != "" {
				one.Elsewhere = []string{s.elsewhere}
			}
			if l.count(&one) {
				told += " " + one.Tenant
			}
		}
		for _, one := range l.twins() {
			told += " " + one.Tenant + " " + string(one.Result)
		}
		if told != "" {
			told = told[1:]
		}
		if told != c.told || l.sum != c.want || l.failure() != c.failure {
			t.Errorf("%s: told %q, %+v, %q", name, told, l.sum, l.failure())
		}
	}
}
