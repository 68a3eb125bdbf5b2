// Package journal remembers the gate's last decisions, in memory, for the admin
// port's page. Without an inbox it is all that is known of a webhook; with one it has
// what the inbox never saw: duplicates and what was turned away.
//
// No contact data is kept: contacts are taken out of a payload before it is
// remembered, and a payload that they can't be taken out of is not.
package journal

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"usher/webhookgate"
)

const (
	// size is how many decisions are remembered of those that passed the gate's
	// checks, and as many again of those that did not: whoever knocks without the
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
	Seq         uint64 // from 1, in order
	At          time.Time
	Took        time.Duration
	From        string // the sender's address
	Status      int
	Decision    string
	Why         string
	Faults      []webhookgate.Fault
	DuplicateOf string
	Tries       int
	Receiver    int

	// Of a webhook that passed the checks:
	Webhook  string // its webhook-id
	Type     string
	Platform string
	Tenant   string
	Header   http.Header // as the receiver gets it
	Payload  []byte      // less contacts; nil when it is not kept
	Previous uint64      // Seq of the tenant's snapshot before it; zero: none is known
}

// Journal is safe for concurrent use.
type Journal struct {
	payloads bool

	mu      sync.Mutex // guards what follows
	seq     uint64
	passed  ring
	refused ring
	bytes   int             // of payloads
	oldest  int             // no entry of passed before this one has a payload
	last    map[lane]uint64 // Seq of each tenant's last snapshot
}

// ring holds the last entries; the n-th that came stands at n modulo its size.
type ring struct {
	entries []*Entry
	next    int
}

// New returns an empty journal. With payloads it also keeps those of the webhooks
// that passed the checks; without, it leaves out what was put into the inbox, as
// that is to be seen there.
func New(payloads bool) *Journal {
	return &Journal{
		payloads: payloads,
		passed:   ring{entries: make([]*Entry, size)},
		refused:  ring{entries: make([]*Entry, size)},
		last:     make(map[lane]uint64),
	}
}

// Add notes a decision. It is made for webhookgate.Config.Answered.
func (j *Journal) Add(o webhookgate.Outcome) {
	if !j.payloads && o.Decision == "queued" {
		return
	}
	e := &Entry{
		At: o.At, Took: o.Took, Status: o.Status, Decision: o.Decision, Why: clip(o.Why),
		DuplicateOf: o.DuplicateOf, Tries: o.Tries, Receiver: o.Receiver,
	}
	for _, f := range o.Faults {
		e.Faults = append(e.Faults, webhookgate.Fault{Path: clip(f.Path), Message: clip(f.Message)})
	}
	if o.From.IsValid() {
		e.From = o.From.String()
	}
	w := o.Webhook
	if w == nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.seq++
		e.Seq = j.seq
		j.refused.add(e)
		return
	}
	e.Webhook, e.Type, e.Platform, e.Tenant = w.ID, clip(w.Type), clip(w.Lane.Platform), clip(w.Lane.Tenant)
	// A duplicate changes nothing, and what it says stands with its original.
	if j.payloads && o.DuplicateOf == "" && len(w.Body) <= maxPayload {
		e.Payload = withoutContacts(w.Body)
		if sizeOf(w.Header) <= maxHeader {
			e.Header = w.Header
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seq++
	e.Seq = j.seq
	if e.Payload != nil && w.Snapshot {
		e.Previous = j.last[e.lane()]
		j.last[e.lane()] = e.Seq
	}
	j.forget(j.passed.add(e))
	j.bytes += len(e.Payload)
	for j.bytes > maxPayloads {
		j.dropOldest()
	}
}

// lane is a tenant.
type lane struct{ platform, tenant string }

func (e *Entry) lane() lane { return lane{e.Platform, e.Tenant} }

// clip bounds a text, and lets go of the larger one that it was a part of.
func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(strings.Clone(s[:maxText]), "") + "…"
}

func sizeOf(h http.Header) int {
	n := 0
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return n
}

// add puts e in and returns what has to go for it, or nil.
func (r *ring) add(e *Entry) (gone *Entry) {
	i := r.next % size
	gone, r.entries[i] = r.entries[i], e
	r.next++
	return gone
}

// forget notes that an entry's payload goes. j.mu is held.
func (j *Journal) forget(e *Entry) {
	if e == nil {
		return
	}
	j.bytes -= len(e.Payload)
	if j.last[e.lane()] == e.Seq {
		delete(j.last, e.lane())
	}
}

// dropOldest drops the oldest payload. Entries are handed out: what is changed is a
// copy. j.mu is held.
func (j *Journal) dropOldest() {
	for j.oldest = max(j.oldest, j.passed.next-size); j.oldest < j.passed.next; j.oldest++ {
		i := j.oldest % size
		if e := j.passed.entries[i]; e.Payload != nil {
			j.forget(e)
			bare := *e
			bare.Payload = nil
			j.passed.entries[i] = &bare
			return
		}
	}
}

// Filter selects entries; empty fields select all.
type Filter struct {
	Decision string
	Tenant   string
	Platform *string   // nil: any
	Since    time.Time // decided at that time or later
	Until    time.Time // decided before
	Search   string    // in the payload, and in all that is known of it
	Before   uint64    // only what came before this one; zero: all
	Limit    int       // the newest so many
}

// List returns entries, the newest first. They are shared: read only.
func (j *Journal) List(f Filter) []*Entry {
	j.mu.Lock()
	all := j.newest()
	j.mu.Unlock()
	var out []*Entry
	for _, e := range all {
		if len(out) < f.Limit && f.match(e) {
			out = append(out, e)
		}
	}
	return out
}

// newest returns all entries, the newest first. j.mu is held.
func (j *Journal) newest() []*Entry {
	all := make([]*Entry, 0, 2*size)
	p, r := j.passed.next-1, j.refused.next-1
	at := func(r *ring, n int) *Entry {
		if n < 0 || n < r.next-size {
			return nil
		}
		return r.entries[n%size]
	}
	for {
		a, b := at(&j.passed, p), at(&j.refused, r)
		switch {
		case a == nil && b == nil:
			return all
		case b == nil || a != nil && a.Seq > b.Seq:
			all = append(all, a)
			p--
		default:
			all = append(all, b)
			r--
		}
	}
}

func (f *Filter) match(e *Entry) bool {
	switch {
	case f.Decision != "" && e.Decision != f.Decision,
		f.Tenant != "" && e.Tenant != f.Tenant, f.Platform != nil && e.Platform != *f.Platform,
		e.At.Before(f.Since), !f.Until.IsZero() && !e.At.Before(f.Until),
		f.Before != 0 && e.Seq >= f.Before:
		return false
	case f.Search == "":
		return true
	}
	search := strings.ToLower(f.Search)
	for _, s := range []string{e.Tenant, e.Platform, e.Type, e.Webhook, e.Why, e.From, string(e.Payload)} {
		if strings.Contains(strings.ToLower(s), search) {
			return true
		}
	}
	return false
}

// Get returns the entry of that number, and the one that its tenant had before it; nil
// where it is not remembered (any more).
func (j *Journal) Get(seq uint64) (e, previous *Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, entry := range j.newest() {
		if entry.Seq == seq {
			e = entry
		}
		if e != nil && e.Previous != 0 && entry.Seq == e.Previous {
			return e, entry
		}
	}
	return e, nil
}
