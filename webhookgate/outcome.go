package webhookgate

import (
	"net/netip"
	"time"
)

// An Outcome is what became of one request, for those who show it to people.
type Outcome struct {
	At          time.Time
	Took        time.Duration
	From        netip.Addr // the sender's; not valid when it can't be told
	Status      int        // that the sender was answered
	Decision    string
	Why         string   // it was rejected or failed
	Faults      []Fault  // of its body: the first of them
	DuplicateOf string   // the webhook-id of what the receiver holds already
	Tries       int      // at the receiver, while the sender waited
	Receiver    int      // the status of the last of them; zero: none, or an acceptance
	Webhook     *Webhook // nil when it did not pass every check
}

// maxShownFaults are enough for people; outcomes are kept, and many of them.
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
