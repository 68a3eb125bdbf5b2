package entitlements

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A code that exists on several platforms is remembered once somebody asks in vain, until the question would
// have an answer, or nobody asks any more.
func TestAmbiguities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		several := map[string]bool{"two": true, "also": true}
		var down error
		hang := false
		var a Ambiguities
		lookup := a.Watch(func(ctx context.Context, tenant string, platform *string) (Answer, error) {
			if hang {
				<-ctx.Done()
				return Answer{}, ctx.Err()
			}
			switch {
			case down != nil:
				return Answer{}, down
			case platform == nil && several[tenant]:
				return Answer{}, fmt.Errorf("asked: %w", &AmbiguousError{[]string{"", "crm"}})
			}
			return Answer{}, nil
		})
		ask := func(tenant string, platform *string) { _, _ = lookup(t.Context(), tenant, platform) }
		want := func(when string, codes ...string) {
			t.Helper()
			if got := a.Lately(t.Context()); !slices.Equal(got, codes) {
				t.Errorf("%s: %q, want %q", when, got, codes)
			}
		}
		crm := "crm"
		ask("one", nil)
		ask("two", &crm)
		want("at first")
		ask("two", nil)
		ask("also", nil)
		want("asked in vain", "also", "two")
		down = errors.New("the database is away")
		ask("two", nil)
		want("nobody knows", "also", "two")
		down = nil
		ask("two", &crm)
		want("others name the platform", "also", "two")
		delete(several, "two") // erased
		down = errors.New("the database is away")
		want("nobody knows that it was erased", "also", "two")
		down = nil
		want("nobody asks again", "also")
		hang = true
		want("the database hangs", "also")
		hang = false
		time.Sleep(AmbiguousFor - time.Minute)
		want("still", "also")
		time.Sleep(time.Minute - 2*time.Second)
		want("looking at it is not asking", "also")
		time.Sleep(2 * time.Second)
		want("nobody asks any more")
		for n := range 2 * maxAmbiguities {
			several[fmt.Sprint(n)] = true
			ask(fmt.Sprint(n), nil)
		}
		if n := len(a.Lately(t.Context())); n != maxAmbiguities {
			t.Errorf("%d are remembered", n)
		}
	})
}
