package lane

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/content"
	"usher/internal/lane/state"
	"usher/internal/receiver"
	"usher/internal/text"
	"usher/webhookgate"
)

// A Webhook is a row of the table webhook, from the database to the page. What is not in its JSON is for usher alone.
type Webhook struct {
	ID       int64     `json:"id"`
	UUID     string    `json:"webhook"` // the webhook-id that the receiver gets
	Type     string    `json:"type"`
	Platform string    `json:"platform"`
	Tenant   string    `json:"tenant"`
	Received time.Time `json:"received"`
	Source   string    `json:"source,omitempty"` // see SourceReconcile; empty: a sender made it
	Status

	LaneName webhookgate.LaneName `json:"-"` // empty: it is invalid, and its tenant is not certain
	Snapshot bool                 `json:"-"` // it has the complete state of its tenant; else it is an event
	Rank     int64                `json:"-"` // its number; if it is invalid: the number that it, or its last copy, took
	Digest   []byte               `json:"-"` // SHA-256 of the body
	Size     int64                `json:"-"` // about how many bytes it takes; counts towards MaxBytes

	HasContent bool        `json:"-"` // Header and Body are set
	Header     http.Header `json:"-"`
	Body       []byte      `json:"-"`
	Verified   bool        `json:"-"` // the content comes from the gate and not from a disk, see Check

	// Only in views.
	Newest bool `json:"-"` // its tenant has no newer one, so it can be sent again without force
	// The last snapshot of the same tenant before this one that was accepted (State.Taken), and the id of the tenant's
	// snapshot right before this one, accepted or not. Nil and zero: none is stored.
	Previous *Webhook `json:"-"`
	Before   int64    `json:"-"`

	// For the transaction that has it in memory.
	isNew   bool // it has no row yet
	changed bool // its row must be written
}

// Row returns a copy of the webhook without what this turn remembers, for another turn.
func (w *Webhook) Row() *Webhook {
	row := *w
	row.isNew, row.changed = false, false
	return &row
}

// dedupDigest is the digest that arriving webhooks are compared with. Only snapshots have duplicates.
func (w *Webhook) dedupDigest() []byte {
	if !w.Snapshot {
		return nil
	}
	return w.Digest
}

// Check returns ErrDamaged if a receiver would not get what was taken in.
func (w *Webhook) Check() error {
	if w.Verified {
		return nil
	}
	if sum := sha256.Sum256(w.Body); w.Header == nil || !bytes.Equal(sum[:], w.Digest) {
		return ErrDamaged
	}
	return nil
}

// lastTry is when its last try began.
func (w *Webhook) lastTry() (at time.Time) {
	if len(w.Tried) > 0 {
		at = w.Tried[len(w.Tried)-1].At
	}
	return at
}

// An OverwriteError says that a redelivery would replace a newer snapshot at the receiver by an older one.
type OverwriteError struct {
	ID     int64
	Latest *Webhook
}

func (e *OverwriteError) Error() string {
	latest := fmt.Sprint(e.Latest.ID)
	if e.Latest.State != "" { // else the history has dropped it
		latest += fmt.Sprintf(", received %s, %s", e.Latest.Received.Format(time.RFC3339), e.Latest.State)
	}
	return fmt.Sprintf("webhook %d is not the latest of tenant %q: it would overwrite %s", e.ID, e.Latest.Tenant, latest)
}

// AgeFrom is the time from which the webhook's age counts: when it was received, or was last redelivered by hand.
func (w *Webhook) AgeFrom() time.Time {
	if !w.Redelivered.IsZero() {
		return w.Redelivered
	}
	return w.Received
}

// Status is the part of a Webhook that changes.
type Status struct {
	State state.State `json:"state"`
	Why   string      `json:"why,omitempty"` // of the state, if there is something to say; or that its content is
	// Changed is when it came into this state. If it is invalid: when it, or a copy of it, last came.
	Changed time.Time `json:"changed"`
	Record
}

// Record is what happened to a webhook.
type Record struct {
	Tries    int       `json:"tries"`              // since it was received, or since somebody last redelivered it
	FirstTry time.Time `json:"first_try,omitzero"` // when the first of them began
	Beside   time.Time `json:"beside,omitzero"`    // since when it fails while its receiver accepts others
	Receiver string    `json:"receiver,omitempty"` // the receiver of the last try
	Tried    []Try     `json:"tried,omitempty"`
	Next     time.Time `json:"next,omitzero"` // after a failed try: when the next one was due

	// Redelivered is when somebody last redelivered the webhook. Forced: although its tenant had a newer one.
	Redelivered time.Time `json:"again,omitzero"`
	Forced      bool      `json:"forced,omitempty"`

	// Only of a webhook that is invalid.
	Faults []content.Fault `json:"faults,omitempty"`
	Code   int             `json:"code,omitempty"` // the HTTP status that its sender got
	From   string          `json:"from,omitempty"` // the sender's address
	Cut    bool            `json:"cut,omitempty"`  // only the beginning of its body is stored
}

// Rejected says whether the webhook was invalid when it was received, also if somebody has dealt with it since.
func (s *Status) Rejected() bool { return s.Code != 0 || s.State == state.Invalid }

// Try is one try at the receiver. Of a webhook with many tries the last ones are kept.
type Try struct {
	At     time.Time     `json:"at"`
	Took   time.Duration `json:"took"`
	Status int           `json:"status,omitempty"` // the HTTP status; zero: there was no answer
	Error  string        `json:"error,omitempty"`
	Answer string        `json:"answer,omitempty"` // the beginning of the answer's body, if it is not a 2xx; safe to show
}

// Words returns the receiver's answer as a line of text.
func (a Try) Words() string {
	status := strings.TrimSpace(strconv.Itoa(a.Status) + " " + http.StatusText(a.Status))
	switch {
	case a.Status == 0:
		return cmp.Or(a.Error, "no answer")
	case text.Plain(a.Answer) != "":
		return strconv.Itoa(a.Status) + ": " + text.Plain(a.Answer)
	case a.Error != "":
		return status + ": " + a.Error
	}
	return status
}

const (
	// KeptTries is how many of a webhook's tries are stored, and KeptAnswers how many of those with the receiver's
	// answer.
	KeptTries   = 20
	KeptAnswers = 3
)

// maxError is how many bytes of a try's error are stored. One about a certificate names all its hosts.
const maxError = 512

// addTry adds a try. It copies the former tries and does not change them in place: others may still read them.
func (s *Status) addTry(began time.Time, took time.Duration, a receiver.Try) {
	n := Try{At: began, Took: took, Status: a.Status}
	if a.Err != nil {
		n.Error = text.Readable(a.Err.Error(), maxError)
	}
	if !a.Accepted() {
		n.Answer = a.Excerpt
	}
	former := s.Tried[max(0, len(s.Tried)-KeptTries+1):]
	s.Tried = append(slices.Clone(former), n)
	if before := len(s.Tried) - KeptAnswers - 1; before >= 0 {
		s.Tried[before].Answer = ""
	}
	if s.Tries++; s.Tries == 1 {
		s.FirstTry = began
	}
}
