package inbox

import (
	"bytes"
	"testing"

	"usher/internal/inbox/engine"
	"usher/internal/testkit/pgtest"
)

// Whatever comes for a lane leaves its number there, and when it came: also a copy, and what is refused. So does an erasure.
func TestWhatComesLeavesItsNumber(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		last := func() *lane { return must2(d.lanesOf(nil, "acme"))(t)[0] }
		former := new(lane)
		for _, step := range []struct {
			what string
			do   func()
		}{
			{"taken in", func() { d.want("", d.send("acme", "one"), "+") }},
			{"a copy", func() { d.idle("acme"); d.want("", d.send("acme", "one"), "=") }},
			{"taken in again", func() { d.want("", d.send("acme", "two"), "+") }},
			{"refused", func() { d.refuse("acme", odd("acme", "x")) }},
			{"refused again", func() { d.refuse("acme", odd("acme", "x")) }},
			{"accepted", func() { must2(d.Accept(d.nth("acme", 3), true))(t) }},
			{"erased", func() { d.idle("acme"); must2(d.Erase("", "acme"))(t) }},
		} {
			step.do()
			now := last()
			if now.last <= former.last || now.lastAt <= former.lastAt {
				t.Errorf("%s: the last number is %d of %d, after %d of %d", step.what, now.last, now.lastAt, former.last, former.lastAt)
			}
			former = now
		}
	})
}

// They survive an export, and no number is given twice.
func TestLastNumberIsImported(t *testing.T) {
	t.Parallel()
	d := newDesk(t, inFile(t, t.TempDir()+"/from.db"))
	d.want("", d.send("acme", "one"), "+")
	d.idle("acme")
	d.want("", d.send("acme", "one"), "=")
	var file bytes.Buffer
	must2(d.Export(t.Context(), &file))(t)
	to := newDesk(t, inDatabase(t, pgtest.Schema(t)))
	must2(to.Import(t.Context(), &file, ImportOptions{}))(t)
	was, is := must2(d.lanesOf(nil, "acme"))(t)[0], must2(to.lanesOf(nil, "acme"))(t)[0]
	if is.last != was.last || is.lastAt != was.lastAt || is.last == 0 {
		t.Errorf("it was %d at %d, and is %d at %d", was.last, was.lastAt, is.last, is.lastAt)
	}
	to.want("", to.send("new", "one"), "+")
	if id := to.nth("new", 1); id <= was.last {
		t.Errorf("a new webhook got the number %d, after %d", id, was.last)
	}
}
