package webhookgate

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"usher/internal/content"
	"usher/internal/guard"
	"usher/internal/receiver"
)

// The decisions, as senders, logs and metrics know them.
const (
	forwarded = "forwarded"
	queued    = "queued"
	duplicate = "duplicate"
	rejected  = "rejected"
	failed    = "failed"
)

const (
	// retryAfter is the Retry-After of every 503: long enough for a burst of webhooks to pass, short
	// enough that no change waits longer than it must.
	retryAfter = 5 * time.Second

	// maxFaultBytes limits the faults in an answer: a body can have a hundred thousand of them, and usher holds
	// an answer until the sender has read it.
	maxFaultBytes = 16 << 10

	// statusHungUp is for logs and the admin port only: no sender gets it.
	statusHungUp = 499

	// forBuyers is the answer to a question that usher could not ask, or that got no answer. The service shows it to
	// the buyer at the checkout.
	forBuyers = "This change cannot be made at the moment. Please try again in a few minutes."
)

// An answer is usher's answer to the sender. Copies of a webhook may share an answer, so nobody changes it once it is
// made.
type answer struct {
	status int
	header map[string]string // further headers; nil: none

	// receivers is the receiver's answer to a question. If it is set, the sender gets its headers
	// and body instead of the JSON fields.
	receivers *receiver.Try
	buyers    bool // it is usher's answer to a question: the sender gets a sentence for the buyer instead

	Decision string           `json:"decision"`         // in the Usher-Decision header, too
	Error    string           `json:"error,omitempty"`  // a sentence that says what is wrong; empty on a 200
	Faults   []content.Fault  `json:"faults,omitempty"` // of the body; the first maxFaultBytes of them
	Webhook  string           `json:"webhook,omitempty"`
	Tries    int              `json:"tries,omitempty"`    // of the receiver
	Receiver *receiversAnswer `json:"receiver,omitempty"` // the last one, if it was not a 2xx
}

type receiversAnswer struct {
	Status int `json:"status"`
}

// reject is the answer to a request that is the sender's fault.
func reject(status int, why string) *answer {
	return &answer{status: status, Decision: rejected, Error: why}
}

// faulty is the answer to a body with faults. It lists the first of them, at most maxFaultBytes.
func faulty(status int, faults ...content.Fault) *answer {
	rejection := reject(status, content.Summary(faults))
	size := 0
	for _, f := range faults {
		shown, _ := json.Marshal(f) // strings can always be shown
		if size += len(shown) + len(","); size > maxFaultBytes {
			break
		}
		rejection.Faults = append(rejection.Faults, f)
	}
	return rejection
}

// fail is the answer to a request that usher or the receiver could not serve.
func fail(status int, why string) *answer {
	return &answer{status: status, Decision: failed, Error: why}
}

// busy tells the sender to send the webhook again later.
func busy(why string) *answer {
	return fail(http.StatusServiceUnavailable, why+"; please send this webhook again").
		with("Retry-After", guard.Seconds(retryAfter))
}

func shuttingDown() *answer { return busy("usher is shutting down") }

// duplicateOf is the answer to a copy of a snapshot that the receiver holds.
func duplicateOf(webhook string) *answer {
	return &answer{status: http.StatusOK, Decision: duplicate, Webhook: webhook}
}

func (a *answer) with(name, value string) *answer {
	if a.header == nil {
		a.header = make(map[string]string)
	}
	a.header[name] = value
	return a
}

// forBuyer returns the answer with the body that the service shows to a buyer. Others may share the answer.
func (a answer) forBuyer() *answer {
	a.buyers = true
	return &a
}

func (a *answer) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Usher-Decision", a.Decision)
	for name, value := range a.header {
		h.Set(name, value)
	}
	switch {
	case a.buyers:
		guard.WriteJSON(w, a.status, []string{forBuyers})
		return
	case a.receivers == nil:
		guard.WriteJSON(w, a.status, a)
		return
	}
	for _, name := range []string{"Content-Type", "Content-Encoding"} { // a reader of the body needs these
		h[name] = a.receivers.Header.Values(name) // also if it is nil: then net/http does not guess a type
	}
	if a.status != http.StatusNoContent && a.status != http.StatusNotModified { // these have no body, and no length
		h.Set("Content-Length", strconv.Itoa(len(a.receivers.Body)))
	}
	w.WriteHeader(a.status)
	w.Write(a.receivers.Body) // an error means that the sender has gone
}
