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

// Receiver is the provisioning part of the customer's application: an [http.Handler], for any path, that
// stores what each tenant may use. It is safe for concurrent use.
//
// It answers 200 to a webhook that is not a snapshot of a tenant, for example of another type, and only
// records it. It answers 400 if the body is not JSON, and 422 if a field has the wrong type.
type Receiver struct {
	// OnDelivery is called when a webhook arrives, and OnAnswer when it is answered. Both may be called
	// concurrently. Set them before serving.
	OnDelivery func(r *http.Request, body []byte)
	OnAnswer   func(Delivery)

	faults faults // by tenant code; the empty code is for all other tenants

	mu         sync.Mutex
	tenants    map[tenantKey]Tenant // guarded by mu
	deliveries []*Delivery          // guarded by mu, and so is what they point to
}

// tenantKey identifies a tenant: the same code may exist on two platforms.
type tenantKey struct{ platform, code string }

func compareTenants(a, b Tenant) int {
	return cmp.Or(strings.Compare(a.Platform.Code, b.Platform.Code), strings.Compare(a.Code, b.Code))
}

// Delivery is a webhook that reached the receiver.
type Delivery struct {
	Platform, Tenant string // their codes; empty if the body has none
	Summary          string // what the tenant may use, cut short if it is long
	WebhookID        string // the header webhook-id
	Digest           string // SHA-256 of the body, in hex
	Applied          bool   // the receiver has stored this snapshot, whatever it answered
	Status           int    // the status of the answer; 0 if there was no complete answer
}

const deliveriesSize = 10000

// NewReceiver returns a receiver without tenants and faults.
func NewReceiver() *Receiver {
	return &Receiver{tenants: make(map[tenantKey]Tenant)}
}

// Fail makes the receiver fail; the zero Fault ends that. The receiver does not apply a webhook that the
// fault answers, only one that gets the real answer.
func (rc *Receiver) Fail(f Fault) { rc.faults.set("", f) }

// FailFor makes the receiver fail for one tenant code, instead of the fault that Fail has set. After the
// zero Fault that one applies again.
func (rc *Receiver) FailFor(tenantCode string, f Fault) { rc.faults.set(tenantCode, f) }

// Tenants returns what each tenant may use now, sorted by platform and code.
func (rc *Receiver) Tenants() []Tenant {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return slices.SortedFunc(maps.Values(rc.tenants), compareTenants)
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

// ServeHTTP receives a webhook. For a fault that closes the connection it panics with
// [http.ErrAbortHandler], which [http.Server] handles.
func (rc *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, refusal := readPost(w, r, maxCallBody)
	if rc.OnDelivery != nil {
		rc.OnDelivery(r, body)
	}
	t, err := readSnapshot(body)
	d := &Delivery{
		Platform:  t.Platform.Code,
		Tenant:    t.Code,
		Summary:   "not a webhook about a tenant",
		WebhookID: r.Header.Get("Webhook-Id"),
		Digest:    digest(body),
	}
	if t.Code != "" {
		d.Summary = text.Clip(t.String(), 200)
	}
	rc.record(d)
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
			rc.tenants[tenantKey{t.Platform.Code, t.Code}] = t // it replaces everything that was known about the tenant
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

func (rc *Receiver) record(d *Delivery) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.deliveries = append(rc.deliveries, d)
	rc.deliveries = slices.Delete(rc.deliveries, 0, max(0, len(rc.deliveries)-deliveriesSize))
}
