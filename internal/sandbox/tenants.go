package sandbox

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// product is something that tenants of a platform subscribe to.
type product struct {
	Coded
	platform identified
	features []Feature // those of every plan come first
	included int       // how many of them are in every plan
}

// tenantState is a tenant and all that the service knows about it. Here subscriptions have every
// field; render leaves out what a payload does not have.
type tenantState struct {
	record   tenantRecord
	products []*product // of each subscription, in the same order
	subs     []Subscription
	changed  time.Time

	// The payload can be customised in the service. These say what this tenant's has.
	withIDs, withProducts bool
	withNulls             bool // missing fields are null instead
}

// world has the service's tenants, and changes them. It is deterministic: the seed decides everything,
// and its calendar moves one day with every change, whatever the clock says.
type world struct {
	random  *rand.Rand
	catalog []*product
	tenants []*tenantState
	today   time.Time
	lastID  int // the last id of a subscription
}

const worldTenants = 8

func newWorld(seed uint64) *world {
	w := &world{
		random:  rand.New(rand.NewPCG(seed, seed)),
		catalog: newCatalog(),
		today:   time.Date(2026, time.January, 5, 0, 0, 0, 0, time.UTC),
		lastID:  70000,
	}
	for i := range worldTenants {
		w.tenants = append(w.tenants, w.newTenant(i))
	}
	return w
}

func newCatalog() []*product {
	crm := identified{11, "crm", "CRM Cloud"}
	docs := identified{12, "docs", "Docs Cloud"}
	limited := func(code, name string) Feature { return Feature{code, name, new(""), new(5)} }
	enabled := func(code, name, value string) Feature { return Feature{code, name, new(value), nil} }
	return []*product{
		{Coded{"crm-suite", "CRM Suite"}, crm, []Feature{
			limited("users", "Users"), limited("pipelines", "Pipelines"),
			enabled("sso", "Single sign-on", "saml"), enabled("api", "API access", ""), enabled("reports", "Reports", "basic")}, 2},
		{Coded{"mailing", "Mailing"}, crm, []Feature{
			limited("mailings", "Mailings a day"), enabled("templates", "Templates", ""), enabled("ab_tests", "A/B tests", "")}, 1},
		{Coded{"doc-store", "Document Store"}, docs, []Feature{
			limited("users", "Users"), limited("storage_gb", "Storage in GB"),
			enabled("versioning", "Versions", "90 days"), enabled("signing", "Signatures", "eidas")}, 1},
	}
}

// newTenant invents the i-th tenant. The last one has the code of the first, on the other platform: a
// code alone does not identify a tenant.
func (w *world) newTenant(i int) *tenantState {
	home := w.catalog[0]
	owner := i
	if i%3 == 1 || i == worldTenants-1 {
		home = w.catalog[2]
	}
	if i == worldTenants-1 {
		owner = 0
	}
	a := accounts()[owner*37%len(accounts())]
	t := &tenantState{withIDs: i%2 == 0, withProducts: i%4 < 2, withNulls: i%5 == 3}
	r := &t.record
	r.ID, r.Name, r.Platform = 501+i, a.Name, home.platform
	r.Code = strings.ReplaceAll(strings.ToLower(a.Name), " ", "-")
	r.Account.ID, r.Account.Name, r.Account.BillingDay = a.ID, a.Name, 1+w.random.IntN(28)
	people := [][2]string{{"Ada", "Kovač"}, {"Jörg", "Weiß"}, {"Mia", "O'Neil"}, {"Noor", "El Amrani"}}
	r.Account.Contacts = []contact{}
	for n := range i % 3 { // some accounts have no contacts
		p := people[(i+n)%len(people)]
		email := fmt.Sprintf("contact%d@customer%d.example", n+1, a.ID)
		r.Account.Contacts = append(r.Account.Contacts, contact{9001 + 10*i + n, p[0], p[1], email})
	}
	w.subscribe(t, home, i%2 == 0)
	if i%4 == 3 && home == w.catalog[0] {
		w.subscribe(t, w.catalog[1], false)
	}
	return t
}

// subscribe gives the tenant a new subscription, which replaces an earlier one to the same product.
func (w *world) subscribe(t *tenantState, p *product, trial bool) {
	w.lastID++
	sub := Subscription{
		ID:        new(w.lastID),
		State:     "active",
		StartDate: date(w.today),
		EndDate:   new(date(w.today.AddDate(1, 0, -1))),
		Plan:      Plan{new("standard"), "Standard"},
		PriceList: &Coded{"eur-2026", "Euro 2026"},
		Product:   &p.Coded,
		Features:  cloneFeatures(p.features[:p.included]),
	}
	if trial {
		sub.State = "trial"
		sub.TrialStartDate, sub.TrialEndDate = new(date(w.today)), new(date(w.today.AddDate(0, 0, 30)))
	}
	if w.random.IntN(3) == 0 {
		sub.Plan, sub.EndDate = Plan{nil, "Individual agreement"}, nil // until somebody cancels it
	}
	if i := slices.Index(t.products, p); i >= 0 {
		t.subs[i] = sub
		return
	}
	t.products, t.subs = append(t.products, p), append(t.subs, sub)
}

// render returns the webhook with the tenant's current state.
func (t *tenantState) render() []byte {
	var e envelope
	e.Type, e.Payload.Tenant = EventType, t.record
	e.Payload.Change = snapshot{[]Feature{}, []Subscription{}}
	for _, sub := range t.subs {
		sub.Features = cloneFeatures(sub.Features)
		if !t.withIDs {
			sub.ID = nil
			for i := range sub.Features {
				sub.Features[i].Value = nil
			}
		}
		if !t.withProducts {
			sub.PriceList, sub.Product = nil, nil
		}
		e.Payload.Change.Subscriptions = append(e.Payload.Change.Subscriptions, sub)
		if sub.State != "canceled" {
			e.Payload.Change.Features = append(e.Payload.Change.Features, sub.Features...)
		}
	}
	body, err := json.Marshal(e)
	if err != nil {
		panic(err) // our own types
	}
	if t.withNulls {
		return withNulls(body)
	}
	return body
}

// withNulls writes a null for each missing field that is present in some payloads, and for an empty
// list of contacts. The service does not say what may be null.
func withNulls(body []byte) []byte {
	var e map[string]any
	if err := json.Unmarshal(body, &e); err != nil {
		panic(err) // our own types
	}
	payload := e["payload"].(map[string]any)
	account := payload["tenant"].(map[string]any)["account"].(map[string]any)
	if len(account["contacts"].([]any)) == 0 {
		account["contacts"] = nil
	}
	change := payload["change"].(map[string]any)
	fill(change["features"], "value")
	fill(change["subscriptions"], "id", "price_list", "product")
	for _, sub := range change["subscriptions"].([]any) {
		fill(sub.(map[string]any)["features"], "value")
	}
	body, err := json.Marshal(e)
	if err != nil {
		panic(err) // it was JSON
	}
	return body
}

// fill adds the missing members to each object of a list, as nulls.
func fill(list any, names ...string) {
	for _, item := range list.([]any) {
		object := item.(map[string]any)
		for _, name := range names {
			if _, there := object[name]; !there {
				object[name] = nil
			}
		}
	}
}

// cloneFeatures copies the features that a change may write to. A change replaces quantities and
// values, and never writes through their pointers.
func cloneFeatures(f []Feature) []Feature { return append([]Feature{}, f...) }

func date(t time.Time) string { return t.Format(time.DateOnly) }
