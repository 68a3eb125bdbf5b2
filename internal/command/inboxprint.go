package command

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"usher/internal/admin"
	"usher/internal/inbox/store"
)

// The columns whose content can be long. In a list that goes to a file or a pipe a long one only makes its own line longer.
const (
	tenantColumn = 2
	changeColumn = 3
	lastColumn   = 6
	alignedWidth = 36
	columnGap    = "  "
)

// noReceiver is what a webhook waits for whose receiver is gone from the settings.
const noReceiver = "no receiver takes its platform"

// printList prints one line for each webhook. It never shortens a tenant, so that people can copy it
// from here. terminal is how many columns that has, to which the lines are cut; zero: it is none.
func printList(w io.Writer, entries []admin.Webhook, now time.Time, terminal int) error {
	var rows [][]string
	if terminal > 0 {
		rows = append(rows, []string{"ID", "STATE", "TENANT", "WHAT CHANGED", "TRIES", "AGE", "LAST ANSWER"})
	}
	for i := range entries {
		e := &entries[i]
		changes := cmp.Or(visible(strings.Join(e.Changes, ", ")), "-")
		rows = append(rows, []string{
			e.ID, visible(string(e.State)), tenantOf(e), changes, strconv.Itoa(e.Tries), age(e.Received, now), progress(e, now),
		})
	}
	widths := make([]int, lastColumn)
	for _, row := range rows {
		for i := range widths {
			width := utf8.RuneCountInString(row[i])
			if i == tenantColumn || i == changeColumn {
				width = min(width, alignedWidth)
			}
			widths[i] = max(widths[i], width)
		}
	}
	if terminal > 0 { // what changed and the last answer share what the others leave
		left := terminal + widths[changeColumn]
		for _, width := range widths {
			left -= width + len(columnGap)
		}
		widths[changeColumn] = max(12, min(widths[changeColumn], left/2, left-20))
	}
	var out strings.Builder
	for _, row := range rows {
		line := ""
		for i, width := range widths {
			if terminal > 0 && i == changeColumn {
				row[i] = shorten(row[i], width)
			}
			line += fmt.Sprintf("%-*s", width, row[i]) + columnGap
		}
		if terminal > 0 {
			row[lastColumn] = shorten(row[lastColumn], terminal-utf8.RuneCountInString(line))
		}
		out.WriteString(line + row[lastColumn] + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// summary counts the states.
func summary(entries []admin.Webhook) string {
	count := make(map[store.State]int)
	for i := range entries {
		count[entries[i].State]++
	}
	var words []string
	for _, state := range store.States {
		if count[state] > 0 {
			words = append(words, fmt.Sprintf("%d %s", count[state], state))
		}
	}
	return strings.TrimSuffix(plural(len(entries), "webhook")+": "+strings.Join(words, ", "), ": ")
}

// printDetail prints all there is of a webhook.
func printDetail(w io.Writer, d *admin.WebhookDetail, now time.Time) error {
	var out strings.Builder
	fact := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&out, "%-11s %s\n", name, visible(value))
		}
	}
	fact("id", d.ID)
	fact("state", d.Outcome())
	fact("because", d.Why)
	if d.NoReceiver {
		fact("because", noReceiver)
	}
	fact("since", moment(d.Changed, now))
	fact("tenant", tenantOf(&d.Webhook))
	fact("type", d.Type)
	fact("received", moment(d.Received, now))
	fact("sent again", moment(d.Again, now))
	fact("webhook-id", d.Webhook.Webhook)
	if d.Decision == "rejected" {
		fact("answered", strconv.Itoa(d.Status))
		fact("from", d.From)
		if d.Times > 1 {
			fact("came", fmt.Sprintf("%d times", d.Times))
		}
	} else {
		fact("tries", strconv.Itoa(d.Tries))
	}
	fact("receiver", d.Receiver)
	switch {
	case d.Paused:
		fact("next try", "paused")
	case d.HeldBy != "":
		fact("next try", "waits behind "+d.HeldBy)
	case d.Down:
		fact("next try", "when the receiver is back")
	case !d.Next.IsZero():
		fact("next try", d.Next.UTC().Format(time.RFC3339)+", in "+age(now, d.Next))
	}

	section := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&out, "\n%s\n", title)
		}
		for _, line := range lines {
			fmt.Fprintf(&out, "  %s\n", visible(line))
		}
	}
	var attempts, faults []string
	for i := range d.Attempts {
		a := &d.Attempts[i]
		attempts = append(attempts, fmt.Sprintf("%s  %8v  %s", a.At.UTC().Format(time.RFC3339), a.Took.Round(time.Millisecond), a.Words()))
	}
	section("attempts", attempts)
	for _, f := range d.Faults {
		faults = append(faults, strings.TrimSpace(f.Path+" "+f.Message))
	}
	section("what is wrong with it", faults)
	if d.Payload != nil {
		title, changes := compared(d)
		section(title, changes)
		out.WriteString("\npayload\n" + payloadText(d.Payload) + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// compared returns what a webhook changed, with a title that says against what.
func compared(d *admin.WebhookDetail) (title string, changes []string) {
	const none = "(the receiver took no snapshot before it, as far as usher knows)"
	title, changes = "changes since "+d.Previous, []string{"none"}
	switch {
	case d.Decision == "rejected":
		title, changes = "compared with "+cmp.Or(d.Previous, "nothing "+none), []string{"its features can't be read"}
	case d.Previous == "":
		title = "changes " + none
	case d.Untaken != "":
		title += fmt.Sprintf(", the last webhook that the receiver accepted (it did not accept %s)", d.Untaken)
	}
	if len(d.Changes) > 0 {
		changes = d.Changes
	}
	return title, changes
}

// payloadText indents a payload; one that is no JSON comes as a string.
func payloadText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return visible(text)
	}
	var indented bytes.Buffer
	_ = json.Indent(&indented, raw, "", "  ") // it is JSON, as part of an answer that is
	lines := strings.Split(indented.String(), "\n")
	for i := range lines {
		lines[i] = visible(lines[i])
	}
	return strings.Join(lines, "\n")
}

// tenantOf names a tenant, or, where a webhook has none, its type in brackets.
func tenantOf(e *admin.Webhook) string {
	switch {
	case e.Tenant == "" && (e.Type == "" || e.Decision == "rejected"):
		return "-" // a damaged record, or nobody knows whose it is
	case e.Tenant == "":
		return visible("(" + e.Type + ")")
	default:
		return visible(store.ShowTenant(e.Platform, e.Tenant))
	}
}

// progress is what the receiver said last, or else what is known instead, and what a webhook waits for.
func progress(e *admin.Webhook, now time.Time) string {
	var words []string
	if answer := cmp.Or(e.Answer, e.Why); answer != "" {
		words = append(words, visible(answer))
	}
	if e.Paused {
		words = append(words, "paused")
	}
	switch {
	case e.NoReceiver:
		words = append(words, noReceiver)
	case e.HeldBy != "":
		words = append(words, "behind "+e.HeldBy)
	case !e.Paused && e.Down:
		words = append(words, "receiver is down")
	case !e.Paused && !e.Next.IsZero():
		words = append(words, "next try in "+age(now, e.Next))
	}
	if e.Behind > 0 {
		words = append(words, fmt.Sprintf("%d behind it", e.Behind))
	}
	return cmp.Or(strings.Join(words, "; "), "-")
}

// moment is a time, and how long ago it is; empty: it is not known.
func moment(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s, %s ago", t.UTC().Format(time.RFC3339), age(t, now))
}

// age is short and rough, as in a list.
func age(since, now time.Time) string {
	d := max(0, now.Sub(since))
	switch {
	case since.IsZero():
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// shorten cuts what is longer than n characters at its end.
func shorten(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	return strings.TrimRight(string(runes[:max(n, 3)-1]), " ") + "…"
}
