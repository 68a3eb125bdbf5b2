package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"usher/internal/content"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
)

// An erasure is not undone by a list, until something of the tenant was taken in.
func TestErasureStands(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		r := d.begin()
		must(d.Erase("", "acme"))(t)
		d.want("a run that had begun", d.decide(r, lane.ToApply, says("acme", "a")), "left")
		d.want("a later one", d.decide(d.begin(), lane.ToApply, says("acme", "a")), "left")
		d.hears("acme", "b")
		d.idle("acme")
		d.want("once it is back", d.decide(d.begin(), lane.ToApply, says("acme", "a")), "differs (+ a, - b) applied")
	})
}

// begin begins a run.
func (d *desk) begin() *Run {
	d.t.Helper()
	r, _, err := d.BeginRun(&Action{Who: "ana", What: "reconcile"})
	check(d.t, err)
	return r
}

// pass makes a pass over lines, and describes what it told.
func (d *desk) pass(p Pass, lines ...string) (told string, run *Run) {
	d.t.Helper()
	next := func() ([]byte, error) {
		if len(lines) == 0 {
			return nil, io.EOF
		}
		line := lines[0]
		lines = lines[1:]
		return []byte(line), nil
	}
	var all []lane.Compared
	run, err := d.Reconcile(d.t.Context(), p, next, func(some []lane.Compared, _ int) error {
		all = append(all, some...)
		return nil
	})
	check(d.t, err)
	var parts []string
	for _, c := range all {
		parts = append(parts, ShowTenant(c.Platform, c.Tenant)+" "+words([]lane.Compared{c}, nil))
	}
	return strings.Join(parts, "; "), run
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
			{c.Fault != "", ": " + c.Fault},
			{len(c.Elsewhere) > 0 && !c.Applied, fmt.Sprintf("elsewhere %q", c.Elsewhere)},
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

// decide has lines decided about, and describes what came of them. lane.ToCompare is what the first
// pass of a run does, and lane.ToApply or lane.ToStore the second.
func (d *desk) decide(r *Run, mode lane.ReconcileMode, lines ...string) string {
	return words(decide(d.Inbox, r.ID, mode, lines))
}

// decide has lines decided about in one transaction.
func decide(s *Inbox, run string, mode lane.ReconcileMode, lines []string) ([]lane.Compared, error) {
	var batch []*lane.ListLine
	for _, line := range lines {
		batch = append(batch, s.readLine([]byte(line)))
	}
	id, err := parseRun(run)
	if err != nil {
		return nil, err
	}
	return s.decideBatch(id, batch, mode)
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
			{`{"payload":` + says("acme") + `,"payload":` + says("acme", "sso") + `}`, "faulty : /payload is in the object twice"},
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
			if got := d.decide(r, lane.ToCompare, c.line); !strings.HasPrefix(got, c.want) || c.want == "" {
				t.Errorf("%s\n got %s\nwant %s", c.line, got, c.want)
			}
		}
		lines := []string{says("acme", "users=25", "sso"), "x", says("new"), says("acme", "users=25", "sso")}
		d.want("several", d.decide(r, lane.ToCompare, lines...), "equal; faulty : the body is not JSON: "+
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
		} {
			d.hears(name, "a")
			d.idle(name)
			r := d.begin()
			d.want(name+" before", d.decide(r, lane.ToCompare, says(name, "c")), "differs (+ c, - a)")
			comes(name)
			d.want(name, d.decide(r, lane.ToCompare, says(name, "c")), "left")
			d.want(name+" the same", d.decide(r, lane.ToCompare, says(name, "a")), "left")
			applied := d.decide(r, lane.ToApply, says(name, "c"), says("other"+name))
			d.want(name+" applied", applied, "left; new applied")
			if r2 := d.begin(); name != "erased" && strings.HasPrefix(d.decide(r2, lane.ToCompare, says(name, "c")), "left") {
				t.Errorf("%s: the next run leaves the tenant, too", name)
			}
		}
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
		d.want("applied", applied, "differs (+ c, - b) applied; new (+ a) applied; left")
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

// With --no-deliver it is known, and not delivered, unless webhooks of its tenant wait: then it queues behind them.
func TestApplyAndKeep(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.hears("done", "a")
		d.idle("done")
		check(t, d.Pause(Pause{Tenant: "waits"}))
		d.hears("waits", "a")
		lines := []string{says("done", "b"), says("waits", "b"), says("new", "b")}
		const differs = "differs (+ b, - a) applied"
		d.want("kept", d.decide(d.begin(), lane.ToStore, lines...), differs+"; "+differs+"; new (+ b) applied")
		d.want("states", d.states("done")+", "+d.states("waits")+", "+d.states("new"), "delivered stored, waiting waiting, stored")
		// The next webhook is delivered, be it a copy of what was stored, or of the last one.
		stored := must(d.find(t.Context(), d.nth("new", 1)))(t)
		d.want("what was stored", d.send("new", string(stored.Body)), "+")
		d.want("the last one", d.send("done", snapshotOf("done", "a")), "+")
	})
}

// A run whose mark this database does not know may not change anything.
func TestRunIsGone(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		r := d.begin()
		id, err := parseRun(r.ID)
		check(t, err)
		id.at++ // a failover has lost it
		for what, r := range map[string]*Run{"nonsense": {ID: "0123"}, "lost": {ID: id.String()}} {
			for _, mode := range []lane.ReconcileMode{lane.ToCompare, lane.ToApply} {
				d.want(what, d.decide(r, mode, says("acme", "b")), ErrNoRun.Error())
			}
		}
		if err := d.endRun(id, true); !errors.Is(err, ErrNoRun) {
			t.Errorf("a lost one ended: %v", err)
		}
	})
}

// A pass over a list says what differs and what it does not have, and why it cannot be trusted. What was missed before the
// run began is made good once all is equal, or was taken in.
func TestPass(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		for _, tenant := range []string{"crm/same", "crm/other", "crm/gone", "erp/moved"} {
			d.hears(tenant, "a")
		}
		d.hears("crm/cancelled")
		d.Miss(time.Now())
		d.until("missed", func() bool { return d.Stats().Missed.Webhooks == 1 })
		r := d.begin()
		d.hears("crm/late", "a")
		list := []string{says("crm/same", "a"), says("crm/other", "b"), says("crm/new", "c"), says("crm/late", "x"), ""}
		const differs = "crm/other differs (+ b, - a); crm/new new (+ c); crm/late left"
		compare := Pass{Run: r.ID, Mode: lane.ToCompare}
		told, run := d.pass(compare, list...)
		d.want("compared", told+" "+run.Failed, differs+"; crm/gone unlisted; erp/moved unlisted ")
		d.want("found", run.Found.String(), "1 equal, 1 differs, 1 new, 1 left, 2 unlisted")
		told, run = d.pass(Pass{Run: r.ID, Mode: lane.ToCompare, Partial: true}, list...)
		d.want("a part", told+" "+run.Failed, differs+" ")
		told, run = d.pass(Pass{Run: r.ID, Mode: lane.ToApply, Failed: "too many"}, list[1:3]...)
		d.want("not allowed", told+" "+run.Found.String(), "crm/other differs (+ b, - a); crm/new new (+ c) 1 differs, 1 new")
		told, _ = d.pass(Pass{Run: r.ID, Mode: lane.ToApply}, list[1:3]...)
		d.want("taken in", told, "crm/other differs (+ b, - a) applied; crm/new new (+ c) applied")
		if s := d.Stats(); s.Missed.Webhooks != 1 || s.Reconciled.IsZero() {
			t.Errorf("what is unlisted may be what was missed: %+v, %v", s.Missed, s.Reconciled)
		}

		r = d.begin()
		d.idle("")
		whole := []string{says("crm/same", "a"), says("crm/other", "b"), says("crm/new", "c"), says("crm/late", "a"),
			says("crm/gone"), says("erp/moved", "a")}
		told, _ = d.pass(Pass{Run: r.ID, Mode: lane.ToCompare}, whole...)
		d.want("the rest", told, "crm/gone differs (- a)")
		_, run = d.pass(Pass{Run: r.ID, Mode: lane.ToApply, Rest: true}, "", "", "", "", says("crm/gone"))
		d.want("and it is taken in", run.Found.String()+run.Failed, "1 differs, 1 taken in")
		if m := d.Stats().Missed; !m.From.IsZero() {
			t.Errorf("still missed: %+v", m)
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
