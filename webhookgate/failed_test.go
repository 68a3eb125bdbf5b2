package webhookgate

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/content"
)

// A change that got a 5xx is reported a minute later, once, unless it came in meanwhile.
func TestMissed(t *testing.T) {
	for name, tc := range map[string]struct {
		steps string // each is a snapshot, or a second's pause; "!" in front: the receiver fails
		want  int
	}{
		"taken in":                           {"A", 0},
		"missed":                             {"!A", 1},
		"the second attempt comes in":        {"!A - A", 0},
		"the second attempt fails, too":      {"!A - !A", 1},
		"the third comes in":                 {"!A - !A - A", 0},
		"another one comes in":               {"!A - B", 1},
		"two":                                {"!A !B", 2},
		"two, and the first comes in later":  {"!A !B - A", 1},
		"invalid, and then recorded as that": {"?", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			status, start := 200, time.Now()
			var mu sync.Mutex // guards reported
			var reported []time.Time
			g := newGate(t, func(c *setup) {
				c.Tries = 1
				c.Transport = roundTrip(func(*http.Request) (*http.Response, error) { return respond(status, ""), nil })
				c.Missed = func(at time.Time) { mu.Lock(); reported = append(reported, at); mu.Unlock() }
			})
			for step := range strings.FieldsSeq(tc.steps) {
				snapshot, fails := strings.CutPrefix(step, "!")
				if status = 200; fails {
					status = 500
				}
				switch {
				case step == "-":
					time.Sleep(time.Second)
				case step == "?":
					post(t, g, "{}")
				default:
					post(t, g, snapshotOf("acme", snapshot))
				}
			}
			time.Sleep(59 * time.Second)
			mu.Lock()
			if len(reported) != 0 && !strings.Contains(tc.steps, "-") {
				t.Errorf("%s: reported before the second attempt could come", name)
			}
			mu.Unlock()
			time.Sleep(time.Hour)
			mu.Lock()
			defer mu.Unlock()
			if len(reported) != tc.want || slices.ContainsFunc(reported, func(at time.Time) bool { return !at.Equal(start) }) {
				t.Errorf("%s: %d reported: %v", name, len(reported), reported)
			}
		})
	}
}

// Nothing is missed of a stranger, nor of a question, which nobody sends again. When usher stops, nobody waits.
func TestMissedOfWhom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reported := 0
		g := newGate(t, func(c *setup) {
			c.Tries, c.Tokens = 1, tokens("good")
			c.Types, c.SyncTypes = append(c.Types, "Other"), []string{"Question"}
			c.Transport = roundTrip(func(*http.Request) (*http.Response, error) { return nil, http.ErrHandlerTimeout })
			c.Missed = func(time.Time) { reported++ }
		})
		change := snapshotOf("acme", "A")
		post(t, g, change, "X-Webhook-Token", "bad")
		post(t, g, strings.Replace(change, content.TenantProvisioningChange, "Question", 1), "X-Webhook-Token", "good")
		if g.Shutdown(t.Context()); reported != 0 {
			t.Errorf("%d reported", reported)
		}
		post(t, g, change, "X-Webhook-Token", "good")
		post(t, g, `{"type":"Other","payload":{}}`, "X-Webhook-Token", "good")
		if g.Shutdown(t.Context()); reported != 2 {
			t.Errorf("%d reported, want 2", reported)
		}
	})
}

// A webhook is invalid, and the inbox cannot store it: its sender gets a 503 and sends it again. Without an inbox it gets the 422.
func TestInvalidThatCannotBeStored(t *testing.T) {
	for _, tc := range []struct {
		name     string
		inbox    bool
		id       int64 // zero: not stored
		want     int
		decision string
	}{
		{"stored", true, 7, 422, "rejected"},
		{"not stored", true, 0, 503, "failed"},
		{"no inbox", false, 0, 422, "rejected"},
	} {
		var told Outcome
		missed := 0
		g := newGate(t, func(c *setup) {
			c.Missed = func(time.Time) { missed++ }
			if tc.inbox {
				c.Store = func(context.Context, *Webhook) (string, error) { return "", nil }
			}
			c.Invalid = func(context.Context, *Invalid) int64 { return tc.id }
			c.Answered = func(o Outcome) { told = o }
		})
		got := post(t, g, `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme"}}}`)
		if got.Code != tc.want || got.Header().Get("Usher-Decision") != tc.decision || (got.Header().Get("Retry-After") != "") != (tc.want == 503) {
			t.Errorf("%s: %d %v %s", tc.name, got.Code, got.Header(), got.Body)
		}
		if told.Stored != (tc.id != 0) || told.Invalid == nil || told.Invalid.Status != 422 || len(told.Invalid.Faults) == 0 {
			t.Errorf("%s: %+v", tc.name, told)
		}
		if g.Shutdown(t.Context()); (missed == 1) != (tc.want == 503) {
			t.Errorf("%s: missed %d", tc.name, missed)
		}
	}
}
