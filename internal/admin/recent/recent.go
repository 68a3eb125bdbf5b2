// Package recent remembers the gate's last decisions, in memory, for the admin
// port's page. Without an inbox it is all that is known of a webhook; with one it has
// what the inbox does not have: duplicates and what was turned away.
//
// No contact data is shown or searched: contacts are taken out of a payload whenever
// somebody looks at it. (Few do: to take them out of every webhook that comes costs more.)
package recent

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"usher/internal/text"
	"usher/webhookgate"
	"usher/webhookgate/content"
)

const (
	// size is how many decisions are remembered of those that passed the gate's
	// checks, and as many again of those that did not: senders without the
	// secret must not push the others out.
	size = 1000

	// maxPayload bounds what is remembered of one payload, maxPayloads of all.
	maxPayload  = 64 << 10
	maxPayloads = 16 << 20

	// maxHeader and maxText bound the rest: a tenant's code, too, is what others wrote.
	maxHeader = 8 << 10
	maxText   = 512
)

// Entry is a decision.
type Entry struct {
	Seq         int64 // from 1, in order
	At          time.Time
	Took        time.Duration
	From        string // the sender's address
	Status      int
	Decision    string
	Why         string
	Faults      []content.Fault
	DuplicateOf string
	Tries       int
	Receiver    int

	// Of a webhook that passed the checks:
	Webhook  string // its webhook-id
	Type     string
	Platform string
	Tenant   string
	Header   http.Header // as the receiver gets it
	Previous int64       // Seq of the last of the tenant's snapshots before it that the receiver took; zero: none is known
	Before   int64       // Seq of the one right before it, taken or not

	body []byte // as it came; nil when it is not kept
}

// Payload returns the body less contacts; nil when it is not kept.
func (e *Entry) Payload() []byte { return withoutContacts(e.body) }

// Ring has the last decisions. It is safe for concurrent use.
type Ring struct {
	payloads bool

	mu      sync.Mutex // guards what follows
	seq     int64
	passed  []*Entry // in order, as is refused
	refused []*Entry
	bytes   int // of payloads
	last    map[lane]snapshots
}

// lane is a tenant, and snapshots are the Seq of its last: the last that was taken, and the last of all.
type (
	lane      struct{ platform, tenant string }
	snapshots struct{ taken, any int64 }
)

// New returns an empty ring. With payloads it also keeps those of the webhooks
// that passed the checks.
func New(payloads bool) *Ring {
	return &Ring{payloads: payloads, last: make(map[lane]snapshots)}
}

// Add notes a decision, unless the inbox has the webhook: it is to be seen there. Add is made for
// webhookgate.Config.Answered.
func (r *Ring) Add(o webhookgate.Outcome) {
	if o.Stored {
		return
	}
	e := &Entry{
		At: o.At, Took: o.Took, Status: o.Status, Decision: o.Decision, Why: text.Clip(o.Why, maxText),
		DuplicateOf: o.DuplicateOf, Tries: o.Tries, Receiver: o.Receiver,
	}
	for _, f := range o.Faults {
		e.Faults = append(e.Faults, content.Fault{Path: text.Clip(f.Path, maxText), Message: text.Clip(f.Message, maxText)})
	}
	if o.From.IsValid() {
		e.From = o.From.String()
	}
	w, whole := o.Webhook, true
	if o.Refusal != nil {
		w, whole = &o.Refusal.Webhook, !o.Refusal.Cut
	}
	if w == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.refused, _ = r.push(r.refused, e)
		return
	}
	e.Webhook, e.Type, e.Platform, e.Tenant = w.ID, text.Clip(w.Type, maxText), text.Clip(w.Lane.Platform, maxText), text.Clip(w.Lane.Tenant, maxText)
	// A duplicate changes nothing, and what it says stands with its original.
	if r.payloads && o.DuplicateOf == "" && len(w.Body) <= maxPayload && whole {
		e.body = w.Body
		if sizeOf(w.Header) <= maxHeader {
			e.Header = w.Header
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var gone *Entry
	if r.passed, gone = r.push(r.passed, e); gone != nil {
		r.forget(gone)
	}
	last := r.last[e.lane()]
	switch {
	case e.body == nil:
	case o.Refusal != nil:
		e.Previous = last.taken
	case w.Snapshot:
		e.Previous, e.Before = last.taken, last.any
		if last.any = e.Seq; e.Decision == "forwarded" {
			last.taken = e.Seq
		}
		r.last[e.lane()] = last
	}
	r.bytes += len(e.body)
	r.dropPayloads()
}

// push numbers an entry, adds it to those of its kind, and returns what has to go for it. r.mu is held.
func (r *Ring) push(all []*Entry, e *Entry) (kept []*Entry, gone *Entry) {
	r.seq++
	e.Seq = r.seq
	if len(all) == size {
		gone, all[0] = all[0], nil
		all = all[1:]
	}
	return append(all, e), gone
}

func (e *Entry) lane() lane { return lane{e.Platform, e.Tenant} }

func sizeOf(h http.Header) int {
	n := 0
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return n
}

// forget notes that an entry's payload goes. r.mu is held.
func (r *Ring) forget(e *Entry) {
	r.bytes -= len(e.body)
	if r.last[e.lane()].any == e.Seq {
		delete(r.last, e.lane())
	}
}

// dropPayloads drops the oldest payloads, while there are too many. Entries are handed out: what is changed is a
// copy. r.mu is held.
func (r *Ring) dropPayloads() {
	for i := 0; r.bytes > maxPayloads; i++ {
		if e := r.passed[i]; e.body != nil {
			r.forget(e)
			bare := *e
			bare.body = nil
			r.passed[i] = &bare
		}
	}
}

// Erase drops all that is remembered of a tenant.
func (r *Ring) Erase(platform, tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passed = slices.DeleteFunc(slices.Clone(r.passed), func(e *Entry) bool {
		gone := e.Platform == platform && e.Tenant == tenant
		if gone {
			r.forget(e)
		}
		return gone
	})
}

// Filter selects entries; empty fields select all.
type Filter struct {
	Decision string
	Tenant   string
	Platform *string   // nil: any
	Since    time.Time // decided at that time or later
	Until    time.Time // decided before
	Search   string    // in the payload, and in all that is known of it; or its id
	Before   int64     // only what came before this one; zero: all
	Limit    int       // the newest so many; 0: all
}

// List returns entries, the newest first. They are shared: read only.
func (r *Ring) List(f Filter) (out []*Entry) {
	r.mu.Lock()
	all := slices.Concat(r.passed, r.refused)
	r.mu.Unlock()
	slices.SortFunc(all, func(a, b *Entry) int { return cmp.Compare(b.Seq, a.Seq) })
	for _, e := range all {
		if f.match(e) {
			out = append(out, e)
		}
		if f.Limit > 0 && len(out) == f.Limit {
			break
		}
	}
	return out
}

func (f *Filter) match(e *Entry) bool {
	switch {
	case f.Decision != "" && e.Decision != f.Decision,
		f.Tenant != "" && e.Tenant != f.Tenant, f.Platform != nil && e.Platform != *f.Platform,
		e.At.Before(f.Since), !f.Until.IsZero() && !e.At.Before(f.Until),
		f.Before != 0 && e.Seq >= f.Before:
		return false
	case f.Search == "", f.Search == "d"+strconv.FormatInt(e.Seq, 10):
		return true
	}
	search := strings.ToLower(f.Search)
	for _, s := range []string{e.Tenant, e.Platform, e.Type, e.Webhook, e.Why, e.From, string(e.Payload())} {
		if strings.Contains(strings.ToLower(s), search) {
			return true
		}
	}
	return false
}

// Get returns the entry of that number; nil where it is not remembered (any more).
func (r *Ring) Get(seq int64) *Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, all := range [][]*Entry{r.passed, r.refused} {
		if i, ok := slices.BinarySearchFunc(all, seq, func(e *Entry, seq int64) int { return cmp.Compare(e.Seq, seq) }); ok {
			return all[i]
		}
	}
	return nil
}

// Payload returns the payload of the entry of that number; nil where it is not remembered.
func (r *Ring) Payload(seq int64) []byte {
	if e := r.Get(seq); e != nil {
		return e.Payload()
	}
	return nil
}
