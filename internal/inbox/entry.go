package inbox

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"usher/webhookgate"
)

// State is where a webhook in the inbox stands.
type State string

// A webhook waits until it is delivered, or parked, or superseded by a newer
// snapshot of its tenant. Redelivery has it wait again.
const (
	Waiting    State = "waiting"
	Delivered  State = "delivered"
	Parked     State = "parked"
	Superseded State = "superseded"
)

// Entry is what the inbox knows of a webhook, but for its content.
type Entry struct {
	ID       uint64    `json:"id"`
	Webhook  string    `json:"webhook"` // what the receiver gets as webhook-id
	Type     string    `json:"type"`
	Platform string    `json:"platform"`
	Tenant   string    `json:"tenant"`
	Received time.Time `json:"received"`
	Status
}

// Status is the part of an Entry that changes.
type Status struct {
	State    State     `json:"state"`
	Why      string    `json:"why,omitempty"` // it is parked or superseded
	Changed  time.Time `json:"changed"`       // when it came into this state
	Tries    int       `json:"tries"`         // that count: not those that found the receiver down
	Attempts []Attempt `json:"attempts,omitempty"`

	// Again is when it was last sent back to wait by hand: its age counts from
	// there, and it goes ahead of what its lane has waiting.
	Again time.Time `json:"again,omitzero"`
}

// Attempt is one try at the receiver. Of many the last are kept.
type Attempt struct {
	At     time.Time     `json:"at"`
	Took   time.Duration `json:"took"`
	Status int           `json:"status,omitempty"` // zero: there was no answer
	Error  string        `json:"error,omitempty"`
}

// Item is a webhook of the inbox with its content.
type Item struct {
	Entry
	Header   http.Header `json:"header"`
	Body     []byte      `json:"-"`
	Previous *Previous   `json:"-"` // its tenant's snapshot before it, if that is still there
}

// Previous is the snapshot that came before another one.
type Previous struct {
	ID   uint64
	Body []byte
}

// Filter selects entries; empty fields select all.
type Filter struct {
	State  State
	Tenant string
	Search string // in any case of letters: in the content, and in all that tells a webhook from others
	Before uint64 // only ids below it: where a former list ended
	Limit  int    // the newest so many; 0: all
}

// match says whether f selects a webhook. body is its content, for the search; a
// store that does not have it at hand may leave it out.
func (f *Filter) match(e *Entry, body []byte) bool {
	switch {
	case f.State != "" && e.State != f.State, f.Tenant != "" && e.Tenant != f.Tenant, f.Before != 0 && e.ID >= f.Before:
		return false
	case f.Search == "":
		return true
	}
	search := strings.ToLower(f.Search)
	for _, s := range []string{e.Tenant, e.Platform, e.Type, e.Webhook} {
		if strings.Contains(strings.ToLower(s), search) {
			return true
		}
	}
	return bytes.Contains(bytes.ToLower(body), []byte(search))
}

// ErrNotFound says that the inbox has no webhook of that id (any more).
var ErrNotFound = errors.New("there is no such webhook in the inbox")

// ErrWaiting says that a webhook needs no redelivery.
var ErrWaiting = errors.New("this webhook waits for its delivery already")

// OverwriteError says that a redelivery would put an old snapshot in the place of
// a newer one.
type OverwriteError struct {
	ID     uint64
	Latest Entry
}

func (e *OverwriteError) Error() string {
	return fmt.Sprintf("webhook %d is not the latest of tenant %q: it would overwrite %d, received %s, %s",
		e.ID, e.Latest.Tenant, e.Latest.ID, e.Latest.Received.UTC().Format(time.RFC3339), e.Latest.State)
}

// record is a webhook as the store keeps it.
type record struct {
	id      uint64
	webhook *webhookgate.Webhook
	status  Status
	whole   *webhookgate.Webhook // the courier's: with its content; nil: to be read from the store
}

// slim returns w without its content.
func slim(w *webhookgate.Webhook) *webhookgate.Webhook {
	c := *w
	c.Body, c.Header = nil, nil
	return &c
}

func (r *record) entry() Entry {
	w := r.webhook
	return Entry{
		ID: r.id, Webhook: w.ID, Type: w.Type, Platform: w.Lane.Platform, Tenant: w.Lane.Tenant,
		Received: w.Received, Status: r.status,
	}
}
