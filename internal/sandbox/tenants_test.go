package sandbox

import (
	"testing"

	"usher/internal/content"
)

// Whatever changes at random, the gate takes it in, with the fields that only some payloads have and without them.
func TestGateTakesIn(t *testing.T) {
	rules, err := content.NewRules([]string{EventType}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := newPair(3)
	for range 400 {
		body := mustChange(t, s).Body
		value, fault := content.Parse(body)
		if faults := rules.Faults(value); fault != nil || faults != nil {
			t.Fatalf("%s: %v %v", body, fault, faults)
		}
	}
}
