package inbox

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/webhookgate"
)

// pauses returns the times between a tenant's tries.
func (k *taker) pauses(tenant string) (all []time.Duration) {
	tries := k.tried(tenant)
	for i := 1; i < len(tries); i++ {
		all = append(all, tries[i].at.Sub(tries[i-1].at).Round(10*time.Millisecond))
	}
	return all
}

func TestTries(t *testing.T) {
	t.Parallel()
	four := func(c *setup) { c.MaxTries = 4 }
	inBubble(t, "pauses double from 1 s to 5 min", func(t *testing.T, d *desk) {
		d.main.set("t", status(500))
		d.take("t", "A")
		time.Sleep(112 * time.Second)
		want := "[100ms 200ms 400ms 800ms 1.6s 3.2s 6.4s 12.8s 25.6s 30s 30s]"
		d.want("a tenth of the pauses", fmt.Sprint(d.main.pauses("t")), want)
		s := d.list("t")[0]
		if s.State != state.Waiting || s.Tries != 12 || len(s.Tried) != 12 || s.Tried[0].Status != 500 {
			t.Errorf("%+v", s)
		}
	}, func(c *setup) { c.Jitter = func(d time.Duration) time.Duration { return d / 10 } })
	inBubble(t, "parked after so many tries", func(t *testing.T, d *desk) {
		for _, code := range []int{500, 401, 404, 408, 425, 429, 301, 501} {
			tenant := fmt.Sprint("t", code)
			d.main.set(tenant, status(code))
			d.take("well", tenant) // the receiver does not fail for everybody
			time.Sleep(time.Millisecond)
			d.take(tenant, "A")
		}
		for n := range 80 { // it counts only if another tenant's was accepted since the try before
			d.take("well", fmt.Sprint(n))
			time.Sleep(time.Second / 10)
		}
		for _, e := range slices.DeleteFunc(d.list(""), func(e *lane.Webhook) bool { return e.Tenant == "well" }) {
			if e.State != state.Parked || e.Tries != 4 || e.Why != "too many failed tries (USHER_WEBHOOK_INBOX_TRIES)" {
				t.Errorf("%+v", e.Status)
			}
		}
	}, four)
	inBubble(t, "four answers park at once", func(t *testing.T, d *desk) {
		for _, code := range []int{400, 410, 413, 422} {
			d.main.set(fmt.Sprint("t", code), status(code))
			d.take(fmt.Sprint("t", code), "A")
		}
		time.Sleep(time.Second)
		for _, e := range d.list("") {
			if e.State != state.Parked || e.Tries != 1 {
				t.Errorf("%+v", e.Status)
			}
		}
	})
	inBubble(t, "a receiver that is down counts towards the age alone", func(t *testing.T, d *desk) {
		for n, code := range []int{0, 502, 503, 504} {
			d.main.set(fmt.Sprint("t", n), answers(code))
			d.take(fmt.Sprint("t", n), "A")
		}
		release := d.main.hang("hangs")
		defer release()
		d.take("hangs", "A")
		d.take("hangs", "B")
		time.Sleep(50 * time.Second)
		d.want("for so long", d.states(""), "waiting waiting waiting waiting waiting waiting")
		time.Sleep(3 * time.Minute)
		d.want("then", d.states(""), "parked parked parked parked superseded parked")
		if e := d.list("t0")[0]; e.Counted != 0 || e.Tries < 5 || e.Why != "older than USHER_WEBHOOK_INBOX_MAX_AGE" {
			t.Errorf("%+v", e.Status)
		}
	}, func(c *setup) { c.MaxAge, c.MaxTries = time.Minute, 5 })
	inBubble(t, "too old, but hardly tried", func(t *testing.T, d *desk) {
		check(t, d.Pause(Pause{}))
		d.take("t", "A")
		time.Sleep(time.Hour) // a long pause, or an import of what is old
		d.main.set("t", status(503))
		must(d.Resume(Pause{}))(t)
		time.Sleep(50 * time.Second)
		d.want("its age counts from the first try", d.states("t"), "waiting")
		time.Sleep(5 * time.Minute)
		d.want("then", d.states("t"), "parked")
	}, func(c *setup) { c.MaxAge, c.MaxTries = time.Minute, 5 })
	inBubble(t, "a clock that jumps ahead parks nothing that was hardly tried", func(t *testing.T, d *desk) {
		d.main.set("t", status(500))
		d.take("t", "A", "B")
		time.Sleep(5 * time.Second)
		d.ahead.Store(int64(40 * 24 * time.Hour))
		time.Sleep(10 * time.Second)
		d.want("a failed try later", d.states("t"), "waiting waiting")
		d.main.set("t", nil)
		time.Sleep(5 * time.Minute)
		d.want("in order", fmt.Sprint(d.main.got("t")), "[A B]")
	}, func(c *setup) { c.MaxAge = 72 * time.Hour })
	inBubble(t, "a redelivery has a fresh count and a fresh age", func(t *testing.T, d *desk) {
		d.main.set("t", status(500))
		d.take("well", "A")
		time.Sleep(time.Millisecond)
		d.take("t", "A")
		for n := range 80 {
			d.take("well", fmt.Sprint(n))
			time.Sleep(time.Second / 10)
		}
		d.want("parked", d.states("t"), "parked")
		check(t, d.Redeliver(d.nth("t", 1), false))
		time.Sleep(2 * time.Second)
		if e := d.list("t")[0]; e.State != state.Waiting || e.Tries != 2 || e.Redelivered.IsZero() {
			t.Errorf("%+v", e.Status)
		}
	}, four)
	inBubble(t, "what waits is tried now when somebody sends it again", func(t *testing.T, d *desk) {
		d.main.set("t", answers(500, 500, 500, 500, 500, 500, 500, 200))
		d.take("t", "A")
		time.Sleep(70 * time.Second)
		before := len(d.main.tried("t"))
		check(t, d.Redeliver(d.nth("t", 1), false))
		time.Sleep(10 * time.Millisecond)
		if got := len(d.main.tried("t")); got != before+1 || d.states("t") != "delivered" {
			t.Errorf("%d tries after %d: %s", got, before, d.states("t"))
		}
	})
	inBubble(t, "Retry-After is kept", func(t *testing.T, d *desk) {
		for asked, waits := range map[string]time.Duration{
			"0":      time.Second,
			"30":     30 * time.Second,
			"172800": time.Hour,
		} {
			for _, code := range []int{429, 503, 500} {
				tenant := fmt.Sprint(asked, "-", code)
				d.main.set(tenant, func(n int) *http.Response {
					return status([]int{code, 200}[min(n, 2)-1], "Retry-After", asked)(n)
				})
				d.take(tenant, "A")
				time.Sleep(time.Millisecond)
				if e := d.list(tenant)[0]; e.Next.Sub(e.Tried[0].At) != waits {
					t.Errorf("%s: next %v after %v", tenant, e.Next, e.Tried[0].At)
				}
			}
		}
		time.Sleep(35 * time.Second)
		for _, code := range []int{429, 503, 500} {
			pauses := d.main.pauses(fmt.Sprint("30-", code))
			if len(pauses) != 1 || pauses[0] < 30*time.Second || pauses[0] > 31*time.Second {
				t.Errorf("%d: tried again after %v", code, pauses)
			}
			d.want("not yet", fmt.Sprint(len(d.main.tried(fmt.Sprint("172800-", code)))), "1")
		}
	})
	inBubble(t, "the pauses go on after a restart", func(t *testing.T, d *desk) {
		d.main.set("t", status(500))
		d.take("t", "A")
		time.Sleep(40 * time.Second)
		before := len(d.main.tried("t"))
		for range 5 {
			d.restart()
			time.Sleep(time.Second)
		}
		if n := len(d.main.tried("t")) - before; n > 1 {
			t.Errorf("%d tries more", n)
		}
	})
	inBubble(t, "a tenant in a row, then others", func(t *testing.T, d *desk) {
		d.places(1)
		d.main.delay = 10 * time.Millisecond
		for n := range 100 {
			d.take("many", fmt.Sprint(n))
		}
		d.take("one", "A")
		time.Sleep(time.Minute)
		all := d.main.got("")
		if n := slices.Index(all, "one:A"); n < 0 || n > 40 {
			t.Errorf("the other tenant's was number %d", n)
		}
		d.want("delivered", fmt.Sprint(len(d.main.got("many"))), "100")
		if !slices.IsSortedFunc(d.main.tried("many"), func(a, b aTry) int { return len(a.body) - len(b.body) }) {
			t.Errorf("not in order: %v", d.main.got("many"))
		}
	})
	inBubble(t, "never more at once than it has places", func(t *testing.T, d *desk) {
		d.main.delay = time.Second
		for n := range 100 {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(4 * time.Second)
		if d.main.mostAtOnce() != 32 || len(d.main.got("")) < 96 {
			t.Errorf("%d at once, %d delivered in 4 s", d.main.mostAtOnce(), len(d.main.got("")))
		}
	})
}

func TestOutages(t *testing.T) {
	t.Parallel()
	inBubble(t, "probed and not hammered, and all at once when it is back", func(t *testing.T, d *desk) {
		const tenants = 100
		d.main.set("", unreachable)
		d.main.delay = 10 * time.Millisecond
		for n := range tenants {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(10 * time.Second)
		// Those that began together may all know already that it fails for everybody.
		before, said := len(d.main.tried("")), d.log.String()
		time.Sleep(20 * time.Second)
		if n := len(d.main.tried("")) - before; n < 18 || n > 22 {
			t.Errorf("%d tries in 20 s of outage", n)
		}
		later := d.log.String()[len(said):] // from now on nobody knows when which one is tried
		if !strings.Contains(later, "will retry") || strings.Contains(later, "next_try=") {
			t.Errorf("%s\nlater\n%s", said, later)
		}
		if !d.trickles("main") {
			t.Error("it does not count as down")
		}
		d.main.set("", nil)
		back := time.Now()
		for len(d.main.got("")) < tenants {
			time.Sleep(100 * time.Millisecond)
			if time.Since(back) > 5*time.Second {
				t.Fatalf("only %d delivered in 5 s", len(d.main.got("")))
			}
		}
		if d.main.mostAtOnce() > 32 {
			t.Errorf("%d at once", d.main.mostAtOnce())
		}
	})
	inBubble(t, "after ten minutes it is asked each five seconds", func(t *testing.T, d *desk) {
		slow(t)
		d.main.set("", unreachable)
		for n := range 20 {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(11 * time.Minute)
		before := len(d.main.tried(""))
		time.Sleep(2 * time.Minute)
		if n := len(d.main.tried("")) - before; n < 22 || n > 26 {
			t.Errorf("%d tries in two minutes", n)
		}
		d.main.set("", nil)
		time.Sleep(6 * time.Second)
		d.want("delivered", fmt.Sprint(len(d.main.got(""))), "20")
	})
	inBubble(t, "the one that was tried longest ago is probed", func(t *testing.T, d *desk) {
		costly(t)
		const tenants = 12
		d.main.set("", unreachable)
		for n := range tenants {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(10 * time.Second)
		before := len(d.main.tried(""))
		time.Sleep(10 * tenants * time.Second)
		tried := make(map[string]int)
		for _, try := range d.main.tried("")[before:] {
			tried[try.tenant]++
		}
		for n := range tenants {
			if times := tried[fmt.Sprint("t", n)]; times < 9 || times > 11 {
				t.Errorf("t%d was tried %d times in ten rounds", n, times)
			}
		}
	})
	inBubble(t, "a single tenant learns soon that it is back", func(t *testing.T, d *desk) {
		d.main.set("", unreachable)
		d.take("t", "A")
		time.Sleep(3 * time.Minute) // its own pause is longer than two
		d.main.set("", nil)
		time.Sleep(6 * time.Second)
		d.want("delivered", fmt.Sprint(d.main.got("t")), "[A]")
	})
	inBubble(t, "also if nobody is left who found it down", func(t *testing.T, d *desk) {
		d.main.set("ill", status(500, "Retry-After", "60"))
		d.take("ill", "A")
		time.Sleep(time.Second)
		d.main.set("", unreachable)
		for n := range 20 {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(20 * time.Second)
		if !d.trickles("main") {
			t.Error("it does not count as down")
		}
		for n := range 20 {
			check(t, d.Discard(d.nth(fmt.Sprint("t", n), 1)))
		}
		d.main.set("", nil)
		d.main.set("ill", nil)
		time.Sleep(time.Minute)
		d.want("delivered", fmt.Sprint(d.main.got("ill")), "[A]")
	})
	inBubble(t, "retries that are due go at full speed", func(t *testing.T, d *desk) {
		costly(t)
		d.places(1)
		d.main.set("", unreachable)
		for n := range 40 {
			d.take(fmt.Sprint("t", n), "A", "B")
		}
		time.Sleep(2 * time.Minute)
		d.shut()
		time.Sleep(5 * time.Minute) // each is due
		d.main.set("", nil)
		d.main.delay = 10 * time.Millisecond
		d.start() // and does not know that the receiver was down
		time.Sleep(10 * time.Second)
		d.want("delivered", fmt.Sprint(len(d.main.got(""))), "80")
	})
	inBubble(t, "whatever it answers it is back", func(t *testing.T, d *desk) {
		d.main.set("", unreachable)
		for n := range 20 {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(time.Minute)
		d.main.set("", nil)
		d.main.set("ill", status(500))
		d.take("ill", "A")
		time.Sleep(6 * time.Second)
		d.want("delivered", fmt.Sprint(len(d.main.got(""))), "20")
	})
	inBubble(t, "an ill tenant hides nothing", func(t *testing.T, d *desk) {
		d.main.set("ill", status(500))
		d.take("ill", "A")
		time.Sleep(2 * time.Minute)
		d.main.set("ill", nil)
		d.main.set("", unreachable)
		d.take("well", "A")
		time.Sleep(2 * time.Minute)
		d.main.set("", nil)
		d.main.set("ill", status(500))
		time.Sleep(6 * time.Second)
		d.want("delivered", fmt.Sprint(d.main.got("well")), "[A]")
	})
	inBubble(t, "healthy tenants do not wait behind failing ones", func(t *testing.T, d *desk) {
		costly(t)
		for n := range 40 {
			d.main.set(fmt.Sprint("bad", n), status(503))
			d.take(fmt.Sprint("bad", n), "A")
		}
		time.Sleep(45 * time.Second) // each has failed
		var worst time.Duration
		for n := range 25 {
			tenant, sent := fmt.Sprint("good", n), time.Now()
			d.take(tenant, "A")
			for len(d.main.got(tenant)) == 0 {
				time.Sleep(10 * time.Millisecond)
				if time.Since(sent) > 10*time.Second {
					t.Fatalf("%s is not delivered", tenant)
				}
			}
			worst = max(worst, time.Since(sent))
			time.Sleep(300 * time.Millisecond)
		}
		if worst > 2*time.Second {
			t.Errorf("one waited for %v", worst)
		}
	})
	inBubble(t, "those that hang take half of the places at most", func(t *testing.T, d *desk) {
		costly(t)
		d.places(8)
		for n := range 40 {
			defer d.main.hang(fmt.Sprint("bad", n))()
			d.take(fmt.Sprint("bad", n), "A")
		}
		time.Sleep(3 * time.Minute) // each of them has failed
		late := 0
		for n := range 25 {
			tenant, sent := fmt.Sprint("good", n), time.Now()
			d.take(tenant, "A")
			for len(d.main.got(tenant)) == 0 {
				time.Sleep(10 * time.Millisecond)
				if time.Since(sent) > time.Minute {
					t.Fatalf("%s is not delivered", tenant)
				}
			}
			if n > 0 && time.Since(sent) > 2*time.Second { // the first may find the receiver down
				late++
			}
			time.Sleep(time.Second)
		}
		if late > 2 { // the wave that follows the first success may take all places once
			t.Errorf("%d of 24 waited for longer than two seconds", late)
		}
	})
	inBubble(t, "a healthy tenant does not wait for all that were leased before it hung", func(t *testing.T, d *desk) {
		d.places(4)
		for n := range 40 {
			defer d.main.hang(fmt.Sprint("bad", n))()
			d.take(fmt.Sprint("bad", n), "A")
			time.Sleep(time.Millisecond) // one of them comes last
		}
		d.take("good", "A")
		time.Sleep(20*time.Second + 100*time.Millisecond) // two timeouts
		d.want("delivered", fmt.Sprint(d.main.got("good")), "[A]")
	})
	inBubble(t, "what was leased before it went down is not tried", func(t *testing.T, d *desk) {
		d.main.set("", unreachable)
		d.main.delay = 10 * time.Millisecond
		for n := range 300 {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(3 * time.Second)
		if n := len(d.main.tried("")); n > 90 { // 32 places, and ten a second
			t.Errorf("%d tries in three seconds", n)
		}
	})
	inBubble(t, "a tenant with a trouble of its own keeps its pauses", func(t *testing.T, d *desk) {
		d.main.set("bad", status(500))
		d.take("bad", "A")
		for n := range 100 {
			d.take("good", fmt.Sprint(n))
			time.Sleep(time.Second)
		}
		if n := len(d.main.tried("bad")); n < 7 || n > 8 || len(d.main.got("good")) != 100 {
			t.Errorf("%d tries of the bad one, %d delivered", n, len(d.main.got("good")))
		}
	})
	inBubble(t, "a receiver that is down keeps its Retry-After", func(t *testing.T, d *desk) {
		d.main.set("", status(503, "Retry-After", "60"))
		for n := range 10 {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(125 * time.Second)
		if n := len(d.main.tried("")); n < 25 || n > 35 {
			t.Errorf("%d tries of ten tenants in two minutes", n)
		}
	})
	inBubble(t, "an outage is said once", func(t *testing.T, d *desk) {
		d.main.set("", unreachable)
		for n := range 20 {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(time.Minute)
		d.main.set("", nil)
		time.Sleep(time.Minute)
		for _, line := range []string{
			`level=WARN msg="receiver fails for everybody, trying a few deliveries a second" receiver=main`,
			`level=INFO msg="receiver answers again" receiver=main`,
		} {
			if n := strings.Count(d.log.String(), line); n != 1 {
				t.Errorf("%s: %d times", line, n)
			}
		}
	})
	all := []*taker{newTaker("well", 2, "well"), newTaker("rejects", 2, "rejects"), newTaker("hangs", 2, "hangs")}
	inBubble(t, "receivers do not wait for each other", func(t *testing.T, d *desk) {
		all[0].delay, all[2].delay = 100*time.Millisecond, time.Hour
		all[1].set("", unreachable)
		for n := range 20 {
			for _, name := range []string{"well", "rejects", "hangs", "nobody", ""} {
				d.take(name+"/"+fmt.Sprint("t", n), name)
			}
		}
		time.Sleep(time.Second + 50*time.Millisecond)
		d.want("delivered in a second", fmt.Sprint(len(all[0].got(""))), "20")
		time.Sleep(5 * time.Second)
		s := d.Stats()
		for name, pending := range map[string]int{"well": 0, "rejects": 20, "hangs": 20, "": 40} {
			if r := s.Receivers[name]; r.Pending != pending || d.trickles(name) != (name == "rejects") {
				t.Errorf("%s: %+v", name, r)
			}
		}
		all[1].set("", nil)
		time.Sleep(10 * time.Second)
		d.want("delivered by who is back", fmt.Sprint(len(all[1].got(""))), "20")
	}, func(c *setup) {
		c.Receivers = receiver.NewSet(all[0].Receiver, all[1].Receiver, all[2].Receiver)
	})
}

func TestEnds(t *testing.T) {
	t.Parallel()
	inBubble(t, "what is under way finishes", func(t *testing.T, d *desk) {
		d.main.delay = 3 * time.Second
		for n := range 50 {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(time.Second)
		began := time.Now()
		d.end()
		if took := time.Since(began); took < 2*time.Second || took > 2100*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		d.want("delivered", fmt.Sprint(len(d.main.got("")), len(d.main.tried(""))), "32 32")
		d.restart()
		time.Sleep(10 * time.Second)
		d.want("after a restart", fmt.Sprint(len(d.main.got("")), len(d.main.tried(""))), "50 50")
	})
	inBubble(t, "at a hard end it is delivered again", func(t *testing.T, d *desk) {
		d.main.delay = time.Minute
		d.main.Timeout = time.Hour
		d.take("t", "A", "B")
		time.Sleep(time.Second)
		began := time.Now()
		d.cut()
		d.end()
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		if e := d.list("t")[0]; e.State != state.Waiting || e.Tries != 0 {
			t.Errorf("%+v", e.Status)
		}
		d.main.delay = 0
		d.restart()
		time.Sleep(time.Second)
		d.want("after a restart", fmt.Sprint(d.main.got("t")), "[A B]")
	})
	inBubble(t, "whoever comes after the end is told so", func(t *testing.T, d *desk) {
		d.shut()
		if got := d.send("t", "A"); !strings.Contains(got, "closed") {
			t.Errorf("got %q", got)
		}
		d.ended = true
	})
	inBubble(t, "taken in after the courier's end and delivered by the next", func(t *testing.T, d *desk) {
		d.end()
		d.take("t", "A")
		d.restart()
		time.Sleep(time.Second)
		d.want("after a restart", fmt.Sprint(d.main.got("t")), "[A]")
	})
}

func TestPauses(t *testing.T) {
	t.Parallel()
	crm, docs := newTaker("crm", 4, "crm"), newTaker("docs", 4, "docs")
	two := func(c *setup) { c.Receivers = receiver.NewSet(crm.Receiver, docs.Receiver) }
	inBubble(t, "of a receiver and of all", func(t *testing.T, d *desk) {
		check(t, d.Pause(Pause{Receiver: "crm"}))
		d.take("crm/a", "A")
		d.take("docs/a", "A")
		time.Sleep(time.Second)
		d.want("of one receiver", fmt.Sprint(crm.got(""), docs.got("")), "[] [a:A]")
		check(t, d.Pause(Pause{}))
		d.restart()
		d.take("docs/b", "A")
		must(d.Resume(Pause{Receiver: "crm"}))(t)
		time.Sleep(time.Minute)
		d.want("of all", fmt.Sprint(crm.got(""), docs.got("")), "[] [a:A]")
		if s := d.Stats(); len(s.Paused) != 1 || s.Paused[0].Since.IsZero() {
			t.Errorf("%+v", s.Paused)
		}
		known, err := d.Resume(Pause{})
		if !known || err != nil {
			t.Errorf("%v %v", known, err)
		}
		if known, err := d.Resume(Pause{}); known || err != nil {
			t.Errorf("twice: %v %v", known, err)
		}
		time.Sleep(10 * time.Millisecond)
		d.want("resumed", fmt.Sprint(crm.got(""), docs.got("")), "[a:A] [a:A b:A]")
	}, two)
	inBubble(t, "a receiver that is down is asked no more", func(t *testing.T, d *desk) {
		d.main.set("", unreachable)
		for n := range 20 {
			d.take(fmt.Sprint("t", n), "A")
		}
		time.Sleep(time.Minute)
		check(t, d.Pause(Pause{}))
		time.Sleep(time.Second)
		before := len(d.main.tried(""))
		time.Sleep(time.Minute)
		d.want("tries", fmt.Sprint(len(d.main.tried(""))-before), "0")
		d.main.set("", nil)
		must(d.Resume(Pause{}))(t)
		time.Sleep(6 * time.Second)
		d.want("delivered", fmt.Sprint(len(d.main.got(""))), "20")
	})
	inBubble(t, "what is under way finishes and nothing begins after it", func(t *testing.T, d *desk) {
		d.main.delay = time.Second
		for n := range 50 {
			d.take(fmt.Sprint("t", n), "A", "B")
		}
		time.Sleep(500 * time.Millisecond)
		check(t, d.Pause(Pause{}))
		time.Sleep(time.Minute)
		d.want("delivered", fmt.Sprint(len(d.main.got("")), len(d.main.tried(""))), "32 32")
	})
}

// An erasure waits for the delivery that is under way. A tenant with a long backlog, which is delivered without an
// outage, can be erased, too.
func TestEraseWaits(t *testing.T) {
	inBubble(t, "for a delivery", func(t *testing.T, d *desk) {
		d.main.delay = time.Second
		for n := range 100 {
			d.take("t", fmt.Sprint(n))
		}
		time.Sleep(5500 * time.Millisecond)
		began := time.Now()
		n, err := d.Erase("", "t")
		if took := time.Since(began); err != nil || n != 100 || took > 2*time.Second {
			t.Errorf("%d erased after %v: %v", n, took, err)
		}
		got := len(d.main.got("t"))
		d.take("t", "after")
		time.Sleep(3 * time.Second)
		if all := d.main.got("t"); len(all) != got+1 || all[got] != "after" || d.states("t") != "delivered" {
			t.Errorf("delivered after that: %v, %s", all[got:], d.states("t"))
		}
	})
	inBubble(t, "and spares what has come meanwhile", func(t *testing.T, d *desk) {
		d.main.delay = 5 * time.Second
		d.take("t", "A")
		time.Sleep(time.Second)
		before := d.nth("t", 1)
		erased := make(chan error, 1)
		go func() { _, err := d.Erase("", "t"); erased <- err }()
		time.Sleep(time.Second)
		d.take("t", "B")
		if err := <-erased; errorWord(err) != "newer" {
			t.Errorf("erased: %v", err)
		}
		time.Sleep(20 * time.Second)
		d.want("delivered", fmt.Sprint(d.main.got("t")), "[A B]")
		if n := d.nth("t", 2) - before; n > 30 {
			t.Errorf("it took %d numbers", n)
		}
		must(d.Erase("", "t"))(t)
	})
	inBubble(t, "and gives up", func(t *testing.T, d *desk) {
		d.main.delay, d.main.Timeout = time.Hour, 2*time.Hour
		d.take("t", "A")
		time.Sleep(time.Second)
		if n, err := d.Erase("", "t"); errorWord(err) != "busy" || n != 0 {
			t.Errorf("%d erased: %v", n, err)
		}
		if err := d.Discard(d.nth("t", 1)); errorWord(err) != "busy" {
			t.Errorf("discarded: %v", err)
		}
	})
}

// A webhook that has a place, but no room for its body, does not wait for webhooks that have their body in memory,
// but no place.
func TestBodiesDoNotWaitForPlaces(t *testing.T) {
	t.Parallel()
	one := newTaker(receiver.Main, 1)
	d := newDesk(t, inFile(t, newFile(t)), little, func(c *setup) { c.Receivers = receiver.NewSet(one.Receiver) })
	body := func(percent int) string { return strings.Repeat("x", int(d.cfg.Limits.Bodies)*percent/100) }
	release := one.hang("a")
	d.take("a", body(47))
	d.until("a is under way", func() bool { return len(one.tried("a")) == 1 })
	d.take("b", body(63)) // more than there is room for beside a: it is claimed, and read when it has its place
	d.until("b is claimed", func() bool {
		d.courier.mu.Lock()
		defer d.courier.mu.Unlock()
		return len(d.courier.leases) == 2
	})
	d.take("c", body(47)) // stored in memory
	release()
	d.idle("")
}

// The courier ends while one transaction has its last outcome, and gives a lease for another webhook.
func TestLeaseWhileItEnds(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	synctest.Test(t, func(t *testing.T) {
		h := newHeld()
		var after atomic.Pointer[func()] // is called after each transaction
		d := newDesk(t, inFile(t, path), between(intercepted{write: func(run func(failure error) error) error {
			err := h.write(run)
			if f := after.Load(); f != nil {
				(*f)()
			}
			return err
		}}))
		for n := range 10 {
			tried := len(d.main.tried("t"))
			release := d.main.hang("t")
			d.take("t", fmt.Sprint(n))
			d.untilTried("t", tried+1)
			c, ended := d.courier, make(chan struct{})
			h.hold()
			var once sync.Once
			look := func() {
				c.mu.Lock()
				granted := c.held() > 0 // u's: that of t is gone
				c.mu.Unlock()
				if granted {
					once.Do(func() {
						go func() { d.end(); close(ended) }()
						time.Sleep(10 * time.Millisecond) // it waits for what is under way
					})
				}
			}
			after.Store(&look)
			var wg sync.WaitGroup
			wg.Go(func() { d.Pause(Pause{Tenant: "other"}) }) // the writer waits with it
			time.Sleep(10 * time.Millisecond)
			release()
			time.Sleep(10 * time.Millisecond) // the outcome comes before u
			wg.Go(func() { d.send("u", fmt.Sprint(n)) })
			time.Sleep(10 * time.Millisecond)
			h.goOn()
			wg.Wait()
			<-ended
			d.restart()
		}
		d.idle("")
	})
}

// A receiver that is too slow for all webhooks that come gets them about in turn: none waits for as long as more come.
func TestNewcomersDoNotPassThoseThatWait(t *testing.T) {
	costly(t)
	t.Parallel()
	inBubble(t, "for long", func(t *testing.T, d *desk) {
		d.main.delay = time.Second
		d.places(8)
		for n := range 90 * 10 { // in 90 s; it takes 8 in a second
			d.take(fmt.Sprint("t", n), "A")
			time.Sleep(time.Second / 10)
		}
		for n := range 20 * 10 {
			if tenant := fmt.Sprint("t", n); len(d.main.tried(tenant)) == 0 {
				t.Errorf("%s waits for more than 70 s, but %d others were tried", tenant, len(d.main.tried("")))
				break
			}
		}
	})
}

// A retry is due, but its receiver gets nothing because it is down, paused, or has no place. This must not keep the
// courier awake: it would look for work as fast as it can, for as long as that lasts.
func TestNothingToAskForIsNoReasonToStayAwake(t *testing.T) {
	for name, held := range map[string]func(*courier, *target){
		"down": func(_ *courier, to *target) {
			now := time.Now()
			to.lastProbe, to.newLanesAt = now, now
			for n := range everybodyFrom {
				to.failing[webhookgate.LaneName{Tenant: fmt.Sprint(n)}] = true
			}
		},
		"paused": func(c *courier, _ *target) { c.paused = func() []Pause { return []Pause{{}} } },
		"full":   func(_ *courier, to *target) { to.inFlight = 3 * to.Concurrency },
		"bodies": func(c *courier, to *target) { to.bodies, to.inFlight = DefaultLimits.Bodies, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			c, to := bareCourier(4)
			held(c, to)
			to.nextRetry = time.Now().Add(-time.Second)
			if claims := c.planClaims(time.Now()); len(claims) > 0 {
				t.Fatalf("asks for %d claims", len(claims))
			}
			if !to.nextRetry.IsZero() {
				t.Error("looks again at once")
			}
			if !to.mayHaveLanes {
				t.Error("has forgotten that there is something to do")
			}
		})
	}
}

// Lanes whose last try failed take at most half of the places, whether they are due or probed. Otherwise the tenants
// for whom a receiver hangs would sometimes have all places, and the others wait for a whole timeout.
func TestRetriesAndProbesShareHalfOfThePlaces(t *testing.T) {
	t.Parallel()
	for _, tenants := range some(1, 9, 10, 11) {
		main := newTaker(receiver.Main, 2)
		inBubble(t, fmt.Sprint(tenants), func(t *testing.T, d *desk) {
			for n := range tenants {
				defer main.hang(fmt.Sprint("hangs", n))()
				d.take(fmt.Sprint("hangs", n), "A")
			}
			time.Sleep(time.Minute)
			for n := range 200 {
				d.take("t", fmt.Sprint(n))
				time.Sleep(500 * time.Millisecond)
				d.courier.mu.Lock()
				failed := d.courier.targets[main.Receiver].failedLanes
				d.courier.mu.Unlock()
				if failed > 1 {
					t.Fatalf("%d of 2 places", failed)
				}
			}
		}, func(c *setup) { c.Receivers = receiver.NewSet(main.Receiver) })
	}
}

// A tenant whose webhook failed once, for a reason of its own, is tried again soon, however many others are probed,
// and however few places there are.
func TestRetriesDoNotWaitForAllProbes(t *testing.T) {
	t.Parallel()
	for _, places := range some(1, 1, 2, 4) {
		for _, others := range some(1, "hang", "hang and nobody else comes", "fail") {
			most := 5 * time.Minute
			if others == "fail" {
				most = 10 * time.Second
			}
			main := newTaker(receiver.Main, places)
			inBubble(t, fmt.Sprint(places, " places, others ", others), func(t *testing.T, d *desk) {
				for n := range 12 {
					bad := fmt.Sprint("bad", n)
					if main.set(bad, status(503)); others != "fail" {
						defer main.hang(bad)()
					}
					d.take(bad, "A")
				}
				time.Sleep(3 * time.Minute)
				main.mu.Lock()
				main.delay = time.Millisecond
				main.mu.Unlock()
				main.set("ill", answers(500, 200))
				d.take("ill", "A")
				began := time.Now()
				for n := 0; len(main.got("ill")) == 0; n++ {
					if time.Since(began) > most {
						t.Fatal("not delivered within", most)
					}
					if others != "hang and nobody else comes" {
						d.take("well", fmt.Sprint(n))
					}
					time.Sleep(time.Second / 2)
				}
			}, func(c *setup) { c.Receivers = receiver.NewSet(main.Receiver) })
		}
	}
}

// What was accepted in an outage of the database that lasts longer than its lease is not delivered again by the
// process that knows it.
func TestAcceptedInAnOutage(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	// A file whose leases end by themselves, as in a database that replicas share.
	shared := intercepted{shared: true, write: failsWhile(&away), asks: func(s *statement) error {
		if s.name == "numbers_behind" { // a file has no sequence
			return errLeftOut
		}
		return nil
	}}
	inBubble(t, "a file", func(t *testing.T, d *desk) {
		d.main.delay = time.Second
		var want []string
		for n := range 20 {
			tenant := fmt.Sprint("t", n)
			d.take(tenant, "A", "B")
			want = append(want, tenant+":A", tenant+":B")
		}
		away.Store(true)
		time.Sleep(2 * DefaultLeaseTime)
		d.want("accepted in the outage", fmt.Sprint(len(d.main.got(""))), "20")
		away.Store(false)
		time.Sleep(2 * DefaultLeaseTime)
		got := d.main.got("")
		slices.Sort(got)
		slices.Sort(want)
		d.want("accepted", fmt.Sprint(got), fmt.Sprint(want))
	}, between(shared))
}
