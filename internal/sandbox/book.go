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
// sent or lost. It is bounded: new tenants replace the oldest ones.
type book struct {
	limit int // of bytes
	mu    sync.Mutex
	// tenants has the oldest first, so that a new tenant does not move the pages of a query; guarded by mu.
	tenants []*bookTenant
	known   map[[2]string]*bookTenant // by platform and code, guarded by mu
	bytes   int                       // of all webhooks, guarded by mu
}

const maxBook = 32 << 20 // bytes of webhooks: some 25,000 tenants

func newBook() *book { return &book{limit: maxBook, known: make(map[[2]string]*bookTenant)} }

// bookTenant is a tenant. It is never changed: a new snapshot replaces it.
type bookTenant struct {
	bookRecord
	change           json.RawMessage
	key              [2]string
	size             int
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
	t := &bookTenant{e.Payload.Tenant, e.Payload.Change, [2]string{"", e.Payload.Tenant.Code}, len(body), now, now}
	if t.Platform != nil && t.Platform.Code != nil {
		t.key[0] = *t.Platform.Code
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes += t.size
	if former := b.known[t.key]; former != nil {
		t.created = former.created
		b.bytes -= former.size
		b.tenants[slices.Index(b.tenants, former)] = t
	} else {
		b.tenants = append(b.tenants, t)
	}
	b.known[t.key] = t
	for b.bytes > b.limit {
		b.bytes -= b.tenants[0].size
		delete(b.known, b.tenants[0].key)
		b.tenants = slices.Delete(b.tenants, 0, 1)
	}
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
