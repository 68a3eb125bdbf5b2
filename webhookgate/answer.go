package webhookgate

import (
	"encoding/json"
	"net/http"
	"net/netip"
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

// retryAfter is the Retry-After of every 503: long enough for a burst of webhooks to pass, short
// enough that no change waits longer than it must.
const retryAfter = 5 * time.Second

// maxFaultBytes limits the faults in an answer: a body can have a hundred thousand of them, and usher holds
// an answer until the sender has read it.
const maxFaultBytes = 16 << 10

// An answer is usher's answer to the sender. The package documentation describes its JSON
// fields. Copies of a webhook may share an answer, so nobody changes it once it is made.
type answer struct {
	status int
	header map[string]string // further headers; nil: none

	// receivers is the receiver's answer to a question. If it is set, the sender gets its headers
	// and body instead of the JSON fields.
	receivers *receiver.Try
	buyers    bool // it is usher's answer to a question: the sender gets a sentence for the buyer instead

	Decision string           `json:"decision"`
	Error    string           `json:"error,omitempty"`
	Faults   []content.Fault  `json:"faults,omitempty"`
	Webhook  string           `json:"webhook,omitempty"`
	Tries    int              `json:"tries,omitempty"`
	Receiver *receiversAnswer `json:"receiver,omitempty"`
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

// busy tells the sender to send the webhook again later.
func busy(why string) *answer {
	return &answer{
		status:   http.StatusServiceUnavailable,
		header:   map[string]string{"Retry-After": guard.Seconds(retryAfter)},
		Decision: failed,
		Error:    why,
	}
}

func (a *answer) with(name, value string) *answer {
	if a.header == nil {
		a.header = make(map[string]string)
	}
	a.header[name] = value
	return a
}

func shuttingDown() *answer {
	return busy("usher is shutting down; please send this webhook again")
}

func gone() *answer {
	return &answer{status: statusHungUp, Decision: failed, Error: ErrGone.Error()}
}

// forBuyer returns the answer with the body that the service shows to a buyer. Others may share the answer.
func (a answer) forBuyer() *answer {
	a.buyers = true
	return &a
}

// duplicateOf is the answer to a copy of a snapshot that the receiver holds.
func duplicateOf(webhook string) *answer {
	return &answer{status: http.StatusOK, Decision: duplicate, Webhook: webhook}
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

// An Outcome is the result of one request, to be shown to people.
type Outcome struct {
	At          time.Time
	Took        time.Duration
	From        netip.Addr      // the other end of the connection; invalid if it is a unix socket
	Status      int             // of the answer to the sender
	Decision    string          // forwarded, queued, duplicate, rejected or failed
	Why         string          // why it was rejected or failed
	Faults      []content.Fault // the first faults of the body
	DuplicateOf string          // the webhook-id of the snapshot that the receiver already holds
	Tries       int             // how often usher tried the receiver while the sender waited
	Receiver    int             // the receiver's status if the last try failed; zero: no answer, or no failure
	Webhook     *Webhook        // nil if a check failed
	Invalid     *Invalid        // not nil if only the content is invalid
	Stored      bool            // the inbox has the webhook
	Question    bool            // it asks the receiver a question
}

// maxShownFaults is how many faults an Outcome has. The admin port keeps many outcomes in memory.
const maxShownFaults = 20

// noteAnswer copies the answer into the outcome.
func (in *arrival) noteAnswer(a *answer) {
	in.Took = time.Since(in.At)
	in.Status = a.status
	in.Decision = a.Decision
	in.Why = a.Error
	in.Tries = a.Tries
	in.Faults = a.Faults[:min(len(a.Faults), maxShownFaults)]
	if a.Decision == duplicate {
		in.DuplicateOf = a.Webhook
	}
	if a.Receiver != nil {
		in.Receiver = a.Receiver.Status
	}
}
