package webhookgate

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The service waits five seconds, and sends a webhook twice. The first attempt gets its answer in time, its delivery
// goes on, and the second attempt shares the outcome.
func TestSenderIsAnsweredInTime(t *testing.T) {
	for name, tc := range map[string]struct {
		takes  time.Duration
		want   string
		missed int
	}{
		"the second attempt comes while it goes on": {6 * time.Second, "504 failed, 200 duplicate", 0},
		"the second attempt is too early, too":      {20 * time.Second, "504 failed, 504 failed", 0},
		"it takes longer than a minute":             {70 * time.Second, "504 failed, 504 failed", 0},
		"it fails in the end":                       {2 * time.Minute, "504 failed, 504 failed", 1},
		"in time":                                   {4 * time.Second, "200 forwarded, 200 duplicate", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			taker, missed := &counting{takes: tc.takes}, 0
			var mu sync.Mutex // guards missed
			g := newGate(t, func(c *setup) {
				c.AnswerWithin, c.Tries, c.Timeout = 4500*time.Millisecond, 1, 100*time.Second
				c.Transport, c.Missed = taker, func(time.Time) { mu.Lock(); missed++; mu.Unlock() }
			})
			var told []string
			for range 2 {
				begin := time.Now()
				got := post(t, g, documented)
				told = append(told, fmt.Sprint(got.Code, " ", got.Decision))
				if took := time.Since(begin); took > 4500*time.Millisecond {
					t.Errorf("%s: answered after %v", name, took)
				}
			}
			synctest.Wait()
			if idle := g.places.whenIdle(); tc.takes > 9*time.Second && idle == nil {
				t.Errorf("%s: its place is free, though it goes on", name)
			}
			time.Sleep(time.Hour)
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Join(told, ", "); got != tc.want || missed != tc.missed || g.places.whenIdle() != nil {
				t.Errorf("%s: %s, %d missed", name, got, missed)
			}
			if n := taker.count(); n != 1-tc.missed {
				t.Errorf("%s: delivered %d times", name, n)
			}
		})
	}
}

// What goes on keeps its place in its lane, too: what comes later is delivered after it, and A, B, A is three.
func TestLateDeliveryIsNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taker := &counting{takes: 8 * time.Second}
		g := newGate(t, func(c *setup) { c.AnswerWithin, c.Transport = 4500*time.Millisecond, taker })
		for _, name := range []string{"A", "B", "B", "A"} {
			if got := post(t, g, snapshotOf("acme", name)); got.Code != 504 {
				t.Errorf("%s: %v", name, got)
			}
		}
		if err := g.Shutdown(t.Context()); err != nil { // it waits for them
			t.Error(err)
		}
		want := []string{snapshotOf("acme", "A"), snapshotOf("acme", "B"), snapshotOf("acme", "A")}
		if got := strings.Join(taker.bodies, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("delivered\n%s", got)
		}
	})
}

// The inbox has until then to say that it has a webhook, or that it is invalid. A sender that has gone will send it
// again.
func TestInboxAnswersInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, func(c *setup) {
			c.AnswerWithin = 4500 * time.Millisecond
			c.Store = func(ctx context.Context, _ *Webhook) (string, error) { <-ctx.Done(); return "", ctx.Err() }
			c.Invalid = func(ctx context.Context, _ *Invalid) int64 { <-ctx.Done(); return 0 }
		})
		for _, body := range []string{documented, "{}"} {
			begin := time.Now()
			if got := post(t, g, body); got.Code != 503 || time.Since(begin) != 4500*time.Millisecond {
				t.Errorf("%v after %v", got, time.Since(begin))
			}
		}
	})
	for _, inbox := range []bool{true, false} {
		taken, gone := 0, request(documented)
		ctx, hangUp := context.WithCancel(t.Context())
		hangUp()
		var told Outcome
		missed := 0
		g := newGate(t, func(c *setup) {
			c.Answered = func(o Outcome) { told = o }
			c.Missed = func(time.Time) { missed++ }
			c.Transport = roundTrip(func(*http.Request) (*http.Response, error) { taken++; return respond(200, ""), nil })
			if inbox {
				c.Store = func(context.Context, *Webhook) (string, error) { taken++; return "", nil }
			}
		})
		g.ServeHTTP(httptest.NewRecorder(), gone.WithContext(ctx))
		if g.Shutdown(t.Context()); taken != 0 || told.Status != statusHungUp || missed != 1 {
			t.Errorf("inbox %v: taken in %d times: %+v", inbox, taken, told)
		}
	}
}
