// Package view has what people see of usher: one model for each thing that is shown, with its words. The page of the
// admin port draws a model, the API sends it as JSON, and a command prints what it has read there: so a thing is said
// in one way, wherever it is said.
//
//	words.go    times, numbers and names
//	list.go     a list is declared once, as columns: the page draws a table of it, and a command prints lines
//	webhook.go  a webhook: in a list, what it waits for, and what it changed
//	detail.go   a webhook with all that is known of it
//	tenant.go   a tenant: in a list, what it may use, and whether the receiver has the same
//	act.go      what came of an act, and who did what
package view

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"usher/internal/inbox"
	"usher/internal/lane/state"
	"usher/internal/text"
)

// Span writes a duration: 2.5ms, 35ms, 34s, 2m 10s, 26m, 1h 34m, 3d 4h.
func Span(d time.Duration) string {
	two := func(a time.Duration, unit string, b time.Duration, lesser string) string {
		if b == 0 {
			return fmt.Sprintf("%d%s", a, unit)
		}
		return fmt.Sprintf("%d%s %d%s", a, unit, b, lesser)
	}
	const day = 24 * time.Hour
	switch {
	case d <= 0:
		return "0s"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2gms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second && d%time.Second >= 100*time.Millisecond:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 10*time.Minute:
		return two(d/time.Minute, "m", d%time.Minute/time.Second, "s")
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < day:
		return two(d/time.Hour, "h", d%time.Hour/time.Minute, "m")
	default:
		return two(d/day, "d", d%day/time.Hour, "h")
	}
}

// Age writes how long ago a time was, in its largest unit, so that the times in a list are easy to compare.
func Age(t time.Time) string {
	if t.IsZero() {
		return Nothing
	}
	largest, _, _ := strings.Cut(Span(time.Since(t).Truncate(time.Second)), " ")
	return largest
}

// Stamp writes a time to the second, as --since takes it.
func Stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// StampAge writes a time, and how long ago it was; nothing for the zero time.
func StampAge(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return Stamp(t) + ", " + Age(t) + " ago"
}

// Nothing stands in a list where there is no more to say.
const Nothing = "-"

// Count writes a number with a comma between its thousands.
func Count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Plural writes a number and the noun that it counts.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(n) + " " + many
}

// Bytes writes a size: 640 KiB, 1.5 GiB.
func Bytes(n int64) string {
	size, unit := float64(n), "bytes"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if size < 1024 {
			break
		}
		size, unit = size/1024, larger
	}
	if size >= 10 || unit == "bytes" {
		return fmt.Sprintf("%.0f %s", size, unit)
	}
	return fmt.Sprintf("%.1f %s", size, unit)
}

// TenantName writes a tenant as inbox.ShowTenant does, and shortens a very long name: a browser would need
// minutes to lay out one of 1 MiB.
func TenantName(platform, tenant string) string {
	return text.Shorten(inbox.ShowTenant(platform, tenant), 300)
}

// TenantURL is the address of a tenant's page.
func TenantURL(platform, code string) string {
	return "/tenant?" + url.Values{"platform": {platform}, "code": {code}}.Encode()
}

// FirstOf lists the first three names of so many, and says how many others there are.
func FirstOf(names []string, all int) string {
	names = names[:min(3, len(names))]
	switch n := len(names); {
	case all > n:
		return strings.Join(names, ", ") + " and " + Plural(all-n, "other", "others")
	case n > 1:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return strings.Join(names, "")
}

// FirstFew lists the first three names, and says how many others there are.
func FirstFew(names []string) string { return FirstOf(names, len(names)) }

// Excerpt returns the beginning of a foreign text, on one line.
func Excerpt(words string) string {
	return text.Shorten(strings.Join(strings.Fields(words), " "), 120)
}

// Tone returns the colour of a state, a decision or a severity: good, warn, bad or calm.
func Tone(word string) string {
	for _, s := range state.All {
		if string(s.State) == word {
			return s.Tone
		}
	}
	switch word {
	case "forwarded", "ok":
		return "good"
	case "failed", "critical":
		return "bad"
	case "rejected", "warning":
		return "warn"
	default: // such as duplicate: neither good nor bad
		return "calm"
	}
}
