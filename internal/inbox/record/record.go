// Package record is a webhook in the inbox: its parts, how it stands, and how both are
// written down. The stores keep records, the courier delivers them.
package record

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/webhookgate"
)

// State is where a webhook in the inbox stands.
type State string

// A webhook waits until it is delivered, parked, superseded by a newer snapshot of its
// tenant, or discarded by hand. Redelivery has it wait again. One that is kept has no
// receiver but usher itself, and is never delivered.
const (
	Waiting    State = "waiting"
	Delivered  State = "delivered"
	Parked     State = "parked"
	Superseded State = "superseded"
	Discarded  State = "discarded"
	Kept       State = "kept"
)

// States are all of them, what somebody may have to look at first.
var States = []State{Waiting, Parked, Delivered, Superseded, Discarded, Kept}

// Taken says whether a receiver took what is in this state, or usher itself, where it has no receiver.
func (s State) Taken() bool { return s == Delivered || s == Kept }

// Finished says whether a webhook in this state is only kept to be looked at.
func (s State) Finished() bool { return s != Waiting && s != Parked }

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
	Why      string    `json:"why,omitempty"`      // it is parked, superseded or discarded
	Changed  time.Time `json:"changed"`            // when it came into this state
	Tries    int       `json:"tries"`              // since it came, or was last sent again by hand
	Counted  int       `json:"counted,omitempty"`  // of them: not those that found the receiver down
	Receiver string    `json:"receiver,omitempty"` // that was last tried; once delivered: that accepted it
	Attempts []Attempt `json:"attempts,omitempty"`
	Next     time.Time `json:"next,omitzero"` // when it was to be tried again, after the last try

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
	Answer string        `json:"answer,omitempty"` // the receiver's own words, where it refused; safe to show
}

// Words say what the receiver answered.
func (a Attempt) Words() string {
	status := strings.TrimSpace(strconv.Itoa(a.Status) + " " + http.StatusText(a.Status))
	switch {
	case a.Status == 0:
		return cmp.Or(a.Error, "no answer")
	case strings.TrimSpace(a.Answer) != "":
		return strconv.Itoa(a.Status) + ": " + strings.Join(strings.Fields(a.Answer), " ")
	case a.Error != "":
		return status + ": " + a.Error
	}
	return status
}

// Item is a webhook of the inbox with its content.
type Item struct {
	Entry
	Header   http.Header `json:"header"`
	Body     []byte      `json:"-"`
	Previous *Previous   `json:"-"` // the last of its tenant's snapshots before it that was taken, if it is still there
	Before   uint64      `json:"-"` // its tenant's snapshot right before it, taken or not; zero: none is known
}

// Previous is a snapshot that a receiver, or usher itself, took before another one.
type Previous struct {
	ID   uint64
	Body []byte
}

// Filter selects entries; empty fields select all.
type Filter struct {
	State    State
	Tenant   string
	Platform *string   // nil: any
	Since    time.Time // received at that time or later
	Until    time.Time // received before
	Search   string    // in any case of letters: in the content, and in all that tells a webhook from others; an id
	Before   uint64    // only ids below it: where a former list ended
	Limit    int       // the newest so many; 0: all
}

// Match says whether f selects a webhook. body is its content, for the search; a
// store that does not have it at hand may leave it out.
func (f *Filter) Match(e *Entry, body []byte) bool {
	switch {
	case f.State != "" && e.State != f.State, f.Tenant != "" && e.Tenant != f.Tenant, f.Platform != nil && e.Platform != *f.Platform,
		f.Before != 0 && e.ID >= f.Before,
		e.Received.Before(f.Since), !f.Until.IsZero() && !e.Received.Before(f.Until):
		return false
	case f.Search == "", f.Search == strconv.FormatUint(e.ID, 10):
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

var (
	// ErrNotFound says that the inbox has no webhook of that id (any more).
	ErrNotFound = errors.New("no such webhook in the inbox")
	// ErrFinished says that a webhook can't be discarded: nothing would be done with it any more.
	ErrFinished = errors.New("it neither waits nor is parked")
	// ErrKept says that a webhook can't be sent again: it was kept, and still nobody takes it.
	ErrKept = errors.New("it was kept: no receiver takes webhooks of its platform")
	// ErrBusy says that a webhook is being delivered at this very moment.
	ErrBusy = errors.New("it is being delivered at this moment; try again")
	// ErrNobody says that just now no replica delivers what the request is about.
	ErrNobody = errors.New("no replica delivers this tenant's webhooks right now: try again in a few seconds")
	// ErrUnsure says that a request was begun, and nobody knows whether it was done.
	ErrUnsure = errors.New("the replica that delivers this tenant's webhooks did not confirm it: look whether it was done")
	// ErrFull says that as much waits, or is parked, as the inbox may hold.
	ErrFull = webhookgate.ErrFull
	// ErrDamaged says that a record's checksum does not fit its bytes.
	ErrDamaged = errors.New("the record is damaged: its checksum does not fit")
)

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

// Record is a webhook as the inbox knows it.
type Record struct {
	ID      uint64
	Webhook *webhookgate.Webhook // may be without its content; see Slim
	Status  Status
	Size    int // the bytes that it counts for in its store, where the store wants to know
}

// Slim returns w without its content.
func Slim(w *webhookgate.Webhook) *webhookgate.Webhook {
	c := *w
	c.Body, c.Header = nil, nil
	return &c
}

// Entry returns what is shown of r.
func (r *Record) Entry() Entry {
	w := r.Webhook
	return Entry{
		ID: r.ID, Webhook: w.ID, Type: w.Type, Platform: w.Lane.Platform, Tenant: w.Lane.Tenant,
		Received: w.Received, Status: r.Status,
	}
}

// Since is when r's age begins.
func (r *Record) Since() time.Time {
	if !r.Status.Again.IsZero() {
		return r.Status.Again
	}
	return r.Webhook.Received
}

// Enter has r stand otherwise from now on.
func (r *Record) Enter(s State, why string) {
	r.Status.State, r.Status.Why, r.Status.Changed, r.Status.Next = s, why, time.Now(), time.Time{}
}

// SendAgain has r wait once more, with a fresh count of tries. What was tried stays to be
// looked at.
func (r *Record) SendAgain() {
	now := time.Now()
	r.Status = Status{State: Waiting, Changed: now, Again: now, Attempts: r.Status.Attempts}
}

const (
	// KeptAttempts is how many of a webhook's attempts are remembered, and keptAnswers
	// how many of those with the receiver's words.
	KeptAttempts = 20
	keptAnswers  = 3
)

// NoteAttempt notes a try. It does not change the attempts noted before, because another goroutine
// may still be writing them.
func (r *Record) NoteAttempt(began, ended time.Time, a webhookgate.Attempt) {
	n := Attempt{At: began, Took: ended.Sub(began), Status: a.Status}
	if a.Err != nil {
		n.Error = readable(a.Err.Error(), maxError)
	}
	if !a.Accepted() {
		n.Answer = readable(a.Excerpt, maxAnswer)
	}
	former := r.Status.Attempts
	former = former[max(0, len(former)-KeptAttempts+1):]
	r.Status.Attempts = append(slices.Clone(former), n)
	if before := len(r.Status.Attempts) - keptAnswers - 1; before >= 0 {
		r.Status.Attempts[before].Answer = ""
	}
	r.Status.Tries++
}

// Load is how many bytes webhooks take: those that wait or are parked, and those that wait.
type Load struct{ Bytes, Waiting int64 }

// Add counts some more.
func (l *Load) Add(bytes, waiting int) {
	l.Bytes, l.Waiting = l.Bytes+int64(bytes), l.Waiting+int64(waiting)
}
