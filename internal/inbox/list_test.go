package inbox

import (
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"usher/internal/inbox/engine"
)

// A list has the same of each webhook as Show: its content, and its tenant's accepted snapshot before it. A list of several
// pages has each webhook once.
func TestItems(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		d := newDesk(t, open)
		d.main.set("b", status(422))
		for n := range 40 {
			for _, tenant := range []string{"crm/a", "crm/b"} {
				d.take(tenant, fmt.Sprint("body ", n))
			}
		}
		d.idle("")
		all, err := d.items(Filter{})
		if err != nil || len(all) != 80 {
			t.Fatalf("%d, %v", len(all), err)
		}
		for i, item := range all {
			one, err := d.Show(item.ID)
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
		if err != nil || len(few) != 3 || string(few[0].Body) != "body 39" || string(few[0].Previous.Body) != "body 38" {
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
			d.take(tenant, "A")
		}
		d.until("tried", func() bool {
			s := d.Stats()
			return s.Parked == 1 && s.Pending == 1 && len(d.HeldUp()) == 1
		})
		list := func(f TenantFilter) string {
			t.Helper()
			all, err := d.Tenants(f)
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

// Each query for tenants goes through all of them, so there are few, however many tenants there are, also if none is found.
func TestFindsTenantsWithFewQueries(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		var queries atomic.Int64
		d := newDesk(t, func() engine.Engine {
			return &heard{open(), func(statement string) { queries.Add(int64(number(statement == "tenants"))) }}
		})
		var file strings.Builder
		for n := range 4000 {
			fmt.Fprintf(&file, `{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"t%d"},"change":{}}}`+"\n", n)
		}
		must2(d.Import(t.Context(), strings.NewReader(file.String()), ImportOptions{}))(t)
		for search, want := range map[string]int{"nobody": 0, "t3999": 1, "t": 4000} {
			queries.Store(0)
			all := must2(d.Tenants(TenantFilter{Search: search}))(t)
			if len(all) != want || queries.Load() > 4 {
				t.Errorf("%s: %d found with %d queries", search, len(all), queries.Load())
			}
		}
	})
}
