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
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/admin/page"
	"usher/internal/inbox/store"
	"usher/internal/text"
	"usher/webhookgate"
	"usher/webhookgate/content"
)

const (
	// maxDecisions is how many decisions are remembered of those that passed the gate's
	// checks, and as many again of those that did not: senders without the
	// secret must not push the others out.
	maxDecisions = 1000

	// maxPayload bounds what is remembered of one payload, maxPayloads of all.
	maxPayload  = 64 << 10
	maxPayloads = 16 << 20

	// maxHeader and maxText bound the rest: a tenant's code, too, is what others wrote.
	maxHeader = 8 << 10
	maxText   = 512
)

// Decisions remembers the gate's last decisions, in memory. Without an inbox it is all that is known of a webhook; with
// one it has what the inbox does not have: duplicates and what was turned away. It is safe for concurrent use.
//
// No contact data is shown or searched: contacts are taken out of a payload whenever
// somebody looks at it. (Few do: to take them out of every webhook that comes costs more.)
type Decisions struct {
	payloads bool

	mu      sync.Mutex // guards what follows
	seq     int64
	passed  []*decision // in order, as is refused
	refused []*decision
	bytes   int // of payloads
	last    map[webhookgate.Lane]snapshots
}

// decision is one, as the API shows it, but for its payload and what it changed.
type decision struct {
	WebhookDetail           // its body is as it came, with contacts; nil when it is not kept
	seq           int64     // from 1, in order
	earlier       snapshots // of its tenant, before it
}

// snapshots are the seq of a tenant's last ones: the last that the receiver took, and the last of all; zero: none is known.
type snapshots struct{ taken, any int64 }

// NewDecisions returns an empty memory. With payloads it also keeps those of the webhooks
// that passed the checks.
func NewDecisions(payloads bool) *Decisions {
	return &Decisions{payloads: payloads, last: make(map[webhookgate.Lane]snapshots)}
}

// Add notes a decision, unless the inbox has the webhook: it is to be seen there. Add is made for
// webhookgate.Config.Answered.
func (d *Decisions) Add(o webhookgate.Outcome) {
	if o.Stored {
		return
	}
	e := new(decision)
	e.Webhook = Webhook{Received: o.At, Decision: o.Decision, Status: o.Status, Why: text.Clip(o.Why, maxText), Tries: o.Tries}
	e.Original = o.DuplicateOf
	for _, f := range o.Faults {
		e.Faults = append(e.Faults, content.Fault{Path: text.Clip(f.Path, maxText), Message: text.Clip(f.Message, maxText)})
	}
	if o.From.IsValid() {
		e.From = o.From.String()
	}
	switch {
	case o.Decision == "forwarded" && o.Status < 300:
		e.Answer = "accepted"
	case o.Decision == "forwarded": // the receiver's answer to a question
		e.Answer = store.Attempt{Status: o.Status}.Words()
	case o.Tries > 0 || o.Receiver != 0:
		e.Answer = store.Attempt{Status: o.Receiver}.Words()
	}
	w, whole := o.Webhook, true
	if o.Refusal != nil {
		w, whole = &o.Refusal.Webhook, !o.Refusal.Cut
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if w == nil {
		d.refused, _ = d.push(d.refused, e)
		return
	}
	e.Webhook.Webhook, e.Type, e.Platform, e.Tenant = w.ID, text.Clip(w.Type, maxText), text.Clip(w.Lane.Platform, maxText), text.Clip(w.Lane.Tenant, maxText)
	// A duplicate changes nothing, and what it says stands with its original.
	if d.payloads && o.DuplicateOf == "" && len(w.Body) <= maxPayload && whole {
		e.body = w.Body
		if sizeOf(w.Header) <= maxHeader {
			e.Header = w.Header
		}
	}
	var gone *decision
	if d.passed, gone = d.push(d.passed, e); gone != nil {
		d.forget(gone)
	}
	last := d.last[e.lane()]
	switch {
	case e.body == nil:
	case o.Refusal != nil:
		e.earlier.taken = last.taken
	case w.Snapshot:
		e.earlier = last
		if last.any = e.seq; e.Decision == "forwarded" {
			last.taken = e.seq
		}
		d.last[e.lane()] = last
	}
	d.bytes += len(e.body)
	d.dropPayloads()
}

// push numbers an entry, adds it to those of its kind, and returns what has to go for it. d.mu is held.
func (d *Decisions) push(all []*decision, e *decision) (kept []*decision, gone *decision) {
	d.seq++
	e.seq, e.ID = d.seq, decisionID(d.seq)
	if len(all) == maxDecisions {
		gone, all[0] = all[0], nil
		all = all[1:]
	}
	return append(all, e), gone
}

func decisionID(seq int64) string { return "d" + strconv.FormatInt(seq, 10) }

func sizeOf(h http.Header) (n int) {
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return n
}

// forget notes that an entry's payload goes. d.mu is held.
func (d *Decisions) forget(e *decision) {
	d.bytes -= len(e.body)
	if d.last[e.lane()].any == e.seq {
		delete(d.last, e.lane())
	}
}

// dropPayloads drops the oldest payloads, while there are too many. Entries are handed out: what is changed is a
// copy. d.mu is held.
func (d *Decisions) dropPayloads() {
	for i := 0; d.bytes > maxPayloads; i++ {
		if e := d.passed[i]; e.body != nil {
			d.forget(e)
			bare := *e
			bare.body, bare.Header = nil, nil
			d.passed[i] = &bare
		}
	}
}

// erase drops all that is remembered of a tenant.
func (d *Decisions) erase(platform, tenant string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.passed = slices.DeleteFunc(slices.Clone(d.passed), func(e *decision) bool {
		gone := e.Platform == platform && e.Tenant == tenant
		if gone {
			d.forget(e)
		}
		return gone
	})
}

// list returns those that f selects, its State being what was decided; the newest first. They are shared: read only.
func (d *Decisions) list(f store.Filter) (out []*decision) {
	d.mu.Lock()
	all := slices.Concat(d.passed, d.refused)
	d.mu.Unlock()
	slices.SortFunc(all, func(a, b *decision) int { return cmp.Compare(b.seq, a.seq) })
	for _, e := range all {
		if e.fits(&f) {
			out = append(out, e)
		}
		if f.Limit > 0 && len(out) == f.Limit {
			break
		}
	}
	return out
}

func (e *decision) fits(f *store.Filter) bool {
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
	for _, s := range []string{e.Tenant, e.Platform, e.Type, e.Webhook.Webhook, e.Why, e.From, string(withoutContacts(e.body))} {
		if strings.Contains(strings.ToLower(s), search) {
			return true
		}
	}
	return false
}

// get returns the entry of that number; nil where it is not remembered (any more).
func (d *Decisions) get(seq int64) *decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, all := range [][]*decision{d.passed, d.refused} {
		if i, ok := slices.BinarySearchFunc(all, seq, func(e *decision, seq int64) int { return cmp.Compare(e.seq, seq) }); ok {
			return all[i]
		}
	}
	return nil
}

// payloadsOf returns the payload of an entry, and that of the tenant's snapshot that was taken before it; nil where it is not kept.
func (d *Decisions) payloadsOf(e *decision) (body, previous []byte) {
	if p := d.get(e.earlier.taken); p != nil {
		previous = withoutContacts(p.body)
	}
	return withoutContacts(e.body), previous
}

// failedTenants are those whose last webhook failed, in the last minutes; the newest first.
func failedTenants(decided []*decision, now time.Time) (failed []string) {
	since := now.Add(-metrics.Lately * time.Minute)
	seen := make(map[string]bool)
	for _, e := range decided {
		if e.Received.Before(since) {
			continue
		}
		name := page.TenantName(e.Platform, e.Tenant)
		if e.Tenant != "" && e.Decision == "failed" && !seen[name] {
			failed = append(failed, name)
		}
		seen[name] = seen[name] || e.Decision != "rejected" // which says nothing of the receiver
	}
	return failed
}

// withoutContacts returns a payload less every member called contacts, wherever a
// customised payload may have it. All else stays as it was written, numbers and the
// order of members included: it is compared with the next one, and people read it. Of
// what is not JSON nothing is returned. (A Decoder is seven times slower, and a search
// does this for every webhook.)
func withoutContacts(body []byte) []byte {
	var compact bytes.Buffer
	compact.Grow(len(body))
	if json.Compact(&compact, body) != nil {
		return nil
	}
	src := compact.Bytes()
	out, from := make([]byte, 0, len(src)), 0
	for i := 0; i < len(src); {
		if src[i] != '"' {
			i++
			continue
		}
		begin, end := i, endOfString(src, i)
		if i = end; end == len(src) || src[end] != ':' || !isContacts(src[begin:end]) { // a value, or another name
			continue
		}
		i = endOfValue(src, end+1)
		// Of the commas before and after it one stays, if there are both.
		if begin > from && src[begin-1] == ',' {
			begin--
		} else if src[i] == ',' {
			i++
		}
		out = append(out, src[from:begin]...)
		from = i
	}
	return append(out, src[from:]...)
}

// endOfString is where the string ends that begins at i.
func endOfString(src []byte, i int) int {
	for i++; src[i] != '"'; i++ {
		if src[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// endOfValue is where the value of a member ends that begins at i.
func endOfValue(src []byte, i int) int {
	for depth := 0; ; i++ {
		switch src[i] {
		case '"':
			i = endOfString(src, i) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i // it ends what the member is part of
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
}

// isContacts says it of a name in whatever way it is written.
func isContacts(name []byte) bool {
	if bytes.IndexByte(name, '\\') < 0 {
		return strings.EqualFold(string(name), `"contacts"`)
	}
	var text string
	return json.Unmarshal(name, &text) == nil && strings.EqualFold(text, "contacts")
}
