package webhookgate

import (
	"fmt"
	"strings"
	"testing"
)

func TestSentenceNamesTheFirstFault(t *testing.T) {
	g := newGate(t, nil)
	for body, want := range map[string]string{
		`[]`:                   "the body must be an object, not an array",
		`{"type":5}`:           "/payload is missing, and one more fault",
		`{"payload":[]}`:       "/payload must be an object, not an array, and one more fault",
		`{"payload":{},"a":1}`: "/payload/change is missing, and 2 more faults",
	} {
		if got := post(t, g, body); got.Error != want {
			t.Errorf("%s: got %q, want %q", body, got.Error, want)
		}
	}
}

// The sender is told every fault, up to a bound that only an attack meets; those who
// keep outcomes get the first of them.
func TestEveryFaultIsTold(t *testing.T) {
	for _, n := range []int{50, maxFaults, 2 * maxFaults} {
		kept := 0
		g := newGate(t, func(c *Config) { c.Answered = func(o Outcome) { kept = len(o.Faults) } })
		got := post(t, g, strings.Replace(snapshot("acme", "A"), `{"code":"A"}`, strings.TrimSuffix(strings.Repeat(`{"code":1},`, n), ","), 1))
		if got.Code != 422 || len(got.Faults) != min(n, maxFaults) || kept != maxShownFaults || !strings.Contains(got.Error, fmt.Sprintf("%d more faults", n-1)) {
			t.Errorf("%d of %d faults, %d kept: %s", len(got.Faults), n, kept, got.Error)
		}
	}
}
