package content

import (
	"fmt"
	"testing"
)

// However many faults there are, people see some, and how many more.
func TestFirst(t *testing.T) {
	var all []Fault
	for i := range 100_000 {
		all = append(all, Fault{Path: fmt.Sprint("/", i), Message: "is odd"})
	}
	once := First(all, MaxFaults)
	for name, tc := range map[string]struct {
		faults  []Fault
		n       int
		summary string
	}{
		"none":              {First(nil, 3), 0, ""},
		"one":               {First(all[:1], 3), 1, "/0 is odd"},
		"as many as listed": {First(all[:3], 3), 3, "/0 is odd, and 2 more"},
		"more":              {First(all[:4], 3), 3, "/0 is odd, and 3 more"},
		"many more":         {once, MaxFaults, "/0 is odd, and 99999 more"},
		"listed again":      {First(once, 20), 20, "/0 is odd, and 99999 more"},
	} {
		if got := Summary(tc.faults); len(tc.faults) != tc.n || got != tc.summary {
			t.Errorf("%s: %d, %q", name, len(tc.faults), got)
		}
	}
	if got := First(once, 20)[19].String(); got != "the body has 99981 more faults" || all[19].Path != "/19" {
		t.Errorf("%q, %v", got, all[19])
	}
}
