package lease

import (
	"fmt"
	"testing"
	"time"

	"usher/internal/inbox/shared/message"
)

// Replicas that know of each other share all parts, and none has two more than another.
func TestShare(t *testing.T) {
	for replicas := 1; replicas <= 20; replicas++ {
		now, sum, least, most := time.Now(), 0, message.Parts, 0
		for self := range replicas {
			k := New(Config{Self: fmt.Sprint(self), Subjects: message.Subjects{Parts: message.Parts}})
			for peer := range replicas {
				if peer != self {
					k.peers[fmt.Sprint(peer)] = now
				}
			}
			k.peers["gone"] = now.Add(-2 * peerTime)
			n, first := k.share(now)
			if first < 0 || first >= message.Parts {
				t.Errorf("%d replicas: one begins at %d", replicas, first)
			}
			sum, least, most = sum+n, min(least, n), max(most, n)
		}
		if sum != message.Parts || most-least > 1 {
			t.Errorf("%d replicas have %d parts, %d to %d each", replicas, sum, least, most)
		}
	}
}

// Of two leases the later one counts, however late the other one comes; unless the servers say that the later one is no more.
func TestSaw(t *testing.T) {
	k := New(Config{Self: "me", Subjects: message.Subjects{Parts: 1}})
	lease := func(seq uint64, holder string) seen { return seen{seq: seq, content: content{Holder: holder}} }
	for _, c := range []struct {
		now  seen
		was  uint64
		free bool
	}{
		{lease(5, "other"), 0, false},
		{lease(3, ""), 0, false},  // late
		{lease(6, "me"), 0, true}, // its own
		{lease(7, "other"), 0, false},
		{lease(2, ""), 6, false}, // the one that was expected is not the last by now
		{lease(2, ""), 7, true},  // somebody has deleted 7
	} {
		k.saw(0, c.now, c.was)
		if got := k.Free(0); got != c.free {
			t.Errorf("after %d of %q it is free: %v", c.now.seq, c.now.Holder, got)
		}
	}
}
