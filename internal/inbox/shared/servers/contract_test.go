package servers

import (
	"testing"
	"time"
)

// What is finished stays to be looked at, as with a file: the last 10,000, 7 days, 256 MiB. Other
// tests would agree with any figures.
func TestPromisedHistory(t *testing.T) {
	c := (&NATS{Stream: "USHER"}).history(1)
	if c.MaxMsgs != 10_000 || c.MaxAge != 7*24*time.Hour || c.MaxBytes != 256<<20 {
		t.Errorf("%d, %v, %d bytes", c.MaxMsgs, c.MaxAge, c.MaxBytes)
	}
}
