package inbox

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane"
)

// A list has the same of each webhook as Show: its content, and its tenant's accepted snapshot before it. A list of
// several pages has each webhook once.
func TestItems(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open, func(c *setup) { c.Limits.PageBytes = 50 })
		d.main.set("b", status(422))
		const each = 12
		for n := range each {
			for _, tenant := range []string{"crm/a", "crm/b"} {
				d.take(tenant, fmt.Sprint("body ", n))
			}
		}
		d.idle("")
		all, err := d.items(Filter{})
		if err != nil || len(all) != 2*each {
			t.Fatalf("%d, %v", len(all), err)
		}
		for i, item := range all {
			one, err := d.Show(context.Background(), item.ID)
			if err != nil || !reflect.DeepEqual(one, item) {
				t.Fatalf("%d: %v\n%+v\n%+v", item.ID, err, one, item)
			}
			if i > 0 && item.ID >= all[i-1].ID {
				t.Errorf("%d after %d", item.ID, all[i-1].ID)
			}
			if taken := item.Previous != nil; taken != (item.Tenant == "a" && string(item.Body) != "body 0") {
				t.Errorf("%s %s: %+v", item.Tenant, item.Body, item.Previous)
			}
		}
		few, err := d.items(Filter{Tenant: "a", Limit: 3})
		body := func(n int) string { return fmt.Sprint("body ", each-n) }
		if err != nil || len(few) != 3 || string(few[0].Body) != body(1) || string(few[0].Previous.Body) != body(2) {
			t.Errorf("%+v %v", few, err)
		}
	})
}

func TestTenants(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.main.set("parks", status(422))
		d.main.set("waits", status(500))
		for _, tenant := range []string{"eu/zeta", "eu/Acme", "us/Acme", "us/parks", "eu/waits"} {
			d.hears(tenant, "a")
		}
		d.until("tried", func() bool {
			s := d.Stats()
			return s.Parked == 1 && s.Pending == 1 && len(d.HeldUp()) == 1
		})
		list := func(f TenantFilter) string {
			t.Helper()
			all, err := d.Tenants(context.Background(), f)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, tenant := range all {
				name := ShowTenant(tenant.Platform, tenant.Tenant)
				if tenant.Parked > 0 {
					name += " parked"
				}
				if tenant.HeldUp {
					name += " held up"
				}
				names = append(names, name)
			}
			return strings.Join(names, ", ")
		}
		for _, tc := range []struct {
			filter TenantFilter
			want   string
		}{
			{TenantFilter{}, "eu/Acme, us/Acme, us/parks parked, eu/waits held up, eu/zeta"},
			{TenantFilter{Search: "aCM"}, "eu/Acme, us/Acme"},
			{TenantFilter{Search: "us/"}, "us/Acme, us/parks parked"},
			{TenantFilter{Troubled: true}, "us/parks parked, eu/waits held up"},
			{TenantFilter{Limit: 1}, "eu/Acme"},
			{TenantFilter{After: &Tenant{Platform: "eu", Tenant: "Acme"}, Limit: 2}, "us/Acme, us/parks parked"},
			{TenantFilter{Search: "nobody"}, ""},
		} {
			if got := list(tc.filter); got != tc.want {
				t.Errorf("%+v: %s, want %s", tc.filter, got, tc.want)
			}
		}
	})
}

// Each query for tenants goes through all of them, so there are few, however many tenants there are, also if none is
// found.
func TestFindsTenantsWithFewQueries(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		var queries atomic.Int64
		d := newDesk(t, open, between(intercepted{asks: func(s *statement) error {
			queries.Add(int64(number(s.name == "tenants")))
			return nil
		}}))
		const tenants = 1700 // each query asks for twice as many as the one before, from 500 on
		check(t, d.Pause(Pause{}))
		crowd(100, tenants, func(n int) { d.take(fmt.Sprint("t", n), "A") })
		for search, want := range map[string]int{"nobody": 0, "t1699": 1, "t": tenants} {
			queries.Store(0)
			all := must(d.Tenants(context.Background(), TenantFilter{Search: search}))(t)
			if len(all) != want || queries.Load() > 3 {
				t.Errorf("%s: %d found with %d queries", search, len(all), queries.Load())
			}
		}
	})
}

func historyOfAll(
	ctx context.Context, i *Inbox, since, until time.Time, troubled bool,
) (all []*History, begins time.Time, err error) {
	begins, err = i.History(ctx, since, until, troubled, func(h *History) error { all = append(all, h); return nil })
	return all, begins, err
}

// Who got webhooks in some time, and how does each stand now? Tenants without features that can be read are counted,
// too.
func TestHistory(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		readable := func(users int) string {
			return snapshotOf("t", fmt.Sprint("users=", users))
		}
		d.main.set("bad", status(422))
		d.main.set("ill", status(500))
		d.take("well", readable(1), readable(2))
		d.take("crm/bad", readable(1))
		d.take("dark", `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"t"},"change":{}}}`)
		d.until("delivered and parked", func() bool {
			return d.states("well") == "delivered delivered" && d.states("dark") == "delivered" && d.Stats().Parked == 1
		})
		time.Sleep(10 * time.Millisecond)
		middle := d.Now()
		time.Sleep(10 * time.Millisecond)
		d.take("ill", readable(1))
		d.until("failed", func() bool { return len(d.HeldUp()) == 1 })
		history := func(since, until time.Time, troubled bool) string {
			all, _, err := historyOfAll(context.Background(), d.Inbox, since, until, troubled)
			check(t, err)
			var lines []string
			for _, h := range all {
				if h.Last.IsZero() {
					t.Errorf("no last webhook: %+v", h)
				}
				standing := strings.Join(h.Standing(), "+")
				name := ShowTenant(h.Platform, h.Tenant.Tenant)
				lines = append(lines, fmt.Sprintf("%s %d %s", name, h.Webhooks, standing))
			}
			return strings.Join(lines, ", ")
		}
		bad, dark, ill := "crm/bad 1 parked", "/dark 1 features unknown", "/ill 1 held up+waiting"
		well := "/well 2 all right"
		list := func(lines ...string) string { return strings.Join(lines, ", ") }
		d.want("all", history(time.Time{}, time.Time{}, false), list(bad, dark, ill, well))
		d.want("troubled", history(time.Time{}, time.Time{}, true), list(bad, dark, ill))
		d.want("first half", history(time.Time{}, middle, false), list(bad, dark, well))
		d.want("second half", history(middle, time.Time{}, false), "/ill 1 held up+waiting")
		d.want("in the future", history(middle.Add(time.Hour), middle.Add(2*time.Hour), false), "")
		_, begins, err := historyOfAll(t.Context(), d.Inbox, middle.Add(-time.Hour), time.Time{}, false)
		if err != nil || begins.IsZero() || begins.After(middle) {
			t.Errorf("it begins %s, %v", begins, err)
		}
		if _, begins, _ := historyOfAll(context.Background(), d.Inbox, middle, time.Time{}, false); !begins.IsZero() {
			t.Errorf("it begins %s", begins)
		}
		if s := d.Stats(); s.Tenants != 4 || s.Unknown != 1 {
			t.Errorf("%+v", s)
		}
		all := must(d.Unknown(t.Context(), 10))(t)
		if len(all) != 1 || all[0].Tenant != "dark" || all[0].Latest.IsZero() {
			t.Errorf("%+v", all)
		}
	})
}

// A tenant whose id comes under another code of its platform has perhaps been renamed, until one of the two is erased.
func TestRenamed(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		known := func(id, users string) string {
			return `{"type":"TenantProvisioningChange","payload":{"tenant":{"id":` + id + `,"code":"t"},"change":{"features":` +
				`[{"code":"users","quantity":` + users + `}]}}}`
		}
		renamed := func() string {
			d.idle("")
			return fmt.Sprint(d.Stats().Renamed)
		}
		long := `"` + strings.Repeat("x", 256) + `"`
		d.take("crm/acme", known("132", "1"), known("132", "2"))
		d.take("docs/acme", known("132", "1"))
		for _, id := range []string{"null", `""`, long, `"a\u0000"`, "{}"} { // none that can be compared
			d.take("crm/none", known(id, "1"))
			d.take("crm/neither", known(id, "1"))
		}
		d.want("nobody", renamed(), "[]")
		d.take("crm/renamed", known(`"132"`, "3"))
		d.want("one", renamed(), "[{crm acme renamed}]")
		d.take("crm/third", known("132", "3"))
		d.want("again", renamed(), "[{crm acme third} {crm renamed third}]")
		d.take("crm/acme", known("132", "4"))
		d.want("and back", renamed(), "[{crm renamed acme} {crm third acme}]")
		must(d.Erase("crm", "third"))(t)
		must(d.Erase("crm", "acme"))(t)
		d.want("erased", renamed(), "[]")
	})
}

// A long history is handed over page by page, in one order with what was missed in memory alone: no page is read
// before the one before it is gone.
func TestHistoryPages(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		var full atomic.Bool
		var read, handed atomic.Int64
		d := newDesk(t, open, between(intercepted{write: failsWhile(&full), row: countTenants(&read)}))
		const stored = 2*pageSize + 1
		check(t, d.Pause(Pause{}))
		crowd(100, stored, func(n int) { d.take(fmt.Sprintf("t%04d", n), "A") })
		full.Store(true)
		missed := []string{"a", "t0007", "t0700a", "z"}
		for _, tenant := range missed {
			d.send(tenant, "missed")
		}
		var all []string
		read.Store(0)
		_, err := d.History(t.Context(), time.Time{}, time.Time{}, false, func(h *History) error {
			if n := read.Load() - handed.Add(1); n > pageSize+10 {
				t.Errorf("%d are read and not handed over", n)
			}
			if all = append(all, h.Tenant.Tenant); slices.Contains(missed, h.Tenant.Tenant) == h.Missed.IsZero() {
				t.Errorf("%s: %v", h.Tenant.Tenant, h.Standing())
			}
			return nil
		})
		if check(t, err); len(all) != stored+3 || !slices.IsSorted(all) {
			t.Errorf("%d, sorted: %v", len(all), slices.IsSorted(all))
		}
		gone := errors.New("the reader has gone")
		read.Store(0)
		leaves := func(*History) error { return gone }
		_, err = d.History(t.Context(), time.Time{}, time.Time{}, false, leaves)
		if !errors.Is(err, gone) || read.Load() > pageSize {
			t.Errorf("%v, %d are read for nobody", err, read.Load())
		}
		full.Store(false)
	})
}

// Somebody who looks goes away, or usher ends: then nothing more is read for them. Else whoever opens and closes one
// expensive page after the other takes the database from the others.
func TestReadEndsWithItsReader(t *testing.T) {
	t.Parallel()
	reads := map[string]func(context.Context, *Inbox) error{
		"a search": func(ctx context.Context, i *Inbox) error { return second(i.List(ctx, Filter{Search: "x"})) },
		"a list":   func(ctx context.Context, i *Inbox) error { return i.Each(ctx, Filter{}, true, nil) },
		"one":      func(ctx context.Context, i *Inbox) error { return second(i.Show(ctx, 1)) },
		"tenants":  func(ctx context.Context, i *Inbox) error { return second(i.Tenants(ctx, TenantFilter{})) },
		"a history": func(ctx context.Context, i *Inbox) error {
			_, _, err := historyOfAll(ctx, i, time.Time{}, time.Time{}, false)
			return err
		},
		"actions": func(ctx context.Context, i *Inbox) error { return second(i.Actions(ctx, 0, 10)) },
		"a tenant's missed set": func(ctx context.Context, i *Inbox) error {
			return second(i.MissedOf(ctx, "", "t"))
		},
		"a tenant's platform": func(ctx context.Context, i *Inbox) error { return second(i.Platforms(ctx, "t")) },
		"snapshots": func(ctx context.Context, i *Inbox) error {
			return second(i.Snapshots(ctx, "t"))
		},
	}
	for what, end := range map[string]func(gone func(), i *Inbox){
		"the reader is gone": func(gone func(), _ *Inbox) { gone() },
		"usher ends":         func(_ func(), i *Inbox) { i.stop() },
	} {
		t.Run(what, func(t *testing.T) {
			onFile(t, func(t *testing.T, open func() engine.Engine) {
				var silent atomic.Bool
				d := newDesk(t, open, between(unanswered(&silent)))
				silent.Store(true)
				ctx, gone := context.WithCancel(t.Context())
				ended := make(map[string]chan error)
				for name, read := range reads {
					reply := make(chan error, 1)
					ended[name] = reply
					go func() { reply <- read(ctx, d.Inbox) }()
				}
				synctest.Wait()
				end(gone, d.Inbox)
				synctest.Wait()
				for name, ended := range ended {
					select {
					case err := <-ended:
						if err == nil {
							t.Errorf("%s: it was cut off, and reports no error", name)
						}
					default:
						t.Errorf("%s goes on", name)
						<-ended
					}
				}
				silent.Store(false)
			})
		})
	}
}

// However many people look at what takes long, programs read what they need: what tenants may use, pauses, webhooks
// to deliver, figures. Those who wait for others stop when they go away, and the rest see everything in the end.
func TestPeopleLeaveReadersToPrograms(t *testing.T) {
	onBothEngines(t, func(t *testing.T, open func() engine.Engine) {
		slow := []string{"tenant_history", "tenants", "list", "list_tenant", "previous"}
		var armed atomic.Bool
		release, stuck := make(chan struct{}), make(chan struct{}, 100)
		d := newDesk(t, open, between(intercepted{asks: func(s *statement) error {
			if armed.Load() && slices.Contains(slow, s.name) {
				stuck <- struct{}{}
				<-release
			}
			return nil
		}}))
		d.take("t", "A")
		d.idle("t")
		stored := d.list("t")[0]
		looks := []func(ctx context.Context) error{
			func(ctx context.Context) error {
				_, _, err := historyOfAll(ctx, d.Inbox, time.Time{}, time.Time{}, true)
				return err
			},
			func(ctx context.Context) error { return second(d.Tenants(ctx, TenantFilter{Search: "t"})) },
			func(ctx context.Context) error { return second(d.List(ctx, Filter{})) },
			func(ctx context.Context) error { return second(d.List(ctx, Filter{Tenant: "t"})) },
			func(ctx context.Context) error { return second(d.Show(ctx, stored.ID)) },
		}
		armed.Store(true)
		leave := sync.OnceFunc(func() { close(release) })
		defer leave()
		// The first ones get a connection, and those after them wait.
		staying, going := make(chan error, 100), make(chan error, 100)
		look := func(ctx context.Context, ended chan error) {
			for _, f := range looks {
				go func() { ended <- f(ctx) }()
			}
		}
		look(t.Context(), staying)
		for range engine.MaxReaders / 2 {
			<-stuck
		}
		ctx, gone := context.WithCancel(t.Context())
		look(ctx, going)
		for range 10 {
			check(t, second(d.Snapshots(t.Context(), "t")))
			check(t, d.Pause(Pause{}))
			must(d.Resume(Pause{}))(t)
			check(t, d.loadContent(t.Context(), new(*stored)))
			check(t, d.recount(t.Context()))
		}
		gone()
		for range looks {
			if <-going == nil {
				t.Error("somebody is gone, and is answered")
			}
		}
		if len(stuck) > 0 {
			t.Error("people have more than half of the connections")
		}
		leave()
		for range looks {
			check(t, <-staying)
		}
	})
}

// A long list is cut off between two of its pages, too.
func TestListEndsMidway(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open, func(c *setup) { c.Limits.PageBytes = 1 })
		d.take("t", "A", "B", "C")
		d.idle("t")
		for _, withContent := range []bool{false, true} {
			ctx, gone := context.WithCancel(t.Context())
			read := 0
			err := d.Each(ctx, Filter{Search: "t"}, withContent, func(*lane.Webhook) bool {
				read++
				gone()
				return true
			})
			if read != 1 || !errors.Is(err, context.Canceled) {
				t.Errorf("with content %v: %d were read, %v", withContent, read, err)
			}
		}
	})
}
