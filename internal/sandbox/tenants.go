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
	a := accounts()[(owner*37+1)%len(accounts())] // never Acme: acme is the tenant of the demo and the docs
	t := &tenantState{withIDs: i%2 == 0, withProducts: i%4 < 2, withNulls: i%5 == 3}
	r := &t.record
	r.ID, r.Name, r.Platform = 501+i, a.Name, home.platform
	r.Code = strings.ReplaceAll(strings.ToLower(a.Name), " ", "-")
	r.Account.ID, r.Account.Name, r.Account.BillingDay = a.number, a.Name, 1+w.random.IntN(28)
	people := [][2]string{{"Ada", "Kovač"}, {"Jörg", "Weiß"}, {"Mia", "O'Neil"}, {"Noor", "El Amrani"}}
	r.Account.Contacts = []contact{}
	for n := range i % 3 { // some accounts have no contacts
		p := people[(i+n)%len(people)]
		email := fmt.Sprintf("contact%d@customer%d.example", n+1, a.number)
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
	sub := newSubscription(w.lastID, w.today, p.Coded)
	sub.Features = append(sub.Features, p.features[:p.included]...)
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

// newSubscription returns one for a year, without features.
func newSubscription(id int, start time.Time, product Coded) Subscription {
	return Subscription{
		ID:        &id,
		State:     "active",
		StartDate: date(start),
		EndDate:   new(date(start.AddDate(1, 0, -1))),
		Plan:      Plan{new("standard"), "Standard"},
		PriceList: &Coded{"eur-2026", "Euro 2026"},
		Product:   &product,
		Features:  []Feature{},
	}
}

// render returns the webhook with the tenant's current state.
func (t *tenantState) render() []byte {
	var e envelope
	e.Type, e.Payload.Tenant = EventType, t.record
	e.Payload.Change = snapshot{[]Feature{}, []Subscription{}}
	for _, sub := range t.subs {
		sub.Features = append([]Feature{}, sub.Features...) // never null
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

func date(t time.Time) string { return t.Format(time.DateOnly) }

// change lets a day pass, and changes something about a tenant. It returns the tenant and, in words,
// what happened.
func (w *world) change() (t *tenantState, what string) {
	w.today = w.today.AddDate(0, 0, 1)
	t = w.tenants[w.random.IntN(len(w.tenants))]
	choices := w.choices(t)
	what = choices[w.random.IntN(len(choices))]()
	return t, t.record.Name + ": " + what
}

// choices lists what can happen to the tenant; likely events are in the list more often. Each changes
// its state, so that no two snapshots in a row are the same.
func (w *world) choices(t *tenantState) []func() string {
	var list []func() string
	may := func(times int, f func() string) { list = append(list, slices.Repeat([]func() string{f}, times)...) }
	for i := range t.subs {
		sub, p := &t.subs[i], t.products[i]
		if sub.State == "canceled" {
			may(3, func() string { // a new one, this time without a trial
				w.subscribe(t, p, false)
				return p.Name + " canceled → active"
			})
			continue
		}
		if sub.State == "trial" {
			may(3, func() string { return w.move(sub, "active") })
		}
		may(1, func() string { return w.move(sub, "canceled") })
		may(6, func() string { return w.requote(sub) })
		if len(sub.Features) < len(p.features) {
			may(2, func() string {
				f := p.features[len(sub.Features)]
				sub.Features = append(sub.Features, f)
				return fmt.Sprintf("feature %s added to %s", f.Code, p.Name)
			})
		}
	}
	for _, p := range w.catalog {
		if p.platform == t.record.Platform && !slices.Contains(t.products, p) {
			may(1, func() string {
				w.subscribe(t, p, true)
				return p.Name + " subscribed, on trial"
			})
		}
	}
	return list
}

func (w *world) move(sub *Subscription, state string) string {
	former := sub.State
	sub.State = state
	if state == "canceled" {
		sub.EndDate = new(date(w.today))
	}
	return fmt.Sprintf("%s %s → %s", sub.Product.Name, former, state)
}

// requote changes a quoted quantity. There are few quantities, so that a tenant often returns to an
// earlier snapshot (A, B, A).
func (w *world) requote(sub *Subscription) string {
	var limited []*Feature
	for i := range sub.Features {
		// The first feature of a product always has a limit; others may have lost theirs.
		if i == 0 || sub.Features[i].Quantity != nil {
			limited = append(limited, &sub.Features[i])
		}
	}
	f := limited[w.random.IntN(len(limited))]
	quantities := []*int{new(5), new(10), new(25), new(50), nil}
	quantities = slices.DeleteFunc(quantities, func(q *int) bool { return words(q) == words(f.Quantity) })
	former := f.Quantity
	f.Quantity = quantities[w.random.IntN(len(quantities))]
	return fmt.Sprintf("%s %s → %s", f.Code, words(former), words(f.Quantity))
}

func words(quantity *int) string {
	if quantity == nil {
		return "no limit"
	}
	return fmt.Sprint(*quantity)
}
