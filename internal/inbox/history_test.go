package inbox

import (
	"slices"
	"sync"
	"testing"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
)

// Rows of the history on both engines: one for each kind and subject, whoever finds it; of all who ask at once, one says
// it; what a replica noted alone is added once; and an erasure deletes what names the tenant, and nothing else.
func TestHistoryRows(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		now := clock.Moment(d.Now().UnixMicro())
		row := func(about string, at, ended time.Time, named ...string) Trouble {
			return Trouble{About: about, Began: at, Noticed: at, Seen: at, Ended: ended, TroubleWords: TroubleWords{Kind: about, What: "acme", Named: named}}
		}
		found := func(before, found []Trouble, says bool) (kinds []string, say []Trouble) {
			t.Helper()
			var open []Trouble
			check(t, patiently(func() (err error) {
				open, say, err = d.Found(before, found, true, says)
				return err
			}))
			for i := range open {
				kinds = append(kinds, open[i].About)
			}
			return kinds, say
		}
		parked := row("parked gate", now, time.Time{}, "crm/acme")
		for range 3 {
			if open, say := found(nil, []Trouble{parked, row("paused gate", now, time.Time{})}, true); !slices.Equal(open, []string{"parked gate", "paused gate"}) || len(say) > 0 {
				t.Fatalf("%q %+v", open, say)
			}
		}
		// A minute ago another replica has noted both, and one that is over.
		ago := now.Add(-2 * time.Minute)
		over := row("calls-fail", ago, ago.Add(30*time.Second), "crm/acme-two")
		over.Told = ToldBegin
		for range 2 {
			if open, _ := found([]Trouble{over, row("invalid gate", ago, time.Time{}, "/acme")}, []Trouble{parked}, false); !slices.Contains(open, "invalid gate") && len(open) != 2 {
				t.Errorf("%q", open)
			}
		}
		var all sync.WaitGroup
		said := make(chan []Trouble, 8)
		for range cap(said) {
			all.Go(func() {
				_, say, err := d.Found(nil, nil, false, true)
				if err != nil {
					t.Error(err)
				}
				said <- say
			})
		}
		all.Wait()
		close(said)
		var once []Trouble
		for say := range said {
			once = append(once, say...)
		}
		if len(once) != 1 || once[0].About != "calls-fail" || once[0].Says() != ToldOver {
			t.Errorf("said at once by eight: %+v", once)
		}
		if err := d.Told(once); err != nil {
			t.Fatal(err)
		}
		history := func() (all []string) {
			for _, t := range must(d.Troubles(t.Context(), time.Time{}))(t) {
				all = append(all, t.About)
			}
			slices.Sort(all)
			return all
		}
		if got := history(); !slices.Equal(got, []string{"calls-fail", "invalid gate", "parked gate", "paused gate"}) {
			t.Errorf("%q", got)
		}
		must(d.Inbox.Erase("crm", "acme", nil))(t)
		if got := history(); !slices.Equal(got, []string{"calls-fail", "invalid gate", "paused gate"}) {
			t.Errorf("after an erasure: %q", got)
		}
		found([]Trouble{row("old", now.Add(-2*HistoryAge), now.Add(-HistoryAge-time.Hour))}, nil, false)
		if got := history(); slices.Contains(got, "old") {
			t.Errorf("%q", got)
		}
	})
}
