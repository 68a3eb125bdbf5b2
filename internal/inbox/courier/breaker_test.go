package courier

import (
	"strings"
	"testing"
	"time"
)

// Each step is an event and what admits then: "+" takes a place, "x" finds none until
// a delivery ends, a duration is how long to wait. "ok", "down" and "cut" end one.
func TestBreaker(t *testing.T) {
	for name, steps := range map[string]string{
		"limit":                             "+ + + + x ok + x",
		"four failures are not an outage":   "+ + + + down down down down + + + + x",
		"a success between starts anew":     "+ + + + down down down down + ok + down + down + down + down +",
		"five are: single probes":           "+ down + down + down + down + down 1s 1s: + x down 2s 2s: + down 4s 4s: + down 5s 5s: + down 5s",
		"others under way tell nothing":     "+ + + down down + down + down + + down x down x down 1s 1s: + x",
		"a probe waits for those":           "+ + + down + down + down + down + down x ok + x ok + + + x",
		"back: two, then four":              "+ down + down + down + down + down 1s: + ok + + x ok + + + x ok + x",
		"a probe cut says nothing":          "+ down + down + down + down + down 1s: + cut + down 2s",
		"down again: the pause starts over": "+ down + down + down + down + down 1s: + down 2s: + ok + down + down + down + down + down 1s",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBreaker(4)
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			for n, step := range strings.Fields(steps) {
				at, wait, isTime := strings.Cut(step, ":")
				switch {
				case isTime && wait == "":
					d, _ := time.ParseDuration(at)
					now = now.Add(d)
				case step == "ok":
					b.answered()
				case step == "down":
					b.failed(now)
				case step == "cut":
					b.abandoned()
				default:
					got := "+"
					if wait, ok := b.admit(now); !ok {
						if got = "x"; wait > 0 {
							got = wait.String()
						}
					}
					if got != step {
						t.Fatalf("step %d: %s, want %s (%+v)", n, got, step, b)
					}
				}
				if b.underway < 0 || b.underway > b.limit {
					t.Fatalf("step %d: %+v", n, b)
				}
			}
		})
	}
}
