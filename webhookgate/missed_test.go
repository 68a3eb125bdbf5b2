package webhookgate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/content"
)

func moments(second int) time.Time { return time.Unix(int64(second), 0) }

// took notes that a webhook was taken in.
func (o *Missed) took(lane LaneName, m MissedWebhook) {
	o.Settle(lane, func(d MissedSet) MissedSet { return d.AfterIntake(m.Digest, m.Snapshot, m.At) })
}

func missedWebhook(name string, second int) MissedWebhook {
	digest := sha256.Sum256([]byte(name))
	return MissedWebhook{ID: name, Digest: digest[:], At: moments(second), Snapshot: true}
}

// What settles a missed set. Each step is a name and when it arrived; "!" in front: it got a 5xx.
func TestMissedSet(t *testing.T) {
	for steps, missed := range map[string]bool{
		"":                           false,
		"!A1":                        true,
		"!A1 A2":                     false,
		"!A1 B2":                     false,
		"!A1 !B2 A3":                 true, // B is still missing
		"!A1 !B2 A3 B4":              false,
		"!A1 !B2 A3 C4":              false,
		"!A1 !B2 !A3 B4":             true,
		"!A1 !B2 !A3 A4":             false,
		"!B2 A1":                     true, // A arrived before B, and waited for longer
		"!B2 B1":                     false,
		"!B2 !A1 B3":                 false, // the answer to A took longer
		"!B2 !A1 A3":                 true,
		"!A1 !B2 !C3 !D4 !E5 B6":     true,
		"!A1 !B2 !C3 !D4 !E5 A6":     true,
		"!A1 !B2 !C3 !D4 !E5 !F6 B7": false, // only the first and the last four are remembered
		"!A1 !B2 A3 !C4 B5":          true,
		"!A1 A2 !A3":                 true,
		"!A1 !A2 !A3 !A4 !A5 A6":     false,
		"!A1 !A2 !B3 !B4 !A5 B6":     true,
		"!A1 !B2 !A3 !B4 B5 A6":      false,
		"!A1 !A2 !A3 !A4 !B5 A6":     true,
		"!C1 !A2 !A3 !A4 !A5 C6":     true,
		"!A1 !B2 !C3 !D4 D5 !A6":     true,
		"!A1 !B2 !C3 !D4 D5 !A6 B7":  false, // D has settled the others
	} {
		o := NewMissed()
		lane := LaneName{Tenant: "acme"}
		for _, step := range strings.Fields(steps) {
			name, failed := strings.CutPrefix(step, "!")
			m := missedWebhook(name[:1], int(name[1]-'0'))
			if failed {
				o.Add(lane, m)
			} else {
				o.took(lane, m)
			}
		}
		if (o.Len() > 0) != missed {
			t.Errorf("%s: missed %v, want %v", steps, o.Len() > 0, missed)
		}
	}
}

// What is recorded as invalid is no longer missed, whatever else is. Where five are missed there may have been more, whose digests are forgotten.
func TestMissedWithout(t *testing.T) {
	for _, tc := range []struct{ missed, invalid, left string }{
		{"A", "A", ""},
		{"A", "B", "A"},
		{"AB", "B", "A"},
		{"AB", "A", "B"},
		{"AB", "AB", ""},
		{"ABCD", "D", "ABC"},
		{"ABCDE", "E", "ABCDE"},
		{"ABCDEF", "FEDC", "ACDEF"},
	} {
		o, lane := NewMissed(), LaneName{Tenant: "acme"}
		for i, name := range tc.missed {
			o.Add(lane, missedWebhook(string(name), i+1))
		}
		for _, name := range tc.invalid {
			digest := missedWebhook(string(name), 0).Digest
			o.Settle(lane, func(d MissedSet) MissedSet { return d.AfterInvalid(digest) })
		}
		left := ""
		for _, m := range o.Of(lane) {
			left += m.ID
		}
		if left != tc.left || (o.Len() > 0) != (left != "") || left != "" && o.Of(lane).Since() != moments(1+strings.Index(tc.missed, left[:1])) {
			t.Errorf("%s without %s: %q since %v", tc.missed, tc.invalid, left, o.Of(lane).Since())
		}
	}
}

// Only a snapshot settles others' snapshots, and an event is settled by itself. Steps are as in TestMissedSet; small letters are events.
func TestMissedEventsAndSnapshots(t *testing.T) {
	for steps, left := range map[string]string{
		"!e1 A2":                           "e",
		"!e1 e2":                           "",
		"!e1 f2":                           "e",
		"!e2 e1":                           "e", // the same bytes may be another event
		"!A1 e2":                           "A",
		"!A1 !e2 e3":                       "A",
		"!A1 !e2 A3":                       "e",
		"!A1 !e2 B3":                       "e",
		"!A1 !e2 B3 e4":                    "",
		"!e1 !A2 A3":                       "e",
		"!e1 !A2 e3":                       "A",
		"!e1 !f2 f3":                       "e",
		"!e1 !f2 e3 f4":                    "",
		"!A1 !B2 !e3 A4":                   "ABe",
		"!e1 !A2 !B3 !C4 !D5 !E6":          "eBCDE", // for a snapshot its last state is enough, for an event nothing is
		"!e1 !A2 !B3 !C4 !D5 E6":           "e",
		"!e1 !f2 !g3 !h4 !A5 B6":           "efgh",
		"!e1 !f2 !g3 !h4 !i5 !A6 B7":       "e?hi", // nobody knows f and g any more
		"!e1 !A2 !f3 !g4 !h5 !i6 A7":       "e?hi",
		"!e1 !f2 !g3 !h4 !i5 !j6 e7 h8 i8": "?j",
	} {
		o, lane := NewMissed(), LaneName{Tenant: "acme"}
		for _, step := range strings.Fields(steps) {
			name, failed := strings.CutPrefix(step, "!")
			m := missedWebhook(name[:1], int(name[1]-'0'))
			if m.Snapshot = name[0] < 'a'; failed {
				o.Add(lane, m)
			} else {
				o.took(lane, m)
			}
		}
		got := ""
		for _, m := range o.Of(lane) {
			got += cmp.Or(m.ID, "?")
		}
		if got != left || (o.Len() > 0) != (left != "") {
			t.Errorf("%s: missed %q, want %q", steps, got, left)
		}
	}
}

// Whatever the order, a tenant whose webhook that arrived last got a 5xx is missed, unless the same state was taken in.
func TestMissedLast(t *testing.T) {
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		o, lane := NewMissed(), LaneName{Tenant: "acme"}
		var story []string
		last, state, missing := -1, "", "" // of what arrived last: when, its state if it was taken in, or if it was not
		for second := range 1 + r.IntN(12) {
			at := second*10 - r.IntN(15) // answers may overtake each other
			name := string(rune('A' + r.IntN(3)))
			m := missedWebhook(name, at)
			failed := r.IntN(2) == 0
			story = append(story, fmt.Sprint(map[bool]string{true: "!"}[failed], name, at))
			if failed {
				o.Add(lane, m)
			} else {
				o.took(lane, m)
			}
			switch {
			case failed && at >= last:
				last, missing, state = at, name, ""
			case !failed && at > last:
				last, missing, state = at, "", name
			case !failed && name == missing:
				missing, state = "", name
			}
		}
		if missing != "" && o.Len() == 0 {
			t.Fatalf("world %d: %v: %s is missing, and nothing is missed (%s)", seed, story, missing, state)
		}
	}
}

// Of what was stored elsewhere nothing is dropped if more has come since.
func TestMissedDrop(t *testing.T) {
	o, lane := NewMissed(), LaneName{Tenant: "acme"}
	o.Add(lane, missedWebhook("A", 1))
	stored := o.Of(lane)
	o.Add(lane, missedWebhook("B", 2))
	if o.Drop(lane, stored); len(o.Of(lane)) != 2 {
		t.Errorf("more has come, and these are left: %v", o.Of(lane))
	}
	if o.Drop(lane, o.Of(lane)); o.Len() != 0 {
		t.Errorf("left: %v", o.Of(lane))
	}
}

func TestMissedIsBounded(t *testing.T) {
	o := NewMissed()
	for i := range maxMissed + 5 {
		o.Add(LaneName{Tenant: fmt.Sprint(i)}, MissedWebhook{At: time.Now()})
	}
	o.Add(LaneName{Tenant: "0"}, MissedWebhook{At: time.Now()}) // known already
	if o.Len() != maxMissed || !o.Full() || o.Unnamed().Count != 5 {
		t.Errorf("%d tenants and %d without a name", o.Len(), o.Unnamed().Count)
	}
}

// What is dropped is what was stored, or dismissed: more may have come meanwhile.
func TestUnnamed(t *testing.T) {
	o := NewMissed()
	for _, second := range []int{3, 2, 4} {
		o.AddUnnamed(Unnamed{1, moments(second), moments(second)})
	}
	stored := o.Unnamed()
	if stored != (Unnamed{3, moments(2), moments(4)}) {
		t.Errorf("%+v", stored)
	}
	o.AddUnnamed(Unnamed{2, moments(5), moments(6)})
	if o.DropUnnamed(stored); o.Unnamed() != (Unnamed{2, moments(4), moments(6)}) {
		t.Errorf("%+v are left", o.Unnamed())
	}
	if o.DropUnnamed(o.Unnamed()); o.Unnamed() != (Unnamed{}) {
		t.Errorf("%+v are left", o.Unnamed())
	}
}

func missedTenants(g *Gate) (all []string) {
	for lane := range g.cfg.Missed.All() {
		all = append(all, lane.Tenant)
	}
	slices.Sort(all)
	return all
}

// In pass-through every 5xx missed its tenant the webhook, until it is taken in.
func TestMissedInPassThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := map[string]int{}
		receiver := roundTrip(func(r *http.Request) (*http.Response, error) {
			name := r.Header.Get("X-Tenant")
			if status[name] == 0 {
				time.Sleep(time.Hour)
			}
			return respond(status[name], ""), r.Context().Err()
		})
		g := newGate(t, func(c *setup) {
			c.Transport, c.MaxInflight, c.Tries = receiver, 50, 1
			c.Types, c.SyncTypes = append(c.Types, "Other", "Question"), []string{"Question"}
		})
		send := func(tenant, body string, want int) {
			t.Helper()
			if got := post(t, g, body, "X-Tenant", tenant); got.Code != want {
				t.Errorf("%s: %d, want %d", tenant, got.Code, want)
			}
		}
		want := func(tenants ...string) {
			t.Helper()
			if got := missedTenants(g); !slices.Equal(got, tenants) {
				t.Errorf("missed to %v, want %v", got, tenants)
			}
		}
		status["fails"], status["rejects"], status["fine"] = 500, 422, 200
		send("fails", snapshotOf("fails", "A"), 502)
		send("rejects", snapshotOf("rejects", "A"), 502)
		send("hangs", snapshotOf("hangs", "A"), 504)
		send("fine", snapshotOf("fine", "A"), 200)
		send("hangs", strings.Replace(snapshotOf("asked", "A"), content.TenantProvisioningChange, "Question", 1), 504)
		send("fails", `{"type":"Other","payload":{}}`, 502) // nobody's
		want("fails", "hangs", "rejects")
		if n := g.cfg.Missed.Unnamed().Count; n != 1 {
			t.Errorf("%d without a name", n)
		}
		status["hangs"], status["fails"] = 200, 200
		send("hangs", snapshotOf("hangs", "A"), 200)
		send("fails", snapshotOf("fails", "B"), 200)
		want("rejects")
		if !slices.Equal(g.Platforms("rejects"), []string{""}) || !g.Forget("", "rejects") || g.Forget("", "rejects") {
			t.Error("it is not forgotten once")
		}
		want()

		// A lane that is too long: those before are older, and do not settle it.
		status["slow"] = 200
		slow := roundTrip(func(r *http.Request) (*http.Response, error) { time.Sleep(time.Second); return respond(200, ""), nil })
		g = newGate(t, func(c *setup) { c.Transport, c.MaxInflight = slow, 1000 })
		for i := range maxWaiting + 1 {
			go post(t, g, snapshotOf("slow", fmt.Sprint(i)))
			time.Sleep(time.Millisecond)
		}
		send("slow", snapshotOf("slow", "last"), 503)
		time.Sleep(time.Minute)
		want("slow")
		send("slow", snapshotOf("slow", "last"), 200)
		want()

		// Too many at once: for a receiver, or before the body is read.
		g = newGate(t, func(c *setup) { c.Transport, c.MaxInflight = slow, 1 })
		go post(t, g, snapshotOf("first", "A"))
		synctest.Wait()
		send("second", snapshotOf("second", "A"), 503)
		if n := g.cfg.Missed.Unnamed().Count; n != 1 {
			t.Errorf("%d without a name", n)
		}
		want()
		time.Sleep(time.Minute)
	})
}

// One that came before, by its signed id, says nothing about what has come since.
func TestRetryOfAnOlderOneSettlesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := 200
		g := signing(t, func(c *setup) {
			c.Transport = roundTrip(func(*http.Request) (*http.Response, error) { return respond(status, ""), nil })
		})
		for i, s := range []struct {
			id, name string
			receiver int
			decision string
			missed   int
		}{{"1", "A", 200, forwarded, 0}, {"2", "B", 200, forwarded, 0}, {"3", "C", 500, failed, 1}, {"1", "A", 200, duplicate, 1}, {"2", "B", 200, duplicate, 1}, {"3", "C", 200, forwarded, 0},
			{"4", "A", 500, failed, 1}, {"1", "A", 200, duplicate, 1}, {"4", "A", 200, forwarded, 0}} {
			time.Sleep(time.Second)
			status = s.receiver
			if got := serve(t, g, signed(s.id, snapshotOf("acme", s.name))); got.Decision != s.decision || g.cfg.Missed.Len() != s.missed {
				t.Errorf("step %d: %s, and %d tenants have missed webhooks", i, got.Decision, g.cfg.Missed.Len())
			}
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
		g := newGate(t, func(c *setup) {
			if tc.inbox {
				c.Store = func(*Webhook) (string, error) { return "", nil }
			}
			c.Invalid = func(*Invalid) int64 { return tc.id }
			c.Answered = func(o Outcome) { told = o }
		})
		got := post(t, g, `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme"}}}`)
		if got.Code != tc.want || got.Header().Get("Usher-Decision") != tc.decision || (got.Header().Get("Retry-After") != "") != (tc.want == 503) {
			t.Errorf("%s: %d %v %s", tc.name, got.Code, got.Header(), got.Body)
		}
		if told.Stored != (tc.id != 0) || told.Invalid == nil || told.Invalid.Status != 422 || len(told.Invalid.Faults) == 0 {
			t.Errorf("%s: %+v", tc.name, told)
		}
		if o := g.cfg.Missed; o.Len() != 0 || o.Unnamed().Count != 0 { // Invalid notes that
			t.Errorf("%s: missed to %v, and %v", tc.name, missedTenants(g), o.Unnamed())
		}
	}
}

// Without an inbox, too, a sender that has gone while usher stood still is not heard.
func TestStandstill(t *testing.T) {
	for name, tc := range map[string]struct {
		stood, gone bool
		want        int
	}{
		"goes while usher runs":           {false, true, 200},
		"waits while usher stands":        {true, false, 200},
		"has gone while usher stood":      {true, true, 503},
		"waits, and usher does not stand": {false, false, 200},
	} {
		var since time.Time
		taker := new(counting)
		g := newGate(t, func(c *setup) {
			c.Receiver.Transport = taker
			c.StoodStill = func(at time.Time) bool { since = at; return tc.stood }
		})
		ctx, cancel := context.WithCancel(t.Context())
		if tc.gone {
			cancel()
		}
		before := time.Now()
		got := serve(t, g, request(snapshotOf("acme", "a")).WithContext(ctx))
		cancel()
		if got.Code != tc.want || tc.want == 503 && got.Error != ErrUnheard.Error()+"; please send this webhook again" || since.Before(before) || (taker.count() == 1) != (tc.want == 200) {
			t.Errorf("%s: %v, delivered %d times", name, got, taker.count())
		}
		if n := g.cfg.Missed.Len(); (n == 1) != (tc.want == 503) {
			t.Errorf("%s: %d missed", name, n)
		}
	}
}
