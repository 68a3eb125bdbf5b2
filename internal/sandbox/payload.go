package sandbox

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"time"
)

// EventType is the only type of webhook that the service documents.
const EventType = "TenantProvisioningChange"

// envelope is the body of a webhook. Pointers with omitempty are fields that are present in some
// payloads; pointers without it are null in some. (The service does not say what may be null: see
// withNulls.)
type envelope struct {
	Type    string `json:"type"`
	Payload struct {
		Tenant tenantRecord `json:"tenant"`
		Change snapshot     `json:"change"`
	} `json:"payload"`
}

type tenantRecord struct {
	ID       int        `json:"id"`
	Code     string     `json:"code"`
	Name     string     `json:"name"`
	Platform identified `json:"platform"`
	Account  struct {
		ID         int       `json:"id"`
		Name       string    `json:"name"`
		BillingDay int       `json:"billing_day"`
		Contacts   []contact `json:"contacts"`
	} `json:"account"`
}

type identified struct {
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
	Code     string  `json:"code"`
	Name     string  `json:"name"`
	Value    *string `json:"value,omitempty"` // present in some payloads, may be empty
	Quantity *int    `json:"quantity"`        // the limit; nil means none
}

// Subscription is a tenant's subscription to one product, in the service's own
// shape. Dates are written YYYY-MM-DD.
type Subscription struct {
	ID             *int      `json:"id,omitempty"` // present in some payloads
	State          string    `json:"state"`
	StartDate      string    `json:"start_date"`
	EndDate        *string   `json:"end_date"`         // nil without an end
	TrialStartDate *string   `json:"trial_start_date"` // nil without a trial
	TrialEndDate   *string   `json:"trial_end_date"`
	Plan           Plan      `json:"plan"`
	PriceList      *Coded    `json:"price_list,omitempty"` // present in some payloads
	Product        *Coded    `json:"product,omitempty"`    // present in some payloads
	Features       []Feature `json:"features"`
}

// Plan is the plan of a subscription; some have no code.
type Plan struct {
	Code *string `json:"code"`
	Name string  `json:"name"`
}

// Coded is a price list or a product.
type Coded struct {
	Code string `json:"code"`
	Name string `json:"name"`
}

// Tenant is what one snapshot says about a tenant. Platform and Code together identify it: the same
// code may exist on two platforms.
type Tenant struct {
	Platform, Code, Name string
	Features             []Feature      // what it may use; read only
	Subscriptions        []Subscription // read only
	Digest               string         // SHA-256 of the snapshot's bytes, in hex
}

// String says in one line what the tenant may use.
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
	return fmt.Sprintf("%s (%s/%s): %s", t.Name, t.Platform, t.Code, strings.Join(uses, ", "))
}

// readSnapshot returns the tenant that a webhook is about. If it is not a snapshot of a tenant, the
// Tenant has no code.
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
	t := e.Payload.Tenant
	return Tenant{
		Platform:      t.Platform.Code,
		Code:          t.Code,
		Name:          t.Name,
		Features:      e.Payload.Change.Features,
		Subscriptions: e.Payload.Change.Subscriptions,
		Digest:        digest(body),
	}, nil
}

func digest(body []byte) string { return fmt.Sprintf("%x", sha256.Sum256(body)) }

func byLane(a, b Tenant) int {
	return cmp.Or(strings.Compare(a.Platform, b.Platform), strings.Compare(a.Code, b.Code))
}

// keepLast drops the oldest elements beyond n.
func keepLast[T any](s []T, n int) []T {
	return slices.Delete(s, 0, max(0, len(s)-n))
}

// State is what a tenant may use, as an order to the sandbox: a code and a quantity for each feature,
// nil for no limit. Its JSON is the body of /sandbox/send.
type State struct {
	Tenant   string          `json:"tenant"`
	Platform string          `json:"platform,omitempty"` // default crm
	Features map[string]*int `json:"features"`
}

// Webhook returns a webhook that says so, with every field that the service documents. Equal states
// give equal bytes: a tenant that returns to an earlier state sends the earlier webhook.
func (s State) Webhook() []byte { return s.tenant().render() }

func (s State) tenant() *tenantState {
	id := func(of string) int { return 1 + int(crc32.ChecksumIEEE([]byte(of))>>8) }
	t := &tenantState{withIDs: true, withProducts: true}
	r := &t.record
	r.Platform = identified{11, "crm", "CRM Cloud"}
	if s.Platform != "" && s.Platform != "crm" {
		r.Platform = identified{id(s.Platform), s.Platform, s.Platform}
	}
	r.ID, r.Code, r.Name = id(r.Platform.Code+"/"+s.Tenant), s.Tenant, s.Tenant
	r.Account.ID, r.Account.Name, r.Account.BillingDay = id(s.Tenant), s.Tenant, 1
	r.Account.Contacts = []contact{{9001, "Ada", "Kovač", "ada@customer.example"}}
	sub := newSubscription(r.ID, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Coded{r.Platform.Code + "-suite", r.Platform.Name + " Suite"})
	for _, code := range slices.Sorted(maps.Keys(s.Features)) {
		sub.Features = append(sub.Features, Feature{code, code, new(""), s.Features[code]})
	}
	t.subs = []Subscription{sub}
	return t
}

// String says it as one types it for 'usher sandbox send'.
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
