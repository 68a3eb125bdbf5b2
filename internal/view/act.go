package view

import (
	"strconv"

	"usher/internal/inbox"
)

// A Result is what came of an act: on one webhook, or as a whole.
type Result struct {
	ID     string `json:"id,omitempty"`     // of the webhook
	New    string `json:"new,omitempty"`    // of accept: the id of the new webhook
	Failed string `json:"failed,omitempty"` // why it was not done
	Newer  string `json:"newer,omitempty"`  // the newer webhook that it would overwrite without force
	Said   string `json:"said,omitempty"`   // of an act on something else: what was done
	Undo   string `json:"undo,omitempty"`   // the command that undoes it
}

// An End is the last line of every list and of every act's answer: an answer without it has ended too early.
type End struct {
	Next   string        `json:"next,omitempty"`   // the query of the next page; empty: there is none
	Left   int           `json:"left,omitempty"`   // how many webhooks were not tried, because the inbox can't be written
	Paused []inbox.Pause `json:"paused,omitempty"` // the pauses in force
	Error  string        `json:"error,omitempty"`  // why the answer is not complete
}

// Chosen says what an act would be done to.
type Chosen struct {
	Count int      `json:"count"`
	First []string `json:"first"` // the ids of some
	// Older is how many were left out because their tenant has a newer one; with force they are chosen, too.
	Older  int    `json:"older"`
	Before string `json:"before"` // the parameter that leaves out what comes after this answer
}

// PausedWords say that deliveries are paused, and since when.
func PausedWords(p *inbox.Pause) string {
	return "Paused since " + StampAge(p.Since) + ": " + p.Words()
}

// Actions are the columns of the list of what people did.
var Actions = []Column[inbox.Action]{
	{Head: "When", Cell: func(a *inbox.Action) Cell { return Cell{Words: Stamp(a.At)} }},
	{Head: "What", Cell: func(a *inbox.Action) Cell { return Cell{Words: a.What} }},
	{Head: "Webhooks", Name: "num", Cell: func(a *inbox.Action) Cell { return Cell{Words: strconv.Itoa(a.Count)} }},
	{Head: "Who", Cell: func(a *inbox.Action) Cell { return Cell{Words: a.Who} }},
	{Head: "For", Cell: func(a *inbox.Action) Cell { return Cell{Words: a.About} }},
}
