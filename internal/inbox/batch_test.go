package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"usher/internal/inbox/engine"
)

// together runs all operations in one transaction, in this order.
func (d *desk) together(all ...func()) {
	stands, goesOn := make(chan struct{}), make(chan struct{})
	check(d.t, d.submit(context.Background(), &op{wanted: func() bool { close(stands); <-goesOn; return false }}))
	<-stands // so does the writer, outside of any transaction
	var wg sync.WaitGroup
	for _, f := range all {
		before := len(d.ops)
		done := make(chan struct{})
		wg.Go(func() { defer close(done); f() })
		d.until("the next is queued", func() bool {
			select {
			case <-done: // it needs no transaction
				return true
			default:
				return len(d.ops) > before
			}
		})
	}
	close(goesOn)
	wg.Wait()
}

// Operations that share a transaction with an action come before it or after it, like any other.
func TestTogetherWithAnAction(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		one := func(tenant, body string, before ...func(*desk)) func() {
			return func() { d.want(tenant+" is taken in", d.send(tenant, body), "+") }
		}
		erase := func(tenant string) func() {
			return func() { must(d.Erase("", tenant))(t) }
		}
		d.together(one("a", "A"), func() {
			if _, err := d.Erase("", "a"); err != nil && errorWord(err) != "newer" { // A came after somebody asked
				t.Error(err)
			}
		}, one("a", "B"))
		d.idle("a")
		if got := d.main.got("a"); got[len(got)-1] != "B" || !strings.HasSuffix(d.states("a"), "delivered") {
			t.Errorf("taken in after an erasure: %v %s", got, d.states("a"))
		}

		d.take("b", "A")
		d.idle("b")
		id := d.nth("b", 1)
		d.together(erase("b"), func() {
			if err := d.Redeliver(id, true); err == nil {
				t.Error("sent again, though it was erased before")
			}
		})
		d.until("nothing of b", func() bool { return d.Stats().Pending == 0 })

		d.together(one("d", "A"), one("d", "B"), one("d", "A"), func() { d.want("a copy", d.send("d", "A"), "=") })
		d.idle("d")
		d.want("at once", fmt.Sprint(d.main.got("d")), "[A B A]")
	})
}

// The database refuses what one operation of a batch writes: the others are done.
func TestOneIsRefused(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		refuses := func(s *statement) error {
			if s.name == "webhook_add" && slices.Contains(s.args[2].([]string), "bad") {
				return &engine.StatementError{Err: errors.New("a value that the database does not take")}
			}
			return nil
		}
		d := newDesk(t, open, between(intercepted{asks: refuses}))
		var all []func()
		for n := range 7 {
			all = append(all, func() { d.want("taken in", d.send(fmt.Sprint("good", n), "A"), "+") })
		}
		all[3] = func() {
			if got := d.send("bad", "A"); !strings.HasSuffix(got, "a value that the database does not take") {
				t.Errorf("it was not refused: %s", got)
			}
		}
		d.together(all...)
		d.idle("")
		d.want("delivered", fmt.Sprint(len(d.main.got(""))), "6")
		check(t, d.Err())
	})
}
