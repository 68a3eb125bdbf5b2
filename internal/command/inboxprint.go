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
	"usher/internal/inbox"
)

const (
	lineWidth    = 100 // of a list
	tenantColumn = 2
	tenantWidth  = 36 // which a longer one exceeds in its own line alone
	columnGap    = "  "
)

// noReceiver is what a webhook waits for whose receiver is gone from the settings.
const noReceiver = "no receiver takes its platform"

// printList prints one line for each webhook. It never shortens a tenant, so that people can copy it
// from here.
func printList(w io.Writer, entries []admin.Webhook, now time.Time, heading bool) error {
	var rows [][]string
	if heading {
		rows = append(rows, []string{"ID", "STATE", "TENANT", "TRIES", "AGE", "LAST ANSWER, WHAT HOLDS IT UP"})
	}
	for i := range entries {
		e := &entries[i]
		rows = append(rows, []string{
			e.ID, visible(string(e.State)), tenantOf(e),
			strconv.Itoa(e.Tries), age(e.Received, now), standing(e, now),
		})
	}
	var out strings.Builder
	widths := columnWidths(rows)
	for _, row := range rows {
		left := lineWidth
		last := len(row) - 1
		for i, cell := range row[:last] {
			out.WriteString(cell + strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell))) + columnGap)
			left -= widths[i] + len(columnGap)
		}
		out.WriteString(shorten(row[last], left) + "\n")
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
			if i == tenantColumn {
				width = min(width, tenantWidth)
			}
			widths[i] = max(widths[i], width)
		}
	}
	return widths
}

// summary counts the states.
func summary(entries []admin.Webhook) string {
	count := make(map[inbox.State]int)
	for i := range entries {
		count[entries[i].State]++
	}
	words := plural(len(entries), "webhook")
	separator := ": "
	for _, state := range inbox.States {
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
	fact := func(name, format string, args ...any) {
		fmt.Fprintf(&out, "%-11s %s\n", name, visible(fmt.Sprintf(format, args...)))
	}
	fact("id", "%s", d.ID)
	fact("state", "%s", d.State)
	if d.Why != "" {
		fact("because", "%s", d.Why)
	}
	if d.NoReceiver {
		fact("because", "%s", noReceiver)
	}
	fact("since", "%s", moment(d.Changed, now))
	fact("tenant", "%s", tenantOf(&d.Webhook))
	fact("type", "%s", d.Type)
	fact("received", "%s", moment(d.Received, now))
	if !d.Again.IsZero() {
		fact("sent again", "%s", moment(d.Again, now))
	}
	fact("webhook-id", "%s", d.Webhook.Webhook)
	fact("tries", "%d", d.Tries)
	if d.Receiver != "" {
		fact("receiver", "%s", d.Receiver)
	}
	switch {
	case d.Paused:
		fact("next try", "paused")
	case d.HeldBy != "":
		fact("next try", "waits behind %s", d.HeldBy)
	case d.Down:
		fact("next try", "when the receiver is back")
	case !d.Next.IsZero():
		fact("next try", "%s, in %s", d.Next.UTC().Format(time.RFC3339), age(now, d.Next))
	}

	section := func(title string) { fmt.Fprintf(&out, "\n%s\n", title) }
	if len(d.Attempts) > 0 {
		section("attempts")
		for i := range d.Attempts {
			a := &d.Attempts[i]
			fmt.Fprintf(&out, "  %s  %8v  %s\n", a.At.UTC().Format(time.RFC3339), a.Took.Round(time.Millisecond), visible(a.Words()))
		}
	}
	switch {
	case d.Previous != "" && d.Untaken != "":
		section(fmt.Sprintf("changes against %s, the last that the receiver took (it did not take %s)", d.Previous, d.Untaken))
	case d.Previous != "":
		section("changes against " + d.Previous)
	default:
		section("changes (the receiver took no snapshot before it, as far as usher knows)")
	}
	if len(d.Changes) == 0 {
		out.WriteString("  none\n")
	}
	for _, change := range d.Changes {
		fmt.Fprintf(&out, "  %s\n", visible(change))
	}
	section("payload")
	out.WriteString(payloadText(d.Payload) + "\n")
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
	case e.Tenant == "" && e.Type == "":
		return "-" // a damaged record
	case e.Tenant == "":
		return visible("(" + e.Type + ")")
	default:
		return visible(showTenant(e.Platform, e.Tenant))
	}
}

// standing is what the receiver said last, or else what is known instead, and what a webhook waits for.
func standing(e *admin.Webhook, now time.Time) string {
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

func moment(t, now time.Time) string {
	if t.IsZero() {
		return "-"
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

// shorten cuts out the middle of what is longer than n characters: of an address
// or an error the end says as much as the beginning.
func shorten(s string, n int) string {
	runes := []rune(s)
	if len(runes) <= n {
		return s
	}
	n = max(n, 3) - 1
	return string(runes[:n-n/2]) + "…" + string(runes[len(runes)-n/2:])
}
