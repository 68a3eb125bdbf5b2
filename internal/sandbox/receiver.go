package sandbox

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"

	"usher/internal/text"
)

// Receiver is the provisioning part of the customer's application: an [http.Handler], for any path, that
// reads what each tenant may use. It is safe for concurrent use.
//
// It answers 200 also to a webhook that is not a snapshot of a tenant, for example of another type. It answers
// 400 if the body is not JSON, and 422 if a field has the wrong type.
type Receiver struct {
	// OnDelivery is called when a webhook arrives, and OnAnswer when it is answered. Both may be called
	// concurrently. Set them before serving.
	OnDelivery func(r *http.Request, body []byte)
	OnAnswer   func(Delivery)

	faults faults // by tenant code; the empty code is for all other tenants

	mu         sync.Mutex
	deliveries []Delivery // guarded by mu
}

// Delivery is a webhook that reached the receiver.
type Delivery struct {
	Summary   string // what the tenant may use, cut short if it is long
	WebhookID string // the header webhook-id
	Status    int    // the status of the answer; 0 if there was no complete answer
}

const deliveriesSize = 10000

// NewReceiver returns a receiver without faults.
func NewReceiver() *Receiver { return new(Receiver) }

// Fail makes the receiver fail; the zero Fault ends that.
func (rc *Receiver) Fail(f Fault) { rc.faults.set("", f) }

// FailFor makes the receiver fail for one tenant code, instead of the fault that Fail has set. After the
// zero Fault that one applies again.
func (rc *Receiver) FailFor(tenantCode string, f Fault) { rc.faults.set(tenantCode, f) }

// Deliveries returns the last 10000 webhooks in the order of their answers.
func (rc *Receiver) Deliveries() []Delivery {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return slices.Clone(rc.deliveries)
}

// ServeHTTP receives a webhook. For a fault that closes the connection it panics with
// [http.ErrAbortHandler], which [http.Server] handles.
func (rc *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, refusal := readPost(w, r, maxCallBody)
	if rc.OnDelivery != nil {
		rc.OnDelivery(r, body)
	}
	t, err := readSnapshot(body)
	d := Delivery{Summary: "not a webhook about a tenant", WebhookID: r.Header.Get("Webhook-Id")}
	if t.Code != "" {
		d.Summary = text.Clip(t.String(), 200)
	}
	rc.faults.take(t.Code, "").serve(w, r, refusal, func() answer {
		switch {
		case err != nil && !json.Valid(body):
			return textAnswer(http.StatusBadRequest, "not JSON: "+err.Error())
		case err != nil:
			return textAnswer(http.StatusUnprocessableEntity, err.Error())
		}
		return textAnswer(http.StatusOK, "ok")
	}, func(status int) {
		d.Status = status
		rc.record(d)
		if rc.OnAnswer != nil {
			rc.OnAnswer(d)
		}
	})
}

func (rc *Receiver) record(d Delivery) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.deliveries = append(rc.deliveries, d)
	rc.deliveries = slices.Delete(rc.deliveries, 0, max(0, len(rc.deliveries)-deliveriesSize))
}
