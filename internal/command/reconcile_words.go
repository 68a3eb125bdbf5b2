package command

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/text"
)

// What 'usher reconcile' prints.

// maxListed is how many tenants of one result, and how many faults, are printed without --json.
const maxListed = 50

func (c *reconcileCall) fault(r *lane.Compared) {
	if c.faults++; c.faults <= maxListed {
		c.progress.end()
		fmt.Fprintf(c.Stderr, "line %d: %s\n", r.Line, text.Visible(r.Fault))
	}
}

// report prints a tenant that is not equal.
func (c *reconcileCall) report(r *lane.Compared) {
	if c.json {
		_ = json.NewEncoder(c.Stdout).Encode(struct {
			Result    lane.Result `json:"result"`
			Platform  string      `json:"platform"`
			Tenant    string      `json:"tenant"`
			Changes   []string    `json:"changes"`
			Applied   bool        `json:"applied"`
			LeftOut   string      `json:"left_out,omitempty"`
			Erased    time.Time   `json:"erased,omitzero"`
			Dismissed bool        `json:"dismissed,omitempty"`
		}{r.Result, r.Platform, r.Tenant, append([]string{}, r.Changes...), r.Applied, r.LeftOut, r.Erased, r.Dismissed})
		return
	}
	if c.listed[r.Result]++; c.listed[r.Result] > maxListed {
		return
	}
	words := strings.Join(r.Changes, ", ")
	switch {
	case r.LeftOut != "":
		words = "left out: " + r.LeftOut
	case r.Result == lane.NewTenant:
		words = cmp.Or(words, "no features")
	case r.Result == lane.Twin:
		others := make([]string, len(r.Elsewhere))
		for n, platform := range r.Elsewhere {
			others[n] = inbox.ShowTenant(platform, r.Tenant)
		}
		words = "usher knows " + strings.Join(others, " and ") + ", which the command did not print: is the platform right?"
	case r.Result == lane.Changed:
		words = "something came for it meanwhile; the next run compares it"
	case r.Result == lane.Unlisted:
		words = "usher says that it may use something, and the command did not print it"
	}
	if !r.Erased.IsZero() {
		words += "; somebody erased it on " + r.Erased.UTC().Format(time.DateOnly)
	}
	if r.Dismissed {
		words += " (dismissed)"
	}
	c.progress.end()
	c.say("%-8s %-24s  %s\n", r.Result, text.Visible(inbox.ShowTenant(r.Platform, r.Tenant)), text.Visible(words))
}

// sayMore says how many tenants of each result were not listed.
func (c *reconcileCall) sayMore() {
	for _, result := range []lane.Result{lane.Differs, lane.NewTenant, lane.Twin, lane.Changed, lane.Unlisted} {
		if n := c.listed[result] - maxListed; n > 0 {
			c.say("%-8s and %s more; --json lists all\n", result, thousands(n))
		}
	}
	if c.faults > maxListed {
		fmt.Fprintf(c.Stderr, "and %s more\n", count(c.faults-maxListed, "faulty line"))
	}
}

func (c *reconcileCall) say(format string, args ...any) {
	if !c.json {
		fmt.Fprintf(c.Stdout, format, args...)
	}
}

// conclusion says in words what was found, and what to do next.
func (c *reconcileCall) conclusion(run *lane.Run) string {
	s, lead := &run.Summary, ""
	if len(c.listed) > 0 {
		lead = "\n"
	}
	if run.Failed != "" && s.Applied == 0 {
		compared := s.Equal + s.Differs + s.New + s.Twin + s.Changed
		return fmt.Sprintf("%s%s compared, nothing taken in.\n", lead, count(compared, "tenant"))
	}
	taken := ""
	switch {
	case s.Applied > 0 && c.noDeliver:
		taken = count(s.Applied, "tenant") + " taken in: usher knows them now, and delivers nothing.\n"
	case s.Applied > 0:
		list := c.commandLine("usher inbox ls --since " + run.Began.UTC().Format(time.RFC3339))
		taken = count(s.Applied, "tenant") + " taken in. To see them: " + list + "\n"
	}
	return lead + foundWords(s) + "\n" + taken + c.advice(&s.Left)
}

// foundWords says in words what was found.
func foundWords(s *lane.Summary) string {
	compared := s.Equal + s.Differs + s.New + s.Twin + s.Changed
	words := fmt.Sprintf("Nothing differs: usher knows %s as the billing service does.", count(s.Equal, "tenant"))
	if compared > s.Equal {
		var parts []string
		for _, p := range []struct {
			n          int
			one, other string
		}{
			{s.Equal, "1 is equal", "are equal"}, {s.Differs, "1 differs", "differ"}, {s.New, "1 is new", "are new"},
			{s.Twin, "1 is a twin", "are twins"}, {s.Changed, "1 has changed meanwhile", "have changed meanwhile"},
		} {
			switch {
			case p.n == 1:
				parts = append(parts, p.one)
			case p.n > 1:
				parts = append(parts, thousands(p.n)+" "+p.other)
			}
		}
		words = fmt.Sprintf("%s compared: %s.", count(compared, "tenant"), strings.Join(parts, ", "))
	}
	switch s.Unlisted {
	case 0:
	case 1:
		words += " 1 tenant that may use something was not printed."
	default:
		words += " " + count(s.Unlisted, "tenant") + " that may use something were not printed."
	}
	if s.PassedOver > 0 {
		words += " " + count(s.PassedOver, "tenant") + " passed over: no receiver takes their platforms."
	}
	return words
}

// advice says what to do about what is left.
func (c *reconcileCall) advice(left *lane.Findings) (words string) {
	if n := left.Differs + left.New; n > 0 && !c.apply {
		flags := "--apply"
		if c.begun.Known == 0 {
			words += "usher knows no tenant yet. If your receiver is right already, " +
				"--apply --no-deliver makes usher know them, and delivers nothing.\n"
			flags += " --no-deliver"
		}
		if n > c.defaultMax() {
			flags += fmt.Sprint(" --max ", n)
		}
		words += "Nothing was changed. To take in what differs or is new:\n  " + c.nextLine(flags) + "\n"
	}
	if left.Twin > 0 && !c.twins {
		flags := "--apply --twins"
		if c.apply {
			flags = "--twins"
		}
		words += "A twin is usually a wrong platform in your list: correct it. If it is a new tenant, add " + flags + ".\n"
	}
	if left.Unlisted > 0 {
		words += "An unlisted tenant is a cancellation that was lost, or your list is not whole. " +
			"If it is right as it is: usher inbox dismiss --tenant TENANT\n"
	}
	return words
}

// nextLine returns the command line with other flags.
func (c *reconcileCall) nextLine(flags string) string {
	line := "usher reconcile " + strings.TrimSpace(flags+" "+c.flags()) + " --"
	for _, arg := range c.command {
		if text.Visible(arg) != arg { // nobody could copy it
			return text.Visible(c.commandLine(line)) + " CMD ARG...  (the same command)"
		}
	}
	for _, arg := range c.command {
		line += " " + text.Quote(arg)
	}
	return text.Visible(c.commandLine(line))
}

// count writes a number and what it counts: 1,204 tenants.
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return thousands(n) + " " + what
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// progress says on a terminal how far something is.
type progress struct {
	stderr  io.Writer
	printed time.Time
	open    bool // the line has no end yet
}

func (p *progress) show(format string, args ...any) {
	if time.Since(p.printed) > time.Second/2 && text.IsTerminal(p.stderr) {
		p.printed, p.open = time.Now(), true
		fmt.Fprintf(p.stderr, "\r"+format, args...)
	}
}

func (p *progress) end() {
	if p.open {
		fmt.Fprintln(p.stderr)
		p.open = false
	}
}
