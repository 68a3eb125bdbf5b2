package sandbox

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Receiver is the customer's application as far as provisioning goes: an
// [http.Handler], on any path, that takes each snapshot it is sent and keeps
// what the tenant may use. It is safe for concurrent use.
//
// A webhook that is no snapshot of a tenant, such as one of another type, is
// noted and answered with 200; one that is not JSON with 400, one whose fields
// have wrong types with 422.
type Receiver struct {
	// OnDelivery, when set before serving, sees every webhook as it arrives.
	// Calls come concurrently.
	OnDelivery func(r *http.Request, body []byte)

	faulty faulty

	mu         sync.Mutex
	faults     map[string]*faulty // by tenant code, guarded by mu
	tenants    map[lane]Tenant    // guarded by mu
	deliveries []*Delivery        // what they point to, too, guarded by mu
}

// lane tells tenants apart.
type lane struct{ platform, code string }

// Delivery is a webhook that reached the receiver.
type Delivery struct {
	At, Until        time.Time // Until is zero while it is under way
	Platform, Tenant string    // their codes; empty when the body has none
	WebhookID        string    // the header webhook-id
	Digest           string    // SHA-256 of the body, in hex
	Applied          bool      // the receiver holds this snapshot, whatever it answered
	Status           int       // as answered; 0 when there was no whole answer
}

const deliveriesSize = 10000

// NewReceiver returns a receiver in good health that knows no tenant yet.
func NewReceiver() *Receiver {
	return &Receiver{faults: make(map[string]*faulty), tenants: make(map[lane]Tenant)}
}

// Behave makes the receiver fail, hang or answer oddly; a zero Fault heals it.
// What a fault answers or delays is not applied, unless the fault says so or
// the real answer follows.
func (rc *Receiver) Behave(f Fault) { rc.faulty.set(f) }

// BehaveTo does the same to the tenants of one code, and goes before Behave for
// them; a zero Fault makes Behave count for them again.
func (rc *Receiver) BehaveTo(tenantCode string, f Fault) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	box := &faulty{}
	box.set(f)
	rc.faults[tenantCode] = box
}

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
		At:        time.Now(),
		Platform:  t.Platform,
		Tenant:    t.Code,
		WebhookID: r.Header.Get("Webhook-Id"),
		Digest:    digest(body),
	}
	rc.note(d)
	rc.fault(t.Code).serve(w, r, func() answer {
		switch {
		case refusal != nil:
			return *refusal
		case err != nil && !json.Valid(body):
			return textAnswer(http.StatusBadRequest, "not JSON: "+err.Error())
		case err != nil:
			return textAnswer(http.StatusUnprocessableEntity, err.Error())
		}
		return rc.apply(d, t)
	}, func(status int) { rc.finish(d, status) })
}

// fault returns what stands between the receiver and this tenant.
func (rc *Receiver) fault(tenantCode string) *faulty {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if box := rc.faults[tenantCode]; box != nil && !box.healthy() {
		return box
	}
	return &rc.faulty
}

func (rc *Receiver) note(d *Delivery) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.deliveries = keepLast(append(rc.deliveries, d), deliveriesSize)
}

// apply brings the tenant in line with the snapshot: it replaces all that was
// known.
func (rc *Receiver) apply(d *Delivery, t Tenant) answer {
	if t.Code == "" {
		return jsonAnswer(http.StatusOK, map[string]bool{"applied": false})
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	t.Changed = time.Now()
	rc.tenants[lane{t.Platform, t.Code}] = t
	d.Applied = true
	return jsonAnswer(http.StatusOK, map[string]bool{"applied": true})
}

func (rc *Receiver) finish(d *Delivery, status int) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	d.Until, d.Status = time.Now(), status
}
