package admin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"usher/internal/admin/page"
	"usher/internal/admin/status"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/text"
	"usher/webhookgate"
)

const (
	// maxDecisions is how many decisions are remembered about webhooks that passed all checks of
	// their sender, and as many again about those that did not: requests without the secret must
	// not push out the others.
	maxDecisions = 1000

	// maxPayload limits a payload that is remembered. All of them together have 16 MiB at most.
	maxPayload = 16 << 10

	// maxFaults, maxHeader and maxText limit the rest. Senders can make everything long, a tenant's code, too.
	maxFaults = 20
	maxHeader = 8 << 10
	maxText   = 512
)

// Decisions remembers the gate's last decisions, in memory. Without an inbox that is all that usher knows
// about a webhook. With one, it is what the inbox does not have: duplicates, and webhooks that were rejected.
// It is safe for concurrent use. A nil *Decisions is empty.
//
// Contact data is neither shown nor searched. It is removed from a payload when somebody looks at it: few are
// looked at, and to do it for every webhook that comes would cost more.
type Decisions struct {
	payloads bool

	mu     sync.Mutex   // guards what follows
	seq    int64        // the last number
	all    []*decision  // in the order of their numbers
	counts map[bool]int // how many there are, by decision.stranger

	invalid    map[webhookgate.LaneName]int // how many webhooks are invalid since the last accepted snapshot; see Invalid
	lastReason string                       // why the last of them is invalid
}

// decision is one decision as the API shows it, without the payload and what that changed. It is shared with
// readers, so it never changes.
type decision struct {
	WebhookDetail
	seq      int64  // from 1, in the order in which they were made
	stranger bool   // the sender did not pass the checks
	body     []byte // as it came, with contacts; nil if it is not kept
	snapshot bool   // it is a complete state of its tenant that was not invalid; body may be nil
}

// NewDecisions returns an empty memory. With payloads it also keeps the payloads of webhooks that passed the checks.
func NewDecisions(payloads bool) *Decisions {
	return &Decisions{payloads: payloads, counts: make(map[bool]int), invalid: make(map[webhookgate.LaneName]int)}
}

// Add remembers a decision, unless the inbox has the webhook. It is made for webhookgate.Config.Answered.
func (d *Decisions) Add(o webhookgate.Outcome) {
	if o.Stored {
		return
	}
	e := new(decision)
	e.Webhook = Webhook{
		Received: o.At,
		Decision: o.Decision,
		Status:   o.Status,
		Why:      text.Clip(o.Why, maxText),
		Tries:    o.Tries,
	}
	e.Original = o.DuplicateOf
	faults := o.Faults
	if o.Invalid != nil {
		faults = o.Invalid.Faults // they say how many more there are
	}
	e.Faults = shownFaults(faults, maxFaults)
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
	w, whole := o.Webhook, true
	if o.Invalid != nil {
		w, whole = &o.Invalid.Webhook, !o.Invalid.Cut
	}
	if e.stranger = w == nil; !e.stranger {
		e.UUID = w.ID
		e.Type = text.Clip(w.Type, maxText)
		e.Platform = text.Clip(w.Lane.Platform, maxText)
		e.Tenant = text.Clip(w.Lane.Tenant, maxText)
		// A duplicate changes nothing, and its payload is that of its original.
		e.snapshot = d.payloads && o.DuplicateOf == "" && w.Snapshot && o.Invalid == nil
		if d.payloads && o.DuplicateOf == "" && len(w.Body) <= maxPayload && whole {
			e.body = w.Body
			if sizeOf(w.Header) <= maxHeader {
				e.sent = w.Header
			}
		}
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
	_, counted := d.invalid[e.lane()]
	switch {
	case o.Invalid != nil:
		if d.lastReason = e.Why; counted || len(d.invalid) < maxDecisions {
			d.invalid[e.lane()]++
		}
	case o.Webhook != nil && o.Webhook.Snapshot && o.Status == http.StatusOK:
		delete(d.invalid, e.lane())
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
		of.Tenants = append(of.Tenants, cmp.Or(page.TenantName(lane.Platform, lane.Tenant), unknownTenant))
	}
	slices.Sort(of.Tenants)
	of.Tenants = slices.Compact(of.Tenants)
	return n, of
}

func sizeOf(h http.Header) (n int) {
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return n
}

// erase drops everything about a tenant.
func (d *Decisions) erase(platform, tenant string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = slices.DeleteFunc(d.all, func(e *decision) bool {
		gone := e.Platform == platform && e.Tenant == tenant
		if gone {
			d.counts[e.stranger]--
		}
		return gone
	})
}

// list returns the decisions that f selects, the newest first. f.State is a decision.
func (d *Decisions) list(f inbox.Filter) (out []*decision) {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	all := slices.Clone(d.all)
	d.mu.Unlock()
	for _, e := range slices.Backward(all) {
		if e.matches(&f) {
			out = append(out, e)
		}
		if f.Limit > 0 && len(out) == f.Limit {
			break
		}
	}
	return out
}

func (e *decision) matches(f *inbox.Filter) bool {
	switch {
	case f.State != "" && e.Decision != string(f.State),
		f.Tenant != "" && e.Tenant != f.Tenant, f.Platform != nil && e.Platform != *f.Platform,
		e.Received.Before(f.Since), !f.Until.IsZero() && !e.Received.Before(f.Until),
		f.Before != 0 && e.seq >= f.Before:
		return false
	case f.Search == "", f.Search == e.ID:
		return true
	}
	search := strings.ToLower(f.Search)
	in := func(s string) bool { return strings.Contains(strings.ToLower(s), search) }
	// Removing contacts takes longer than searching.
	return slices.ContainsFunc([]string{e.Tenant, e.Platform, e.Type, e.UUID, e.Why, e.From}, in) ||
		in(string(e.body)) && in(string(withoutContacts(e.body)))
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

// neighbours returns the ids of the decisions about a tenant before and after this one.
func (d *Decisions) neighbours(w *Webhook) (before, after string) {
	all := d.list(inbox.Filter{Tenant: w.Tenant, Platform: &w.Platform}) // the newest first
	at := slices.IndexFunc(all, func(other *decision) bool { return other.ID == w.ID })
	if at > 0 {
		after = all[at-1].ID
	}
	if at >= 0 && at+1 < len(all) {
		before = all[at+1].ID
	}
	return before, after
}

// payload returns the payload without contacts, or nil if it is not kept.
func (e *decision) payload() []byte {
	if e == nil {
		return nil
	}
	return withoutContacts(e.body)
}

// before returns the snapshots of a tenant before a decision: the last that the receiver took, and the
// last of all. They are nil if none is known, or if the decision is about an event that cannot be
// compared with a snapshot.
func (d *Decisions) before(e *decision) (taken, last *decision) {
	if !e.snapshot && e.Decision != "rejected" {
		return nil, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, old := range slices.Backward(d.all) {
		if old.seq >= e.seq || !old.snapshot || old.lane() != e.lane() {
			continue
		}
		if last == nil {
			last = old
		}
		switch {
		case old.Decision != "forwarded":
		case old.body == nil: // it is not kept, and what came before it was changed by it
			return nil, nil
		default:
			return old, last
		}
	}
	return nil, last
}

// withoutContacts returns a payload as compact JSON, without the members called contacts: a
// customised payload may have them anywhere. Everything else stays as it was written, also the
// numbers and the order of members: it is compared with the next payload, and people read it. It
// returns nil if the payload is not JSON.
func withoutContacts(body []byte) (out []byte) {
	var compact bytes.Buffer
	if json.Compact(&compact, body) != nil {
		return nil
	}
	src := compact.Bytes()
	d := json.NewDecoder(bytes.NewReader(src))
	d.UseNumber() // a float64 would refuse 1e999
	// They are places in src. Up to copied it is copied or left out; at is the end of the last token.
	copied, at := 0, 0
	for {
		begin := at
		token, err := d.Token()
		if err != nil { // the end
			return append(out, src[copied:]...)
		}
		at = int(d.InputOffset())
		name, _ := token.(string)
		if !strings.EqualFold(name, "contacts") || at == len(src) || src[at] != ':' { // a colon follows only a name
			continue
		}
		var left json.RawMessage
		_ = d.Decode(&left)
		at = int(d.InputOffset())
		out = append(out, src[copied:max(copied, begin)]...) // begin is before the comma, if there is one
		if copied = at; out[len(out)-1] == '{' && src[at] == ',' {
			copied++
		}
	}
}
