package inbox

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/testkit/pgtest"
)

// Whatever comes for a lane leaves its number there, and when it came: also a copy, and what is invalid. So does an
// erasure.
func TestWhatComesLeavesItsNumber(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		last := func() *lane.Lane { return d.row("acme") }
		former := new(lane.Lane)
		for _, step := range []struct {
			what string
			do   func()
		}{
			{"taken in", func() { d.want("", d.send("acme", "one"), "+") }},
			{"a copy", func() { d.idle("acme"); d.want("", d.send("acme", "one"), "=") }},
			{"taken in again", func() { d.want("", d.send("acme", "two"), "+") }},
			{"invalid", func() { d.recordInvalid("acme", snapshotOf("acme", "x")) }},
			{"invalid again", func() { d.recordInvalid("acme", snapshotOf("acme", "x")) }},
			{"accepted", func() { must(d.Accept(d.nth("acme", 3), true))(t) }},
			{"erased", func() { d.idle("acme"); must(d.Erase("", "acme"))(t) }},
		} {
			step.do()
			now := last()
			if now.Last <= former.Last || now.LastAt <= former.LastAt {
				t.Errorf("%s: the last number is %d of %d, after %d of %d",
					step.what, now.Last, now.LastAt, former.Last, former.LastAt)
			}
			former = now
			time.Sleep(time.Millisecond)
		}
	})
}

// Nor is the erasure of a tenant that usher did not know.
func TestErasureOfAnUnknownTenant(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		before := time.Now()
		time.Sleep(5 * time.Millisecond)
		r := d.begin()
		must(d.Erase("", "acme"))(t)
		d.want("a run that had begun", d.decide(r, lane.ToApply, says("acme", "a")), "changed")
		d.want("an older list", d.decide(d.begin(before), lane.ToApply, says("acme", "a")), "changed")
		d.want("a newer one", d.decide(d.begin(), lane.ToApply, says("acme", "a")), "new (+ a) applied erased")
	})
}

// begin begins a run, with a list that is as old as that.
func (d *desk) begin(asOf ...time.Time) *lane.Run {
	d.t.Helper()
	var at time.Time
	if len(asOf) > 0 {
		at = asOf[0]
	}
	r, _, err := d.BeginRun(at, &Action{Who: "ana", What: "reconcile"})
	check(d.t, err)
	return r
}

// endRun ends a run that has found so much.
func (d *desk) endRun(r *lane.Run, complete bool, failed string, found lane.Counts) *lane.Run {
	d.t.Helper()
	ended, err := d.saveRun(r.ID, true, func(_ *sqlTurn, r *lane.Run) {
		r.Complete, r.Failed, r.Found = complete, failed, found
	})
	check(d.t, err)
	return ended
}

// lastRuns returns the last run, and the last complete one.
func (d *desk) lastRuns() (last, complete *lane.Run, err error) {
	err = d.read(d.t.Context(), func(tx engine.Tx) error { queueLastRuns(tx, &last, &complete); return tx.Send() })
	return last, complete, err
}

// words describes what came of lines.
func words(all []lane.Compared, err error) string {
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, c := range all {
		s := string(c.Result)
		for _, more := range []struct {
			yes  bool
			word string
		}{
			{len(c.Changes) > 0, "(" + strings.Join(c.Changes, ", ") + ")"},
			{c.Applied, "applied"},
			{c.LeftOut != "", "left out"},
			{c.Fault != "", ": " + c.Fault},
			{len(c.Elsewhere) > 0 && !c.Applied, fmt.Sprintf("elsewhere %q", c.Elsewhere)},
			{!c.Erased.IsZero(), "erased"},
			{c.Dismissed, "dismissed"},
			{c.Err != nil, fmt.Sprint(c.Err)},
		} {
			if more.yes {
				s = strings.TrimSpace(s + " " + more.word)
			}
		}
		out = append(out, s)
	}
	return strings.Join(out, "; ")
}

// decide has lines decided about, and describes what came of them. lane.ToSee changes nothing, lane.ToCompare is what
// the first pass of a run does, and lane.ToApply or lane.ToStore the second.
func (d *desk) decide(r *lane.Run, mode lane.ReconcileMode, lines ...string) string {
	return words(decide(d.Inbox, r.ID, mode, lines))
}

// decide has lines decided about in one transaction.
func decide(s *Inbox, run string, mode lane.ReconcileMode, lines []string) ([]lane.Compared, error) {
	var batch []*lane.ListLine
	for _, line := range lines {
		batch = append(batch, s.readLine([]byte(line)))
	}
	return s.decideBatch(run, batch, mode)
}

func TestCompare(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("acme", "users=25", "sso")
		d.hears("crm/acme", "users=1")
		d.hears("crm/only", "users=1")
		unknown := strings.Replace(snapshotOf("odd"), "[]", "7", 1) // its features
		d.take("odd", unknown)
		r := d.begin()
		for _, c := range []struct{ line, want string }{
			{says("acme", "sso", "users=25"), "equal"},
			{snapshotOf("acme", "sso", "users=25"), "equal"},
			{`{"payload":` + says("acme", "sso", "users=25") + `}`, "equal"},
			{says("acme", "sso", "users=25", "users=3"), "equal"},
			{says("acme", "users=30"), "differs (users 25 → 30, - sso)"},
			{says("crm/acme"), "differs (- users)"},
			{says("new", "sso"), "new (+ sso)"},
			{says("odd", "sso"), "new (+ sso)"},
			{says("only", "sso"), `new (+ sso) elsewhere ["crm"]`},
			{says("eu/acme", "sso"), `new (+ sso) elsewhere ["" "crm"]`},
			{
				`{"tenant":{"code":"acme"},"change":{"features":null}}`,
				"faulty : /payload/change/features cannot be read",
			},
			{
				`{"tenant":{"code":"acme"},"change":{"features":[{"code":"users","quantity":"5"}]}}`,
				"faulty : /payload/change/features/0/quantity must be an integer or null, not a string",
			},
			{
				`{"tenant":{"code":"acme","code":"acme"},"change":{}}`,
				"faulty : /payload/tenant/code is in the object twice",
			},
			{`{"tenant":{},"change":{"features":[]}}`, "faulty : /payload/tenant/code is missing"},
			{
				`{"type":"Invoice","payload":` + says("acme") + `}`,
				`faulty : /type is "Invoice", and only TenantProvisioningChange says what a tenant may use`,
			},
			{
				`nonsense`,
				"faulty : the body is not JSON: invalid character 'o' in literal null (expecting 'u'), at line 1, column 2",
			},
			{`7`, "faulty : the body must be an object, not a number"},
		} {
			if got := d.decide(r, lane.ToSee, c.line); !strings.HasPrefix(got, c.want) || c.want == "" {
				t.Errorf("%s\n got %s\nwant %s", c.line, got, c.want)
			}
		}
		lines := []string{says("acme", "users=25", "sso"), "x", says("new"), says("acme", "users=25", "sso")}
		d.want("several", d.decide(r, lane.ToSee, lines...), "equal; faulty : the body is not JSON: "+
			"invalid character 'x' looking for beginning of value, at line 1, column 1; new; equal")
	})
}

// Whatever comes for a tenant after the mark, it is not known which is newer.
func TestChangedSinceTheMark(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		for name, comes := range map[string]func(tenant string){
			"webhook": func(tenant string) { d.hears(tenant, "b") },
			"copy": func(tenant string) {
				d.want("copy", d.send(tenant, snapshotOf(tenant, "a")), "=")
			},
			"invalid": func(tenant string) { d.recordInvalid(tenant, snapshotOf(tenant, "x")) },
			"erased":  func(tenant string) { must(d.Erase("", tenant))(t) },
			"missed":  func(tenant string) { d.misses(d.hook(tenant, "missed")); d.stored() },
		} {
			d.hears(name, "a")
			d.idle(name)
			r := d.begin()
			d.want(name+" before", d.decide(r, lane.ToSee, says(name, "c")), "differs (+ c, - a)")
			comes(name)
			d.want(name, d.decide(r, lane.ToSee, says(name, "c")), "changed")
			d.want(name+" the same", d.decide(r, lane.ToSee, says(name, "a")), "changed")
			applied := d.decide(r, lane.ToApply, says(name, "c"), says("other"+name))
			d.want(name+" applied", applied, "changed; new applied")
			if r2 := d.begin(); strings.HasPrefix(d.decide(r2, lane.ToSee, says(name, "c")), "changed") {
				t.Errorf("%s: the next run finds the tenant changed, too", name)
			}
		}
	})
}

func TestAsOf(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("old", "a")
		at := d.Now()
		time.Sleep(time.Millisecond)
		d.hears("new", "a")
		r := d.begin(at)
		compared := d.decide(r, lane.ToSee, says("old", "b"), says("new", "b"), says("none", "b"))
		d.want("compared", compared, "differs (+ b, - a); changed; new (+ b)")
		d.want("", d.decide(r, lane.ToApply, says("old", "b"), says("new", "b")), "differs (+ b, - a) applied; changed")
	})
}

// What is taken in is a webhook like any other, behind what its lane has, and never a duplicate.
func TestApply(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("acme", "a")
		d.idle("acme")
		check(t, d.Pause(Pause{Tenant: "acme"}))
		d.hears("acme", "b")
		r := d.begin()
		applied := d.decide(r, lane.ToApply, says("acme", "c"), says("new", "a"), says("acme", "c"))
		d.want("applied", applied, "differs (+ c, - b) applied; new (+ a) applied; changed")
		d.want("behind", d.states("acme"), "delivered waiting waiting")
		must(d.Resume(Pause{Tenant: "acme"}))(t)
		d.idle("acme")
		d.idle("new")
		for _, tenant := range []string{"acme", "new"} {
			list := d.list(tenant)
			last := list[len(list)-1]
			made := last.Source == FromReconcile && last.Type == content.TenantProvisioningChange
			if !made || last.State != state.Delivered || list[0].Source != "" && tenant == "acme" {
				t.Errorf("%s: %+v", tenant, last)
			}
			check(t, d.Redeliver(last.ID, false))
			d.until("redelivered", func() bool {
				now := d.list(tenant)
				return len(now) > 0 && now[len(list)-1].State == state.Delivered
			})
			if again := d.list(tenant)[len(list)-1]; again.Source != FromReconcile {
				t.Errorf("after a redelivery: %+v", again)
			}
		}
		made := 0
		for _, try := range d.main.tried("") {
			source := try.header.Get("usher-source")
			isJSON := try.header.Get("Content-Type") == "application/json"
			isSnapshot := strings.HasPrefix(try.body, `{"type":"TenantProvisioningChange","payload":{"tenant":`)
			switch {
			case source == "" && try.tenant != "":
			case source == "reconcile" && isJSON && try.id != "" && isSnapshot:
				made++
			default:
				t.Errorf("the receiver got %s with %v", try.body, try.header)
			}
		}
		d.want("made by usher, and each sent again", fmt.Sprint(made), "4")
		// The same state once more is no duplicate, if usher believes that it differs.
		r = d.begin()
		d.want("equal", d.decide(r, lane.ToApply, says("acme", "c")), "equal")
		d.hears("acme", "d")
		d.idle("acme")
		r = d.begin()
		d.want("back", d.decide(r, lane.ToApply, says("acme", "c")), "differs (+ c, - d) applied")
		actions := must(d.Actions(context.Background(), 0, 10))(t)
		if len(actions) != 3 || actions[0].Who != "ana" || actions[0].Count != 1 ||
			actions[2].What != "reconcile" || actions[2].Count != 2 {
			t.Errorf("%+v", actions)
		}
	})
}

// With --no-deliver it is known, and not delivered. A tenant whose webhooks wait is left out: they would come after it.
func TestApplyAndKeep(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("done", "a")
		d.idle("done")
		check(t, d.Pause(Pause{Tenant: "waits"}))
		d.hears("waits", "a")
		d.main.set("parked", status(422))
		d.hears("parked", "a")
		d.becomes("parked", "parked")
		r := d.begin()
		lines := []string{says("done", "b"), says("waits", "b"), says("parked", "b"), says("new", "b")}
		const differs = "differs (+ b, - a) "
		d.want("kept", d.decide(r, lane.ToStore, lines...),
			differs+"applied; "+differs+"left out; "+differs+"left out; new (+ b) applied")
		d.want("states", d.states("done")+", "+d.states("new"), "delivered stored, stored")
		// The next webhook is delivered, be it a copy of what was stored, or of the last one.
		stored := must(d.find(t.Context(), d.nth("new", 1)))(t)
		d.want("what was stored", d.send("new", string(stored.Body)), "+")
		d.want("the last one", d.send("done", snapshotOf("done", "a")), "+")
	})
}

// A run that the database does not know may not change anything.
func TestRunIsGone(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		gone := func(what string, r *lane.Run) {
			t.Helper()
			d.want(what, d.decide(r, lane.ToSee, says("acme", "b")), ErrNoRun.Error())
			d.want(what, d.decide(r, lane.ToApply, says("acme", "b")), ErrNoRun.Error())
			_, err := d.saveRun(r.ID, true, func(*sqlTurn, *lane.Run) {})
			d.want(what, fmt.Sprint(err), ErrNoRun.Error())
		}
		gone("another database's", &lane.Run{ID: "0123"})
		r := d.begin()
		d.endRun(r, true, "", lane.Counts{lane.Equal: 7, lane.Applied: 1})
		gone("ended", r)
		r3 := d.begin()
		d.endRun(r3, false, "CMD failed", nil)
		last, complete, err := d.lastRuns()
		if err != nil || last.ID != r3.ID || last.Failed != "CMD failed" {
			t.Errorf("the last run: %+v, %v", last, err)
		}
		if complete.ID != r.ID || complete.Found[lane.Equal] != 7 || complete.Ended.Before(complete.Began) {
			t.Errorf("the last complete run: %+v", complete)
		}
	})
}

// What is invalid of a tenant before the run began is settled if the tenant is taken in, or found equal; not if it
// still differs.
func TestReconcileSettlesInvalid(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		for _, tenant := range []string{"equal", "differs", "applied", "later"} {
			d.hears(tenant, "a")
			d.recordInvalid(tenant, snapshotOf(tenant, "x"))
		}
		r := d.begin()
		d.recordInvalid("later", snapshotOf("later", "y"))
		lines := []string{says("equal", "a"), says("differs", "b"), says("later", "a")}
		d.want("", d.decide(r, lane.ToSee, lines...), "equal; differs (+ b, - a); changed")
		d.want("", d.decide(r, lane.ToCompare, lines...), "equal; differs (+ b, - a); changed")
		d.want("", d.decide(r, lane.ToApply, says("applied", "c")), "differs (+ c, - a) applied")
		d.want("", fmt.Sprint(d.Stats().Invalid), "3") // differs, and both of later
		for tenant, want := range map[string]state.State{
			"equal":   state.Superseded,
			"differs": state.Invalid,
			"applied": state.Superseded,
			"later":   state.Invalid,
		} {
			for _, w := range d.list(tenant) {
				if w.Rejected() && w.State != want {
					t.Errorf("%s: %s %s", tenant, w.State, w.Why)
				}
			}
		}
	})
}

// A tenant that is taken in from a list may make its code ambiguous, and that is said, as for a webhook.
func TestReconcileSaysWhatIsAmbiguous(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("crm/acme", "a")
		for n, run := range []struct {
			mode         lane.ReconcileMode
			tenant, want string
		}{
			{lane.ToApply, "erp/acme", "new (+ a) applied; new (+ b0) applied"},
			{lane.ToStore, "shop/acme", "new (+ a) applied; differs (+ b1, - b0) applied"},
		} {
			d.idle("other") // else --no-deliver leaves it out
			lines := []string{says(run.tenant, "a"), says("other", fmt.Sprint("b", n))}
			d.want(run.tenant, d.decide(d.begin(), run.mode, lines...), run.want)
			d.until("it is said", func() bool {
				return strings.Contains(d.log.String(), "409 AMBIGUOUS\" new="+run.tenant+" ")
			})
		}
		said := d.log.String() // of the first one, too, if its question was slow
		for tenant, times := range map[string]int{"erp/acme": 1, "shop/acme": 1, "other": 0} {
			if n := strings.Count(said, "new="+tenant+" "); n != times {
				t.Errorf("%s is said %d times:\n%s", tenant, n, said)
			}
		}
	})
}

// A run that began later ends the others: what they have read may be older than what it finds equal.
func TestOneRunAtATime(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("acme", "a")
		first := d.begin()
		second := d.begin()
		d.want("the first one", d.decide(first, lane.ToApply, says("acme", "old")), ErrNoRun.Error())
		d.want("the second one", d.decide(second, lane.ToApply, says("acme", "a")), "equal")
	})
}

// Lists of former times can be taken in one after the other.
func TestOlderListsInOrder(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		now := time.Now()
		for i, want := range []string{"new (+ a) applied", "differs (+ b, - a) applied"} {
			r := d.begin(now.Add(time.Duration(i-3) * time.Hour))
			d.want("", d.decide(r, lane.ToStore, says("acme", string(rune('a'+i)))), want)
			d.endRun(r, true, "", nil)
		}
	})
}

// A line with a second payload is faulty, not read by the last one.
func TestPayloadTwice(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		line := `{"payload":` + says("acme", "a") + `,"payload":` + says("acme", "b") + `}`
		got := d.decide(d.begin(), lane.ToSee, line)
		if !strings.Contains(got, "faulty") {
			t.Error(got)
		}
	})
}

// A run from before the clock was set back seems to be from the future. What is found now still counts, and can be
// taken in.
func TestRunOfTheFuture(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("acme", "a")
		d.ahead.Add(int64(1000 * time.Hour))
		future := d.begin()
		d.want("found", d.decide(future, lane.ToCompare, says("acme", "b")), "differs (+ b, - a)")
		d.endRun(future, true, "", lane.Counts{lane.Differs: 1})
		d.ahead.Add(-int64(1000 * time.Hour))
		now := d.begin()
		d.want("found now", d.decide(now, lane.ToCompare, says("acme", "c")), "differs (+ c, - a)")
		ended := d.endRun(now, true, "", lane.Counts{lane.Differs: 1})
		d.want("left", fmt.Sprint(ended.Left), "1")
		d.want("stored", d.finding("acme"), "differs: + c, - a")
		taken := d.decide(d.begin(), lane.ToApply, says("acme", "b"))
		d.want("taken in", taken, "differs (+ b, - a) applied")
	})
}

// After a switch to a logical replica, which gets no sequences, the numbers are behind those of the lanes. A mark
// must be above them: else each tenant would count as changed since, and nothing would ever be found.
func TestMarkIsAboveAllNumbers(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Schema(t)
	d := newDesk(t, inDatabase(t, dsn))
	inSchema(t, dsn, "SELECT setval('{schema}.number', 1000)::text")
	d.hears("acme", "a")
	d.hears("other", "a")
	d.idle("") // else the outcome of a delivery, in the same transaction as the mark, raises the numbers
	inSchema(t, dsn, "SELECT setval('{schema}.number', 1)::text")
	r := d.begin()
	d.want("differs", d.decide(r, lane.ToSee, says("acme", "b"), says("other", "a")), "differs (+ b, - a); equal")
	d.hears("other", "b")
	d.want("after it", d.decide(r, lane.ToSee, says("other", "a")), "changed")
}

// The begin of a run asks for two things of all tenants, which takes long if there are a million and the disk is
// cold. Webhooks are taken in and delivered meanwhile.
func TestBeginOfARunKeepsNobodyWaiting(t *testing.T) {
	for _, name := range []string{"highest_last", "tenant_count"} {
		// A transaction that asks this waits until it is released.
		var stalls, asked atomic.Bool
		var release chan struct{} // of the bubble
		waits := func(s *statement) error {
			if s.name == name && stalls.Load() {
				asked.Store(true)
				<-release
			}
			return nil
		}
		inBubble(t, name, func(t *testing.T, d *desk) {
			d.take("first", "A") // counts what there is
			time.Sleep(time.Second)
			release = make(chan struct{})
			stalls.Store(true)
			began := make(chan *lane.Run)
			go func() { began <- d.begin() }()
			time.Sleep(time.Second)
			if !asked.Load() {
				t.Error("it does not ask that")
			}
			d.want("a webhook", d.send("acme", "A"), "+")
			time.Sleep(time.Second)
			d.want("what the receiver got", fmt.Sprint(d.main.got("acme")), "[A]")
			close(release)
			r := <-began
			if l := d.row("acme"); l.Last >= r.Mark {
				t.Errorf("what came before it began has the number %d, and its mark is %d", l.Last, r.Mark)
			}
		}, between(intercepted{asks: waits}))
	}
}

// A list that is older than what any complete run has compared takes nothing in, whichever run was the last.
func TestOlderThanAnyRun(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("acme", "a")
		time.Sleep(5 * time.Millisecond)
		now := d.begin()
		d.want("now", d.decide(now, lane.ToSee, says("acme", "a")), "equal")
		d.endRun(now, true, "", lane.Counts{lane.Equal: 1})
		old := d.begin(now.Began.Add(-2 * time.Millisecond))
		d.endRun(old, true, "", lane.Counts{lane.Equal: 1})
		between := d.begin(now.Began.Add(-time.Millisecond))
		told, run := d.pass(Pass{Run: between.ID, Mode: lane.ToCompare}, says("acme", "b"))
		d.want("between them", words(told, nil)+"; "+run.Failed, "differs (+ b, - a); "+olderList)
		d.want("taken in", d.decide(between, lane.ToApply, says("acme", "b")), olderList)
	})
}
