package history

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/admin/status"
	"usher/internal/inbox"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/testkit"
	"usher/internal/testkit/inboxtest"
)

func TestMain(m *testing.M) { testkit.MainInMemory(m) }

var night = time.Date(2026, 1, 31, 2, 0, 0, 0, time.UTC)

func trouble(about string, webhooks int) inbox.Trouble {
	return inbox.Trouble{About: about, TroubleWords: inbox.TroubleWords{Kind: about, Severity: status.Critical, What: fmt.Sprint(about, " ", webhooks), Webhooks: webhooks}}
}

// Whatever comes and goes, in any order: a trouble that is there has exactly one open record, one that is not
// has none; a record's times are those of looks, what comes back within half a minute goes on in the same
// record, later it is another; and the words are those at its worst.
func TestRecordsOfWhatComesAndGoes(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		var records []inbox.Trouble
		type seen struct {
			records int
			last    time.Time // when it was last there
			worst   int       // of this spell
		}
		there := make(map[string]*seen)
		now := night
		for range 60 {
			now = now.Add(time.Duration(1+random.IntN(25)) * time.Second)
			var found []inbox.Trouble
			for _, about := range []string{"a", "b", "c"} {
				if random.IntN(3) == 0 {
					continue
				}
				f := trouble(about, random.IntN(9))
				f.Began, f.Noticed = now, now
				found = append(found, f)
				s := there[about]
				if s == nil {
					s = &seen{}
					there[about] = s
				}
				open := slices.ContainsFunc(records, func(r inbox.Trouble) bool { return r.About == about && r.Ended.IsZero() })
				i := slices.IndexFunc(records, func(r inbox.Trouble) bool { return r.About == about && now.Sub(r.Ended) < again })
				if !open && i < 0 {
					s.records, s.worst = s.records+1, f.Webhooks
				}
				s.worst, s.last = max(s.worst, f.Webhooks), now
			}
			for _, c := range next(records, found, now) {
				if i := slices.IndexFunc(records, func(r inbox.Trouble) bool { return r.ID == c.ID }); i >= 0 {
					records[i] = c
				} else {
					records = append(records, c)
				}
			}
			for about, s := range there {
				open, count := 0, 0
				for _, r := range records {
					if r.About != about {
						continue
					}
					count++
					if r.Ended.IsZero() {
						if open++; r.Webhooks != s.worst {
							t.Fatalf("seed %d: %s has %d webhooks, and %d at its worst", seed, about, r.Webhooks, s.worst)
						}
					} else if r.Ended.Before(r.Began) || r.Ended.After(now) {
						t.Fatalf("seed %d: %s ended at %v, and began at %v", seed, about, r.Ended, r.Began)
					}
				}
				want := 0
				if s.last.Equal(now) {
					want = 1
				}
				if open != want || count != s.records {
					t.Fatalf("seed %d: %s has %d open records, want %d; %d in all, want %d", seed, about, open, want, count, s.records)
				}
			}
		}
		if again := next(records, nil, now); slices.ContainsFunc(again, func(r inbox.Trouble) bool { return !r.Ended.Equal(now) }) {
			t.Fatalf("seed %d: %v", seed, again)
		}
	}
}

// What ended before anybody looked is a record all the same, once; and one that was open gets the words of its end.
func TestWhatIsOverBeforeALook(t *testing.T) {
	for name, records := range map[string][]inbox.Trouble{
		"nobody had looked": nil,
		"it was open":       {{ID: "1", About: "senders", Began: night, TroubleWords: inbox.TroubleWords{What: "every webhook fails"}}},
		"it was over":       {{ID: "1", About: "senders", Began: night, Ended: night.Add(time.Minute), TroubleWords: inbox.TroubleWords{What: "every webhook fails"}}},
	} {
		f := inbox.Trouble{About: "senders", Began: night, Ended: night.Add(time.Minute), TroubleWords: inbox.TroubleWords{What: "15 failed, then one passed", Then: "resend them"}}
		changed := next(records, []inbox.Trouble{f}, night.Add(63*time.Second))
		if len(changed) != 1 || changed[0].What != f.What || !changed[0].Ended.Equal(f.Ended) || len(records) == 1 && changed[0].ID != "1" {
			t.Fatalf("%s: %+v", name, changed)
		}
		if more := next(changed, []inbox.Trouble{f}, night.Add(68*time.Second)); len(more) != 0 {
			t.Errorf("%s: again %+v", name, more)
		}
		later := trouble("senders", 3)
		later.Began = night.Add(70 * time.Second)
		if more := next(changed, []inbox.Trouble{f, later}, night.Add(75*time.Second)); len(more) != 1 || more[0].ID == changed[0].ID || !more[0].Ended.IsZero() {
			t.Errorf("%s: what begins then: %+v", name, more)
		}
	}
}

// A replica is gone when nothing was heard of it for a minute and it did not say that it ends, until it is
// back or one that started since is in its place.
func TestMissingReplicas(t *testing.T) {
	at := func(seconds int) time.Time { return night.Add(time.Duration(seconds) * time.Second) }
	for _, tc := range []struct {
		name         string
		all          []inbox.Replica
		now          int
		gone, forget string
	}{
		{"both there", []inbox.Replica{{Name: "a", Seen: at(90)}, {Name: "b", Seen: at(50)}}, 100, "", ""},
		{"one is gone", []inbox.Replica{{Name: "a", Seen: at(90)}, {Name: "b", Seen: at(30)}}, 100, "b", ""},
		{"one has ended", []inbox.Replica{{Name: "a", Seen: at(90)}, {Name: "b", Seen: at(30), Ended: true}}, 100, "", "b"},
		{"one is in its place", []inbox.Replica{{Name: "a", Seen: at(90)}, {Name: "b", Seen: at(30)}, {Name: "c", Since: at(60), Seen: at(95)}}, 100, "", "b"},
		{"one for two", []inbox.Replica{{Name: "a", Seen: at(20)}, {Name: "b", Seen: at(30)}, {Name: "c", Since: at(60), Seen: at(95)}}, 100, "b", "a"},
		{"a day", []inbox.Replica{{Name: "a", Seen: at(90000)}, {Name: "b", Seen: at(30)}}, 90000, "", "b"},
	} {
		gone, forget := missing(tc.all, at(tc.now))
		names := ""
		for _, r := range gone {
			names += r.Name
		}
		if names != tc.gone || strings.Join(forget, "") != tc.forget {
			t.Errorf("%s: %q gone, %q forgotten", tc.name, names, forget)
		}
	}
}

// troubles are what a test says is wrong.
type troubles struct {
	mu    sync.Mutex
	words []string
}

func (t *troubles) set(words ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.words = words
}

func (t *troubles) get() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.words
}

// desk is a recorder, whose troubles somebody sets.
type desk struct {
	*Recorder
	t     *testing.T
	wrong *troubles
}

func newDesk(t *testing.T, box *inbox.Inbox, wrong *troubles, change ...func(*Config)) *desk {
	health := &status.Health{Parts: []status.Part{{Name: "gate", On: true}}}
	cfg := Config{Inbox: box, Host: "gate-1", Log: slog.New(slog.DiscardHandler), Stopping: func() bool { return false }, Status: func(context.Context) *status.Status {
		s := &status.Status{Health: health}
		for _, words := range wrong.get() {
			s.Troubles = append(s.Troubles, status.Trouble{What: words, Kind: status.Kind{Name: words, Severity: status.Critical, Means: "It hurts.", Do: "Mend it."}})
		}
		return s
	}}
	for _, c := range change {
		c(&cfg)
	}
	return &desk{New(cfg), t, wrong}
}

func (d *desk) over(want ...string) {
	d.t.Helper()
	over, _ := d.Since(d.t.Context(), time.Time{})
	var got []string
	for _, o := range over {
		got = append(got, fmt.Sprintf("%s %v", o.What, o.Ended.Sub(o.Began).Round(lookEvery)))
	}
	slices.Sort(got)
	if !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		d.t.Errorf("over: %q, want %q", got, want)
	}
}

// With a file the history survives a restart, and a trouble that lasts over it is one.
func TestHistorySurvivesARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inbox.db")
	synctest.Test(t, func(t *testing.T) {
		var wrong troubles
		open := func() (*inbox.Inbox, *desk, func()) {
			address, err := inbox.ParseAddress("file:" + path)
			if err != nil {
				t.Fatal(err)
			}
			box, err := inbox.Open(inbox.Config{Rules: lane.Rules{Log: slog.New(slog.DiscardHandler)}, Address: address})
			if err != nil {
				t.Fatal(err)
			}
			d := newDesk(t, box, &wrong)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { d.Run(ctx, "gate-1"); close(ended) }()
			return box, d, func() { stop(); <-ended; box.Close() }
		}
		_, d, end := open()
		time.Sleep(2 * time.Second) // not at the moment of a look
		wrong.set("disk", "acme hurts")
		time.Sleep(time.Minute)
		wrong.set("disk")
		time.Sleep(10 * time.Second)
		d.over("acme hurts 1m0s")
		wrong.set("disk", "acme hurts") // it comes back at once
		time.Sleep(10 * time.Second)
		d.over()
		end()
		box, d, end := open()
		time.Sleep(12 * time.Second)
		wrong.set()
		time.Sleep(time.Minute)
		d.over("acme hurts 1m30s", "disk 1m30s")
		if err := eraseKnown(box, d, "acme"); err != nil {
			t.Fatal(err)
		}
		d.over(inbox.ErasedWords+" 1m30s", "disk 1m30s")
		end()
	})
}

// eraseKnown erases a tenant of which the inbox has nothing but what the history says.
func eraseKnown(box *inbox.Inbox, d *desk, tenant string) error {
	_, err := box.Erase("crm", tenant, nil)
	d.Erase("crm", tenant)
	if errors.Is(err, inbox.ErrNotFound) {
		return nil
	}
	return err
}

// What the inbox cannot tell now goes on: while it cannot be read, a trouble that stays is
// neither over nor another one.
func TestWhatStaysWhileTheInboxIsAway(t *testing.T) {
	b := inboxtest.Open(t)
	wrong := &troubles{words: []string{"parked"}}
	d := newDesk(t, b.Inbox, wrong)
	d.Look(t.Context())
	d.Look(t.Context()) // it is in the inbox
	before := slices.Clone(d.records)
	b.Fail(&engine.AwayError{Err: errors.New("no answer")})
	wrong.set("parked", "away")
	d.Look(t.Context())
	if len(before) != 1 || len(d.records) != 2 || d.records[0].ID != before[0].ID || !d.records[0].Ended.IsZero() || !d.readable.IsZero() {
		t.Errorf("%+v\nwas\n%+v", d.records, before)
	}
}
