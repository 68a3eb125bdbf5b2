package webhookgate

import (
	"net/netip"
	"time"

	"usher/webhookgate/content"
)

// An Outcome is the result of one request, to be shown to people.
type Outcome struct {
	At          time.Time
	Took        time.Duration
	From        netip.Addr      // the sender's; invalid if unknown
	Status      int             // of the answer to the sender
	Decision    string          // forwarded, queued, duplicate, rejected or failed
	Why         string          // why it was rejected or failed
	Faults      []content.Fault // the first faults of its body
	DuplicateOf string          // the webhook-id of the snapshot that the receiver already holds
	Tries       int             // at the receiver, while the sender waited
	Receiver    int             // the status of the last try; zero: no answer, or accepted
	Webhook     *Webhook        // nil if it did not pass every check
}

// maxShownFaults is enough for people, and many outcomes are kept in memory.
const maxShownFaults = 20

func (v *visit) outcome(a *answer, at time.Time, took time.Duration) Outcome {
	o := Outcome{
		At: at, Took: took, From: v.from, Status: a.status, Decision: a.Decision,
		Why: a.Error, Faults: a.Faults[:min(len(a.Faults), maxShownFaults)], Tries: a.Tries, Webhook: v.webhook,
	}
	if a.Decision == duplicate {
		o.DuplicateOf = a.Webhook
	}
	if a.Receiver != nil {
		o.Receiver = a.Receiver.Status
	}
	return o
}
