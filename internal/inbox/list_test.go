package inbox

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"usher/internal/inbox/engine"
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

// Somebody who looks goes away, or usher ends: then nothing more is read for them. Else whoever opens and closes one
// expensive page after the other takes the database from the others.
func TestReadEndsWithItsReader(t *testing.T) {
	t.Parallel()
	reads := map[string]func(context.Context, *Inbox) error{
		"a list":              func(ctx context.Context, i *Inbox) error { return i.Each(ctx, Filter{}, true, nil) },
		"one":                 func(ctx context.Context, i *Inbox) error { return second(i.Show(ctx, 1)) },
		"tenants":             func(ctx context.Context, i *Inbox) error { return second(i.Tenants(ctx, TenantFilter{})) },
		"actions":             func(ctx context.Context, i *Inbox) error { return second(i.Actions(ctx, 0, 10)) },
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
		slow := []string{"tenants", "list", "list_tenant", "previous"}
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
