package state

import (
	"strings"
	"testing"
)

// A state has the same number for ever, since the database stores it.
func TestNumbers(t *testing.T) {
	const were = "waiting parked invalid delivered superseded discarded stored replaced"
	if now := strings.Join(Names(), " "); !strings.HasPrefix(now, were) {
		t.Errorf("the states are %s: a new one belongs at the end", now)
	}
	for n, name := range Names() {
		if s := Of(int64(n)); string(s) != name || s.Number() != int64(n) {
			t.Errorf("%s has the number %d, and %d is %s", name, State(name).Number(), n, s)
		}
	}
}
