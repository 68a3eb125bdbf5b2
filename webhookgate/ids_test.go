package webhookgate

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/content"
	"usher/internal/signature"
)

// signing is a gate that asks for the Standard Webhooks headers.
func signing(t *testing.T, change func(*setup)) *Gate {
	t.Helper()
	return newGate(t, func(c *setup) {
		c.HMACSecret, c.HMACStandard, c.Tries = secret("whsec_a2V5"), true, 1
		c.Types = append(c.Types, "Reminder")
		if change != nil {
			change(c)
		}
	})
}

// signed is a request with a webhook-id that its signature covers.
func signed(id, body string) *http.Request {
	r := request(body)
	signature.Stamp(r.Header, id, time.Now(), []byte(body), []byte("key"))
	return r
}

// A recorded webhook cannot be sent again, whatever came since, unless it was not taken.
func TestSignedIDs(t *testing.T) {
	type step struct {
		after    time.Duration
		id, name string // of the snapshot; "forget": the tenant is forgotten
		receiver int    // its answer
		want     string
	}
	for name, steps := range map[string][]step{
		"recorded, and sent again after a change": {
			{0, "1", "A", 200, forwarded}, {0, "2", "B", 200, forwarded}, {time.Minute, "1", "A", 200, duplicate}, {0, "2", "B", 200, duplicate}},
		"a change back has an id of its own": {
			{0, "1", "A", 200, forwarded}, {0, "2", "B", 200, forwarded}, {0, "3", "A", 200, forwarded}, {0, "2", "B", 200, duplicate}},
		"fifteen minutes": {
			{0, "1", "A", 200, forwarded}, {0, "2", "B", 200, forwarded}, {15*time.Minute - time.Second, "1", "A", 200, duplicate}, {time.Second, "1", "A", 200, forwarded}},
		"one that failed can be sent again": {
			{0, "1", "A", 400, failed}, {0, "2", "B", 200, forwarded}, {0, "1", "A", 200, forwarded}, {0, "2", "B", 200, duplicate}},
		"an id with another body is taken in": {
			{0, "1", "A", 200, forwarded}, {0, "1", "B", 200, forwarded}, {0, "1", "A", 200, duplicate}, {0, "1", "B", 200, duplicate}},
		"that of a duplicate counts, too": {
			{0, "1", "A", 200, forwarded}, {0, "2", "A", 200, duplicate}, {0, "3", "B", 200, forwarded}, {0, "2", "A", 200, duplicate}},
		"forgotten": {
			{0, "1", "A", 200, forwarded}, {0, "2", "B", 200, forwarded}, {0, "", "forget", 0, ""}, {0, "1", "A", 200, forwarded}},
		"forgotten, though nothing else is remembered": {
			{0, "1", "A", 200, forwarded}, {0, "2", "B", 400, failed}, {0, "", "forget", 0, ""}, {0, "1", "A", 200, forwarded}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, window := range []time.Duration{0, 10 * time.Minute} { // dedup by content is another matter
				if window == 0 && strings.HasPrefix(name, "that of a duplicate") {
					continue
				}
				synctest.Test(t, func(t *testing.T) {
					var log bytes.Buffer
					status := 0
					g := signing(t, func(c *setup) {
						c.DedupWindow, c.Log = window, logTo(&log)
						c.Transport = roundTrip(func(*http.Request) (*http.Response, error) { return respond(status, ""), nil })
					})
					for i, s := range steps {
						if time.Sleep(s.after); s.name == "forget" {
							if got := g.Platforms("acme"); len(got) != 1 || got[0] != "" || !g.Forget("", "acme") {
								t.Errorf("step %d: nothing to forget on %q", i, got)
							}
							continue
						}
						status = s.receiver
						if got := serve(t, g, signed(s.id, snapshotOf("acme", s.name))); got.Decision != s.want {
							t.Errorf("window %v, step %d: got %v, want %s", window, i, got, s.want)
						}
					}
					if warned := strings.Count(log.String(), "level=WARN msg=\"webhook-id was used before"); warned != strings.Count(name, "another body") {
						t.Errorf("%d warnings:\n%s", warned, &log)
					}
				})
			}
		})
	}
}

// What waits counts as taken in. The copy shares its outcome.
func TestSignedIDOfOneThatWaits(t *testing.T) {
	for status, want := range map[int]string{200: "[forwarded forwarded duplicate duplicate]", 400: "[failed failed failed failed]"} {
		synctest.Test(t, func(t *testing.T) {
			tries := 0
			g := signing(t, func(c *setup) {
				c.Transport = roundTrip(func(*http.Request) (*http.Response, error) {
					tries++
					time.Sleep(time.Second)
					return respond(status, ""), nil
				})
			})
			var wg sync.WaitGroup
			decisions := make([]string, 4)
			for i, id := range []string{"1A", "2B", "1A", "2B"} {
				wg.Go(func() { decisions[i] = serve(t, g, signed(id[:1], snapshotOf("acme", id[1:]))).Decision })
				synctest.Wait()
			}
			wg.Wait()
			if got := fmt.Sprint(decisions); got != want || tries != 2 {
				t.Errorf("%d: %s after %d tries, want %s", status, got, tries, want)
			}
			if status == 400 { // now each can be sent again
				for _, id := range []string{"1A", "2B"} {
					serve(t, g, signed(id[:1], snapshotOf("acme", id[1:])))
				}
				if tries != 4 {
					t.Errorf("sent again: %d tries", tries)
				}
			}
		})
	}
}

// The scheme covers events that are no snapshots, not questions, and no id that nobody signed.
func TestSignedIDsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver := new(counting)
		g := signing(t, func(c *setup) { c.Transport, c.SyncTypes = receiver, []string{"Ask"} })
		reminder := strings.Replace(snapshotOf("acme", "A"), content.TenantProvisioningChange, "Reminder", 1)
		for _, want := range []string{forwarded, duplicate} {
			if got := serve(t, g, signed("1", reminder)); got.Decision != want {
				t.Errorf("%v, want %s", got, want)
			}
		}
		for range 2 {
			g.ServeHTTP(discard{}, signed("2", `{"type":"Ask"}`))
		}
		plain := newGate(t, func(c *setup) { c.Transport = receiver })
		for _, name := range []string{"A", "B", "A"} {
			if got := serve(t, plain, signed("3", snapshotOf("acme", name))); got.Decision != forwarded {
				t.Error(got)
			}
		}
		if receiver.count() != 1+2+3 {
			t.Errorf("%d deliveries", receiver.count())
		}
	})
}

type discard struct{}

func (discard) Header() http.Header         { return make(http.Header) }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}

// The memory for ids has an end, and what is too old goes by itself.
func TestSignedIDsTakeLittleRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := signing(t, nil)
		g.lanes.ids.Resize(10)
		for i := range 100 {
			serve(t, g, signed(fmt.Sprint(i), snapshotOf(fmt.Sprint("t", i), "A")))
		}
		if n := g.lanes.ids.Len(); n != 10 {
			t.Errorf("%d", n)
		}
		if got := serve(t, g, signed("99", snapshotOf("t99", "A"))); got.Decision != duplicate {
			t.Error(got)
		}
		time.Sleep(15 * time.Minute)
		serve(t, g, signed("100", snapshotOf("t100", "A")))
		if n := g.lanes.ids.Len(); n != 2 { // the id, and the id with its body
			t.Errorf("%d", n)
		}
	})
}
