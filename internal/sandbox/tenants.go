package sandbox

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// The types of webhook that a platform sends, and the tenant that the service's test button names.
const (
	EventType    = "TenantProvisioningChange"
	checkoutType = "CheckoutValidation"
	TestTenant   = "provisioning-test"
)

// envelope is the body of a webhook. The service does not document which fields may be null or missing, so
// the sandbox sends all variants. A pointer is a field that is null in some payloads. A field of the type any
// is missing in some: see [tenantState.absent].
type envelope struct {
	Type    string `json:"type"`
	Payload struct {
		Tenant tenantRecord `json:"tenant"`
		Change snapshot     `json:"change"`
	} `json:"payload"`
}

type tenantRecord struct {
	ID       int            `json:"id"`
	Code     string         `json:"code"`
	Name     string         `json:"name"`
	Platform platformRecord `json:"platform"`
	Account  struct {
		ID         int       `json:"id"`
		Name       string    `json:"name"`
		BillingDay int       `json:"billing_day"`
		Contacts   []contact `json:"contacts"`
	} `json:"account"`
}

type platformRecord struct {
	ID   int    `json:"id"`
	Code string `json:"code"`
	Name string `json:"name"`
}

type contact struct {
	ID        int    `json:"id"`
	FirstName string `json:"first_name"`
	LastName  string `json:"last_name"`
	Email     string `json:"email"`
}

type snapshot struct {
	Features      []Feature      `json:"features"`
	Subscriptions []Subscription `json:"subscriptions"`
}

// Feature is something that a tenant may use.
type Feature struct {
	Code     string `json:"code"`
	Name     string `json:"name"`
	Value    any    `json:"value,omitempty"` // a string; may be empty
	Quantity *int   `json:"quantity"`        // the limit; nil means none
}

// Subscription is a tenant's subscription to one product, in the service's own
// shape. Dates are written YYYY-MM-DD.
type Subscription struct {
	ID             any       `json:"id,omitempty"` // an integer
	State          string    `json:"state"`
	StartDate      string    `json:"start_date"`
	EndDate        *string   `json:"end_date"`         // nil without an end
	TrialStartDate *string   `json:"trial_start_date"` // nil without a trial
	TrialEndDate   *string   `json:"trial_end_date"`
	Plan           Plan      `json:"plan"`
	PriceList      any       `json:"price_list,omitempty"` // a NamedCode
	Product        any       `json:"product,omitempty"`    // a NamedCode
	Features       []Feature `json:"features"`

	product *product // of the catalog; nil in a tenant that is made from a State
}

// Plan is the plan of a subscription; some have no code.
type Plan struct {
	Code *string `json:"code"`
	Name string  `json:"name"`
}

// NamedCode identifies a price list or a product.
type NamedCode struct {
	Code string `json:"code"`
	Name string `json:"name"`
}

// Tenant is a tenant as one snapshot describes it. The tenant's code and the platform's code together
// identify it: the same tenant code may exist on two platforms.
type Tenant struct {
	tenantRecord
	snapshot
}

// String returns one line with the tenant and what it may use.
func (t Tenant) String() string {
	var uses []string
	for _, f := range t.Features {
		use := f.Code
		if f.Quantity != nil {
			use = fmt.Sprintf("%s ≤ %d", f.Code, *f.Quantity)
		}
		uses = append(uses, use)
	}
	if uses == nil {
		uses = []string{"nothing"}
	}
	return fmt.Sprintf("%s (%s/%s): %s", t.Name, t.Platform.Code, t.Code, strings.Join(uses, ", "))
}

// readSnapshot returns the tenant that a webhook describes. If the webhook is of another type, the Tenant
// has no code.
func readSnapshot(body []byte) (Tenant, error) {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(body, &kind); err != nil || kind.Type != EventType {
		return Tenant{}, err
	}
	var e envelope
	if err := json.Unmarshal(body, &e); err != nil {
		return Tenant{}, err
	}
	return Tenant{e.Payload.Tenant, e.Payload.Change}, nil
}

// tenantState is a tenant as the service stores it.
type tenantState struct {
	record tenantRecord
	subs   []Subscription // with all fields; render drops those that the tenant's payload does not have

	// The payload can be customised in the service. These say which fields this tenant's payload lacks.
	withoutIDs, withoutProducts bool
	withNulls                   bool // fields that it lacks are null instead of missing
}

// render returns the body of a webhook with the tenant's current state.
func (t *tenantState) render() []byte {
	e := envelope{Type: EventType}
	e.Payload.Tenant, e.Payload.Change = t.record, snapshot{[]Feature{}, []Subscription{}}
	if t.withNulls && len(t.record.Account.Contacts) == 0 {
		e.Payload.Tenant.Account.Contacts = nil
	}
	for _, sub := range t.subs {
		sub.Features = append([]Feature{}, sub.Features...) // never null
		if t.withoutIDs {
			sub.ID = t.absent()
			for i := range sub.Features {
				sub.Features[i].Value = t.absent()
			}
		}
		if t.withoutProducts {
			sub.PriceList, sub.Product = t.absent(), t.absent()
		}
		e.Payload.Change.Subscriptions = append(e.Payload.Change.Subscriptions, sub)
		if sub.State != "canceled" {
			e.Payload.Change.Features = append(e.Payload.Change.Features, sub.Features...)
		}
	}
	return encode(e)
}

// absent returns the value of a field that the tenant's payload lacks: missing or null.
func (t *tenantState) absent() any {
	if t.withNulls {
		return json.RawMessage("null")
	}
	return nil
}

// newSubscription returns a subscription for one year, without features.
func newSubscription(id int, start time.Time, product NamedCode) Subscription {
	return Subscription{
		ID:        id,
		State:     "active",
		StartDate: start.Format(time.DateOnly),
		EndDate:   new(start.AddDate(1, 0, -1).Format(time.DateOnly)),
		Plan:      Plan{new("standard"), "Standard"},
		PriceList: NamedCode{"eur-2026", "Euro 2026"},
		Product:   product,
	}
}

// State is what a tenant may use: each feature's code with its quantity, or nil for no limit. Its JSON is
// the body of /sandbox/send.
type State struct {
	Tenant   string          `json:"tenant"`
	Platform string          `json:"platform,omitempty"` // default crm
	Features map[string]*int `json:"features"`
}

// Webhook returns the body of a webhook with this state and with every field that the service documents.
// Equal states give equal bytes, so a tenant that returns to an earlier state sends the same webhook again.
func (s State) Webhook() []byte { return s.tenant().render() }

func (s State) tenant() *tenantState {
	id := func(name string) int { return 1 + int(crc32.ChecksumIEEE([]byte(name))>>8) }
	t := new(tenantState)
	r := &t.record
	r.Platform = crm
	if s.Platform != "" && s.Platform != crm.Code {
		r.Platform = platformRecord{id(s.Platform), s.Platform, s.Platform}
	}
	r.ID, r.Code, r.Name = id(r.Platform.Code+"/"+s.Tenant), s.Tenant, s.Tenant
	r.Account.ID, r.Account.Name, r.Account.BillingDay = id(s.Tenant), s.Tenant, 1
	r.Account.Contacts = []contact{{9001, "Ada", "Kovač", "ada@customer.example"}}
	suite := NamedCode{r.Platform.Code + "-suite", r.Platform.Name + " Suite"}
	sub := newSubscription(r.ID, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), suite)
	for _, code := range slices.Sorted(maps.Keys(s.Features)) {
		sub.Features = append(sub.Features, Feature{code, code, "", s.Features[code]})
	}
	t.subs = []Subscription{sub}
	return t
}

// checkout returns the body of the question whether the tenant may buy these features. It names no platform.
func (s State) checkout() []byte {
	t := s.tenant()
	var q struct {
		Type    string `json:"type"`
		Payload struct {
			Tenant struct {
				ID   int    `json:"id"`
				Code string `json:"code"`
				Name string `json:"name"`
			} `json:"tenant"`
			Change struct {
				Features []boughtFeature `json:"features"`
			} `json:"change"`
		} `json:"payload"`
	}
	q.Type = checkoutType
	q.Payload.Tenant.ID, q.Payload.Tenant.Code, q.Payload.Tenant.Name = t.record.ID, t.record.Code, t.record.Name
	q.Payload.Change.Features = []boughtFeature{}
	for _, f := range t.subs[0].Features {
		bought := boughtFeature{f, t.subs[0].Plan, t.subs[0].PriceList}
		q.Payload.Change.Features = append(q.Payload.Change.Features, bought)
	}
	return encode(q)
}

// boughtFeature is a feature in a question at checkout.
type boughtFeature struct {
	Feature
	Plan      Plan `json:"plan"`
	PriceList any  `json:"price_list"`
}

// String returns the arguments of 'usher sandbox send' for this state.
func (s State) String() string {
	words := []string{s.Tenant}
	for _, code := range slices.Sorted(maps.Keys(s.Features)) {
		if q := s.Features[code]; q != nil {
			code = fmt.Sprintf("%s=%d", code, *q)
		}
		words = append(words, code)
	}
	return strings.Join(words, " ")
}

// world is a set of tenants that changes at random. The seed alone decides every change: the calendar of the
// world moves by one day with each change, whatever the clock says.
type world struct {
	random  *rand.Rand
	tenants []*tenantState
	today   time.Time
	lastID  int // the last id of a subscription
}

// product is something that tenants subscribe to.
type product struct {
	NamedCode
	features []Feature // the first one is in every plan
}

var (
	crm     = platformRecord{11, "crm", "CRM Cloud"}
	docs    = platformRecord{12, "docs", "Docs Cloud"}
	catalog = []*product{
		{NamedCode{"crm-suite", "CRM Suite"}, []Feature{
			limited("users", "Users"), limited("pipelines", "Pipelines"),
			enabled("sso", "Single sign-on", "saml"), enabled("api", "API access", ""),
			enabled("reports", "Reports", "basic")}},
		{NamedCode{"mailing", "Mailing"}, []Feature{
			limited("mailings", "Mailings a day"),
			enabled("templates", "Templates", ""), enabled("ab_tests", "A/B tests", "")}},
		{NamedCode{"doc-store", "Document Store"}, []Feature{
			limited("users", "Users"), limited("storage_gb", "Storage in GB"),
			enabled("versioning", "Versions", "90 days"), enabled("signing", "Signatures", "eidas")}},
	}
)

func limited(code, name string) Feature { return Feature{code, name, "", new(5)} }

func enabled(code, name, value string) Feature { return Feature{code, name, value, nil} }

func newWorld(seed uint64) *world {
	w := &world{
		random: rand.New(rand.NewPCG(seed, seed)),
		today:  time.Date(2026, time.January, 5, 0, 0, 0, 0, time.UTC),
		lastID: 70000,
	}
	for i := range 8 {
		w.tenants = append(w.tenants, w.newTenant(i))
	}
	return w
}

// newTenant makes the i-th tenant. Tenant 7 has the code of tenant 0, on the other platform, because a tenant
// code may exist on two platforms.
func (w *world) newTenant(i int) *tenantState {
	a := accounts()[i%7*37+1] // never Acme, which is the tenant in the demo and the docs
	t := &tenantState{withoutIDs: i%2 == 1, withoutProducts: i%4 >= 2, withNulls: i%5 == 3}
	r := &t.record
	r.ID, r.Name, r.Platform = 501+i, a.name, crm
	r.Code = strings.ReplaceAll(strings.ToLower(a.name), " ", "-")
	r.Account.ID, r.Account.Name, r.Account.BillingDay = a.number, a.name, 1+w.random.IntN(28)
	contacts := []contact{
		{9001, "Ada", "Kovač", "ada@customer.example"},
		{9002, "Jörg", "Weiß", "joerg@customer.example"},
	}
	r.Account.Contacts = contacts[:i%3]
	products := catalog[:1]
	switch {
	case i%3 == 1:
		r.Platform, products = docs, catalog[2:]
	case i == 3:
		products = catalog[:2]
	}
	for _, p := range products {
		sub := w.subscribe(p)
		if i%2 == 0 {
			sub.State = "trial"
			sub.TrialStartDate = new(sub.StartDate)
			sub.TrialEndDate = new(w.today.AddDate(0, 0, 30).Format(time.DateOnly))
		}
		t.subs = append(t.subs, sub)
	}
	return t
}

func (w *world) subscribe(p *product) Subscription {
	w.lastID++
	sub := newSubscription(w.lastID, w.today, p.NamedCode)
	sub.product, sub.Features = p, slices.Clone(p.features[:1])
	if w.random.IntN(3) == 0 {
		sub.Plan, sub.EndDate = Plan{nil, "Individual agreement"}, nil // without an end
	}
	return sub
}

// change moves the calendar by a day, and changes something about a tenant. It returns the tenant and a
// summary of the change. Each change changes the payload, so that no two snapshots in a row are equal.
func (w *world) change() (t *tenantState, summary string) {
	w.today = w.today.AddDate(0, 0, 1)
	t = w.tenants[w.random.IntN(len(w.tenants))]
	sub := &t.subs[w.random.IntN(len(t.subs))]
	former, more, dice := sub.State, sub.product.features[len(sub.Features):], w.random.IntN(10)
	switch {
	case former == "canceled": // it subscribes again, without a trial
		*sub = w.subscribe(sub.product)
	case former == "trial" && dice < 3:
		sub.State = "active"
	case dice == 3:
		sub.State, sub.EndDate = "canceled", new(w.today.Format(time.DateOnly))
	case len(more) > 0 && dice < 6:
		sub.Features = append(sub.Features, more[0])
		return t, fmt.Sprintf("%s: feature %s added to %s", t.record.Name, more[0].Code, sub.product.Name)
	default:
		return t, t.record.Name + ": " + w.changeQuantity(sub)
	}
	return t, fmt.Sprintf("%s: %s %s → %s", t.record.Name, sub.product.Name, former, sub.State)
}

// changeQuantity changes the quantity of the first feature, which every plan has. There are only a few
// quantities, so that a tenant often returns to an earlier snapshot (A, B, A).
func (w *world) changeQuantity(sub *Subscription) string {
	f := &sub.Features[0]
	former := quantityText(f.Quantity)
	quantities := []*int{new(5), new(10), new(25), new(50), nil}
	quantities = slices.DeleteFunc(quantities, func(q *int) bool { return quantityText(q) == former })
	f.Quantity = quantities[w.random.IntN(len(quantities))]
	return fmt.Sprintf("%s %s → %s", f.Code, former, quantityText(f.Quantity))
}

func quantityText(quantity *int) string {
	if quantity == nil {
		return "no limit"
	}
	return fmt.Sprint(*quantity)
}
