package webhookgate

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
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
