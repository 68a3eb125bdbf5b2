package command

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/text"
)

// What 'usher reconcile' prints.

// maxListed is how many tenants of one result are printed without --json.
const maxListed = 50

// report prints what came of a line.
func (c *reconcileCall) report(r *lane.Compared) {
	c.listed[r.Result]++
	switch faulty := r.Result == lane.Faulty; {
	case !c.json && c.listed[r.Result] > maxListed:
		return
	case faulty:
		c.progress.end()
		fmt.Fprintf(c.Stderr, "line %d: %s\n", r.Line, text.Visible(r.Fault))
		return
	case c.json:
		_ = json.NewEncoder(c.Stdout).Encode(struct {
			Result   lane.Result `json:"result"`
			Platform string      `json:"platform"`
			Tenant   string      `json:"tenant"`
			Changes  []string    `json:"changes"`
			Applied  bool        `json:"applied"`
		}{r.Result, r.Platform, r.Tenant, append([]string{}, r.Changes...), r.Applied}) // [] and not null
		return
	}
	words := strings.Join(r.Changes, ", ")
	switch r.Result {
	case lane.NewTenant:
		words = cmp.Or(words, "no features")
	case lane.Left:
		words = "something came for it since the command began to ask, or somebody erased it"
		if c.readsLog() {
			words = "it changed, or something came for it, less than a minute ago: run this again in a minute"
		}
	case lane.Differs:
		words = cmp.Or(words, "not in its features")
	case lane.Unlisted:
		words = "usher says that it may use something, and the command did not print it"
	}
	c.progress.end()
	c.say("%-8s %-24s  %s\n", r.Result, text.Visible(inbox.ShowTenant(r.Platform, r.Tenant)), text.Visible(words))
}

// sayMore ends the list: it says how many of each result were not printed.
func (c *reconcileCall) sayMore() {
	for _, result := range slices.Sorted(maps.Keys(c.listed)) {
		if n := c.listed[result] - maxListed; n > 0 {
			c.say("%-8s and %d more; --json lists all\n", result, n)
		}
	}
	if len(c.listed) > 0 {
		c.say("\n")
	}
	clear(c.listed)
}

func (c *reconcileCall) say(format string, args ...any) {
	if !c.json {
		fmt.Fprintf(c.Stdout, format, args...)
	}
}

// conclusion says in words what was found, and what to do next.
func (c *reconcileCall) conclusion(run *inbox.Run) string {
	words := fmt.Sprintf("Compared: %v.\n", run.Found)
	if run.Failed == "" && run.Found.Open() == 0 && run.Found[lane.Applied] == 0 {
		words = "Nothing differs. " + words
	}
	switch applied := run.Found[lane.Applied]; {
	case run.Failed != "" && applied == 0 && !c.apply:
		return words
	case run.Failed != "" && applied == 0:
		return words + "Nothing was taken in.\n"
	case applied > 0 && c.noDeliver:
		words += count(applied, "tenant") + " taken in, and not delivered.\n"
	case applied > 0:
		list := c.commandLine("usher inbox ls --since " + c.begun.Run.Began.UTC().Format(time.RFC3339))
		words += count(applied, "tenant") + " taken in. To see them: " + list + "\n"
	}
	return words + c.advice(run)
}

// advice says what to do about what is left.
func (c *reconcileCall) advice(run *inbox.Run) (words string) {
	if run.Found.Open() == 0 {
		return ""
	}
	if n := run.Found[lane.Differs] + run.Found[lane.NewTenant]; n > 0 && !c.apply {
		flags := "--apply"
		if c.begun.Known == 0 && !c.readsLog() {
			words += "usher knows no tenant yet. If your receiver is right already, " +
				"add --no-deliver: usher then takes the tenants in, and delivers nothing.\n"
			flags += " --no-deliver"
		}
		if n > c.defaultMax() && !c.readsLog() {
			flags += fmt.Sprint(" --max ", n)
		}
		words += "Nothing was changed. To take in what differs or is new:\n  " + c.nextLine(flags) + "\n"
	}
	if run.Found[lane.Unlisted] > 0 {
		words += "An unlisted tenant was cancelled, or your list is not whole. " +
			`If it was cancelled, print it with "features":[] and take that in.` + "\n"
	}
	return words
}

// nextLine returns the command line with other flags.
func (c *reconcileCall) nextLine(flags string) string {
	line, command := "usher reconcile "+strings.TrimSpace(flags+" "+c.flags()), ""
	if !c.readsLog() {
		line += " --"
	}
	for _, arg := range c.command {
		command += " " + text.Quote(arg)
	}
	if text.Visible(command) != command { // nobody could copy it
		command = " CMD ARG...  (the same command)"
	}
	return text.Visible(c.commandLine(line)) + command
}

// count writes a number and what it counts.
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}
