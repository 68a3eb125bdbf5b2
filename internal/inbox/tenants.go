package inbox

import (
	"cmp"
	"context"
	"strings"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
)

// A Tenant is a tenant that the inbox knows.
type Tenant struct {
	Platform string    `json:"platform"`
	Tenant   string    `json:"tenant"`
	Name     string    `json:"name,omitempty"`  // in its last snapshot
	Latest   time.Time `json:"latest,omitzero"` // when its last snapshot was taken in
	Waiting  int       `json:"waiting"`
	Parked   int       `json:"parked"`
	Invalid  int       `json:"invalid"` // those that nobody has dealt with
	HeldUp   bool      `json:"held_up"` // the last try of its first waiting webhook failed
	Paused   bool      `json:"paused"`
	Until    time.Time `json:"paused_until,omitzero"` // when its pause ends by itself
	Unknown  bool      `json:"unknown"`               // the features in its last snapshot can't be read
}

// TenantFilter selects tenants; empty fields select all.
type TenantFilter struct {
	Search   string  // text, in upper or lower case, of the code, the platform's code or the name
	Troubled bool    // only tenants with webhooks that are held up, parked or invalid
	Unknown  bool    // with Troubled: also tenants whose features can't be read
	After    *Tenant // only tenants after this one, to continue a former list
	Limit    int
}

func (f *TenantFilter) match(t *Tenant) bool {
	search := strings.ToLower(f.Search)
	found := func(in string) bool { return strings.Contains(strings.ToLower(in), search) }
	return search == "" || found(ShowTenant(t.Platform, t.Tenant)) || found(t.Name)
}

// maxTenantPage is how many tenants one query returns at most.
const maxTenantPage = 4000

// Tenants returns the tenants that f selects, in the order of their codes.
func (s *pauses) Tenants(ctx context.Context, f TenantFilter) (all []*Tenant, err error) {
	last := cmp.Or(f.After, new(Tenant))
	only := boolNumber(f.Troubled) + boolNumber(f.Troubled && f.Unknown)
	scan := func(r engine.Row) (*Tenant, error) {
		t := new(Tenant)
		var received, failing, unknown int64
		err := r.Scan(&t.Platform, &t.Tenant, &t.Name, &received, &t.Waiting, &t.Parked, &t.Invalid, &failing, &unknown)
		t.Latest = momentOrZero(max(0, received))
		t.HeldUp, t.Unknown = failing > 0 && t.Waiting > 0, unknown > 0
		for _, p := range s.Paused() {
			if p.Tenant == t.Tenant && p.Platform == t.Platform {
				t.Paused, t.Until = true, p.Until
			}
		}
		return t, err
	}
	// Each query continues in the table where the last one has ended. Twice as many rows each time keep the queries few.
	for size := int64(pageSize); ; size = min(2*size, maxTenantPage) {
		var page []*Tenant
		err := s.browse(ctx, func(tx engine.Tx) error {
			tx.Queue("tenants", intoPage(&page, scan), last.Tenant, last.Platform, only, size)
			return tx.Send()
		})
		if err != nil {
			return all, err
		}
		for _, t := range page {
			if f.match(t) {
				all = append(all, t)
			}
			if f.Limit > 0 && len(all) == f.Limit {
				return all, nil
			}
		}
		if int64(len(page)) < size {
			return all, nil
		}
		last = page[size-1]
	}
}

// Unknown returns the first tenants whose features can't be read, those that are so for longest first.
func (s *store) Unknown(ctx context.Context, limit int) ([]*Tenant, error) {
	scan := func(r engine.Row) (*Tenant, error) {
		t, received := &Tenant{Unknown: true}, int64(0)
		err := r.Scan(&t.Platform, &t.Tenant, &received)
		t.Latest = clock.Moment(received)
		return t, err
	}
	return listOf(ctx, s.read, scan, "tenants_unknown", int64(limit))
}
