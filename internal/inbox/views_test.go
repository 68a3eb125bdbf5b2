package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/webhookgate"
)

// The bytes of webhooks that wait or are parked are bounded. A webhook that is superseded, discarded, erased or
// delivered no longer counts.
func TestMaxBytes(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open, func(c *setup) { c.MaxBytes = 10_000 })
		big := func(c string) string { return strings.Repeat(c, 3000) } // with what comes with it, two of them fit
		used := func(what string, webhooks int) {
			t.Helper()
			d.until(fmt.Sprintf("%s: %d bytes used for %d webhooks", what, d.Stats().Used, webhooks), func() bool {
				s := d.Stats()
				return s.Used >= int64(webhooks*3000) && s.Used < int64(webhooks*4000+1) && s.Limit == 10_000
			})
		}
		d.main.set("", status(503)) // so that each is probed once a second, however long the test takes
		d.main.set("p", status(400))
		d.take("w", big("A"))
		d.take("p", big("A"))
		d.becomes("p", "parked")
		used("one waits, one is parked", 2)
		d.want("no room", d.send("x", big("A")), "full")
		d.want("a copy is answered", d.send("w", big("A")), "=")
		d.restart()
		used("after a restart", 2)
		d.want("no room after it", d.send("x", big("A")), "full")
		must(d.Erase("", "p"))(t)
		used("erased", 1)
		d.take("x", big("A"))
		d.want("full again", d.send("y", big("A")), "full")
		d.until("discarded", func() bool { return d.Discard(d.nth("x", 1)) == nil })
		used("discarded", 1)
		d.main.set("", nil)
		d.idle("")
		used("delivered", 0)
		d.main.set("", status(503))
		// A count that overlaps a webhook's transaction may count it twice, so there may be no room for a moment.
		d.until("room for one", func() bool { return d.send("w", big("B")) == "+" })
		d.until("room for two", func() bool { return d.send("x", big("B")) == "+" })
		d.until("no room to send again", func() bool { return errorWord(d.Redeliver(d.nth("x", 1), true)) == "full" })
		d.main.set("", nil)
		d.idle("")
		used("in the end", 0)
	})
}

// Each receiver has a room of its own: one that takes nothing does not fill that of others. So it is over all replicas,
// for whatever puts a webhook back into a lane, and after a restart.
func TestMaxBytesOfEachReceiver(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		main, beta := newTaker(receiver.Main, 32), newTaker("beta", 32, "b")
		several := func(c *setup) { c.MaxBytes, c.Receivers = 20_000, receiver.NewSet(main.Receiver, beta.Receiver) }
		d := newDesk(t, open, several)
		body := func(n int) string { return fmt.Sprintf("%04d%s", n, strings.Repeat("x", 1500)) }
		d.take("b/old", body(0))
		d.idle("")
		beta.set("", status(503))
		n := 0 // goes on after a refusal: until the next count, what is used may seem too much
		d.until("beta's room is full", func() bool {
			for ; d.send(fmt.Sprint("b/", n), body(n)) == "+"; n++ {
			}
			st := d.Stats()
			return st.NoRoom["beta"] > 0 && st.Receivers["beta"].Used > 16_000
		})
		err := d.Redeliver(d.nth("old", 1), true)
		if !errors.Is(err, webhookgate.ErrFull) || !strings.Contains(err.Error(), `for the receiver "beta"`) {
			t.Errorf("one that is sent again: %v", err)
		}
		d.take("alpha", body(1), body(2)) // others' are taken in, and delivered
		d.idle("alpha")
		d.restart()
		d.want("after a restart", d.send("b/more", body(1)), "full")
		d.take("alpha", body(3))
		if d.engine.Shared() {
			replica := newDesk(t, open, several)
			replica.want("at another replica", replica.send("b/more", body(1)), "full")
			replica.take("alpha", body(4))
			replica.idle("alpha")
		}
		beta.set("", nil)
		d.until("all is delivered, and there is room", func() bool {
			st := d.Stats()
			return st.Used == 0 && len(st.NoRoom) == 0 && d.send("b/more", body(1)) != "full"
		})
		d.idle("")
	})
}

// Finished webhooks are kept up to a number, an age and a size. A tenant's last snapshot, and what dedup remembers,
// stay for ever.
func TestRetention(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		limits := DefaultLimits
		limits.Finished, limits.FinishedBytes, limits.FinishedAge = 20, 20_000, 24*time.Hour
		d := newDesk(t, open, func(c *setup) { c.Limits = limits })
		d.main.set("parked", status(400))
		d.take("parked", "A")
		d.take("first", `{"payload":{"change":{"features":[{"code":"users"}]}}}`)
		d.idle("")
		for n := range 50 {
			d.take("t", fmt.Sprint(n))
		}
		d.idle("")
		d.until("the last 20 are left", func() bool { return len(d.list("t"))+len(d.list("first")) == 20 })
		d.want("the last of them", fmt.Sprint(d.main.got("t")[49]), "49")
		d.want("parked stays", d.states("parked"), "parked")
		d.want("dedup remembers", d.send("first", `{"payload":{"change":{"features":[{"code":"users"}]}}}`), "=")
		s := must(d.Snapshots(t.Context(), "first"))(t)
		if len(s) != 1 || !strings.Contains(string(s[0].Features), "users") {
			t.Errorf("its snapshot: %+v", s)
		}
		if err := d.Redeliver(d.nth("t", 1), false); errorWord(err) != "overwrite" {
			t.Errorf("sent again: %v", err)
		}
		for n := range 10 {
			d.take("large", strings.Repeat(fmt.Sprint(n), 4000))
		}
		d.idle("")
		d.until("no more than 20,000 bytes", func() bool { return len(d.list("large")) <= 5 && len(d.list("t")) == 0 })
		if len(d.list("large")) < 4 {
			t.Errorf("only %d are left", len(d.list("large")))
		}
		d.ahead.Add(int64(25 * time.Hour))
		d.restart() // ages are looked at each minute, and at the start
		d.until("none after its time", func() bool { return len(d.list("large")) == 0 })
		d.want("parked stays for longer", d.states("parked"), "parked")
	})
}

func TestViews(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		crm, docs := newTaker("crm", 4, "crm"), newTaker("docs", 4, "docs")
		d := newDesk(t, open, func(c *setup) { c.Receivers = receiver.NewSet(crm.Receiver, docs.Receiver) })
		docs.set("ill", status(500))
		crm.set("down", status(503))
		crm.set("bad", status(422))
		d.take("crm/a", `{"n":1,"who":"Zoë"}`, `{"n":2}`)
		d.take("docs/a", `{"n":3}`)
		d.idle("a")
		d.take("crm/bad", `{"n":4}`)
		d.take("docs/ill", `{"n":5}`, `{"n":6}`)
		d.take("crm/down", `{"n":7}`)
		d.until("tried", func() bool { return len(d.HeldUp()) == 2 && d.states("bad") == "parked" })

		empty, crmCode := "", "crm"
		for _, tt := range []struct {
			f    Filter
			want string
		}{
			{Filter{}, "7 6 5 4 3 2 1"},
			{Filter{Limit: 2}, "7 6"},
			{Filter{State: state.Delivered}, "3 2 1"},
			{Filter{State: state.Parked}, "4"},
			{Filter{State: state.Waiting, Limit: 1}, "7"},
			{Filter{Tenant: "a"}, "3 2 1"},
			{Filter{Tenant: "a", Platform: &crmCode}, "2 1"},
			{Filter{Tenant: "a", Platform: &empty}, ""},
			{Filter{Tenant: "A"}, ""},
			{Filter{Since: time.Now().Add(time.Hour)}, ""},
			{Filter{Until: time.Now().Add(-time.Hour)}, ""},
			{Filter{Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour), State: state.Parked}, "4"},
		} {
			var got []string
			for _, e := range must(d.List(context.Background(), tt.f))(t) {
				got = append(got, d.place(e.ID))
			}
			d.want(fmt.Sprintf("%+v", tt.f), strings.Join(got, " "), tt.want)
		}
		// Page by page nothing is left out, and nothing comes twice.
		var all []string
		for f := (Filter{Limit: 2}); ; {
			page := must(d.List(context.Background(), f))(t)
			for _, e := range page {
				all = append(all, d.place(e.ID))
			}
			if len(page) < 2 {
				break
			}
			f.Before = page[len(page)-1].ID
		}
		d.want("pages", strings.Join(all, " "), "7 6 5 4 3 2 1")

		shown := func(tenant string, n int) *lane.Webhook { return must(d.Show(t.Context(), d.nth(tenant, n)))(t) }
		item := shown("a", 2)
		if string(item.Body) != `{"n":2}` || item.Header.Get("X-Tenant") != "a" {
			t.Errorf("shown: %+v", item)
		}
		if item.Previous == nil || string(item.Previous.Body) != `{"n":1,"who":"Zoë"}` {
			t.Errorf("before it: %+v", item.Previous)
		}
		if item := shown("a", 3); item.Previous != nil {
			t.Errorf("of another platform: %+v", item.Previous)
		}
		if item := shown("ill", 2); item.Previous != nil || d.place(item.Before) != "5" {
			t.Errorf("behind one that waits: %+v", item)
		}
		if _, err := d.Show(context.Background(), 1<<40); err != ErrNotFound {
			t.Errorf("what is not there: %v", err)
		}
		for _, h := range d.HeldUp() {
			if h.Down || h.Tenant == "ill" && (h.Behind != 1 || h.Answer() != "500: said so") {
				t.Errorf("held up: %+v", h)
			}
		}
		d.until("counted", func() bool {
			s := d.Stats()
			crm, docs := s.Receivers["crm"], s.Receivers["docs"]
			return s.Pending == 3 && s.Parked == 1 && s.NotAccepted == 2 && s.Tenants == 5 &&
				crm.Pending == 1 && docs.Pending == 2 && crm.Parked == 1
		})
		platforms := func(tenant string) string {
			all := must(d.Platforms(t.Context(), tenant))(t)
			slices.Sort(all)
			return strings.Join(all, " ")
		}
		d.want("platforms", platforms("a")+", "+platforms("ill")+", "+platforms("nobody"), "crm docs, docs, ")
	})
}

// place returns which one of the arrivals a webhook is.
func (d *desk) place(id int64) string {
	for n, e := range d.list("") {
		if e.ID == id {
			return fmt.Sprint(n + 1)
		}
	}
	return "none"
}

// A code may be anything: long, with zero bytes, not even UTF-8. It is returned as it was, on any platform.
func TestOddCodes(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		codes := []string{
			"plain", "é", "e\u0301", "a b", "%2F", "'; DROP", `\`, "\u202ertl",
			strings.Repeat("long", 63), strings.Repeat("l", 255),
		}
		for n, code := range codes {
			for _, platform := range []string{"", code} {
				const body = `{"payload":{"tenant":{"name":"N"},"change":{"features":[{"code":"f%d"}]}}}`
				w := d.hook("", fmt.Sprintf(body, n))
				w.Lane.Tenant, w.Lane.Platform = code, platform
				w.Receiver = d.cfg.Receivers.For(platform)
				if got := d.sendHook(w); got != "+" {
					t.Fatalf("%.20q: %s", code, got)
				}
			}
		}
		d.until("all delivered", func() bool {
			return len(d.main.tried("")) == 2*len(codes) && d.Stats().Pending == 0
		})
		for n, code := range codes {
			s := must(d.Snapshots(t.Context(), code))(t)
			if len(s) != 2 {
				t.Fatalf("%.20q: %d snapshots", code, len(s))
			}
			for _, one := range s {
				features, platform := string(one.Features), one.Platform == "" || one.Platform == code
				if one.Tenant != code || !platform || !strings.Contains(features, fmt.Sprintf("f%d", n)) {
					t.Errorf("%.20q: %.100q %.100q %s", code, one.Tenant, one.Platform, features)
				}
			}
			if all := d.list(code); len(all) != 2 || all[0].State != state.Delivered {
				t.Errorf("%.20q: %d listed", code, len(all))
			}
			check(t, d.Pause(Pause{Platform: code, Tenant: code}))
			if known := must(d.Resume(Pause{Platform: code, Tenant: code}))(t); !known {
				t.Errorf("%.20q: was not paused", code)
			}
			if n := must(d.Erase(code, code))(t); n != 1 {
				t.Errorf("%.20q: %d erased", code, n)
			}
		}
		// The gate takes none of these in, so nobody knows them, and asking does no harm.
		for _, code := range []string{"nul\x00", "bad\xff", strings.Repeat("l", 256)} {
			if all, err := d.Snapshots(t.Context(), code); err != nil || len(all) != 0 {
				t.Errorf("%.20q: %d snapshots, %v", code, len(all), err)
			}
			if all, err := d.List(context.Background(), Filter{Tenant: code}); err != nil || len(all) != 0 {
				t.Errorf("%.20q: %d listed, %v", code, len(all), err)
			}
		}
	})
}

// Each try is the same request: the body's bytes, its headers, and one webhook-id.
func TestEachTryIsTheSame(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		told := make(chan string, 10)
		d := newDesk(t, open, func(c *setup) {
			c.Delivered = func(receiver string, after time.Duration) { told <- fmt.Sprint(receiver, after > 0) }
		})
		d.main.set("t", answers(500, 0, 503, 200))
		w := d.hook("t", "a\x00b\xff"+strings.Repeat("c", 200_000))
		w.Header["X-Many"] = []string{"1", "", "2"}
		d.sendHook(w)
		d.restart()
		d.idle("")
		tries := d.main.tried("t")
		if len(tries) < 4 {
			t.Errorf("%d tries", len(tries))
		}
		d.want("told", <-told, "maintrue")
		d.shut()
		d.want("told once", fmt.Sprint(len(told)), "0")
		for _, try := range tries {
			many := slices.Equal(try.header["X-Many"], []string{"1", "", "2"})
			same := try.body == string(w.Body) && try.id == w.ID && many
			if !same || try.header.Get("webhook-timestamp") == "" {
				t.Errorf("%s %v", try.id, try.header)
			}
		}
	})
}

// Webhooks can be listed as soon as the inbox is open, also by an usher that takes nothing in and delivers nothing.
func TestSeenFromTheStart(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.take("crm/t", "A")
		d.idle("")
		d.shut()
		for _, set := range []*receiver.Set{d.cfg.Receivers, nil} {
			cfg := d.cfg.Config
			cfg.Receivers = set
			i := New(open(), cfg)
			all, err := i.List(context.Background(), Filter{})
			if err != nil || len(all) != 1 || all[0].Platform != "crm" {
				t.Errorf("%d receivers: %+v %v", len(set.All()), all, err)
			}
			if s, err := i.Snapshots(t.Context(), "t"); err != nil || len(s) != 1 {
				t.Errorf("%d receivers: %+v %v", len(set.All()), s, err)
			}
			if s := i.Stats(); s.Old || i.Err() != nil || !i.Ready() {
				t.Errorf("%d receivers: %+v %v", len(set.All()), s, i.Err())
			}
			check(t, i.Close())
		}
	})
}

type rowFunc func(into ...any) error

func (f rowFunc) Scan(into ...any) error { return f(into...) }

// A list of large webhooks reads few of them at a time, each once, the newest first.
func TestEachHoldsLittle(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		var mu sync.Mutex
		read := make(map[*interceptedTx]int64) // bytes of contents, by transaction
		d := newDesk(t, open, little, between(intercepted{row: func(s *statement, _ int, r engine.Row) engine.Row {
			return rowFunc(func(into ...any) error {
				err := r.Scan(into...)
				mu.Lock()
				defer mu.Unlock()
				for _, v := range into {
					if b, ok := v.(*[]byte); ok && !s.tx.writes {
						read[s.tx] += int64(len(*b))
					}
				}
				return err
			})
		}}))
		const count = 24
		for n := range count {
			tenant, feature := fmt.Sprint("tenant-", n%4), strings.Repeat(fmt.Sprint(n%10), 1<<16)
			d.take(tenant, snapshotOf(tenant, feature))
		}
		d.idle("")
		mu.Lock()
		clear(read)
		mu.Unlock()
		var seen []int64
		err := d.Each(context.Background(), Filter{}, true, func(w *lane.Webhook) bool {
			seen = append(seen, w.ID)
			return true
		})
		newestFirst := slices.IsSortedFunc(seen, func(a, b int64) int { return cmp.Compare(b, a) })
		if err != nil || len(seen) != count || !newestFirst || len(slices.Compact(seen)) != count {
			t.Errorf("%v, %v", seen, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if most := slices.Max(slices.Collect(maps.Values(read))); most == 0 || most > 2*d.cfg.Limits.PageBytes {
			t.Errorf("%d bytes were read at once", most)
		}
	})
}
