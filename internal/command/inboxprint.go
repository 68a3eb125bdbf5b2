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

const columnGap = "  "

// The columns whose content can be long. In a list that goes to a file or a pipe a long one only makes its own line longer.
const (
	tenantColumn = 2
	changeColumn = 3
	alignedWidth = 36
)

// noReceiver is what a webhook waits for whose receiver is gone from the settings.
const noReceiver = "no receiver takes its platform"

// printList prints one line for each webhook. It never shortens a tenant, so that people can copy it
// from here. width is that of the terminal, to which the lines are cut; zero: it is none.
func printList(w io.Writer, entries []admin.Webhook, now time.Time, width int) error {
	var rows [][]string
	if width > 0 {
		rows = append(rows, []string{"ID", "STATE", "TENANT", "WHAT CHANGED", "TRIES", "AGE", "LAST ANSWER"})
	}
	for i := range entries {
		e := &entries[i]
		rows = append(rows, []string{
			e.ID, visible(string(e.State)), tenantOf(e), changesOf(e),
			strconv.Itoa(e.Tries), age(e.Received, now), progress(e, now),
		})
	}
	var out strings.Builder
	widths := columnWidths(rows)
	if width > 0 { // what changed and the last answer share what the others leave
		left := width - len(columnGap)*(len(widths)-1)
		for i, n := range widths[:len(widths)-1] {
			if i != changeColumn {
				left -= n
			}
		}
		widths[changeColumn] = max(12, min(widths[changeColumn], left/2, left-20))
	}
	for _, row := range rows {
		last, used := len(row)-1, 0
		for i, cell := range row[:last] {
			if width > 0 && i == changeColumn {
				cell = shorten(cell, widths[i])
			}
			cell += strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell))) + columnGap
			out.WriteString(cell)
			used += utf8.RuneCountInString(cell)
		}
		if width > 0 {
			row[last] = shorten(row[last], width-used)
		}
		out.WriteString(row[last] + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func columnWidths(rows [][]string) []int {
	var widths []int
	for _, row := range rows {
		widths = append(widths, make([]int, len(row)-len(widths))...)
		for i, cell := range row {
			width := utf8.RuneCountInString(cell)
			if i == tenantColumn || i == changeColumn {
				width = min(width, alignedWidth)
			}
			widths[i] = max(widths[i], width)
		}
	}
	return widths
}

// changesOf says what a webhook changed, in words.
func changesOf(e *admin.Webhook) string { return cmp.Or(visible(strings.Join(e.Changes, ", ")), "-") }

// summary counts the states.
func summary(entries []admin.Webhook) string {
	count := make(map[store.State]int)
	for i := range entries {
		count[entries[i].State]++
	}
	words := plural(len(entries), "webhook")
	separator := ": "
	for _, state := range store.States {
		if count[state] > 0 {
			words += fmt.Sprintf("%s%d %s", separator, count[state], state)
			separator = ", "
		}
	}
	return words
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

	section := func(title string) { fmt.Fprintf(&out, "\n%s\n", title) }
	if len(d.Attempts) > 0 {
		section("attempts")
		for i := range d.Attempts {
			a := &d.Attempts[i]
			fmt.Fprintf(&out, "  %s  %8v  %s\n", a.At.UTC().Format(time.RFC3339), a.Took.Round(time.Millisecond), visible(a.Words()))
		}
	}
	if len(d.Faults) > 0 {
		section("what is wrong with it")
		for _, f := range d.Faults {
			fmt.Fprintf(&out, "  %s\n", visible(strings.TrimSpace(f.Path+" "+f.Message)))
		}
	}
	if d.Payload != nil {
		switch {
		case d.Decision == "rejected" && d.Previous != "":
			section("compared with " + d.Previous)
		case d.Decision == "rejected":
			section("compared with nothing (the receiver took no snapshot before it, as far as usher knows)")
		case d.Previous != "" && d.Untaken != "":
			section(fmt.Sprintf("changes since %s, the last webhook that the receiver accepted (it did not accept %s)", d.Previous, d.Untaken))
		case d.Previous != "":
			section("changes since " + d.Previous)
		default:
			section("changes (the receiver took no snapshot before it, as far as usher knows)")
		}
		for _, change := range d.Changes {
			fmt.Fprintf(&out, "  %s\n", visible(change))
		}
		switch {
		case len(d.Changes) == 0 && d.Decision == "rejected":
			out.WriteString("  its features can't be read\n")
		case len(d.Changes) == 0:
			out.WriteString("  none\n")
		}
		section("payload")
		out.WriteString(payloadText(d.Payload) + "\n")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// payloadText indents a payload; one that is no JSON comes as a string.
func payloadText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return visible(text)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, raw, "", "  "); err != nil {
		return visible(string(raw))
	}
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
