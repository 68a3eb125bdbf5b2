package inbox

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
)

// finding describes what was found of a tenant, and counts.
func (d *desk) finding(tenant string) string {
	d.t.Helper()
	platform, code, ok := strings.Cut(tenant, "/")
	if !ok {
		platform, code = "", tenant
	}
	f, err := d.Finding(d.t.Context(), platform, code)
	check(d.t, err)
	if f == nil {
		return ""
	}
	return f.Words()
}

// pass makes a pass over lines, and returns what it told.
func (d *desk) pass(p Pass, lines ...string) (told []lane.Compared, run *lane.Run) {
	d.t.Helper()
	next := func() ([]byte, error) {
		if len(lines) == 0 {
			return nil, io.EOF
		}
		line := lines[0]
		lines = lines[1:]
		return []byte(line), nil
	}
	run, err := d.Reconcile(d.t.Context(), p, next, func(some []lane.Compared, _ int) error {
		told = append(told, some...)
		return nil
	})
	check(d.t, err)
	return told, run
}

// reconcile compares a list in a run of its own, and says what it told, and how the run has ended. apply: what
// differs or is new is taken in.
func (d *desk) reconcile(p Pass, apply bool, asOf time.Time, lines ...string) (said string, run *lane.Run) {
	d.t.Helper()
	p.Run, p.Mode, p.Last = d.begin(asOf).ID, lane.ToCompare, !apply || p.Failed != ""
	all, run := d.pass(p, lines...)
	chosen := make([]string, len(lines))
	var told []string
	for _, c := range all {
		switch {
		case c.Fault != "":
			told = append(told, c.Fault)
			continue
		case c.Result == lane.Differs || c.Result == lane.NewTenant:
			chosen[c.Line-1] = lines[c.Line-1]
		}
		words := words([]lane.Compared{c}, nil)
		told = append(told, strings.TrimPrefix(ShowTenant(c.Platform, c.Tenant)+" "+words, "/"))
	}
	if apply && run.Ended.IsZero() {
		second := Pass{Run: p.Run, Mode: lane.ToApply, Failed: run.Failed, Last: true}
		_, run = d.pass(second, chosen...)
	}
	return strings.Join(told, "; "), run
}

// left describes what a run has left.
func left(r *lane.Run) string {
	return fmt.Sprint(r.Left, " ", r.Failed)
}

// What was found of a tenant stays until that very tenant was compared again, something newer of it was taken in, or
// it was erased or dismissed.
func TestFindingsStay(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		for _, tenant := range []string{"acme", "other", "gone", "erased"} {
			d.hears(tenant, "a")
		}
		d.idle("")
		lines := []string{says("acme", "b"), says("other", "a"), says("fresh", "c"), says("erased", "z")}
		told, r := d.reconcile(Pass{}, false, time.Time{}, lines...)
		d.want("told", told, "acme differs (+ b, - a); fresh new (+ c); erased differs (+ z, - a); gone unlisted")
		d.want("left", left(r), "4 ")
		count := func(want string) {
			t.Helper()
			d.until("findings: "+want, func() bool { return d.Stats().Findings.String() == want })
		}
		count("2 differs, 1 new, 1 unlisted")

		// A list that leaves the tenant out clears nothing; it is unlisted now, because it may use something.
		_, r = d.reconcile(Pass{Partial: true}, false, time.Time{}, says("other", "a"))
		d.want("a list without it", left(r)+d.finding("acme"), "0 differs: + b, - a")
		// Nor does one whose command failed, whatever it says.
		_, r = d.reconcile(Pass{Failed: "CMD failed"}, false, time.Time{}, says("acme", "a"))
		d.want("a command that failed", r.Failed+", "+d.finding("acme"), "CMD failed, differs: + b, - a")
		// Nor an older list.
		d.reconcile(Pass{Partial: true}, false, r.Began.Add(-time.Hour), says("fresh", "c"))
		d.want("an older list", d.finding("fresh"), "new: + c")

		// A comparison of it does.
		_, _ = d.reconcile(Pass{Partial: true}, false, time.Time{}, says("acme", "a"))
		d.want("equal now", d.finding("acme"), "")
		// So does a newer webhook, and an erasure; of both the next run finds what is so.
		d.hears("fresh", "x")
		d.want("a newer webhook", d.finding("fresh"), "")
		must(d.Erase("", "erased"))(t)
		d.want("erased", d.finding("erased"), "")
		count("1 unlisted")
		told, _ = d.reconcile(Pass{Partial: true}, false, time.Time{}, says("erased", "z"))
		d.want("it comes back, and that is said", told, "erased new (+ z) erased")

		// Somebody dismisses one: then it is no trouble until it changes.
		d.want("dismissed", fmt.Sprint(must(d.DismissFinding("", "gone", &Action{What: "dismiss"}))(t)), "1")
		count("1 new")
		lines = []string{says("acme", "a"), says("other", "a"), says("fresh", "x"), says("erased")}
		told, r = d.reconcile(Pass{}, false, time.Time{}, lines...)
		d.want("dismissed", told, "erased new erased; gone unlisted dismissed")
		d.want("left of it", left(r), "1 ")
		d.hears("gone", "b")
		told, r = d.reconcile(Pass{}, false, time.Time{}, lines...)
		d.want("the tenant has changed", told, "erased new erased; gone unlisted")
		d.want("left of that", left(r), "2 ")
	})
}

// What is taken in is no trouble any more. What is only known to be so at the end counts.
func TestFindingsAreApplied(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("acme", "a")
		d.hears("crm/twin", "a")
		d.idle("")
		lines := []string{
			says("acme", "b"), says("new", "c"), says("eu/twin", "d"), says("crm/twin", "a"), says("pl/twin", "e"),
		}
		told, r := d.reconcile(Pass{}, true, time.Time{}, lines...)
		d.want("told", told, `acme differs (+ b, - a); new new (+ c); eu/twin new (+ d); pl/twin new (+ e)`)
		d.want("left", left(r)+fmt.Sprint(r.Found[lane.Applied]), "0 4")
		d.want("nothing", d.finding("acme")+d.finding("new"), "")
		lines = []string{says("acme", "b"), says("new", "c"), says("crm/new", "c"), says("it/twin", "d")}
		told, _ = d.reconcile(Pass{}, true, time.Time{}, lines...)
		d.want("twins", told, `crm/new new (+ c); it/twin twin (+ d) elsewhere ["crm" "eu" "pl"]; `+
			"crm/twin unlisted; eu/twin unlisted; pl/twin unlisted")
	})
}

// Whatever is doubtful in a list makes the run fail. Then nobody is unlisted.
func TestListsThatFail(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open, func(c *setup) { c.MaxBody = 1000 })
		d.hears("acme", "a")
		d.hears("twice", "a")
		d.hears("gone", "a")
		for _, c := range []struct {
			name, failed, told string
			lines              []string
		}{
			{
				"faulty", "1 line cannot be compared", "acme differs (+ b, - a); the body is not JSON",
				[]string{says("acme", "b"), "x"},
			},
			{
				"too long", "1 line cannot be compared", "is larger than 1000 bytes (USHER_WEBHOOK_MAX_BODY)",
				[]string{strings.Repeat("x", 1001)},
			},
			{
				"twice", "1 line cannot be compared", "the tenant /twice was printed before, with other features",
				[]string{says("twice", "a"), says("twice", "a"), says("twice", "b")},
			},
			{"nothing", "the command printed nothing", "", nil},
		} {
			told, r := d.reconcile(Pass{}, true, time.Time{}, c.lines...)
			failed := r.Failed == c.failed && !r.Complete && !r.Ended.IsZero()
			if !failed || !strings.HasPrefix(told, c.told) || strings.Contains(told, "unlisted") {
				t.Errorf("%s: %s; %s, complete %v", c.name, told, r.Failed, r.Complete)
			}
		}
		// Of two lines that contradict each other, one says that it differs.
		d.want("twice", d.finding("twice"), "differs: + b, - a")
		// A run in which something came for each tenant says nothing.
		r := d.begin()
		d.hears("acme", "c")
		_, ended := d.pass(Pass{Run: r.ID, Mode: lane.ToCompare, Last: true}, says("acme", "a"))
		if !strings.Contains(ended.Failed, "for each of these tenants something newer") || ended.Found[lane.Unlisted] > 0 {
			t.Errorf("%+v", ended)
		}
		// Who is gone has left a run that failed.
		r = d.begin()
		check(t, d.KeepRun(r.ID))
		check(t, d.AbortRun(r.ID, "gone"))
		last, _, err := d.lastRuns()
		if err != nil || last.Failed != "gone" || d.KeepRun(r.ID) != ErrNoRun {
			t.Errorf("%+v %v", last, err)
		}
	})
}

// A long list is compared in parts.
func TestLongLists(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		var lines []string
		for n := range unlistedPage + 3*batchLines + 7 {
			lines = append(lines, says(fmt.Sprint("t", n), "a"))
		}
		told, r := d.reconcile(Pass{}, true, time.Time{}, lines...)
		applied := r.Found[lane.Applied] == len(lines) && r.Left == 0
		if !applied || strings.Count(told, " new (+ a)") != len(lines) {
			t.Errorf("%+v", r.Found)
		}
		d.idle("")
		slices.Reverse(lines)
		const unlisted = unlistedPage + 2
		told, r = d.reconcile(Pass{}, true, time.Time{}, lines[unlisted:]...)
		compared := r.Found[lane.Equal] == len(lines)-unlisted && r.Left == unlisted
		if !compared || strings.Count(told, "unlisted") != unlisted {
			t.Errorf("%+v", r.Found)
		}
		all := must(d.Tenants(t.Context(), TenantFilter{Troubled: true}))(t)
		if len(all) != unlisted || all[0].Standing()[0] != "unlisted" {
			t.Errorf("%d are not all right", len(all))
		}
	})
}

// What was found of a tenant that usher does not know stays, also if the next list does not have it: nobody has
// compared it again.
func TestFindingsOfNobody(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("crm/acme", "a")
		d.idle("")
		d.reconcile(Pass{}, false, time.Time{}, says("crm/acme", "a"), says("crm/new", "b"))
		d.reconcile(Pass{}, false, time.Time{}, says("crm/acme", "a"))
		d.want("after a list without it", d.finding("crm/new"), "new: + b")
	})
}

// What was found of a tenant that somebody erases before the run ends is not left.
func TestErasedBeforeTheEnd(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("acme", "a")
		d.idle("")
		r := d.begin()
		_, compared := d.pass(Pass{Run: r.ID, Mode: lane.ToCompare}, says("acme", "b"))
		must(d.Erase("", "acme"))(t)
		_, ended := d.pass(Pass{Run: r.ID, Mode: lane.ToApply, Last: true}, says("acme", "b"))
		d.want("left", compared.Found.String()+": "+left(ended), "1 differs: 0 ")
	})
}

// An older list does not end what a newer one has found, also if the run of that one has failed.
func TestOlderListAfterOneThatFailed(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("acme", "a")
		d.idle("")
		time.Sleep(5 * time.Millisecond)
		older := time.Now()
		time.Sleep(5 * time.Millisecond)
		_, r := d.reconcile(Pass{}, false, time.Time{}, says("acme", "new"), "x")
		d.want("a newer list", r.Failed+", "+d.finding("acme"), "1 line cannot be compared, differs: + new, - a")
		d.reconcile(Pass{}, true, older, says("acme", "old"))
		d.want("after an older one", d.finding("acme"), "differs: + new, - a")
	})
}

// What somebody has dismissed stays so for an older list that says the same.
func TestOlderListAfterADismissal(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("acme", "a")
		d.idle("")
		time.Sleep(5 * time.Millisecond)
		older := time.Now()
		time.Sleep(5 * time.Millisecond)
		d.reconcile(Pass{}, false, time.Time{}, says("acme", "b"))
		must(d.DismissFinding("", "acme", &Action{What: "dismiss"}))(t)
		told, r := d.reconcile(Pass{}, false, older, says("acme", "b"))
		d.want("the same", told+": "+left(r), "acme differs (+ b, - a) dismissed: 0 ")
		d.reconcile(Pass{}, false, older, says("acme", "a"))
		told, r = d.reconcile(Pass{}, false, time.Time{}, says("acme", "b"))
		d.want("and is not ended by one", told+": "+left(r), "acme differs (+ b, - a) dismissed: 0 ")
		told, r = d.reconcile(Pass{}, false, older, says("acme", "c"))
		d.want("something else", told+": "+left(r), "acme differs (+ c, - a): 1 ")
	})
}
