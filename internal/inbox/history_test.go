package inbox

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
)

// Rows of the history are written, said, erased and deleted alike on both engines; one replica at a time speaks for
// all, and another one when that has ended or its lease has.
func TestHistoryRows(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		now := clock.Moment(d.Now().UnixMicro())
		put := func(change func(*Trouble)) *Sign {
			row := Trouble{ID: "1", About: "parked gate ", Began: now, Noticed: now}
			row.Kind, row.What, row.Run = "parked", "1 webhook of crm/acme is parked", "usher inbox ls"
			row.Named, row.Webhooks = []string{"crm/acme"}, 1
			change(&row)
			return &Sign{Replica: "gate-1", Since: now, Troubles: []Trouble{row}}
		}
		sign := func(s *Sign, want bool) {
			t.Helper()
			if speaks := must(d.Sign(s))(t); speaks != want {
				t.Errorf("%s speaks: %v", s.Replica, speaks)
			}
		}
		only := func() Trouble {
			t.Helper()
			n := must(d.Tonight(context.Background()))(t)
			if len(n.Troubles) != 1 {
				t.Fatalf("%+v", n.Troubles)
			}
			return n.Troubles[0]
		}
		sign(put(func(*Trouble) {}), true)
		sign(&Sign{Replica: "gate-2", Since: now}, false)
		if got := only(); !got.Began.Equal(now) || got.Webhooks != 1 || !got.Ended.IsZero() {
			t.Errorf("%+v", got)
		}
		said := put(func(r *Trouble) { r.Said = now.Add(time.Minute) })
		sign(&Sign{Replica: "gate-1", Since: now, Said: said.Troubles}, true)
		sign(put(func(r *Trouble) { r.Webhooks = 2 }), true) // does not know that it was said
		if got := only(); got.Webhooks != 2 || !got.Said.Equal(now.Add(time.Minute)) {
			t.Errorf("%+v", got)
		}
		n := must(d.Tonight(t.Context()))(t)
		if !n.Said.Equal(now.Add(time.Minute)) || len(n.Replicas) != 2 || n.Replicas[1].Name != "gate-2" {
			t.Errorf("%+v", n)
		}
		must(d.Inbox.Erase("crm", "acme", nil))(t)
		got := only()
		if got.What != ErasedWords || len(got.Named) != 0 || got.Run != "" || got.Erased != 1 || got.Webhooks != 2 {
			t.Errorf("%+v", got)
		}
		sign(put(func(r *Trouble) { r.Ended = now.Add(time.Minute) }), true) // with words from before the erasure
		if got := only(); got.What != ErasedWords || !got.Ended.Equal(now.Add(time.Minute)) {
			t.Errorf("%+v", got)
		}
		sign(&Sign{Replica: "gate-1", Since: now, Ends: true, Gone: []string{"gate-2"}}, true)
		sign(&Sign{Replica: "gate-3", Since: now}, true)
		n = must(d.Tonight(t.Context()))(t)
		if len(n.Replicas) != 2 || !n.Replicas[0].Ended || n.Replicas[1].Ended {
			t.Errorf("%+v", n.Replicas)
		}
		sign(put(func(r *Trouble) { r.ID, r.Ended = "2", now.Add(-HistoryAge-time.Hour) }), false)
		if all := must(d.Troubles(context.Background(), time.Time{}, 10))(t); len(all) != 1 || all[0].ID != "1" {
			t.Errorf("%+v", all)
		}
	})
}

func TestHasWord(t *testing.T) {
	for _, tc := range []struct {
		in, word string
		want     bool
	}{
		{"crm/acme is parked", "acme", true},
		{"crm/acmes and acme2 are parked, and acme", "acme", true},
		{"acmes", "acme", false},
		{"the acme", "", false},
		{"eins, aé", "a", false},
		{"-- a", "a", true},
		{"aa aa", "a", false},
	} {
		if got := hasWord(tc.in, tc.word); got != tc.want {
			t.Errorf("%q in %q: %v", tc.word, tc.in, got)
		}
	}
}

// A row of the history that is damaged is neither shown nor said, unless only its words are; and an erasure reaches
// what may be in it.
func TestDamagedHistory(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	d := newDesk(t, inFile(t, path))
	now := d.Now()
	sign := &Sign{Since: now}
	for _, id := range []string{"words", "began", "number", "late", "early"} {
		words := TroubleWords{Kind: "parked", What: "crm/acme is parked"}
		sign.Troubles = append(sign.Troubles, Trouble{ID: id, Began: now, Noticed: now, TroubleWords: words})
	}
	must(d.Sign(sign))(t)
	d.shut()
	sqlOn(t, path,
		`UPDATE trouble SET words = '{"what":"crm/acme is' WHERE id = 'words'`,
		"UPDATE trouble SET began = 'text' WHERE id = 'began'",
		"UPDATE trouble SET ended = x'00' WHERE id = 'number'",
		"UPDATE trouble SET ended = 9223372036854775807 WHERE id = 'late'",
		"UPDATE trouble SET began = -9223372036854775808 WHERE id = 'early'")
	d = newDesk(t, inFile(t, path))
	night := must(d.Tonight(t.Context()))(t)
	all := must(d.Troubles(t.Context(), time.Time{}, 10))(t)
	if _, err := json.Marshal(all); err != nil || len(all) != 3 {
		t.Errorf("%+v: %v", all, err)
	}
	isDamaged := func(one Trouble) bool { return one.Kind == damagedKind }
	if len(night.Troubles) != 3 || !slices.ContainsFunc(night.Troubles, isDamaged) {
		t.Errorf("%+v", night.Troubles)
	}
	must(d.Inbox.Erase("crm", "acme", nil))(t)
	d.shut()
	if err := tryOn(path, `
		CREATE UNIQUE INDEX named ON trouble (instr(words, 'acme') > 0) WHERE instr(words, 'acme') > 0;
		INSERT INTO trouble VALUES ('x', '', '', 0, 0, 0, 0, 0, 0, 'acme')`); err != nil {
		t.Errorf("acme is still there: %v", err)
	}
}
