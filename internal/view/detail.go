package view

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"usher/internal/content"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/text"
)

// Detail is a webhook with all that usher knows of it.
type Detail struct {
	Webhook
	Previous string `json:"previous,omitempty"` // id of the snapshot with which Changes compares it
	// Untaken is the id of the tenant's snapshot right before it, if the receiver did not take that.
	Untaken  string          `json:"untaken,omitempty"`
	Tried    []lane.Try      `json:"tried,omitempty"`            // the last 20
	Faults   []content.Fault `json:"faults,omitempty"`           // why it is invalid
	Original string          `json:"duplicate_of,omitempty"`     // a webhook-id
	Payload  json.RawMessage `json:"payload,omitempty"`          // see text.JSONPayload
	LeftOut  int             `json:"payload_left_out,omitempty"` // how many bytes of the payload are not in Payload
}

// NewDetail returns an entry of the inbox with its payload.
func NewDetail(e *lane.Webhook) *Detail {
	d := &Detail{Webhook: NewWebhook(e), Tried: e.Tried, Faults: ShownFaults(e.Faults, content.MaxFaults)}
	if e.Body != nil {
		d.Payload, d.LeftOut = text.JSONPayload(e.Body)
	}
	var taken int64
	if e.Previous != nil {
		taken = e.Previous.ID
		d.Previous = strconv.FormatInt(taken, 10)
	}
	if e.Before != 0 && e.Before != taken {
		d.Untaken = strconv.FormatInt(e.Before, 10)
	}
	return d
}

// ShownFaults returns the first faults of a webhook, in a copy.
func ShownFaults(faults []content.Fault, most int) (shown []content.Fault) {
	for _, f := range content.First(faults, most) {
		f.Path, f.Message = text.Clip(f.Path, maxText), text.Clip(f.Message, maxText)
		shown = append(shown, f)
	}
	return shown
}

// A Fact is one thing about a webhook.
type Fact struct {
	Name string
	Cell
}

// Facts are what is known of it, beside its lists.
func (d *Detail) Facts() (all []Fact) {
	add := func(name, words string) {
		if words != "" {
			all = append(all, Fact{name, Cell{Words: words}})
		}
	}
	add("id", d.ID)
	all = append(all, Fact{"state", Cell{Words: d.Outcome(), Tone: Tone(d.Outcome())}})
	add("because", d.Why)
	add("since", StampAge(d.Changed))
	if d.Source == inbox.FromReconcile {
		add("source", "reconcile: usher made it from what the billing service said")
	}
	all = append(all, Fact{"tenant", d.Who()})
	add("type", d.Type)
	add("received", StampAge(d.Received))
	add("redelivered", StampAge(d.Again))
	add("webhook-id", d.UUID)
	add("copy of", d.Original)
	if d.Status != 0 {
		add("answered", strconv.Itoa(d.Status))
	}
	add("from", d.From)
	if d.Decision != "rejected" {
		add("tries", strconv.Itoa(d.Tries))
	}
	add("receiver", d.Receiver)
	if !d.InInbox() {
		add("answer", d.Answer)
	}
	if d.Unacceptable != "" {
		add("accept", "It can't be accepted: "+d.Unacceptable)
	}
	if waits := d.WaitsFor(); len(waits) > 0 {
		all = append(all, Fact{"waits", Cell{Notes: waits}})
	}
	return all
}

// Tries are the columns of the list of its tries.
var Tries = []Column[lane.Try]{
	{Head: "When", Cell: func(t *lane.Try) Cell { return Cell{Words: Stamp(t.At), Notes: []Note{{Words: Age(t.At) + " ago"}}} }},
	{Head: "Took", Name: "num", Cell: func(t *lane.Try) Cell { return Cell{Words: Span(t.Took.Round(time.Millisecond))} }},
	{Head: "Answer", Cell: func(t *lane.Try) Cell { return Cell{Words: t.Words()} }},
}

// Faults are the columns of the list of what is wrong with it.
var Faults = []Column[content.Fault]{
	{Head: "Where", Cell: func(f *content.Fault) Cell { return Cell{Words: cmp.Or(f.Path, "the body")} }},
	{Head: "What", Cell: func(f *content.Fault) Cell { return Cell{Words: f.Message} }},
}

// Compared says with what its changes compare it, as a title of theirs.
func (d *Detail) Compared() string {
	switch {
	case d.Decision == "rejected" && d.Previous != "":
		return "compared with " + d.Previous
	case d.Decision == "rejected" && d.Tenant == "":
		return "compared with nothing (its tenant is not known)"
	case d.Decision == "rejected":
		return "compared with nothing (the receiver has not accepted any earlier snapshot)"
	case d.Previous == "" && d.Tenant == "":
		return "changes (its tenant is not known)"
	case d.Previous == "":
		return "changes (the receiver has not accepted any earlier snapshot)"
	case d.Untaken != "":
		return fmt.Sprintf("changes since %s, the last webhook that the receiver accepted (it did not accept %s)", d.Previous, d.Untaken)
	}
	return "changes since " + d.Previous
}

// AllChanges are its changes, or why there are none.
func (d *Detail) AllChanges() []string {
	switch {
	case len(d.Changes) > 0:
		return d.Changes
	case d.Decision == "rejected":
		return []string{"its features can't be read"}
	}
	return []string{"none"}
}

// Text is all of it for a terminal.
func (d *Detail) Text() string {
	var out strings.Builder
	for _, f := range d.Facts() {
		fmt.Fprintf(&out, "%-11s %s\n", f.Name, text.Visible(f.Text()))
	}
	section := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&out, "\n%s\n", title)
		}
		for _, line := range lines {
			fmt.Fprintf(&out, "  %s\n", text.Visible(line))
		}
	}
	section("tries", lines(Tries, d.Tried))
	section("what is wrong with it", lines(Faults, d.Faults))
	if d.Payload != nil {
		section(d.Compared(), d.AllChanges())
		out.WriteString("\npayload\n" + d.payloadText() + "\n")
	}
	return out.String()
}

func lines[T any](columns []Column[T], things []T) []string {
	var out strings.Builder
	_ = (&Printer[T]{Columns: columns}).Print(&out, things) // nothing fails to be written there
	return strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\n' })
}

// payloadText returns a payload as people read it, and says what is left out.
func (d *Detail) payloadText() string {
	shown, left, margin := "", d.LeftOut, "  "    // a text may have lines of its own, which must not look like usher's
	if json.Unmarshal(d.Payload, &shown) != nil { // it is not a text, but JSON
		margin = ""
		shown, left = text.Payload(d.Payload)
	}
	lines := strings.Split(shown, "\n")
	for i := range lines {
		lines[i] = margin + text.Visible(lines[i])
	}
	if left > 0 {
		lines = append(lines, fmt.Sprintf("(%d bytes of the payload are left out. "+
			"The admin port has all of it: GET /webhooks/%s/payload)", left, d.ID))
	}
	return strings.Join(lines, "\n")
}
