package record

import (
	"time"
)

// Pause holds deliveries back: all of them, those of one receiver, or those of one tenant.
// What is under way may finish.
type Pause struct {
	Receiver string    `json:"receiver,omitempty"`
	Platform string    `json:"platform,omitempty"`
	Tenant   string    `json:"tenant,omitempty"`
	Since    time.Time `json:"since,omitzero"`
}

// Covers says whether p holds a tenant's webhooks back, whose receiver has that name.
func (p Pause) Covers(platform, tenant, receiver string) bool {
	switch {
	case p.Tenant != "":
		return p.Tenant == tenant && p.Platform == platform
	case p.Receiver != "":
		return p.Receiver == receiver
	}
	return true
}

// Same says whether p and q hold back the same.
func (p Pause) Same(q Pause) bool {
	p.Since, q.Since = time.Time{}, time.Time{}
	return p == q
}

// String says what is held back.
func (p Pause) String() string {
	switch {
	case p.Tenant != "":
		return "tenant " + ShowTenant(p.Platform, p.Tenant)
	case p.Receiver != "":
		return "receiver " + p.Receiver
	}
	return "all deliveries"
}
