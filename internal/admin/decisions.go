package admin

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"usher/internal/admin/status"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/text"
	"usher/internal/view"
	"usher/webhookgate"
)

const (
	// maxDecisions is how many decisions are remembered about webhooks that passed all checks of
	// their sender, and as many again about those that did not: requests without the secret must
	// not push out the others.
	maxDecisions = 1000

	// maxFaults and maxText limit what is remembered of one. Senders can make everything long, a tenant's code, too.
	maxFaults = 20
	maxText   = 512
)

// Decisions remembers the last decisions of a gate without an inbox, in memory: that is all that usher knows of
// its webhooks. It keeps no payload. It is safe for concurrent use; a nil *Decisions is empty.
type Decisions struct {
	mu     sync.Mutex   // guards what follows
	seq    int64        // the last number
	all    []*decision  // in the order of their numbers
	counts map[bool]int // how many there are, by decision.stranger

	invalid    map[webhookgate.LaneName]int // how many webhooks are invalid since the last accepted snapshot; see Invalid
	lastReason string                       // why the last of them is invalid
}

// decision is one decision. It is shared with readers, so it never changes.
type decision struct {
	view.Detail
	seq      int64 // from 1, in the order in which they were made
	stranger bool  // the sender did not pass the checks
}

// NewDecisions returns an empty memory.
func NewDecisions() *Decisions {
	return &Decisions{counts: make(map[bool]int), invalid: make(map[webhookgate.LaneName]int)}
}

// Add remembers a decision. It is made for webhookgate.Config.Answered.
func (d *Decisions) Add(o webhookgate.Outcome) {
	e := new(decision)
	e.Webhook = view.Webhook{
		Received: o.At,
		Decision: o.Decision,
		Status:   o.Status,
		Why:      text.Clip(o.Why, maxText),
		Tries:    o.Tries,
	}
	e.Original = o.DuplicateOf
	e.Faults = view.ShownFaults(o.Faults, maxFaults)
	if o.From.IsValid() {
		e.From = o.From.String()
	}
	switch {
	case o.Decision == "forwarded" && o.Status < 300:
		e.Answer = "accepted"
	case o.Decision == "forwarded": // the receiver's answer to a webhook of USHER_WEBHOOK_SYNC_TYPES
		e.Answer = lane.Try{Status: o.Status}.Words()
	case o.Tries > 0 || o.Receiver != 0:
		e.Answer = lane.Try{Status: o.Receiver}.Words()
	}
	w := o.Webhook
	if o.Invalid != nil {
		w = &o.Invalid.Webhook
		e.Faults = view.ShownFaults(o.Invalid.Faults, maxFaults) // they say how many more there are
	}
	if e.stranger = w == nil; !e.stranger {
		e.UUID = w.ID
		e.Type = text.Clip(w.Type, maxText)
		e.Platform = text.Clip(w.Lane.Platform, maxText)
		e.Tenant = text.Clip(w.Lane.Tenant, maxText)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.countInvalid(e, &o)
	d.seq++
	e.seq, e.ID = d.seq, "d"+strconv.FormatInt(d.seq, 10)
	d.all = append(d.all, e)
	if d.counts[e.stranger]++; d.counts[e.stranger] > maxDecisions { // drop the oldest of its kind
		d.counts[e.stranger]--
		i := slices.IndexFunc(d.all, func(old *decision) bool { return old.stranger == e.stranger })
		d.all = slices.Delete(d.all, i, i+1)
	}
}

// countInvalid is called for each decision. d.mu is held.
func (d *Decisions) countInvalid(e *decision, o *webhookgate.Outcome) {
	_, counted := d.invalid[e.Lane()]
	switch {
	case o.Invalid != nil:
		if d.lastReason = e.Why; counted || len(d.invalid) < maxDecisions {
			d.invalid[e.Lane()]++
		}
	case o.Webhook != nil && o.Webhook.Snapshot && o.Status == http.StatusOK:
		delete(d.invalid, e.Lane())
	}
}

// Invalid returns how many webhooks are invalid although their sender was right, each until a later snapshot
// of the same tenant was accepted. That is for an usher without an inbox, which would store them.
func (d *Decisions) Invalid() (n int, of status.Details) {
	if d == nil {
		return 0, of
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	of.Reason, of.Link = d.lastReason, "/webhooks?state=rejected"
	for lane, times := range d.invalid {
		n += times
		of.Tenants = append(of.Tenants, cmp.Or(view.TenantName(lane.Platform, lane.Tenant), unknownTenant))
	}
	slices.Sort(of.Tenants)
	of.Tenants = slices.Compact(of.Tenants)
	return n, of
}

// list returns the decisions that f selects, the newest first. f.State is a decision.
func (d *Decisions) list(f inbox.Filter) (out []*decision) {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range slices.Backward(d.all) {
		if e.matches(&f) {
			out = append(out, e)
		}
		if len(out) == f.Limit {
			break
		}
	}
	return out
}

func (e *decision) matches(f *inbox.Filter) bool {
	return (f.State == "" || e.Decision == string(f.State)) &&
		(f.Tenant == "" || e.Tenant == f.Tenant) && (f.Platform == nil || e.Platform == *f.Platform) &&
		!e.Received.Before(f.Since) && (f.Until.IsZero() || e.Received.Before(f.Until)) &&
		(f.Before == 0 || e.seq < f.Before)
}

// get returns the decision with that number, or nil if it is not remembered.
func (d *Decisions) get(seq int64) *decision {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i, found := slices.BinarySearchFunc(d.all, seq, func(e *decision, seq int64) int {
		return cmp.Compare(e.seq, seq)
	})
	if !found {
		return nil
	}
	return d.all[i]
}

// unknownTenant stands for the tenant of an invalid webhook that does not say for certain whose it is.
const unknownTenant = "an unknown tenant"
