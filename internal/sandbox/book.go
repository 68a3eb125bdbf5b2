package sandbox

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/graph-gophers/graphql-go"
)

// book is what the service stores about its tenants: what the last snapshot of each said, whether its webhook was
// sent or lost.
type book struct {
	mu sync.Mutex
	// tenants has the oldest first, so that a new tenant does not move the pages of a query; guarded by mu.
	tenants []*bookTenant
	places  map[[2]string]int // in tenants, by platform and code, guarded by mu
}

// bookTenant is a tenant. It is never changed: a new snapshot replaces it.
type bookTenant struct {
	bookRecord
	change           json.RawMessage
	created, updated moment
}

// These types read a webhook leniently: an id may be any scalar, and everything but the code may be missing.
type (
	bookRecord struct {
		bookNamed
		Code     string     `json:"code"`
		Platform *bookNamed `json:"platform"`
		Account  *bookNamed `json:"account"`
	}
	bookNamed struct {
		ID   bookID  `json:"id"`
		Code *string `json:"code"`
		Name *string `json:"name"`
	}
	bookCode struct {
		Code *string `json:"code"`
		Name *string `json:"name"`
	}
	bookFeature struct {
		bookCode
		Quantity *int64 `json:"quantity"`
	}
	bookSubscription struct {
		ID             bookID        `json:"id"`
		State          string        `json:"state"`
		StartDate      *day          `json:"start_date"`
		EndDate        *day          `json:"end_date"`
		TrialStartDate *day          `json:"trial_start_date"`
		TrialEndDate   *day          `json:"trial_end_date"`
		Plan           *bookCode     `json:"plan"`
		PriceList      *bookCode     `json:"price_list"`
		Product        *bookCode     `json:"product"`
		Features       []bookFeature `json:"features"`
	}
)

// bookID is an id in a webhook.
type bookID json.RawMessage

// UnmarshalJSON keeps the id as it is.
func (id *bookID) UnmarshalJSON(text []byte) error { *id = slices.Clone(text); return nil }

func (id bookID) text() graphql.ID { return graphql.ID(cmp.Or(strings.Trim(string(id), `"`), "0")) }

// put stores what a webhook says about its tenant. A body that is not a snapshot says nothing.
func (b *book) put(body []byte) {
	var e struct {
		Type    string `json:"type"`
		Payload struct {
			Tenant bookRecord      `json:"tenant"`
			Change json.RawMessage `json:"change"`
		} `json:"payload"`
	}
	err := json.Unmarshal(body, &e)
	if err != nil || e.Type != EventType || e.Payload.Tenant.Code == "" || e.Payload.Tenant.Code == TestTenant {
		return
	}
	now := moment{time.Now()}
	t := &bookTenant{e.Payload.Tenant, e.Payload.Change, now, now}
	key := [2]string{"", t.Code}
	if t.Platform != nil && t.Platform.Code != nil {
		key[0] = *t.Platform.Code
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if at, known := b.places[key]; known {
		t.created = b.tenants[at].created
		b.tenants[at] = t
		return
	}
	b.places[key] = len(b.tenants)
	b.tenants = append(b.tenants, t)
}

// list returns the tenants, the oldest first.
func (b *book) list() []*bookTenant {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.tenants)
}

// features returns the change's features as they are, or nothing.
func (t *bookTenant) features() json.RawMessage {
	var change struct{ Features json.RawMessage }
	_ = json.Unmarshal(t.change, &change) // a change of another shape has none
	return change.Features
}

func (t *bookTenant) subscriptions() []bookSubscription {
	var change struct{ Subscriptions []bookSubscription }
	if json.Unmarshal(t.change, &change) != nil {
		return nil // a change of another shape
	}
	return change.Subscriptions
}
