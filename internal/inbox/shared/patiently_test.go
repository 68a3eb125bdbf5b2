package shared

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/record"
)

// Once nobody has confirmed a request, "busy" is no answer: it may be that request which is at work.
func TestBusyAfterAnUnsureAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		answers []error // the last one from then on
		want    error
	}{
		"being delivered":          {[]error{record.ErrBusy}, record.ErrBusy},
		"done by the first":        {[]error{record.ErrUnsure, record.ErrBusy, nil}, nil},
		"nobody can say":           {[]error{record.ErrUnsure, record.ErrBusy}, record.ErrUnsure},
		"nobody delivers any more": {[]error{record.ErrUnsure, record.ErrNobody}, record.ErrUnsure},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				asked := 0
				err := patiently(ctx, func() error {
					asked++
					return tc.answers[min(asked, len(tc.answers))-1]
				})
				if !errors.Is(err, tc.want) {
					t.Errorf("after %d requests: %v", asked, err)
				}
			})
		})
	}
}
