package sandbox

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
)

// EventType is the only type of webhook that the service documents.
const EventType = "TenantProvisioningChange"

// envelope is the body of a webhook. A pointer is a field that is null in some payloads. A pointer to a
// pointer is one that some payloads do not have at all: nil if it is missing, and a pointer to nil if
// it is null. (The service does not say what may be null.)
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
	Code     string   `json:"code"`
	Name     string   `json:"name"`
	Value    **string `json:"value,omitempty"` // may be empty
	Quantity *int     `json:"quantity"`        // the limit; nil means none
}

// Subscription is a tenant's subscription to one product, in the service's own
// shape. Dates are written YYYY-MM-DD.
type Subscription struct {
	ID             **int     `json:"id,omitempty"`
	State          string    `json:"state"`
	StartDate      string    `json:"start_date"`
	EndDate        *string   `json:"end_date"`         // nil without an end
	TrialStartDate *string   `json:"trial_start_date"` // nil without a trial
	TrialEndDate   *string   `json:"trial_end_date"`
	Plan           Plan      `json:"plan"`
	PriceList      **Coded   `json:"price_list,omitempty"`
	Product        **Coded   `json:"product,omitempty"`
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

// Tenant is what one snapshot says about a tenant. Its code and that of its platform together identify
// it: the same code may exist on two platforms.
type Tenant struct {
	tenantRecord
	snapshot
	Digest string // SHA-256 of the snapshot's bytes, in hex
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
	return fmt.Sprintf("%s (%s/%s): %s", t.Name, t.Platform.Code, t.Code, strings.Join(uses, ", "))
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
	return Tenant{e.Payload.Tenant, e.Payload.Change, digest(body)}, nil
}

func digest(body []byte) string { return fmt.Sprintf("%x", sha256.Sum256(body)) }
