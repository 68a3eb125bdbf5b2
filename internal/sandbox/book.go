package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// book is what the service stores about its tenants: the last snapshot of each, whether its webhook was sent
// or lost. It is bounded: new tenants replace the oldest ones.
type book struct {
	limit int // of bytes
	mu    sync.Mutex
	// tenants has the oldest first, so that a new tenant does not move the pages of a query; guarded by mu.
	tenants []*bookTenant
	known   map[[2]string]*bookTenant // by platform and code, guarded by mu
	bytes   int                       // of all webhooks, guarded by mu
}

const (
	maxBook = 32 << 20 // bytes of webhooks: some 25,000 tenants
	maxPage = 1000     // tenants in an answer
)

// tenantSchema is the sandbox's own: the published interface does not show how to ask for tenants. Its
// fields have the names that they have in a webhook, so that a program can copy them. What the
// tenant's webhook lacks is null.
const tenantSchema = `
type Tenant {
	code: String!
	name: String
	platform: NamedCode
	features: [Feature!]
	subscriptions: [Subscription!]
}

type NamedCode {
	code: String
	name: String
}

type Feature {
	code: String
	name: String
	value: String
	quantity: Integer
}

type Subscription {
	id: Integer
	state: String
	start_date: String
	end_date: String
	trial_start_date: String
	trial_end_date: String
	plan: NamedCode
	price_list: NamedCode
	product: NamedCode
	features: [Feature!]
}

# A whole number; an Int has only 32 bits.
scalar Integer
`

// These types read a webhook, and resolve the fields of the schema, which demands a pointer for what may be null.
type (
	bookTenant struct {
		bookRecord
		bookChange
		key  [2]string
		size int
	}
	bookRecord struct {
		Code     string    `json:"code"`
		Name     *string   `json:"name"`
		Platform *bookCode `json:"platform"`
	}
	bookChange struct {
		Features      *[]bookFeature      `json:"features"`
		Subscriptions *[]bookSubscription `json:"subscriptions"`
	}
	bookCode struct {
		Code *string `json:"code"`
		Name *string `json:"name"`
	}
	bookFeature struct {
		bookCode
		Value    *string  `json:"value"`
		Quantity *integer `json:"quantity"`
	}
	bookSubscription struct {
		ID             *integer       `json:"id"`
		State          *string        `json:"state"`
		StartDate      *string        `json:"start_date"`
		EndDate        *string        `json:"end_date"`
		TrialStartDate *string        `json:"trial_start_date"`
		TrialEndDate   *string        `json:"trial_end_date"`
		Plan           *bookCode      `json:"plan"`
		PriceList      *bookCode      `json:"price_list"`
		Product        *bookCode      `json:"product"`
		Features       *[]bookFeature `json:"features"`
	}
)

// integer is the schema's scalar of that name.
type integer int64

// ImplementsGraphQLType says which type of the schema this is.
func (integer) ImplementsGraphQLType(name string) bool { return name == "Integer" }

// UnmarshalGraphQL reads an argument of a query; none has this type.
func (*integer) UnmarshalGraphQL(any) error { return errors.New("not an argument") }

// put stores what a webhook says about its tenant. A body that is not a snapshot says nothing.
func (b *book) put(body []byte) {
	var e struct {
		Type    string `json:"type"`
		Payload struct {
			Tenant bookRecord `json:"tenant"`
			Change bookChange `json:"change"`
		} `json:"payload"`
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Type != EventType || e.Payload.Tenant.Code == "" {
		return
	}
	t := &bookTenant{e.Payload.Tenant, e.Payload.Change, [2]string{"", e.Payload.Tenant.Code}, len(body)}
	if t.Platform != nil && t.Platform.Code != nil {
		t.key[0] = *t.Platform.Code
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes += t.size
	if former := b.known[t.key]; former != nil {
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

// page returns at most limit tenants, after the first offset ones.
func (b *book) page(limit, offset int) []*bookTenant {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.tenants)
	return slices.Clone(b.tenants[min(offset, n):min(offset+limit, n)])
}

func (q *queries) Tenants(ctx context.Context, args struct{ Limit, Offset *int32 }) ([]*bookTenant, error) {
	if err := mayRead(ctx); err != nil {
		return nil, err
	}
	limit, offset := 100, 0
	if args.Limit != nil {
		limit = int(*args.Limit)
	}
	if args.Offset != nil {
		offset = int(*args.Offset)
	}
	if limit < 0 || limit > maxPage || offset < 0 {
		return nil, fmt.Errorf("limit must be from 0 to %d, and offset must not be negative", maxPage)
	}
	return q.book.page(limit, offset), nil
}
