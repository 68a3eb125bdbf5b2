package record

import (
	"testing"
	"time"
)

// A clock that was ahead by a day when a snapshot was accepted, and is right again, does not have copies dropped for a day.
func TestAcceptedInTheFuture(t *testing.T) {
	accepted := time.Now().Add(24 * time.Hour).Round(0) // as it was stored
	if Held(Delivered, accepted, 10*time.Minute) {
		t.Error("a snapshot that was accepted tomorrow counts as held for a window of ten minutes")
	}
}
