package sandbox

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"usher/internal/text"
)

// Receiver is the provisioning part of the customer's application: an [http.Handler], on any path,
// that accepts each snapshot and stores what the tenant may use. It is safe for concurrent use.
//
// A webhook that is not a snapshot of a tenant, for example one of another type, is noted and answered
// with 200. One that is not JSON gets 400, one whose fields have wrong types 422.
type Receiver struct {
	// OnDelivery is called for every webhook when it arrives, also concurrently. Set it before
	// serving.
	OnDelivery func(r *http.Request, body []byte)
	OnAnswer   func(Delivery) // the same, when it is answered

	faults faults // by tenant code; of all others with no code

	mu         sync.Mutex
	tenants    map[lane]Tenant // guarded by mu
	deliveries []*Delivery     // guarded by mu, with what they point to
}

// lane identifies a tenant.
type lane struct{ platform, code string }

func byLane(a, b Tenant) int {
	return cmp.Or(strings.Compare(a.Platform.Code, b.Platform.Code), strings.Compare(a.Code, b.Code))
}

// Delivery is a webhook that reached the receiver.
type Delivery struct {
	Platform, Tenant string // their codes; empty when the body has none
	What             string // in words; not all of a large one
	WebhookID        string // the header webhook-id
	Digest           string // SHA-256 of the body, in hex
	Applied          bool   // the receiver holds this snapshot, whatever it answered
	Status           int    // as answered; 0 if there was no complete answer
}

const deliveriesSize = 10000

// NewReceiver returns a receiver without faults that knows no tenant yet.
func NewReceiver() *Receiver {
	return &Receiver{tenants: make(map[lane]Tenant)}
}

// Behave makes the receiver fail; a zero Fault ends that. A webhook that the fault answers is not
// applied, unless the real answer follows.
func (rc *Receiver) Behave(f Fault) { rc.faults.set("", f) }

// BehaveTo does the same for the tenants with one code, instead of Behave. After a zero Fault Behave
// applies to them again.
func (rc *Receiver) BehaveTo(tenantCode string, f Fault) { rc.faults.set(tenantCode, f) }

// Tenants returns what each tenant may use now, by platform and code.
func (rc *Receiver) Tenants() []Tenant {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return slices.SortedFunc(maps.Values(rc.tenants), byLane)
}

// Deliveries returns the last 10000 webhooks in the order of their arrival.
func (rc *Receiver) Deliveries() []Delivery {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	list := make([]Delivery, len(rc.deliveries))
	for i, d := range rc.deliveries {
		list[i] = *d
	}
	return list
}

// ServeHTTP takes a webhook. A fault that closes the connection panics with
// [http.ErrAbortHandler], which an [http.Server] understands.
func (rc *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, refusal := readPost(w, r, maxCallBody)
	if rc.OnDelivery != nil {
		rc.OnDelivery(r, body)
	}
	t, err := readSnapshot(body)
	d := &Delivery{
		Platform:  t.Platform.Code,
		Tenant:    t.Code,
		What:      "not a webhook about a tenant",
		WebhookID: r.Header.Get("Webhook-Id"),
		Digest:    digest(body),
	}
	if t.Code != "" {
		d.What = text.Clip(t.String(), 200)
	}
	rc.note(d)
	rc.faults.take(t.Code, "").serve(w, r, refusal, func() answer {
		switch {
		case err != nil && !json.Valid(body):
			return textAnswer(http.StatusBadRequest, "not JSON: "+err.Error())
		case err != nil:
			return textAnswer(http.StatusUnprocessableEntity, err.Error())
		}
		rc.mu.Lock()
		defer rc.mu.Unlock()
		if d.Applied = t.Code != ""; d.Applied {
			rc.tenants[lane{t.Platform.Code, t.Code}] = t // instead of all that was known about the tenant
		}
		return jsonAnswer(http.StatusOK, map[string]bool{"applied": d.Applied})
	}, func(status int) {
		rc.mu.Lock()
		d.Status = status
		done := *d
		rc.mu.Unlock()
		if rc.OnAnswer != nil {
			rc.OnAnswer(done)
		}
	})
}

func (rc *Receiver) note(d *Delivery) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.deliveries = append(rc.deliveries, d)
	rc.deliveries = slices.Delete(rc.deliveries, 0, max(0, len(rc.deliveries)-deliveriesSize))
}
