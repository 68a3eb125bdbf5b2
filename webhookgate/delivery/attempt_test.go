package delivery

import (
	"net/http"
	"testing"
)

// FuzzRetryAfter: whatever a receiver writes there is a bounded, positive wait or none.
func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "0", "5", "-5", "+5", "1.5", "99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT", "Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d := retryAfter(http.Header{"Retry-After": {s}}); d < 0 {
			t.Errorf("%q: %v", s, d)
		}
	})
}
